"""What guides claim of a technique beside what a sweep measured, and a verdict by a stated rule."""
import dataclasses
import json
import math
import pathlib
import statistics

import yaml

from ..figures import Case, Interval, Sweep
from ..records import Record, ReportError
from .names import (CLAIM_KEYS, CONDITIONS, FILE_KEYS, OTHER_MEMORY, STATED, TABLE_KEYS, TECHNIQUE_KEYS, UNJUDGED,
                    require_known)

SCHEMA = 1
SPEED, STEP_TIME, ARITHMETIC = "added tokens/s", "added step time", "added arithmetic"
# The figures of a claim that a sweep can judge: what is measured, and the figure in percent.
FIGURES = {
    "memory_saved_percent": ("memory saved", lambda percent: percent),
    "reduction_factor": ("memory saved", lambda times: 100 * (1 - 1 / times)),
    "slowdown_percent": (STEP_TIME, lambda percent: percent),
    "slowdown_factor": (STEP_TIME, lambda times: 100 * (times - 1)),
    "extra_compute_percent": (ARITHMETIC, lambda percent: percent),  # counted by dry runs, which see no records
    "speed_percent": (SPEED, lambda percent: percent),
    "speedup_factor": (SPEED, lambda times: 100 * (times - 1)),
}
# What a claim may name as `of`, as kinds of memory.
MEMORY_OF = {
    "activation memory": ("activations",),
    "attention memory": ("activations.attention",),
    "weights and activations": ("parameters", "master", "activations"),
}
STATE = ("parameters", "master", "gradients", "optimizer")
# The kinds of memory that a saving is stated of besides the whole peak, whatever the claim names.
BESIDE = {
    "activation memory": MEMORY_OF["activation memory"],
    "state": STATE,
}
MEMORIES = {"", *MEMORY_OF, *OTHER_MEMORY}
SIXTEEN_BITS = ("fp16", "bf16")
KNOWN = {"of", *FIGURES, *CONDITIONS, *UNJUDGED, *STATED}


@dataclasses.dataclass(frozen=True)
class Condition:
    """Where a claim says that it holds: from either of two sizes on. 0 or "" where it names no such bound."""

    from_parameters: float = 0
    from_sequence: float = 0
    not_below_parameters: float = 0
    every: int = 0  # blocks, of which it takes as many
    against: str = ""  # the precision that the baseline must have, as far as its bytes go

    def below(self, case: Case) -> bool:
        """Whether the case is where the claim says that it doesn't hold."""
        return case.any.parameters < self.not_below_parameters

    def excludes(self, case: Case) -> str:
        """Why the case says nothing of the claim; "" where it does."""
        if self.below(case):
            return f"below {self.not_below_parameters:,.0f} parameters"
        starts = [one for one in ((self.from_parameters, case.any.parameters, "parameters"),
                                  (self.from_sequence, case.any.sequence, "tokens")) if one[0]]
        if starts and not any(size >= bound for bound, size, _ in starts):
            return "not from " + " or ".join(f"{bound:,.0f} {unit}" for bound, _, unit in starts) + " on"
        if layers_of(case) < self.every:
            return f"{layers_of(case):.0f} layers"
        base = case.pairs[0][1].resolved.get("precision", {}).get("compute", "another precision") if case.pairs else ""
        return f"against {base}" if self.against and base not in SIXTEEN_BITS else ""


@dataclasses.dataclass(frozen=True)
class Claim:
    """One figure of one claim of a guide, in percent; `of` names the memory it is about, "" the whole peak."""

    id: str
    guide: str
    text: str
    figure: str  # as the guide puts it
    measure: str  # one of those in FIGURES
    low: float
    high: float
    of: str
    arithmetic: str
    condition: Condition = Condition()


@dataclasses.dataclass(frozen=True)
class Technique:
    """parts: what it puts together, empty for a single one; claims: the ids of what is said of it; settings: its own,
    by their full names."""

    name: str
    parts: list[str]
    claims: list[str]
    settings: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Finding:
    claim: Claim
    case: Case | None
    measured: Interval | None  # percent
    verdict: str
    outside: str = ""  # why the case says nothing of the claim


def layers_of(case: Case) -> float:
    """NaN where its record doesn't say."""
    return case.any.resolved.get("model", {}).get("layers", math.nan)


def figure_text(name: str, value: object) -> str:
    """("speedup_factor", [2, 4]) as "speedup factor 2 to 4"."""
    words = name.removesuffix("_percent").replace("_", " ")
    shown = " to ".join(f"{end:g}" for end in value) if isinstance(value, list) else f"{value:g}"
    return f"{words} {shown}" + (" %" if name.endswith("_percent") else "")


def condition_of(stated: dict) -> Condition:
    """`against` is of bytes alone, so that any 16 bits will do for one kind of them."""
    condition = Condition(**{name: stated[name] for name in CONDITIONS if name in stated})
    if condition.against not in ("", *SIXTEEN_BITS):
        raise ValueError(f"against {condition.against}; one of {', '.join(SIXTEEN_BITS)} is known")
    if not all(isinstance(bound, (int, float)) for name, bound in vars(condition).items() if name != "against"):
        raise ValueError("a condition is a number")
    return condition


def claims_of(entry: dict, guide: str) -> list[Claim]:
    require_known(entry, CLAIM_KEYS, entry["id"])
    stated, claims = entry.get("figures", {}), []
    require_known(stated, KNOWN, f"{entry['id']}: figures")
    require_known([stated.get("of", "")], MEMORIES, f"{entry['id']}: of")
    if not isinstance(entry["text"], str):
        raise ValueError(f"{entry['id']} has no text")
    for name, value in stated.items():
        if name in FIGURES:
            measure, percent = FIGURES[name]
            ends = [percent(end) for end in (value if isinstance(value, list) else [value])]
            of = stated.get("of", "") if measure == "memory saved" else ""
            claims.append(Claim(entry["id"], guide, entry["text"], figure_text(name, value), measure, min(ends),
                                max(ends), of, entry.get("arithmetic", ""), condition_of(stated)))
    return claims


def all_claims(content: dict) -> list[Claim]:
    require_known(content, FILE_KEYS, "the file")
    ids = [entry["id"] for entry in content["claims"]]
    if twice := sorted({id for id in ids if ids.count(id) > 1}):
        raise ValueError(f"given twice: {', '.join(twice)}")
    return [claim for entry in content["claims"]
            for claim in claims_of(entry, content["guides"][entry["id"].partition(".")[0]])]


def read_claims(path: pathlib.Path) -> list[Claim]:
    """The figures that a sweep can judge, in the order of the file."""
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}; --claims names the file of claims") from None
    except yaml.YAMLError as error:
        raise ReportError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ReportError(f"{path}: claims of schema {SCHEMA} are expected ('schema: {SCHEMA}' at the top)")
    try:
        return all_claims(content)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ReportError(f"{path}: a claim has an id of a known guide, a text, figures and arithmetic: {error}") from None


def widened(low: float, high: float) -> tuple[float, float]:
    return low - max(2, abs(low) / 10), high + max(2, abs(high) / 10)


def verdict(low: float, high: float, measured: Interval) -> str:
    """Of an interval against what is claimed, all in percent. "confirmed": all of it lies within the claim, widened;
    "partly": it reaches into what lies between half of the claim and twice the claim, widened alike: the effect is there,
    in another size; "refuted": neither."""
    claimed, near = widened(low, high), widened(min(low / 2, low * 2), max(high / 2, high * 2))
    if claimed[0] <= measured.low and measured.high <= claimed[1]:
        return "confirmed"
    return "partly" if measured.low <= near[1] and near[0] <= measured.high else "refuted"


def direction(claim: Claim, measured: Interval) -> str:
    """How the effect differs from the one claimed: "less", "more", "the opposite", or "" where it doesn't."""
    sign = 1 if claim.low + claim.high >= 0 else -1
    low, high, value = sorted((sign * claim.low, sign * claim.high)) + [sign * measured.value]
    if low <= value <= high:
        return ""
    if value > high:
        return "more"
    return "the opposite" if value < 0 else "less"


def held(run: Record, kinds: tuple[str, ...]) -> float:
    """The most bytes of these kinds at the peak of any phase."""
    return max((sum(phase.get(kind, 0) for kind in kinds) for phase in run.memory.values()), default=0)


def ratio_of_kinds(case: Case, kinds: tuple[str, ...]) -> Interval | None:
    ratios = [held(run, kinds) / held(base, kinds) for run, base in case.pairs if held(base, kinds)]
    return Interval(statistics.median(ratios), min(ratios), max(ratios)) if ratios else None


def step_time(case: Case) -> Interval | None:
    """Percent more than the baseline's."""
    return case.speed_ratio and case.speed_ratio.through(lambda ratio: 100 * (1 / ratio - 1))


def measure(claim: Claim, case: Case) -> Interval | None:
    """In percent of the baseline; None where the case doesn't say."""
    if claim.measure == ARITHMETIC:
        return None
    if claim.measure == SPEED:
        return case.speed_ratio and case.speed_ratio.through(lambda ratio: 100 * (ratio - 1))
    if claim.measure == STEP_TIME:
        return step_time(case)
    if claim.of and claim.of not in MEMORY_OF:
        return None
    ratio = ratio_of_kinds(case, MEMORY_OF[claim.of]) if claim.of else case.peak_ratio
    return ratio and ratio.through(lambda share: 100 * (1 - share))


def savings(case: Case) -> dict[str, Interval]:
    """Percent of the baseline's memory that is saved, of each kind in BESIDE and of the whole peak."""
    ratios = {of: ratio_of_kinds(case, kinds) for of, kinds in BESIDE.items()} | {"the whole peak": case.peak_ratio}
    return {of: ratio.through(lambda share: 100 * (1 - share)) for of, ratio in ratios.items() if ratio}


def find(claim: Claim, case: Case | None) -> Finding:
    measured = measure(claim, case) if case else None
    if not measured:
        return Finding(claim, case, None, "not measured")
    if outside := claim.condition.excludes(case):
        return Finding(claim, case, measured, "outside", outside)
    alone = claim.measure != "memory saved" and case.one_round
    return Finding(claim, case, measured, "one round" if alone else verdict(claim.low, claim.high, measured))


def added(case: Case, sweep: Sweep) -> set[str]:
    """The techniques that a case has and its baseline doesn't."""
    baseline = sweep.case(case.baseline)
    return set(case.techniques) - set(baseline.techniques if baseline else ())


def says(claim: Claim, case: Case, sweep: Sweep) -> bool:
    """Whether the case can say anything of the claim: no copy between host and device crosses a bus on a CPU."""
    offloads = any(name.startswith("host_") for name in case.techniques)
    return claim.measure == "memory saved" or not offloads or bool(sweep.machine.get("gpu"))


def judge(claims: list[Claim], techniques: list[Technique], sweep: Sweep) -> list[Finding]:
    """A finding for each case that measures a claim, i.e. adds to its baseline the technique that it's about, or all
    the parts of that, and nothing else; one that isn't measured for a claim that no case measures."""
    findings = []
    for claim in claims:
        rows = [row for row in techniques if claim.id in row.claims]
        about = [{row.name} for row in rows] + [set(row.parts) for row in rows if row.parts]
        cases = [case for case in sweep.cases
                 if case.baseline and case.family != "ladder" and added(case, sweep) in about and says(claim, case, sweep)]
        findings += [find(claim, case) for case in cases or [None]]
    return findings


def technique_of(row: dict) -> Technique:
    require_known(row, TECHNIQUE_KEYS, row["name"])
    return Technique(row["name"], row["parts"], [claim["id"] for claim in row["claims"]], dict(row.get("settings", {})))


def techniques_of(content: dict) -> list[Technique]:
    require_known(content, TABLE_KEYS, "the file")
    rows = [technique_of(row) for row in content["techniques"]]
    names = {row.name for row in rows}
    for row in rows:
        require_known(row.parts, names, f"{row.name}: parts")
    return rows


def read_techniques(path: pathlib.Path) -> list[Technique]:
    """What `moelab techniques --json` printed."""
    try:
        content = json.loads(path.read_text())
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, expected {SCHEMA}")
        return techniques_of(content)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}; 'moelab techniques --json' prints it") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"{path}: not the table that 'moelab techniques --json' prints: {error}") from None
