"""Memory against speed beside the baseline, a point a case."""
import itertools
import math
import textwrap

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from ..figures import Case, Sweep, on_front, placed
from .loss_colours import GREY, bar, face
from .theme import Theme, errors, note, padded, point_at

ON_POINTS = "#1c1f24"  # numbers, in light and dark alike
# Where a label may stand, in points from what it names.
SPOTS = [(side * reach, rise) for reach in (9, 24, 44) for rise in (0, 11, -11, 22, -22, 36, -36, 50, -50)
         for side in (1, -1)]


def overlap(a: Bbox, b: Bbox) -> float:
    """The area that two boxes share."""
    wide = min(a.x1, b.x1) - max(a.x0, b.x0)
    high = min(a.y1, b.y1) - max(a.y0, b.y0)
    return max(wide, 0) * max(high, 0)


def name_at(axes: plt.Axes, case: Case, spot: tuple[float, float], theme: Theme) -> plt.Annotation:
    """The name of the case beside its point, with a line to the point where it stands far off."""
    right, up = spot
    lead = {"arrowstyle": "-", "color": theme.ink, "lw": 0.5, "alpha": 0.6, "shrinkA": 0, "shrinkB": 5}
    near = abs(right) <= 9 and abs(up) <= 11
    behind = {"boxstyle": "square,pad=0.1", "facecolor": theme.paper, "edgecolor": "none", "alpha": 0.75}
    return axes.annotate(case.name, place(case), spot, textcoords="offset points", fontsize=9, va="center",
                         ha="left" if right > 0 else "right", arrowprops=None if near else lead,
                         bbox=behind, zorder=6)


def between(ends: np.ndarray, margin: float) -> Bbox:
    """The box around two places in pixels."""
    return Bbox([ends.min(axis=0) - margin, ends.max(axis=0) + margin])


def points_at(axes: plt.Axes, cases: list[Case]) -> list[Bbox]:
    """The boxes of the points, in pixels."""
    return [between(axes.transData.transform([place(case)]), 8) for case in cases]


def lines_at(axes: plt.Axes, cases: list[Case], line: list[tuple[float, float]]) -> list[Bbox]:
    """The bars of points and the pieces of the line, in pixels."""
    pieces = list(itertools.pairwise(line))
    for case in cases:
        (x, y), (peak, speed) = place(case), case.place
        pieces += [((x, speed.low), (x, speed.high)), ((peak.low, y), (peak.high, y))]
    return [between(axes.transData.transform(ends), 2) for ends in pieces]


def named(cases: list[Case], front: list[Case], colours: list[Case], most: int) -> list[Case]:
    """The cases that get a name: all if they are few, else the baselines, some of the front from end to end and, where there is room,
    those of a colour and the single techniques that are smallest for their speed."""
    if len(cases) <= most:
        return cases
    baselines = [case for case in cases if not case.baseline]
    room = max(2, most - len(baselines))
    picks = np.unique(np.linspace(0, len(front) - 1, min(room, len(front))).round().astype(int))
    singles = sorted((case for case in cases if case.family == "single"), key=lambda case: place(case)[0] / place(case)[1])
    return list({case.name: case for case in [*baselines, *(front[pick] for pick in picks), *colours, *singles]}.values())[:most]


def name_points(axes: plt.Axes, cases: list[Case], needed: list[Case], points: list[Bbox], lines: list[Bbox],
                theme: Theme) -> None:
    """Names each point near it, where its label covers least: of points and other labels above all, then of lines. Baselines and those
    needed come first; another's label that would cover a point or a label is left out."""
    renderer, frame = axes.figure.canvas.get_renderer(), axes.get_window_extent()
    taken = list(points)

    def is_needed(case: Case) -> bool:
        return not case.baseline or case in needed

    for case in sorted(cases, key=lambda one: (not is_needed(one), -place(one)[1])):
        tried = []
        for spot in SPOTS:
            label = name_at(axes, case, spot, theme)
            label.update_positions(renderer)
            box = Text.get_window_extent(label, renderer)  # of the words, without the line to them
            label.remove()
            hidden = sum(overlap(box, other) for other in taken)
            cut_off = box.width * box.height - overlap(box, frame)
            cost = 3 * hidden + sum(overlap(box, other) for other in lines) + 10 * cut_off + 10 * math.hypot(*spot)
            tried.append((cost, spot, box, hidden))
        _, spot, box, hidden = min(tried, key=lambda one: one[0])
        if is_needed(case) or not hidden:
            name_at(axes, case, spot, theme)
            taken.append(box)


def place(case: Case) -> tuple[float, float]:
    peak, speed = case.place
    return peak.value, speed.value


def staircase(points: list[tuple[float, float]], bottom: float, right: float) -> list[tuple[float, float]]:
    """The border of what the front reaches: with x of the peak, the fastest case that fits."""
    corners = [(points[0][0], bottom)]
    for (x, y), (following, _) in zip(points, [*points[1:], (right, 0)]):
        corners += [(x, y), (following, y)]
    return corners


def face_of(case: Case, effects: dict, theme: Theme) -> str | tuple:
    """The colour of what it does to the loss of long runs, grey where that isn't known; hollow where its speed cannot be ranked.
    effects: quality.Effect by technique."""
    if not case.ranked:
        return theme.paper
    return face(effects[case.name]) if case.name in effects else GREY


def coloured(cases: list[Case], effects: dict) -> list[Case]:
    """Those whose points have a colour."""
    return [case for case in cases if case.ranked and case.name in effects and effects[case.name].is_seen]


def hollow_words(cases: list[Case]) -> str:
    """Why some points are hollow; "" where none is."""
    reasons = {"one round": any(case.one_round for case in cases), "other tokens": not all(case.reads_alike for case in cases)}
    return " or ".join(reason for reason, is_one in reasons.items() if is_one)


def is_faded(case: Case, front: list[Case]) -> bool:
    return case not in front and case.family != "single"


def draw_points(axes: plt.Axes, cases: list[Case], front: list[Case], effects: dict, theme: Theme) -> None:
    """Pairs and stacks fade behind single techniques, and grey lies below colours. The front's points have their numbers in them, from
    small to large."""
    colours = coloured(cases, effects)
    for index, case in enumerate(cases):
        edge, marker = theme.front if case in front else theme.ink, "o" if case.baseline else "s"
        faded = is_faded(case, front)
        peak, speed = case.place
        bars = () if case.one_round else (errors(speed), errors(peak))
        size, edge_width = (12, 2) if case in front else (5 if faded else 7.5, 0.7)
        axes.errorbar(*place(case), *bars, color=edge, marker=marker, markersize=size, mfc=face_of(case, effects, theme), mec=edge,
                      mew=edge_width, capsize=2, elinewidth=0.8, alpha=0.45 if faded else 1,
                      zorder=5 if case in front else 4 if case in colours else 3)
        point_at(axes, *place(case), index, theme)
        if case in front:
            axes.plot(*place(case), marker=f"${front.index(case) + 1}$", ms=6, mew=0.3, color=ON_POINTS, zorder=6)
    if colours:
        bar(axes, f"change of the loss that long runs end at (nats a token);{' ' if theme.is_wide else chr(10)}grey: can't tell, or unmeasured")


def legend(axes: plt.Axes, title: str, cases: list[Case], front: list[Case], theme: Theme) -> None:
    """Under the title, of what is drawn: in one row, or in two where one would be wider than the picture, which would leave nothing
    for the axes."""
    others = any(case.baseline and case.ranked and case not in front for case in cases)
    looks = {"Pareto front": (bool(front), theme.front, "o", 2, GREY), "off the front": (others, theme.ink, "o", 0, GREY),
             "baseline": (not all(case.baseline for case in cases), theme.ink, "s", 0, GREY),
             "pair or stack": (any(is_faded(case, front) for case in cases), GREY, ".", 0, GREY),
             hollow_words(cases): (bool(hollow_words(cases)), theme.ink, "o", 0, theme.paper)}
    handles = {words: plt.Line2D([], [], color=color, marker=marker, lw=width, mfc=fill)
               for words, (is_drawn, color, marker, width, fill) in looks.items() if is_drawn}
    rows = 1 if theme.is_wide else 2
    axes.set_title(textwrap.fill(title, 80 if theme.is_wide else 44) + "\n" * rows)
    axes.legend(handles.values(), handles.keys(), loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=math.ceil(len(handles) / rows),
                fontsize=9, borderaxespad=0, columnspacing=1.2, handletextpad=0.5)


def pareto(sweep: Sweep, effects: dict, theme: Theme) -> plt.Figure:
    """Of cases beside one baseline (see beside_roots). effects: quality.Effect by technique."""
    figure, axes = plt.subplots(figsize=(theme.width, 5.6), layout="constrained")
    cases = placed(sweep)
    if not cases:
        axes.axis("off")
        note(axes, "no run finished")
        return figure
    peaks, speeds = zip(*(case.place for case in cases))
    axes.set_xlim(padded([peak.low for peak in peaks], [peak.high for peak in peaks], 0.08))
    axes.set_ylim(padded([speed.low for speed in speeds], [speed.high for speed in speeds], 0.1))
    axes.set_xlabel("peak memory ÷ the baseline's (less is better)")
    axes.set_ylabel("speed ÷ the baseline's (more is better)")
    front = on_front(sweep)
    draw_points(axes, cases, front, effects, theme)
    legend(axes, f"{sweep.title}: memory against speed", cases, front, theme)
    line = staircase([place(case) for case in front], axes.get_ylim()[0], axes.get_xlim()[1]) if front else []
    axes.plot([x for x, _ in line], [y for _, y in line], color=theme.front, lw=1.5, alpha=0.6, zorder=2)
    figure.canvas.draw()
    colours = coloured(cases, effects)
    name_points(axes, named(cases, front, colours, 12 if theme.is_wide else 7), [*front, *colours], points_at(axes, cases),
                lines_at(axes, cases, line), theme)
    return figure
