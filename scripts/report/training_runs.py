"""What training runs leave in their folders, step by step: metrics.jsonl, summary.json and memory.json."""
import dataclasses
import json
import math
import pathlib

from .plots.theme import KINDS
from .records import ReportError
from .runs import read_metrics

DRAWN = ("loss", "held_out_loss", "tokens_per_second", "expert_load", "peak_bytes")


@dataclasses.dataclass
class Run:
    label: str
    lines: list[dict]  # of metrics.jsonl, steps rising
    limit: int  # memory.limit in bytes; 0: none, or not known
    final_held_out: float | None  # of the evaluation after the last step
    phases: dict[int, dict]  # step -> phase -> kind -> bytes at the phase's peak; step 0 is what opening the run took

    @property
    def steps(self) -> list[int]:
        return [line["step"] for line in self.lines]

    def series(self, key: str, part: str | None = None) -> list[float]:
        """A number a step; what wasn't finite is NaN, a gap in the curve."""
        values = (line[key] if part is None else line[key][part] for line in self.lines)
        return [math.nan if value is None else value for value in values]

    def held_out(self) -> list[tuple[int, float]]:
        """The steps that were evaluated, and their losses."""
        points = {line["step"]: line["held_out_loss"] for line in self.lines if line["held_out_loss"] is not None}
        if self.final_held_out is not None:
            points[self.steps[-1]] = self.final_held_out
        return list(points.items())

    def kinds(self) -> dict[str, list[float]]:
        """Bytes of each kind at each step's peak; kinds that were never held are left out."""
        held = [line.get("peak_bytes_by_kind") or {"other": line["peak_bytes"]} for line in self.lines]
        series = {kind: [step.get(kind, 0) for step in held] for kind in KINDS}
        return {kind: values for kind, values in series.items() if any(values)}


def read_summary(folder: pathlib.Path) -> dict:
    """The summary of a run that has ended. A run that goes on, or was killed, has none or an older one."""
    try:
        return json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError):
        return {}


def read_phases(folder: pathlib.Path, lines: list[dict]) -> dict[int, dict]:
    """Memory by phase of the steps on which memory.json and metrics.jsonl agree; memory.json may be older."""
    try:
        memory = json.loads((folder / "memory.json").read_text())
        steps = {0: memory["opened"]["bytes_by_phase"]}
        peaks = {line["step"]: line["peak_bytes"] for line in lines}
        for entry in memory["steps"]:
            if entry["bytes_by_phase"] and peaks.get(entry["step"]) == entry["peak_bytes"]:
                steps[entry["step"]] = entry["bytes_by_phase"]
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or of an older program
        return {}
    return steps if len(steps) > 1 else {}


def read_run(folder: pathlib.Path, label: str) -> Run:
    if not folder.is_dir():
        raise ReportError(f"{folder}: no such folder; give the folder of a run (run.dir)")
    if not (folder / "metrics.jsonl").exists():
        raise ReportError(f"{folder}: no metrics.jsonl there; give the folder of a run (run.dir)")
    lines = read_metrics(folder / "metrics.jsonl", DRAWN)
    summary = read_summary(folder)
    current = summary.get("steps") == lines[-1]["step"]
    held_out = summary.get("held_out_loss") if current else None
    return Run(label, lines, summary.get("memory_limit_bytes") or 0, held_out, read_phases(folder, lines))


def labels_of(folders: list[pathlib.Path]) -> list[str]:
    """The folders' names, or their paths where two bear the same name."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]
