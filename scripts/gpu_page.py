#!/usr/bin/env python3
"""The page that ends scripts/gpu_check.sh: what ran, what is slower than predicted, what to look at first.

Reads the records in FOLDER, writes page.md there, and prints it. Predicted step times follow from datasheets
(train/predict/devices.json), predicted memory from dry runs.

example: scripts/gpu_page.py results/nvidia-h200
"""
import argparse
import dataclasses
import json
import pathlib
import re
import sys

import gpu_goals
from report import figures, records
from report.byte_units import human_bytes

DEVICES = pathlib.Path(__file__).resolve().parents[1] / "train/predict/devices.json"
SLOWER, MEMORY_OFF, SHARE_OF_COPY = 1.25, 0.03, 0.5  # what is worth a look
DECIDING = ("operators", "steps")  # as gpu_check.sh has it
WHY = {"operators": "an operator disagrees with its reference: nothing that this GPU computes counts before that is mended",
       "steps": "whole training steps go wrong, although operators may agree",
       "sanitizer": "NVIDIA's sanitizer found an access or a race that the tests do not show"}


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    outcome: str
    seconds: int

    @property
    def failed(self) -> bool:
        return self.outcome.startswith("FAILED")


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run beside what was predicted of it; None: not known."""

    name: str
    predicted_ms: float | None
    measured_ms: float | None
    predicted_bytes: int
    measured_bytes: int

    @property
    def slower(self) -> float | None:
        return self.measured_ms / self.predicted_ms if self.predicted_ms and self.measured_ms else None

    @property
    def memory_off(self) -> float:
        return self.measured_bytes / self.predicted_bytes - 1


def read_json(path: pathlib.Path):
    """None for a file that is not there, or whose writer was stopped."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def steps_in(folder: pathlib.Path) -> list[Step]:
    rows = [line.split("\t") for line in (folder / "check.tsv").read_text(encoding="utf-8").splitlines()]
    return [Step(name, outcome, int(seconds)) for name, outcome, seconds in rows]


def device_named(gpu: str) -> dict | None:
    """The costs of the GPU by datasheet: of the device in devices.json whose name is in the GPU's."""
    plain = gpu.lower().replace(" ", "")
    devices = read_json(DEVICES)["devices"]
    return next((device for name, device in devices.items() if name != "cpu" and name in plain), None)


def predicted_ms(estimate: dict, device: dict | None) -> float | None:
    costs = device and device["nanoseconds"]
    return costs and 1e-6 * sum(costs[term] * amount for term, amount in estimate["step_work"].items())


def runs_in(folder: pathlib.Path, device: dict | None) -> list[Run]:
    found = []
    for path in sorted(folder.glob("*-estimate.json")):
        name = path.name.removesuffix("-estimate.json")
        estimate, summary = read_json(path), read_json(folder / f"{name}.json")
        if not estimate or not summary or summary["status"] != "ok":
            continue
        workspaces = (estimate["gpu"] or {}).get("workspace_bytes", 0)
        found.append(Run(name, predicted_ms(estimate, device), summary["step_ms"]["median"],
                         estimate["peak_bytes"] + workspaces, summary["peak_bytes"]))
    return found


def slow_kernels(folder: pathlib.Path) -> list[tuple[float, str]]:
    """(share of the copy rate, name) of what moves bytes at less than half the rate of a copy, slowest first."""
    runs = [run for run in gpu_goals.kernels(folder) if "of_copy" in run and "of_gemm" not in run]
    shares = [(run["of_copy"], re.sub("/(iterations:|manual_time).*", "", run["name"])) for run in runs]
    return sorted(share for share in shares if share[0] < SHARE_OF_COPY)


def failing_tests(folder: pathlib.Path, step: str) -> list[str]:
    """Names of the tests that a step's log calls failed, each once."""
    path = folder / f"{step}.log"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return list(dict.fromkeys(re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", text, re.MULTILINE)))


def what_failed(folder: pathlib.Path, steps: list[Step]) -> list[str]:
    """The steps that decide come first: gpu_check.sh runs them first."""
    lines = []
    for step in (step for step in steps if step.failed):
        names = failing_tests(folder, step.name)
        shown = f": {', '.join(names[:5])}{' and others' if len(names) > 5 else ''}" if names else ""
        why = f"; {WHY[step.name]}" if step.name in WHY else ""
        lines.append(f"**{step.name}** {step.outcome}{shown}{why}")
    return lines


def look_at(folder: pathlib.Path, steps: list[Step], runs: list[Run]) -> list[str]:
    lines = what_failed(folder, steps)
    lines += [f"**{run.name}** holds {human_bytes(run.measured_bytes)} at its peak, {run.memory_off:+.1%} of the predicted"
              for run in runs if abs(run.memory_off) > MEMORY_OFF]
    slow = sorted((run for run in runs if (run.slower or 0) > SLOWER), key=lambda run: -run.slower)
    lines += [f"**{run.name}** takes {run.slower:.1f} times the predicted step time" for run in slow[:3]]
    lines += [f"**{name}** moves bytes at {share:.0%} of a copy's rate" for share, name in slow_kernels(folder)[:3]]
    missing = [step.name for step in steps if step.outcome.startswith("not run")]
    if missing:
        lines.append(f"not run for want of time: {', '.join(missing)}; give --minutes more, or name them alone")
    return lines or ["nothing: what ran agrees with its reference and with what was predicted"]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]


def run_row(run: Run) -> list[str]:
    def ms(value: float | None) -> str:
        return f"{value:,.1f}" if value else "–"
    return [run.name, ms(run.predicted_ms), ms(run.measured_ms), f"{run.slower:.2f} x" if run.slower else "–",
            human_bytes(run.predicted_bytes), human_bytes(run.measured_bytes), f"{run.memory_off:+.1%}"]


def case_row(case: figures.Case, baseline: figures.Case | None) -> list[str]:
    held = case.peak.value
    speed = f"{case.speed_ratio.value:.2f} x" if case.speed_ratio else "–"
    beside = f"{held / baseline.peak.value - 1:+.1%}" if baseline and baseline.peak else "–"
    off = f"{held / case.predicted.value - 1:+.1%}" if case.predicted.value else "–"
    return [case.name, f"{case.speed.value:,.0f}", speed, human_bytes(held), beside, off, str(len(case.runs))]


def sweep_tables(folder: pathlib.Path) -> list[str]:
    """Of a sweep that ran: a table for each part of its plan."""
    path = folder / "tradeoff.jsonl"
    if not path.is_file():
        return []
    lines = ["", "## What techniques cost", "",
             "Speed beside the baseline of the same round, the median of the rounds; peaks as the allocator counts them, beside the "
             "baseline's, and how far they are from what the run predicted of itself before it began."]  # fmt: skip
    for sweep in figures.sweeps(records.read_file(path)[0]):
        if cases := figures.measured(sweep):
            lines += ["", f"### {sweep.part}: {sweep.model}, {cases[0].any.sequence:,.0f} tokens a row", "",
                      *table(["case", "tokens/s", "speed", "peak", "beside the baseline", "off the prediction", "rounds"],
                             [case_row(case, sweep.case(case.baseline)) for case in cases])]  # fmt: skip
    return lines


def page(folder: pathlib.Path) -> str:
    machine = read_json(folder / "machine.json")
    steps, device = steps_in(folder), device_named(machine["name"])
    runs, failed = runs_in(folder, device), any(step.failed and step.name in DECIDING for step in steps)
    driver = f", driver {machine['driver']}" if machine["driver"] else ""
    source = device["about"] if device else "no device in devices.json has this name: no predicted times"
    way_out = ["", "Until it is mended, `run.device=cpu` trains without the GPU."] if failed else []
    goals = gpu_goals.table(folder) if machine["device"] == "cuda" else []
    return "\n".join([
        f"# moelab on {machine['name']}", "",
        f"{machine['date']}, build {machine['build']}{driver}; `scripts/gpu_check.sh --minutes {machine['minutes']}`.", "",
        "## What to look at first", "",
        *(f"{i}. {line}" for i, line in enumerate(look_at(folder, steps, runs), 1)), *way_out, "",
        "## What ran", "", *table(["step", "outcome", "seconds"], [[s.name, s.outcome, str(s.seconds)] for s in steps]), "",
        "## Predicted and measured", "",
        f"Step times in ms, predicted by: {source}. Memory: predicted by a dry run, as the allocator counts it.", "",
        *table(["run", "predicted", "measured", "", "memory predicted", "measured", ""], [run_row(run) for run in runs]),
        *sweep_tables(folder), *(["", "## Goals", "", "```", *goals, "```"] if goals else []), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="of the records")
    folder = parser.parse_args().folder
    if not (folder / "machine.json").is_file():
        parser.error(f"{folder}: no machine.json; give a folder that scripts/gpu_check.sh has written")
    text = page(folder)
    (folder / "page.md").write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
