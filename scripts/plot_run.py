#!/usr/bin/env python3
"""Draws what training runs went through: loss, tokens a second, memory by kind and expert load, step by step.

Each RUN is the folder of a `moelab train` (its run.dir); what is drawn is in its metrics.jsonl. Several runs are laid
over each other, their memory stands side by side. Of one run that has ended or saved a checkpoint, the memory of some
steps is drawn phase by phase as well, from its memory.json.
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import pathlib
import sys

from matplotlib.figure import Figure

from report.plots.training_runs import draw
from report.records import ReportError
from report.training_runs import labels_of, read_run

EXAMPLE = "example: scripts/plot_run.py runs/moe-nano runs/moe-nano-recompute --out compared.png"


def save(figure: Figure, out: pathlib.Path) -> None:
    try:
        figure.savefig(out, dpi=130)
    except (OSError, ValueError) as error:  # the latter: a suffix that matplotlib doesn't know
        raise ReportError(f"--out {out}: {error}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("runs", nargs="+", metavar="RUN", type=pathlib.Path, help="folder of a run, e.g. runs/moe-nano")
    parser.add_argument("--out", metavar="FILE", type=pathlib.Path, default=pathlib.Path("run.png"),
                        help="picture to write (default: run.png)")  # fmt: skip
    arguments = parser.parse_args()
    try:
        runs = [read_run(*pair) for pair in zip(arguments.runs, labels_of(arguments.runs))]
        save(draw(runs), arguments.out)
    except ReportError as mistake:
        print(f"plot_run: {mistake}", file=sys.stderr)
        sys.exit(2)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
