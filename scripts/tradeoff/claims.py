"""What guides claim of a technique beside what a sweep measured, and a verdict by a stated rule."""
import dataclasses
import json
import pathlib
import statistics

import yaml

from .figures import Case, Interval, Sweep
from .records import Record, ReportError

SCHEMA = 1
# The figures of a claim that a sweep can judge: what is measured, and the figure in percent.
FIGURES = {
    "memory_saved_percent": ("memory saved", lambda percent: percent),
    "reduction_factor": ("memory saved", lambda times: 100 * (1 - 1 / times)),
    "slowdown_percent": ("added step time", lambda percent: percent),
    "slowdown_factor": ("added step time", lambda times: 100 * (times - 1)),
    "extra_compute_percent": ("added step time", lambda percent: percent),  # arithmetic itself isn't measured
    "speed_percent": ("added tokens/s", lambda percent: percent),
    "speedup_factor": ("added tokens/s", lambda times: 100 * (times - 1)),
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
KEYS = {"id", "text", "figures", "arithmetic"}  # of a claim
RULE = (
    "A claimed range (a single figure is a range of no width) is widened on both sides by a tenth of its "
    "end, and by 2 percentage points at least. **confirmed**: all of the measured interval lies within it. "
    "**partly**: it doesn't, but reaches into what lies between half of the claim and twice the claim "
    "(widened alike): the effect is there, in another size. **refuted**: neither. **not measured**: no case "
    "of the sweep says. A verdict is of the model and the machine measured here. Memory saved is of the kind"
    " of memory that the claim names, or of the whole peak where it names none; a claim of extra arithmetic "
    "is held against step time. On a CPU host memory is the device's own, and offload to it has no time to be judged by.")


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


@dataclasses.dataclass(frozen=True)
class Technique:
    """parts: what it puts together, empty for a single one; claims: the ids of what is said of it."""

    name: str
    parts: list[str]
    claims: list[str]


@dataclasses.dataclass(frozen=True)
class Finding:
    claim: Claim
    case: Case | None
    measured: Interval | None  # percent
    verdict: str


def figure_text(name: str, value: object) -> str:
    """("speedup_factor", [2, 4]) as "speedup factor 2 to 4"."""
    words = name.removesuffix("_percent").replace("_", " ")
    shown = " to ".join(f"{end:g}" for end in value) if isinstance(value, list) else f"{value:g}"
    return f"{words} {shown}" + (" %" if name.endswith("_percent") else "")


def claims_of(entry: dict, guide: str) -> list[Claim]:
    if unknown := entry.keys() - KEYS:
        raise KeyError(f"{entry.get('id')} has the unknown {', '.join(sorted(unknown))}")
    claims = []
    for name, value in entry.get("figures", {}).items():
        if name in FIGURES:
            measure, percent = FIGURES[name]
            ends = [percent(end) for end in (value if isinstance(value, list) else [value])]
            of = entry["figures"].get("of", "") if measure == "memory saved" else ""
            claims.append(Claim(entry["id"], guide, entry["text"], figure_text(name, value), measure, min(ends),
                                max(ends), of, entry.get("arithmetic", "")))
    return claims


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
        return [claim for entry in content["claims"]
                for claim in claims_of(entry, content["guides"][entry["id"].partition(".")[0]])]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReportError(f"{path}: a claim has an id of a known guide, a text, figures and arithmetic: {error}") from None


def widened(low: float, high: float) -> tuple[float, float]:
    return low - max(2, abs(low) / 10), high + max(2, abs(high) / 10)


def verdict(low: float, high: float, measured: Interval) -> str:
    """See RULE. All figures are percentages."""
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


def measure(claim: Claim, case: Case) -> Interval | None:
    """In percent of the baseline; None where the case doesn't say."""
    if claim.measure == "added tokens/s":
        return case.speed_ratio and case.speed_ratio.through(lambda ratio: 100 * (ratio - 1))
    if claim.measure == "added step time":
        return case.speed_ratio and case.speed_ratio.through(lambda ratio: 100 * (1 / ratio - 1))
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
    return Finding(claim, case, measured, verdict(claim.low, claim.high, measured) if measured else "not measured")


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


def techniques_of(content: dict) -> list[Technique]:
    rows = [Technique(row["name"], row["parts"], [claim["id"] for claim in row["claims"]]) for row in content["techniques"]]
    names = {row.name for row in rows}
    for row in rows:
        if unknown := [part for part in row.parts if part not in names]:
            raise ValueError(f"{row.name} is made of unknown techniques: {', '.join(unknown)}")
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
    except (ValueError, KeyError, TypeError) as error:
        raise ReportError(f"{path}: not the table that 'moelab techniques --json' prints: {error}") from None
