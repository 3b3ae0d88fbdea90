#!/usr/bin/env python3
"""A training step of moe-micro beside PyTorch models of the same shape, in turns.

Opponents are `transformers`' Mixtral with each of its expert backends, and padded, a hand-written MoE transformer
(padded_moe.py). Each runs plain, compiled by torch.compile, and compiled with max-autotune; in fp32, and in bf16 by
autocast; with PyTorch's fused AdamW. The fastest counts, and ratios are of the same round.

Every side starts with the same weights. Before times are taken, all compute the loss of the same batch: where ours
disagrees nothing is measured, and an opponent that disagrees, fails or takes too long is left out with the reason.
After the first round only the fastest opponents of each precision go on.

torch.compile needs a C++ compiler and Python's headers (Debian: g++ python3-dev).

Each measurement is a process of its own. Steps that compile are warm-up. Peak memory is the kernel's, once of the whole
process and once of the steps after warm-up. torch.compile's cache is empty in the first round.

The rate of our fp32 product beside LibTorch's at the experts' shapes is measured in each round too (products.cpp).

To measure an AVX2 CPU's speed on a better one, set ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
MKL_ENABLE_INSTRUCTIONS=AVX2 and give a program that was built for x86-64-v3; torch.compile is held to AVX2 as well.

example: bench/peers/hf_mixtral.py --moelab build/dev/bin/moelab --rounds 3
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from peers import (BACKENDS, commit_of, machine, plays_avx2, reset_peak, resident_peak, write_avx2_compiler,
                   write_record)

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
from report import step_figures  # noqa: E402
from report.step_figures import BATCH, PRECISIONS, SEQUENCE, VOCAB, WARM_UP  # noqa: E402

# Losses of one batch, relative. fp32: sums of 2048 terms in another order; bf16: roundings of 2^-9 that average out.
TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3}
LIMIT = 300  # seconds of one process
GO_ON = 3  # opponents of each precision after the first round
SLOW = 1 / 4  # of fp32's rate: bf16 products below it are emulated, and their opponents are left out
# A training run of nothing but steps, every token to its experts; measured by its metrics.jsonl.
TRAIN = ["--config", "moe-micro", "--device", "cpu", "model.dispatch=dropless", "eval.batches=0", "checkpoint.keep=0",
         "monitor.quiet=true", "run.log_every=0"]
# Both sides: the same clipping and update, no auxiliary losses.
OURS = [*TRAIN, "model.balance_loss=0", "model.z_loss=0", f"train.micro_batch={BATCH}", f"train.sequence={SEQUENCE}"]
REFERENCE = "Mixtral eager fp32"  # its loss is the common batch's


def peer_config():
    from transformers import MixtralConfig
    return MixtralConfig(vocab_size=VOCAB, hidden_size=384, intermediate_size=1024, num_hidden_layers=6,
                         num_attention_heads=6, num_key_value_heads=6, num_local_experts=4, num_experts_per_tok=2,
                         max_position_embeddings=SEQUENCE, rms_norm_eps=1e-5, tie_word_embeddings=True,
                         rope_theta=10000.0, sliding_window=None, router_aux_loss_coef=0.0, use_cache=False)


class Failed(SystemExit):
    """A process that failed or took too long; ends the program unless it is caught."""


def measured(command, environment=None, watch=lambda process: None):
    """Runs a command to its end: its standard output and its peak resident memory in bytes.

    watch(process) is called once it runs. The peak is at least this process's own memory when it started the other."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=errors, text=True, env=environment)
        limit = threading.Timer(LIMIT, process.kill)
        limit.start()
        watch(process)
        _, status, usage = os.wait4(process.pid, 0)
        late = not limit.is_alive()
        limit.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            why = f"not done after {LIMIT} s" if late else errors.read()[-20000:]
            raise Failed(f"{' '.join(map(str, command))}\nended with {process.returncode}:\n{why}")
        out.seek(0)
        return out.read(), usage.ru_maxrss * 1024


def steps_of(run):
    """The lines of a training run's metrics.jsonl that are of steps."""
    lines = map(json.loads, (Path(run) / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line.get("step_ms")]


class Peaks:
    """Watches a training run: its peak resident memory up to the end of warm-up, and since."""

    def __init__(self, run):
        self.metrics, self.first, self.steady = Path(run) / "metrics.jsonl", 0, 0

    def __call__(self, process):
        warm = False
        while (peak := resident_peak(process.pid)) is not None:
            if warm:
                self.steady = peak
            elif self.metrics.exists() and self.metrics.read_bytes().count(b"\n") >= WARM_UP:
                self.first, warm = peak, True
                reset_peak(process.pid)
            time.sleep(0.01)


class Ours:
    def __init__(self, program, precision):
        self.name, self.program, self.precision = f"moelab {precision}", program, precision

    def run(self, folder, data, steps):
        with tempfile.TemporaryDirectory() as scratch:
            peaks = Peaks(f"{scratch}/run")
            measured([self.program, "train", *OURS, f"precision.compute={self.precision}",
                      f"train.init={folder}/model", f"data.path={data}", f"train.steps={steps}",
                      f"run.dir={scratch}/run"], watch=peaks)
            lines = steps_of(f"{scratch}/run")
        return {"losses": [line["loss"] for line in lines], "milliseconds": [line["step_ms"] for line in lines],
                "rss": max(peaks.first, peaks.steady), "steady_rss": peaks.steady}


class Peer:
    """step_peer.py in a process of its own; torch.compile's cache is the side's own."""

    def __init__(self, model, mode, precision):
        self.model, self.mode, self.precision = model, mode, precision
        title = model if model == "padded" else f"Mixtral {model}"
        self.name = " ".join([title, *([mode] if mode != "plain" else []), precision])

    def run(self, folder, data, steps):
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache/{self.name.replace(' ', '-')}"}
        if plays_avx2():
            environment["CXX"] = str(write_avx2_compiler(folder))
        out, _ = measured([sys.executable, Path(__file__).with_name("step_peer.py"), self.model, self.mode,
                           self.precision, folder, data, steps], environment)
        found = json.loads(out.splitlines()[-1])
        return found | {"rss": max(found["first_rss"], found["steady_rss"])}


def one_batch(data, folder):
    """A dataset of exactly one batch, so that the order of its windows does not matter."""
    folder.mkdir()
    whole = (Path(data) / "train.bin").read_bytes()[:(BATCH * SEQUENCE + 1) * 2]
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(whole)
    for name in ("meta.json", "tokenizer.json"):
        (folder / name).write_bytes((Path(data) / name).read_bytes())
    return folder


def disagreement(side, loss, reference):
    """Why a side's loss of the common batch is not the reference; empty where they agree."""
    if abs(loss - reference) / reference <= TOLERANCE[side.precision]:
        return ""
    return f"loss {loss:.7f} on the common batch, not {reference:.7f}"


def check(sides, folder, batch):
    """The losses of the common batch of our sides and of the reference; stops where they disagree. Every opponent's
    first step is on that batch too: Rounds compares its loss."""
    reference = Peer("eager", "plain", "fp32").run(folder, batch, 1)["losses"][0]
    losses = {REFERENCE: reference}
    for side in sides:
        losses[side.name] = side.run(folder, batch, 1)["losses"][0]
        if why := disagreement(side, losses[side.name], reference):
            sys.exit(f"{side.name}: {why}")
    return losses


class Rounds:
    """Runs of every side, round by round, and why a side has none."""

    def __init__(self, sides, reference, skipped):
        self.sides, self.reference, self.skipped = sides, reference, dict(skipped)
        self.runs = {side.name: [] for side in sides}

    def add(self, folder, data, steps):
        for side in list(self.sides):
            print(f"  round {len(self.runs[side.name]) + 1}: {side.name}", file=sys.stderr, flush=True)
            try:
                run = side.run(folder, data, steps)
            except Failed as error:
                self.leave_out(side, reason_of(error))
                continue
            # ours takes its batches in another order
            why = "" if isinstance(side, Ours) else disagreement(side, run["losses"][0], self.reference)
            if why:
                self.leave_out(side, why)
            else:
                self.runs[side.name].append(run)

    def leave_out(self, side, why):
        print(f"  {side.name} is left out: {why}", file=sys.stderr, flush=True)
        self.sides.remove(side)
        del self.runs[side.name]
        self.skipped[side.name] = why

    def keep_fastest(self):
        """Only the fastest opponents of each precision go on; the others' first round stays."""
        rate = {name: found[-1] for name, found in step_figures.by_round(self.runs).items()}
        for precision in PRECISIONS:
            peers = [side for side in self.sides if isinstance(side, Peer) and side.precision == precision]
            for side in sorted(peers, key=lambda side: -rate[side.name])[GO_ON:]:
                self.sides.remove(side)


def reason_of(error):
    """The line that says why a process failed: a compiler's error, the last exception, or the last line."""
    lines = str(error).strip().splitlines()
    found = [next((line for line in reversed(lines) if re.search(pattern, line)), None)
             for pattern in (r"fatal error: ", r"^[\w.]*(Error|Exception): ", r"")]
    return next(line for line in found if line)[:300]


def write_models(folder):
    """Writes every side's weights; the rates of LibTorch's products here in GFLOP/s, by precision."""
    script = "import hf_mixtral, step_peer, sys; step_peer.write_models(sys.argv[1], hf_mixtral.peer_config())"
    out = subprocess.run([sys.executable, "-c", script, folder], check=True, stdout=subprocess.PIPE, text=True,
                         env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)}).stdout
    return json.loads(out.splitlines()[-1])


def opponents(precisions, rates):
    """Those that take part, and the reason for each that does not."""
    every = [Peer(model, mode, precision) for precision in precisions for model in (*BACKENDS, "padded")
             for mode in ("plain", "compiled", "max-autotune")]
    if rates["bf16"] >= SLOW * rates["fp32"]:
        return every, {}
    why = f"LibTorch's bf16 product makes {rates['bf16']:.1f} GFLOP/s here, its fp32 product {rates['fp32']:.0f}"
    return ([side for side in every if side.precision != "bf16"],
            {side.name: why for side in every if side.precision == "bf16"})


def products(moelab):
    """Times of our fp32 product and LibTorch's, by shape."""
    return json.loads(measured([Path(moelab).with_name("bench_products")])[0])


def compare(args):
    """A record of all rounds."""
    with tempfile.TemporaryDirectory() as folder:
        rates = write_models(folder)
        ours = [Ours(args.moelab, precision) for precision in args.precision]
        peers, skipped = opponents(args.precision, rates)
        losses = check(ours, folder, one_batch(args.data, Path(folder) / "batch"))
        print(f"{machine()}\nloss of one batch {losses[REFERENCE]:.6f}", flush=True)
        rounds, found = Rounds(ours + peers, losses[REFERENCE], skipped), []
        for number in range(args.rounds):
            found.append(products(args.moelab))
            rounds.add(folder, args.data, args.steps)
            if number == 0:
                rounds.keep_fastest()
    return {"losses": losses, "gemm_gflops": rates, "runs": rounds.runs, "skipped": rounds.skipped, "products": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moelab", default="build/dev/bin/moelab", help="the program, bench_products beside it")
    parser.add_argument("--data", default="data/python-stdlib", help="folder of tokens (bytes)")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), help="of both sides")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help=f"of each process; the first {WARM_UP} are warm-up")
    parser.add_argument("--out", help="append the record to this JSON-lines file")
    args = parser.parse_args()
    if args.steps <= WARM_UP:
        parser.error(f"--steps: more than {WARM_UP}")
    show(compare(args), commit_of(args.moelab), args.out)


def show(record, commit, out):
    record = record | step_figures.figures(record["runs"])
    for name, row in sorted(record["table"].items(), key=lambda item: -item[1]["tokens_per_second"]):
        print(f"{name:34} {row['tokens_per_second']:7.0f} tokens/s ({row['slowest']:.0f} to {row['fastest']:.0f})  compiled "
              f"in {row['compile_seconds']:3.0f} s  peak after warm-up {row['steady_rss'] / 2**20:6.0f} MiB, of all "
              f"{row['peak_rss'] / 2**20:6.0f} MiB")
    for name, why in record["skipped"].items():
        print(f"{name:34} left out: {why}")
    for pair in [record, *record["by_precision"].values()]:
        rounds = step_figures.ratios(record["runs"], pair["ours"], pair["best_peer"])
        print(f"{pair['ours']} beside {pair['best_peer']} of the same round: {pair['speed']:.2f} x its tokens/s "
              f"({min(rounds):.2f} to {max(rounds):.2f} in {len(rounds)} rounds), {pair['memory']:.2f} x its peak "
              "resident memory after warm-up")
    found = step_figures.product_ratios(record["products"])
    print(f"r = {statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f}): our fp32 product's rate over "
          "LibTorch's at the experts' shapes")
    if out:
        write_record(out, "mixtral_step", commit, {**record, "status": "ok"})


if __name__ == "__main__":
    main()
