#!/usr/bin/env python3
"""Judges every claim of the guides: claimed figure, measured figure with its setting, and a verdict, as Markdown.

Measured figures come from the records of sweeps (bench_tradeoff) and, for claims about bytes, from dry runs in
DIR/dry_runs.json, which --program makes anew.

example: scripts/claims.py results/cpu --techniques techniques.json --program build/dev/bin/moelab
"""
import argparse
import dataclasses
import json
import pathlib
import sys

import yaml

from tradeoff import claims, dry_claims, figures
from tradeoff.records import ReportError, files_of, read_records

CLAIMS = pathlib.Path(__file__).resolve().parents[1] / "bench" / "tradeoff" / "claims.yaml"
VERDICTS = ("holds", "holds when", "does not hold", "its own arithmetic is wrong", "not measurable here")
# Why a claim is out of reach, by the beginning of its id; the first that fits.
REASONS = {
    "nemo.model_parallelism": "needs several devices", "vibee.zero": "needs several devices", "ava.zero": "needs several devices",
    "vibee.fits_70b": "needs several devices", "vibee.fits_405b": "needs several devices",
    "verl.reshard_after_forward": "needs several devices", "verl.profile_multi": "needs several devices",
    "vibee.checkpoint_none": "the reference that the others are held against",
    "vibee.offload_none": "the reference that the others are held against",
    "nemo.preset": "a preset that sharding is part of; no figure is claimed",
    "verl.inference_memory_share": "no figure of the effect is claimed",
    "verl.host_allocator": "no figure of the effect is claimed",
    "ava.thresholds": "a choice of thresholds, no effect is claimed; profiles of memory.profile have them",
    "ava.threshold_actions": "what a program does; tests of the memory manager hold it",
    "ava.dashboard": "a way to print; tests of the monitor hold it",
    "ava.dynamic_batching": "what a program does; tests of the memory manager hold it",
    "ava.on_out_of_memory": "an order of advice; no figure is claimed", "ava.oom": "advice; no figure is claimed",
    "ava.priority": "an order of advice; no figure is claimed", "ava.accumulation": "advice; no figure of the effect is claimed",
    "ava.memory_thresholds": "advice; no figure of the effect is claimed",
    "parrot.script": "a script's settings; no effect is claimed",
    "parrot.if_still_too_large": "an order of advice; no figure is claimed",
}
NO_FIGURE = "no figure is claimed that could be held against a measurement"
NO_CASE = "no record of a case that says"


@dataclasses.dataclass
class Row:
    id: str
    text: str
    claimed: str
    measured: str
    verdict: str  # one of VERDICTS
    note: str = ""


def claimed_text(entry: dict) -> str:
    def shown(value: object) -> str:
        if isinstance(value, list):
            return (" to " if len(value) == 2 and all(isinstance(v, (int, float)) for v in value) else ", ").join(map(shown, value))
        return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
    return ", ".join(f"{name.replace('_', ' ')} {shown(value)}" for name, value in entry.get("figures", {}).items())


def interval_text(finding: claims.Finding, model: str) -> str:
    measured = finding.measured
    return (f"{finding.claim.measure} {measured.value:.0f} % ({measured.low:.0f} to {measured.high:.0f} %)"
            f"{' of ' + finding.claim.of if finding.claim.of else ''}: {finding.case.name} on {model}")


def bytes_per_parameter(case: figures.Case, states: dict) -> float | None:
    """Of optimizer state with a 4-byte master, which fp32 weights are themselves."""
    state = states.get(case.any.command)
    return None if state is None else state["optimizer"] / state["count"] + 4


class Judge:
    def __init__(self, sweeps: list[figures.Sweep], techniques: list[claims.Technique], claimed: list[claims.Claim],
                 states: dict, dry: dict):
        self.sweeps, self.states, self.dry = sweeps, states, dry
        self.techniques = techniques
        self.findings = [(sweep.title, finding) for sweep in sweeps for finding in claims.judge(claimed, techniques, sweep)]

    def row(self, entry: dict) -> Row:
        row = self.by_dry_run(entry) or self.by_state(entry) or self.by_sweep(entry) or self.unmeasured(entry)
        if entry.get("arithmetic"):
            row.verdict, row.note = VERDICTS[3], entry["arithmetic"]
        return row

    def by_dry_run(self, entry: dict) -> Row | None:
        runs = self.dry.get(entry["id"])
        if runs is None:
            return None
        found, holds = dry_claims.DRY_CLAIMS[entry["id"]].judge(runs, entry["figures"])
        return make_row(entry, f"{found} (dry run)", VERDICTS[0] if holds else VERDICTS[2])

    def by_state(self, entry: dict) -> Row | None:
        if "bytes_per_parameter" not in entry.get("figures", {}):
            return None
        names = {row.name for row in self.techniques if entry["id"] in row.claims}
        if entry["id"] == "vibee.adamw_bytes":
            names = {"baseline"}
        for sweep in self.sweeps:
            for case in sweep.cases:
                held = bytes_per_parameter(case, self.states) if case.name in names else None
                if held is not None:
                    holds = abs(held / entry["figures"]["bytes_per_parameter"] - 1) <= 0.05
                    return make_row(entry, f"{held:.2f} bytes a parameter with a 4-byte master: {case.name} on {sweep.title}",
                                    VERDICTS[0] if holds else VERDICTS[2])
        return None

    def by_sweep(self, entry: dict) -> Row | None:
        found = [(model, f) for model, f in self.findings if f.claim.id == entry["id"] and f.measured]
        if not found:
            return None
        good = [(model, f) for model, f in found if f.verdict == "confirmed"]
        measured = "; ".join(interval_text(f, model) for model, f in found)
        if len(good) == len(found):
            return make_row(entry, measured, VERDICTS[0])
        if good:
            when = "; ".join(f"{f.claim.figure}: {f.case.name} on {model}" for model, f in good)
            return make_row(entry, measured, VERDICTS[1], when)
        near = [f"{f.claim.figure} ({claims.direction(f.claim, f.measured) or 'spread'})" for _, f in found if f.verdict == "partly"]
        return make_row(entry, measured, VERDICTS[2], f"in part, in another size: {', '.join(near)}" if near else "")

    def unmeasured(self, entry: dict) -> Row:
        reason = next((why for begin, why in REASONS.items() if entry["id"].startswith(begin)), None)
        return make_row(entry, "–", VERDICTS[4], reason or (NO_CASE if entry.get("figures") else NO_FIGURE))


def make_row(entry: dict, measured: str, verdict: str, note: str = "") -> Row:
    return Row(entry["id"], entry["text"], claimed_text(entry), measured, verdict, note)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def markdown(rows: list[Row], guides: dict[str, str], sources: list[str]) -> str:
    counts = ", ".join(f"{verdict} {sum(row.verdict == verdict for row in rows)}" for verdict in VERDICTS)
    lines = ["# What guides claim, and what was measured", "",
             f"{len(rows)} claims: {counts}.", "",
             "A sweep's figures are the median over rounds with their interval, against the naive baseline: memory as the claim "
             "names it (activations, attention, weights and activations), the whole peak where it names none; state in bytes "
             "a parameter; dry runs of the training step where the claim is of bytes alone. " + claims.RULE, "",
             "Measured: " + "; ".join(sources) + "."]
    for guide, title in guides.items():
        lines += ["", f"## {title}", "", "| claim | claimed | measured | verdict |", "| --- | --- | --- | --- |"]
        for row in rows:
            if row.id.partition(".")[0] == guide:
                verdict = f"**{row.verdict}**" + (f": {row.note}" if row.note else "")
                lines.append("| " + " | ".join(map(cell, (f"{row.text} ({row.id})", row.claimed or "no figure", row.measured,
                                                          verdict))) + " |")
    return "\n".join(lines) + "\n"


def states_of(paths: list[pathlib.Path]) -> dict:
    """{command: state bytes, and the number of parameters}, from the summaries in the records."""
    states = {}
    for path in paths:
        for line in path.read_text(errors="replace").splitlines():
            try:
                fields = json.loads(line)
                summary = fields["summary"]
                states[fields["command"]] = summary["state_bytes"] | {"count": summary["model"]["parameters"]}
            except (ValueError, KeyError, TypeError):
                continue
    return states


def make(folder: pathlib.Path, techniques: pathlib.Path, claims_file: pathlib.Path) -> str:
    paths = files_of(folder)
    records, _ = read_records(paths)
    sweeps = figures.sweeps(records)
    claimed = claims.read_claims(claims_file)
    content = yaml.safe_load(claims_file.read_text())
    dry = dry_claims.read(folder / "dry_runs.json")
    judge = Judge(sweeps, claims.read_techniques(techniques), claimed, states_of(paths), dry)
    titles: dict[str, list[str]] = {}
    for sweep in sweeps:
        where = f"{sweep.machine.get('gpu') or sweep.machine.get('cpu')}, {sweep.machine.get('cores')} cores, commit {sweep.commit}"
        titles.setdefault(where, []).append(sweep.title)
    sources = [f"{', '.join(measured)} on {where}" for where, measured in titles.items()]
    return markdown([judge.row(entry) for entry in content["claims"]], content["guides"], sources)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="results of one machine: records in *.jsonl; gets claims.md")
    parser.add_argument("--techniques", type=pathlib.Path, required=True, help="what 'moelab techniques --json' prints")
    parser.add_argument("--program", type=pathlib.Path, help="moelab: makes the dry runs anew")
    parser.add_argument("--claims", type=pathlib.Path, default=CLAIMS, help="default: bench/tradeoff/claims.yaml")
    arguments = parser.parse_args()
    try:
        if arguments.program:
            dry_claims.record(arguments.program, arguments.folder / "dry_runs.json")
        text = make(arguments.folder, arguments.techniques, arguments.claims)
        (arguments.folder / "claims.md").write_text(text)
    except (ReportError, OSError) as error:
        print(f"claims: {error}", file=sys.stderr)
        sys.exit(2)
    print(text.splitlines()[2])


if __name__ == "__main__":
    main()
