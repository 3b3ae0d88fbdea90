"""Runs clang-tidy 14 on C++ sources, with the flags that a build compiles them with.

usage: tidy.py [--build FOLDER] FILE.cpp …     (FOLDER: build/ci)

.clang-tidy says what is checked. A file takes some fifteen seconds, most of them for LibTorch's headers. Files that the
build does not compile are named and left out. Exit code 1: something was found.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

GCC_ALONE = ("-fopenmp", "-Wno-maybe-uninitialized", "-Winvalid-pch")


def clang_flags(words: list[str]) -> list[str]:
    """A command of GCC as clang takes it: the header that GCC has precompiled is read as it is."""
    flags, rest = [], iter(words)
    for word in rest:
        if word in ("-o", "-c"):
            next(rest)
        elif word == "-include":
            header = next(rest)
            flags += [word, "cmake/pch.h" if header.endswith("cmake_pch.hxx") else header]
        elif word.startswith("-") and word not in GCC_ALONE:
            flags += [word, next(rest)] if word == "-isystem" else [word]
    return flags


def tidy(file: pathlib.Path, words: list[str]) -> str:
    """What clang-tidy finds; empty where it finds nothing."""
    command = ["clang-tidy-14", "--quiet", str(file), "--", *clang_flags(words)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout + (done.stderr if done.returncode else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/ci"))
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    commands = arguments.build / "compile_commands.json"
    if not commands.exists():
        parser.error(f"{commands} does not exist: cmake --preset ci makes it")
    words = {entry["file"]: shlex.split(entry["command"]) for entry in json.loads(commands.read_text())}
    words_of = {file: words.get(str(file.resolve())) for file in arguments.files}
    left_out = [file for file, command in words_of.items() if command is None]
    for file in left_out:
        print(f"{file}: left out, the build does not compile it")
        del words_of[file]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(tidy, words_of, words_of.values()))
    print("".join(found), end="")
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main())
