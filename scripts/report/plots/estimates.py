"""How far measured memory lay from predicted."""
import matplotlib.pyplot as plt

from ..byte_units import unit_of
from ..sidecars import Draw
from .theme import CASE_COLORS, Theme, point_at

BOUNDS = (0.5, 2)  # percent: what the median and the worst should stay within


def estimates(draws: list[Draw], theme: Theme) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(theme.width, 4.2), layout="constrained")
    unit, name = unit_of(max(draw.predicted for draw in draws))
    for bound, dashes in zip(BOUNDS, (":", "--")):
        for side in (1, -1):
            axes.axhline(side * bound, color=theme.ink, lw=0.8, ls=dashes, alpha=0.7)
    axes.plot([draw.predicted / unit for draw in draws], [100 * draw.error for draw in draws], "o", ms=4.5,
              color=CASE_COLORS[0], alpha=0.6, mew=0)
    for number, draw in enumerate(draws):
        point_at(axes, draw.predicted / unit, 100 * draw.error, number, theme)
    reach = 1.1 * max(BOUNDS[1], *(abs(100 * draw.error) for draw in draws))
    axes.set_ylim(-reach, reach)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlabel(f"predicted peak ({name}, tensors)")
    axes.set_ylabel("measured more than predicted (%)")
    return figure
