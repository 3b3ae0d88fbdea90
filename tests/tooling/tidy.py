"""Runs clang-tidy on C++ sources, with the flags that a build compiles them with.

usage: tidy.py [--build FOLDER] [--store PAGE.md] [FILE.cpp …]     (FOLDER: build/dev; no files: all that the build compiles)

.clang-tidy says what is checked. Most of a file's ten seconds go into LibTorch's headers, so files with the same flags are
checked several in one translation unit, and in another those that define a name which one before them does. Files that the
build does not compile are named and left out. Files without a finding are noted in the build's folder and not checked again
until they, a header that they include, their flags or the checks change: a pass may be interrupted and goes on. Exit code 1:
something was found. --store: a page that says what was checked, where nothing was found.
"""
import argparse
import bisect
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench/peers"))
from peers import commit_of_sources  # noqa: E402

CLANG_TIDY = ROOT / ".venv/bin/clang-tidy"
GCC_ALONE = ("-fopenmp", "-Wno-maybe-uninitialized", "-Winvalid-pch")
FILES_IN_A_UNIT = 12


def clang_flags(words: list[str]) -> tuple[str, ...]:
    """A command of GCC as clang takes it: the header that GCC has precompiled is read as it is."""
    flags, rest = [], iter(words)
    for word in rest:
        if word in ("-o", "-c"):
            next(rest)
        elif word == "-include":
            header = next(rest)
            flags += [word, str(ROOT / "cmake/pch.h") if header.endswith("cmake_pch.hxx") else header]
        elif word.startswith("-") and word not in GCC_ALONE:
            flags += [word, next(rest)] if word == "-isystem" else [word]
    return tuple(flags)


def flags_of_sources(build: pathlib.Path) -> dict[pathlib.Path, tuple[str, ...]]:
    """The project's C++ sources that the build compiles, each with its flags."""
    entries = json.loads((build / "compile_commands.json").read_text())
    sources = {pathlib.Path(entry["file"]): clang_flags(shlex.split(entry["command"])) for entry in entries}
    return {file: flags for file, flags in sources.items()
            if file.suffix == ".cpp" and file.is_relative_to(ROOT) and not file.is_relative_to(ROOT / "build")}


def headers_of_sources(build: pathlib.Path) -> dict[pathlib.Path, set[pathlib.Path]]:
    """The project's headers that each source includes, as the build's last compilation noted them."""
    said = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=False).stdout
    headers: dict[pathlib.Path, set[pathlib.Path]] = {}
    for block in filter(None, said.strip().split("\n\n")):  # the object, then indented its source and what that includes
        source, *included = [(build / line.strip()).resolve() for line in block.splitlines()[1:]]
        headers.setdefault(source, set()).update(
            file for file in included if file.is_relative_to(ROOT) and not file.is_relative_to(ROOT / ".venv"))
    return headers


@functools.cache
def bytes_of(file: pathlib.Path) -> bytes:
    """A digest of a file's bytes."""
    return hashlib.sha256(file.read_bytes()).digest() if file.exists() else b""


class Clean:
    """What was checked without a finding: an empty file for each source, named by a digest of all that a check reads."""

    def __init__(self, build: pathlib.Path, sources: dict[pathlib.Path, tuple[str, ...]]):
        self.folder, self.sources, self.headers = build / "tidy", sources, headers_of_sources(build)
        self.folder.mkdir(exist_ok=True)

    def note(self, file: pathlib.Path) -> pathlib.Path:
        read = [ROOT / ".clang-tidy", CLANG_TIDY, ROOT / "cmake/pch.h", file, *sorted(self.headers.get(file, ()))]
        parts = [*map(bytes_of, read), *(word.encode() for word in self.sources[file])]
        return self.folder / hashlib.sha256(b"\0".join(parts)).hexdigest()

    def __contains__(self, file: pathlib.Path) -> bool:
        return file in self.headers and self.note(file).exists()

    def add(self, files: list[pathlib.Path]) -> None:
        for file in files:
            self.note(file).touch()


class Unit:
    """Some sources as the text of one translation unit. It is one file, not a list of #include lines, because the static
    analyzer looks at functions of the main file alone."""

    def __init__(self, files: list[pathlib.Path]):
        self.files, self.firsts, lines = files, [], []
        for file in files:
            self.firsts.append(len(lines))
            lines += file.read_text().replace("#pragma once", "").splitlines()
        self.text = "\n".join(lines) + "\n"

    def file(self, line: int) -> int:
        """The index of the file that a line of the unit, counted from 1, came from."""
        return bisect.bisect_right(self.firsts, line - 1) - 1

    def where(self, line: int) -> str:
        k = self.file(line)
        return f"{self.files[k].relative_to(ROOT)}:{line - self.firsts[k]}"


def check(files: list[pathlib.Path], flags: tuple[str, ...]) -> str:
    """What clang-tidy finds; empty where it finds nothing."""
    unit = Unit(files)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "unit.cpp")
        path.write_text(unit.text)
        command = [CLANG_TIDY, "--quiet", f"--config-file={ROOT / '.clang-tidy'}", path, "--", *flags]
        done = subprocess.run(command, capture_output=True, text=True)
    line_of = re.escape(str(path)) + r":(\d+)"
    wrong = {unit.file(int(line)) for line in re.findall(line_of + r":\d+: error: .*\[clang-diagnostic-error", done.stdout)}
    if len(wrong) in (0, len(files)) and len(files) > 1 and "[clang-diagnostic-error" in done.stdout:  # a header's, or all of them
        wrong = set(range(len(files) // 2, len(files)))
    if 0 < len(wrong) < len(files):  # names that files before them define too
        rest = [file for k, file in enumerate(files) if k not in wrong]
        return check(rest, flags) + check([files[k] for k in sorted(wrong)], flags)
    found = done.stdout + (done.stderr if done.returncode and not done.stdout else "")
    return re.sub(line_of, lambda match: unit.where(int(match[1])), found)


def units(sources: dict[pathlib.Path, tuple[str, ...]]) -> list[tuple[list[pathlib.Path], tuple[str, ...]]]:
    """Sources with the same flags, neighbours in the tree, some at a time."""
    by_flags: dict[tuple[str, ...], list[pathlib.Path]] = {}
    for file in sorted(sources):
        by_flags.setdefault(sources[file], []).append(file)
    return [(files[k:k + FILES_IN_A_UNIT], flags)
            for flags, files in by_flags.items() for k in range(0, len(files), FILES_IN_A_UNIT)]


def page(checked: int) -> str:
    """What a pass without a finding says of itself."""
    said = subprocess.run([CLANG_TIDY, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"version (\S+)", said)[1]
    return (f"# clang-tidy\n\nclang-tidy {version} found nothing in {checked} C++ sources and their headers, with the checks of "
            f"`.clang-tidy`. Commit {commit_of_sources(ROOT)}; made by\n\n```\n"
            "tests/tooling/tidy.py --store results/clang-tidy.md\n```\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/dev")
    parser.add_argument("--store", type=pathlib.Path)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    if not (arguments.build / "compile_commands.json").exists():
        parser.error(f"{arguments.build}/compile_commands.json does not exist: cmake --preset dev makes it")
    if arguments.store and arguments.files:
        parser.error("--store: the page is of all sources; give no files")
    sources = flags_of_sources(arguments.build)
    chosen = [file.resolve() for file in arguments.files] or list(sources)
    for file in chosen:
        if file not in sources:
            print(f"{os.path.relpath(file, ROOT)}: left out, the build does not compile it")
    clean = Clean(arguments.build, sources)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        work = units({file: sources[file] for file in chosen if file in sources and file not in clean})
        checks = {pool.submit(check, *unit): unit[0] for unit in work}
        for done, finished in enumerate(concurrent.futures.as_completed(checks), 1):
            print(finished.result(), end="", flush=True)
            if not finished.result():
                clean.add(checks[finished])
            print(f"\r{done} of {len(work)} units", end="\n" if done == len(work) else "", file=sys.stderr, flush=True)
    found = any(finished.result() for finished in checks)
    if arguments.store and not found:
        arguments.store.write_text(page(len(sources)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
