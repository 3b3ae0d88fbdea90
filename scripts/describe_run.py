#!/usr/bin/env python3
"""Says in plain words what a run trained, what it reached and what it took.

RUN_DIR is the folder of a `moelab train` that has ended.

example: scripts/describe_run.py runs/moe-nano
"""
import argparse
import json
import math
import pathlib
import sys

from report.byte_units import human_bytes


def millions(count: int) -> str:
    return f"{count / 1e6:.1f} million"


def steps_of(run: pathlib.Path, summary: dict) -> int:
    """All that the run took, before it was resumed too: the summary counts those since."""
    try:
        return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    except (OSError, IndexError):
        return summary["steps"]


def trained(summary: dict) -> str:
    model = summary["model"]
    where = summary["machine"].get("gpu") if summary["device"] == "cuda" else summary["machine"].get("cpu")
    return (f"Trained {model['preset']} for {summary['steps']} steps on {where or summary['device']}: "
            f"{millions(model['parameters'])} parameters, of which each token uses "
            f"{millions(model['active_parameters'])}.")


def unit_of(summary: dict) -> str:
    """What a token id stands for, by the data that the run was trained on."""
    try:
        meta = json.loads(pathlib.Path(summary["settings"]["data"]["path"], "meta.json").read_text())
        return "byte" if meta["tokenizer"] == "bytes" else "token"
    except (OSError, ValueError, KeyError, TypeError):
        return "token"


def reached(summary: dict, unit: str) -> str:
    loss = summary.get("held_out_loss")
    if loss is None:
        return "It was not evaluated on held-out text."
    bits = loss / math.log(2)
    text = f"On text it has never seen it needs {loss:.3f} nats a {unit}: {bits:.2f} bits"
    if unit == "byte":
        text += f", where knowing\nnothing needs 8 (the text would shrink to {bits / 8:.0%} of its size)"
    return f"{text}.\nIt is as unsure of the next {unit} as among {math.exp(loss):.1f} equally likely ones."


def took(summary: dict) -> str:
    speed, peak = summary["tokens_per_second"]["median"], human_bytes(summary["peak_bytes"])
    pace = "" if speed is None else f"went through {speed:,.0f} tokens a second, and "  # None: no step was timed
    limit = summary.get("memory_limit_bytes") or 0
    allowed = f" of {human_bytes(limit)} allowed" if limit else ""
    return f"It {pace}took {peak} of memory at its peak{allowed}."


def describe(summary: dict, unit: str) -> str:
    if summary["status"] != "ok":
        return f"The run ended with status {summary['status']} after {summary['steps']} steps."
    return "\n".join((trained(summary), reached(summary, unit), took(summary)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN_DIR", type=pathlib.Path)
    parser.add_argument("--unit", choices=("byte", "token"), help="what a token id stands for (default: as the run's data say)")
    arguments = parser.parse_args()
    file = arguments.run / "summary.json"
    try:
        summary = json.loads(file.read_text())
    except FileNotFoundError:
        sys.exit(f"describe_run: {arguments.run}: no summary.json: no folder of a run, or of one that has not ended")
    except (OSError, json.JSONDecodeError) as error:
        sys.exit(f"describe_run: {file}: {error}")
    print(describe(summary | {"steps": steps_of(arguments.run, summary)}, arguments.unit or unit_of(summary)))


if __name__ == "__main__":
    main()
