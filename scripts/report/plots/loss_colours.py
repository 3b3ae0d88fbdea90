"""The colours of what a technique does to the loss that long runs end at."""
import matplotlib.pyplot as plt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap

# Of the held-out loss, where colours change; beyond the ends they stay. Grey is none of them.
CHANGES = (-0.1, -0.06, -0.02, 0, 0.02, 0.06, 0.1)
COLOURS = ListedColormap(["#1d5fa8", "#7fb2e5", "#c9def3", "#fbdcbc", "#f0a35e", "#b3451b"])
SCALE = BoundaryNorm(CHANGES, COLOURS.N)
GREY = "#9aa0a6"


def face(effect) -> str | tuple:
    """The colour of its change of the loss, grey where the seeds can't tell. effect: a quality.Effect."""
    if not effect.is_seen:
        return GREY
    return COLOURS(SCALE(min(max(effect.change.value, CHANGES[0]), CHANGES[-1] - 1e-9)))


def bar(axes: plt.Axes, words: str) -> None:
    """The scale, below the axes."""
    drawn = axes.figure.colorbar(ScalarMappable(SCALE, COLOURS), ax=axes, location="bottom", aspect=40, shrink=0.9, pad=0.02,
                                 format="%+.2f", ticks=CHANGES)
    drawn.set_label(words)
    drawn.outline.set_visible(False)
