#!/usr/bin/env python3
"""What a rank holds under each stage of ZeRO: measured here on a few ranks, and predicted for the models, ranks and cards
that guides make claims of.

Runs a few steps for each number of ranks and each stage, one thread a rank, and asks `moelab estimate` for the rest. Appends
one JSON line to --out: what was measured and predicted, command, commit and machine.

example: .venv/bin/python bench/ranks/stages.py --build build/quick --out results/my-machine/ranks.jsonl \\
             data.path=data/python-stdlib
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from ranks import ranks_command  # noqa: E402, beside this file

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/peers"))
from peers import commit_of, write_record  # noqa: E402

STAGES = range(4)
# The state that VIBEE's guide counts: 2 bytes of weights and 4 of optimizer a parameter, and no masters.
GUIDE_7B = ["--config", "dense-7b", "precision.compute=bf16", "precision.master=none", "optim.state=bf16", "train.micro_batch=1"]
# Whether a model trains on these cards, with what the claim names and one sequence a rank.
FITS = [
    {"claim": "vibee.fits_70b_on_8x80gb", "ranks": 8, "device_gb": 80,
     "settings": ["--config", "dense-70b", "precision.compute=bf16", "parallel.zero=3", "activations.checkpoint=full", "train.micro_batch=1"]},
    {"claim": "vibee.fits_70b_on_8x80gb", "ranks": 8, "device_gb": 80,
     "settings": ["--config", "dense-70b", "precision.compute=bf16", "precision.master=none", "optim.state=bf16", "parallel.zero=3",
                  "activations.checkpoint=full", "train.micro_batch=1"]},
    {"claim": "vibee.fits_70b_on_8x80gb", "ranks": 8, "device_gb": 80,
     "settings": ["--config", "dense-70b", "precision.compute=bf16", "parallel.zero=3", "activations.checkpoint=full", "train.micro_batch=1",
                  "placement.optimizer=host", "placement.gradients=host"]},
    {"claim": "vibee.fits_405b_on_128_h100", "ranks": 128, "device_gb": 80,
     "settings": ["--config", "dense-405b", "precision.compute=fp8", "parallel.zero=1", "activations.checkpoint=full", "train.micro_batch=1"]},
    {"claim": "vibee.fits_405b_on_128_h100", "ranks": 128, "device_gb": 80,
     "settings": ["--config", "dense-405b", "precision.compute=fp8", "parallel.zero=3", "activations.checkpoint=full", "train.micro_batch=1"]},
]  # fmt: skip


def train(program, ranks, zero, a):
    """What the ranks of one run held: the largest of each, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(program), "train", "--device", "cpu", f"--config={a.model}", "eval.batches=0", "checkpoint.keep=0", "run.threads=1",
                   f"train.steps={a.steps}", f"run.dir={folder}", *a.settings, f"parallel.zero={zero if ranks > 1 else 0}"]
        subprocess.run(ranks_command(ranks, command), check=True, stdout=subprocess.DEVNULL)
        summaries = [json.loads(path.read_text()) for path in Path(folder).rglob("summary.json")]
    assert len(summaries) == ranks
    state = {kind: max(one["state_bytes"][kind] for one in summaries) for kind in ("parameters", "gradients", "optimizer")}
    return {"ranks": ranks, "zero": zero, "state_bytes": state, "peak_bytes": max(one["peak_tensor_bytes"] for one in summaries),
            "estimated_peak_bytes": max(one["estimated_peak_bytes"] for one in summaries), "parameters": summaries[0]["model"]["parameters"]}


def estimate(program, *words):
    done = subprocess.run([str(program), "estimate", "--json", *words], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def fits(program, one):
    """The peak of the fullest rank, and what it holds on its host."""
    answer = estimate(program, *one["settings"], f"parallel.data={one['ranks']}")
    return one | {"peak_bytes": answer["peak_bytes"], "host_bytes": answer["host_bytes"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/quick", help="has moelab (default: build/quick)")
    parser.add_argument("--model", default="moe-micro", help="default: moe-micro")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="numbers of ranks to run (default: 1 2 4)")
    parser.add_argument("--predicted-ranks", type=int, nargs="+", default=[8, 16], help="to predict for the model (default: 8 16)")
    parser.add_argument("--steps", type=int, default=3, help="of each run (default: 3)")
    parser.add_argument("--out", required=True, help="file that takes the JSON line")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of the training")
    a = parser.parse_args()
    program = a.build / "bin/moelab"
    measured = []
    for ranks in a.ranks:
        for zero in STAGES if ranks > 1 else (0,):
            print(f"{ranks} ranks, parallel.zero={zero}", file=sys.stderr, flush=True)
            measured.append(train(program, ranks, zero, a))
    shape = [f"--config={a.model}", *(one for one in a.settings if not one.startswith("data."))]
    predicted = [{"ranks": ranks, "zero": stage["zero"], "peak_bytes": stage["peak_bytes"]}
                 for ranks in a.predicted_ranks for stage in estimate(program, *shape, "--ranks", str(ranks))["ranks"]["by_stage"]]
    guide = estimate(program, *GUIDE_7B, "--ranks", "8")
    record = {"model": a.model, "settings": a.settings, "measured": measured, "predicted": predicted,
              "guide_7b": {"command": GUIDE_7B, "parameters": guide["model"]["parameters"], "by_stage": guide["ranks"]["by_stage"]},
              "fits": [fits(program, one) for one in FITS]}
    write_record(a.out, "stages", commit_of(program), record)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
