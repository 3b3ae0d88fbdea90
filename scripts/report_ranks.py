#!/usr/bin/env python3
"""Prints what bench/ranks/ranks.py and one_rank.py recorded as Markdown tables.

example: scripts/report_ranks.py results/my-machine/ranks.jsonl > results/my-machine/ranks.md
"""
import argparse
import pathlib

from report.peer_tables import read
from report.rank_tables import report
from report.rendering import to_markdown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=pathlib.Path, help="JSON lines, as --out of the two programs appends")
    file = parser.parse_args().records
    try:
        print(to_markdown(report(read(file))), end="")
    except (OSError, ValueError, IndexError) as error:
        parser.error(f"{file}: {error}")


if __name__ == "__main__":
    main()
