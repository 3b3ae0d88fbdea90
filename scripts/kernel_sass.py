#!/usr/bin/env python3
"""What nvcc made of the CUDA kernels, read in their machine code: widths of loads, tensor cores, calls in loops, local memory.

Compiles .cu files once more as a build's compile_commands.json says, for each architecture, disassembles them by nvdisasm (PyPI:
nvidia-cuda-nvdisasm) and writes a page. Exit code 1: a kernel that takes 16 bytes at a time by its template has no 128-bit load,
one that multiplies has no instructions of tensor cores or too few for its loads of fragments or for its waits, or one calls a function in a loop
without a reason here, or keeps something in local memory, which a spill does too.

Files that end in _sm90a.cu are compiled for that architecture alone.

example: scripts/kernel_sass.py --nvdisasm nvdisasm --only expert_rows.cu --only gathered_products.cu \\
             --only gathered_products_sm90a.cu --out results/kernel-sass.md
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "bench/peers"), str(ROOT / "scripts")]
from kernel_resources import demangled  # noqa: E402
from peers import commit_of_sources  # noqa: E402
from report.working import each  # noqa: E402

ARCHITECTURES = ("80", "86", "89", "90a", "100", "120")
LINE = re.compile(r"\.text\.(?P<kernel>[\w$]+):|(?P<label>[.$][\w$.]+):|"
                  r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?(?P<instruction>[A-Z][\w.]*)(?P<rest>[^;]*);")
TAKES_16_BYTES = re.compile(r"<int4>|, [48]>")  # Word, or the last argument: elements of a Pack

HOPPER_ALONE = "_sm90a.cu"  # ends a file's name
MULTIPLIES = ("rows_kernel<", "gated_rows_kernel<", "columns_kernel<")  # gathered_products.cu and gathered_products_sm90a.cu
# The machine code's names of instructions for tensor cores, and what they do.
TENSOR_CORE = {"HMMA": "products", "LDSM": "loads of fragments", "LDGSTS": "copies to shared memory",
               "HGMMA": "products of a warpgroup", "WARPGROUP": "fences and waits for them"}
NEEDED, NEEDED_ON_HOPPER = ("HMMA", "LDSM", "LDGSTS"), ("HGMMA", "WARPGROUP", "LDGSTS")
LEAST_PRODUCTS = 2.5  # for each load of fragments
LEAST_IN_FLIGHT = 1.5  # products for each fence or wait; where ptxas lets one wait for another, there is one at most

# Kernels that call a function in a loop, and which.
CALLS = {
    "gather_kernel": "a 64-bit division, once a row",
    "swiglu_kernel<float": "an exact fp32 division",
    "swiglu_backward_kernel<float": "an exact fp32 division",
}


class Kernel(NamedTuple):
    name: str  # mangled
    architecture: str
    loads: dict[int, int]  # of global memory: by bits
    calls_in_loops: int
    local: int  # instructions that read or write local memory
    tensor_core: dict[str, int] = {}  # instructions, by TENSOR_CORE
    file: str = ""


def bits_of(load: str) -> int:
    width = re.search(r"\.(128|64|[US]16|[US]8)(?:\.|$)", load)
    return int(width[1].lstrip("US")) if width else 32


def is_call(line: re.Match) -> bool:
    """Of a function: to a label of the kernel itself the compiler jumps by the same instruction, where the threads end."""
    return (line["instruction"] or "").startswith("CALL") and "`(.L" not in line["rest"]


def kernel_of(name: str, architecture: str, code: list[re.Match]) -> Kernel:
    """`code`: the lines behind the kernel's name. What lies behind a label that is no `.L` is a function that it calls."""
    own = code[:next((i for i, line in enumerate(code) if line["label"] and not line["label"].startswith(".L")), len(code))]
    labels = {line["label"]: i for i, line in enumerate(own) if line["label"]}
    loads: dict[int, int] = {}
    in_loop: set[int] = set()
    for i, line in enumerate(own):
        word = line["instruction"] or ""
        if word.startswith("LDG"):
            loads[bits_of(word)] = loads.get(bits_of(word), 0) + 1
        target = re.search(r"`\((\.L[\w$.]+)\)", line["rest"] or "") if word.startswith("BRA") else None
        if target and labels.get(target[1], i) < i - 1:  # behind the end of a kernel stands a branch to itself
            in_loop.update(range(labels[target[1]], i))
    calls = sum(is_call(own[i]) for i in in_loop)
    words = [(line["instruction"] or "").partition(".")[0] for line in own]
    tensor_core = {word: words.count(word) for word in TENSOR_CORE if word in words}
    local = sum((line["instruction"] or "").startswith(("LDL", "STL")) for line in code)
    return Kernel(name, architecture, loads, calls, local, tensor_core)


def kernels_in(text: str, architecture: str) -> list[Kernel]:
    """What nvdisasm says of a file."""
    lines = [found for found in LINE.finditer(text)]
    begins = [i for i, line in enumerate(lines) if line["kernel"]]
    return [kernel_of(lines[begin]["kernel"], architecture, lines[begin + 1:end])
            for begin, end in zip(begins, [*begins[1:], len(lines)])]


def disassembled(nvdisasm: str, entry: dict, architecture: str) -> list[Kernel]:
    words = [word for word in shlex.split(entry["command"]) if not word.startswith("--generate-code")]
    with tempfile.TemporaryDirectory() as scratch:
        words[words.index("-o") + 1] = f"{scratch}/kernel.cubin"
        words[words.index("-c")] = "-cubin"
        for command in ([*words, f"-arch=sm_{architecture}"], [nvdisasm, f"{scratch}/kernel.cubin"]):
            done = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                sys.exit(f"kernel_sass: {entry['file']} for sm_{architecture}: {done.stderr[-1000:]}")
    return [kernel._replace(file=pathlib.Path(entry["file"]).name) for kernel in kernels_in(done.stdout, architecture)]


def wrong_with(kernel: Kernel, name: str) -> list[str]:
    wrong = []
    if TAKES_16_BYTES.search(name) and 128 not in kernel.loads:
        wrong.append("no 128-bit load")
    if name.startswith(MULTIPLIES):
        on_hopper = kernel.file.endswith(HOPPER_ALONE)
        needed, least, what = (NEEDED_ON_HOPPER, LEAST_IN_FLIGHT, "fences and waits") if on_hopper else \
                              (NEEDED, LEAST_PRODUCTS, "loads of fragments")
        counts = [kernel.tensor_core.get(word, 0) for word in needed]
        wrong += [f"no {word}" for word, count in zip(needed, counts) if count == 0]
        if counts[0] < least * counts[1]:
            wrong.append(f"{counts[0]} products for {counts[1]} {what}")
    if kernel.calls_in_loops and not name.startswith(tuple(CALLS)):
        wrong.append(f"{kernel.calls_in_loops} calls in loops")
    if kernel.local:
        wrong.append("local memory")
    return wrong


def cell(kernel: Kernel, name: str) -> str:
    reason = next((f"calls {why}" for start, why in CALLS.items() if kernel.calls_in_loops and name.startswith(start)), None)
    loads = ", ".join(f"{count} × {bits}" for bits, count in sorted(kernel.loads.items(), reverse=True)) or "none"
    used = ", ".join(f"{count} {word}" for word, count in kernel.tensor_core.items())
    return "; ".join([loads, *([used] if used else []), *([reason] if reason else []), *(f"**{text}**" for text in wrong_with(kernel, name))])


def page(kernels: list[Kernel], command: str) -> str:
    names = demangled(sorted({kernel.name for kernel in kernels}))
    architectures = [name for name in ARCHITECTURES if any(kernel.architecture == name for kernel in kernels)]
    by_key = {(kernel.file, names[kernel.name], kernel.architecture): kernel for kernel in kernels}
    wrong = sum(bool(wrong_with(kernel, names[kernel.name])) for kernel in kernels)
    lines = ["# The kernels' machine code", "",
             "nvcc's machine code, disassembled; nothing was run. Each cell counts loads of global memory by their bits. A kernel whose "
             "template takes 16 bytes at a time must have loads of 128 bits. One that multiplies on tensor cores must have their "
             f"instructions ({', '.join(f'{word}: {what}' for word, what in TENSOR_CORE.items())}): {', '.join(NEEDED)}, with at least "
             f"{LEAST_PRODUCTS} products for each load of fragments, or in a file for Hopper alone {', '.join(NEEDED_ON_HOPPER)}, with "
             f"at least {LEAST_IN_FLIGHT} products for each fence or wait. None may use local memory, or call a function in a loop without "
             "a reason given here.", "",
             f"Read were {len(kernels)} kernels, each for an architecture; {wrong} do not keep to that. "
             f"Commit {commit_of_sources(ROOT)}; made by", "",
             "```", command, "```", "",
             "| file | kernel | " + " | ".join(f"sm_{name}" for name in architectures) + " |", "| --- | --- |" + " --- |" * len(architectures)]
    for file, name in sorted({(file, name) for file, name, _ in by_key}):
        cells = (cell(by_key[file, name, architecture], name) if (file, name, architecture) in by_key else "–" for architecture in architectures)
        lines.append(f"| {file} | `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/ci", help="a build folder; default: build/ci")
    parser.add_argument("--nvdisasm", default="nvdisasm", help="the program; default: from PATH")
    parser.add_argument("--only", action="append", help="a file's name; may be given several times; default: all")
    parser.add_argument("--architecture", action="append", choices=ARCHITECTURES, help="may be given several times; default: all")
    parser.add_argument("--out", type=pathlib.Path, help="write the page to this file, too")
    arguments = parser.parse_args()
    entries = {pathlib.Path(entry["file"]).name: entry for entry in json.loads((arguments.build / "compile_commands.json").read_text())
               if entry["file"].endswith(".cu") and "/kernels/" in entry["file"] and "/bench/" not in entry["file"]}
    if unknown := [name for name in arguments.only or [] if name not in entries]:
        parser.error(f"--only {unknown[0]}: {arguments.build} compiles no such file; there are {', '.join(sorted(entries))}")
    entries = [entries[name] for name in arguments.only or entries]
    if not entries:
        parser.error(f"--build {arguments.build}: no .cu file in its compile_commands.json")
    tasks = [(entry, architecture) for entry in entries for architecture in arguments.architecture or ARCHITECTURES
             if architecture == "90a" or not entry["file"].endswith(HOPPER_ALONE)]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = pool.map(lambda task: disassembled(arguments.nvdisasm, *task), tasks)
        kernels = [kernel for of_file in each("kernel_sass: compiling file", found, len(tasks)) for kernel in of_file]
    words = [f"--{option} {value}" for option in ("only", "architecture") for value in getattr(arguments, option) or []]
    text = page(kernels, " ".join(["scripts/kernel_sass.py", *words, *([f"--out {arguments.out}"] if arguments.out else [])]))
    print(text, end="")
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    names = demangled(sorted({kernel.name for kernel in kernels}))
    sys.exit(any(wrong_with(kernel, names[kernel.name]) for kernel in kernels))


if __name__ == "__main__":
    main()
