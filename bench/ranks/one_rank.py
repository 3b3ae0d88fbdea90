#!/usr/bin/env python3
"""CPU seconds that one rank's step costs in a program beside another, such as the commit before: pairs that take turns.

Steps are what a long run takes more than one of two steps, over their difference. Appends one JSON line to --out: every
pair, the median ratio, command, commits and machine. Run it on a quiet machine.

example: .venv/bin/python bench/ranks/one_rank.py OLD/build/quick/bin/moelab build/quick/bin/moelab \\
             --out results/my-machine/ranks.jsonl data.path=data/python-stdlib
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/peers"))
from peers import commit_of, write_record  # noqa: E402

SHORT = 2  # steps


def cpu_seconds(program, steps, settings):
    """User and system time of one training."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "train", "--device", "cpu", "eval.batches=0", "checkpoint.keep=0", *settings,
                   f"train.steps={steps}", f"run.dir={folder}/run"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        if status != 0:
            raise SystemExit(f"failed: {' '.join(command)}")
        return used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs=2, metavar="moelab", help="the old one and the new one")
    parser.add_argument("--steps", type=int, default=12, help="of a long run (default: 12)")
    parser.add_argument("--pairs", type=int, default=15, help="default: 15")
    parser.add_argument("--out", required=True, help="file that takes the JSON line")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of the training")
    a = parser.parse_intermixed_args()  # settings may follow options
    start = {program: statistics.median(cpu_seconds(program, SHORT, a.settings) for _ in range(3)) for program in a.programs}
    pairs = []
    for pair in range(a.pairs):
        print(f"pair {pair + 1} of {a.pairs}", file=sys.stderr, flush=True)
        order = a.programs if pair % 2 == 0 else a.programs[::-1]
        found = {program: (cpu_seconds(program, a.steps, a.settings) - start[program]) / (a.steps - SHORT) for program in order}
        pairs.append([found[program] for program in a.programs])
    ratio = statistics.median(new / old for old, new in pairs)
    old, new = a.programs
    write_record(a.out, "one_rank", commit_of(new), {"old_commit": commit_of(old), "settings": a.settings, "pairs": pairs,
                                                     "cpu_seconds": [statistics.median(side) for side in zip(*pairs)], "ratio": ratio})
    print(json.dumps({"ratio": ratio, "lowest": min(n / o for o, n in pairs), "highest": max(n / o for o, n in pairs)}))


if __name__ == "__main__":
    main()
