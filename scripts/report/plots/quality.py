"""Memory, speed and quality in one picture, a point a technique."""
import matplotlib.pyplot as plt
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from .loss_colours import bar, face
from .pareto import SPOTS, between, overlap
from .theme import Theme, padded


def name_points(axes: plt.Axes, places: dict[str, tuple[float, float]]) -> None:
    """Each name where it covers least of the points and of the names before it, with a line to its point unless it stands level with it."""
    renderer = axes.figure.canvas.get_renderer()
    taken = [between(axes.transData.transform([place]), 6) for place in places.values()]
    frame = axes.get_window_extent()
    for name, place in places.items():
        tried = []
        for spot in SPOTS:
            label = axes.annotate(name, place, spot, textcoords="offset points", fontsize=8, va="center", ha="left" if spot[0] > 0 else "right")
            label.update_positions(renderer)
            box: Bbox = Text.get_window_extent(label, renderer)
            label.remove()
            covered = sum(overlap(box, other) for other in taken) + 10 * (box.width * box.height - overlap(box, frame))
            tried.append((covered + 0.01 * (spot[0] ** 2 + spot[1] ** 2), spot, box))
        _, spot, box = min(tried, key=lambda one: one[0])
        taken.append(box)
        axes.annotate(name, place, spot, textcoords="offset points", fontsize=8, va="center", ha="left" if spot[0] > 0 else "right",
                      arrowprops={"arrowstyle": "-", "lw": 0.6} if spot not in SPOTS[:2] else None)


def names(effects: list) -> list[str]:
    """With the model where there are several."""
    several = len({effect.sweep.model for effect in effects}) > 1
    return [f"{effect.case.name} ({effect.sweep.model})" if several else effect.case.name for effect in effects]


def quality(effects: list, theme: Theme) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(theme.width, 5.2), layout="constrained")
    places = {name: (effect.case.peak_ratio.value, effect.case.speed_ratio.value) for name, effect in zip(names(effects), effects)}
    for sides, chosen in ((axes.set_xlim, 0), (axes.set_ylim, 1)):
        values = [place[chosen] for place in places.values()]
        sides(padded(values, values, 0.15))
    for place, effect in zip(places.values(), effects):
        axes.plot(*place, "o", ms=8, mfc=face(effect), mec=theme.ink, mew=0.7, zorder=4)
    axes.axhline(1, color=theme.faint, lw=1)
    axes.axvline(1, color=theme.faint, lw=1)
    axes.set_xlabel("peak memory, times the baseline's (less is better)")
    axes.set_ylabel("speed, times the baseline's (more is better)")
    bar(axes, "change of the held-out loss (nats a token); grey points: the seeds can't tell")
    figure.canvas.draw()
    name_points(axes, places)
    return figure
