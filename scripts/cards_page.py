#!/usr/bin/env python3
"""Writes docs/cards.md: how much of its card each training script takes, as it is and with --fill, by moelab's
prediction for CUDA.

With --check NAME it writes nothing and compares the page's row of that script; exit code 1: they differ.

example: scripts/cards_page.py --program build/dev/bin/moelab docs/cards.md
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import json
import pathlib
import re
import subprocess
import sys

import yaml

from report.working import each

SCRIPTS = pathlib.Path(__file__).resolve().parent

INTRO = """# How full the scripts make their cards

<!-- Written by scripts/cards_page.py; a test compares a row with the program. -->

The scripts keep to the batches of the guides that they come from. With `--fill` they take a larger micro-batch, and a
longer sequence where that alone does not fill the card. All figures are predictions for CUDA
([decisions/meta-dry-run.md](decisions/meta-dry-run.md)); on an H200 they held to 2 % ([gpu.md](gpu.md)). reserved: by CUDA's caching
allocator, without CUDA's context; tensors: of that, what the tensors take at the peak. What the filled miniatures did when
they were trained: [results/xeon-2-cores/reliability.md](../results/xeon-2-cores/reliability.md#filled-cards).

| script | model | limit | rows x micro-batches x tokens | tensors | reserved | with `--fill` | tensors | reserved |
| --- | --- | --: | --: | --: | --: | --- | --: | --: |
"""


def presets() -> dict[str, tuple[str, str]]:
    """The scripts for one card, each with its model and its preset."""
    found = {}
    for script in sorted(SCRIPTS.glob("train_*.sh")):
        if call := re.search(r'^train_preset (\S+) (\S+) "', script.read_text(), re.MULTILINE):
            found[script.stem] = call.groups()
    return found


def call(program: str, model: str, preset: str, *options: str) -> subprocess.CompletedProcess:
    """moelab estimate for the preset's card."""
    return subprocess.run([program, "estimate", "--config", model, "--preset", preset, "--device", "cuda", *options],
                          capture_output=True, text=True, check=True)


def shares(run: dict) -> list[str]:
    limit, workspaces = run["memory_limit_bytes"], run["gpu"]["workspace_bytes"]
    tensors = run["peak_bytes"] + workspaces
    return [f"{100 * tensors / limit:.0f} %", f"{100 * max(tensors, run['reserved_bytes']) / limit:.0f} %"]


def row(program: str, name: str, model: str, preset: str) -> str:
    done = call(program, model, preset, "--json", "--fill")
    plain, filled = json.loads(call(program, model, preset, "--json").stdout), json.loads(done.stdout)
    raised = re.search(r"filled: ?(.*);", done.stderr)[1].split()
    train = yaml.safe_load(call(program, model, preset, "--print-config").stdout)["train"]
    batch = f"{train['micro_batch']} x {train['accumulation']} x {train['sequence']}"
    cells = [f"`{name}.sh`", f"`{model}`", f"{plain['memory_limit_bytes'] / 2**30:.1f} GiB", batch, *shares(plain),
             "<br>".join(f"`{change}`" for change in raised), *shares(filled)]
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="moelab")
    parser.add_argument("--check", metavar="NAME", choices=presets(), help="compare the row of this script, and write nothing")
    parser.add_argument("page", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.check:
        (said,) = [line for line in arguments.page.read_text().splitlines() if f"`{arguments.check}.sh`" in line]
        made = row(arguments.program, arguments.check, *presets()[arguments.check])
        if said != made:
            print(f"{arguments.page} says\n{said}\nand the program\n{made}\nscripts/cards_page.py --program "
                  f"{arguments.program} {arguments.page} writes it anew", file=sys.stderr)
        return int(said != made)
    rows = [row(arguments.program, name, *presets()[name]) + "\n" for name in each("cards_page: dry runs of script", list(presets()))]
    arguments.page.write_text(INTRO + "".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
