#!/usr/bin/env python3
"""How long the quick start trains and what it compares, from the speed of this machine.

Reads the summary.json of two short runs: the training run's first steps, and the comparison's slowest way to train.
Prints shell assignments (steps, model, rounds, case_steps); the reasons go to stderr.

example: quickstart_plan.py runs/quickstart-probe/training runs/quickstart-probe/baseline
"""
import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

TRAINING_SECONDS, MOST_STEPS, FEWEST_STEPS = 240, 500, 20
COMPARISON_SECONDS = 240  # about three minutes: no case is slower than the baseline by much, most are faster
CASES = 8
START_SECONDS = 3  # of each measured run: starting, evaluating, saving


class Comparison(NamedTuple):
    model: str
    rounds: int
    case_steps: int


def training_steps(step_seconds):
    """As many steps as fit the time, a multiple of ten."""
    fitting = int(TRAINING_SECONDS / step_seconds) // 10 * 10
    return min(MOST_STEPS, max(FEWEST_STEPS, fitting))


def comparison(baseline_seconds):
    """The first choice that fits: fewer rounds, then fewer steps, then the smaller model; never under two rounds."""
    for choice in [Comparison("moe-micro", 3, 10), Comparison("moe-micro", 2, 10), Comparison("moe-micro", 2, 6)]:
        run = choice.case_steps * baseline_seconds + START_SECONDS
        if CASES * choice.rounds * run <= COMPARISON_SECONDS:
            return choice
    return Comparison("moe-pico", 3, 10)


def step_seconds(run):
    return json.loads((Path(run) / "summary.json").read_text(encoding="utf-8"))["step_ms"]["median"] / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("training", help="folder of a run of the training's settings")
    parser.add_argument("baseline", help="folder of a run of the comparison's baseline")
    arguments = parser.parse_args()
    training, baseline = step_seconds(arguments.training), step_seconds(arguments.baseline)
    steps, chosen = training_steps(training), comparison(baseline)
    print(f"A step takes {training:.2f} s here: {steps} steps, about {steps * training / 60:.1f} minutes.\n"
          f"A step of the comparison's baseline takes {baseline:.2f} s: {chosen.rounds} rounds of {chosen.case_steps} "
          f"steps of {chosen.model}.", file=sys.stderr)
    print(f"steps={steps} model={chosen.model} rounds={chosen.rounds} case_steps={chosen.case_steps}")


if __name__ == "__main__":
    main()
