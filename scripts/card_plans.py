#!/usr/bin/env python3
"""What `moelab plan` finds fastest for each card that has a training script, with that script's model and preset.

A report shows the file where it lies beside the records, as card_plans.json. Speeds of cards that were never measured
are guesses from datasheets, and say so.

example: scripts/card_plans.py --program build/dev/bin/moelab --out results/epyc-2-cores/card_plans.json
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import json
import pathlib

import yaml

from cards_page import presets
from program_output import printed
from report.working import each


def row(program: pathlib.Path, model: str, preset: str) -> dict:
    plan = json.loads(printed(program, "plan", "--model", model, "--preset", preset, "--json"))
    first = plan["rows"][0]
    words = first["command"].replace(str(program), "moelab", 1)
    train = yaml.safe_load(printed(program, *words.split()[1:], "--print-config"))["train"]
    return {"card": plan["card"], "limit": plan["memory_limit_bytes"], "model": plan["model"], "preset": preset,
            "micro_batch": train["micro_batch"], "sequence": train["sequence"],
            "needed": first["needed_bytes"], "tokens_per_second": first["tokens_per_second"], "times": plan["times"],
            "techniques": first["techniques"], "command": words}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True, help="moelab")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON file of schema 1")
    arguments = parser.parse_args()
    cards = [(model, preset) for model, preset in presets().values() if preset.startswith("gpu-")]
    rows = [row(arguments.program, *card) for card in each("card_plans: planning for card", cards)]
    content = {"schema": 1, "command": f"scripts/card_plans.py --program {arguments.program} --out {arguments.out}",
               "version": printed(arguments.program, "--version").strip(), "rows": rows}
    arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
