"""What dividing the state costs ranks in speed over each link, beside ranks that divide nothing."""
import math

from .. import figures
from ..sweep_parts import RANKS, of_families, zero_stage
from . import outcomes


def where(case: figures.Case) -> str:
    link = case.any.link
    return f"on {case.any.ranks} ranks over {'an unlimited link' if link == 'unlimited' else link}"


def beside_whole(sweeps: list[figures.Sweep], name: str, from_parameters: float = 0) -> dict[str, figures.Interval]:
    """Percent of tokens a second that ranks with this technique gain (lose: below 0), by ranks and link; of several rounds, of
    models from this size on, and without ranks that share a core, whose time says nothing."""
    found = {}
    for cases in (of_families(sweep, RANKS).cases for sweep in sweeps):
        whole = {where(case): case for case in cases if zero_stage(case) == 0}
        for case in (case for case in cases if case.techniques == (name,) and where(case) in whole
                     and case.any.parameters >= from_parameters and case.any.ranks <= case.any.machine.get("cores", math.inf)):
            pairs = figures.paired(case.runs, whole[where(case)].runs)
            if len(pairs) >= figures.LEAST_ROUNDS:
                ratio = figures.ratio_of_rates([(run.rates, base.rates) for run, base in pairs])
                found[where(case)] = ratio.through(lambda one: 100 * (one - 1))
    return found


def changed(speed: figures.Interval) -> str:
    """As "5 % more (2 to 10)" or "5 % more (1 % fewer to 10 % more)"; the value alone where both ends are the same."""
    low, value, high = (round(end) for end in (speed.low, speed.value, speed.high))
    words = [f"{abs(end)} % {'fewer' if end < 0 else 'more'}" for end in (low, value, high)]
    ends = [str(abs(end)) for end in (low, high)] if (low < 0) == (high < 0) else [words[0], words[2]]
    return words[1] if low == high else f"{words[1]} ({' to '.join(ends)})"


def judged(sweeps: list[figures.Sweep], name: str, claimed: float, from_parameters: float = 0) -> tuple[str, dict[str, outcomes.Part]]:
    """What was found, in words, and the outcome over each link; None: the interval is too wide, or nothing is known."""
    speeds = beside_whole(sweeps, name, from_parameters)
    if not speeds:
        too_small = f"no ranks trained {from_parameters:,.0f} parameters" if from_parameters else ""
        return "", {"its speed": outcomes.Part(None, too_small, runs_decide=not from_parameters)}
    text = "tokens/s beside ranks that divide nothing: " + ", ".join(f"{changed(one)} {place}" for place, one in speeds.items())
    return text, {f"its speed {place}": outcomes.part_of(claimed, one, True, f"{changed(one)} tokens/s") for place, one in speeds.items()}
