#!/usr/bin/env python3
"""Prints what bench/peers recorded as Markdown tables: training steps beside PyTorch models, MoE layers beside other
people's, layers and steps with more experts, and where the time of a step goes.

example: scripts/report_peers.py results/epyc-2-cores/peers.jsonl > results/epyc-2-cores/peers.md
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import pathlib

from report.peer_tables import read, report
from report.rendering import to_markdown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=pathlib.Path, help="JSON lines, as --out of the scripts in bench/peers appends")
    file = parser.parse_args().records
    try:
        records = read(file)
    except (OSError, ValueError) as error:
        parser.error(f"{file}: {error}")
    print(to_markdown(report(records)), end="")


if __name__ == "__main__":
    main()
