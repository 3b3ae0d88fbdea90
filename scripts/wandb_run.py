#!/usr/bin/env python3
"""Sends a run to Weights & Biases while it trains, beside the files that it leaves.

RUN is the folder of a `moelab train` (its run.dir). Each new line of its metrics.jsonl becomes a step, each new line of its
samples.jsonl a row of a table; config.yaml is the configuration. The script ends after the run has ended, or on Ctrl-C.
Called again, for a run that was resumed, it goes on with the same run of Weights & Biases. Without an account,
WANDB_MODE=offline in front writes everything to RUN/wandb, and `wandb sync` sends it later.

example: scripts/wandb_run.py runs/moe-nano --project moelab
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import hashlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator

import yaml

PAUSE = 0.5  # seconds between two looks at the files


class Mistake(Exception):
    """The caller's."""


def flat(values: dict, before: str = "") -> dict:
    """Nested numbers by path, as TensorBoard has them: expert_load/entropy. What is null is left out."""
    found = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= flat(value, f"{before}{key}/")
        elif value is not None:
            found[before + key] = value
    return found


class Lines:
    """The JSON lines of a file that a run appends to, or writes anew when it goes back or is resumed."""

    def __init__(self, path: pathlib.Path):
        self.path, self.step = path, 0

    def new(self) -> Iterator[dict]:
        """Whole lines of later steps than those seen. A step that is taken again is not sent again."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        later = [line for line in lines if line["step"] > self.step]
        self.step = max([self.step, *(line["step"] for line in later)])
        yield from later


def summary_of(run: pathlib.Path) -> dict | None:
    """What the run says of itself once it has ended."""
    path = run / "summary.json"
    return json.loads(path.read_text()) if path.exists() else None


def follow(run: pathlib.Path, sent, wandb) -> None:
    """Sends lines as they come, until the run has ended and all of its lines are sent."""
    metrics, samples = Lines(run / "metrics.jsonl"), Lines(run / "samples.jsonl")
    metrics.step = samples.step = max(0, sent.step - 1)  # what an earlier call sent; the next step is sent.step
    table = wandb.Table(columns=["step", "prompt", "text"], log_mode="MUTABLE")
    while True:
        summary = summary_of(run)  # looked at before the lines, which are complete then
        for line in metrics.new():
            sent.log({key: value for key, value in flat(line).items() if key != "step"}, step=line["step"])
        rows = list(samples.new())
        for row in rows:
            table.add_data(row["step"], row["prompt"], row["text"])
        if rows:
            sent.log({"samples": table}, step=metrics.step)
        if summary is not None:
            sent.summary.update({key: value for key, value in flat(summary).items() if not key.startswith("settings/")})
            return
        time.sleep(PAUSE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", type=pathlib.Path, help="folder of a run")
    parser.add_argument("--project", default="moelab", help="of Weights & Biases (default: moelab)")
    arguments = parser.parse_args()
    run = arguments.run.resolve()
    if not (run / "config.yaml").is_file():
        raise Mistake(f"{arguments.run}: no config.yaml there; give the folder of a run that has begun (run.dir)")
    try:
        import wandb
    except ImportError:
        raise Mistake("the package wandb is missing; install it with .venv/bin/pip install wandb") from None
    number = hashlib.sha256(os.fsencode(run)).hexdigest()[:12]
    sent = wandb.init(project=arguments.project, name=run.name, id=number, resume="allow", dir=run,
                      config=yaml.safe_load((run / "config.yaml").read_text()))  # fmt: skip
    try:
        follow(run, sent, wandb)
    except KeyboardInterrupt:
        print("wandb_run: stopped; the run goes on", file=sys.stderr)
    sent.finish()


if __name__ == "__main__":
    try:
        main()
    except Mistake as mistake:
        print(f"wandb_run: {mistake}", file=sys.stderr)
        sys.exit(2)
