#!/usr/bin/env python3
"""What other processes cost a training: tokens/s alone, and beside one busy process (`yes`) on each core.

Measures moelab twice: as it is (its waiting threads sleep early), and with libgomp's own spin count. Rounds take turns
between all of these; pairs compare both spin counts alone. Appends one JSON line to --out: medians, ratios, every run, command, commit and
machine. Run it on a quiet machine.

example: .venv/bin/python bench/busy_machine.py --model moe-pico --steps 20 --out results/my-machine/cpu.jsonl \\
             data.path=data/python-stdlib
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench/peers"))
from peers import commit_of, summary_of, write_record  # noqa: E402

LIBGOMP_SPINS = "300000"  # libgomp's default where threads are no more than cores
USERS_CHOICE = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def environment(spinning):
    """That of the run: the program's own spin count, or libgomp's."""
    own = {name: value for name, value in os.environ.items() if name not in USERS_CHOICE}
    return own | ({"GOMP_SPINCOUNT": LIBGOMP_SPINS} if spinning else {})


@contextlib.contextmanager
def busy_cores():
    """One busy process for each core."""
    processes = [subprocess.Popen(["yes"], stdout=subprocess.DEVNULL) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def tokens_per_second(command, spinning, busy):
    """The median of one training's steps after its warm-up."""
    with busy_cores() if busy else contextlib.nullcontext():
        return summary_of(command, environment(spinning))["tokens_per_second"]["median"]


def measure(command, rounds, pairs):
    """Tokens/s of every run, by what was beside it."""
    runs = {"alone": [], "busy": [], "busy, spinning": [], "pairs": []}
    for _ in range(rounds):
        runs["alone"].append(tokens_per_second(command, spinning=False, busy=False))
        runs["busy"].append(tokens_per_second(command, spinning=False, busy=True))
        runs["busy, spinning"].append(tokens_per_second(command, spinning=True, busy=True))
    for pair in range(pairs):
        order = (False, True) if pair % 2 == 0 else (True, False)
        found = {spinning: tokens_per_second(command, spinning, busy=False) for spinning in order}
        runs["pairs"].append([found[False], found[True]])
    return runs


def figures(runs):
    """Medians in tokens/s, and what is asked of them."""
    found = {name: statistics.median(runs[name]) for name in ("alone", "busy", "busy, spinning") if runs[name]}
    ratios = {}
    if found:
        ratios = {"busy beside alone": found["busy"] / found["alone"],
                  "busy beside spinning": found["busy"] / found["busy, spinning"]}
    if runs["pairs"]:
        ratios["alone beside spinning"] = statistics.median(ours / theirs for ours, theirs in runs["pairs"])
    return {"tokens_per_second": found, "ratios": ratios}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build/quick/bin/moelab", help="default: that of build/quick")
    parser.add_argument("--model", default="moe-pico", help="default: moe-pico")
    parser.add_argument("--steps", type=int, default=20, help="of each run; the first three are warm-up (default: 20)")
    parser.add_argument("--rounds", type=int, default=9, help="alone, busy, and busy with libgomp's spins (default: 9)")
    parser.add_argument("--pairs", type=int, default=15, help="alone, both spin counts (default: 15)")
    parser.add_argument("--out", required=True, help="file that takes the JSON line")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of the training")
    a = parser.parse_args()
    command = [str(a.program), "train", "--config", a.model, "--device", "cpu", "eval.batches=0", "checkpoint.keep=0",
               *a.settings, f"train.steps={a.steps}"]
    runs = measure(command, a.rounds, a.pairs)
    found = figures(runs)
    write_record(a.out, "busy_machine", commit_of(a.program), {"model": a.model, "train": command[1:], **found, "runs": runs})
    print(json.dumps({"model": a.model, **found}, indent=2))


if __name__ == "__main__":
    main()
