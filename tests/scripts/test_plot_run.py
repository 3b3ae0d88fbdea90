"""plot_run.py on runs made up here: what is drawn are the numbers of metrics.jsonl, and mistakes are one line."""
import json
import math
import pathlib
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from report import training_runs  # noqa: E402
from report.plots import training_runs as pictures  # noqa: E402

MIB = 2**20
PNG = b"\x89PNG\r\n\x1a\n"


def line(step: int, **more) -> dict:
    """Every number differs from every other, so that one taken for another shows."""
    kinds = {"parameters": 4 * MIB, "parameters.experts": 3 * MIB, "activations": (8 + step) * MIB, "scratch": MIB}
    return {
        "step": step, "loss": 5 - step / 8, "held_out_loss": None, "tokens_per_second": 1000.0 + step,
        "expert_load": {"max_over_mean": 1 + step / 16, "entropy": 0.5}, "peak_bytes": (13 + step) * MIB,
        "peak_bytes_by_kind": kinds, **more,
    }  # fmt: skip


@pytest.fixture
def make(tmp_path):
    """make(NAME, lines, summary, memory): a run's folder."""

    def make(name: str, lines: list, summary: dict | None = None, memory: dict | None = None) -> pathlib.Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        text = "".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in lines)
        (folder / "metrics.jsonl").write_text(text)
        if summary is not None:
            (folder / "summary.json").write_text(json.dumps(summary))
        if memory is not None:
            (folder / "memory.json").write_text(json.dumps(memory))
        return folder

    return make


def panels(*folders: pathlib.Path) -> dict:
    runs = [training_runs.read_run(folder, label) for folder, label in zip(folders, training_runs.labels_of(list(folders)))]
    axes = pictures.draw(runs).axes
    assert len(axes) == 4
    return {panel.get_title().split()[0]: panel for panel in axes}


def phases(step: int) -> dict:
    """Of memory.json; backward is where the step of line() peaks."""
    held = {"parameters": 4 * MIB, "parameters.experts": 3 * MIB}
    return {
        "forward": held | {"activations": step * MIB}, "backward": line(step)["peak_bytes_by_kind"],
        "step": held | {"gradients": 2 * MIB},
    }  # fmt: skip


def memory_of(steps, peak_more: int = 0) -> dict:
    entries = [
        {"step": step, "peak_bytes": (13 + step) * MIB + peak_more, "bytes_by_phase": phases(step)} for step in steps
    ]  # fmt: skip
    return {"opened": {"bytes_by_phase": {"init": {"parameters": MIB}}}, "steps": entries}


def figure_of(folder: pathlib.Path):
    return pictures.draw([training_runs.read_run(folder, "a")])


def by_phase(folder: pathlib.Path):
    axes = figure_of(folder).axes
    return next(panel for panel in axes if panel.get_title() == "Memory at the peak of each phase, by kind")


def points(curve) -> list[tuple]:
    return list(zip(*curve.get_data()))


def call(*arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, SCRIPTS / "plot_run.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_one_run_is_drawn_as_measured(make):
    lines = [line(1), line(2, held_out_loss=4.5), line(3), line(4, held_out_loss=4.0)]
    drawn = panels(make("a", lines, {"steps": 4, "memory_limit_bytes": 32 * MIB, "held_out_loss": 3.5}))
    train, held_out = drawn["Loss"].get_lines()
    assert points(train) == [(step, 5 - step / 8) for step in range(1, 5)]
    assert points(held_out) == [(2, 4.5), (4, 3.5)]  # the evaluation at the end is the summary's
    assert points(drawn["Speed"].get_lines()[0]) == [(step, 1000 + step) for step in range(1, 5)]
    assert points(drawn["Expert"].get_lines()[0]) == [(step, 1 + step / 16) for step in range(1, 5)]


def test_memory_over_steps_is_stacked_by_kind(make):
    drawn = panels(make("a", [line(1), line(2), line(3)], {"steps": 3, "memory_limit_bytes": 32 * MIB}))["Memory"]
    assert drawn.get_ylabel() == "MiB"
    tops = {}
    for area in drawn.collections:
        corners = area.get_paths()[0].vertices
        tops[area.get_label()] = [max(y for x, y in corners if x == step) for step in (1, 3)]
    assert tops == {"parameters": [4, 4], "activations": [13, 15], "scratch": [14, 16]}
    assert [y for _, y in points(drawn.get_lines()[0])] == [32, 32]  # the limit


def test_memory_is_stacked_by_kind_over_the_phases_of_the_steps(make):
    memory = memory_of([1, 2])
    memory["steps"][0]["bytes_by_phase"]["init"] = {"parameters": MIB}  # where the first step begins
    drawn = by_phase(make("a", [line(1), line(2)], {"memory_limit_bytes": 32 * MIB}, memory))
    assert [text.get_text() for text in drawn.get_xticklabels()] == ["init", *["forward", "backward", "step"] * 2]
    bars = {kind.get_label(): [(bar.get_y(), bar.get_height()) for bar in kind] for kind in drawn.containers}
    assert bars == {
        "parameters": [(0, 1)] + [(0, 4)] * 6,
        "gradients": [(1, 0), (4, 0), (4, 0), (4, 2), (4, 0), (4, 0), (4, 2)],
        "activations": [(1, 0), (4, 1), (4, 9), (6, 0), (4, 2), (4, 10), (6, 0)],
        "scratch": [(1, 0), (5, 0), (13, 1), (6, 0), (6, 0), (14, 1), (6, 0)],
    }
    (steps,) = drawn.child_axes
    assert [text.get_text() for text in steps.get_xticklabels()] == ["", "step 1", "step 2"]
    assert drawn.get_legend().get_texts()[0].get_text() == "limit"


@pytest.mark.parametrize("count", [1, 7, 8, 9, 300])
def test_of_many_steps_the_first_last_and_highest_are_drawn(make, count):
    top = count * 2 // 3 + 1
    lines = [line(step, peak_bytes=(1000 if step == top else 13) * MIB) for step in range(1, count + 1)]
    memory = memory_of(range(1, count + 1))
    for entry, of in zip(memory["steps"], lines):
        entry["peak_bytes"] = of["peak_bytes"]
    steps = pictures.some_steps(training_runs.read_run(make("a", lines, None, memory), "a"))
    assert steps == sorted(set(steps)) and {1, top, count} <= set(steps) and min(count, 7) <= len(steps) <= 8


def test_a_timeline_that_is_not_this_runs_is_not_drawn(make):
    """As of a run that began anew in the folder of an earlier one and has not written its own yet."""
    for number, memory in enumerate([None, {"steps": []}, {}, [], memory_of([1], peak_more=1), memory_of([7])]):
        assert len(figure_of(make(str(number), [line(1), line(2)], None, memory)).axes) == 4, memory


def test_several_runs_of_different_length_share_the_axes(make):
    folders = make("short", [line(1), line(2)]), make("long", [line(step) for step in range(1, 9)])
    drawn = panels(*folders)
    for panel in ("Speed", "Expert"):
        curves = drawn[panel].get_lines()[:2]
        assert [curve.get_label() for curve in curves] == ["short", "long"]
        assert [len(curve.get_xdata()) for curve in curves] == [2, 8]
        assert len({curve.get_color() for curve in curves}) == 2
    legend = drawn["Speed"].figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["short", "long"]
    bars = {container.get_label(): [bar.get_width() for bar in container] for container in drawn["Memory"].containers}
    assert bars == {"parameters": [4, 4], "activations": [10, 16], "scratch": [1, 1]}  # at each run's highest step
    starts = [bar.get_x() for bar in drawn["Memory"].containers[2]]
    assert starts == [14, 20]


def test_one_step_shows(make):
    drawn = panels(make("a", [line(1)]))
    assert drawn["Loss"].get_lines()[0].get_marker() == "." and drawn["Memory"].containers


def test_a_step_that_was_skipped_is_a_gap(make):
    drawn = panels(make("a", [line(1), line(2, loss=None), line(3)]))
    losses = drawn["Loss"].get_lines()[0].get_ydata()
    assert [math.isnan(loss) for loss in losses] == [False, True, False]


def test_a_step_taken_again_counts_once(make):
    """As where two files of one run were joined by hand: the later line is the run's."""
    drawn = panels(make("a", [line(1), line(2), line(3), line(2, loss=9.0), line(3, loss=8.0)]))
    assert points(drawn["Loss"].get_lines()[0]) == [(1, 4.875), (2, 9.0), (3, 8.0)]


def test_a_cut_last_line_and_an_old_summary_are_passed_over(make):
    folder = make("a", [line(1), line(2)], {"steps": 1, "held_out_loss": 7.0})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    drawn = panels(folder)
    assert [len(curve.get_xdata()) for curve in drawn["Loss"].get_lines()] == [2]


def test_runs_without_kinds_show_their_peak(make):
    """On a GPU the kinds are not counted."""
    drawn = panels(make("a", [line(1, peak_bytes_by_kind={}), line(2, peak_bytes_by_kind={})]), make("b", [line(1)]))
    bars = {container.get_label(): [bar.get_width() for bar in container] for container in drawn["Memory"].containers}
    assert bars["other"] == [15, 0] and bars["parameters"] == [0, 4]


def test_folders_of_one_name_are_told_apart(make):
    folders = [make("x/run", [line(1)]), make("y/run", [line(1)])]
    assert training_runs.labels_of(folders) == [str(folder) for folder in folders]


def test_writes_a_picture(make, tmp_path):
    out = tmp_path / "plot.png"
    done = call(make("a", [line(1), line(2)]), make("b", [line(1)]), "--out", out)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"wrote {out}\n")
    assert out.read_bytes().startswith(PNG)


def test_help_has_an_example():
    done = call("--help")
    assert done.returncode == 0 and "example: scripts/plot_run.py runs/" in done.stdout


@pytest.mark.parametrize("lines, expected", [
    ([], "empty: the run has not finished a step"),
    ([line(1), "nonsense"], "metrics.jsonl:2: not a line of metrics: nonsense"),
    (["[1]"], "metrics.jsonl:1: not a line of metrics"),
    ([{"step": 1, "loss": 1}], "metrics.jsonl:1: not a line of metrics"),
])  # fmt: skip
def test_bad_metrics_are_one_line(make, lines, expected):
    done = call(make("a", lines))
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and expected in done.stderr, done.stderr


def test_other_mistakes_are_one_line(make, tmp_path):
    run = make("a", [line(1)])
    (tmp_path / "hollow").mkdir()
    for arguments, expected in [
        ([tmp_path / "none"], f"{tmp_path}/none: no such folder"),
        ([run / "metrics.jsonl"], "give the folder of a run"),
        ([tmp_path / "hollow"], f"{tmp_path}/hollow: no metrics.jsonl there"),
        ([run, tmp_path / "none"], "no such folder"),
        ([run, "--out", tmp_path / "none/plot.png"], "none/plot.png"),
        ([run, "--out", tmp_path / "plot.wrong"], "--out"),
    ]:
        done = call(*arguments)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and expected in done.stderr, done.stderr
