"""How pictures look, and what becomes of them: PNGs for Markdown, SVG inside of HTML in the colours of the page."""
import dataclasses
import html
import io
import re
from collections.abc import Callable

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from ..figures import Interval

DPI = 180
CASE_COLORS = ("#2b7fc4", "#d55e00", "#109c78", "#c2679a", "#b58900", "#3aa6dd", "#8a63c2", "#a0674b")
DASHES = ("-", "--", ":", "-.")
# The kinds of memory that add up to the whole, in the order in which they are stacked, and their colours.
KINDS = {
    "parameters": "#4c72b0", "master": "#8fa8d6", "gradients": "#dd8452", "optimizer": "#c44e52",
    "activations": "#55a868", "loss_head": "#a3d18f", "kv_cache": "#8172b3", "reference": "#937860",
    "scratch": "#bdbdbd", "other": "#8c8c8c",
}  # fmt: skip
POINT = "point-"  # and a number: the id of what a reader can point at


@dataclasses.dataclass(frozen=True)
class Dress:
    paper: str
    ink: str
    faint: str
    front: str
    width: float  # inches; words are 10 points high in all
    place: str

    @property
    def is_wide(self) -> bool:
        return self.width > 6


PRINTED = Dress("#ffffff", "#1c1f24", "#d9dce1", "#c2410c", 7.2, "print")
# Of SVGs: colours that stand for the page's, which change with its theme.
STAND_INS = {"#a1b2c1": "var(--paper)", "#a1b2c2": "var(--ink)", "#a1b2c3": "var(--line)", "#a1b2c4": "var(--front)"}
WIDE = Dress(*STAND_INS, 7.2, "wide")
NARROW = Dress(*STAND_INS, 4.3, "narrow")  # on a phone


def style(dress: Dress) -> dict:
    ink = {key: dress.ink for key in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")}
    return {**ink, "figure.facecolor": dress.paper, "axes.facecolor": dress.paper, "savefig.facecolor": dress.paper,
            "axes.edgecolor": dress.faint, "grid.color": dress.faint, "axes.grid": True, "axes.axisbelow": True,
            "axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "axes.titlesize": 10.5,
            "axes.titlelocation": "left", "legend.frameon": False, "svg.fonttype": "none", "svg.hashsalt": "moelab"}


Drawing = Callable[[Dress], plt.Figure]


def saved(drawing: Drawing, dress: Dress, **options) -> bytes:
    out = io.BytesIO()
    with plt.rc_context(style(dress)):
        figure = drawing(dress)
        figure.savefig(out, **options)
        plt.close(figure)
    return out.getvalue()


def png(drawing: Drawing) -> bytes:
    return saved(drawing, PRINTED, dpi=DPI, metadata={"Software": None})


def svg(drawing: Drawing, dress: Dress, name: str, alternative: str, labels: list[str]) -> str:
    """An element to stand in HTML, `name`-at-`dress.place`: all its ids begin with that. What has the id POINT and a number
    becomes a point of that label; the first alone is reached by the Tab key, the others by arrows."""
    own = f"{name}-at-{dress.place}"
    text = saved(drawing, dress, format="svg", metadata={"Date": None, "Creator": None}).decode()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>",
                  lambda tag: f'<svg {tag[1]} role="?" aria-label="{html.escape(alternative)}">', text)
    text = re.sub(rf'<g id="{POINT}(\d+)"', lambda point: point_html(name, point[1], labels), text)
    role = "group" if 'class="point"' in text else "img"
    text = text.replace('role="?"', f'role="{role}"', 1).replace('tabindex="-1"', 'tabindex="0"', 1)
    text = re.sub(r'\bid="', f'id="{own}-', text)
    text = re.sub(r'xlink:href="#', f'href="#{own}-', text).replace("url(#", f"url(#{own}-")
    for colour, variable in STAND_INS.items():
        text = text.replace(colour, variable)
    return re.sub(r"\n\s*", "\n", text)


def point_html(name: str, number: str, labels: list[str]) -> str:
    label = html.escape(labels[int(number)])
    return f'<g class="point" role="button" tabindex="-1" aria-label="{label}" data-point="{name}-{number}"'


# What several pictures need.


def errors(interval: Interval, unit: float = 1) -> list[list[float]]:
    return [[(interval.value - interval.low) / unit], [(interval.high - interval.value) / unit]]


def padded(lows: list[float], highs: list[float], share: float) -> tuple[float, float]:
    """From the lowest to the highest with a share of that on both sides; never below 0."""
    low, high = min(lows), max(highs)
    room = share * ((high - low) or high)
    return max(0, low - room), high + room


def point_at(axes: plt.Axes, x: float, y: float, number: int, dress: Dress) -> None:
    """Something wider than the mark to point at, unseen."""
    axes.plot([x], [y], "o", ms=15, color=dress.ink, alpha=0, gid=f"{POINT}{number}", zorder=9)


def blank(figure: plt.Figure, *all_axes: plt.Axes) -> plt.Figure:
    for axes in all_axes:
        axes.axis("off")
    note(all_axes[0], "no run finished")
    return figure


def note(axes: plt.Axes, words: str) -> None:
    axes.text(0.5, 0.5, words, ha="center", transform=axes.transAxes)
