#!/usr/bin/env python3
"""Prove that a change of the program changes nothing: train the runs of runs.yaml with two programs and compare them.

    cp build/ci/bin/moelab /tmp/moelab-before          # before the change
    tests/fixed_runs/compare_programs.py /tmp/moelab-before build/ci/bin/moelab
    tests/fixed_runs/compare_programs.py /tmp/moelab-before build/ci/bin/moelab 'fp8*'     # only these runs

Each program trains each run in a new folder. Compared bit for bit are the exit code, metrics.jsonl, memory.json and
summary.json without times, messages and settings, and the hashes of the last checkpoint: weights, optimizer state, loss
scale. Exit code 0: no difference; 1: the first difference of each run that has one is printed; 2: a mistake in the
call. A field that only one of the programs writes is a difference. All runs take 40 s for both programs on two cores.
"""

import argparse
import fnmatch
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TEXTS = ROOT / "tests/kernels"  # its files, as bytes, are what the runs train on
# What two runs of one program do not have in common, and what says which program it was and what it was told.
NOT_COMPARED = {"commit", "command", "machine", "settings", "reason", "tokens_per_second", "step_ms", "flops_per_second",
                "fraction_of_gemm_peak", "waited", "waited_ms", "blocked_seconds", "write_seconds"}  # fmt: skip


def fixed_runs(patterns: list[str]) -> list[dict]:
    """The runs whose names match one of the patterns (none: all), each with the common settings."""
    listed = yaml.safe_load((HERE / "runs.yaml").read_text())
    chosen = [run for run in listed["runs"] if not patterns or any(fnmatch.fnmatch(run["name"], p) for p in patterns)]
    return [run | {"settings": listed["common"] | run["settings"]} for run in chosen]


def prepare_shards(folder: Path) -> Path:
    script = [sys.executable, ROOT / "scripts/prepare_data.py", "--bytes", "--out", folder, TEXTS]
    subprocess.run(script, check=True, stdout=subprocess.DEVNULL)
    return folder


def train(program: Path, settings: dict, folder: Path, *options: str) -> int:
    """The exit code of moelab train in `folder`; what it prints is added to output.txt there."""
    pairs = [f"{key}={json.dumps(value) if isinstance(value, bool) else value}" for key, value in settings.items()]
    with open(folder / "output.txt", "a") as output:
        command = [program, "train", "--config", "moe-pico", *options, *pairs]
        return subprocess.run(command, cwd=folder, stdout=output, stderr=output, check=False).returncode


def outcome(program: Path, run: dict, shards: Path, folder: Path) -> dict:
    """What is compared of a run that `program` trains in `folder`."""
    (folder / "drive").mkdir(parents=True)
    (folder / "shards").symlink_to(shards)
    codes = [train(program, run["settings"], folder)]
    if "resume" in run:
        codes.append(train(program, run["settings"] | run["resume"], folder, "--resume", "latest"))
    metrics = folder / "run/metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    files = {"exit codes": codes, "metrics.jsonl": [json.loads(line) for line in lines]}
    for name in ("summary.json", "memory.json"):
        files[name] = read(folder / "run" / name)
    newest = max((folder / "run/checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]), default=None)
    files["checkpoint"] = hashes(newest) if newest else None
    return files


def read(path: Path):
    return json.loads(path.read_text()) if path.exists() else None


def hashes(checkpoint: Path) -> dict:
    """Of each file but the settings, those of its tensors too."""
    files = read(checkpoint / "manifest.json")["body"]["files"]
    return {"step": checkpoint.name} | {name: file for name, file in files.items() if name != "config.yaml"}


def leaves(value, left_out: set[str], path: str = ""):
    """(path, value as text) of each number, word or empty container in `value`."""
    if value and isinstance(value, dict):
        for key in [key for key in value if key not in left_out]:
            yield from leaves(value[key], left_out, f"{path} {key}")
    elif value and isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, left_out, f"{path} {index + 1}")
    else:
        yield path.strip(), json.dumps(value)


def first_difference(before: dict, after: dict, left_out: set[str]) -> str:
    """Empty: there is none."""
    for part in before:
        a, b = dict(leaves(before[part], left_out)), dict(leaves(after[part], left_out))
        for path in [*a, *(b.keys() - a.keys())]:
            if a.get(path) != b.get(path):
                return f"{part} {path}: {a.get(path, 'nothing')} before, {b.get(path, 'nothing')} after"
    return ""


def compare(programs: list[Path], runs: list[dict]) -> bool:
    """Prints a line a run. True when no run differs."""
    same = True
    with tempfile.TemporaryDirectory() as name:
        shards = prepare_shards(Path(name) / "shards")
        for number, run in enumerate(runs):
            folders = [Path(name) / f"{number}" / side for side in ("before", "after")]
            outcomes = [outcome(program, run, shards, folder) for program, folder in zip(programs, folders)]
            difference = first_difference(*outcomes, NOT_COMPARED | set(run.get("timing", [])))
            print(f"{'differs' if difference else 'same':8} {run['name']}", flush=True)
            if difference:
                print(f"         {difference}", flush=True)
                same = False
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the program before the change")
    parser.add_argument("after", type=Path, help="the program after it")
    parser.add_argument("runs", nargs="*", help="names of runs, or patterns of them; none: all")
    arguments = parser.parse_args()
    programs = [arguments.before.resolve(), arguments.after.resolve()]
    runs = fixed_runs(arguments.runs)
    for program in programs:
        if not program.is_file():
            parser.error(f"{program}: no such program")
    if not runs:
        parser.error(f"no run of {HERE / 'runs.yaml'} has a name like {' or '.join(arguments.runs)}")
    return 0 if compare(programs, runs) else 1


if __name__ == "__main__":
    sys.exit(main())
