"""What ranks hold and how fast they are, by number and stage of ZeRO."""
import matplotlib.pyplot as plt

from .theme import CASE_COLORS, Theme

MB = 1e6


def draw_memory(axes, held):
    for zero in range(4):
        of_stage = [(ranks, one["peak"] / MB) for (ranks, stage), one in sorted(held["measured"].items()) if stage == zero or ranks == 1]
        predicted = [(ranks, peak / MB) for (ranks, stage), peak in sorted(held["predicted"].items()) if stage == zero]
        color, style = CASE_COLORS[zero], "--" if zero == 2 else "-"  # ZeRO-2 lies on ZeRO-1
        axes.plot(*zip(*of_stage, *predicted), color=color, linestyle=style, linewidth=1.5, label=f"ZeRO-{zero}")
        axes.plot(*zip(*of_stage), color=color, linestyle="", marker="o", markersize=5)
        if predicted:
            axes.plot(*zip(*predicted), color=color, linestyle="", marker="o", markersize=5, markerfacecolor="none")
    counts = sorted({ranks for ranks, _ in (*held["measured"], *held["predicted"])})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set(title="Peak of the fullest rank, MB", xlabel="ranks")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)


def draw_speed(axes, ranks):
    links = list(dict.fromkeys(one["link"] for one in ranks["layouts"]))
    markers = dict(zip(links, "os^vD"))
    for one in ranks["layouts"]:
        zero, speed = one["zero"], ranks["ranks"] * one["efficiency"]
        beside = (zero - 2) * 0.06 + (links.index(one["link"]) - 1) * 0.015  # points of one number of ranks side by side
        axes.plot([1, ranks["ranks"] + beside], [1, speed], color=CASE_COLORS[zero], linewidth=0.5, alpha=0.5)
        axes.plot([ranks["ranks"] + beside], [speed], color=CASE_COLORS[zero], linestyle="", marker=markers[one["link"]], markersize=5)
    for link in links:
        axes.plot([], [], color="grey", linestyle="", marker=markers[link], markersize=5, label=link)
    counts = [1, ranks["ranks"]]
    axes.plot(counts, counts, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set(title="Tokens a second beside one rank", xlabel="ranks")
    axes.set_ylim(bottom=0.9)
    axes.legend(fontsize=8, title="link", title_fontsize=8)


def draw(theme: Theme, held, ranks):
    figure, axes = plt.subplots(1, 2, figsize=(theme.width, 3.4), layout="constrained")
    draw_memory(axes[0], held)
    draw_speed(axes[1], ranks)
    return figure
