#!/usr/bin/env python3
"""What share of a training step is products, and what share of the machine's GEMM rate they reach.

perf samples every thread of `moelab train`, in the step of hf_mixtral.py, by the time it spends on a core; samples of
the first quarter of the steps and of what follows the last do not count. FLOPs and the GEMM rate are those of the
run's summary.json: the model's own arithmetic, and LibTorch's product of 1024 x 1024 matrices in the same process.

example: bench/peers/step_profile.py --program build/dev/bin/moelab --label before --out profiles.jsonl
"""
import argparse
import collections
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hf_mixtral import BATCH, OURS, SEQUENCE, steps_of
from peers import machine, write_record

FREQUENCY = 1999  # samples a second of each thread that is on a core
PRECISIONS = ("bf16", "fp32")
PRODUCTS, WAITING, KERNEL, IDLE = "products", "waiting for the other thread", "kernel: pages, files", "idle cores"
TENSORS = "at::Tensor const&"
# By what a symbol contains; the first that fits. Names in template arguments are those of callers: what all products
# are made of comes before what they are made for.
BY_SYMBOL = {name: re.compile(pattern) for name, pattern in {
    PRODUCTS: r"word_tile|word_columns|multiply_words|multiply_block|mkl_blas|gemm|dnnl::",
    "laying out operands": r"BlockedProducts|BlockedExpert|"
                           r"transpose_(mxn|block|rows|tile|words|word_block|half_block)|"
                           r"pack_(rows|transposed|vnni)|store_(block|transposed)",
    "SwiGLU": r"[Ss]wiglu",
    "attention's own": r"attention|online_softmax|softmax_backward|(forward|backward)_queries|(For|Back)wardScratch|"
                       r"\(anonymous namespace\)::store_rows",
    "optimizer": r"step_cpu|sum_of_squares|squared_norm|adamw|moelab::Optimizer",
    "routing, gather, scatter": r"scatter_add|gather_(rows|scales)|router|choose_for|balance_statistics|weigh_choices|"
                                r"scores_of_row|invert_routes|(dropless|capacity)_cpu|for_experts|"
                                r"(for|back)ward_cpu\(.*ExpertCall const&",
    "norms, rotary embedding": r"rms_norm|normalise_row|backward_row|rotate|"
                               rf"forward_cpu\({TENSORS}, {TENSORS}, double\)|"
                               rf"backward_cpu\(({TENSORS}, ){{3}}{TENSORS}\)",
    "loss": r"[Cc]ross_?[Ee]ntropy",
}.items()}
BY_LIBRARY = {"LibTorch, other": r"lib(torch|c10)", "C library": r"lib[cm]\.|ld-linux", "moelab, other": r"moelab"}
GROUPS = (*BY_SYMBOL, *BY_LIBRARY, "other", WAITING, KERNEL, IDLE)
# A line of perf script: thread, seconds, address, symbol, (file it lies in).
SAMPLE = re.compile(r"\s*\d+\s+([\d.]+):\s+[0-9a-f]+\s+(.*) \(([/\[][^()]*?)(?: \(deleted\))?\)$")


def group_of(symbol, file):
    """file: as perf names it. Code that was written at run time lies in none: it is oneDNN's."""
    name = file.split("/")[-1]
    if "kernel" in name and file.startswith("["):
        return KERNEL
    if name.startswith(("libgomp", "libiomp")):
        return WAITING
    if file.startswith(("//anon", "[anon")) or re.fullmatch(r"perf-\d+\.map|\[JIT\].*", name):
        return PRODUCTS
    found = (group for group, pattern in BY_SYMBOL.items() if pattern.search(symbol))
    return next(found, None) or next((group for group, pattern in BY_LIBRARY.items() if re.match(pattern, name)), "other")


def count_groups(lines, start, end):
    """Samples of each group from `start` to `end`, in seconds of perf's clock."""
    samples = (match.groups() for match in map(SAMPLE.match, lines) if match)
    return collections.Counter(group_of(symbol, file) for at, symbol, file in samples if start <= float(at) < end)


def figures(counts, seconds, milliseconds, summary):
    """What a record says: the program's commit, shares of cores x time, and rates beside the product's of the same run.

    counts: samples of each group in `seconds`; milliseconds: of the steps in them; summary: the run's."""
    cores, steps = summary["machine"]["threads"], len(milliseconds)
    places = max(cores * seconds * FREQUENCY, sum(counts.values()))
    groups = {group: counts[group] / places for group in GROUPS} | {IDLE: 1 - sum(counts.values()) / places}
    flops = summary["model_flops_per_token"] * BATCH * SEQUENCE
    gemm = summary["flops_per_second"] / summary["fraction_of_gemm_peak"]
    step_ms = statistics.median(milliseconds)
    busy = counts[PRODUCTS] / FREQUENCY / steps / cores  # seconds of a step, were all cores at products together
    return {"commit": summary["commit"], "cores": cores, "steps": steps, "samples": sum(counts.values()),
            "groups": groups, "step_ms": step_ms, "gflop": flops / 1e9, "gemm_gflops": gemm / 1e9,
            "step_of_gemm": flops / step_ms * 1e3 / gemm, "products_of_gemm": flops / busy / gemm}


def lines_of(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def steady_time(process, metrics, steps):
    """When the first quarter of the steps was over, and when the last was; None of what the run didn't reach."""
    found = []
    for wanted in (math.ceil(steps / 4), steps):
        while lines_of(metrics) < wanted and process.poll() is None:
            time.sleep(0.005)
        found.append(time.monotonic() if lines_of(metrics) >= wanted else None)
    return found


def profile(program, data, precision, steps):
    """One run under perf."""
    with tempfile.TemporaryDirectory() as folder:
        run, perf_data, told = Path(folder) / "run", f"{folder}/perf.data", Path(folder) / "told"
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(FREQUENCY), "-k", "CLOCK_MONOTONIC",
                  "-o", perf_data]
        train = [program, "train", *OURS, f"precision.compute={precision}", f"data.path={data}", f"train.steps={steps}",
                 f"run.dir={run}"]
        with open(told, "wb") as file:
            process = subprocess.Popen([*record, "--", *train], stdout=file, stderr=file)
            start, end = steady_time(process, run / "metrics.jsonl", steps)
            process.wait()
        if process.returncode != 0 or end is None:
            sys.exit(f"{' '.join(train)} under perf ended with {process.returncode}:\n{told.read_text()[-2000:]}")
        listed = subprocess.run(["perf", "script", "-i", perf_data, "-F", "tid,time,ip,sym,dso"], text=True, check=True,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        lines = steps_of(run)
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    milliseconds = [line["step_ms"] for line in lines[math.ceil(steps / 4):]]
    took = sum(milliseconds) / 1e3
    if abs(took - (end - start)) > 0.1 * (end - start):
        sys.exit(f"the steps took {took:.1f} s, seen from here {end - start:.1f} s: was this process stopped?")
    counts = count_groups(listed.splitlines(), start, end)
    if not counts[PRODUCTS]:
        sys.exit(f"no products in {sum(counts.values())} samples: has {program} its symbols, and may perf sample?")
    return figures(counts, end - start, milliseconds, summary)


def show(precision, found):
    print(f"{precision}: {found['step_ms']:.0f} ms a step, median of {found['steps']}; {found['samples']} samples")
    for group, share in sorted(found["groups"].items(), key=lambda item: -item[1]):
        print(f"  {group:29} {share:6.1%}")
    print(f"  {found['gflop']:.1f} GFLOP a step; LibTorch's product of 1024 x 1024: {found['gemm_gflops']:.0f} GFLOP/s")
    print(f"  the whole step at {found['step_of_gemm']:.0%} of that, its products at {found['products_of_gemm']:.0%}",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/dev/bin/moelab")
    parser.add_argument("--data", default="data/python-stdlib", help="folder of tokens (bytes)")
    parser.add_argument("--steps", type=int, default=40, help="of each run; the first quarter does not count")
    parser.add_argument("--label", default="", help="heads the columns of this build in the table, e.g. before")
    parser.add_argument("--out", help="append a record for each precision to this JSON-lines file")
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps: more than 1")
    if not shutil.which("perf"):
        sys.exit("perf is not installed (Debian: apt-get install linux-perf)")
    print(machine())
    for precision in PRECISIONS:
        found = profile(args.program, args.data, precision, args.steps)
        show(precision, found)
        if args.out:
            write_record(args.out, "step_profile", found["commit"],
                         {"label": args.label, "precision": precision, **found, "status": "ok"})


if __name__ == "__main__":
    main()
