#!/usr/bin/env python3
"""What the quick start measured as best within its budget: the fastest case of its records that fits, and what to set.

Only cases of two rounds or more can be the answer: one round does not show how rounds differ.

example: quickstart_best.py runs/quickstart-tradeoff/records.jsonl --budget-gib 4
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import pathlib
import sys

from report.byte_units import human_bytes
from report.figures import LEAST_ROUNDS, Case, measured, sweeps
from report.records import ReportError, read_records

OF_THE_HARNESS = ("train.steps", "eval.", "checkpoint.", "monitor.", "run.", "data.")  # settings of every case


def best_within(cases: list[Case], budget: float) -> Case | None:
    fitting = [case for case in cases if case.peak.value <= budget]
    return max(fitting, key=lambda case: case.speed.value, default=None)


def advice(model: str, cases: list[Case], budget: float) -> str:
    best = best_within(cases, budget)
    if best is None:
        return f"Nothing that was measured of {model} fits {human_bytes(budget)}."
    settings = " ".join(f"{key}={value}" for key, value in best.any.settings.items() if not key.startswith(OF_THE_HARNESS))
    noisy = "; its rounds differ much, so measure again before you rely on it" if best.noisy or best.one_round else ""
    return (f"Best of what was measured of {model} within {human_bytes(budget)}: {best.name}, "
            f"{best.speed.value:,.0f} tokens/s in {human_bytes(best.peak.value)}{noisy}.\nSet: {settings}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=pathlib.Path, help="file of bench_tradeoff")
    parser.add_argument("--budget-gib", type=float, required=True, help="memory that the answer may take")
    arguments = parser.parse_args()
    try:
        records, _ = read_records([arguments.records])
    except ReportError as error:
        sys.exit(f"quickstart_best: {error}")
    for sweep in sweeps(records):
        known = [case for case in measured(sweep) if len(case.runs) >= LEAST_ROUNDS]
        print(advice(sweep.model, known, arguments.budget_gib * 2**30))


if __name__ == "__main__":
    main()
