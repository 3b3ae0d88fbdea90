#!/usr/bin/env python3
"""Turns the records of bench_tradeoff into a report: one HTML file that needs no other, and Markdown with PNGs.

It shows memory against speed with the Pareto front, memory by kind over the phases of a step, losses, and what guides
claim beside what was measured; of a full sweep also the ladder, leave-one-outs, interactions of pairs and crossovers.
Of a folder of records with dry_runs.json (of claims.py), each claim has the verdict that claims.md gives it.
predictions.json, fits.json (of bench_tradeoff), card_plans.json (of card_plans.py), estimates.jsonl (of
check_estimates.py) and plans.jsonl (of check_plan.py) are read where they lie beside the records.

example: scripts/report.py runs/tradeoff/records.jsonl --techniques runs/tradeoff/techniques.json --out runs/tradeoff
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import pathlib
import sys

from report import assemble, pages, records
from report.claims.page import CLAIMS
from report.working import working


def make(arguments: argparse.Namespace) -> None:
    working("report: reading the records")
    blocks, sweeps, notes = assemble.blocks_of(arguments.records, arguments.techniques, arguments.claims, arguments.out)
    pages.write(arguments.out, blocks)
    for note in notes:
        print(f"report: {note}", file=sys.stderr)
    for sweep in sweeps:
        print(f"{sweep.model}\n{pages.spoken(sweep)}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", metavar="RECORDS", type=pathlib.Path,
                        help="files of records (JSON lines), or folders of *.jsonl")
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path, required=True,
                        help="gets report.html, report.md and the PNGs")
    parser.add_argument("--techniques", metavar="FILE", type=pathlib.Path,
                        help="what 'moelab techniques --json' prints: which claims belong to which technique")
    parser.add_argument("--claims", metavar="FILE", type=pathlib.Path, default=CLAIMS,
                        help="what guides claim (default: train/predict/techniques/claims.yaml)")
    arguments = parser.parse_args()
    with records.mistakes_of("report"):
        make(arguments)
    print(f"{arguments.out / 'report.html'} (one file, works offline), {arguments.out / 'report.md'}")


if __name__ == "__main__":
    main()
