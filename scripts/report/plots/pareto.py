"""Memory against speed, a point a case."""
import itertools
import math

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, Normalize
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from ..byte_units import unit_of
from ..figures import Case, Sweep, measured, on_front
from .theme import Theme, blank, errors, padded, point_at

LEVELS = 8  # of colour, for the loss
COLOURS = plt.get_cmap("viridis", LEVELS)
# Where a label may stand, in points from what it names.
SPOTS = [(side * reach, rise) for reach in (9, 24, 44) for rise in (0, 11, -11, 22, -22, 36, -36, 50, -50)
         for side in (1, -1)]


def overlap(a: Bbox, b: Bbox) -> float:
    """The area that two boxes share."""
    wide = min(a.x1, b.x1) - max(a.x0, b.x0)
    high = min(a.y1, b.y1) - max(a.y0, b.y0)
    return max(wide, 0) * max(high, 0)


def name_at(axes: plt.Axes, case: Case, spot: tuple[float, float], unit: float, theme: Theme) -> plt.Annotation:
    """The case's name beside its point, with a line to the point where it stands far off."""
    right, up = spot
    lead = {"arrowstyle": "-", "color": theme.ink, "lw": 0.5, "alpha": 0.6, "shrinkA": 0, "shrinkB": 5}
    near = abs(right) <= 9 and abs(up) <= 11
    behind = {"boxstyle": "square,pad=0.1", "facecolor": theme.paper, "edgecolor": "none", "alpha": 0.75}
    return axes.annotate(case.name, place(case, unit), spot, textcoords="offset points", fontsize=9, va="center",
                         ha="left" if right > 0 else "right", arrowprops=None if near else lead,
                         bbox=behind, zorder=6)


def between(ends: np.ndarray, margin: float) -> Bbox:
    """The box around two places in pixels."""
    return Bbox([ends.min(axis=0) - margin, ends.max(axis=0) + margin])


def points_at(axes: plt.Axes, cases: list[Case], unit: float) -> list[Bbox]:
    """The boxes of the points, in pixels."""
    return [between(axes.transData.transform([place(case, unit)]), 8) for case in cases]


def lines_at(axes: plt.Axes, cases: list[Case], line: list[tuple[float, float]], unit: float) -> list[Bbox]:
    """The bars of points and the pieces of the line, in pixels."""
    pieces = list(itertools.pairwise(line))
    for case in cases:
        x, y = place(case, unit)
        pieces += [((x, case.speed.low), (x, case.speed.high)), ((case.peak.low / unit, y), (case.peak.high / unit, y))]
    return [between(axes.transData.transform(ends), 2) for ends in pieces]


def named(cases: list[Case], front: list[Case], most: int) -> list[Case]:
    """The cases that get a name: all if they are few, else the baselines and some of the front from end to end."""
    if len(cases) <= most:
        return cases
    baselines = [case for case in cases if not case.baseline]
    room = max(2, most - len(baselines))
    picks = np.unique(np.linspace(0, len(front) - 1, min(room, len(front))).round().astype(int))
    return list({case.name: case for case in [*baselines, *(front[pick] for pick in picks)]}.values())


def name_points(axes: plt.Axes, cases: list[Case], points: list[Bbox], lines: list[Bbox], unit: float,
                theme: Theme) -> None:
    """Names each point near it, where its label covers least: of points and other labels above all, then of lines."""
    renderer, frame = axes.figure.canvas.get_renderer(), axes.get_window_extent()
    taken = list(points)
    for case in sorted(cases, key=lambda case: -case.speed.value):
        tried = []
        for spot in SPOTS:
            label = name_at(axes, case, spot, unit, theme)
            label.update_positions(renderer)
            box = Text.get_window_extent(label, renderer)  # of the words, without the line to them
            label.remove()
            covered = 3 * sum(overlap(box, other) for other in taken) + sum(overlap(box, other) for other in lines)
            cut_off = box.width * box.height - overlap(box, frame)
            tried.append((covered + 10 * cut_off + 10 * math.hypot(*spot), spot, box))
        _, spot, box = min(tried, key=lambda one: one[0])
        name_at(axes, case, spot, unit, theme)
        taken.append(box)


def place(case: Case, unit: float) -> tuple[float, float]:
    return case.peak.value / unit, case.speed.value


def staircase(points: list[tuple[float, float]], bottom: float, right: float) -> list[tuple[float, float]]:
    """The border of what the front reaches: at a budget of x bytes, the fastest case that fits."""
    corners = [(points[0][0], bottom)]
    for (x, y), (following, _) in zip(points, [*points[1:], (right, 0)]):
        corners += [(x, y), (following, y)]
    return corners


def final_losses(cases: list[Case]) -> list[float]:
    """NaN for a case that saw fewer or more tokens than the first: its loss cannot be compared."""
    tokens = cases[0].runs[-1].tokens
    return [case.loss if case.runs[-1].tokens == tokens else math.nan for case in cases]


def loss_scale(losses: list[float]) -> Normalize | None:
    """None where all losses are equal."""
    known = [loss for loss in losses if math.isfinite(loss)]
    if len(set(known)) < 2:
        return None
    return BoundaryNorm(np.linspace(min(known), max(known), LEVELS + 1), LEVELS)


def draw_points(axes: plt.Axes, cases: list[Case], front: list[Case], unit: float, theme: Theme) -> None:
    losses = final_losses(cases)
    scale = loss_scale(losses)
    for index, (case, loss) in enumerate(zip(cases, losses)):
        edge, marker = theme.front if case in front else theme.ink, "o" if case.baseline else "s"
        face = COLOURS(scale(loss)) if scale and math.isfinite(loss) else theme.faint
        axes.errorbar(*place(case, unit), errors(case.speed), errors(case.peak, unit), color=edge, marker=marker,
                      markersize=7.5, mfc=face, mec=edge, mew=2 if case in front else 0.7, capsize=2, elinewidth=0.8,
                      zorder=4 if case in front else 3)
        point_at(axes, *place(case, unit), index, theme)
    if scale:
        bar = axes.figure.colorbar(ScalarMappable(scale, COLOURS), ax=axes, location="bottom", aspect=40, shrink=0.9,
                                   pad=0.02, format="%.3f", ticks=scale.boundaries[::2])
        bar.set_label("colour: last loss (nats a token)")
        bar.outline.set_visible(False)


def legend(axes: plt.Axes, theme: Theme) -> None:
    looks = [(theme.front, "o", 2), (theme.ink, "o", 0), (theme.ink, "s", 0)]
    handles = [plt.Line2D([], [], color=color, marker=marker, lw=width, mfc=theme.paper)
               for color, marker, width in looks]
    axes.legend(handles, ["Pareto front", "beaten in both", "baseline"], loc="lower left",
                bbox_to_anchor=(-0.02, 1.0), ncols=3, fontsize=9, borderaxespad=0, columnspacing=1.2, handletextpad=0.5)


def pareto(sweep: Sweep, theme: Theme) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(theme.width, 5.6), layout="constrained")
    cases = measured(sweep)
    if not cases:
        return blank(figure, axes)
    unit, name = unit_of(max(case.peak.high for case in cases))
    axes.set_xlim(padded([case.peak.low / unit for case in cases], [case.peak.high / unit for case in cases], 0.08))
    axes.set_ylim(padded([case.speed.low for case in cases], [case.speed.high for case in cases], 0.1))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(f"peak memory ({name}; less is better)")
    axes.set_ylabel("tokens a second (more is better)")
    axes.set_title(f"{sweep.title}: memory against speed\n")
    front = on_front(sweep)
    draw_points(axes, cases, front, unit, theme)
    legend(axes, theme)
    line = staircase([place(case, unit) for case in front], axes.get_ylim()[0], axes.get_xlim()[1])
    axes.plot(*zip(*line), color=theme.front, lw=1.5, alpha=0.6, zorder=2)
    figure.canvas.draw()
    name_points(axes, named(cases, front, 12 if theme.is_wide else 7), points_at(axes, cases, unit),
                lines_at(axes, cases, line, unit), unit, theme)
    return figure
