"""What training runs went through, step by step: loss, tokens a second, memory by kind and expert load."""
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from ..byte_units import human_bytes, unit_of
from ..training_runs import Run
from .theme import KINDS

PHASES = ("init", "forward", "backward", "step")
STEPS_BY_PHASE = 8  # more could not be told apart


def draw_curve(axes, run: Run, values: list[float]):
    # A line through one point shows nothing.
    marker = "." if len(values) == 1 else None
    return axes.plot(run.steps, values, linewidth=1, marker=marker, label=run.label)[0]


def draw_loss(axes, runs: list[Run]) -> None:
    held_out = {"linestyle": "--", "marker": "o", "markersize": 4, "markeredgecolor": "black", "markeredgewidth": 0.5}
    for run in runs:
        line = draw_curve(axes, run, run.series("loss"))
        if points := run.held_out():
            axes.plot(*zip(*points), color=line.get_color(), **held_out)
    if any(run.held_out() for run in runs):
        keys = [Line2D([], [], color="grey", linewidth=1), Line2D([], [], color="grey", **held_out)]
        axes.legend(keys, ["training batches", "held-out text"], fontsize=8)
    axes.set(title="Loss", ylabel="nats a token")


def draw_speed(axes, runs: list[Run]) -> None:
    for run in runs:
        draw_curve(axes, run, run.series("tokens_per_second"))
    axes.set(title="Speed", ylabel="tokens a second")
    axes.set_ylim(0, 1.1 * axes.dataLim.y1)
    axes.yaxis.set_major_formatter("{x:,.0f}")


def draw_load(axes, runs: list[Run]) -> None:
    for run in runs:
        draw_curve(axes, run, run.series("expert_load", "max_over_mean"))
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set(title="Expert load", ylabel="busiest expert / mean (1: balanced)")


def draw_memory_over_steps(axes, run: Run) -> None:
    kinds = run.kinds()
    size, unit = unit_of(max(*run.series("peak_bytes"), run.limit))
    stacked = [[count / size for count in kinds[kind]] for kind in kinds]
    axes.stackplot(run.steps, stacked, labels=list(kinds), colors=[KINDS[kind] for kind in kinds], step="mid")
    if run.limit:
        axes.axhline(run.limit / size, color="black", linewidth=1, linestyle="--", label="limit")
    axes.set(title="Memory at each step's peak, by kind", ylabel=unit)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), reverse=True)  # as they are stacked


def some_steps(run: Run) -> list[int]:
    """Steps spread evenly from the first to the last, the step with the highest peak among them."""
    steps = sorted(run.phases)[1:]
    if len(steps) < STEPS_BY_PHASE:
        return steps
    last = len(steps) - 1
    some = {steps[round(i * last / (STEPS_BY_PHASE - 2))] for i in range(STEPS_BY_PHASE - 1)}
    peaks = dict(zip(run.steps, run.series("peak_bytes")))
    return sorted(some | {max(steps, key=peaks.__getitem__)})


def draw_memory_by_phase(axes, run: Run) -> None:
    """A bar for what opening the run took, and one for each phase of some of its steps."""
    bars, ticks, place = [], [], 0.0
    for step in [0, *some_steps(run)]:
        # the first step begins where opening ended, in the same phase
        phases = [phase for phase in (PHASES[1:] if step else PHASES) if phase in run.phases[step]]
        bars += [(place + i, phase, run.phases[step][phase]) for i, phase in enumerate(phases)]
        ticks.append((place + (len(phases) - 1) / 2, f"step {step}" if step else ""))
        place += len(phases) + 0.6
    places, phases, held = zip(*bars)
    totals = [sum(kinds.get(kind, 0) for kind in KINDS) for kinds in held]
    size, unit = unit_of(max(*totals, run.limit))
    below = [0.0] * len(bars)
    for kind, colour in KINDS.items():
        heights = [kinds.get(kind, 0) / size for kinds in held]
        if any(heights):
            axes.bar(places, heights, bottom=below, width=0.92, color=colour, label=kind)
            below = [a + b for a, b in zip(below, heights)]
    if run.limit:
        axes.axhline(run.limit / size, color="black", linewidth=1, linestyle="--", label="limit")
    axes.set_xticks(places, phases, rotation=90, fontsize=7)
    below_phases = axes.secondary_xaxis(-0.2)
    below_phases.set_xticks([place for place, _ in ticks], [name for _, name in ticks])
    below_phases.tick_params(length=0)
    below_phases.spines["bottom"].set_visible(False)
    axes.margins(x=0.01)
    axes.set(title="Memory at the peak of each phase, by kind", ylabel=unit)
    handles, _ = axes.get_legend_handles_labels()
    handles.sort(key=lambda handle: handle.get_label() == "limit")
    axes.legend(handles=handles, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), reverse=True)


def draw_memory_of_runs(axes, runs: list[Run]) -> None:
    """One bar for each run: its step with the highest peak."""
    tops = [max(range(len(run.lines)), key=run.series("peak_bytes").__getitem__) for run in runs]
    size, unit = unit_of(max(run.series("peak_bytes")[top] for run, top in zip(runs, tops)))
    below = [0.0] * len(runs)
    names = [run.label for run in runs]
    for kind, colour in KINDS.items():
        heights = [run.kinds().get(kind, [0] * len(run.lines))[top] / size for run, top in zip(runs, tops)]
        if any(heights):
            bars = axes.barh(names, heights, left=below, color=colour, label=kind, height=0.6)
            below = [a + b for a, b in zip(below, heights)]
    axes.bar_label(bars, [human_bytes(count * size) for count in below], padding=3, fontsize=8)
    axes.set_xlim(0, 1.2 * max(below))
    axes.invert_yaxis()  # the first run on top
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    axes.set(title="Memory at the highest peak, by kind", xlabel=unit)


def draw(runs: list[Run]) -> plt.Figure:
    phases = len(runs) == 1 and bool(runs[0].phases)
    figure = plt.figure(figsize=(13, 12.5 if phases else 8.5), layout="constrained")
    panels = [["loss", "speed"], ["memory", "load"], *([["phases", "phases"]] if phases else [])]
    loss, speed, memory, load, *wide = figure.subplot_mosaic(panels).values()
    if wide:
        draw_memory_by_phase(wide[0], runs[0])
    draw_loss(loss, runs)
    draw_speed(speed, runs)
    draw_load(load, runs)
    by_step = [loss, speed, load]
    if len(runs) == 1 and len(runs[0].lines) > 1:
        draw_memory_over_steps(memory, runs[0])
        by_step.append(memory)
    else:
        draw_memory_of_runs(memory, runs)
    for axes in by_step:
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.margins(x=0.01)
    for axes in (loss, speed, load, memory, *wide):
        axes.grid(alpha=0.3, axis="both" if axes in by_step else "y" if axes in wide else "x")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*speed.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    figure.get_layout_engine().set(h_pad=0.12, w_pad=0.08)
    return figure
