"""Compiles every header alone, and twice in a row, with the flags of the sources beside it.

usage: check_headers.py BUILD/compile_commands.json

LibTorch's headers take seconds each. A header that includes one of the heavy ones, itself or through headers of this
project, is compiled with that one precompiled: it hides nothing.
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
HEAVY = ("ATen/ATen.h", "ATen/core/Tensor.h", "c10/core/Device.h")  # the heaviest first
# Whether a header compiles does not depend on these, and a precompiled header has one value of each.
INDIFFERENT = re.compile(r"-(O|fPI[CE]|fvisibility|U_FORTIFY|DNDEBUG)")
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
            elif word not in ("-MD", "-Winvalid-pch") and not INDIFFERENT.match(word):
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


def precompile(name: str, flags: list[str], folder: pathlib.Path) -> pathlib.Path:
    """A header that includes LibTorch's header of that name, precompiled beside it: the compiler takes it where the flags
    allow, and its text elsewhere or where it does not compile."""
    header = folder / name.replace("/", "_")
    header.write_text(f"#include <{name}>\n")
    subprocess.run([*flags, "-x", "c++-header", header, "-o", f"{header}.gch"], capture_output=True)
    return header


def compile_alone(header: pathlib.Path, flags: list[str], precompiled: pathlib.Path | None) -> str:
    """The compiler's complaints; empty when there are none."""
    forced = ["-include", precompiled] if precompiled else []
    unit = f'#include "{header}"\n#include "{header}"\n'
    done = subprocess.run([*flags, *forced, "-fsyntax-only", "-Werror", "-x", "c++", "-I.", "-"], input=unit,
                          capture_output=True, text=True)
    return f"{header} does not compile alone:\n{done.stderr}" if done.returncode else ""


def project_headers() -> list[pathlib.Path]:
    found = []
    for folder in FOLDERS:
        found += sorted(pathlib.Path(folder).rglob("*.h"))
    return found


def main() -> int:
    flags = compile_flags(pathlib.Path(sys.argv[1]))
    with_cuda = any("-DMOELAB_WITH_CUDA=1" in words for words in flags.values())
    headers: dict[pathlib.Path, str | None] = {}  # and the heaviest of LibTorch's that it includes
    for header in project_headers():
        outside = includes(header, set())
        if not with_cuda and any(CUDA.match(name) for name in outside):
            print(f"{header}: needs CUDA, which this build leaves out")
        else:
            headers[header] = next((name for name in HEAVY if name in outside), None)
    used = set(headers.values()) - {None}
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        made = {name: pool.submit(precompile, name, max(flags.values(), key=len), pathlib.Path(scratch)) for name in used}
        ready = {name: job.result() for name, job in made.items()}
        jobs = [pool.submit(compile_alone, header, flags_for(header, flags), ready.get(heavy))
                for header, heavy in headers.items()]
        complaints = [complaint for complaint in (job.result() for job in jobs) if complaint]
    print("\n".join(complaints) or f"{len(headers)} headers compile alone")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
