"""claims.md: every claim of the guides with its claimed figure, its measured one and the verdict."""
import dataclasses
import json
import pathlib

from .. import figures
from ..records import ReportError, files_of, read_records
from ..rendering import ENVIRONMENT
from . import dry_runs
from .judge import VERDICTS, Judge, Row
from .stated import Guides, Technique, read_guides, read_techniques

CLAIMS = pathlib.Path(__file__).resolve().parents[3] / "train/predict/techniques/claims.yaml"


def markdown(rows: list[Row], guides: dict[str, str], sources: list[str]) -> str:
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in VERDICTS}
    of_guide = {title: [row for row in rows if row.id.partition(".")[0] == guide] for guide, title in guides.items()}
    page = ENVIRONMENT.get_template("claims.md")
    return page.render(rows=rows, counts=counts, guides=of_guide, sources=sources).rstrip("\n") + "\n"


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
    techniques: list[Technique]
    guides: Guides
    settings: set[str]  # those that runs resolved, empty where no record says


def refuse_unknown_settings(inputs: Inputs, path: pathlib.Path) -> None:
    """Records from before there were ranks know nothing of their settings."""
    of_ranks = "parallel.data" in inputs.settings
    for row in (row for row in inputs.techniques if inputs.settings and (row.ranks == 1 or of_ranks)):
        if unknown := sorted(row.settings.keys() - inputs.settings):
            raise ReportError(f"{path}: {row.name} has the unknown settings {', '.join(unknown)}, which no run in the "
                              "records has; --program asks the program itself")


def read_inputs(folder: pathlib.Path, techniques: pathlib.Path, claims_file: pathlib.Path) -> Inputs:
    paths = files_of(folder)
    records, _ = read_records(paths)
    rows, guides = read_techniques(techniques), read_guides(claims_file)
    settings = set().union(*(figures.flat(record.resolved) for record in records))
    return Inputs(figures.sweeps(records), states_of(paths), rows, guides, settings)


def judged(inputs: Inputs, dry: dict) -> str:
    judge = Judge(inputs.sweeps, inputs.techniques, inputs.guides.claims, inputs.states, dry)
    titles: dict[str, list[str]] = {}
    for sweep in inputs.sweeps:
        device = sweep.machine.get("gpu") or sweep.machine.get("cpu")
        where = f"{device}, {sweep.machine.get('cores')} cores, commit {sweep.commit}"
        titles.setdefault(where, []).append(sweep.title)
    sources = [f"{', '.join(measured)} on {where}" for where, measured in titles.items()]
    return markdown([judge.row(entry) for entry in inputs.guides.entries], inputs.guides.titles, sources)


def make_anew(inputs: Inputs, path: pathlib.Path, program: pathlib.Path) -> str:
    """With dry runs of the program, which are written to the path once everything has proved sound."""
    made = dry_runs.made_by(program)
    text = judged(inputs, dry_runs.by_claim(made, path))
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
    return judged(inputs, dry_runs.read(stored))
