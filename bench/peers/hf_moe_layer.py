#!/usr/bin/env python3
"""One MoE layer, forward and backward, beside the one of `transformers`, in turns on the same tensors.

The opponent is MixtralSparseMoeBlock with each of its expert backends; the faster one counts. Before
anything is timed, outputs and every gradient are compared with the block's own in fp32: no speed-up is printed
for results that disagree.

example: bench/peers/hf_moe_layer.py --program build/dev/bin/bench_moe_layer --rounds 7
"""
import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from peers import BACKENDS, machine, write_record

# dtype, T, d, F, E, k
SHAPES = [
    (torch.float32, 1024, 512, 512, 8, 2),
    (torch.float32, 2048, 512, 128, 64, 8),
    (torch.bfloat16, 1024, 2048, 1024, 64, 8),
]
# The same work a token for every E: what more experts cost beside it. At E = 256 an expert still has 256 rows; with
# few, what is measured is the reading of its weights and the writing of their gradients.
SWEEP = [(torch.float32, 16384, 256, 512, experts, 4) for experts in (4, 16, 64, 256)]
TENSORS = ("y", "dx", "drouter", "dw13", "dw2")
# Relative error of norms. fp32: sums of up to d terms in another order. bf16: 2^-8 a rounding, four in a row, and
# routes of near ties that flip.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def inputs(dtype, tokens, d, f, experts):
    """Tensors at the scale of a trained layer, so that an all-zero answer is far off."""
    g = torch.Generator().manual_seed(7)
    normal = lambda *shape, scale: (torch.randn(*shape, generator=g) * scale).to(dtype)
    return {
        "x": normal(tokens, d, scale=1.0),
        "dy": normal(tokens, d, scale=1.0),
        "router": normal(experts, d, scale=d**-0.5),
        "w13": normal(experts, 2 * f, d, scale=d**-0.5),
        "w2": normal(experts, d, f, scale=f**-0.5),
    }


class Peer:
    """The block of `transformers` with one expert backend."""

    def __init__(self, tensors, k, backend, dtype):
        experts, d, f = tensors["w2"].shape
        config = MixtralConfig(hidden_size=d, intermediate_size=f, num_local_experts=experts, num_experts_per_tok=k)
        config._experts_implementation = backend
        self.block = MixtralSparseMoeBlock(config).to(dtype)
        with torch.no_grad():
            self.block.gate.weight.copy_(tensors["router"])
            self.block.experts.gate_up_proj.copy_(tensors["w13"])
            self.block.experts.down_proj.copy_(tensors["w2"])
        self.x = tensors["x"].to(dtype).unsqueeze(0).requires_grad_()
        self.dy = tensors["dy"].to(dtype).unsqueeze(0)

    def run(self):
        self.block.zero_grad(set_to_none=True)
        self.x.grad = None
        y = self.block(self.x)
        y.backward(self.dy)
        return y.detach()

    def results(self):
        y = self.run()
        experts = self.block.experts
        found = (y[0], self.x.grad[0], self.block.gate.weight.grad, experts.gate_up_proj.grad, experts.down_proj.grad)
        return dict(zip(TENSORS, found))

    def times(self, n):
        out = []
        for _ in range(n):
            start = time.perf_counter()
            self.run()
            out.append((time.perf_counter() - start) * 1e3)
        return out


class Ours:
    """bench_moe_layer in a process of its own, which runs when asked."""

    def __init__(self, program, folder, tensors, k):
        save_file(tensors, folder / "in.safetensors")
        out = folder / "out.safetensors"
        self.process = subprocess.Popen([program, folder / "in.safetensors", out, str(k)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit(f"{program} failed")
        self.found = load_file(out)

    def times(self, n):
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        return [float(t) for t in self.process.stdout.readline().split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def error(found, reference):
    found, reference = found.double(), reference.double()
    return float((found - reference).norm() / reference.norm())


def compare(shape, program, rounds, iterations):
    dtype, tokens, d, f, experts, k = shape
    tensors = inputs(dtype, tokens, d, f, experts)
    reference = Peer({n: t.float() for n, t in tensors.items()}, k, "eager", torch.float32).results()
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(program, Path(folder), tensors, k)
    errors = {n: error(ours.found[n], reference[n]) for n in TENSORS}
    record = {"dtype": str(dtype).removeprefix("torch."), "T": tokens, "d": d, "F": f, "E": experts, "k": k,
              "errors": errors}
    if not all(e <= TOLERANCE[dtype] for e in errors.values()):
        ours.close()
        return record | {"status": "disagrees"}
    runners = {"moelab": ours} | {b: Peer(tensors, k, b, dtype) for b in BACKENDS}
    warm_up = {name: runner.times(2)[1] for name, runner in runners.items()}
    hopeless = [b for b in BACKENDS if warm_up[b] > 3 * min(warm_up[other] for other in BACKENDS)]
    for name in hopeless:  # the faster backend counts: the other need not take minutes
        del runners[name]
    times = {name: [] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            times[name] += runner.times(iterations)
    ours.close()
    medians = {name: statistics.median(t) for name, t in times.items()}
    best = min((b for b in BACKENDS if b in medians), key=medians.get)
    return record | {"status": "ok", "milliseconds": times, "median": medians, "best_peer": best,
                     "warm_up": warm_up, "left_out": hopeless,
                     "ratio": medians[best] / medians["moelab"],
                     "gflops": 18 * tokens * k * d * f / medians["moelab"] / 1e6}


def show(record):
    name = "{dtype} T {T} d {d} F {F} E {E} k {k}".format(**record)
    worst = max(record["errors"].values())
    if record["status"] != "ok":
        print(f"{name:44} results differ by {worst:.1e}: no times", flush=True)
        return
    m = record["median"]
    peers = "  ".join(f"{b} {m[b]:8.1f}" if b in m else f"{b} (once) {record['warm_up'][b]:.0f}" for b in BACKENDS)
    print(f"{name:44} moelab {m['moelab']:8.1f} ms ({record['gflops']:5.0f} GFLOP/s)  {peers}  "
          f"{record['ratio']:5.2f} x  error {worst:.0e}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/dev/bin/bench_moe_layer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=10, help="a round and side")
    parser.add_argument("--sweep", action="store_true", help="E from 4 to 256 at equal work, instead of the shapes")
    parser.add_argument("--out", help="append the records to this JSON-lines file")
    args = parser.parse_args()
    print(f"{machine()}; {args.rounds} rounds of {args.iterations}, medians")
    for shape in SWEEP if args.sweep else SHAPES:
        record = compare(shape, args.program, args.rounds, args.iterations)
        show(record)
        if args.out:
            write_record(args.out, "moe_layer", record)


if __name__ == "__main__":
    main()
