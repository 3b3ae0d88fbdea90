"""What one case of a sweep says of one figure of a claim."""
import dataclasses
import statistics

from ..figures import Case, Interval, Sweep
from ..records import Record
from .stated import ARITHMETIC, MEMORY_OF, SAVED, SPEED, STEP_TIME, Claim, Technique

STATE = ("parameters", "master", "gradients", "optimizer")
# Savings are always stated of these kinds of memory and of the whole peak, whatever kind the claim names.
BESIDE = {"activation memory": MEMORY_OF["activation memory"], "state": STATE}


@dataclasses.dataclass(frozen=True)
class Finding:
    claim: Claim
    case: Case | None
    measured: Interval | None  # percent
    verdict: str
    outside: str = ""  # why the case says nothing of the claim


def widened(low: float, high: float) -> tuple[float, float]:
    return low - max(2, abs(low) / 10), high + max(2, abs(high) / 10)


def verdict(low: float, high: float, measured: Interval) -> str:
    """Of an interval against what is claimed, all in percent. "confirmed": all of it lies within the claim, widened;
    "partly": it reaches into what lies between half of the claim and twice the claim, widened alike, so that the effect
    is there in another size; "refuted": neither."""
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
    """Percent that a step takes longer than the baseline's."""
    return case.speed_ratio and case.speed_ratio.through(lambda ratio: 100 * (1 / ratio - 1))


def measure(claim: Claim, case: Case) -> Interval | None:
    """What the case measures for this figure, in percent of the baseline; None where it doesn't measure it."""
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
    alone = claim.measure != SAVED and case.one_round
    return Finding(claim, case, measured, "one round" if alone else verdict(claim.low, claim.high, measured))


def added(case: Case, sweep: Sweep) -> set[str]:
    """The techniques that a case has and its baseline doesn't."""
    baseline = sweep.case(case.baseline)
    return set(case.techniques) - set(baseline.techniques if baseline else ())


def says(claim: Claim, case: Case, sweep: Sweep) -> bool:
    """Whether the case can say anything of the claim: no copy between host and device crosses a bus on a CPU."""
    offloads = any(name.startswith("host_") for name in case.techniques)
    return claim.measure == SAVED or not offloads or bool(sweep.machine.get("gpu"))


def findings_of(claims: list[Claim], techniques: list[Technique], sweep: Sweep) -> list[Finding]:
    """A finding for each case that measures a claim, i.e. adds to its baseline the technique that it's about, or all
    the parts of that, and nothing else; one that isn't measured for a claim that no case measures."""
    findings = []
    for claim in claims:
        rows = [row for row in techniques if claim.id in row.claims]
        about = [{row.name} for row in rows] + [set(row.parts) for row in rows if row.parts]
        cases = [case for case in sweep.cases
                 if case.baseline and case.family != "ladder" and added(case, sweep) in about
                 and says(claim, case, sweep)]
        findings += [find(claim, case) for case in cases or [None]]
    return findings
