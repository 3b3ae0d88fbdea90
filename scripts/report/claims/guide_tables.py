"""The tables of the guides in their own rows and columns, each figure beside what was found here. tables.yaml says which claim
stands in which row, and which of its figures in which column."""
import dataclasses
import itertools
import re

from ..document import Heading, Items, Table, Text
from . import dry_runs, page
from .judge import Row
from .outcomes import UNTESTED
from .places import TABLES
from .stated import FIGURES, SPEED, STEP_TIME, Technique, figure_text, is_figure, value_text

NONE = "not decided"
INTRO = ("Every table of the guides, in its own rows and columns. Beside each \"claimed\" column, what the guide says (– where it says "
         "nothing), stands an \"ours\" column where we have any, what our records and dry runs say. \"What decided it\" links to the "
         "measurements; there each verdict's word is explained. Memory is exact. Times and speeds are of the machine that the link's "
         "folder is named after: ")
RANKS = re.compile(r"on \d+ ranks.*")  # in the name of a part: where it was found


@dataclasses.dataclass(frozen=True)
class Found:
    """What is known of one claim: its row of a page of claims, and the folder of results that has the page."""

    row: Row
    folder: str

    def ours(self, names: list[str]) -> str:
        """What was found of the first of these figures or parts that anything was found of, and on which ranks."""
        return next((" ".join([self.row.found[name], *RANKS.findall(name)]) for name in names if name in self.row.found), "")

    @property
    def timed(self) -> bool:
        """Whether a time or speed is among what was found."""
        return any(FIGURES.get(name, [""])[0] in (STEP_TIME, SPEED) or name.startswith(("time", "its speed")) for name in self.row.found)

    @property
    def link(self) -> str:
        return f"[{self.row.id} on {self.folder}]({self.folder}/{page.CLAIMS_PAGE}#{self.row.id})"


def best(judged: dict[str, page.Judged]) -> dict[str, Found]:
    """Of several folders the one that knows most of a claim, by its id; of equals the first."""
    known: dict[str, Found] = {}
    for folder, one in judged.items():
        for row in one.rows:
            if row.id not in known or weight(row) > weight(known[row.id].row):
                known[row.id] = Found(row, folder)
    return known


def weight(row: Row) -> tuple:
    """Of what is untested everywhere the folder that has most cases knows most, else the one that leaves least untested."""
    tested = row.verdict != UNTESTED
    return tested, len(row.found), -len(row.untested) if tested else len(row.evidence)


def claimed(figures: dict, names: list[str]) -> str:
    """The first of these figures that the guide names, as a cell under the guide's own heading."""
    name = next((name for name in names if name in figures), "")
    if not name:
        return "–"
    return figure_text(name, figures[name]) if name in FIGURES else value_text(name, figures[name])


def command(claim: str, techniques: list[Technique]) -> str:
    """What would measure the claim: the harness for a technique, the run itself for a preset; "" where nothing is claimed to measure."""
    rows = [row for row in techniques if claim in row.claims]
    if rows:
        return f"build/dev/bin/bench_tradeoff --only {','.join(row.name for row in rows)} --out mine/records.jsonl data.path=FOLDER"
    runs = list(dry_runs.DRY_CLAIMS[claim].runs.values()) if claim in dry_runs.DRY_CLAIMS else []
    return " ".join(["build/dev/bin/moelab train", *runs[-1], "data.path=FOLDER"]) if runs else ""


def missing(label: str, found: Found, techniques: list[Technique]) -> list[str]:
    """A line on what is not decided of a row, and the command that measures it."""
    call = command(found.row.id, techniques) if found.row.runs_decide else ""
    how = f"; to measure it: `{call}`" if call else ""
    return [f"{label}: {'; '.join(found.row.untested)}{how}"] if found.row.untested else []


def headings_of(column: str, names: list[str], is_claimed: bool, is_measured: bool) -> list[str]:
    """A second column for our figures; the first is left out where no row claims any. Settings, which are the guide's, have one column, and
    figures that nothing was found of."""
    if not is_measured:
        return [f"{column}, claimed"] if any(map(is_figure, names)) else [column]
    return [*([f"{column}, claimed"] if is_claimed else []), f"{column}, ours"]


def table_of(spec: dict, entries: dict[str, dict], known: dict[str, Found], techniques: list[Technique]) -> list:
    rows = {label: known[claim] for label, claim in spec["rows"].items()}
    figures = {label: entries[claim].get("figures", {}) for label, claim in spec["rows"].items()}
    # A column gets a second one, for our figures, only if some row has a measurement for it. Columns of settings have none.
    measured = {column for column, names in spec["columns"].items() if any(one.ours(names) for one in rows.values())}
    stated = {column for column, names in spec["columns"].items() if any(claimed(one, names) != "–" for one in figures.values())}
    pairs = [headings_of(column, names, column in stated, column in measured) for column, names in spec["columns"].items()]
    headings = ["", *itertools.chain.from_iterable(pairs), "verdict", "what decided it"]
    lines = []
    for label, one in rows.items():
        cells = [label]
        for column, names in spec["columns"].items():
            said = claimed(figures[label], names)
            cells += [said] if column in stated or column not in measured else []
            cells += [one.ours(names) or ("–" if said == "–" else NONE)] if column in measured else []
        lines.append([*cells, f"**{one.row.verdict}**", f"{one.row.decided or NONE} {one.link}"])
    left = [line for label, one in rows.items() for line in missing(label, one, techniques)]
    return [Heading(3, spec["title"]), Table("", headings, lines, tuple(headings)),
            *([Text("Not decided:"), Items(left)] if left else [])]


def blocks(judged: dict[str, page.Judged], entries: list[dict]) -> list:
    """judged: by the name of the folder of results, the richest first."""
    known, by_id = best(judged), {entry["id"]: entry for entry in entries}
    first = next(iter(judged.values()))
    timed = {one.folder for one in known.values() if one.timed}
    machines = [f"{folder} ({', '.join(one.machines)})" for folder, one in judged.items() if folder in timed]
    found = [Heading(1, "The guides' tables, claimed beside ours"), Text(f"{INTRO}{'; '.join(machines)}.")]
    for guide, title in first.guides.items():
        own = [spec for spec in TABLES if spec["guide"] == guide]
        found += [Heading(2, title), *(block for spec in own for block in table_of(spec, by_id, known, first.techniques))]
    sources = [f"{folder}: {'; '.join(one.sources)}" for folder, one in judged.items()]
    return [*found, Heading(2, "Where the figures come from"), Items(sources),
            Text("Made by `scripts/guides_page.py --techniques FILE` of `claims.yaml`, the records and the dry runs in these folders; no figure "
                 "is typed.")]
