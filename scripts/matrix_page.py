#!/usr/bin/env python3
"""Writes results/matrix.md: every technique on every size of card, by dry runs for CUDA, and its speed on a miniature of the model that
the card's preset trains, where one was measured.

The dry runs lie beside the page, in matrix.jsonl. With --program those that are missing there are made; a call that was interrupted
goes on. Speeds come from miniatures.jsonl in the folders of results, those of presets from the records there.

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
from report import figures, records, sweep_parts
from report.byte_units import human_bytes
from report.document import Fold, Heading, Items, Table, Text, slug
from report.format import machine_text, speed_times, times
from report.rendering import to_markdown
from report.sweep_part_pages import FITS, TAKEN

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "results/matrix.md"
SCHEMA = 1
MODEL = "moe-nano"
# As `moelab fits` names them, each with its preset and the model that this one trains.
CARDS = {"RTX 4060": ("gpu-8gb", "moe-nano"), "RTX 4070": ("gpu-12gb", "moe-nano"), "RTX 4080": ("gpu-16gb", "moe-nano"),
         "RTX 4090": ("gpu-24gb", "moe-nano"), "A100 40 GB": ("gpu-a100-40gb", "moe-230m"), "A100 80 GB": ("gpu-a100-80gb", "moe-570m")}
INTRO = (f"Every technique of `moelab techniques` on six sizes of card, each alone beside the baseline of `{MODEL}`: fp32, stored scores, "
         "one-hot dispatch, eight rows of 1,024 tokens. Memory is predicted by dry runs for CUDA on that card; nothing here has run on a GPU.")
ABOUT_SPEED = ("The last column is no forecast of the card's speed: it shows what a technique costs a CPU, in a small copy of the card's own "
               "model. On a card arithmetic is far faster, and copies go over a bus: [what was measured on an "
               "H100](nvidia-h100-80gb-hbm3/report.md).")
RANKS = 2  # of the rows of several ranks
OF_RANKS = ("data_parallel", "zero_")  # what their names begin with
BATCH_MAXIMUM = 16  # of dynamic_batch
WORDS = [f"taken: {TAKEN}.",
         "fits: what is taken is no more than the card has, and tensors take at most 95 % of it.",
         "largest batch: sequences of 1,024 tokens in a micro-batch. longest sequence: in tokens, in steps of 64. largest model: of those "
         "that have a name, at its own sequence. Each is the largest that fits while all else, the technique's micro-batch too, stays as it "
         "is. What the allocator reserves does not grow evenly, so a slightly larger one may fit too.",
         "`packing` has neither batch nor sequence: all tokens of a step are one row.",
         f"`dynamic_batch` makes its batch no larger than {BATCH_MAXIMUM}.",
         f"`data_parallel` and `zero_…` are of {RANKS} ranks, of which one is shown."]
SPEED = ["CPU miniature: speed on a CPU, of a 1/64 miniature of the model that the card's preset trains, beside the baseline of the same "
         "round, of two rounds or more.",
         "other tokens: the technique changes which tokens a step reads, so a token is not the baseline's work.",
         f"of {RANKS} ranks: miniatures are of one; a report says what [several ranks](epyc-2-cores/report.md#on-several-ranks) cost."]
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


def last_run(sweep: figures.Sweep) -> str:
    """When it started."""
    return max(run.started for case in sweep.cases for run in (*case.runs, *case.failures))


def source(sweep: figures.Sweep) -> str:
    return f"{machine_text(sweep.machine)}, commit `{sweep.commit}`"


def speeds() -> dict[str, figures.Sweep]:
    """The newest miniature of each model. Machines are never pooled."""
    found = [sweep for path in sorted((ROOT / "results").glob("*/miniatures.jsonl")) for sweep in figures.sweeps(records.read_file(path)[0])]
    return {sweep.model: sweep for sweep in sorted(found, key=last_run)}


def presets() -> dict[str, str]:
    """What the newest runs of each preset say of its speed and peak beside its baseline."""
    found = []  # a sweep a preset
    for folder in sorted(path for path in (ROOT / "results").iterdir() if path.is_dir()):
        fits = [record for path in records.files_of(folder) for record in records.read_file(path)[0] if record.family == "fit"]
        found += [dataclasses.replace(sweep, cases=[case]) for sweep in figures.sweeps(fits) for case in sweep_parts.presets(sweep)]
    latest = {sweep.cases[0].name: sweep for sweep in sorted(found, key=last_run)}
    return {name: preset_text(sweep, sweep.cases[0]) for name, sweep in latest.items() if sweep.cases[0].pairs}


def preset_text(sweep: figures.Sweep, case: figures.Case) -> str:
    return (f"Preset `{case.name}` trains its miniature of `{sweep.model}` at {speed_times(case)} its own baseline's speed and "
            f"{times(case.peak_ratio)} of its peak ({source(sweep)}).")


def speed_cell(technique: str, case: figures.Case | None) -> str:
    if technique.startswith(OF_RANKS):
        return f"of {RANKS} ranks"
    if technique == "baseline":
        return "1 ×"
    if case is None or case.one_round or case.speed_ratio is None:
        return "not measured"
    return speed_times(case) if case.reads_alike else f"{speed_times(case)}, other tokens"


def of_card(lines: list[dict], card: str) -> list[tuple[str, dict]]:
    """Each technique with its row of this card, the one that takes least first."""
    rows = [(line["technique"], row) for line in lines if line["status"] == "ok" for row in line["rows"] if row["card"] == card]
    return sorted(rows, key=lambda one: one[1]["on_card"])


def largest(technique: str, row: dict) -> list[str]:
    """Batch and sequence."""
    if technique == "packing":
        return ["–", "–"]
    is_maximum = technique == "dynamic_batch" and row["largest_batch"] == BATCH_MAXIMUM
    return [f"{row['largest_batch']:,}{' (its maximum)' if is_maximum else ''}", f"{row['largest_sequence']:,}"]


def cells(technique: str, row: dict, timed: figures.Sweep | None) -> list[str]:
    speed = [speed_cell(technique, timed.case(technique))] if timed else []
    return [f"`{technique}`", human_bytes(row["on_card"]), f"**{FITS[row['status']]}**", *largest(technique, row),
            row["largest_model"] or "none", *speed]


def title(lines: list[dict], card: str) -> str:
    (_, row), *_ = of_card(lines, card)
    return f"{row['limit'] >> 30} GB: {card}"


def card_blocks(lines: list[dict], card: str, timed: figures.Sweep | None, of_preset: str) -> list:
    rows = of_card(lines, card)
    baseline = next(row for technique, row in rows if technique == "baseline")
    fit = [technique for technique, row in rows if row["status"] != "red"]
    said = (f"`{MODEL}`: the baseline takes {human_bytes(baseline['on_card'])} of {human_bytes(baseline['limit'])}. {len(fit)} of "
            f"{len(rows)} rows fit.")
    if timed:
        said += f" CPU miniature: speed of a small `{timed.model}` on {source(timed)}."
    return [Heading(2, title(lines, card)), *([Text(of_preset)] if of_preset else []), Text(said),
            Table("", ["technique", "taken", "fits", "largest batch", "longest sequence", "largest model",
                       *(["CPU miniature"] if timed else [])],
                  [cells(*one, timed) for one in rows], ("fits", "largest model"))]


def page(lines: list[dict]) -> str:
    timed, of_presets = speeds(), presets()
    refused = [f"`{line['technique']}`: {line['message']}" for line in lines if line["status"] == "refused"]
    versions = ", ".join(dict.fromkeys(line["version"] for line in lines))
    measured = "" if timed else "Speeds are not measured yet, so the tables have no column for them. "
    return to_markdown([
        Heading(1, "Every technique on every card"), Text(INTRO), *([Text(ABOUT_SPEED)] if timed else []),
        Text("[What each technique is](../docs/techniques.md)."),
        Fold("What the columns mean", [Items(WORDS + (SPEED if timed else []))]),
        Items([f"[{name}](#{slug(name)})" for name in (title(lines, card) for card in CARDS)]),
        *(block for card, (preset, model) in CARDS.items()
          for block in card_blocks(lines, card, timed.get(model), of_presets.get(preset, ""))),
        *([Heading(2, "Not on one card alone"), Items(refused)] if refused else []),
        Heading(2, "How it was made"),
        Text(f"{len(lines)} techniques, dry-run by {versions}: `scripts/matrix_page.py --program build/dev/bin/moelab`, which makes what "
             "the record lacks. A test asks the program of today for two of them again. The first row's run:"),
        Text(f"`{lines[0]['command']}`"), Text(f"{measured}The command that measures speeds:"), Text(f"`{COMMAND}`")])


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
