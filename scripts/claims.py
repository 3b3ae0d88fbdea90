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
from tradeoff.words import percent, times

CLAIMS = pathlib.Path(__file__).resolve().parents[1] / "bench" / "tradeoff" / "claims.yaml"
VERDICTS = ("holds", "holds when", "does not hold", "its own arithmetic is wrong", "not measurable here")
# Why a claim is out of reach, by the beginning of its id; the first that fits.
REASONS = {
    "nemo.model_parallelism": "needs several devices", "ava.zero": "needs several devices", "vibee.fits_405b": "needs several devices",
    "verl.reshard_after_forward": "needs several devices", "verl.profile_multi": "needs several devices",
    "vibee.checkpoint_none": "the reference that the others are held against",
    "vibee.offload_none": "the reference that the others are held against",
    "nemo.preset": "a preset that sharding is part of; no figure is claimed",
    "verl.inference_memory_share": "no figure of the effect is claimed",
    "verl.host_allocator": "no figure of the effect is claimed", "verl.dynamic_batch_size": "no figure of the effect is claimed",
    "verl.rollout_limits": "advice; no figure is claimed", "verl.profile": "a profile's settings; no effect is claimed",
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
HOW = (
    "Figures of a sweep are medians over its rounds with their 95 % intervals (of memory: from the smallest to the largest round; "
    "alone where all agree), against the naive baseline. A saving is stated of the memory that the claim names, then of "
    "activations, of state (weights, masters, gradients, optimizer) and of the whole peak, which is meant where the claim names "
    "none. Claims of bytes alone are held against dry runs of the training step, or against a closed formula. Extra arithmetic is "
    "held against step time unless it is counted. On a CPU host memory is the device's own: offload to it has no time to be "
    "judged by.")
RULE = (
    "A figure holds in a case if all of its measured interval lies within what is claimed (a single figure is a range of no "
    "width), widened on both sides by a tenth of its end, and by 2 percentage points at least. **holds**: all figures of the claim "
    "do, in every case that measures it. **holds when**: they do in the cases that are named, or in the parts of the claim. **does "
    "not hold**: in no case all of them; those that hold alone are named, and those that are there in another size, from half of "
    "the claim to twice the claim. A verdict is of the models and the machine measured here.")

UNITS = {"_percent": " %", "_gb": " GB", "_mb": " MB"}


@dataclasses.dataclass
class Row:
    id: str
    text: str
    claimed: str
    measured: str
    verdict: str  # one of VERDICTS
    note: str = ""


def shown(value: object) -> str:
    if isinstance(value, list):
        is_range = len(value) == 2 and all(isinstance(end, (int, float)) for end in value) and value[0] < value[1]
        return (" to " if is_range else ", ").join(map(shown, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1e6 else f"{value:g}"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def figure_text(name: str, value: object) -> str:
    """("memory_saved_percent", [60, 80]) as "memory saved 60 to 80 %"."""
    ending = next((end for end in UNITS if name.endswith(end)), "")
    return f"{name.removesuffix(ending).replace('_', ' ')} {shown(value)}{UNITS.get(ending, '')}"


def claimed_text(entry: dict) -> str:
    return ", ".join(figure_text(name, value) for name, value in entry.get("figures", {}).items())


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one case of a sweep says of one claim: a finding for each of the figures that it measures."""

    sweep: figures.Sweep
    case: figures.Case
    findings: list[claims.Finding] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.case.name} on {self.sweep.title}"

    @property
    def holds(self) -> bool:
        return all(finding.verdict == "confirmed" for finding in self.findings)

    @property
    def text(self) -> str:
        saved = [finding for finding in self.findings if finding.claim.measure == "memory saved"]
        said = [saved_text(saved)] if saved else []
        said += dict.fromkeys(f"{f.claim.measure} {percent(f.measured)}" for f in self.findings
                              if f.claim.measure != "memory saved")
        return f"{self.name}: {'; '.join(said)}"


def saved_text(findings: list[claims.Finding]) -> str:
    """Of the memory that the claim names, then of the others."""
    every = {finding.claim.of: finding.measured for finding in findings if finding.claim.of} | claims.savings(findings[0].case)
    return "saves " + ", ".join(f"{percent(saved)} of {of}" for of, saved in every.items())


def by_figure(findings: list[tuple[str, claims.Finding]]) -> str:
    """[(case, finding)] as "memory saved 50 % in CASE, CASE; …"."""
    cases: dict[str, list[str]] = {}
    for name, finding in findings:
        cases.setdefault(finding.claim.figure, []).append(name)
    return "; ".join(f"{figure} in {', '.join(names)}" for figure, names in cases.items())


def what_holds(measurements: list[Measurement]) -> str:
    """Of a claim that no case confirms in all of its figures."""
    findings = [(one.name, finding) for one in measurements for finding in one.findings]
    alone = by_figure([(name, f) for name, f in findings if f.verdict == "confirmed"])
    other = dict.fromkeys(f"{f.claim.figure} ({claims.direction(f.claim, f.measured) or 'wide interval'})"
                          for _, f in findings if f.verdict == "partly")
    return "; ".join([*([f"holds alone: {alone}"] if alone else []),
                      *([f"in another size: {', '.join(other)}"] if other else [])])


def bytes_per_parameter(case: figures.Case, states: dict) -> float | None:
    """Of optimizer state with a 4-byte master, which fp32 weights are themselves."""
    state = states.get(case.any.command)
    return None if state is None else state["optimizer"] / state["count"] + 4


def beside_flash(sweeps: list[figures.Sweep], name: str) -> list[tuple[float, str, figures.Interval]]:
    """(sequence, model, speed over flash attention's) wherever a sweep follows both over sequences."""
    points = []
    for sweep in sweeps:
        case, flash = sweep.case(name), sweep.case("flash_attention")
        pairs = figures.paired(case.runs, flash.runs) if case and flash and case.family == "crossover" else []
        if pairs:
            speed = figures.ratio_of_rates([(run.rates, base.rates) for run, base in pairs])
            points.append((case.any.sequence, sweep.model, speed))
    return sorted(points, key=lambda point: point[:2])


class Judge:
    def __init__(self, sweeps: list[figures.Sweep], techniques: list[claims.Technique], claimed: list[claims.Claim],
                 states: dict, dry: dict):
        self.sweeps, self.states, self.dry = sweeps, states, dry
        self.techniques, self.claimed = techniques, claimed
        self.findings = [(sweep, finding) for sweep in sweeps for finding in claims.judge(claimed, techniques, sweep)]

    def row(self, entry: dict) -> Row:
        row = (self.by_dry_run(entry) or self.by_state(entry) or self.by_crossover(entry) or self.by_sweep(entry)
               or self.unmeasured(entry))
        if entry.get("arithmetic"):
            row.verdict, row.note = VERDICTS[3], entry["arithmetic"]
        return row

    def measurements(self, claim: str) -> list[Measurement]:
        found: dict[tuple, Measurement] = {}
        for sweep, finding in self.findings:
            if finding.claim.id == claim and finding.measured:
                key = id(sweep), finding.case.name
                found.setdefault(key, Measurement(sweep, finding.case)).findings.append(finding)
        return list(found.values())

    def by_dry_run(self, entry: dict) -> Row | None:
        dry, runs = dry_claims.DRY_CLAIMS.get(entry["id"]), self.dry.get(entry["id"], {})
        if dry is None or runs.keys() != dry.runs.keys():
            return None
        found, parts = dry.judge(runs, entry["figures"])
        how = f"dry run: {dry_claims.settings_of(entry['id'])}" if runs else "by formula"
        measured = "; ".join([f"{found} ({how})", *(one.text for one in self.measurements(entry["id"]))])
        good = [part for part, holds in parts.items() if holds]
        if len(good) == len(parts):
            return make_row(entry, measured, VERDICTS[0])
        note = f"taken for {', '.join(good)} alone" if good else ""
        return make_row(entry, measured, VERDICTS[1] if good else VERDICTS[2], note)

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

    def by_crossover(self, entry: dict) -> Row | None:
        """Whether sparse attention is faster than flash attention beyond the sequence that the claim names."""
        if entry["id"] != "ava.sparse_attention":
            return None
        points, start = beside_flash(self.sweeps, "block_sparse"), entry["figures"]["from_sequence"]
        beyond = [speed for sequence, _, speed in points if sequence > start]
        if not beyond:
            return None
        measured = "speed over flash attention's: " + ", ".join(
            f"{times(speed)} at {sequence:,.0f} tokens on {model}" for sequence, model, speed in points)
        if not all(speed.low > 1 for speed in beyond):
            return make_row(entry, measured, VERDICTS[2])
        first = min(sequence for sequence, _, speed in points if speed.low > 1)
        return make_row(entry, measured, VERDICTS[0], f"already from {first:,.0f} tokens on" if first < start else "")

    def by_sweep(self, entry: dict) -> Row | None:
        found = self.measurements(entry["id"])
        if not found:
            return None
        measured = "; ".join(one.text for one in found)
        good = [one.name for one in found if one.holds]
        if not good:
            return make_row(entry, measured, VERDICTS[2], what_holds(found))
        judged = {finding.claim.figure for one in found for finding in one.findings}
        limits = [", ".join(good)] if len(good) < len(found) else []
        limits += [f"{claim.figure} is not measured here" for claim in self.claimed
                   if claim.id == entry["id"] and claim.figure not in judged]
        return make_row(entry, measured, VERDICTS[1] if limits else VERDICTS[0], "; ".join(limits))

    def unmeasured(self, entry: dict) -> Row:
        reason = next((why for begin, why in REASONS.items() if entry["id"].startswith(begin)), None)
        return make_row(entry, "–", VERDICTS[4], reason or (NO_CASE if entry.get("figures") else NO_FIGURE))


def make_row(entry: dict, measured: str, verdict: str, note: str = "") -> Row:
    return Row(entry["id"], entry["text"], claimed_text(entry), measured, verdict, note)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def markdown(rows: list[Row], guides: dict[str, str], sources: list[str]) -> str:
    counts = ", ".join(f"{verdict} {sum(row.verdict == verdict for row in rows)}" for verdict in VERDICTS)
    lines = ["# What guides claim, and what was measured", "", f"{len(rows)} claims: {counts}.", "", HOW, "", RULE, "",
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
