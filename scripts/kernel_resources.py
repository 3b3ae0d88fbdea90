#!/usr/bin/env python3
"""Registers, stack and spills of every CUDA kernel, for each architecture of a build.

Compiles the build's .cu files once more as its compile_commands.json says, asks ptxas for what each kernel takes and
writes a table: a row a kernel, a column an architecture. Exit code 1: a kernel spills registers to memory.

example: scripts/kernel_resources.py --build build/release --out results/kernel-resources.md
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

from report.working import each


class Kernel(NamedTuple):
    name: str  # mangled
    architecture: str
    registers: int
    stack: int  # bytes, as the spills
    spill_stores: int
    spill_loads: int
    shared: int
    file: str = ""

    def spills(self) -> bool:
        return self.spill_stores + self.spill_loads > 0


ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(sm_\w+)'(.*?)Used (\d+) registers([^\n]*)", re.DOTALL)
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
SHARED = re.compile(r"(\d+) bytes smem")


def kernels_in(text: str) -> list[Kernel]:
    """What `ptxas -v` says. A function that is not inlined has a frame of its own in the same entry: all add up."""
    found = []
    for name, architecture, between, registers, rest in ENTRY.findall(text):
        stack, stores, loads = (sum(map(int, column)) for column in zip(*FRAME.findall(between)))
        shared = SHARED.search(rest)
        found.append(Kernel(name, architecture, int(registers), stack, stores, loads, int(shared[1]) if shared else 0))
    return found


def compile_one(entry: dict) -> list[Kernel]:
    words = shlex.split(entry["command"])
    with tempfile.TemporaryDirectory() as scratch:
        words[words.index("-o") + 1] = f"{scratch}/kernel.o"
        launcher = ["ccache"] if shutil.which("ccache") else []
        done = subprocess.run([*launcher, *words, "-Xptxas=-v"], cwd=entry["directory"], capture_output=True, text=True,
                              check=False)
    if done.returncode != 0:
        sys.exit(f"kernel_resources: {entry['file']}: {done.stderr[-1000:]}")
    return [kernel._replace(file=pathlib.Path(entry["file"]).name) for kernel in kernels_in(done.stderr)]


def demangled(names: list[str]) -> dict[str, str]:
    out = subprocess.run(["c++filt", "-p", *names], capture_output=True, text=True, check=True).stdout.splitlines()
    short = [re.sub(r"^void |moelab::cuda::|\(anonymous namespace\)::", "", name) for name in out]
    return dict(zip(names, short))


def cell(kernel: Kernel | None) -> str:
    if kernel is None:
        return "–"
    parts = [f"{kernel.registers}"]
    if kernel.stack:
        parts.append(f"{kernel.stack} B stack")
    if kernel.spills():
        parts.append(f"{kernel.spill_stores} B stored, {kernel.spill_loads} B loaded")
    return "; ".join(parts)


def table(kernels: list[Kernel]) -> str:
    architectures = sorted({k.architecture for k in kernels}, key=lambda name: int(re.sub(r"\D", "", name)))
    names = demangled(sorted({k.name for k in kernels}))
    by_key = {(k.file, names[k.name], k.architecture): k for k in kernels}
    lines = ["| file | kernel: registers a thread | " + " | ".join(architectures) + " | shared memory |",
             "| --- | --- |" + " ---: |" * (len(architectures) + 1)]
    for file, name in sorted({(file, name) for file, name, _ in by_key}):
        row = [by_key.get((file, name, architecture)) for architecture in architectures]
        shared = max(k.shared for k in row if k)
        lines.append(f"| {file} | `{name}` | " + " | ".join(map(cell, row)) + f" | {shared} B |")
    spilling = sum(k.spills() for k in kernels)
    return "\n".join(lines) + f"\n\n{len(kernels)} kernels, {spilling} of them spill registers.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a build folder")
    parser.add_argument("--out", type=pathlib.Path, help="write the table to this file, too")
    arguments = parser.parse_args()
    commands = arguments.build / "compile_commands.json"
    if not commands.is_file():
        parser.error(f"--build {arguments.build}: no compile_commands.json in it")
    sources = [entry for entry in json.loads(commands.read_text()) if entry["file"].endswith(".cu")
               and pathlib.Path(entry["file"]).parts[-3:-1] != ("bench", "kernels")]  # what ours are measured beside
    if not sources:
        parser.error(f"--build {arguments.build}: built without CUDA")
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = each("kernel_resources: compiling file", pool.map(compile_one, sources), len(sources))
        kernels = [kernel for of_file in found for kernel in of_file]
    text = table(kernels)
    print(text, end="")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text, encoding="utf-8")
    sys.exit(any(kernel.spills() for kernel in kernels))


if __name__ == "__main__":
    main()
