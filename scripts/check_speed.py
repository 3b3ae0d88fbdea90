#!/usr/bin/env python3
"""How far `moelab plan` is from the speed of this machine: trains each plan's first row, and compares tokens a second.

Each round probes anew, so that the spread of the probe is in the figures. Nothing else should run meanwhile.

example: scripts/check_speed.py --program build/dev/bin/moelab --data data/python-stdlib --out speed.jsonl
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import json
import pathlib
import shlex
import statistics
import tempfile

from program_output import printed
from report.working import each

CASES = ("moe-pico precision.compute=fp32", "moe-micro precision.compute=fp32", "moe-pico precision.compute=bf16")
QUIET = ("eval.batches=0", "checkpoint.keep=0", "run.log_every=0", "monitor.quiet=true", "memory.recover=false")


def record(program: pathlib.Path, case: str, words: list[str], folder: pathlib.Path) -> dict:
    """One round: the plan's prediction, and the run that it proposes."""
    plan = json.loads(printed(program, "plan", "--device", "cpu", "--memory", "8GiB", "--model", *case.split(), *words, "--json"))
    first = plan["rows"][0]
    printed(program, *shlex.split(first["command"])[1:], *QUIET, "--device", "cpu", "--overwrite", f"run.dir={folder}")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    measured = summary["tokens_per_second"]["median"]
    return {"schema": 1, "case": case, "command": first["command"], "predicted": first["tokens_per_second"], "measured": measured,
            "error": first["tokens_per_second"] / measured - 1, "probe": plan["probe"], "commit": summary["commit"],
            "machine": summary["machine"]}


def spoken(case: str, records: list[dict]) -> str:
    errors = [100 * one["error"] for one in records]
    predicted, measured = (statistics.median(one[name] for one in records) for name in ("predicted", "measured"))
    busy = sum(not one["probe"]["agrees"] for one in records)
    return (f"{case}: predicted {predicted:,.0f} tokens/s, measured {measured:,.0f}; error {statistics.median(errors):+.0f} % "
            f"({min(errors):+.0f} to {max(errors):+.0f} in {len(errors)} rounds, {busy} of them on a busy machine)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True, help="moelab")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of shards")
    parser.add_argument("--case", action="append", help=f"a model and settings; may be repeated (default: {'; '.join(CASES)})")
    parser.add_argument("--rounds", type=int, default=3, help="of all cases in turns (default: 3)")
    parser.add_argument("--steps", type=int, default=12, help="of each run (default: 12)")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="file of records, written anew")
    arguments = parser.parse_args()
    cases, words = arguments.case or CASES, [f"data.path={arguments.data}", f"train.steps={arguments.steps}"]
    records = []
    with tempfile.TemporaryDirectory() as scratch, open(arguments.out, "w", encoding="utf-8") as out:
        for case in each("check_speed: plan and training", arguments.rounds * cases):
            records.append(record(arguments.program, case, words, pathlib.Path(scratch) / "run"))
            out.write(json.dumps(records[-1]) + "\n")
            out.flush()
    for case in cases:
        print(spoken(case, [one for one in records if one["case"] == case]))


if __name__ == "__main__":
    main()
