"""claims.md: every claim of the guides in a line, with its claimed figure, what was measured and the verdict; the evidence is
folded below."""
import dataclasses
import json
import pathlib

from .. import figures
from ..document import Fold, Heading, Items, Table, Text
from ..records import ReportError, files_of, near, read_records
from ..rendering import to_markdown
from . import dry_runs, places
from .judge import Judge, Row
from .outcomes import UNTESTED, VERDICTS
from .stated import Guides, Technique, read_guides, read_techniques

CLAIMS = pathlib.Path(__file__).resolve().parents[3] / "train/predict/techniques/claims.yaml"


CLAIMS_PAGE = "claims.md"  # the name of such a page, beside its records
TITLE = "What guides claim, and what was measured"
RULE = (
    "A figure is **right** in a case if all of its measured interval lies within what is claimed (a single figure is a "
    "range of no width), widened on both sides by a tenth of its end, and of percentages by 2 points at least; a factor "
    "becomes a percentage first (2 × less is 50 % less). Where all of the interval lies beyond that, the claim is "
    "**overstated** if the technique does less good than claimed (saves less, costs more, needs more bytes), "
    "**understated** if it does more. A size that promises nothing, as in a formula, a breakdown or before a technique "
    "acts, is overstated where there is less of it than claimed; a line says whether a size is more or less than claimed. "
    "An interval that reaches across an end decides nothing, nor does a time or speed of a single round, which can't show "
    "how rounds differ.",
    "A claim is **right** if all of its figures are, in every case that decides them; **right in part** if some are right "
    "and others wrong, right in some cases alone, or untested; **overstated** or **understated** if all that is decided of "
    "it is so; **off both ways** if none is right, one is overstated and another understated; **untested** if nothing "
    "decides it. A verdict is of the models and the machine measured here. Whether the claim's own sums add up is another "
    "matter and stands in a column of its own.",
    "A case decides a claim only where the technique can show what is claimed. A size that the claim does not name decides "
    "nothing. A combination decides nothing where one of its parts alone has the same peak.",
    "Some models can't show what a claim says, and their cases decide nothing. Every 4th of 6 layers is two of them, a third: "
    "that says nothing of a claim of a quarter. With two layers, recomputing half of them peaks at the same bytes as "
    "recomputing all. Activations that are a fifth of the peak can't save half of it. Dry runs of a deeper model decide as "
    "well; their peaks are exact.",
    "A saving is of the memory that the claim names, else of the whole peak. A claim of bytes or arithmetic alone is held "
    "against a dry run of its own setting, or against a closed formula.",
    "On a CPU the host's memory is the device's, so offload to the host has no time to be judged by. What ZeRO saves is a "
    "share of all state. Its speed is held against ranks that divide nothing, over the same link, where each rank has a "
    "core of its own.",
    "Claims without a figure of an effect are held against what they say. A direction is right if the interval lies "
    "on its side of nothing in every case; a process is smaller if it is by a hundredth. A step of advice is right if "
    "it saves a hundredth of the peak that the steps before it leave; what is said to run out of memory must not fit, "
    "and each remedy must. An order is right if what costs no time comes before what does, and of the rest what saves "
    "more for its time comes first. A profile is right if it does with a model what it is for. What a program does is "
    "right if tests of this one hold it.",
    "A line says what was found, which parts of the claim have which outcome, and which are untested; where that is too "
    "much, an example of each. Of a claim with two figures of the same, the claimed one stands after \"against\". All of it "
    "is in the evidence. GB are 10^9 bytes, as in the guides; where a limit is named in GiB (2^30 bytes), as the memory of "
    "cards is, so is what is taken of it.",
    "In the evidence, figures of a sweep are medians over its rounds with their 95 % intervals (of memory: from the "
    "smallest to the largest round; alone where all agree), against the baseline of the same part of the sweep and of the "
    "same round: the naive one, or what the part's name says. The speed of a run is the median of its steps' tokens/s, the "
    "first three steps (of a run of fewer than nine the first third) left out. Added time is 1 ÷ the ratio of speeds − 1. "
    "Intervals are drawn by bootstrap: rounds with replacement, and in each the steps of both runs; of two rounds they are "
    "hardly 95 %. Of the whole peak a saving is of `peak_bytes`; of a kind, of the most held of it at the peak of any phase "
    "(`memory` of a record), or of `peak_bytes_by_kind` of a dry run. How many times the batch fits in the same memory is "
    "worked out from two dry runs, for peaks grow evenly with the batch. What fits is of `on_card_bytes`, which the card's "
    "own needs are part of. State: weights, masters, gradients and optimizer state. The master of an fp32 weight is that "
    "weight. Weights and activations: the masters are weights too. "
    "Layers, and sequences × tokens of a micro-batch, are the baseline's.")


IN_SHORT = ("**overstated**: it does less good than claimed (saves less, costs more); **understated**: it does more. Each claim links to "
            "its evidence, and to the guide's table beside our figures.")


def summary(rows: list[Row]) -> str:
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in VERDICTS}
    wrong = sum(bool(row.sums) for row in rows)
    return (f"{len(rows)} claims: {', '.join(f'{verdict} {count}' for verdict, count in counts.items())}. "
            f"Of {wrong}, the claim's own sums are wrong.")


def link(row: Row) -> str:
    return f"[{row.id}](#{row.id})"


def linked(row: Row) -> str:
    """To its evidence, and to the first of the guide's tables that has it."""
    return " ".join([link(row), *(f"[table]({place})" for place in list(places.places(row.id).values())[:1])])


HEADINGS = ["claim", "verdict", "its sums", "claimed", "measured"]


def line(row: Row) -> list[str]:
    """A claim in one short line."""
    return [f"{row.text} {linked(row)}", f"**{row.verdict}**", "**wrong**" if row.sums else "", row.claimed, row.decided]


def untested(rows: list[Row]) -> list:
    """The claims that nothing decides, folded; none without such."""
    lines = [[f"{row.text} {linked(row)}", "; ".join(row.untested), "**wrong**" if row.sums else ""] for row in rows]
    return [Fold(f"{len(rows)} **untested**", [Table("", ["claim", "why", "its sums"], lines, ("why", "its sums"))])] if rows else []


def evidence(row: Row) -> Fold:
    said = [f"in the guide's table: {where}"] if (where := places.links(row.id)) else []
    said += [*row.evidence, *(f"untested: {one}" for one in row.untested)]
    said += [f"its own sums are wrong: {row.sums}"] if row.sums else []
    return Fold(f"`{row.id}`: **{row.verdict}**", [Items(said)], row.id)


def by_technique(rows: list[Row], techniques: list[Technique]) -> Fold:
    """The claims about each technique, with their verdicts."""
    of = {row.id: row for row in rows}
    said = [[f"`{one.name}`", ", ".join(f"{link(of[id])} {of[id].verdict}" for id in one.claims if id in of)]
            for one in techniques if any(id in of for id in one.claims)]
    return Fold("Index by technique", [Table("", ["technique", "claims"], said, ("claims",))])


def tables(rows: list[Row], guides: dict[str, str], level: int) -> list:
    """A table of claims for each guide under a heading of this level, with the evidence folded below."""
    blocks = []
    for guide, title in guides.items():
        own = [row for row in rows if row.id.partition(".")[0] == guide]
        tested = [row for row in own if row.verdict != UNTESTED]
        blocks += [Heading(level, title), *([Table("", HEADINGS, list(map(line, tested)), tuple(HEADINGS))] if tested else []),
                   *untested([row for row in own if row not in tested]),
                   Fold(f"Evidence, claim by claim: {title}", [evidence(row) for row in own])]
    return blocks


@dataclasses.dataclass(frozen=True)
class Judged:
    """All claims of the guides with their verdicts."""

    rows: list[Row]
    techniques: list[Technique]
    guides: dict[str, str]
    sources: list[str]
    machines: list[str] = dataclasses.field(default_factory=list)

    def page(self, others: list[str]) -> str:
        """others: the other folders of results that have such a page."""
        rows, links = self.rows, [f"[{name}](../{name}/{CLAIMS_PAGE})" for name in others]
        return to_markdown([Heading(1, TITLE), Text(summary(rows)), Text(IN_SHORT),
                            *([Text(f"The same claims by other records: {', '.join(links)}.")] if links else []),
                            Fold("What the words mean", [Text(one) for one in RULE]),
                            by_technique(rows, self.techniques), *tables(rows, self.guides, 2),
                            Text(f"Measured: {'; '.join(self.sources)}.")])


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What is judged by, all of it sound."""

    sweeps: list[figures.Sweep]
    techniques: list[Technique]
    guides: Guides
    settings: set[str]  # those that runs resolved, empty where no record says


def refuse_unknown_settings(inputs: Inputs, path: pathlib.Path) -> None:
    """Of the techniques that were measured: records from before there was a technique know nothing of its settings."""
    measured = {name for sweep in inputs.sweeps for case in sweep.cases for name in case.techniques}
    for row in (row for row in inputs.techniques if row.name in measured):
        if unknown := sorted(row.settings.keys() - inputs.settings):
            raise ReportError(f"{path}: {row.name} has the unknown settings {', '.join(unknown)}, which no run in the "
                              "records has; --program asks the program itself")


def read_inputs(folder: pathlib.Path, techniques: pathlib.Path, claims_file: pathlib.Path) -> Inputs:
    paths = files_of(folder)
    records, _ = read_records(paths)
    rows, guides = read_techniques(techniques), read_guides(claims_file)
    settings = set().union(*(figures.flat(record.resolved) for record in records))
    return Inputs(figures.sweeps(records), rows, guides, settings)


def machine_of(sweep: figures.Sweep) -> str:
    return f"{sweep.machine.get('gpu') or sweep.machine.get('cpu')}, {sweep.machine.get('cores')} cores"


def sources_of(sweeps: list[figures.Sweep]) -> list[str]:
    titles: dict[str, list[str]] = {}
    for sweep in sweeps:
        titles.setdefault(f"{machine_of(sweep)}, commit {sweep.commit}", []).append(sweep.title)
    return [f"{', '.join(measured)} on {where}" for where, measured in titles.items()]


def judge(inputs: Inputs, dry: dict) -> Judged:
    judge = Judge(inputs.sweeps, inputs.techniques, inputs.guides.claims, dry)
    rows = [judge.row(entry) for entry in inputs.guides.entries]
    return Judged(rows, inputs.techniques, inputs.guides.titles, sources_of(inputs.sweeps),
                  list(dict.fromkeys(map(machine_of, inputs.sweeps))))


def others(folder: pathlib.Path) -> list[str]:
    """The other folders of results that have a page of claims."""
    return [other.name for other in near(folder, CLAIMS_PAGE) if other != folder.resolve()]


def make_anew(inputs: Inputs, path: pathlib.Path, program: pathlib.Path) -> str:
    """With dry runs of the program, which are written to the path once everything has proved sound."""
    made = dry_runs.made_by(program)
    text = judge(inputs, dry_runs.by_claim(made, path)).page(others(path.parent))
    path.write_text(json.dumps(made, indent=1) + "\n")
    return text


def make(folder: pathlib.Path, techniques: pathlib.Path, claims_file: pathlib.Path,
         program: pathlib.Path | None = None) -> str:
    """The text of claims.md. With a program, its dry runs replace those in the folder."""
    inputs = read_inputs(folder, techniques, claims_file)
    stored = folder / "dry_runs.json"
    if program:
        dry_runs.refuse_settings(program, inputs.techniques, techniques)
        return make_anew(inputs, stored, program)
    refuse_unknown_settings(inputs, techniques)
    return judge(inputs, dry_runs.read(stored)).page(others(folder))
