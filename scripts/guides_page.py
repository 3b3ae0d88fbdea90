#!/usr/bin/env python3
"""Writes results/guides.md: every table of the guides in its own rows and columns, claimed beside ours, from the records and dry runs
in the folders of results that have a page of claims.

example: scripts/guides_page.py --techniques mine/techniques.json
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import pathlib

from report.claims import dry_runs, guide_tables, page
from report.records import mistakes_of
from report.rendering import to_markdown
from report.working import each

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
PAGE = RESULTS / "guides.md"


def made(techniques: pathlib.Path) -> str:
    judged = {}
    folders = sorted(path.parent for path in RESULTS.glob(f"*/{page.CLAIMS_PAGE}"))
    for folder in each("guides_page: judging by folder of results", folders):
        inputs = page.read_inputs(folder, techniques, page.CLAIMS)
        cases = sum(len(sweep.cases) for sweep in inputs.sweeps)
        judged[folder.name] = cases, page.judge(inputs, dry_runs.read(folder / "dry_runs.json"))
    richest = sorted(judged, key=lambda name: -judged[name][0])
    return to_markdown(guide_tables.blocks({name: judged[name][1] for name in richest}, page.read_guides(page.CLAIMS).entries))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--techniques", type=pathlib.Path, required=True, help="what 'moelab techniques --json' prints")
    arguments = parser.parse_args()
    with mistakes_of("guides_page"):
        PAGE.write_text(made(arguments.techniques))
    print(PAGE)


if __name__ == "__main__":
    main()
