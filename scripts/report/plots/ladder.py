"""One technique added after the other: peak memory and speed on every rung."""
import matplotlib.pyplot as plt
import numpy as np

from ..byte_units import unit_of
from ..figures import Case
from .theme import CASE_COLORS, Theme, errors


def ladder(rungs: list[Case], theme: Theme) -> plt.Figure:
    """rungs: those that finished, from the lowest on; the first may be what the ladder stands on."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(theme.width, 0.36 * len(rungs) + 1.1), layout="constrained",
                                         sharey=True)
    unit, name = unit_of(max(case.peak.high for case in rungs))
    rows = np.arange(len(rungs))
    left.barh(rows, [case.peak.value / unit for case in rungs], color=CASE_COLORS[0], height=0.7)
    for row, case in zip(rows, rungs):
        right.errorbar([case.speed.value], [row], xerr=errors(case.speed), color=CASE_COLORS[1], marker="o", ms=5,
                       capsize=2, lw=1)
    right.plot([case.speed.value for case in rungs], rows, color=CASE_COLORS[1], lw=1, alpha=0.5)
    left.set_yticks(rows, [case.name for case in rungs], fontsize=9 if theme.is_wide else 7.5)
    left.set_ylim(len(rungs) - 0.5, -0.5)
    left.tick_params(axis="y", length=0)
    left.grid(visible=False, axis="y")
    left.set_xlabel(f"peak memory ({name})")
    right.set_xlabel("tokens a second")
    right.xaxis.set_major_formatter("{x:,.0f}")
    right.set_xlim(0)
    for axes in (left, right):
        axes.locator_params(axis="x", nbins=5 if theme.is_wide else 3)
    return figure
