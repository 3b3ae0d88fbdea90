"""Checks that the quick preset compiles, whose sources are compiled several at a time (CMAKE_UNITY_BUILD).

usage: check_unity.py FOLDER     configures the preset there

Two of such sources must not define the same name, not even each in an anonymous namespace. No other build notices.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys


def configure(folder: pathlib.Path) -> None:
    """Makes the preset's commands and its precompiled header."""
    for command in (["cmake", "--preset", "quick", "-B", folder, "-DMOELAB_CUDA=OFF"],
                    ["cmake", "--build", folder, "--target", "moelab_pch"]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)


def errors_of(entry: dict) -> str:
    """What the compiler says of one group of sources. It stops at their end, before it instantiates LibTorch's
    templates, which would take most of its time."""
    command = shlex.split(entry["command"])
    command[command.index(entry["file"]):] = ["-x", "c++", "-", "-fsyntax-only", "-Wfatal-errors"]
    done = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True,
                          input=f'#include "{entry["file"]}"\nstatic_assert(false, "the end");')
    return "" if "static assertion failed: the end" in done.stderr else done.stderr


def main() -> None:
    folder = pathlib.Path(sys.argv[1]).absolute()
    configure(folder)
    entries = json.loads((folder / "compile_commands.json").read_text())
    groups = [entry for entry in entries if "/Unity/" in entry["file"]]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = [text for text in pool.map(errors_of, groups) if text]
    print(*errors, f"{len(groups)} groups of sources, {len(errors)} with errors", sep="\n")
    sys.exit(1 if errors or not groups else 0)


if __name__ == "__main__":
    main()
