"""The parts of a full sweep: leave-one-outs, the ladder, pairs and their interactions, crossovers, runs on cards."""
import dataclasses
import itertools
import math
import pathlib
import statistics

import numpy as np
import yaml

from .figures import SEED, Case, Interval, Sweep, drawn_ratios, interval_of, summarise
from .sidecars import Predictions

# Families whose cases train one model on the same tokens and can stand in one picture.
TOGETHER = ("single", "leave_one_out", "ladder", "pair")
# Of cases on several ranks, and of what those are held against.
RANKS = "ranks"

# The guide's steps in its order: {"technique": …} or {"reason": …}.
PRIORITY = yaml.safe_load((pathlib.Path(__file__).parent / "ladder.yaml").read_text())


def together(sweeps: list[Sweep]) -> list[Sweep]:
    """Those whose cases stand in one picture: parts of a plan in which the same baseline was trained are one, and parts
    about other sizes or about memory limits are left out, and so are ranks. Each case keeps the ratios of its own part; the
    baseline has the runs of all."""
    merged: dict[tuple, Sweep] = {}
    for sweep in map(of_one_rank, sweeps):
        baseline = next((case for case in sweep.cases if not case.baseline), None)
        if not sweep.cases or any(case.family not in TOGETHER for case in sweep.cases):
            continue
        key = (sweep.model, str(sweep.machine), sweep.commit, sweep.dirty, baseline and baseline.any.settings_hash)
        whole = merged.setdefault(key, dataclasses.replace(sweep, cases=[], notes=[], part=""))
        whole.part = f"{whole.part}, {sweep.part}" if whole.part else sweep.part
        for case in sweep.cases:
            known = whole.case(case.name)
            if known is None:
                whole.cases.append(case)
            elif not case.baseline:
                whole.cases[whole.cases.index(known)] = pooled(known, case)
        whole.notes += sweep.notes
    models = [(whole.model, str(whole.machine)) for whole in merged.values()]
    for whole, model in zip(merged.values(), models):
        if models.count(model) == 1:
            whole.part = ""  # the model's name says which
    return list(merged.values())


def pooled(one: Case, other: Case) -> Case:
    """The runs of both."""
    both = dataclasses.replace(one, runs=[*one.runs, *other.runs], failures=[*one.failures, *other.failures])
    summarise(both)
    return both


def of_one_rank(sweep: Sweep) -> Sweep:
    return dataclasses.replace(sweep, cases=[case for case in sweep.cases if case.family != RANKS])


def zero_stage(case: Case) -> int | None:
    """The stage of ZeRO that a case on ranks is, 0 for one that divides nothing; None for one that does more."""
    settings = case.any.settings
    plain = len(case.techniques) == 1 and settings.get("placement.reshard_after_forward", "true") == "true"
    return int(settings.get("parallel.zero", 0)) if plain else None


def of_families(sweep: Sweep, *families: str) -> Sweep:
    return dataclasses.replace(sweep, cases=[case for case in sweep.cases if case.family in families])


def presets(sweep: Sweep) -> list[Case]:
    """The presets that were trained, without the baselines that some are held against."""
    cases = of_families(sweep, "fit").cases
    baselines = {case.baseline for case in cases}
    return [case for case in cases if case.name not in baselines]


def ladder(sweep: Sweep) -> list[Case]:
    """The rungs from the lowest on; each has all techniques of the rung before."""
    return sorted(of_families(sweep, "ladder").cases, key=lambda case: len(case.techniques))


def without_rung(case: Case, below: Case | None, on_ladder: set[str]) -> list[tuple[str, str]]:
    """The steps of PRIORITY right before what this rung adds that have no rung, each with the reason. `on_ladder`: the
    techniques that are rungs."""
    added = set(case.techniques) - set(below.techniques if below else ())
    found, skipped = [], []
    for name, step in PRIORITY.items():
        technique = step.get("technique", step.get("of_ranks"))
        if "reason" in step and technique not in on_ladder:
            skipped.append((name, step["reason"]))
        else:
            found += skipped if technique in added else []
            skipped = []
    return found


# Pairs.


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two techniques together, against the product of what each leaves alone; NaN and None stand for what isn't known."""

    names: tuple[str, str]
    case: Case | None
    baseline_peak: float
    memory: float  # bytes that both save more than the product of their ratios of peaks would
    excess: float  # bytes that the peak of both is above the smaller one of each alone
    predicted: bool  # whether memory comes from dry runs
    log_time: Interval | None  # the logarithm of the step time's ratio together, less those of each alone
    refused: str


def saved(case: Case | None) -> float:
    """Bytes saved at the peak: the median over rounds."""
    return statistics.median(base.peak - run.peak for run, base in case.pairs) if case and case.pairs else math.nan


def log_time_interaction(together: Case | None, alone: list[Case | None]) -> Interval | None:
    """The logarithm of the step time's ratio together less the sum of those alone, with its bootstrap interval."""
    cases = [together, *alone]
    if not all(case and case.pairs for case in cases):
        return None
    logs = [-np.log(drawn_ratios([(run.rates, base.rates) for run, base in case.pairs], SEED + index))
            for index, case in enumerate(cases)]
    values = [-math.log(case.speed_ratio.value) for case in cases]
    return interval_of(values[0] - sum(values[1:]), logs[0] - sum(logs[1:]))


def memory_interaction(names: tuple[str, str], cases: list[Case | None],
                       predictions: Predictions | None) -> tuple[float, float, bool]:
    """Pair's (memory, excess, predicted). All four peaks are measured, or all are predicted."""
    if is_measured := all(case and case.pairs for case in cases):
        base = statistics.median(base.peak for _, base in cases[0].pairs)
        together, first, second = (base * case.peak_ratio.value for case in cases)
    elif predictions:
        base, first, second, together = (predictions.peak(*part) for part in ((), names[:1], names[1:], names))
    else:
        return math.nan, math.nan, False
    return first * second / base - together, together - min(first, second), not is_measured


def baseline_peak(sweep: Sweep, predictions: Predictions | None) -> float:
    measured = [case.peak.value for case in sweep.cases if case.peak and not case.baseline and not case.techniques]
    return measured[0] if measured else predictions.peak() if predictions else math.nan


def by_techniques(sweep: Sweep) -> dict[frozenset, Case]:
    """The cases that add one or two techniques to the baseline. A pair that is also a row of the table counts once."""
    cases = of_families(sweep, "single", "pair").cases
    return {frozenset(case.techniques): case for case in reversed(cases)}


def pairs(sweep: Sweep, predictions: Predictions | None) -> list[Pair]:
    """Every pair that was measured or dry-run, in the order of the single techniques."""
    cases = by_techniques(sweep)
    predicted = predictions.cases if predictions else {}
    order = singles(sweep, predictions)
    whole = baseline_peak(sweep, predictions)
    found = []
    for names in itertools.combinations(order, 2):
        key = frozenset(names)
        if key not in predicted and key not in cases:
            continue
        parts = [cases.get(key), *(cases.get(frozenset([name])) for name in names)]
        memory, excess, dry = memory_interaction(names, parts, predictions)
        refused = predicted[key].refused if key in predicted else ""
        found.append(Pair(names, parts[0], whole, memory, excess, dry, log_time_interaction(parts[0], parts[1:]), refused))
    return found


def singles(sweep: Sweep, predictions: Predictions | None) -> list[str]:
    """The techniques, in the order of the records and then of the dry runs."""
    measured = [case.techniques[0] for case in of_families(sweep, "single").cases if len(case.techniques) == 1]
    paired = [name for case in of_families(sweep, "pair").cases for name in case.techniques]
    predicted = [name for key in (predictions.cases if predictions else {}) if len(key) == 1 for name in key]
    return list(dict.fromkeys([*measured, *paired, *predicted]))


# Crossovers.


@dataclasses.dataclass(frozen=True)
class Crossing:
    """What techniques do as the sequence or the model grows; points rise in x. Each case is held against one of the
    same x without them."""

    label: str
    axis: str  # "sequence" or "parameters"
    points: list[tuple[float, Case]]


def added(case: Case, sweep: Sweep) -> str:
    """The techniques that the case has and its baseline has not, joined by +."""
    baseline = sweep.case(case.baseline)
    others = baseline.techniques if baseline else ()
    return " + ".join(name for name in case.techniques if name not in others) or case.name


def crossing(label: str, axis: str, cases: list[Case]) -> Crossing:
    points = [(getattr(case.any, axis), case) for case in cases]
    return Crossing(label, axis, sorted(points, key=lambda point: point[0]))


def crossings(sweeps: list[Sweep]) -> list[Crossing]:
    """One Crossing for each added technique: over sequences where one model has several, else over models."""
    groups: dict[tuple, list[Case]] = {}
    for sweep in sweeps:
        for case in of_families(sweep, "crossover").cases:
            if case.pairs:
                key = (added(case, sweep), str(sweep.machine), sweep.commit, sweep.dirty)
                groups.setdefault(key, []).append(case)
    found = []
    for (label, *_), cases in groups.items():
        rest = []
        for _, group in itertools.groupby(sorted(cases, key=lambda case: case.any.model), lambda case: case.any.model):
            own = list(group)
            if len({case.any.sequence for case in own}) > 1:
                found.append(crossing(label, "sequence", own))
            else:
                rest += own
        if rest:
            found.append(crossing(label, "parameters", rest))
    return found


def memory_time(case: Case) -> Interval:
    """Peak times step time, against the baseline's: less than 1 where the memory saved outweighs the time lost."""
    speed, peak = case.speed_ratio, case.peak_ratio
    return Interval(peak.value / speed.value, peak.low / speed.high, peak.high / speed.low)


def from_on(points: list[tuple[float, Case]], holds) -> float | None:
    """The smallest x from which on holds(case) is true of all points."""
    first = None
    for x, case in reversed(points):
        if not holds(case):
            break
        first = x
    return first
