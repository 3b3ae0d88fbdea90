"""Where a technique begins to pay, from records made up so that it is known."""
import pathlib
import sys

import matplotlib.pyplot as plt
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import figures, rendering, sweep_part_pages, sweep_parts  # noqa: E402
from report.plots import crossovers, theme  # noqa: E402


def test_crossovers_by_sequence_and_by_model(whole):
    by_sequence, by_model = sorted(sweep_parts.crossings(whole[0]), key=lambda one: one.axis, reverse=True)
    assert (by_sequence.label, by_sequence.axis) == ("flash_attention", "sequence")
    assert [(x, case.speed_ratio.value) for x, case in by_sequence.points] == [
        (512, pytest.approx(0.5)), (1024, pytest.approx(1)), (2048, pytest.approx(2))]
    assert (by_model.label, by_model.axis, [x for x, _ in by_model.points]) == ("recompute_full", "parameters", [1e6, 4e8])
    text = rendering.to_markdown(sweep_part_pages.crossover_blocks(whole[0]))
    assert ("`recompute_full`: faster nowhere; slower from 1M on. It saves 50 % of the peak for 50 % more time at 1M, 50 % of "
            "the peak for 20 % more time at 400M: memory × time is less than without it from 1M on.\n") in text
    assert ("`flash_attention`: faster at 2,048; slower at 512; undecided at 1,024, where the interval spans 1. It saves "
            "33 % of the peak for 100 % more time at 512, 33 % of the peak for 0 % less time at 1,024, 33 % of the peak for 50 % "
            "less time at 2,048: memory × time is less than without it from 1,024 on.") in text
    assert "| recompute_full at 400M | 0.50 × | 0.83 × | 0.60 × | 2 | moe-nano |" in text


def crossing_of(*ratios: tuple[float, float], rounds: int = 2) -> sweep_parts.Crossing:
    """Of (speed, width of its interval either side) at 1, 2, 3, …; half the memory everywhere; `rounds`: of the last."""
    points = []
    for x, (speed, width) in enumerate(ratios, 1):
        case = figures.Case("c", [], [], "baseline")
        case.pairs = [()] * (rounds if x == len(ratios) else 2)
        case.speed_ratio, case.peak_ratio = figures.Interval(speed, speed - width, speed + width), figures.Interval(0.5, 0.5, 0.5)
        points.append((x, case))
    return sweep_parts.Crossing("c", "sequence", points)


def test_techniques_that_are_alike_are_drawn_beside_each_other():
    figure = crossovers.crossovers([crossing_of((0.8, 0.1), (1.5, 0.1)) for _ in range(3)], theme.WIDE)
    drawn = [tuple(line.get_xdata()) for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 2]
    lines = [xs for xs in dict.fromkeys(drawn) if xs[0] != xs[1] and xs != (0, 1)]
    assert len(lines) == 3 and lines[1] == (1, 2) and all(0.9 < xs[0] < 1.1 for xs in lines), drawn
    plt.close(figure)


@pytest.mark.parametrize("ratios, expected", [
    ([(0.9, 0.2), (1.2, 0.1), (1.3, 0.1)], "faster from 2 on; slower nowhere; undecided at 1, where the interval spans 1"),
    ([(1.2, 0.1), (1.1, 0.2), (1.5, 0.1)], "faster at 1, 3; slower nowhere; undecided at 2, where the interval spans 1"),
    ([(0.8, 0.1), (1.5, 0.1)], "faster at 2; slower at 1"), ([(0.8, 0.1), (0.7, 0.1)], "faster nowhere; slower from 1 on")])
def test_faster_and_slower_are_what_the_intervals_say(ratios, expected):
    assert sweep_part_pages.speed_text(crossing_of(*ratios)) == expected


def test_one_round_decides_no_crossover():
    crossing = crossing_of((0.8, 0.1), (1.5, 0.1), (1.9, 0.1), rounds=1)
    assert sweep_part_pages.speed_text(crossing) == "faster at 2; slower at 1; undecided at 3, with a single round"
    figure = crossovers.crossovers([crossing], theme.WIDE)
    bars = [bar.has_yerr for bar in figure.axes[0].containers]
    faces = [bar.lines[0].get_markerfacecolor() for bar in figure.axes[0].containers]
    assert bars == [True, True, False] and faces == [*2 * [theme.CASE_COLORS[0]], theme.WIDE.paper]
    plt.close(figure)


def test_memory_times_time_says_where_a_technique_begins_to_pay():
    """Half the memory pays where it takes less than twice the time, by all of the interval."""
    crossing = crossing_of((0.4, 0), (0.52, 0.05), (0.6, 0.05))
    assert [sweep_parts.memory_time(case).value for _, case in crossing.points] == pytest.approx([1.25, 0.5 / 0.52, 0.5 / 0.6])
    assert sweep_part_pages.crossing_text(crossing).endswith("memory × time is less than without it at 3.")
    assert sweep_part_pages.crossing_text(crossing_of((0.6, 0.05), (0.52, 0.05))).endswith("than without it at 1.")
    assert sweep_part_pages.crossing_text(crossing_of((0.4, 0.05))).endswith("than without it nowhere.")
