#!/usr/bin/env python3
"""Writes docs/techniques.md, the table of memory techniques, as `moelab techniques` has it.

With --check it writes nothing; exit code 1: the page is not what the program says.

example: scripts/techniques_page.py --program build/dev/bin/moelab docs/techniques.md
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import json
import pathlib
import subprocess
import sys

INTRO = """# Memory techniques

<!-- Written by scripts/techniques_page.py; a test compares it with the program. -->

A technique is a named set of settings. `moelab techniques` lists them with what published guides claim of each,
`bench_tradeoff` measures them ([what was measured](measuring.md#recorded-results)), and `moelab plan` searches their combinations.
Settings that save memory but are no technique of this table: [training.md](training.md#other-settings-that-save-memory).

{about}
"""

RANKS = """
## Several ranks

What ranks divide ([ranks.md](ranks.md)). The settings are of two ranks; `parallel.data` gives another number.

| technique | settings | bytes of a rank | what it trades |
| --- | --- | --- | --- |
"""

SETS = """
## Sets of techniques

| set | parts | settings |
| --- | --- | --- |
"""

BESIDE = """
## What cannot stand beside what

Two techniques exclude each other where they give one setting different values, or where their settings together are
refused.

"""


def settings_of(row: dict) -> str:
    return "<br>".join(f"`{key}={value}`" for key, value in row["settings"].items())


def name_of(row: dict) -> str:
    return f"`{row['name']}`: {row['title']}"


def single_line(row: dict) -> str:
    return f"| {name_of(row)} | {settings_of(row)} | {row['bytes']} | {row['trades']} |"


def page(about: str, rows: list[dict]) -> str:
    singles = [row for row in rows if not row["parts"]]
    lines = ["| technique | settings | bytes | what it trades |", "| --- | --- | --- | --- |"]
    lines += [single_line(row) for row in singles if row["ranks"] == 1]
    of_ranks = [single_line(row) for row in singles if row["ranks"] > 1]
    sets = [f"| {name_of(row)} | {', '.join(f'`{part}`' for part in row['parts'])} | {settings_of(row)} |"
            for row in rows if row["parts"]]
    beside = [f"- `{row['name']}`: {', '.join(f'`{name}`' for name in row['excludes'])}"
              for row in singles if row["excludes"]]
    tables = [INTRO.format(about=about), *lines, RANKS.rstrip("\n"), *of_ranks, SETS.rstrip("\n"), *sets, BESIDE.rstrip("\n"), "", *beside]
    return "\n".join(tables) + "\n"


def made_by(program: str) -> str:
    def say(*arguments: str) -> str:
        return subprocess.run([program, "techniques", *arguments], capture_output=True, text=True, check=True).stdout
    return page(say().split("\n\n")[0], json.loads(say("--json"))["techniques"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="moelab")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("page", type=pathlib.Path)
    arguments = parser.parse_args()
    text = made_by(arguments.program)
    if not arguments.check:
        arguments.page.write_text(text)
    elif arguments.page.read_text() != text:
        print(f"{arguments.page} is out of date: scripts/techniques_page.py --program {arguments.program} "
              f"{arguments.page} writes it anew", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
