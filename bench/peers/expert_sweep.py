#!/usr/bin/env python3
"""Whole training steps of `moelab train` with E from 4 to 256 experts at equal active work, in turns.

Every E has the same tokens, the same experts of a token and the same width of an expert, hence the same products.
Weights grow with E, and with them the reading of weights, the writing of gradients and the update, all of which a step
has; `hf_moe_layer.py --sweep` measures the layer's forward and backward alone.

example: bench/peers/expert_sweep.py --program build/dev/bin/moelab --rounds 5 --out peers.jsonl
"""
import argparse
import json
import statistics
import sys
import tempfile

from hf_mixtral import TRAIN, WARM_UP, measured, steps_of
from peers import commit_of, machine, write_record

EXPERTS = (4, 16, 64, 256)
SHAPE = {"model.d_model": 256, "model.heads": 4, "model.layers": 2, "model.d_expert": 512, "model.experts_per_token": 4,
         "train.sequence": 512}


def run(program, data, experts, settings, steps):
    """Parameters, milliseconds of the steps that count, and peak memory of a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        _, rss = measured([program, "train", *TRAIN, f"model.experts={experts}",
                           *(f"{key}={value}" for key, value in settings.items()), f"train.steps={steps}",
                           f"data.path={data}", f"run.dir={folder}/run"])
        lines = steps_of(f"{folder}/run")
        summary = json.load(open(f"{folder}/run/summary.json", encoding="utf-8"))
    return {"parameters": summary["model"]["parameters"], "active": summary["model"]["active_parameters"], "rss": rss,
            "milliseconds": [line["step_ms"] for line in lines][WARM_UP:]}


def figures(runs):
    """For each E, from the runs of every round: the median step, and how much longer it is than with the fewest experts
    in the same round."""
    first = next(iter(runs.values()))
    found = {}
    for experts, rounds in runs.items():
        growth = [median_of(one) / median_of(least) - 1 for one, least in zip(rounds, first)]
        found[experts] = {"parameters": rounds[0]["parameters"], "peak_rss": max(one["rss"] for one in rounds),
                          "step_ms": statistics.median(ms for one in rounds for ms in one["milliseconds"]),
                          "growth": statistics.median(growth), "least": min(growth), "most": max(growth)}
    return found


def median_of(one):
    return statistics.median(one["milliseconds"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/dev/bin/moelab")
    parser.add_argument("--data", default="data/python-stdlib", help="folder of tokens (bytes)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--rows", type=int, default=32, help=f"of a step, of {SHAPE['train.sequence']} tokens")
    parser.add_argument("--d-expert", type=int, default=SHAPE["model.d_expert"], help="width of an expert")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help=f"of each process; the first {WARM_UP} are warm-up")
    parser.add_argument("--out", help="append the record to this JSON-lines file")
    args = parser.parse_args()
    if args.steps <= WARM_UP:
        parser.error(f"--steps: more than {WARM_UP}")
    settings = SHAPE | {"model.d_expert": args.d_expert, "train.micro_batch": args.rows,
                        "precision.compute": args.precision}
    runs = {experts: [] for experts in EXPERTS}
    for number in range(args.rounds):
        for experts in EXPERTS:
            print(f"  round {number + 1} of {args.rounds}: E = {experts}", file=sys.stderr, flush=True)
            runs[experts].append(run(args.program, args.data, experts, settings, args.steps))
    print(f"{machine()}; {args.precision}, {args.rows * SHAPE['train.sequence']} tokens a step")
    table = figures(runs)
    for experts, row in table.items():
        print(f"E {experts:3}: {row['parameters'] / 1e6:6.1f}M parameters, {row['step_ms']:7.0f} ms a step, "
              f"{row['growth']:+.1%} ({row['least']:+.1%} to {row['most']:+.1%})  "
              f"peak resident {row['peak_rss'] / 2**20:.0f} MiB")
    if args.out:
        write_record(args.out, "expert_sweep", commit_of(args.program),
                     {"precision": args.precision, "settings": settings, "runs": runs, "table": table, "status": "ok"})


if __name__ == "__main__":
    main()
