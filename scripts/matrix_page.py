#!/usr/bin/env python3
"""Writes results/matrix.md: every technique on every size of card, by dry runs for CUDA, and the speed of its miniature where one was
measured.

The dry runs lie beside the page, in matrix.jsonl. With --program those that are missing there are made; a call that was interrupted
goes on. Speeds come from miniatures.jsonl in the folders of results.

example: scripts/matrix_page.py --program build/dev/bin/moelab
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys

from program_output import printed
from report import figures, records
from report.byte_units import human_bytes
from report.document import Fold, Heading, Items, Table, Text, slug
from report.format import machine_text, speed_times
from report.rendering import to_markdown
from report.sweep_part_pages import FITS

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "results/matrix.md"
SCHEMA = 1
MODEL = "moe-nano"
CARDS = ("RTX 4060", "RTX 4070", "RTX 4080", "RTX 4090", "A100 40 GB", "A100 80 GB")  # as `moelab fits` names them
INTRO = (f"Every technique of `moelab techniques` on six sizes of card, each alone beside the baseline of `{MODEL}`: fp32, stored scores, "
         "one-hot dispatch, eight rows of 1,024 tokens. Memory is predicted by dry runs for CUDA on that card; nothing here has run on a GPU.")
WORDS = ("taken: what CUDA's caching allocator reserves, with cuBLAS's workspaces and CUDA's context; a row fits where that is no more than "
         "the card, and where tensors take at most 95 % of it. largest batch: sequences of 1,024 tokens in a micro-batch; longest "
         "sequence: in tokens, in steps of 64; largest model: of those that have a name, at its own sequence. Each is the largest that "
         "fits while all else, the technique's micro-batch too, stays as it is; what the allocator reserves does not grow evenly, so a "
         "slightly larger one may fit too. Of a technique of several ranks, one rank is shown.")
SPEED = " speed: of a 1/64 miniature of the model beside the baseline of the same round on a CPU, of two rounds or more."
COMMAND = "build/dev/bin/bench_tradeoff --plan bench/tradeoff/miniatures.yaml --out mine/miniatures.jsonl data.path=data/python-stdlib"


@dataclasses.dataclass(frozen=True)
class Store:
    """The dry runs, a line a technique and model."""

    path: pathlib.Path

    def lines(self) -> list[dict]:
        if not self.path.exists():
            return []
        whole, _, _ = self.path.read_text().rpartition("\n")  # an interrupted call leaves a part of a line at most
        found = [json.loads(line) for line in whole.split("\n") if line]
        if any(one["schema"] != SCHEMA for one in found):
            raise records.ReportError(f"{self.path}: another schema than {SCHEMA}; remove it, and --program makes it anew")
        return found

    def append(self, line: dict) -> None:
        kept = "".join(json.dumps(one) + "\n" for one in self.lines())
        self.path.write_text(kept + json.dumps(line) + "\n")


def dry_run(program: str, technique: str) -> dict:
    """What one technique leaves of each card, or why the program refuses it."""
    words = ["fits", "--json", "--config", MODEL, "--techniques", technique]
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 2):
        raise records.ReportError(f"{' '.join([program, *words])}: {done.stderr.strip()}")
    line = {"schema": SCHEMA, "technique": technique, "command": " ".join(["moelab", *words])}
    if done.returncode == 2:
        return line | {"status": "refused", "message": done.stderr.strip().splitlines()[-1]}
    rows = [row for row in json.loads(done.stdout)["rows"] if row["card"] in CARDS]
    return line | {"status": "ok", "rows": rows}


def make(program: str, store: Store) -> None:
    """Makes the dry runs that the store lacks."""
    version, table = printed(program, "--version").strip(), json.loads(printed(program, "techniques", "--json"))["techniques"]
    wanted, known = [row["name"] for row in table], {line["technique"] for line in store.lines()}
    for done, technique in enumerate(wanted, 1):
        if technique not in known:
            print(f"{done} of {len(wanted)}: {technique}", file=sys.stderr, flush=True)
            store.append(dry_run(program, technique) | {"version": version})


def speeds() -> tuple[dict[str, str], list[str]]:
    """The speed of the miniature with each technique, and where they were measured."""
    found, sources = {}, []
    for path in sorted((ROOT / "results").glob("*/miniatures.jsonl")):
        sweeps = figures.sweeps(records.read_file(path)[0])
        sources += [f"{machine_text(sweep.machine)}, commit `{sweep.commit}`" for sweep in sweeps]
        for sweep in sweeps:
            found |= {case.name: speed_times(case) for case in sweep.cases if case.speed_ratio and not case.one_round}
    return found, list(dict.fromkeys(sources))


def of_card(lines: list[dict], card: str) -> list[tuple[str, dict]]:
    """Each technique with its row of this card, the one that takes least first."""
    rows = [(line["technique"], row) for line in lines if line["status"] == "ok" for row in line["rows"] if row["card"] == card]
    return sorted(rows, key=lambda one: one[1]["on_card"])


def cells(technique: str, row: dict, timed: dict) -> list[str]:
    speed = [timed.get(technique, "not measured")] if timed else []
    return [f"`{technique}`", human_bytes(row["on_card"]), f"**{FITS[row['status']]}**", f"{row['largest_batch']:,}",
            f"{row['largest_sequence']:,}", row["largest_model"] or "none", *speed]


def title(lines: list[dict], card: str) -> str:
    (_, row), *_ = of_card(lines, card)
    return f"{row['limit'] >> 30} GB: {card}"


def card_blocks(lines: list[dict], card: str, timed: dict) -> list:
    rows = of_card(lines, card)
    baseline = next(row for technique, row in rows if technique == "baseline")
    fit = [technique for technique, row in rows if row["status"] != "red"]
    said = (f"The baseline takes {human_bytes(baseline['on_card'])} of {human_bytes(baseline['limit'])}. {len(fit)} of "
            f"{len(rows)} rows fit.")
    return [Heading(2, title(lines, card)), Text(said),
            Table("", ["technique", "taken", "fits", "largest batch", "longest sequence", "largest model", *(["speed"] if timed else [])],
                  [cells(*one, timed) for one in rows], ("fits", "largest model"))]


def page(lines: list[dict]) -> str:
    timed, sources = speeds()
    refused = [f"`{line['technique']}`: {line['message']}" for line in lines if line["status"] == "refused"]
    versions = ", ".join(dict.fromkeys(line["version"] for line in lines))
    measured = f"Speeds: {'; '.join(sources)}." if sources else "Speeds are not measured yet, so the tables have no column for them."
    return to_markdown([
        Heading(1, "Every technique on every card"), Text(INTRO), Fold("What the columns mean", [Text(WORDS + (SPEED if timed else ""))]),
        Items([f"[{name}](#{slug(name)})" for name in (title(lines, card) for card in CARDS)]),
        *(block for card in CARDS for block in card_blocks(lines, card, timed)),
        *([Heading(2, "Not on one card alone"), Items(refused)] if refused else []),
        Heading(2, "How it was made"),
        Text(f"{len(lines)} techniques, dry-run by {versions}: `scripts/matrix_page.py --program build/dev/bin/moelab`, which makes what "
             "the record lacks. A test asks the program of today for two of them again. The first row's run:"),
        Text(f"`{lines[0]['command']}`"), Text(f"{measured} The command that measures them, three rounds:"), Text(f"`{COMMAND}`")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="moelab: makes the dry runs that are missing")
    arguments = parser.parse_args()
    store = Store(PAGE.with_suffix(".jsonl"))
    with records.mistakes_of("matrix_page"):
        if arguments.program:
            make(arguments.program, store)
        PAGE.write_text(page(store.lines()))


if __name__ == "__main__":
    main()
