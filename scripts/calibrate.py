#!/usr/bin/env python3
"""Makes the planner's step times from measured ones: the cost of a unit of each term in a step, fitted to the records
of a sweep.

A step's time is taken for the sum of its terms (FLOPs, bytes moved, parameters stepped, …; `moelab estimate --json`
counts them as step_work), each at a cost that is not negative. Costs start from the device's datasheet in
train/predict/devices.json, all scaled alike to the machine; where the records say little they stay near that. The stated
error is that of each case under costs fitted to the others: all that were fitted to, of one round or of many.

example: scripts/calibrate.py results/cpu/records.jsonl --program build/dev/bin/moelab
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys

import numpy as np

from report.figures import finished
from report.records import Record, ReportError, mistakes_of, read_records
from report.working import each

PLAN = pathlib.Path(__file__).parents[1] / "train/predict"
STIFFNESS = 0.01  # of the wish to stay at the datasheet, beside an error of 100 % of one case's time
SWEEPS = 3000  # of the coordinates at most; far more than it takes
SETTLED = 1e-13  # a sweep that changes no cost by more was the last
WARM_UP = 3  # steps; a run of no more, such as a preset's miniature, says nothing of speed
WORST = 5  # cases that are named


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to train, measured: the median step of all its runs, in nanoseconds, and what a step does."""

    name: str
    nanoseconds: float
    work: dict[str, float]


def step_work(record: Record, program: pathlib.Path) -> dict[str, float]:
    settings = [f"{key}={value}" for key, value in record.settings.items()]
    command = [str(program), "estimate", "--json", "--config", record.model, *settings]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode not in (0, 3):
        raise ReportError(f"{record.case}: {run.stderr.strip() or 'estimate failed'}")
    return json.loads(run.stdout)["step_work"]


def read_cases(records: list[Record], program: pathlib.Path) -> list[Case]:
    """Those of one rank, in the order of the records; of the same settings in several parts of a plan, one."""
    groups: dict[tuple, list[Record]] = {}
    for record in records:
        if finished(record) and record.ranks == 1 and len(record.steps) > WARM_UP:
            groups.setdefault((record.model, record.settings_hash), []).append(record)
    cases = list(groups.values())
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # each waits for a process
        works = list(each("calibrate: dry run", pool.map(lambda runs: step_work(runs[0], program), cases), len(cases)))
    return [Case(name_of(runs[0]), 1e6 * statistics.median(float(np.median(run.timed_ms)) for run in runs), work)
            for runs, work in zip(cases, works)]


def name_of(record: Record) -> str:
    return f"{record.model} {record.case}" + (f" ({record.sweep})" if record.sweep else "")


def least_squares(rows: np.ndarray) -> np.ndarray:
    """The x >= 0 of least |rows x - 1|^2 + STIFFNESS |x - 1|^2, by coordinate descent."""
    normal = rows.T @ rows + STIFFNESS * np.eye(rows.shape[1])
    target = rows.sum(axis=0) + STIFFNESS
    x = np.ones(rows.shape[1])
    for _ in range(SWEEPS):
        before = x.copy()
        for j in range(len(x)):
            x[j] = max(0.0, x[j] + (target[j] - normal[j] @ x) / normal[j, j])
        if np.abs(x - before).max() < SETTLED:
            break
    return x


def fit(work: np.ndarray, times: np.ndarray, datasheet: np.ndarray) -> np.ndarray:
    """Costs of the columns of work (cases, terms), of least relative error."""
    shares = work * datasheet / times[:, None]
    scale = float(np.median(1 / shares.sum(axis=1)))
    return least_squares(shares * scale) * scale * datasheet


def left_out_errors(work: np.ndarray, times: np.ndarray, datasheet: np.ndarray) -> list[float]:
    """The share by which each case's time is predicted too long, under costs fitted to the others."""
    errors = []
    for index in range(len(times)):
        others = np.arange(len(times)) != index
        costs = fit(work[others], times[others], datasheet)
        errors.append(float(work[index] @ costs) / times[index] - 1)
    return errors


def significant(value: float) -> float:
    return float(f"{value:.4g}")


def calibrate(cases: list[Case], datasheet: dict[str, float], machine: str) -> tuple[dict, list[float]]:
    """The entry of calibration.json, and the error of each case; see left_out_errors."""
    if len(cases) < 3:
        raise ReportError(f"{len(cases)} case(s) that finished; three or more are needed to fit and to check")
    names = list(datasheet)
    work = np.array([[case.work[name] for name in names] for case in cases])
    times = np.array([case.nanoseconds for case in cases])
    prior = np.array([datasheet[name] for name in names])
    costs = fit(work, times, prior)
    errors = left_out_errors(work, times, prior)
    sizes = [abs(error) for error in errors]
    entry = {"machine": machine, "cases": [case.name for case in cases],
             "measured": [name for name, column in zip(names, work.T) if column.any()],
             "error": {"median": significant(statistics.median(sizes)), "worst": significant(max(sizes)),
                       "cases": len(cases)},
             "nanoseconds": {name: significant(cost) for name, cost in zip(names, costs)}}
    return entry, errors


def spoken(device: str, entry: dict, errors: list[float]) -> str:
    """How good the fit is, for a terminal, with the worst cases by name."""
    worst = sorted(zip(errors, entry["cases"]), key=lambda one: -abs(one[0]))[:WORST]
    error = entry["error"]
    return "\n".join([f"{device}: {error['cases']} cases, step times wrong by {error['median']:.1%} (median), "
                      f"{error['worst']:.1%} (worst), each under costs fitted to the others; the worst:",
                      *(f"  {value:+.1%}  {name}" for value, name in worst)])


def machine_of(records: list[Record]) -> str:
    machines = sorted({f"{r.machine.get('gpu') or r.machine.get('cpu')}, {r.machine.get('cores')} cores" for r in records})
    if len(machines) > 1:
        raise ReportError(f"records of several machines: {'; '.join(machines)}; give those of one")
    commits = ", ".join(sorted({record.commit for record in records}))
    return f"{machines[0]}, measured at {commits}"


def gemm_rates(records: list[Record]) -> dict[str, float]:
    """Operations a second of a large product in each type: what runs in that precision measured at their end."""
    by_type: dict[str, list[float]] = {"fp32": [], "bf16": [], "fp16": []}
    for record in records:
        rates = by_type.get(record.resolved.get("precision", {}).get("compute"), [])
        if record.gemm_rate > 0:
            rates.append(record.gemm_rate)
    return {name: significant(statistics.median(rates)) for name, rates in by_type.items() if rates}


def store(out: pathlib.Path, device: str, records: list, entry: dict) -> None:
    """Replaces the device's entry in calibration.json."""
    calibration = json.loads(out.read_text()) if out.exists() else {"schema": 1, "devices": {}}
    calibration["devices"][device] = {"records": [str(path) for path in records]} | entry
    out.write_text(json.dumps(calibration, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=pathlib.Path, help="files of bench_tradeoff, or folders of them")
    parser.add_argument("--program", type=pathlib.Path, required=True, help="moelab, which counts the work of a step")
    parser.add_argument("--device", default="cpu", help="name in devices.json (default: cpu)")
    parser.add_argument("--out", type=pathlib.Path, default=PLAN / "calibration.json",
                        help="where the device's entry is replaced (default: train/predict/calibration.json)")
    arguments = parser.parse_args()
    with mistakes_of("calibrate"):
        devices = json.loads((PLAN / "devices.json").read_text())["devices"]
        if arguments.device not in devices:
            raise ReportError(f"--device {arguments.device}: expected one of {', '.join(devices)}")
        records, notes = read_records(arguments.records)
        machine = machine_of(records)
        entry, errors = calibrate(read_cases(records, arguments.program), devices[arguments.device]["nanoseconds"],
                                  machine)
        entry["gemm_rates"] = gemm_rates(records)
    for note in notes:
        print(note, file=sys.stderr)
    store(arguments.out, arguments.device, arguments.records, entry)
    print(spoken(arguments.device, entry, errors))


if __name__ == "__main__":
    main()
