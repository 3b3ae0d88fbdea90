#!/usr/bin/env python3
"""Turns the records of bench_tradeoff into a report: one HTML file that needs no other, and Markdown with PNGs.

It shows memory against speed with the Pareto front, memory by kind over the phases of a step, losses, and what guides
claim beside what was measured; of a full sweep also the ladder, leave-one-outs, interactions of pairs and crossovers.
Of a folder of records with dry_runs.json (of claims.py), each claim has the verdict that claims.md gives it.
predictions.json, fits.json (of bench_tradeoff), estimates.jsonl (of check_estimates.py) and plans.jsonl (of
check_plan.py) are read where they lie beside the records.

example: scripts/report.py runs/tradeoff/records.jsonl --techniques runs/tradeoff/techniques.json --out runs/tradeoff
"""
import argparse
import pathlib
import sys

import yaml

import claims as judging
from tradeoff import atlas, claims, companions, document, dry_claims, figures, pages, records

CLAIMS = pathlib.Path(__file__).resolve().parents[1] / "bench" / "tradeoff" / "claims.yaml"


def prefix(index: int, count: int) -> str:
    """Of the names of a sweep's pictures: none where there is one sweep."""
    return f"{index + 1}-" if count > 1 else ""


def verdicts_of(paths: list[pathlib.Path], sweeps: list[figures.Sweep], of_techniques: list[claims.Technique],
                claimed: list[claims.Claim], claims_file: pathlib.Path) -> dict[str, str]:
    """{claim: verdict} as claims.md has them, which rests on all records of a folder and on dry runs; else none."""
    dry_runs = paths[0] / "dry_runs.json"
    if len(paths) > 1 or not of_techniques or not dry_runs.exists():
        return {}
    states = judging.states_of(records.files_of(paths[0]))
    judge = judging.Judge(sweeps, of_techniques, claimed, states, dry_claims.read(dry_runs))
    return {entry["id"]: judge.row(entry).verdict for entry in yaml.safe_load(claims_file.read_text())["claims"]}


def blocks_of(paths: list[pathlib.Path], techniques: pathlib.Path | None, claims_file: pathlib.Path,
              out: pathlib.Path) -> tuple[list, list, list]:
    """The report's blocks, the sweeps that it is about, and notes on the records. out: the folder that it goes to."""
    read, notes = records.read_records(paths)
    beside = companions.read_beside(paths)
    claimed = claims.read_claims(claims_file)
    of_techniques = claims.read_techniques(techniques) if techniques else []
    everything = figures.sweeps(read)
    # Cases at other sizes and on other memory have parts of the report to themselves.
    shown = atlas.together(everything)
    parts = [(sweep, prefix(index, len(shown)), claims.judge(claimed, of_techniques, sweep))
             for index, sweep in enumerate(shown)]
    verdicts = pages.Verdicts(verdicts_of(paths, everything, of_techniques, claimed, claims_file), judging.VERDICTS,
                              (out / pages.CLAIMS_PAGE).exists())
    return pages.report_blocks(parts, everything, beside, verdicts, notes), shown, notes


def make(arguments: argparse.Namespace) -> None:
    blocks, sweeps, notes = blocks_of(arguments.records, arguments.techniques, arguments.claims, arguments.out)
    pages.write(arguments.out, document.to_html(pages.TITLE, blocks), document.to_markdown(blocks), blocks)
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
                        help="what guides claim (default: bench/tradeoff/claims.yaml)")
    arguments = parser.parse_args()
    try:
        make(arguments)
    except (records.ReportError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{arguments.out / 'report.html'} (one file, works offline), {arguments.out / 'report.md'}")


if __name__ == "__main__":
    main()
