"""The verdict on a claim: by dry runs, by the bytes of an optimizer's state, by crossovers or by sweeps."""
import dataclasses
import pathlib

import yaml

from .. import figures
from ..format import times
from ..records import ReportError
from . import dry_judges, dry_runs, findings, rank_speeds
from .stated import ARITHMETIC, UNJUDGED, Claim, Technique, figure_text
from .verdicts import Measurement, Verdicts

HOLDS, HOLDS_WHEN, FAILS = "holds", "holds when", "does not hold"
WRONG_ARITHMETIC, NOT_MEASURABLE = "its own arithmetic is wrong", "not measurable here"
VERDICTS = (HOLDS, HOLDS_WHEN, FAILS, WRONG_ARITHMETIC, NOT_MEASURABLE)
# {the beginning of an id: why those claims are out of reach}
REASONS = {begin: why
           for why, begins in yaml.safe_load((pathlib.Path(__file__).parent / "reasons.yaml").read_text()).items()
           for begin in begins}
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
    return ", ".join(figure_text(name, value) for name, value in entry.get("figures", {}).items())


def bytes_per_parameter(case: figures.Case, states: dict) -> float | None:
    """Bytes of optimizer state and a 4-byte master (fp32 weights are their own) a parameter."""
    state = states.get(case.any.command)
    return None if state is None else state["optimizer"] / state["count"] + 4


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
    def __init__(self, sweeps: list[figures.Sweep], techniques: list[Technique], claimed: list[Claim],
                 states: dict, dry: dict):
        self.sweeps, self.states, self.dry = sweeps, states, dry
        self.techniques, self.claimed = techniques, claimed
        self.findings = [(sweep, finding) for sweep in sweeps
                         for finding in findings.findings_of(claimed, techniques, sweep)]

    def row(self, entry: dict) -> Row:
        row = (self.by_dry_run(entry) or self.by_state(entry) or self.by_crossover(entry) or self.by_sweep(entry)
               or self.unmeasured(entry))
        wrong = entry.get("arithmetic")
        if wrong and row.verdict == NOT_MEASURABLE:
            row.verdict, row.note = WRONG_ARITHMETIC, wrong
        elif wrong:
            row.note = "; ".join(filter(None, [row.note, f"{WRONG_ARITHMETIC}: {wrong}"]))
        return row

    def measurements(self, claim: str) -> list[Measurement]:
        found: dict[tuple, Measurement] = {}
        for sweep, finding in self.findings:
            timed = finding.claim.measure == ARITHMETIC and finding.case and finding.case.speed_ratio
            if finding.claim.id == claim and (finding.measured or timed):
                key = id(sweep), finding.case.name
                found.setdefault(key, Measurement(sweep, finding.case)).findings.append(finding)
        return list(found.values())

    def counted(self, claim: str) -> list[findings.Finding]:
        """Findings on the claim's figures of arithmetic, counted by dry runs."""
        more = dry_runs.counted(claim, self.dry.get(claim, {}))
        return [findings.Finding(one, None, more, findings.verdict(one.low, one.high, more)) for one in self.claimed
                if more and one.id == claim and one.measure == ARITHMETIC]

    def by_dry_run(self, entry: dict) -> Row | None:
        dry, runs = dry_runs.DRY_CLAIMS.get(entry["id"]), self.dry.get(entry["id"], {})
        if dry is None or dry.judge is None or runs.keys() != dry.runs.keys():
            return None
        try:
            found, parts = dry.judge(runs, entry.get("figures", {}))
        except KeyError as missing:
            raise ReportError(f"claims: {entry['id']} has no figure {missing}, which it is judged by") from None
        found, parts = self.with_speed(entry, f"{found} ({how_found(entry['id'])})", parts)
        beside = [one.text for one in self.measurements(entry["id"])]
        measured = found + (f"; beside it {'; '.join(beside)}" if beside else "")
        good = [part for part, holds in parts.items() if holds]
        open_ = [f"{part} is not measured here" for part, holds in parts.items() if holds is None]
        if len(good) == len(parts):
            return make_row(entry, measured, HOLDS)
        if not good and open_:
            return make_row(entry, measured, NOT_MEASURABLE, "; ".join(open_))
        note = "; ".join([f"taken for {', '.join(good)} alone", *open_]) if good else ""
        return make_row(entry, measured, HOLDS_WHEN if good else FAILS, note)

    def with_speed(self, entry: dict, found: str, parts: dict) -> tuple[str, dict]:
        """What dry runs found, with the speed of ranks where the claim names one."""
        claimed = entry.get("figures", {}).get("speed_percent")
        names = [row.name for row in self.techniques if entry["id"] in row.claims]
        if claimed is None or not names:
            return found, parts
        text, speeds = rank_speeds.judged(rank_speeds.beside_whole(self.sweeps, names[0]), claimed)
        return "; ".join(filter(None, [found, text])), parts | speeds

    def by_state(self, entry: dict) -> Row | None:
        if "bytes_per_parameter" not in entry.get("figures", {}):
            return None
        names = {row.name for row in self.techniques if entry["id"] in row.claims}
        if entry["id"] == "vibee.adamw_bytes":
            names = {"baseline"}
        held: dict[str, dict[str, list[str]]] = {}  # titles of sweeps by bytes and case
        for sweep, case in ((sweep, case) for sweep in self.sweeps for case in sweep.cases if case.name in names):
            bytes_ = bytes_per_parameter(case, self.states)
            if bytes_ is not None:
                held.setdefault(f"{bytes_:.2f}", {}).setdefault(case.name, []).append(sweep.title)
        if not held:
            return None
        claimed = entry["figures"]["bytes_per_parameter"]
        holds = all(dry_judges.within(float(bytes_), claimed, claimed) for bytes_ in held)
        measured = "; ".join(f"{bytes_} bytes a parameter with a 4-byte master: {name} on {', '.join(titles)}"
                             for bytes_, of in held.items() for name, titles in of.items())
        return make_row(entry, measured, HOLDS if holds else FAILS)

    def by_crossover(self, entry: dict) -> Row | None:
        """Whether sparse attention is faster than flash attention beyond the sequence that the claim names."""
        if entry["id"] != "ava.sparse_attention":
            return None
        points, start = beside_flash(self.sweeps, "block_sparse"), entry.get("figures", {}).get("from_sequence", 0)
        if not points:
            return None
        measured = "speed over flash attention's: " + ", ".join(point.text for point in points)
        known = [point for point in points if point.rounds >= figures.LEAST_ROUNDS]
        beyond = [point.speed for point in known if point.sequence > start]
        if not beyond:
            return make_row(entry, measured, NOT_MEASURABLE,
                            f"beyond {start:,} tokens nothing was measured in two rounds")
        if any(speed.high < 1 for speed in beyond):
            return make_row(entry, measured, FAILS)
        if not all(speed.low > 1 for speed in beyond):
            return make_row(entry, measured, NOT_MEASURABLE, f"beyond {start:,} tokens the interval is too wide")
        first = min(point.sequence for point in known if point.speed.low > 1)
        return make_row(entry, measured, HOLDS, f"already from {first:,.0f} tokens on" if first < start else "")

    def by_sweep(self, entry: dict) -> Row | None:
        said = Verdicts(self.measurements(entry["id"]), self.counted(entry["id"]))
        if not said.cases and not said.counted:
            return None
        counted = [f"{dry_judges.counted_text(one.measured.value)} ({how_found(entry['id'])})" for one in said.counted]
        measured = "; ".join([*counted, *(one.text for one in said.cases)])
        if not said.judged:
            outside = ", ".join(dict.fromkeys(one.outside for one in said.cases if one.outside))
            reasons = [f"every case lies outside of the claim: {outside}"] if outside and not said.inside else \
                [*said.undecided, *self.not_measured(entry, said)]
            return make_row(entry, measured, NOT_MEASURABLE, "; ".join([*reasons, *said.limit]))
        if said.fails and not said.good:
            return make_row(entry, measured, FAILS, "; ".join(filter(None, [said.what_holds, *said.limit])))
        limits = [*said.undecided, *self.not_measured(entry, said), *said.limit]
        if not limits and said.good and not said.fails:
            return make_row(entry, measured, HOLDS)
        where = said.held if limits or not said.good else ", ".join(one.name for one in said.good)
        return make_row(entry, measured, HOLDS_WHEN, "; ".join([where, *limits]))

    def not_measured(self, entry: dict, said: Verdicts) -> list[str]:
        seen = said.judged | {finding.claim.figure for one in said.inside for finding in one.measured}
        every = [claim.figure for claim in self.claimed if claim.id == entry["id"]]
        every += [figure_text(name, value) for name, value in entry["figures"].items() if name in UNJUDGED]
        return [f"{figure} is not measured here" for figure in every if figure not in seen]

    def unmeasured(self, entry: dict) -> Row:
        begins = [begin for begin in REASONS if entry["id"].startswith(begin)]
        reason = REASONS[max(begins, key=len)] if begins else NO_CASE if entry.get("figures") else NO_FIGURE
        return make_row(entry, "–", NOT_MEASURABLE, reason)


def how_found(claim: str) -> str:
    return f"dry run: {dry_runs.settings_of(claim)}" if dry_runs.DRY_CLAIMS[claim].runs else "by formula"


def make_row(entry: dict, measured: str, verdict: str, note: str = "") -> Row:
    return Row(entry["id"], entry["text"], claimed_text(entry), measured, verdict, note)
