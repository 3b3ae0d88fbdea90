#!/usr/bin/env python3
"""What the CUDA kernels of an operator move, beside the least that it can: counted on the emulated GPU, not timed.

Runs a build's kernel_traffic (tests/emulator), adds a record for each operator to a store and writes the page beside it.

example: scripts/kernel_traffic.py --build build/ci --store results/kernel-traffic.jsonl
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "bench/peers"))
from peers import commit_of_sources, write_record  # noqa: E402

MOST = 1.05  # times the least: memory traffic, and sectors of requests
# Operators that move more than that, and why.
OVER = {
    "invert_routes": "the routes are filled with -1 first, then written in the order of rows",
    "gather_scales": "a scale is read from wherever its row is",
    "multiply_rows": "a request writes 16 bytes of each of eight rows",
    "multiply_columns": "a request writes 16 bytes of each of eight rows",
    "multiply_rows_on_hopper": "a request writes 16 bytes of each of eight rows",
    "multiply_columns_on_hopper": "a request writes 16 bytes of each of eight rows",
    "dropless_routes": "the ids are read twice: to count, and to place",
    "router_forward": "the balance loss reads the logits again, and its sums are doubles, which are large beside so few tokens",
    "rms_norm_forward": "the fp32 weights of a thread's eight elements are two words, and so two requests",
    "rms_norm_backward": "each block writes its part of the weight's gradient; here a part has four rows",
    "fp8_codes_of_columns": "the factor is read twice: for its scales, and for its codes",
    "rope": "the fp32 angles of a thread's eight elements are two words, and so two requests",
    "cross_entropy_chunk": "the logits are read once for their sum and once for their gradient",
    "adafactor": "the gradient is read four times: for rows, columns, the size of the step, and the step",
    "adam8bit": "a magnitude's bin is looked up wherever it is",
}


def counted(program: pathlib.Path) -> list[dict]:
    said = subprocess.run([program], env=os.environ | {"MOELAB_EMULATOR_RACES": "0"}, capture_output=True, text=True, check=True).stdout
    return [ratios(json.loads(line)) for line in said.splitlines()]


def ratios(one: dict) -> dict:
    """With what the counts mean: times the least, and passes of shared memory for each request."""
    return one | {"memory": one["memory_bytes"] / one["least_bytes"], "l2": one["l2_bytes"] / one["least_bytes"],
                  "request": one["sectors"] / one["least_sectors"],
                  "passes": one["shared_passes"] / one["shared_requests"] if one["shared_requests"] else None}


def holds(one: dict) -> bool:
    return one["memory"] <= MOST and one["request"] <= MOST


def page(records: list[dict]) -> str:
    last = {record["operator"]: record for record in records}.values()
    commits = sorted({record["commit"] for record in last})
    lines = ["# What the kernels move", "",
             "**Counted on the emulated GPU**; nothing here is a time. The least is every input read "
             "once and every output written once. Beside it, in multiples:", "",
             "- memory: sectors of 32 bytes, once a launch, as if the L2 cache kept all",
             "- L2: sectors once a block, as if the L1 cache kept what a block touches",
             "- request: sectors that a warp's requests touch, beside those that could hold the same bytes",
             "- passes: of shared memory for each request; more than one is a bank conflict. Atomic operations are not counted", "",
             f"{sum(map(holds, last))} of {len(last)} operators stay within {MOST} of the least in memory and requests. "
             f"Commit {', '.join(commits)}; made by `scripts/kernel_traffic.py --store results/kernel-traffic.jsonl`.", "",
             "| operator | file | counted on | least bytes | memory | L2 | request | passes | over, because |",
             "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"]
    for one in last:
        over = OVER.get(one["operator"], "")
        passes = "–" if one["passes"] is None else f"{one['passes']:.2f}"
        lines.append(f"| `{one['operator']}` | {one['source']} | {one['shape']} | {one['least_bytes']:,} | {one['memory']:.2f} | "
                     f"{one['l2']:.2f} | {one['request']:.2f} | {passes} | {over} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/ci", help="a build folder with tests; default: build/ci")
    parser.add_argument("--store", type=pathlib.Path, required=True, help="file that records are added to; the .md beside it is made from it")
    arguments = parser.parse_args()
    program = arguments.build / "tests/emulator/kernel_traffic"
    if not program.exists():
        parser.error(f"{program} does not exist: it is built where nvcc is found, with the tests")
    sources = commit_of_sources(ROOT)
    for one in counted(program):
        write_record(arguments.store, "kernel_traffic", sources, one)
    records = [json.loads(line) for line in arguments.store.read_text(encoding="utf-8").splitlines()]
    arguments.store.with_suffix(".md").write_text(page(records), encoding="utf-8")


if __name__ == "__main__":
    main()
