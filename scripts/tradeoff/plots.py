"""The pictures of a sweep, drawn with matplotlib in a light and a dark dress."""
import dataclasses
import io
import itertools
import math

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from byte_units import unit_of
from plot_run import KINDS

from .figures import Case, Interval, Sweep, measured, on_front
from .records import Record

WIDTH = 6.4  # inches, so that the words are still legible on a phone
DPI = 180
CASE_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#7b52ab", "#8c564b")
DASHES = ("-", "--", ":", "-.")


@dataclasses.dataclass(frozen=True)
class Dress:
    paper: str
    ink: str
    faint: str
    front: str


LIGHT = Dress("#ffffff", "#1c1f24", "#d9dce1", "#c2410c")
DARK = Dress("#16191f", "#e6e8eb", "#3a3f48", "#fb923c")


def style(dress: Dress) -> dict:
    ink = {key: dress.ink for key in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")}
    return {**ink, "figure.facecolor": dress.paper, "axes.facecolor": dress.paper, "savefig.facecolor": dress.paper,
            "axes.edgecolor": dress.faint, "grid.color": dress.faint, "axes.grid": True, "axes.axisbelow": True,
            "axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "axes.titlesize": 10.5,
            "axes.titlelocation": "left", "legend.frameon": False}


def png(figure: plt.Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, dpi=DPI, metadata={"Software": None})
    plt.close(figure)
    return out.getvalue()


def draw(picture, sweep: Sweep, dress: Dress) -> bytes:
    """One of the pictures below as a PNG."""
    with plt.rc_context(style(dress)):
        return png(picture(sweep, dress))


# Memory against speed.

# Where a label may stand, in points from what it names: near ones first.
SPOTS = [(side * reach, rise) for reach in (9, 24, 44) for rise in (0, 11, -11, 22, -22, 36, -36, 50, -50)
         for side in (1, -1)]


def overlap(a: Bbox, b: Bbox) -> float:
    """The area that two boxes share."""
    wide = min(a.x1, b.x1) - max(a.x0, b.x0)
    high = min(a.y1, b.y1) - max(a.y0, b.y0)
    return max(wide, 0) * max(high, 0)


def name_at(axes: plt.Axes, case: Case, spot: tuple[float, float], unit: float, dress: Dress) -> plt.Annotation:
    """The case's name beside its point; with a line to it where it stands far off."""
    right, up = spot
    lead = {"arrowstyle": "-", "color": dress.ink, "lw": 0.5, "alpha": 0.6, "shrinkA": 0, "shrinkB": 5}
    near = abs(right) <= 9 and abs(up) <= 11
    return axes.annotate(case.name, place(case, unit), spot, textcoords="offset points", fontsize=9, va="center",
                         ha="left" if right > 0 else "right", arrowprops=None if near else lead)


def obstacles(axes: plt.Axes, cases: list[Case], line: list[tuple[float, float]], unit: float) -> list[Bbox]:
    """What labels should not cover, in pixels: the points with their bars, and the pieces of the line."""
    boxes = []
    for case in cases:
        low, high = (axes.transData.transform(ends) for ends in ((case.peak.low / unit, case.speed.low),
                                                                 (case.peak.high / unit, case.speed.high)))
        boxes.append(Bbox([low - 10, high + 10]))
    corners = axes.transData.transform(line)
    boxes += [Bbox([np.minimum(a, b) - 2, np.maximum(a, b) + 2]) for a, b in itertools.pairwise(corners)]
    return boxes


def name_points(axes: plt.Axes, cases: list[Case], line: list[tuple[float, float]], unit: float, dress: Dress) -> None:
    """Names each point where its label covers least of the points, the line and the labels before it."""
    axes.figure.canvas.draw()
    renderer, frame = axes.figure.canvas.get_renderer(), axes.get_window_extent()
    taken = obstacles(axes, cases, line, unit)
    for case in sorted(cases, key=lambda case: -case.speed.value):
        tried = []
        for nearness, spot in enumerate(SPOTS):
            label = name_at(axes, case, spot, unit, dress)
            label.update_positions(renderer)
            box = Text.get_window_extent(label, renderer)  # of the words, without the line to them
            label.remove()
            covered = sum(overlap(box, other) for other in taken)
            cut_off = box.width * box.height - overlap(box, frame)
            tried.append((covered + 10 * cut_off, nearness, spot, box))
        _, _, spot, box = min(tried, key=lambda one: one[:2])
        name_at(axes, case, spot, unit, dress)
        taken.append(box)


def place(case: Case, unit: float) -> tuple[float, float]:
    return case.peak.value / unit, case.speed.value


def errors(interval: Interval, unit: float = 1) -> list[list[float]]:
    return [[(interval.value - interval.low) / unit], [(interval.high - interval.value) / unit]]


def staircase(points: list[tuple[float, float]], bottom: float, right: float) -> list[tuple[float, float]]:
    """The border of what the front reaches: at a budget of x bytes, the fastest case that fits."""
    corners = [(points[0][0], bottom)]
    for (x, y), (following, _) in zip(points, [*points[1:], (right, 0)]):
        corners += [(x, y), (following, y)]
    return corners


def padded(lows: list[float], highs: list[float], share: float) -> tuple[float, float]:
    """From the lowest to the highest with a share of that on both sides; never below 0."""
    low, high = min(lows), max(highs)
    room = share * ((high - low) or high)
    return max(0, low - room), high + room


def draw_points(axes: plt.Axes, cases: list[Case], front: list[Case], unit: float, dress: Dress) -> None:
    for case in cases:
        color, marker = dress.front if case in front else dress.ink, "o" if case.baseline else "s"
        axes.errorbar(*place(case, unit), errors(case.speed), errors(case.peak, unit), color=color, marker=marker,
                      markersize=7, capsize=3, elinewidth=1, zorder=3)
    looks = [(dress.front, "o", 1.5), (dress.ink, "o", 0), (dress.ink, "s", 0)]
    handles = [plt.Line2D([], [], color=color, marker=marker, lw=width) for color, marker, width in looks]
    axes.legend(handles, ["Pareto front", "beaten in both", "baseline"], loc="lower left",
                bbox_to_anchor=(-0.02, 1.0), ncols=3, fontsize=9, borderaxespad=0, columnspacing=1.2, handletextpad=0.5)


def pareto(sweep: Sweep, dress: Dress) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(WIDTH, 4.8), layout="constrained")
    cases = measured(sweep)
    if not cases:
        return blank(figure, axes)
    unit, name = unit_of(max(case.peak.high for case in cases))
    axes.set_xlim(padded([case.peak.low / unit for case in cases], [case.peak.high / unit for case in cases], 0.08))
    axes.set_ylim(padded([case.speed.low for case in cases], [case.speed.high for case in cases], 0.1))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(f"peak memory ({name}; less is better)")
    axes.set_ylabel("tokens a second (more is better)")
    axes.set_title(f"{sweep.model}: memory against speed\n")
    front = on_front(sweep)
    draw_points(axes, cases, front, unit, dress)
    line = staircase([place(case, unit) for case in front], axes.get_ylim()[0], axes.get_xlim()[1])
    axes.plot(*zip(*line), color=dress.front, lw=1.5, alpha=0.6, zorder=2)
    name_points(axes, cases, line, unit, dress)
    return figure


# Memory by kind over the phases of a step.

def kinds_held(cases: list[Case]) -> list[str]:
    """The kinds that hold anything; not the parts of a kind ("activations.attention"), which are counted in it."""
    held = {kind for case in cases for kinds in case.runs[-1].memory.values() for kind, count in kinds.items()
            if "." not in kind and count > 0}
    return [kind for kind in KINDS if kind in held] + sorted(held - KINDS.keys())


def color_of(kind: str) -> str:
    return KINDS.get(kind, KINDS["other"])


def memory_panel(axes: plt.Axes, case: Case, kinds: list[str], unit: float, dress: Dress) -> None:
    memory = case.runs[-1].memory
    left = np.zeros(len(memory))
    for kind in kinds:
        widths = np.array([held.get(kind, 0) for held in memory.values()]) / unit
        axes.barh(list(memory), widths, left=left, color=color_of(kind), height=0.78, edgecolor=dress.paper, lw=0.4)
        left += widths
    axes.set_title(case.name)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def memory(sweep: Sweep, dress: Dress) -> plt.Figure:
    cases = [case for case in measured(sweep) if case.runs[-1].memory]
    rows = max(1, math.ceil(len(cases) / 2))
    figure, grid = plt.subplots(rows, 2, figsize=(WIDTH, 1.25 * rows + 1.1), layout="constrained", sharex=True,
                                squeeze=False)
    if not cases:
        return blank(figure, *grid.flat)
    unit, name = unit_of(max(case.peak.high for case in cases))
    kinds = kinds_held(cases)
    grid.flat[0].set_xlim(0, 1.03 * max(case.peak.high for case in cases) / unit)
    for axes, case in zip(grid.flat, cases):
        memory_panel(axes, case, kinds, unit, dress)
    for axes in grid.flat[len(cases):]:
        axes.axis("off")
    for axes in grid.flat[max(0, len(cases) - 2):len(cases)]:
        axes.tick_params(labelbottom=True)
    figure.legend([plt.Rectangle((0, 0), 1, 1, color=color_of(kind)) for kind in kinds],
                  [kind.replace("_", " ") for kind in kinds], loc="outside upper left", ncols=4, fontsize=9)
    figure.supxlabel(f"memory held at the peak of the phase ({name})", fontsize=10)
    return figure


# Loss.

def median_curve(runs: list[Record]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and the loss after them: the median over the runs, as far as all of them went."""
    length = min(len(run.steps) for run in runs)
    return runs[0].steps[:length, 1], np.median([run.steps[:length, 2] for run in runs], axis=0)


def change_curve(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and the loss less the baseline's of the same rounds where both counted as many tokens."""
    tokens, loss = median_curve([run for run, _ in case.pairs])
    base_tokens, base_loss = median_curve([base for _, base in case.pairs])
    shared, mine, others = np.intersect1d(tokens, base_tokens, return_indices=True)
    return shared, loss[mine] - base_loss[others]


def loss(sweep: Sweep, dress: Dress) -> plt.Figure:
    cases = measured(sweep)
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH, 6.4), layout="constrained", sharex=True,
                                          height_ratios=(3, 2))
    if not cases:
        return blank(figure, upper, lower)
    for index, case in enumerate(cases):
        look = {"color": CASE_COLORS[index % len(CASE_COLORS)], "ls": DASHES[index // len(CASE_COLORS) % len(DASHES)],
                "lw": 1.5, "alpha": 0.85}
        upper.plot(*median_curve(case.runs), label=case.name, **look)
        if case.pairs:
            lower.plot(*change_curve(case), **look)
    upper.set_ylabel("loss (nats a token)")
    lower.set_ylabel("loss − baseline's")
    lower.set_xlabel("tokens trained on")
    lower.xaxis.set_major_formatter("{x:,.0f}")
    lower.axhline(0, color=dress.ink, lw=0.8, zorder=1)
    figure.legend(loc="outside upper left", ncols=3, fontsize=9)
    if not any(case.pairs for case in cases):
        note(lower, "no baseline finished")
        lower.set_yticks([])
    return figure


def blank(figure: plt.Figure, *all_axes: plt.Axes) -> plt.Figure:
    for axes in all_axes:
        axes.axis("off")
    note(all_axes[0], "no run finished")
    return figure


def note(axes: plt.Axes, words: str) -> None:
    axes.text(0.5, 0.5, words, ha="center", transform=axes.transAxes)


PICTURES = {"pareto": pareto, "memory": memory, "loss": loss}
