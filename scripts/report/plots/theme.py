"""How pictures look: colours, sizes and what several of them need."""
import dataclasses

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from ..figures import Interval

CASE_COLORS = ("#2b7fc4", "#d55e00", "#109c78", "#c2679a", "#b58900", "#3aa6dd", "#8a63c2", "#a0674b")
DASHES = ("-", "--", ":", "-.")
# The kinds of memory that add up to the whole, in the order in which they are stacked, and their colours.
KINDS = {
    "parameters": "#4c72b0", "master": "#8fa8d6", "gradients": "#dd8452", "optimizer": "#c44e52",
    "activations": "#55a868", "loss_head": "#a3d18f", "kv_cache": "#8172b3", "reference": "#937860",
    "scratch": "#bdbdbd", "other": "#8c8c8c",
}  # fmt: skip
POINT = "point-"  # and a number: the id (gid) of a mark in a drawing that a reader can point at


@dataclasses.dataclass(frozen=True)
class Theme:
    paper: str
    ink: str
    faint: str
    front: str
    width: float  # inches; text is 10 points high in all themes
    place: str

    @property
    def is_wide(self) -> bool:
        return self.width > 6


PRINTED = Theme("#ffffff", "#1c1f24", "#d9dce1", "#c2410c", 7.2, "print")
# SVGs are drawn in these colours, which images.py replaces by the page's; they change between light and dark.
STAND_INS = {"#a1b2c1": "var(--paper)", "#a1b2c2": "var(--ink)", "#a1b2c3": "var(--line)", "#a1b2c4": "var(--front)"}
WIDE = Theme(*STAND_INS, 7.2, "wide")
NARROW = Theme(*STAND_INS, 4.3, "narrow")  # on a phone
PLACES = {one.place: one for one in (WIDE, NARROW)}


def style(theme: Theme) -> dict:
    ink = {key: theme.ink for key in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")}
    return {**ink, "figure.facecolor": theme.paper, "axes.facecolor": theme.paper, "savefig.facecolor": theme.paper,
            "axes.edgecolor": theme.faint, "grid.color": theme.faint, "axes.grid": True, "axes.axisbelow": True,
            "axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "axes.titlesize": 10.5,
            "axes.titlelocation": "left", "legend.frameon": False, "axes.unicode_minus": False,
            "svg.fonttype": "none", "svg.hashsalt": "moelab"}


def errors(interval: Interval, unit: float = 1) -> list[list[float]]:
    return [[(interval.value - interval.low) / unit], [(interval.high - interval.value) / unit]]


def padded(lows: list[float], highs: list[float], share: float) -> tuple[float, float]:
    """The range of the values, widened on both sides by a share of it, and never below 0."""
    low, high = min(lows), max(highs)
    room = share * ((high - low) or high)
    return max(0, low - room), high + room


def point_at(axes: plt.Axes, x: float, y: float, number: int, theme: Theme) -> None:
    """An invisible target around a mark, larger than the mark, for mouse and finger."""
    axes.plot([x], [y], "o", ms=15, color=theme.ink, alpha=0, gid=f"{POINT}{number}", zorder=9)


def note(axes: plt.Axes, words: str) -> None:
    axes.text(0.5, 0.5, words, ha="center", transform=axes.transAxes)
