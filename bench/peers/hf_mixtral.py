#!/usr/bin/env python3
"""One training step of moe-micro beside `transformers`' Mixtral of the same shape, in turns.

The opponent trains with each of its expert backends, in fp32 and under bf16 autocast, with the fused AdamW of
PyTorch; its fastest combination counts, and ratios are of the same round. First both compute the loss of the same
batch with the same weights (ours comes from a folder that `transformers` wrote): no speed-up is printed for models that
disagree. Each measurement is a process of its own; peak memory is the kernel's account of it (ru_maxrss).

example: bench/peers/hf_mixtral.py --moelab build/dev/bin/moelab --rounds 3
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import BACKENDS, machine, write_record

BATCH, SEQUENCE, VOCAB = 8, 256, 256
WARM_UP = 3  # steps of each process that do not count
# Losses of one batch, relative. fp32: sums of 2048 terms in another order; bf16: roundings of 2^-9 that average out.
TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3}
# A training run of nothing but steps, every token to its experts; measured by its metrics.jsonl.
TRAIN = ["--config", "moe-micro", "--device", "cpu", "model.dispatch=dropless", "eval.batches=0", "checkpoint.keep=0",
         "monitor.quiet=true", "run.log_every=0"]
# Both sides: the same clipping and update, no auxiliary losses.
OURS = [*TRAIN, "model.balance_loss=0", "model.z_loss=0", f"train.micro_batch={BATCH}", f"train.sequence={SEQUENCE}"]


def peer_config():
    from transformers import MixtralConfig
    return MixtralConfig(vocab_size=VOCAB, hidden_size=384, intermediate_size=1024, num_hidden_layers=6,
                         num_attention_heads=6, num_key_value_heads=6, num_local_experts=4, num_experts_per_tok=2,
                         max_position_embeddings=SEQUENCE, rms_norm_eps=1e-5, tie_word_embeddings=True,
                         rope_theta=10000.0, sliding_window=None, router_aux_loss_coef=0.0, use_cache=False)


def peer(folder, data, backend, precision, steps):
    """The opponent's process: prints losses and milliseconds of its steps as JSON."""
    import numpy as np
    import torch
    from transformers import MixtralForCausalLM
    model = MixtralForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa",
                                               experts_implementation=backend)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = np.memmap(Path(data) / "train.bin", dtype=np.uint16)
    windows = (len(tokens) - 1) // SEQUENCE
    losses, times = [], []
    for step in range(steps):
        start = time.perf_counter()
        rows = [(step * BATCH + i) % windows * SEQUENCE for i in range(BATCH)]
        batch = torch.from_numpy(np.stack([tokens[r:r + SEQUENCE + 1] for r in rows]).astype(np.int64))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = model(input_ids=batch[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"losses": losses, "milliseconds": times}))


def measured(command):
    """Runs a command to its end: its standard output and its peak resident memory in bytes."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=errors, text=True)
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            sys.exit(f"{' '.join(map(str, command))}\nended with {process.returncode}:\n{errors.read()[-2000:]}")
    return out, usage.ru_maxrss * 1024


def steps_of(run):
    """The lines of a training run's metrics.jsonl that are of steps."""
    lines = map(json.loads, (Path(run) / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line.get("step_ms")]


class Ours:
    def __init__(self, program, precision):
        self.name, self.program, self.precision = f"moelab {precision}", program, precision

    def run(self, folder, data, steps):
        with tempfile.TemporaryDirectory() as run:
            _, rss = measured([self.program, "train", *OURS, f"precision.compute={self.precision}", f"train.init={folder}",
                               f"data.path={data}", f"train.steps={steps}", f"run.dir={run}/run"])
            lines = steps_of(f"{run}/run")
        return {"losses": [line["loss"] for line in lines], "milliseconds": [line["step_ms"] for line in lines], "rss": rss}


class Peer:
    def __init__(self, backend, precision):
        self.name, self.backend, self.precision = f"{backend} {precision}", backend, precision

    def run(self, folder, data, steps):
        out, rss = measured([sys.executable, __file__, "--peer", self.backend, self.precision, folder, data, steps])
        return json.loads(out.splitlines()[-1]) | {"rss": rss}


def one_batch(data, folder):
    """A dataset of exactly one batch, so that the order of its windows does not matter."""
    folder.mkdir()
    whole = (Path(data) / "train.bin").read_bytes()[:(BATCH * SEQUENCE + 1) * 2]
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(whole)
    for name in ("meta.json", "tokenizer.json"):
        (folder / name).write_bytes((Path(data) / name).read_bytes())
    return folder


def check(sides, folder, batch):
    """The losses of one batch; stops where they disagree."""
    losses = {side.name: side.run(folder, batch, 1)["losses"][0] for side in sides}
    reference = losses["eager fp32"]
    for side in sides:
        error = abs(losses[side.name] - reference) / reference
        if not error <= TOLERANCE[side.precision]:
            sys.exit(f"{side.name}: loss {losses[side.name]:.7f} on the common batch, not {reference:.7f}")
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moelab", default="build/dev/bin/moelab", help="the program")
    parser.add_argument("--data", default="data/python-stdlib", help="folder of tokens (bytes)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help=f"of each process; the first {WARM_UP} are warm-up")
    parser.add_argument("--out", help="append the record to this JSON-lines file")
    parser.add_argument("--peer", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        backend, precision, folder, data, steps = args.peer
        return peer(folder, data, backend, precision, int(steps))
    if args.steps <= WARM_UP:
        parser.error(f"--steps: more than {WARM_UP}")
    sides = [Ours(args.moelab, p) for p in TOLERANCE] + [Peer(b, p) for p in TOLERANCE for b in BACKENDS]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        write = "import hf_mixtral, sys, torch, transformers as t; torch.manual_seed(5); " \
                "t.MixtralForCausalLM(hf_mixtral.peer_config()).save_pretrained(sys.argv[1])"
        subprocess.run([sys.executable, "-c", write, folder], check=True, env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)})
        losses = check(sides, folder, one_batch(args.data, Path(scratch) / "batch"))
        spread = max(losses.values()) - min(losses.values())
        print(f"{machine()}\nloss of one batch {losses['eager fp32']:.6f}, all within {spread:.1e}", flush=True)
        runs = {side.name: [] for side in sides}
        for number in range(args.rounds):
            for side in sides:
                print(f"  round {number + 1} of {args.rounds}: {side.name}", file=sys.stderr, flush=True)
                runs[side.name].append(side.run(folder, args.data, args.steps))
    show(runs, args, losses)


def by_round(runs):
    """Of each side, the median tokens/s of each round; of a record's `runs`, too."""
    return {side: [statistics.median(rates(run)) for run in rounds] for side, rounds in runs.items()}


def rates(run):
    """Tokens/s of the steps that count."""
    return [BATCH * SEQUENCE / ms * 1e3 for ms in run["milliseconds"][WARM_UP:]]


def ratios(runs, side, other):
    """How fast a side was beside another of the same round, round by round."""
    found = by_round(runs)
    return [one / two for one, two in zip(found[side], found[other])]


def figures(runs):
    """What a record says of the runs of each side; the fastest opponent has the highest median over all rounds."""
    table = {}
    for side, rounds in runs.items():
        found = [rate for run in rounds for rate in rates(run)]
        table[side] = {"tokens_per_second": statistics.median(found), "slowest": min(found), "fastest": max(found),
                       "peak_rss": max(run["rss"] for run in rounds)}
    best = max((side for side in table if not side.startswith("moelab")),
               key=lambda side: table[side]["tokens_per_second"])
    return {"table": table, "best_peer": best, "speed": statistics.median(ratios(runs, "moelab bf16", best)),
            "memory": table["moelab bf16"]["peak_rss"] / table[best]["peak_rss"]}


def show(runs, args, losses):
    found = figures(runs)
    for name, row in found["table"].items():
        print(f"{name:18} {row['tokens_per_second']:7.0f} tokens/s ({row['slowest']:.0f} to {row['fastest']:.0f})  "
              f"peak resident {row['peak_rss'] / 2**20:6.0f} MiB")
    best = found["best_peer"]
    rounds = ratios(runs, "moelab bf16", best)
    print(f"moelab bf16 beside {best} of the same round: {found['speed']:.2f} x its tokens/s ({min(rounds):.2f} to "
          f"{max(rounds):.2f} in {len(rounds)} rounds), {found['memory']:.2f} x its peak resident memory")
    if args.out:
        write_record(args.out, "mixtral_step", {"losses": losses, **found, "runs": runs, "status": "ok"})


if __name__ == "__main__":
    main()
