#!/usr/bin/env python3
"""Sets training runs side by side: settings that differ, memory, speed and loss, and whether one is faster.

Each RUN is the folder of a run that has ended, FILE:CASE of a file of records of bench_tradeoff, or FILE:PART/CASE where
a plan has the case in several parts. The first is what the others are held against, by their tokens a second:

  SAME    the interval of the ratio lies within 2 % of 1
  FASTER  it lies above that,   SLOWER  below
  UNSURE  neither, or of one round alone: more rounds would tell

The interval is a 95 % bootstrap one over rounds and their steps: of the ratios within each round where both come from
the same sweep, else of the ratio of medians. One round cannot know how rounds differ, so its ratio has no interval and no
other verdict; two know little, so that theirs is widened by 5 % either way.

example: scripts/compare.py results/quickstart/records.jsonl:baseline results/quickstart/records.jsonl:bf16
         scripts/compare.py runs/moe-nano runs/moe-nano-recompute
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse

from report import comparison, runs
from report.records import mistakes_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, FILE:CASE or FILE:PART/CASE; at least two")
    arguments = parser.parse_args()
    if len(arguments.runs) < 2:
        parser.error("at least two runs are needed to compare")
    with mistakes_of("compare"):
        print(comparison.text([runs.read(run) for run in arguments.runs]))


if __name__ == "__main__":
    main()
