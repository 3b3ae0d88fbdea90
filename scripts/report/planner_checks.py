"""The checks of the planner: its choice at a budget beside drawn combinations that fit it, as check_plan.py measures
them."""
import dataclasses
import itertools
import math
import statistics

import numpy as np

from .figures import Interval, ratio_of_rates

CHOICE = "the plan's choice"
ALLOWED = 0.95  # share of the speed of the fastest drawn combination


@dataclasses.dataclass(frozen=True)
class Run:
    """One run; rates is (n), tokens/s after the warm-up; techniques and predicted, tokens/s: of the plan's choice, "" and
    NaN where they aren't known."""

    budget: str
    case: str
    round: int
    rates: np.ndarray
    techniques: str
    peak: float  # bytes
    commit: str
    predicted: float = math.nan


@dataclasses.dataclass(frozen=True)
class Check:
    """One budget. Speeds are medians over rounds in tokens/s; ratio: speed of the choice to the fastest drawn one's."""

    choice: Run
    speed: float
    fastest: str
    fastest_speed: float
    drawn: int
    rounds: int
    ratio: Interval

    @property
    def holds(self) -> bool:
        return self.ratio.value >= ALLOWED or self.ratio.high >= 1

    @property
    def verdict(self) -> str:
        return "holds" if self.holds else "does not hold"


def parse_run(fields: dict) -> Run:
    rates = np.array(fields["rates"], dtype=float)
    if rates.ndim != 1 or not (rates > 0).all() or not len(rates):
        raise ValueError("rates are tokens/s of steps, above 0")
    return Run(str(fields["budget"]), str(fields["case"]), int(fields["round"]), rates,
               ", ".join(fields.get("techniques", [])), float(fields["peak_bytes"]), fields["commit"],
               float(fields.get("predicted", math.nan)))


def check(runs: list[Run]) -> Check:
    """The check of one budget. KeyError without the plan's choice, IndexError with nothing beside it, ValueError with
    no round of both."""
    cases: dict[str, dict[int, np.ndarray]] = {}
    for run in runs:
        cases.setdefault(run.case, {})[run.round] = run.rates
    speed = {name: statistics.median(map(np.median, rounds.values())) for name, rounds in cases.items()}
    chosen = cases[CHOICE]
    fastest = sorted((name for name in speed if name != CHOICE), key=lambda name: -speed[name])[0]
    both = sorted(chosen.keys() & cases[fastest].keys())
    if not both:
        raise ValueError("no round has the plan's choice and the fastest drawn combination")
    ratio = ratio_of_rates([(chosen[number], cases[fastest][number]) for number in both])
    choice = next(run for run in runs if run.case == CHOICE)
    return Check(choice, speed[CHOICE], fastest, speed[fastest], len(cases) - 1, len(both), ratio)


def checks(runs: list[Run]) -> list[Check]:
    """A check for each budget, in the order of the file."""
    return [check(list(own)) for _, own in itertools.groupby(runs, key=lambda run: run.budget)]
