#!/usr/bin/env python3
"""Turns the records of bench_tradeoff into a report: one HTML file that needs no other, and Markdown with PNGs.

It shows memory against speed with the Pareto front, memory by kind over the phases of a step, losses, and what guides
claim beside what was measured; of a full sweep also the ladder, leave-one-outs, interactions of pairs and crossovers.
predictions.json, fits.json (of bench_tradeoff) and estimates.jsonl (of check_estimates.py) are read where they lie
beside the records.

example: scripts/report.py runs/tradeoff/records.jsonl --techniques runs/tradeoff/techniques.json --out runs/tradeoff
"""
import argparse
import pathlib
import sys

from tradeoff import atlas, claims, companions, document, figures, pages, records

CLAIMS = pathlib.Path(__file__).resolve().parents[1] / "bench" / "tradeoff" / "claims.yaml"


def prefix(index: int, count: int) -> str:
    """Of the names of a sweep's pictures: none where there is one sweep."""
    return f"{index + 1}-" if count > 1 else ""


def blocks_of(paths: list[pathlib.Path], techniques: pathlib.Path | None, claims_file: pathlib.Path) -> tuple[list, list, list]:
    """The report's blocks, the sweeps that it is about, and notes on the records."""
    read, notes = records.read_records(paths)
    beside = companions.read_beside(paths)
    claimed = claims.read_claims(claims_file)
    of_techniques = claims.read_techniques(techniques) if techniques else []
    everything = figures.sweeps(read)
    # Cases at other sizes and on other memory have parts of the report to themselves.
    shown = atlas.together(everything)
    parts = [(sweep, prefix(index, len(shown)), claims.judge(claimed, of_techniques, sweep))
             for index, sweep in enumerate(shown)]
    return pages.report_blocks(parts, everything, beside, notes), shown, notes


def make(arguments: argparse.Namespace) -> None:
    blocks, sweeps, notes = blocks_of(arguments.records, arguments.techniques, arguments.claims)
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
