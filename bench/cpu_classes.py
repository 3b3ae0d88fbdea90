#!/usr/bin/env python3
"""Each class of x86-64 CPU that this one can play: do its kernels' tests pass, and how fast does moelab train there?

Runs scripts/test_cpu_classes.sh for each class, builds the program beside those tests, and trains with it in fp32, bf16
and fp16; LibTorch, oneDNN and MKL are kept to the class as scripts/cpu_classes.sh says. Rounds take turns between all
classes and precisions. Appends one JSON line to --out: the tests' outcome, median tokens/s, measured and predicted peak
memory, every run, command, commit and machine. Run it on a quiet machine.

example: .venv/bin/python bench/cpu_classes.py avx2 amx --out results/my-machine/cpu.jsonl
"""
import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench/peers"))
from peers import commit_of, cpu_classes, summary_of, write_record  # noqa: E402

PRECISIONS = ("fp32", "bf16", "fp16")


def program_of(name):
    return ROOT / f"build/class-{name}/bin/moelab"


def test(name):
    """What test_cpu_classes.sh says of a class: "799 passed", "skipped: …". Builds the program too where there are tests."""
    done = subprocess.run(["scripts/test_cpu_classes.sh", name], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    outcome = next(line.split(None, 2)[2] for line in done.stdout.splitlines() if line.split()[:1] == [name])
    if plays(outcome):
        jobs = len(os.sched_getaffinity(0))
        subprocess.run(["cmake", "--build", f"build/class-{name}", "--target", "moelab", "bench_products", "-j", str(jobs)], cwd=ROOT,
                       check=True, stdout=subprocess.DEVNULL)
    return outcome


def plays(outcome):
    """Whether a class was built and tested."""
    return "passed" in outcome


def train(environment, program, settings):
    """One training run: the median of its steps' tokens/s after warm-up, and its peaks in bytes."""
    summary = summary_of(["env", f"--chdir={ROOT}", *environment, program, "train", *settings])
    return {"tokens_per_second": summary["tokens_per_second"]["median"], "peak_bytes": summary["peak_bytes"],
            "estimated_peak_bytes": summary["estimated_peak_bytes"]}


def measure(environments, settings, rounds):
    """The runs of each class and precision."""
    runs = {name: {precision: [] for precision in PRECISIONS} for name in environments}
    for _ in range(rounds):
        for name, environment in environments.items():
            for precision, done in runs[name].items():
                done.append(train(environment, program_of(name), [*settings, f"precision.compute={precision}"]))
    return runs


def medians(runs):
    """Of tokens/s, by class and precision."""
    return {name: {precision: statistics.median(run["tokens_per_second"] for run in done)
                   for precision, done in of_class.items()} for name, of_class in runs.items()}


def main():
    environments = {name: one.environment for name, one in cpu_classes().items()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*", metavar="class", help=f"default: {' '.join(environments)}")
    parser.add_argument("--model", default="moe-micro", help="default: moe-micro")
    parser.add_argument("--data", default="data/python-stdlib", help="folder of tokens (default: data/python-stdlib)")
    parser.add_argument("--steps", type=int, default=10, help="of each run; the first three are warm-up (default: 10)")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--out", required=True, help="file that takes the JSON line")
    a = parser.parse_args()
    if unknown := [name for name in a.classes if name not in environments]:
        parser.error(f"unknown class: {unknown[0]} (there are: {' '.join(environments)})")
    tests = {name: test(name) for name in a.classes or environments}
    played = {name: environments[name] for name, outcome in tests.items() if plays(outcome)}
    if not played:
        sys.exit(f"no class was built and tested: {tests}")
    settings = ["--config", a.model, "--device", "cpu", f"data.path={a.data}", "eval.batches=0", "checkpoint.keep=0",
                f"train.steps={a.steps}"]
    runs = measure(played, settings, a.rounds)
    found = medians(runs)
    commit = commit_of(program_of(next(iter(played))))
    write_record(a.out, "cpu_classes", commit, {"tests": tests, "environments": played, "train": settings,
                                                "tokens_per_second": found, "runs": runs})
    for name, rates in found.items():
        print(f"{name:12}", *(f"{precision} {rate:7,.0f} tokens/s" for precision, rate in rates.items()))


if __name__ == "__main__":
    main()
