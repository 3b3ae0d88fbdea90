#!/usr/bin/env python3
"""Draws what training runs went through: loss, tokens a second, memory by kind and expert load, step by step.

Each RUN is the folder of a `moelab train` (its run.dir); what is drawn is in its metrics.jsonl. Several runs are laid
over each other, their memory stands side by side. Of one run that has ended or saved a checkpoint, the memory of some
steps is drawn phase by phase as well, from its memory.json.
"""
import argparse
import dataclasses
import json
import math
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")  # files alone: no display is needed
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from byte_units import human_bytes, unit_of

EXAMPLE = "example: scripts/plot_run.py runs/moe-nano runs/moe-nano-recompute --out compared.png"
# The kinds of memory that add up to the whole, in the order in which they are stacked, and their colours.
KINDS = {
    "parameters": "#4c72b0", "master": "#8fa8d6", "gradients": "#dd8452", "optimizer": "#c44e52",
    "activations": "#55a868", "loss_head": "#a3d18f", "kv_cache": "#8172b3", "reference": "#937860",
    "scratch": "#bdbdbd", "other": "#8c8c8c",
}  # fmt: skip
PHASES = ("init", "forward", "backward", "step")
STEPS_BY_PHASE = 8  # as many as can be told apart
DRAWN = {"step", "loss", "held_out_loss", "tokens_per_second", "expert_load", "peak_bytes"}


class Mistake(Exception):
    """The user's; one line."""


@dataclasses.dataclass
class Run:
    label: str
    lines: list[dict]  # of metrics.jsonl, steps rising
    limit: int  # memory.limit in bytes; 0: none, or not known
    final_held_out: float | None  # of the evaluation after the last step
    phases: dict[int, dict]  # step -> phase -> kind -> bytes at the phase's peak; step 0 is what opening the run took

    @property
    def steps(self) -> list[int]:
        return [line["step"] for line in self.lines]

    def series(self, key: str, part: str | None = None) -> list[float]:
        """A number a step; what wasn't finite is NaN, a gap in the curve."""
        values = (line[key] if part is None else line[key][part] for line in self.lines)
        return [math.nan if value is None else value for value in values]

    def held_out(self) -> list[tuple[int, float]]:
        """The steps that were evaluated, and their losses."""
        points = {line["step"]: line["held_out_loss"] for line in self.lines if line["held_out_loss"] is not None}
        if self.final_held_out is not None:
            points[self.steps[-1]] = self.final_held_out
        return list(points.items())

    def kinds(self) -> dict[str, list[float]]:
        """Bytes of each kind at each step's peak; kinds that were never held are left out."""
        held = [line.get("peak_bytes_by_kind") or {"other": line["peak_bytes"]} for line in self.lines]
        series = {kind: [step.get(kind, 0) for step in held] for kind in KINDS}
        return {kind: values for kind, values in series.items() if any(values)}


def read_lines(file: pathlib.Path) -> list[dict]:
    try:
        text = file.read_text()
    except FileNotFoundError:
        raise Mistake(f"{file.parent}: no metrics.jsonl there; give the folder of a run (run.dir)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Mistake(f"{file}: {error}") from None
    steps = {}
    whole = text[: text.rfind("\n") + 1]  # a run that was killed may leave the start of a line
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            metrics = json.loads(line)
            if not isinstance(metrics, dict) or not DRAWN <= metrics.keys():
                raise ValueError
            steps[metrics["step"]] = metrics
        except ValueError:
            raise Mistake(f"{file}:{number}: not a line of metrics: {line[:60]}") from None
    if not steps:
        raise Mistake(f"{file}: empty: the run has not finished a step")
    return [steps[step] for step in sorted(steps)]


def read_summary(folder: pathlib.Path) -> dict:
    """Of a run that has ended; a run that goes on, or was killed, has none or that of an earlier end."""
    try:
        return json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError):
        return {}


def read_phases(folder: pathlib.Path, lines: list[dict]) -> dict[int, dict]:
    """Of the steps that memory.json and metrics.jsonl agree on: the former may be that of an earlier run."""
    try:
        memory = json.loads((folder / "memory.json").read_text())
        steps = {0: memory["opened"]["bytes_by_phase"]}
        peaks = {line["step"]: line["peak_bytes"] for line in lines}
        for entry in memory["steps"]:
            if entry["bytes_by_phase"] and peaks.get(entry["step"]) == entry["peak_bytes"]:
                steps[entry["step"]] = entry["bytes_by_phase"]
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or of an older program
        return {}
    return steps if len(steps) > 1 else {}


def read_run(folder: pathlib.Path, label: str) -> Run:
    if not folder.is_dir():
        raise Mistake(f"{folder}: no such folder; give the folder of a run (run.dir)")
    lines = read_lines(folder / "metrics.jsonl")
    summary = read_summary(folder)
    current = summary.get("steps") == lines[-1]["step"]
    held_out = summary.get("held_out_loss") if current else None
    return Run(label, lines, summary.get("memory_limit_bytes") or 0, held_out, read_phases(folder, lines))


def labels_of(folders: list[pathlib.Path]) -> list[str]:
    """The folders' names, or their paths where two bear the same name."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


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
    keys = [Line2D([], [], color="grey", linewidth=1), Line2D([], [], color="grey", **held_out)]
    axes.legend(keys, ["training batches", "held-out text"], fontsize=8)
    axes.set(title="Loss", ylabel="nats a token")


def draw_speed(axes, runs: list[Run]) -> None:
    for run in runs:
        draw_curve(axes, run, run.series("tokens_per_second"))
    axes.set(title="Speed", ylabel="tokens a second")
    axes.set_ylim(bottom=0)
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
    """Spread evenly from the first to the last, the highest among them."""
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
    """A bar a run: its highest step."""
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
    axes.margins(x=0.15)
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
        axes.margins(x=0.01)
    for axes in (loss, speed, load, memory, *wide):
        axes.grid(alpha=0.3, axis="both" if axes in by_step else "y" if axes in wide else "x")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*speed.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    figure.get_layout_engine().set(h_pad=0.12, w_pad=0.08)
    return figure


def save(figure: plt.Figure, out: pathlib.Path) -> None:
    try:
        figure.savefig(out, dpi=130)
    except (OSError, ValueError) as error:  # the latter: a suffix that matplotlib doesn't know
        raise Mistake(f"--out {out}: {error}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("runs", nargs="+", metavar="RUN", type=pathlib.Path, help="folder of a run, e.g. runs/moe-nano")
    parser.add_argument("--out", metavar="FILE", type=pathlib.Path, default=pathlib.Path("run.png"),
                        help="picture to write (default: run.png)")  # fmt: skip
    arguments = parser.parse_args()
    try:
        runs = [read_run(*pair) for pair in zip(arguments.runs, labels_of(arguments.runs))]
        save(draw(runs), arguments.out)
    except Mistake as mistake:
        print(f"plot_run: {mistake}", file=sys.stderr)
        sys.exit(2)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
