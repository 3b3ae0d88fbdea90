#!/usr/bin/env python3
"""Judges every claim of the guides: claimed figure, measured figure with its setting, and a verdict, as Markdown.

Measured figures come from the records of sweeps (bench_tradeoff) and, for claims about bytes, from dry runs in
DIR/dry_runs.json, which --program makes anew.

example: scripts/claims.py results/cpu --techniques techniques.json --program build/dev/bin/moelab
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import pathlib

from report.claims import page
from report.records import mistakes_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="results of one machine: records in *.jsonl; gets claims.md")
    parser.add_argument("--techniques", type=pathlib.Path, required=True, help="what 'moelab techniques --json' prints")
    parser.add_argument("--program", type=pathlib.Path, help="moelab: makes the dry runs anew")
    parser.add_argument("--claims", type=pathlib.Path, default=page.CLAIMS, help="default: train/predict/techniques/claims.yaml")
    arguments = parser.parse_args()
    with mistakes_of("claims"):
        text = page.make(arguments.folder, arguments.techniques, arguments.claims, arguments.program)
        (arguments.folder / "claims.md").write_text(text)
    print(text.splitlines()[2])


if __name__ == "__main__":
    main()
