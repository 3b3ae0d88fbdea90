"""claims.md: every claim of the guides with its claimed figure, its measured one and the verdict."""
import dataclasses
import json
import pathlib

import yaml

from .. import figures
from ..records import ReportError, files_of, read_records
from . import dry_runs, findings
from .judge import VERDICTS, Judge, Row
from .verdicts import RULE

CLAIMS = pathlib.Path(__file__).resolve().parents[3] / "bench" / "tradeoff" / "claims.yaml"
HOW = (
    "Figures of a sweep are medians over its rounds with their 95 % intervals (of memory: from the smallest to the "
    "largest round; alone where all agree), against the naive baseline of the same model and sequence. A saving is "
    "stated of the memory that the claim names, then of activations, of state (weights, masters, gradients, "
    "optimizer) and of the whole peak, which is meant where the claim names none. A claim of bytes or arithmetic "
    "alone is held against dry runs of its own setting, or against a closed formula; sweeps of the same technique "
    "then stand beside it and decide nothing, for their settings are others. Extra arithmetic is counted by dry "
    "runs, with the step time beside it. Layers, and sequences × tokens of a micro-batch, are those of the "
    "baseline. On a CPU host memory is the device's own: offload to it has no time to be judged by.")


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def markdown(rows: list[Row], guides: dict[str, str], sources: list[str]) -> str:
    counts = ", ".join(f"{verdict} {sum(row.verdict == verdict for row in rows)}" for verdict in VERDICTS)
    lines = ["# What guides claim, and what was measured", "", f"{len(rows)} claims: {counts}.", "", HOW, "", RULE, "",
             "Measured: " + "; ".join(sources) + "."]
    for guide, title in guides.items():
        lines += ["", f"## {title}", "", "| claim | claimed | measured | verdict |", "| --- | --- | --- | --- |"]
        for row in rows:
            if row.id.partition(".")[0] == guide:
                verdict = f"**{row.verdict}**" + (f": {row.note}" if row.note else "")
                lines.append("| " + " | ".join(map(cell, (f"{row.text} ({row.id})", row.claimed or "no figure", row.measured,
                                                          verdict))) + " |")
    return "\n".join(lines) + "\n"


def states_of(paths: list[pathlib.Path]) -> dict:
    """{command: state bytes, and the number of parameters}, from the summaries in the records."""
    states = {}
    for path in paths:
        for line in path.read_text(errors="replace").splitlines():
            try:
                fields = json.loads(line)
                summary = fields["summary"]
                states[fields["command"]] = summary["state_bytes"] | {"count": summary["model"]["parameters"]}
            except (ValueError, KeyError, TypeError):
                continue
    return states


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What is judged by, all of it sound."""

    sweeps: list[figures.Sweep]
    states: dict
    techniques: list[findings.Technique]
    claimed: list[findings.Claim]
    content: dict  # of the file of claims
    settings: set[str]  # those that runs resolved, empty where no record says


def refuse_unknown_settings(inputs: Inputs, path: pathlib.Path) -> None:
    for row in inputs.techniques if inputs.settings else []:
        if unknown := sorted(row.settings.keys() - inputs.settings):
            raise ReportError(f"{path}: {row.name} has the unknown settings {', '.join(unknown)}, which no run in the records "
                              "has; --program asks the program itself")


def read_inputs(folder: pathlib.Path, techniques: pathlib.Path, claims_file: pathlib.Path) -> Inputs:
    paths = files_of(folder)
    records, _ = read_records(paths)
    rows, claimed = findings.read_techniques(techniques), findings.read_claims(claims_file)
    settings = set().union(*(figures.flat(record.resolved) for record in records))
    content = yaml.safe_load(claims_file.read_text())
    return Inputs(figures.sweeps(records), states_of(paths), rows, claimed, content, settings)


def page(inputs: Inputs, dry: dict) -> str:
    judge = Judge(inputs.sweeps, inputs.techniques, inputs.claimed, inputs.states, dry)
    titles: dict[str, list[str]] = {}
    for sweep in inputs.sweeps:
        device = sweep.machine.get("gpu") or sweep.machine.get("cpu")
        where = f"{device}, {sweep.machine.get('cores')} cores, commit {sweep.commit}"
        titles.setdefault(where, []).append(sweep.title)
    sources = [f"{', '.join(measured)} on {where}" for where, measured in titles.items()]
    return markdown([judge.row(entry) for entry in inputs.content["claims"]], inputs.content["guides"], sources)


def make_anew(inputs: Inputs, path: pathlib.Path, program: pathlib.Path) -> str:
    """With dry runs of the program, which are written to the path once everything has proved sound."""
    made = dry_runs.made_by(program)
    text = page(inputs, dry_runs.by_claim(made, path))
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
    return page(inputs, dry_runs.read(stored))
