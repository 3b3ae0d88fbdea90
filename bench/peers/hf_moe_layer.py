#!/usr/bin/env python3
"""One MoE layer, forward and backward, beside other people's layers, in turns on the same tensors.

The opponents are MixtralSparseMoeBlock of `transformers` with each of its expert backends, a layer of plain operators
around torch._grouped_mm as torchtitan writes it, and on a GPU Liger's fused one where package liger-kernel is
installed; the fastest counts. Before anything is timed, outputs and every gradient are compared with the block's own
in fp32: no speed-up is printed for results that disagree.

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
GPU_SHAPES = [
    (torch.bfloat16, 32768, 2048, 1024, 64, 8),
    (torch.bfloat16, 24576, 1536, 256, 128, 8),
    (torch.bfloat16, 32768, 2048, 768, 128, 8),
]
# The same work a token for every E: what more experts cost beside it. At E = 256 an expert still has 256 rows; with
# few, what is measured is the reading of its weights and the writing of their gradients.
SWEEP = [(torch.float32, 16384, 256, 512, experts, 4) for experts in (4, 16, 64, 256)]
# How tokens spread over experts: all alike, by Zipf's law, or four experts with nine tenths of the weight.
LOADS = ("even", "zipf", "four_hot")
TENSORS = ("y", "dx", "drouter", "dw13", "dw2")
# Relative error of norms. fp32: sums of up to d terms in another order. bf16: 2^-8 a rounding, four in a row, and
# routes of near ties that flip.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
# Opponents that route by logits in bf16 flip more of them; what is broken is off by about 1.
PEER_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.25}


def log_share(load, experts):
    place = torch.arange(1, experts + 1, dtype=torch.float32)
    if load == "zipf":
        return -1.2 * place.log()
    if load == "four_hot":
        return torch.where(place <= 4, 0.9 / 4, 0.1 / (experts - 4)).log()
    return torch.zeros(experts)


def inputs(dtype, tokens, d, f, experts, load, device):
    """Tensors at the scale of a trained layer, so that an all-zero answer is far off. The first feature is 1 in every
    token, and its weights in the router make some experts likelier."""
    g = torch.Generator(device).manual_seed(7)
    normal = lambda *shape, scale: (torch.randn(*shape, generator=g, device=device) * scale).to(dtype)
    made = {
        "x": normal(tokens, d, scale=1.0),
        "dy": normal(tokens, d, scale=1.0),
        "router": normal(experts, d, scale=d**-0.5),
        "w13": normal(experts, 2 * f, d, scale=d**-0.5),
        "w2": normal(experts, d, f, scale=f**-0.5),
    }
    if load != "even":
        made["x"][:, 0] = 1
        made["router"][:, 0] = log_share(load, experts).to(made["router"])
    return made


class Layer:
    """An opponent; it has x, dy and, in the order of TENSORS, the gradients that `weights_of` collects."""

    def __init__(self, tensors, k, dtype):
        self.k = k
        self.x = tensors["x"].to(dtype).clone().requires_grad_()
        self.dy = tensors["dy"].to(dtype)

    def run(self):
        for leaf in (self.x, *self.leaves()):
            leaf.grad = None
        y = self.forward()
        y.backward(self.dy)
        return y.detach()

    def results(self):
        y = self.run()
        return dict(zip(TENSORS, (y, self.x.grad, *self.gradients())))

    def gradients(self):
        return [leaf.grad for leaf in self.leaves()]

    def times(self, n):
        out = []
        for _ in range(n):
            start = time.perf_counter()
            self.run()
            if self.x.is_cuda:
                torch.cuda.synchronize()
            out.append((time.perf_counter() - start) * 1e3)
        return out

    def close(self):
        pass


class Transformers(Layer):
    """The block of `transformers` with one expert backend."""

    def __init__(self, tensors, k, dtype, backend):
        super().__init__(tensors, k, dtype)
        experts, d, f = tensors["w2"].shape
        config = MixtralConfig(hidden_size=d, intermediate_size=f, num_local_experts=experts, num_experts_per_tok=k)
        config._experts_implementation = backend
        self.block = MixtralSparseMoeBlock(config).to(self.x.device, dtype)
        with torch.no_grad():
            for parameter, name in zip(self.leaves(), ("router", "w13", "w2")):
                parameter.copy_(tensors[name])

    def leaves(self):
        return self.block.gate.weight, self.block.experts.gate_up_proj, self.block.experts.down_proj

    def forward(self):
        return self.block(self.x.unsqueeze(0))[0]


class Routed(Layer):
    """Softmax over the logits in fp32, the k best, renormalised."""

    def __init__(self, tensors, k, dtype):
        super().__init__(tensors, k, dtype)
        leaf = lambda name: tensors[name].to(dtype).clone().requires_grad_()
        self.router, self.w13, self.w2 = leaf("router"), leaf("w13"), leaf("w2")

    def leaves(self):
        return self.router, self.w13, self.w2

    def forward(self):
        scores = torch.nn.functional.linear(self.x, self.router).float().softmax(dim=-1)
        top, ids = scores.topk(self.k, dim=-1)
        return self.experts(ids, top / top.sum(dim=-1, keepdim=True))


class GroupedMM(Routed):
    """Tokens sorted by expert, three torch._grouped_mm, scores behind them; gate and up are weights of their own."""

    def __init__(self, tensors, k, dtype):
        super().__init__(tensors, k, dtype)
        self.w1, self.w3 = (half.detach().clone().requires_grad_() for half in self.w13.chunk(2, dim=1))
        self.w13 = None

    def leaves(self):
        return self.router, self.w1, self.w3, self.w2

    def gradients(self):
        return self.router.grad, torch.cat([self.w1.grad, self.w3.grad], dim=1), self.w2.grad

    def experts(self, ids, weights):
        experts, d = self.w2.shape[:2]
        order = ids.flatten().argsort(stable=True)
        rows = torch.histc(ids.flatten().float(), bins=experts, min=0, max=experts)
        ends = rows.cumsum(0).to(torch.int32)
        token = (order // self.k).unsqueeze(1).expand(-1, d)
        x = self.x.gather(0, token)
        product = lambda a, w: torch._grouped_mm(a, w.transpose(-2, -1), offs=ends)
        hidden = torch.nn.functional.silu(product(x, self.w1)) * product(x, self.w3)
        scaled = (product(hidden, self.w2).float() * weights.flatten()[order].unsqueeze(1)).to(self.x.dtype)
        return torch.zeros_like(self.x).scatter_add(0, token, scaled)


class Liger(Routed):
    """The fused experts of liger-kernel, which takes the routing and gives the weights' gradient in x's type."""

    def experts(self, ids, weights):
        from liger_kernel.ops.fused_moe import LigerFusedMoEFunction
        return LigerFusedMoEFunction.apply(self.x, self.w13, self.w2, ids.to(torch.int32), weights)


class Ours:
    """bench_moe_layer in a process of its own, which runs when asked."""

    def __init__(self, program, folder, tensors, k):
        save_file({name: tensor.cpu() for name, tensor in tensors.items()}, folder / "in.safetensors")
        out = folder / "out.safetensors"
        self.process = subprocess.Popen([program, folder / "in.safetensors", out, str(k), tensors["x"].device.type],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit(f"{program} failed")
        self.found = load_file(out)

    def results(self):
        return self.found

    def times(self, n):
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        return [float(t) for t in self.process.stdout.readline().split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def opponents(device):
    """Name and constructor of each; what is missing is said."""
    found = {name: lambda *args, name=name: Transformers(*args, name) for name in BACKENDS}
    found["torch._grouped_mm"] = GroupedMM
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


def compare(shape, load, others, program, rounds, iterations, device):
    dtype, tokens, d, f, experts, k = shape
    record = {"dtype": str(dtype).removeprefix("torch."), "T": tokens, "d": d, "F": f, "E": experts, "k": k,
              "load": load, "device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
    tensors = inputs(dtype, tokens, d, f, experts, load, device)
    reference = Transformers({n: t.float() for n, t in tensors.items()}, k, torch.float32, "eager").results()
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(program, Path(folder), tensors, k)
    record["errors"] = errors_of(ours.results(), reference)
    if not agrees(record["errors"], TOLERANCE[dtype]):
        ours.close()
        return record | {"status": "disagrees"}
    runners = {name: make(tensors, k, dtype) for name, make in others.items()}
    record["errors_of_peers"] = {name: errors_of(runner.results(), reference) for name, runner in runners.items()}
    del reference
    for name, found in record["errors_of_peers"].items():
        if not agrees(found, PEER_TOLERANCE[dtype]):
            del runners[name]
    record["warm_up"] = {name: runner.times(2)[1] for name, runner in runners.items()}
    fastest = min(record["warm_up"].values())
    # the fastest counts: the others need not take minutes
    record["left_out"] = [name for name, once in record["warm_up"].items() if once > 3 * fastest]
    runners = {"moelab": ours} | {name: r for name, r in runners.items() if name not in record["left_out"]}
    ours.times(2)
    times = {name: [] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            times[name] += runner.times(iterations)
    ours.close()
    medians = {name: statistics.median(t) for name, t in times.items()}
    best = min((name for name in medians if name != "moelab"), key=medians.get)
    return record | {"status": "ok", "milliseconds": times, "median": medians, "best_peer": best,
                     "ratio": medians[best] / medians["moelab"],
                     "gflops": 18 * tokens * k * d * f / medians["moelab"] / 1e6}


def show(record):
    name = "{dtype} T {T} d {d} F {F} E {E} k {k} {load}".format(**record)
    worst = max(record["errors"].values())
    if record["status"] != "ok":
        print(f"{name:53} results differ by {worst:.1e}: no times", flush=True)
        return
    m, once = record["median"], record["warm_up"]
    peers = [f"{p} {m[p]:8.1f}" if p in m else f"{p} (once) {once[p]:.0f}" if p in once else f"{p} (wrong results)"
             for p in record["errors_of_peers"]]
    print(f"{name:53} moelab {m['moelab']:8.1f} ms ({record['gflops']:5.0f} GFLOP/s)  {'  '.join(peers)}  "
          f"{record['ratio']:5.2f} x  error {worst:.0e}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/dev/bin/bench_moe_layer")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: its shapes, under every load")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=10, help="a round and side")
    parser.add_argument("--sweep", action="store_true", help="E from 4 to 256 at equal work, instead of the shapes")
    parser.add_argument("--out", help="append the records to this JSON-lines file")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no GPU on this machine")
    others = opponents(args.device)
    shapes = SWEEP if args.sweep else GPU_SHAPES if args.device == "cuda" else SHAPES
    print(f"{machine()}; {args.rounds} rounds of {args.iterations}, medians")
    for shape in shapes:
        for load in LOADS if args.device == "cuda" else LOADS[:1]:
            record = compare(shape, load, others, args.program, args.rounds, args.iterations, args.device)
            show(record)
            if args.out:
                write_record(args.out, "moe_layer", record)


if __name__ == "__main__":
    main()
