#!/usr/bin/env python3
"""One MoE layer, forward and backward, beside other people's layers, in turns on the same tensors.

The opponents are a layer of plain operators around torch._grouped_mm as torchtitan writes it, MixtralSparseMoeBlock of
`transformers` with each of its expert backends, and on a GPU Liger's fused one (package liger-kernel); one that is not
installed or fails is left out, with the reason; the fastest counts. Before anything is timed, outputs and every
gradient are compared with those of a loop over experts in fp32: no speed-up is printed for results that disagree.
On a GPU each call begins with the second-level cache cleared and ends when the device has.

example: bench/peers/hf_moe_layer.py --program build/dev/bin/bench_moe_layer --rounds 7
"""
import argparse
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import tensor_files
from moe_layers import TENSORS, GroupedMM, Liger, OneByOne, Transformers, inputs
from peers import BACKENDS, machine, write_record

# dtype, T, d, F, E, k
SHAPES = [
    (torch.float32, 1024, 512, 512, 8, 2),
    (torch.float32, 2048, 512, 128, 64, 8),
    (torch.bfloat16, 1024, 2048, 1024, 64, 8),
]
GPU_SHAPES = [
    (torch.bfloat16, 32768, 2048, 1024, 64, 8),
    (torch.bfloat16, 24576, 1536, 256, 128, 8),
    (torch.bfloat16, 32768, 2048, 768, 128, 8),
]
# The same work a token for every E: what more experts cost the layer beside it, without the update of their weights
# (expert_sweep.py measures whole steps). At E = 256 an expert still has 256 rows; with few, what is measured is the
# reading of its weights and the writing of their gradients.
SWEEP = [(torch.float32, 16384, 256, 512, experts, 4) for experts in (4, 16, 64, 256)]
# How tokens spread over experts: all alike, by Zipf's law, or four experts with nine tenths of the weight.
LOADS = ("even", "zipf", "four_hot")
# Relative error of norms. fp32: sums of up to d terms in another order. bf16: roundings by 2^-9, five of about that
# size in a row, which add up as squares.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 6.25e-3}
# Opponents that route by logits in bf16 send tokens of near ties to other experts: twice the most that they are off by
# on the CPU (6.1e-2 at T, d, F, E, k = 1024, 512, 256, 64, 8 under even load).
PEER_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.12}
HEADLINE = "torch._grouped_mm"  # what the goal on a GPU is measured by: timed there however slow


class Clock:
    """What a call takes, in milliseconds. On a GPU with nothing of it in the second-level cache, whichever process it
    runs in; on the CPU as the caches are after the call before, as in training."""

    def __init__(self, device):
        self.other = None
        if device == "cuda":
            size = 2 * torch.cuda.get_device_properties(0).L2_cache_size
            self.other = torch.empty(size, dtype=torch.uint8, device=device)

    def clear_cache(self):
        if self.other is not None:
            self.other.zero_()
            torch.cuda.synchronize()

    def milliseconds(self, call):
        self.clear_cache()
        start = time.perf_counter()
        call()
        if self.other is not None:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3


def gemm_rate(dtype, device, clock):
    """FLOP/s of a square product, the yardstick of the same run: in fp32 where LibTorch multiplies bf16 one by one."""
    if device == "cpu" and dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        dtype = torch.float32
    n = 8192 if device == "cuda" else 2048
    a = torch.randn(n, n, device=device).to(dtype)
    clock.milliseconds(lambda: a @ a)
    return 2 * n**3 / statistics.median(clock.milliseconds(lambda: a @ a) for _ in range(11)) * 1e3


class Ours:
    """bench_moe_layer in a process of its own, which runs when asked."""

    def __init__(self, program, folder, tensors, k):
        tensor_files.save(tensors, folder / "in.safetensors")
        out = folder / "out.safetensors"
        self.process = subprocess.Popen([program, folder / "in.safetensors", out, str(k), tensors["x"].device.type],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        first_line = self.process.stdout.readline().split()  # ready COMMIT
        if first_line[:1] != ["ready"]:
            sys.exit(f"{program} failed")
        self.commit = first_line[1]
        self.found = tensor_files.load(out)

    def results(self):
        return self.found

    def times(self, n, clock):
        return [self.time(clock) for _ in range(n)]

    def time(self, clock):
        clock.clear_cache()
        self.process.stdin.write("1\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def opponents(device):
    """Name and constructor of each; those whose package is missing are left out, which is said."""
    found = {HEADLINE: GroupedMM}
    if importlib.util.find_spec("transformers"):
        found |= {name: lambda *args, name=name: Transformers(*args, name) for name in BACKENDS}
    else:
        print("package transformers is not installed: its layers are left out", flush=True)
    if device == "cuda":
        if importlib.util.find_spec("liger_kernel"):
            found["liger"] = Liger
        else:
            print("package liger-kernel is not installed: its layer is left out", flush=True)
    return found


def errors_of(results, reference):
    """Relative error of each result's norm."""
    def error(found, wanted):
        found, wanted = found.to(wanted.device).double(), wanted.double()
        return float((found - wanted).norm() / wanted.norm())
    return {name: error(results[name], reference[name]) for name in TENSORS}


def agrees(errors, tolerance):
    return all(error <= tolerance for error in errors.values())


class Opponents:
    """Those that still take part in one comparison; one that raises is out, and `failed` says why."""

    def __init__(self, makers):
        self.runners, self.failed = dict.fromkeys(makers), {}

    def each(self, call):
        """call(name, runner) of all that take part, by name."""
        found = {}
        for name in list(self.runners):
            try:
                found[name] = call(name, self.runners[name])
            except Exception as error:  # pylint: disable=broad-except  whatever other people's code raises
                self.drop(name)
                self.failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return found

    def drop(self, name):
        del self.runners[name]


def compare(shape, load, makers, program, rounds, iterations, device, clock):
    dtype, tokens, d, f, experts, k = shape
    record = {"dtype": str(dtype).removeprefix("torch."), "T": tokens, "d": d, "F": f, "E": experts, "k": k,
              "load": load, "device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
    tensors = inputs(dtype, tokens, d, f, experts, load, device)
    reference = OneByOne({n: t.float() for n, t in tensors.items()}, k, torch.float32).results()
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(program, Path(folder), tensors, k)
    record["commit"] = ours.commit
    try:
        record["errors"] = errors_of(ours.results(), reference)
        if not agrees(record["errors"], TOLERANCE[dtype]):
            return record | {"status": "disagrees"}
        others = Opponents(makers)
        others.runners = others.each(lambda name, _: makers[name](tensors, k, dtype))
        record["errors_of_peers"] = others.each(
            lambda _, runner, expected=reference: errors_of(runner.results(), expected))
        del reference
        for name, found in record["errors_of_peers"].items():
            if not agrees(found, PEER_TOLERANCE[dtype]):
                others.drop(name)
        record["warm_up"] = others.each(lambda _, runner: runner.times(2, clock)[1])
        # the fastest counts: the others need not take minutes
        slow = 3 * min(record["warm_up"].values(), default=0)
        kept = HEADLINE if device == "cuda" else None
        record["left_out"] = [name for name, once in record["warm_up"].items() if once > slow and name != kept]
        for name in record["left_out"]:
            others.drop(name)
        ours.times(2, clock)
        times = {"moelab": []}
        for _ in range(rounds):
            times["moelab"] += ours.times(iterations, clock)
            for name, found in others.each(lambda _, runner: runner.times(iterations, clock)).items():
                times.setdefault(name, []).extend(found)
    finally:
        ours.close()
    times = {name: t for name, t in times.items() if name not in others.failed}
    return record | {"failed": others.failed} | figures(times, shape, gemm_rate(dtype, device, clock))


def figures(times, shape, rate):
    """What a record says of the times of each side; a route has three products, once forward, twice backward."""
    _, tokens, d, f, _, k = shape
    flops = 2 * 9 * tokens * k * d * f
    medians = {name: statistics.median(t) for name, t in times.items()}
    spread = {name: (quantile(t, 0.9) - quantile(t, 0.1)) / medians[name] for name, t in times.items()}
    found = {"status": "ok", "milliseconds": times, "median": medians, "spread": spread, "gemm_gflops": rate / 1e9,
             "gflops": {name: flops / median / 1e6 for name, median in medians.items()}}
    if len(medians) == 1:
        return found  # no opponent was left
    best = min((name for name in medians if name != "moelab"), key=medians.get)
    return found | {"best_peer": best, "ratio": medians[best] / medians["moelab"]}


def quantile(values, q):
    return sorted(values)[round(q * (len(values) - 1))]


def show(record):
    name = "{dtype} T {T} d {d} F {F} E {E} k {k} {load}".format(**record)
    worst = max(record["errors"].values())
    if record["status"] != "ok":
        print(f"{name}: results differ by {worst:.1e}, no times", flush=True)
        return
    print(f"{name}: error {worst:.0e}; a product runs at {record['gemm_gflops'] / 1e3:.3g} TFLOP/s")
    for side, median in sorted(record["median"].items(), key=lambda entry: entry[1]):
        rate = record["gflops"][side]
        print(f"  {side:18} {median:9.2f} ms, spread {record['spread'][side]:4.0%}  {rate / 1e3:7.3g} TFLOP/s "
              f"({rate / record['gemm_gflops']:4.0%} of the product)  {median / record['median']['moelab']:5.2f} x")
    for side in record["left_out"]:
        print(f"  {side:18} {record['warm_up'][side]:9.0f} ms, once")
    for side, why in record["failed"].items():
        print(f"  {side:18} failed: {why[:200]}")
    wrong = record["errors_of_peers"].keys() - record["warm_up"].keys() - record["failed"].keys()
    for side in sorted(wrong):
        print(f"  {side:18} results differ by {max(record['errors_of_peers'][side].values()):.1e}, no times")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/dev/bin/bench_moe_layer")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: its shapes, under every load")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=10, help="a round and side")
    parser.add_argument("--sweep", action="store_true",
                        help="E from 4 to 256 at equal work, instead of the shapes: the layer alone, no update")
    parser.add_argument("--out", help="append the records to this JSON-lines file")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no GPU on this machine")
    makers, clock = opponents(args.device), Clock(args.device)
    shapes = SWEEP if args.sweep else GPU_SHAPES if args.device == "cuda" else SHAPES
    print(f"{machine()}; {args.rounds} rounds of {args.iterations}, medians")
    for shape in shapes:
        for load in LOADS if args.device == "cuda" else LOADS[:1]:
            record = compare(shape, load, makers, args.program, args.rounds, args.iterations, args.device, clock)
            show(record)
            if args.out:
                write_record(args.out, "moe_layer_sweep" if args.sweep else "moe_layer", record["commit"], record)


if __name__ == "__main__":
    main()
