"""Speed and peak memory of techniques over the sequence or the size of the model."""
import matplotlib.pyplot as plt

from ..figures import Interval
from ..sweep_parts import Crossing
from .theme import CASE_COLORS, DASHES, Theme, errors

APART = 0.04  # share of a doubling by which techniques at the same size are drawn apart
AXES = {"sequence": "sequence (tokens)", "parameters": "parameters of the model"}
HEADINGS = {"sequence": "By sequence", "parameters": "By size of model"}


def amount(value: float) -> str:
    """64,000,000 as 64M; a sequence of 2,048 tokens in full."""
    for size, letter in ((1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:,.0f}"


def draw_line(axes: plt.Axes, points: list[tuple[float, Interval, bool]], theme: Theme, **look) -> None:
    """points: (x, ratio, whether its interval is known). Without an interval the point is hollow and has no bar."""
    axes.plot([x for x, *_ in points], [ratio.value for _, ratio, _ in points], marker="o", ms=5, lw=1.4, **look)
    for x, ratio, is_known in points:
        bar = {"yerr": errors(ratio)} if is_known else {}
        axes.errorbar([x], [ratio.value], **bar, capsize=3, lw=1, marker="o", ms=5, color=look["color"],
                      mfc=look["color"] if is_known else theme.paper)


def crossovers(crossings: list[Crossing], theme: Theme) -> plt.Figure:
    """`crossings` share one axis."""
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(theme.width, 5.6), layout="constrained", sharex=True)
    for index, crossing in enumerate(crossings):
        look = {"color": CASE_COLORS[index % len(CASE_COLORS)], "ls": DASHES[index // len(CASE_COLORS) % len(DASHES)]}
        aside = 2 ** (APART * (index - (len(crossings) - 1) / 2))  # so that equal points lie beside each other
        draw_line(upper, [(x * aside, case.speed_ratio, not case.one_round) for x, case in crossing.points], theme,
                  label=crossing.label, **look)
        draw_line(lower, [(x * aside, case.peak_ratio, True) for x, case in crossing.points], theme, **look)  # bytes are exact
    for axes, words in ((upper, "speed ÷ without it"), (lower, "peak ÷ without it")):
        axes.axhline(1, color=theme.ink, lw=0.8)
        axes.set_xscale("log", base=2)
        axes.set_ylabel(words)
    ticks = sorted({x for crossing in crossings for x, _ in crossing.points})
    lower.set_xticks(ticks, [amount(x) for x in ticks])
    lower.set_xticks([], minor=True)
    lower.set_xlabel(AXES[crossings[0].axis])
    figure.legend(loc="outside upper left", ncols=3 if theme.is_wide else 2, fontsize=9)
    return figure
