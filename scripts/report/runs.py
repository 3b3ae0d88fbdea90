"""Sets of runs that can be compared: a finished run by its folder, or a case of a file of records."""
import dataclasses
import json
import pathlib

from . import figures
from .records import SCHEMA, WRONG_FIELDS, Record, ReportError, parse, read_records, read_text

# Settings that say nothing of how a run trained.
NAMES = ("run.name", "run.dir", "checkpoint.dir")
STEP = ("step", "tokens", "loss", "step_ms")  # the columns of Record.steps


@dataclasses.dataclass(frozen=True)
class RunSet:
    """The finished runs of one case, by round, or the run in one folder. store: names the sweep that the rounds are of,
    "" for a run by itself."""

    name: str
    runs: list[Record]
    store: str
    notes: list[str]

    @property
    def case(self) -> figures.Case:
        case = figures.Case(self.name, self.runs, [], "")
        figures.summarise(case)
        return case

    @property
    def settings(self) -> dict[str, str]:
        last = self.runs[-1]
        every = figures.flat(last.resolved) if last.resolved else figures.flat(last.settings)
        return {key: value for key, value in every.items() if key not in NAMES}


def read_summary(path: pathlib.Path) -> dict:
    try:
        summary = json.loads(read_text(path))
        schema = summary.get("schema")
    except WRONG_FIELDS as error:
        raise ReportError(f"{path}: damaged: {error}") from None
    if schema != SCHEMA:
        raise ReportError(f"{path}: schema {schema}; schema {SCHEMA} is expected, as 'moelab train' writes it")
    return summary


def read_metrics(path: pathlib.Path, keys: tuple[str, ...]) -> list[dict]:
    """The lines of metrics.jsonl, steps rising; each has these keys. A step that was done again counts as it was last
    done."""
    *lines, _ = read_text(path).split("\n")  # a killed run may leave the start of a line
    steps = {}
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            if not all(key in fields for key in ("step", *keys)) or not isinstance(fields["step"], int):
                raise ValueError
            steps[fields["step"]] = fields
        except WRONG_FIELDS:
            raise ReportError(f"{path}:{number}: not a line of metrics: {line[:60]}") from None
    if not steps:
        raise ReportError(f"{path}: empty: the run has not finished a step")
    return [steps[step] for step in sorted(steps)]


def of_folder(folder: pathlib.Path) -> RunSet:
    if not (folder / "summary.json").exists():
        raise ReportError(f"{folder}: no summary.json; give the folder of a run (run.dir) that has ended")
    summary = read_summary(folder / "summary.json")
    steps = [[line[key] for key in STEP] for line in read_metrics(folder / "metrics.jsonl", STEP)]
    try:
        run = parse({"case": str(folder), "techniques": [], "against": None, "model": summary["model"]["preset"],
                     "round": 1, "settings": summary["settings"], "settings_hash": "", "command": summary["command"],
                     "commit": summary["commit"], "dirty": False, "machine": summary["machine"], "started": "",
                     "status": summary["status"], "message": "", "summary": summary, "steps": steps, "memory": None})
    except WRONG_FIELDS as error:
        raise ReportError(f"{folder / 'summary.json'}: not a summary of 'moelab train': {error}") from None
    notes = [] if run.status == "ok" else [f"{folder} ended with status {run.status}"]
    return RunSet(str(folder), [run], "", notes)


def of_case(file: pathlib.Path, wanted: str) -> RunSet:
    """`wanted` is a case, or PART/CASE where several parts of a plan have one of that name."""
    records, notes = read_records([file])
    sweeps = figures.sweeps(records)
    found = [(f"{sweep.part}/{case.name}" if sweep.part else case.name, index, case)
             for index, sweep in enumerate(sweeps) for case in sweep.cases
             if wanted in (case.name, f"{sweep.part}/{case.name}")]
    names = list(dict.fromkeys(name for name, _, _ in found))
    if not found:
        known = dict.fromkeys(case.name for sweep in sweeps for case in sweep.cases)
        raise ReportError(f"{file}: no case {wanted}; it has {', '.join(known)}")
    if len(names) > 1:
        raise ReportError(f"{file}: {wanted} is in several parts; give one of {', '.join(names)}")
    name, index, case = max(found, key=lambda one: one[2].any.started)
    if len(found) > 1:
        notes.append(f"{name}: the newest of {len(found)} sweeps, at commit {case.any.commit}")
    if not case.runs:
        last = case.failures[-1]
        raise ReportError(f"{file}: {name}: no run of it finished: {last.message or last.status}")
    return RunSet(f"{file.name}:{name}", case.runs, f"{file.resolve()} {index}", notes)


def read(text: str) -> RunSet:
    """FILE:CASE or the folder of a run."""
    path = pathlib.Path(text)
    if path.is_dir():
        return of_folder(path)
    file, colon, case = text.partition(":")
    if not pathlib.Path(file).is_file():
        raise ReportError(f"{file}: no such file or folder; give the folder of a run, or FILE:CASE")
    if not colon or not case:
        raise ReportError(f"{text}: which case? give {file}:CASE")
    return of_case(pathlib.Path(file), case)


def settings_that_differ(sets: list[RunSet]) -> dict[str, list[str]]:
    """{key: its value in each}; "–" where one hasn't said."""
    every = [one.settings for one in sets]
    keys = dict.fromkeys(key for settings in every for key in settings)
    values = {key: [settings.get(key, "–") for settings in every] for key in keys}
    return {key: row for key, row in values.items() if len(set(row)) > 1}
