#!/usr/bin/env python3
"""How long the stages of a pipeline wait for each other: measured, and beside it what a simulation of the schedule says when it
is given the measured times of each stage's passes and of a message as long as theirs, sent alone in the same round.

Rounds take turns between the schedules, one thread a stage. Appends one JSON line to --out: every run and the medians, command,
commit and machine. Run it on a quiet machine with a core for each stage.

example: .venv/bin/python bench/ranks/bubble.py --build build/quick --out results/my-machine/bubble.jsonl \\
             data.path=data/python-stdlib precision.compute=bf16
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ranks import ROOT, exchange_alone, ranks_command

sys.path.insert(0, str(ROOT / "bench/peers"))
from peers import commit_of, write_record  # noqa: E402

COMMON = ["train.micro_batch=1", "eval.batches=0", "checkpoint.keep=0", "monitor.quiet=true", "run.log_every=0", "memory.recover=false",
          "run.threads=1"]


def schedule(chunks):
    return ["parallel.schedule=interleaved", f"parallel.chunks={chunks}"] if chunks > 1 else []


def message_bytes(summaries, chunks, micro_batches):
    """Of what a stage hands on: the first sends it from each of its chunks, for each micro-batch."""
    first = summaries[0]
    return first["communication"]["sent_bytes"]["pipeline/activations"] // (first["steps"] * chunks * micro_batches)


def bubbles_of(summaries, simulator, message, chunks, micro_batches):
    """Of each stage: the measured share of the time of passes and waiting that it waited, and the simulated one, with messages of
    so many seconds."""
    stages = [one["communication"]["stage"] for one in summaries]
    passes = summaries[0]["steps"] * chunks * micro_batches
    measured = [one["waited_seconds"] / sum(one.values()) for one in stages]
    times = [str(one[f"{way}_seconds"] / passes) for one in stages for way in ("forward", "backward")]
    done = subprocess.run([simulator, str(chunks), str(micro_batches), str(message), *times], check=True, capture_output=True, text=True)
    return {"measured": measured, "simulated": json.loads(done.stdout)["bubble"], "message_ms": 1e3 * message}


def run(a, chunks):
    with tempfile.TemporaryDirectory() as folder:
        train = [str(a.build / "bin/moelab"), "train", "--device", "cpu", f"--config={a.model}", f"train.steps={a.steps}", *COMMON,
                 f"parallel.pipeline={a.stages}", f"train.accumulation={a.micro_batches}", *schedule(chunks), *a.settings,
                 f"run.dir={folder}/run"]
        subprocess.run(ranks_command(a.stages, train), check=True, stdout=subprocess.DEVNULL)
        folders = [Path(folder, "run"), *(Path(folder, f"run/ranks/{rank}") for rank in range(1, a.stages))]
        summaries = [json.loads((one / "summary.json").read_text()) for one in folders]
    size = message_bytes(summaries, chunks, a.micro_batches)
    # both of two ranks send half of it to each other
    message = exchange_alone(a.build / "bin/bench_exchange", "unlimited", 2, 2 * size)["sent"] / 1e3
    return bubbles_of(summaries, a.build / "bin/bench_pipeline", message, chunks, a.micro_batches)


def row_of(chunks, runs):
    """The medians over the runs, of the mean over the stages."""
    measured, simulated = (statistics.median(statistics.mean(one[kind]) for one in runs) for kind in ("measured", "simulated"))
    message = statistics.median(one["message_ms"] for one in runs)
    return {"chunks": chunks, "message_ms": message, "measured": measured, "simulated": simulated, "runs": runs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/quick",
                        help="has moelab, bench_exchange and bench_pipeline (default: build/quick)")
    parser.add_argument("--model", default="moe-micro", help="default: moe-micro")
    parser.add_argument("--stages", type=int, default=2, help="default: 2")
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 3], help="of a stage; 1: the schedule 1f1b (default: 1 3)")
    parser.add_argument("--micro-batches", type=int, default=4, help="of a step (default: 4)")
    parser.add_argument("--steps", type=int, default=5, help="of each run (default: 5)")
    parser.add_argument("--rounds", type=int, default=9, help="default: 9")
    parser.add_argument("--out", required=True, help="file that takes the JSON line")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of the training")
    a = parser.parse_intermixed_args()  # settings may follow options
    runs = {chunks: [] for chunks in a.chunks}
    for number in range(a.rounds):
        print(f"round {number + 1} of {a.rounds}", file=sys.stderr, flush=True)
        for chunks, of_chunks in runs.items():
            of_chunks.append(run(a, chunks))
    rows = [row_of(chunks, of_chunks) for chunks, of_chunks in runs.items()]
    write_record(a.out, "bubble", commit_of(a.build / "bin/moelab"),
                 {"model": a.model, "stages": a.stages, "micro_batches": a.micro_batches, "settings": [*COMMON, *a.settings], "rows": rows})
    for row in rows:
        print(f"{row['chunks']} chunks: messages of {row['message_ms']:.2f} ms, waited {row['measured']:.1%}, simulated {row['simulated']:.1%}")


if __name__ == "__main__":
    main()
