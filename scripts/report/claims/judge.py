"""The verdict on a claim: by dry runs and cases that it names, by the bytes of an optimizer's state, by crossovers or by sweeps. What
is wrong with the claim's own sums stands beside it and decides nothing."""
import dataclasses
import math
import pathlib

import yaml

from .. import figures
from ..format import times
from ..records import ReportError
from . import case_judges, dry_runs, findings, outcomes, rank_speeds
from .lines import line_of
from .outcomes import OVERSTATED, RIGHT, UNTESTED, Part
from .stated import ARITHMETIC, STEP_TIME, UNJUDGED, Claim, Technique, figure_text, is_figure
from .verdicts import Measurement, Verdicts, beside_no_figure, brief, of_case

# {the beginning of an id: why those claims are untested}
REASONS = {begin: why
           for why, begins in yaml.safe_load((pathlib.Path(__file__).parent / "reasons.yaml").read_text()).items()
           for begin in begins}
NO_FIGURE = "no figure is claimed"
NO_CASE = "no record of a case that says"
DRY = "beside the dry runs, decides nothing"


@dataclasses.dataclass
class Row:
    """One claim. decided: the measurement that decided it, in a few words; untested: what of it is not, and why; sums:
    what is wrong with its own arithmetic; evidence: all that it claims and that was measured, whether or not it decided;
    found: of each part or figure that something was found of, in words; runs_decide: as of a Part."""

    id: str
    text: str
    claimed: str
    verdict: str  # one of VERDICTS
    decided: str = ""
    untested: list[str] = dataclasses.field(default_factory=list)
    sums: str = ""
    evidence: list[str] = dataclasses.field(default_factory=list)
    found: dict[str, str] = dataclasses.field(default_factory=dict)
    runs_decide: bool = True


def claimed_text(entry: dict, settings: bool = False) -> str:
    """The figures that it claims, with the settings that it claims them for."""
    stated = entry.get("figures", {})
    of = {"memory_saved_percent": f" of {stated['of']}"} if "of" in stated else {}
    return ", ".join(figure_text(name, value) + of.get(name, "") for name, value in stated.items()
                     if name != "of" and (settings or is_figure(name)))


def bytes_per_parameter(case: figures.Case) -> float:
    """Bytes of optimizer state and a 4-byte master (fp32 weights are their own) a parameter; NaN where no record says."""
    return case.any.optimizer_state / case.any.parameters + 4


@dataclasses.dataclass(frozen=True)
class Point:
    sequence: float
    model: str
    speed: figures.Interval  # ratio to the speed of flash attention
    rounds: int

    @property
    def text(self) -> str:
        speed = times(self.speed) if self.rounds >= figures.LEAST_ROUNDS else f"{self.speed.value:.2f} × (one round)"
        return f"{speed} at {self.sequence:,.0f} tokens on {self.model}"


def beside_flash(sweeps: list[figures.Sweep], name: str) -> list[Point]:
    """The speed of a case beside flash attention's at each sequence that a sweep has both at."""
    points = []
    for sweep in sweeps:
        case, flash = sweep.case(name), sweep.case("flash_attention")
        pairs = figures.paired(case.runs, flash.runs) if case and flash and case.family == "crossover" else []
        if pairs:
            speed = figures.ratio_of_rates([(run.rates, base.rates) for run, base in pairs])
            points.append(Point(case.any.sequence, sweep.model, speed, len(pairs)))
    return sorted(points, key=lambda point: (point.sequence, point.model))


class Judge:
    def __init__(self, sweeps: list[figures.Sweep], techniques: list[Technique], claimed: list[Claim], dry: dict):
        self.sweeps, self.dry = sweeps, dry
        self.techniques, self.claimed = techniques, claimed
        self.findings = [(sweep, finding) for sweep in sweeps
                         for finding in findings.findings_of(claimed, techniques, sweep)]

    def row(self, entry: dict) -> Row:
        row = (self.by_parts(entry) or self.by_state(entry) or self.by_crossover(entry) or self.by_sweep(entry)
               or self.unmeasured(entry))
        row.sums = entry.get("arithmetic", "")
        return row

    def of(self, claim: str) -> list[Claim]:
        return [one for one in self.claimed if one.id == claim]

    def measurements(self, claim: str) -> list[Measurement]:
        found: dict[tuple, tuple] = {}
        for sweep, finding in self.findings:
            timed = finding.claim.measure == ARITHMETIC and finding.case and finding.case.speed_ratio
            if finding.claim.id == claim and (finding.measured or timed):
                found.setdefault((id(sweep), finding.case.name), (sweep, finding.case, []))[2].append(finding)
        dry = dry_runs.measurement(self.of(claim), self.dry.get(claim, {}))
        return [*([dry] if dry else []), *(of_case(*one) for one in found.values())]

    def by_parts(self, entry: dict) -> Row | None:
        """By the parts of the claim that dry runs and cases of its own decide."""
        dry, cases = self.by_dry_runs(entry), self.by_cases(entry)
        if dry is None and cases is None:
            return None
        (found, parts), (seen, more) = dry or ("", {}), cases or ("", {})
        speed, speeds = self.speeds(entry) if dry else ("", {})
        parts = parts | more | speeds
        timed = self.timed(entry["id"]) if "time" in parts else None
        if timed:
            parts["time"] = Part(timed.outcome, brief(timed))
        evidence = [*([f"{found} ({dry_runs.how_found(entry['id'])})"] if dry else []), *filter(None, [seen, speed])]
        evidence += [one.text + (f"; {DRY}" if dry else "") + (" but the time" if timed in one.findings else "")
                     for one in self.measurements(entry["id"])]
        if cases and not self.of(entry["id"]):
            evidence += [beside_no_figure(*one) for one in self.cases_of(entry)]
        undecided = {name: part for name, part in parts.items() if part.outcome is None}
        untested = [f"{name}: {part.found or 'not measured here'}" for name, part in undecided.items()]
        decided = line_of([found, seen, speed, timed and brief(timed)], parts)
        row = make_row(entry, [part.outcome for part in parts.values()], decided, untested, evidence)
        row.found = {name: part.found for name, part in parts.items() if part.found and part.outcome}
        row.runs_decide = any(part.runs_decide for part in undecided.values())
        return row

    def by_dry_runs(self, entry: dict) -> dry_runs.dry_judges.Judged | None:
        dry, runs = dry_runs.DRY_CLAIMS.get(entry["id"]), self.dry.get(entry["id"], {})
        if dry is None or dry.judge is None or runs.keys() != dry.runs.keys():
            return None
        try:
            return dry.judge(runs, entry.get("figures", {}))
        except KeyError as missing:
            raise ReportError(f"claims: {entry['id']} has no figure {missing}, which it is judged by") from None

    def by_cases(self, entry: dict) -> case_judges.Judged | None:
        """None where nothing was measured of it."""
        judge = case_judges.judge_of(entry["id"])
        found = judge(case_judges.Seen(entry.get("figures", {}), self.sweeps, self.cases_of(entry))) if judge else ("", {})
        return found if found[1] else None

    def cases_of(self, entry: dict) -> list[tuple[figures.Sweep, figures.Case]]:
        """The cases that add a technique of the claim to their baseline, with a round of both."""
        rows = [row for row in self.techniques if entry["id"] in row.claims]
        return [(sweep, case) for sweep in self.sweeps for case in findings.cases_about(rows, sweep) if case.pairs]

    def timed(self, claim: str) -> findings.Finding | None:
        """The time that a sweep measured of all parts of the technique together; None where it decides nothing."""
        whole = {row.name for row in self.techniques if claim in row.claims and row.parts}
        found = [finding for _, finding in self.findings if finding.claim.id == claim and finding.outcome
                 and finding.claim.measure == STEP_TIME and finding.case.name in whole]
        return found[0] if found else None

    def speeds(self, entry: dict) -> tuple[str, dict[str, Part]]:
        """The speed of ranks where the claim names one."""
        claimed = entry.get("figures", {}).get("speed_percent")
        names = [row.name for row in self.techniques if entry["id"] in row.claims]
        if claimed is None or not names:
            return "", {}
        return rank_speeds.judged(self.sweeps, names[0], claimed, entry["figures"].get("from_parameters", 0))

    def by_state(self, entry: dict) -> Row | None:
        if "bytes_per_parameter" not in entry.get("figures", {}):
            return None
        names = {row.name for row in self.techniques if entry["id"] in row.claims}
        if entry["id"] == "vibee.adamw_bytes":
            names = {"baseline"}
        held: dict[str, dict[str, list[str]]] = {}  # titles of sweeps by bytes and case
        for sweep, case in ((sweep, case) for sweep in self.sweeps for case in sweep.cases if case.name in names):
            bytes_ = bytes_per_parameter(case)
            if not math.isnan(bytes_):
                held.setdefault(f"{bytes_:.2f}", {}).setdefault(case.name, []).append(sweep.title)
        if not held:
            return None
        claimed = entry["figures"]["bytes_per_parameter"]
        decided = [f"{bytes_} bytes a parameter, master included ({', '.join(f'`{name}`' for name in of)})"
                   for bytes_, of in held.items()]
        evidence = [f"{bytes_} bytes a parameter: `{name}` on {', '.join(titles)}"
                    for bytes_, of in held.items() for name, titles in of.items()]
        found = [outcomes.of_need(float(bytes_), claimed) for bytes_ in held]
        row = make_row(entry, found, "; ".join(decided), [], evidence)
        row.found = {"bytes_per_parameter": ", ".join(held)}
        return row

    def by_crossover(self, entry: dict) -> Row | None:
        """Whether sparse attention is faster than flash attention from the sequence on that the claim names, which counts as in every claim."""
        if entry["id"] != "ava.sparse_attention":
            return None
        points, start = beside_flash(self.sweeps, "block_sparse"), entry.get("figures", {}).get("from_sequence", 0)
        if not points:
            return None
        evidence = [f"speed of `block_sparse` over flash attention's: {point.text}" for point in points]
        known = [point for point in points if point.rounds >= figures.LEAST_ROUNDS]
        inside = [point for point in known if point.sequence >= start]
        if not inside:
            return make_row(entry, [], "", [f"from {start:,} tokens on nothing was measured in two rounds"], evidence)
        found = [RIGHT if one.speed.low > 1 else OVERSTATED if one.speed.high < 1 else None for one in inside]
        if set(found) <= {RIGHT, None} and None in found:
            return make_row(entry, [], "", [f"from {start:,} tokens on the interval is too wide"], evidence)
        faster = [point.sequence for point in known if point.speed.low > 1]
        already = f"; already from {min(faster):,.0f} tokens on" if set(found) == {RIGHT} and min(faster) < start else ""
        return make_row(entry, found, f"beside flash attention: {'; '.join(one.text for one in inside)}{already}", [], evidence)

    def by_sweep(self, entry: dict) -> Row | None:
        said = Verdicts(self.measurements(entry["id"]))
        if not said.measurements:
            return None
        evidence = [*(one.text for one in said.measurements), *said.limit]
        missing = {**said.undecided, **self.not_measured(entry, said)}
        outside = ", ".join(dict.fromkeys(one.outside for one in said.measurements if one.outside))
        if said.best is None and outside and not said.inside:
            return make_row(entry, [], "", [f"every case lies outside of the claim: {outside}"], evidence)
        found = [finding.outcome for finding in said.findings if finding.outcome] + [None] * len(missing)
        decided = said.line(list(missing)) if said.best else ""
        evidence += [f"in all: {said.tally}"] if said.tally else []
        row = make_row(entry, found, decided, [f"{figure}: {why}" for figure, why in missing.items()], evidence)
        row.found = {name: text for name, value in entry["figures"].items() if (text := said.of_figure(figure_text(name, value)))}
        return row

    def not_measured(self, entry: dict, said: Verdicts) -> dict[str, str]:
        seen = {finding.claim.figure for finding in said.findings}
        every = [claim.figure for claim in self.of(entry["id"])]
        every += [figure_text(name, value) for name, value in entry["figures"].items() if name in UNJUDGED]
        return {figure: "not measured here" for figure in every if figure not in seen}

    def unmeasured(self, entry: dict) -> Row:
        begins = [begin for begin in REASONS if entry["id"].startswith(begin)]
        cases, names = self.cases_of(entry), [f"`{row.name}`" for row in self.techniques if entry["id"] in row.claims]
        without = f"no record here of {', '.join(names)}" if names and not cases else NO_CASE if entry.get("figures") else NO_FIGURE
        reason = REASONS[max(begins, key=len)] if begins else without
        row = make_row(entry, [], "", [reason], [beside_no_figure(*one) for one in cases])
        row.runs_decide = not begins
        return row


def make_row(entry: dict, found, decided: str, untested: list[str], evidence: list[str]) -> Row:
    verdict = outcomes.together([*found, *([None] if untested else [])])
    claimed = [f"claimed: {claimed_text(entry, settings=True)}"] if entry.get("figures") else []
    return Row(entry["id"], entry["text"], claimed_text(entry) or "no figure", verdict,
               decided if verdict != UNTESTED else "", untested, "", [*claimed, *evidence])
