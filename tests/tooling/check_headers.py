"""Compiles every header alone, and twice in a row, with the flags of the sources beside it.

usage: check_headers.py BUILD/compile_commands.json

LibTorch's headers take seconds each. Headers that include exactly the same ones of LibTorch, themselves or
through headers of this project, therefore share a precompiled header made of just those: it hides nothing.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

FOLDERS = ("kernels", "moe", "train", "bench", "tests")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
LIBTORCH = re.compile(r"(ATen|c10|torch|caffe2)/")
CUDA = re.compile(r"(cuda|cub|thrust|nccl|cudnn)[\w/.]*\.(h|cuh|hpp)")


def includes(header: pathlib.Path, seen: set[pathlib.Path]) -> set[str]:
    """What a header includes from outside of this project, through this project's headers as well."""
    found = set()
    seen.add(header)
    for quote, name in INCLUDE.findall(header.read_text()):
        if quote == "<":
            found.add(name)
        else:
            inner = pathlib.Path(name) if pathlib.Path(name).exists() else header.parent / name
            if inner.exists() and inner not in seen:
                found |= includes(inner, seen)
            elif not inner.exists():
                found.add(name)
    return found


def compile_flags(commands: pathlib.Path) -> dict[pathlib.Path, list[str]]:
    """Compiler and flags of each folder's C++ sources, without input, output and forced includes."""
    flags = {}
    root = pathlib.Path.cwd()
    for entry in json.loads(commands.read_text()):
        source = pathlib.Path(entry["file"])
        if source.suffix != ".cpp" or not source.is_relative_to(root):
            continue
        words = shlex.split(entry["command"])
        compiler = next(i for i, word in enumerate(words) if re.search(r"(\+\+|cc|clang)(-[\d.]+)?$", word)
                        and "ccache" not in word)
        kept, skip = [], 0
        for word in words[compiler:]:
            if skip:
                skip -= 1
            elif word in ("-o", "-include", "-MF", "-MT", "-MQ", "-c"):
                skip = 1
            elif word not in ("-MD", "-Winvalid-pch"):
                kept.append(word)
        folder = source.parent.relative_to(root)
        if len(kept) > len(flags.get(folder, [])):  # the target that sees most
            flags[folder] = kept
    return flags


def flags_for(header: pathlib.Path, flags: dict[pathlib.Path, list[str]]) -> list[str]:
    for folder in header.parents:
        if folder in flags:
            return flags[folder]
    return max(flags.values(), key=len)


def compile_alone(header: pathlib.Path, flags: list[str], precompiled: pathlib.Path | None) -> str:
    """The compiler's complaints; empty when there are none."""
    forced = ["-include", str(precompiled)] if precompiled else []
    unit = f'#include "{header}"\n#include "{header}"\n'
    done = subprocess.run([*flags, *forced, "-fsyntax-only", "-Werror", "-x", "c++", "-I.", "-"], input=unit,
                          capture_output=True, text=True)
    return f"{header} does not compile alone:\n{done.stderr}" if done.returncode else ""


def check_group(libtorch: list[str], headers: list[pathlib.Path], flags: list[str],
                scratch: pathlib.Path) -> list[str]:
    """Complaints about headers that include the same ones of LibTorch. Leaves nothing in scratch."""
    precompiled = None
    if libtorch and len(headers) > 1:
        precompiled = scratch / "libtorch.h"
        precompiled.write_text("".join(f"#include <{name}>\n" for name in libtorch))
        made = subprocess.run([*flags, "-x", "c++-header", str(precompiled), "-o", f"{precompiled}.gch"],
                              capture_output=True, text=True)
        if made.returncode:
            precompiled = None  # a header that is missing: compiled one by one, the complaint names its place
    complaints = [compile_alone(header, flags, precompiled) for header in headers]
    for file in scratch.iterdir():  # hundreds of megabytes
        file.unlink()
    return [complaint for complaint in complaints if complaint]


def project_headers() -> list[pathlib.Path]:
    found = []
    for folder in FOLDERS:
        found += sorted(pathlib.Path(folder).rglob("*.h"))
    return found


def main() -> int:
    flags = compile_flags(pathlib.Path(sys.argv[1]))
    with_cuda = any("-DMOELAB_WITH_CUDA=1" in words for words in flags.values())
    groups: dict[tuple, list[pathlib.Path]] = {}
    for header in project_headers():
        outside = includes(header, set())
        if not with_cuda and any(CUDA.match(name) for name in outside):
            print(f"{header}: needs CUDA, which this build leaves out")
            continue
        # What the vector headers mean depends on macros that are set before them.
        libtorch = sorted(name for name in outside if LIBTORCH.match(name) and "/cpu/vec/" not in name)
        words = flags_for(header, flags)
        # Sources of one folder differ from the next one's in flags that a precompiled header doesn't mind.
        groups.setdefault((tuple(libtorch), tuple(words)), []).append(header)
    complaints = []
    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    with tempfile.TemporaryDirectory() as scratch, pool:
        jobs = []
        for number, ((libtorch, words), headers) in enumerate(groups.items()):
            folder = pathlib.Path(scratch) / str(number)
            folder.mkdir()
            jobs.append(pool.submit(check_group, list(libtorch), headers, list(words), folder))
        for job in jobs:
            complaints += job.result()
    print("\n".join(complaints) or f"{sum(map(len, groups.values()))} headers compile alone")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
