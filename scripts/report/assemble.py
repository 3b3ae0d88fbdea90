"""Reads all that a report is about and puts it together."""
import os
import pathlib

from . import built, cards, figures, pages, records, sidecars, sweep_parts
from .claims import dry_runs, findings, page, stated


def prefix(index: int, count: int) -> str:
    """The prefix of the names of a sweep's pictures; none where there is only one sweep."""
    return f"{index + 1}-" if count > 1 else ""


def judged(paths: list[pathlib.Path], sweeps: list[figures.Sweep], of_techniques: list[stated.Technique],
           guides: stated.Guides) -> page.Judged | None:
    """The claims as in claims.md; None unless `paths` is one folder with dry runs, which claims.md is made of."""
    stored = paths[0] / "dry_runs.json"
    if len(paths) > 1 or not of_techniques or not stored.exists():
        return None
    return page.judge(page.Inputs(sweeps, of_techniques, guides, set()), dry_runs.read(stored))


def links_from(out: pathlib.Path) -> cards.Links:
    """What a report in this folder can link to: docs/ only from inside of the checkout."""
    table = os.path.relpath(built.ROOT / "docs/techniques.md", out) if out.resolve().is_relative_to(built.ROOT) else ""
    planned = records.near(out, sidecars.CARD_PLANS)
    return cards.Links((out / page.CLAIMS_PAGE).exists(), table, f"../{planned[0].name}/report.md#your-card" if planned else "")


def blocks_of(paths: list[pathlib.Path], techniques: pathlib.Path | None, claims_file: pathlib.Path,
              out: pathlib.Path, at: str | None = None) -> tuple[list, list, list]:
    """The report's blocks, the sweeps that it is about, and notes on the records. out: the folder that it goes to. at: the last commit
    to what is built, if not the checkout's."""
    read, notes = records.read_records(paths)
    beside = sidecars.read_beside(paths)
    guides = stated.read_guides(claims_file)
    of_techniques = stated.read_techniques(techniques) if techniques else []
    everything = figures.sweeps(read)
    # Cases at other sizes and on other memory have parts of the report to themselves; what was measured in most rounds stands first.
    shown = sorted(sweep_parts.together(everything), key=lambda sweep: -sum(len(case.runs) for case in sweep.cases))
    parts = [(sweep, prefix(index, len(shown)), findings.findings_of(guides.claims, of_techniques, sweep))
             for index, sweep in enumerate(shown)]
    claims = judged(paths, everything, of_techniques, guides)
    return pages.report_blocks(parts, everything, beside, claims, links_from(out), of_techniques, notes,
                               built.last_commit() if at is None else at), shown, notes
