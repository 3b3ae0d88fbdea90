"""Compiles what the build does not: every header alone and twice in a row, every source alone that the build compiles in a group
(CMAKE_UNITY_BUILD), and the quick preset's other groups, whose sources must not define the same name. A source begins with its own
header, which is then alone, too.

usage: check_compiles.py BUILD

Each with the flags of its build, as far as its text goes: the compiler stops there, before it instantiates LibTorch's templates,
which would take most of its time. LibTorch's headers take seconds each, too. What includes one of the heavy ones, itself or through
headers of this project, is compiled with that one precompiled, and with no other: it hides nothing.
"""
import concurrent.futures
import dataclasses
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
# Whether a text compiles does not depend on these, and a precompiled header has one value of each.
INDIFFERENT = re.compile(r"-(O|g|fPI[CE]|fvisibility|U_FORTIFY|DNDEBUG)")
CUDA = re.compile(r"(cuda|cub|thrust|nccl|cudnn)[\w/.]*\.(h|cuh|hpp)")
END = 'static_assert(false, "the end");\n'


@dataclasses.dataclass
class Unit:
    name: str
    text: str
    flags: list[str]  # the compiler first
    heavy: str | None  # the heaviest of LibTorch's headers that it includes


def includes(file: pathlib.Path, seen: set[pathlib.Path]) -> set[str]:
    """What a file includes from outside of this project, through this project's headers as well."""
    found = set()
    seen.add(file)
    for quote, name in INCLUDE.findall(file.read_text()):
        if quote == "<":
            found.add(name)
        else:
            inner = pathlib.Path(name) if pathlib.Path(name).exists() else file.parent / name
            if inner.exists() and inner not in seen:
                found |= includes(inner, seen)
            elif not inner.exists():
                found.add(name)
    return found


def heaviest(outside: set[str]) -> str | None:
    return next((name for name in HEAVY if name in outside), None)


def flags_of(command: str) -> list[str]:
    """Compiler and flags, without input, output and forced includes."""
    words = shlex.split(command)
    compiler = next(i for i, word in enumerate(words) if re.search(r"(\+\+|cc|clang)(-[\d.]+)?$", word) and "ccache" not in word)
    kept, skip = [], 0
    for word in words[compiler:]:
        if skip:
            skip -= 1
        elif word in ("-o", "-include", "-MF", "-MT", "-MQ", "-c"):
            skip = 1
        elif word not in ("-MD", "-Winvalid-pch") and not INDIFFERENT.match(word):
            kept.append(word)
    return kept


def commands_of(build: pathlib.Path) -> dict[pathlib.Path, list[str]]:
    """The C++ files that a build compiles, each with its flags."""
    entries = json.loads((build / "compile_commands.json").read_text())
    return {pathlib.Path(entry["file"]): flags_of(entry["command"]) for entry in entries if entry["file"].endswith((".cpp", ".cxx"))}


def configured(folder: pathlib.Path, *arguments: str) -> dict[pathlib.Path, list[str]]:
    done = subprocess.run(["cmake", "-B", folder, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return commands_of(folder)


def without_groups(build: pathlib.Path) -> dict[pathlib.Path, list[str]]:
    """The commands of a build like this one that compiles each source by itself."""
    cached = re.findall(r"^((?:MOELAB_|CMAKE_BUILD_TYPE|CMAKE_CXX_FLAGS)\w*):(?:STRING|BOOL|UNINITIALIZED)=(.*)$",
                        (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    return configured(build / "ungrouped", "-G", "Ninja", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
                      *(f"-D{name}={value}" for name, value in cached))


def begins_with(source: pathlib.Path, header: pathlib.Path) -> bool:
    first = INCLUDE.search(source.read_text())
    return first is not None and first[2] == str(header) and header.read_text().startswith("#pragma once\n")


def header_units(commands: dict[pathlib.Path, list[str]], sources: dict[pathlib.Path, Unit]) -> list[Unit]:
    """Of all headers but those that one of the sources begins with, in a unit that nothing precedes but what would precede the
    header's own."""
    by_folder: dict[pathlib.Path, list[str]] = {}
    for source, flags in commands.items():
        if len(flags) > len(by_folder.get(source.parent, [])):  # the target that sees most
            by_folder[source.parent] = flags
    most = max(commands.values(), key=len)
    with_cuda = any(source.name.endswith("_cuda.cpp") and not source.name.endswith("_no_cuda.cpp") for source in commands)
    units = []
    for header in (header for folder in FOLDERS for header in sorted(pathlib.Path(folder).rglob("*.h"))):
        outside = includes(header, set())
        heavy = heaviest(outside)
        if not with_cuda and any(CUDA.match(name) for name in outside):
            print(f"{header}: needs CUDA, which this build leaves out")
            continue
        source = header.with_suffix(".cpp")
        if source in sources and sources[source].heavy == heavy and begins_with(source, header):
            continue
        flags = next((by_folder[folder] for folder in header.absolute().parents if folder in by_folder), most)
        units.append(Unit(f"{header} alone", f'#include "{header}"\n' * 2, flags, heavy))
    return units


def source_unit(source: pathlib.Path, flags: list[str]) -> Unit:
    return Unit(f"{source} alone", f'#include "{source}"\n', flags, heaviest(includes(source, set())))


def groups_of(commands: dict[pathlib.Path, list[str]]) -> dict[tuple[str, ...], tuple[pathlib.Path, list[str]]]:
    """By the sources that each consists of."""
    groups = {}
    for file, flags in commands.items():
        if "/Unity/" in str(file):
            groups[tuple(os.path.relpath(name) for _, name in INCLUDE.findall(file.read_text()))] = (file, flags)
    return groups


def group_unit(sources: tuple[str, ...], file: pathlib.Path, flags: list[str]) -> Unit:
    heavy = HEAVY[0] if any("torch/include" in flag for flag in flags) else None
    return Unit(f"the quick preset's group of {', '.join(sources)}", f'#include "{file}"\n', flags, heavy)


def precompile(name: str, flags: list[str], folder: pathlib.Path) -> pathlib.Path:
    """A header that includes LibTorch's header of that name, precompiled beside it: the compiler takes it where the flags
    allow, and its text elsewhere or where it does not compile."""
    header = folder / name.replace("/", "_")
    header.write_text(f"#include <{name}>\n")
    subprocess.run([*flags, "-x", "c++-header", header, "-o", f"{header}.gch"], capture_output=True)
    return header


def complaints_about(unit: Unit, precompiled: pathlib.Path | None) -> str:
    """The compiler's; empty when there are none."""
    forced = ["-include", precompiled] if precompiled else []
    done = subprocess.run([*unit.flags, *forced, "-fsyntax-only", "-Werror", "-Wfatal-errors", "-x", "c++", "-I.", "-"], input=unit.text + END,
                          capture_output=True, text=True)
    errors = re.findall(r"error: (.*)", done.stderr)
    return "" if errors == ["static assertion failed: the end"] else f"{unit.name} does not compile:\n{done.stderr}"


def main() -> int:
    build = pathlib.Path(sys.argv[1]).absolute()
    built = commands_of(build)
    groups = groups_of(built)
    commands = without_groups(build) if groups else built
    grouped = [file.relative_to(pathlib.Path.cwd()) for file in commands if file not in built and not file.is_relative_to(build)]
    sources = {source: source_unit(source, commands[source.absolute()]) for source in grouped}
    quick = groups_of(configured(build / "quick", "--preset", "quick", "-DMOELAB_CUDA=OFF"))
    if not quick:
        sys.exit("the quick preset compiles no source in a group")
    units = [*sources.values(), *header_units(commands, sources),
             *(group_unit(group, *quick[group]) for group in quick if group not in groups)]
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        made = {name: pool.submit(precompile, name, max(commands.values(), key=len), pathlib.Path(scratch))
                for name in {unit.heavy for unit in units} - {None}}
        ready = {name: job.result() for name, job in made.items()}
        jobs = [pool.submit(complaints_about, unit, ready.get(unit.heavy)) for unit in units]
        complaints = [complaint for complaint in (job.result() for job in jobs) if complaint]
    print("\n".join(complaints) or f"{len(units)} headers, sources and groups of sources compile")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
