"""What happens over a run: memory by kind through the phases of a step, and the loss."""
import math

import matplotlib.pyplot as plt
import numpy as np

from ..byte_units import unit_of
from ..figures import Case, Sweep, measured
from ..records import Record
from .theme import CASE_COLORS, DASHES, KINDS, Theme, note

MOST_CURVES = 12
SMALL = 1e-3  # nats: the panel of differences spans this much at least, so that rounding does not fill it


def kinds_held(cases: list[Case]) -> list[str]:
    """The kinds that hold anything; not the parts of a kind ("activations.attention"), which are counted in it."""
    held = {kind for case in cases for kinds in case.runs[-1].memory.values() for kind, count in kinds.items()
            if "." not in kind and count > 0}
    return [kind for kind in KINDS if kind in held] + sorted(held - KINDS.keys())


def color_of(kind: str) -> str:
    return KINDS.get(kind, KINDS["other"])


def memory_panel(axes: plt.Axes, case: Case, kinds: list[str], unit: float, theme: Theme) -> None:
    held_in = case.runs[-1].memory
    left = np.zeros(len(held_in))
    for kind in kinds:
        widths = np.array([held.get(kind, 0) for held in held_in.values()]) / unit
        axes.barh(list(held_in), widths, left=left, color=color_of(kind), height=0.78, edgecolor=theme.paper, lw=0.4)
        left += widths
    axes.set_title(case.name, fontsize=10.5 if theme.is_wide else 9)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def with_memory(sweep: Sweep) -> list[Case]:
    return [case for case in measured(sweep) if case.runs[-1].memory]


def memory(sweep: Sweep, theme: Theme) -> plt.Figure:
    cases = with_memory(sweep)
    columns = 3 if theme.is_wide and len(cases) > 8 else 2
    rows = math.ceil(len(cases) / columns)
    figure, grid = plt.subplots(rows, columns, figsize=(theme.width, 1.15 * rows + 1.1), layout="constrained",
                                sharex=True, sharey=True, squeeze=False)
    unit, name = unit_of(max(case.peak.high for case in cases))
    kinds = kinds_held(cases)
    grid.flat[0].set_xlim(0, 1.03 * max(case.peak.high for case in cases) / unit)
    for axes, case in zip(grid.flat, cases):
        memory_panel(axes, case, kinds, unit, theme)
    grid.flat[0].set_ylim(*sorted(grid.flat[0].get_ylim(), reverse=True))  # the first phase on top
    for axes in grid.flat[len(cases):]:
        axes.axis("off")
    for axes in grid.flat[max(0, len(cases) - columns):len(cases)]:
        axes.tick_params(labelbottom=True)
    figure.legend([plt.Rectangle((0, 0), 1, 1, color=color_of(kind)) for kind in kinds],
                  [kind.replace("_", " ") for kind in kinds], loc="outside upper left",
                  ncols=4 if theme.is_wide else 3, fontsize=9)
    figure.supxlabel(f"memory held at the peak of the phase ({name})", fontsize=10)
    return figure


def median_curve(runs: list[Record]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and the median loss of the runs after them, up to the shortest run's end."""
    length = min(len(run.steps) for run in runs)
    return runs[0].steps[:length, 1], np.median([run.steps[:length, 2] for run in runs], axis=0)


def change_curve(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and the loss minus that of the baseline in the same rounds, where both counted the same tokens."""
    tokens, loss = median_curve([run for run, _ in case.pairs])
    base_tokens, base_loss = median_curve([base for _, base in case.pairs])
    shared, mine, others = np.intersect1d(tokens, base_tokens, return_indices=True)
    return shared, loss[mine] - base_loss[others]


def with_curves(sweep: Sweep) -> list[Case]:
    """The baselines and the cases whose losses end farthest from theirs, in the order of the sweep."""
    def distance(case: Case) -> float:
        return math.inf if not case.baseline else 0.0 if math.isnan(case.loss_change) else abs(case.loss_change)
    cases = measured(sweep)
    chosen = sorted(cases, key=distance, reverse=True)[:MOST_CURVES]
    return [case for case in cases if case in chosen]


def of_index(index: int) -> dict:
    """The colour and dashes of the curve with that number."""
    return {"color": CASE_COLORS[index % len(CASE_COLORS)], "ls": DASHES[index // len(CASE_COLORS) % len(DASHES)]}


def loss(sweep: Sweep, theme: Theme) -> plt.Figure:
    """Of a sweep with a case beside its baseline, one at least."""
    cases = with_curves(sweep)
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(theme.width, 6.4), layout="constrained", sharex=True,
                                          height_ratios=(3, 2))
    beside = [case for case in cases if case.baseline]
    for case in cases:
        look = {**(of_index(beside.index(case)) if case.baseline else {"color": theme.ink}), "lw": 1.5, "alpha": 0.85}
        upper.plot(*median_curve(case.runs), label=case.name, **look)
        if case.pairs:
            lower.plot(*change_curve(case), **look)
    upper.set_ylabel("loss (nats a token)")
    lower.set_ylabel("loss − baseline's")
    lower.set_xlabel("tokens trained on")
    lower.xaxis.set_major_formatter("{x:,.0f}")
    lower.locator_params(axis="x", nbins=6 if theme.is_wide else 4)
    lower.set_ylim(min(lower.get_ylim()[0], -SMALL), max(lower.get_ylim()[1], SMALL))
    lower.axhline(0, color=theme.ink, lw=0.8, zorder=1)
    figure.legend(loc="outside upper left", ncols=3 if theme.is_wide else 2, fontsize=9)
    if not any(case.pairs for case in cases):
        note(lower, "no baseline finished")
        lower.set_yticks([])
    return figure
