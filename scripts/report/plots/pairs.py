"""What two techniques do together beyond what each does alone, as a map of all pairs."""
import math

import matplotlib.pyplot as plt

from ..sweep_parts import Pair
from .theme import POINT, Theme

BETTER, WORSE, OVERLAP = (0.13, 0.45, 0.80), (0.85, 0.29, 0.16), (0.45, 0.47, 0.50)
HARM = 1  # percent of the baseline's peak that two together may be above the smaller one


def memory_share(pair: Pair) -> float:
    """Percent of the baseline's peak that the pair saves beyond the product; NaN where it isn't known."""
    return 100 * pair.memory / pair.baseline_peak


def time_share(pair: Pair) -> float:
    """Percent of step time that the pair saves beyond the product, nearly: it is a difference of logarithms."""
    return -100 * pair.log_time.value if pair.log_time else math.nan


def is_once(pair: Pair) -> bool:
    """Whether a single round was measured, which decides nothing about time."""
    return bool(pair.case and pair.case.one_round)


def memory_mark(pair: Pair) -> tuple[float, tuple[float, ...]]:
    """The share that a cell shows, and its colour. Two that save the same bytes save less together than the product, which harms
    nothing unless one alone is smaller; then the share is by how much."""
    excess = 100 * pair.excess / pair.baseline_peak
    if pair.memory < 0 and excess > HARM:
        return excess, WORSE
    return memory_share(pair), BETTER if pair.memory > 0 else OVERLAP


def full_colour(pairs: list[Pair]) -> float:
    """The share at which a cell reaches its full colour: nine of ten filled cells stay below it."""
    shares = sorted(abs(share) for pair in pairs for share in (memory_share(pair), math.nan if is_once(pair) else time_share(pair))
                    if math.isfinite(share))
    return max(1, math.ceil(shares[int(0.9 * (len(shares) - 1))])) if shares else 1


def cell(axes: plt.Axes, column: int, row: int, share: float, hue: tuple[float, ...], number: int, full: float, once: bool,
         theme: Theme) -> None:
    """Filled, or with its colour in the outline where a single round was measured."""
    shade = (*hue, min(1, abs(share) / full)) if math.isfinite(share) else (0, 0, 0, 0)
    face, edge, half, width = ((0, 0, 0, 0), shade, 0.36, 1.2) if once else (shade, theme.faint, 0.46, 0.5)
    axes.add_patch(plt.Rectangle((column - half, row - half), 2 * half, 2 * half, facecolor=face, edgecolor=edge, lw=width,
                                 gid=f"{POINT}{number}"))


def pair_map(pairs: list[Pair], names: list[str], theme: Theme) -> plt.Figure:
    """Below the diagonal memory, above it time."""
    count = len(names)
    figure, axes = plt.subplots(figsize=(theme.width, 0.82 * theme.width + 0.9), layout="constrained")
    full = full_colour(pairs)
    refused, unmeasured = [], []
    for number, pair in enumerate(pairs):
        first, second = sorted(names.index(name) for name in pair.names)
        time = time_share(pair)
        for spot, (share, hue), once in (((first, second), memory_mark(pair), False),
                                         ((second, first), (time, BETTER if time > 0 else WORSE), is_once(pair))):
            cell(axes, *spot, share, hue, number, full, once, theme)
            if not math.isfinite(share):
                (refused if pair.refused else unmeasured).append(spot)
    for spots, marker in ((refused, "x"), (unmeasured, ".")):
        axes.plot([x for x, _ in spots], [y for _, y in spots], marker, ms=2.5, color=theme.ink, alpha=0.6)
    axes.plot([-0.5, count - 0.5], [-0.5, count - 0.5], color=theme.ink, lw=0.8)
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(count - 0.5, -0.5)
    size = 8 if count <= 26 else 7
    axes.set_xticks(range(count), names, rotation=90, fontsize=size)
    axes.set_yticks(range(count), names, fontsize=size)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.set_title("above the diagonal: step time\nbelow it: peak memory", loc="right")
    looks = {f"faster or smaller, by {full} % or more": BETTER, "overlap: saves less than expected": OVERLAP,
             "slower, or larger than one alone": WORSE}
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=face) for face in looks.values()]
    handles.append(plt.Rectangle((0, 0), 1, 1, facecolor="none", edgecolor=theme.ink, lw=1.2))
    figure.legend(handles, [*looks, "outlined: a single round"], loc="outside lower center", ncols=2, fontsize=9)
    return figure
