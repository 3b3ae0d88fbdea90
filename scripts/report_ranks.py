#!/usr/bin/env python3
"""Prints what the programs in bench/ranks/ recorded as Markdown tables, with what ranks of the sweeps in the same folder hold,
and draws the picture beside them.

example: scripts/report_ranks.py results/my-machine/ranks.jsonl > results/my-machine/ranks.md  # and ranks.png
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import pathlib

from report.document import Picture
from report.plots.images import png
from report.rank_tables import blocks_of
from report.records import ReportError
from report.rendering import to_markdown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path, help="JSON lines, as --out of those programs appends")
    file = parser.parse_args().file
    try:
        blocks = blocks_of(file)
        for picture in (block for block in blocks if isinstance(block, Picture)):
            (file.parent / picture.file).write_bytes(png(picture.drawing))
        print(to_markdown(blocks), end="")
    except (OSError, ValueError, IndexError, ReportError) as error:
        parser.error(f"{file}: {error}")


if __name__ == "__main__":
    main()
