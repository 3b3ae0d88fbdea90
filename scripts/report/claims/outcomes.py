"""The words of a verdict: of one figure, and of all figures of a claim together."""
from collections.abc import Iterable
from typing import NamedTuple

from ..figures import Interval

RIGHT, OVERSTATED, UNDERSTATED = "right", "overstated", "understated"
IN_PART, BOTH_WAYS, UNTESTED = "right in part", "off both ways", "untested"
VERDICTS = (RIGHT, IN_PART, OVERSTATED, UNDERSTATED, BOTH_WAYS, UNTESTED)
# Of one figure: RIGHT, OVERSTATED or UNDERSTATED; None: not decided.
Outcome = str | None


class Part(NamedTuple):
    """A part of a claim: what is known of it, and what was found, in words; "" where the whole claim's words say it. beside: of a size
    that is not as claimed, whether it is larger or smaller. runs_decide: whether a run of the claim's techniques, as the harness makes it,
    could decide a part that is not."""

    outcome: Outcome
    found: str = ""
    beside: str = ""
    runs_decide: bool = True

    @property
    def word(self) -> str:
        """In a line, where "overstated" would not say which of two sizes is larger."""
        return self.beside or self.outcome or UNTESTED


def sized(outcome: Outcome, found: float, claimed: float, text: str) -> Part:
    """claimed: the size, or an end of the range, that is claimed."""
    return Part(outcome, text, "" if outcome in (RIGHT, None) else "more than claimed" if found > claimed else "less than claimed")


def widened(low: float, high: float) -> tuple[float, float]:
    return low - max(2, abs(low) / 10), high + max(2, abs(high) / 10)


def of_interval(low: float, high: float, measured: Interval, more_is_better: bool) -> Outcome:
    """Of a measured interval against what is claimed, all in percent. None: it reaches across an end of the claim."""
    claimed = widened(low, high)
    if claimed[0] <= measured.low and measured.high <= claimed[1]:
        return RIGHT
    if measured.low <= claimed[1] and claimed[0] <= measured.high:
        return None
    return UNDERSTATED if (measured.low > claimed[1]) == more_is_better else OVERSTATED


def part_of(claimed: float, measured: Interval, more_is_better: bool, found: str) -> Part:
    """Of a measured interval against one claimed percentage."""
    outcome = of_interval(claimed, claimed, measured, more_is_better)
    return Part(outcome, found if outcome else f"{found}, too wide an interval")


def of_percent(value: float, low: float, high: float | None = None, more_is_better: bool = True) -> Outcome:
    return of_interval(low, low if high is None else high, Interval(value, value, value), more_is_better)


def of_need(bytes_: float, low: float, high: float | None = None) -> Outcome:
    """Of bytes that a technique is said to need: more than claimed is less good. A tenth is what a guide's rounding takes."""
    if 0.9 * low <= bytes_ <= 1.1 * (low if high is None else high):
        return RIGHT
    return OVERSTATED if bytes_ > low else UNDERSTATED


def of_size(bytes_: float, low: float, high: float | None = None) -> Outcome:
    """Of a size that promises nothing, as a formula gives it."""
    return {OVERSTATED: UNDERSTATED, UNDERSTATED: OVERSTATED}.get(found := of_need(bytes_, low, high), found)


def of_whether(holds: bool) -> Outcome:
    return RIGHT if holds else OVERSTATED


def together(outcomes: Iterable[Outcome]) -> str:
    """One of VERDICTS."""
    found = set(outcomes)
    known = found - {None}
    if not known:
        return UNTESTED
    if RIGHT in known:
        return RIGHT if found == {RIGHT} else IN_PART
    return BOTH_WAYS if len(known) > 1 else known.pop()
