#!/usr/bin/env python3
"""Writes quality.md and quality.png: what techniques do to the held-out loss that a run ends at, from quality.jsonl in the folder.

With --plan it reads the records of bench/tradeoff/rates.yaml instead, and prints the plan of quality with the learning rates at which
update rules ended lowest.

example: scripts/quality_page.py --plan mine/rates.jsonl >mine/quality.yaml
         scripts/quality_page.py mine
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import pathlib

from report import document, figures, quality, records
from report.plots.images import png
from report.rendering import to_markdown


def read(path: pathlib.Path) -> list[figures.Sweep]:
    return figures.sweeps(records.read_records([path])[0])


def make(arguments: argparse.Namespace) -> None:
    if arguments.plan:
        print(quality.planned(quality.best_rates(read(arguments.records))), end="")
        return
    blocks = quality.blocks(read(arguments.records / quality.RECORDS))
    for picture in document.pictures(blocks):
        (arguments.records / picture.file).write_bytes(png(picture.drawing))
    (arguments.records / quality.PAGE).write_text(to_markdown(blocks))
    print(arguments.records / quality.PAGE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", action="store_true", help="print the plan of quality with the rates found")
    parser.add_argument("records", type=pathlib.Path, help="a folder with quality.jsonl; with --plan the records of rates.yaml")
    arguments = parser.parse_args()
    with records.mistakes_of("quality_page"):
        make(arguments)


if __name__ == "__main__":
    main()
