#!/usr/bin/env python3
"""Prints what bench/cpu_classes.py and bench/busy_machine.py recorded as Markdown tables. Comparisons with PyTorch models
are read from peers.jsonl in the same folder, where there is one.

example: scripts/report_cpu.py results/xeon-2-cores/cpu.jsonl > results/xeon-2-cores/cpu.md
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import pathlib

from report.cpu_tables import report
from report.peer_tables import read
from report.rendering import to_markdown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=pathlib.Path, help="JSON lines, as --out of the two programs appends")
    file = parser.parse_args().records
    peers = file.with_name("peers.jsonl")
    try:
        print(to_markdown(report(read(file), read(peers) if peers.exists() else [])), end="")
    except (OSError, ValueError) as error:
        parser.error(f"{file}: {error}")


if __name__ == "__main__":
    main()
