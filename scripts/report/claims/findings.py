"""What one case of a sweep says of one figure of a claim."""
import dataclasses
import statistics

from ..figures import Case, Interval, Sweep
from ..records import Record
from . import outcomes
from .stated import COUNTED, MEMORY_OF, SAVED, SPEED, STEP_TIME, Claim, Technique

STATE = ("parameters", "master", "gradients", "optimizer")
# Savings are always stated of these kinds of memory and of the whole peak, whatever kind the claim names.
BESIDE = {"activation memory": MEMORY_OF["activation memory"], "state": STATE}


CHECKPOINT = "activations.checkpoint"  # the setting that says which blocks are recomputed
# A part of a combination that alone peaks this near to the whole leaves nothing for the rest to do.
AS_LOW = 1.01


@dataclasses.dataclass(frozen=True)
class Finding:
    """case: None for dry runs, and where no case measures the claim."""

    claim: Claim
    case: Case | None
    measured: Interval | None  # percent
    outcome: outcomes.Outcome = None
    outside: str = ""  # why the case says nothing of the claim
    undecided: str = ""  # why the measured interval decides nothing


def found(claim: Claim, case: Case | None, measured: Interval, one_round: bool = False) -> Finding:
    if one_round:
        return Finding(claim, case, measured, undecided="one round alone")
    outcome = outcomes.of_interval(claim.low, claim.high, measured, claim.more_is_better)
    return Finding(claim, case, measured, outcome, undecided="" if outcome else "the interval is too wide")


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
    if claim.measure in COUNTED:
        return None
    if claim.measure == SPEED:
        return case.speed_ratio and case.speed_ratio.through(lambda ratio: 100 * (ratio - 1))
    if claim.measure == STEP_TIME:
        return step_time(case)
    if claim.of and claim.of not in MEMORY_OF:
        return None
    return measured_saving(case, MEMORY_OF[claim.of] if claim.of else ())


def measured_saving(case: Case, kinds: tuple[str, ...]) -> Interval | None:
    """Percent of the baseline's memory of these kinds that is saved; without kinds of the whole peak."""
    ratio = ratio_of_kinds(case, kinds) if kinds else case.peak_ratio
    return ratio and ratio.through(lambda share: 100 * (1 - share))


def savings(case: Case) -> dict[str, Interval]:
    """Percent of the baseline's memory that is saved, of each kind in BESIDE and of the whole peak."""
    saved = {of: measured_saving(case, kinds) for of, kinds in (BESIDE | {"the whole peak": ()}).items()}
    return {of: one for of, one in saved.items() if one}


def find(claim: Claim, case: Case | None, idle: str = "") -> Finding:
    """idle: why the case can't show what its techniques do."""
    measured = measure(claim, case) if case else None
    if not measured:
        return Finding(claim, case, None)
    if outside := claim.condition.excludes(case) or idle:
        return Finding(claim, case, measured, outside=outside)
    return found(claim, case, measured, claim.measure != SAVED and case.one_round)


def added(case: Case, sweep: Sweep) -> set[str]:
    """The techniques that a case has and its baseline doesn't."""
    baseline = sweep.case(case.baseline)
    return set(case.techniques) - set(baseline.techniques if baseline else ())


def says(claim: Claim, case: Case, sweep: Sweep) -> bool:
    """Whether the case can say anything of the claim: no copy between host and device crosses a bus on a CPU."""
    offloads = any(name.startswith("host_") for name in case.techniques)
    return claim.measure == SAVED or not offloads or bool(sweep.machine.get("gpu"))


def beside(case: Case, sweep: Sweep) -> dict[str, Case]:
    """The other cases that add one technique to the same baseline, by its name."""
    others = [other for other in sweep.cases if other is not case and other.baseline == case.baseline and other.runs]
    return {next(iter(new)): other for other in others if len(new := added(other, sweep)) == 1}


def idle_part(case: Case, sweep: Sweep, techniques: list[Technique]) -> str:
    """The part of a combination that alone peaks as low as the whole; "" without one."""
    new, others = added(case, sweep), beside(case, sweep)
    whole = [row for row in techniques if row.parts and new in ({row.name}, set(row.parts))]
    return next((name for row in whole for name in row.parts
                 if name in others and others[name].peak.value <= AS_LOW * case.peak.value), "")


def same_recomputation(case: Case, sweep: Sweep, techniques: list[Technique]) -> str:
    """The technique that recomputes other blocks than this case and peaks at the very same bytes; "" without one."""
    recompute = {row.name for row in techniques if CHECKPOINT in row.settings and not row.parts}
    new = added(case, sweep)
    if len(new) != 1 or not new <= recompute:
        return ""
    return next((name for name, other in beside(case, sweep).items()
                 if name in recompute and other.peak.value == case.peak.value), "")


def idle(case: Case, sweep: Sweep, techniques: list[Technique]) -> str:
    """Why the case can't show what its techniques do; "" where it can."""
    if not case.runs:
        return ""
    if part := idle_part(case, sweep, techniques):
        return f"`{part}` alone peaks as low, so that the rest has no effect there"
    if same := same_recomputation(case, sweep, techniques):
        return f"`{same}` peaks at the same bytes: too few layers to tell them apart"
    return ""


def too_small(claim: Claim, case: Case, sweep: Sweep, techniques: list[Technique]) -> str:
    """Why a technique for activations can't save as much of the whole peak as is claimed; "" where it can."""
    settings = [key for row in techniques if row.name in added(case, sweep) for key in row.settings]
    if claim.measure != SAVED or claim.of or not case.pairs or not all(key.startswith("activations.") for key in settings or [""]):
        return ""
    share = 100 * max(held(base, MEMORY_OF["activation memory"]) / base.peak for _, base in case.pairs)
    least, _ = outcomes.widened(claim.low, claim.high)
    return f"activations are {share:.0f} % of the baseline's peak, less than is said to be saved" if share < least else ""


def moves_nothing(case: Case) -> bool:
    """Whether it moves a reference model, and trains beside none."""
    return "host_reference" in case.techniques and "reference.path" not in case.any.settings


def cases_about(rows: list[Technique], sweep: Sweep) -> list[Case]:
    """The cases that add one of these techniques to their baseline, or all the parts of one, and nothing else."""
    about = [{row.name} for row in rows] + [set(row.parts) for row in rows if row.parts]
    return [case for case in sweep.cases
            if case.baseline and case.family != "ladder" and added(case, sweep) in about and not moves_nothing(case)]


def findings_of(claims: list[Claim], techniques: list[Technique], sweep: Sweep) -> list[Finding]:
    """A finding for each case that measures a claim; one that isn't measured for a claim that no case measures."""
    findings = []
    for claim in claims:
        rows = [row for row in techniques if claim.id in row.claims]
        cases = [case for case in cases_about(rows, sweep) if says(claim, case, sweep)]
        findings += [find(claim, case, idle(case, sweep, techniques) or too_small(claim, case, sweep, techniques))
                     for case in cases] or [find(claim, None)]
    return findings
