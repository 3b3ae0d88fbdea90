#!/usr/bin/env python3
"""Writes results/layouts.md: how `moelab plan` lays four models out on H100s, beside what published recipes chose.

With --program the plans are made anew, into results/layouts.json beside the page; otherwise the page is made of those.

example: scripts/layouts_page.py --program build/dev/bin/moelab
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import json
import math
import pathlib
import re
import subprocess
import sys

import yaml
from report.document import Heading, Items, Table, Text
from report.rendering import to_markdown

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "results/layouts.md"
RECIPES = yaml.safe_load((ROOT / "scripts/report/recipes.yaml").read_text())
# What the recipes train with, so that layouts are compared and not techniques.
USUAL = ["train.micro_batch=1", "precision.compute=bf16", "precision.store=compute", "precision.master=fp32",
         "activations.storage=keep", "optim.name=adamw", "optim.state=fp32", "optim.in_backward=false",
         "placement.parameters=device", "placement.gradients=device", "placement.optimizer=device"]
MACHINE = 8  # cards
LARGE = 128  # cards that each model is planned for, beside its recipe's number
SEQUENCES = {"dense-405b": 1024}  # of a step; of the other models 512
AXES = ("expert", "tensor", "pipeline", "chunks")

INTRO = """How `moelab plan` lays four models out on H100s of 80 GiB, eight to a machine by NVLink 4, each with a link of 400 Gbit/s
to the other machines. AdamW with fp32 state and masters, bf16 products, everything on the device, one sequence of 4,096 tokens a
micro-batch; a step has 512 sequences, of dense-405b 1,024. Nothing here is measured: peaks are dry runs, times follow from
datasheets, and a plan is the fastest found, not of all there are. waits: the part of a step that nothing hides, by what it is spent
on. Pipelines are not proposed for GPUs, where moelab does not train them."""


def words_of(model: str, ranks: int, given: list[str]) -> list[str]:
    machines = ["--machines", str(ranks // MACHINE), "--network", "400Gbit"] if ranks > MACHINE else []
    shared = math.prod(int(word.split("=")[1]) for word in given if word.startswith("parallel.tensor"))
    passes = SEQUENCES.get(model, 512) * shared // ranks
    return ["plan", "--device", "h100", "--model", model, "--ranks", str(ranks), "--link", "nvlink4", *machines, *USUAL,
            f"train.accumulation={passes}", *given]


def cases() -> list[tuple[str, int, list[str]]]:
    """Model, cards, and settings of a layout that the plan may not change."""
    found = []
    for recipe in RECIPES:
        found += [(recipe["model"], ranks, []) for ranks in sorted({recipe["ranks"], LARGE})]
        found += [(recipe["model"], recipe["ranks"], recipe["given"])] if "given" in recipe else []
    return found


def planned(program: str, model: str, ranks: int, given: list[str]) -> dict:
    """What the plan says of its first row."""
    words = words_of(model, ranks, given)
    said = subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout
    row = re.search(r"^ +1  +([\d.]+ .iB)  +(\d+)  (.+)$", said, re.M)
    command = re.search(r"^  scripts/ranks.sh \d+ \S*moelab train (.+)$", said, re.M)[1]
    step = re.search(r"a step of the first takes ([\d.e+]+) ms", said)[1]
    waits = re.search(r"of that ([\d.e+]+) ms for sums .* matrices, ([\d.e+]+) ms for rows .*, [\d.e+]+ ms for other stages, "
                      r"and ([\d.e+]+) ms", said)
    return {"model": model, "ranks": ranks, "given": given, "command": " ".join(["moelab", *words]),
            "peak": row[1], "tokens_per_second": int(row[2]), "techniques": row[3],
            "settings": dict(word.split("=", 1) for word in command.split() if "=" in word), "step_ms": float(step),
            "waits_ms": dict(zip(("sums", "rows", "gradients"), map(float, waits.groups()))) if waits else {}}


def layout(plan: dict) -> str:
    settings = plan["settings"]
    counts = {axis: int(settings.get(f"parallel.{axis}", 1)) for axis in AXES}
    data = plan["ranks"] // counts["tensor"] // counts["pipeline"]
    return ", ".join([f"data {data}", f"ZeRO-{settings.get('parallel.zero', 0)}"] +
                     [f"{axis} {count}" for axis, count in counts.items() if count > 1])


def recomputed(plan: dict) -> str:
    return ", ".join(name for name in plan["techniques"].split(", ") if name.startswith("recompute")) or "nothing"


def waits(plan: dict) -> str:
    shares = {name: ms / plan["step_ms"] for name, ms in plan["waits_ms"].items()}
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share > 0.005) or "under 1 %"


def page(stored: dict) -> str:
    rows = [[plan["model"], str(plan["ranks"]), "the recipe's" if plan["given"] else "the plan's", layout(plan), recomputed(plan),
             plan["peak"], f"{plan['tokens_per_second']:,}", waits(plan)] for plan in stored["plans"]]
    return to_markdown([
        Heading(1, "Layouts on paper, beside published recipes"), Text(INTRO.replace("\n", " ")),
        Table("", ["model", "cards", "whose", "layout", "recomputed", "peak of a rank", "tokens/s", "waits"], rows,
              ("whose", "layout", "recomputed", "waits")),
        Heading(2, "What recipes chose, and why plans differ"),
        Items([f"**{recipe['model']}, {recipe['ranks']} cards** ([{recipe['by']}]({recipe['source']}), read {recipe['read']}): "
               f"{recipe['says']}. {recipe['why']}" for recipe in RECIPES]),
        Text(f"Made by `scripts/layouts_page.py --program PROGRAM` of {stored['version']}, which runs, for the first row:"),
        Text(f"`{stored['plans'][0]['command']}`")])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="moelab: makes the plans anew")
    arguments = parser.parse_args()
    store = PAGE.with_suffix(".json")
    if arguments.program:
        version = subprocess.run([arguments.program, "--version"], capture_output=True, text=True, check=True).stdout
        plans = []
        for done, case in enumerate(cases(), 1):
            print(f"{done} of {len(cases())}: {case[0]} on {case[1]}", file=sys.stderr, flush=True)
            plans.append(planned(arguments.program, *case))
        store.write_text(json.dumps({"schema": 1, "version": version.strip(), "plans": plans}, indent=1) + "\n")
    PAGE.write_text(page(json.loads(store.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
