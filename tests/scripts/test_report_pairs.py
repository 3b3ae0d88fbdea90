"""How techniques combine in a report, from records made up so that their interactions are known in closed form."""
import math
import pathlib
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from report_calls import sweeps_of
import sweep_records as made

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import figures, records, rendering, sweep_part_pages, sweep_parts  # noqa: E402
from report.plots import pairs as pair_plots, theme  # noqa: E402


def test_interaction_of_a_measured_pair(whole):
    """Of 1200 MiB 1000 and 900 are left, so 750 are expected together, and 850 are; a step takes 0.8, 0.5 and together 0.6
    times as long."""
    (sweep,) = sweep_parts.together(whole[0])
    pairs = {pair.names: pair for pair in sweep_parts.pairs(sweep, whole[1].predictions_of(sweep))}
    pair = pairs["flash_attention", "bf16"]
    assert pair.memory == pytest.approx(-100 * made.MIB) and pair.excess == pytest.approx(-50 * made.MIB), "bf16 alone leaves 900"
    assert not pair.predicted and pair.baseline_peak == 1200 * made.MIB
    assert pair.log_time.value == pytest.approx(math.log(0.6 / 0.8 / 0.5))
    assert pair.log_time.low == pytest.approx(pair.log_time.high)  # all rounds alike


def test_interactions_of_dry_runs_and_refused_pairs(whole):
    (sweep,) = sweep_parts.together(whole[0])
    pairs = {pair.names: pair for pair in sweep_parts.pairs(sweep, whole[1].predictions_of(sweep))}
    assert len(pairs) == 3
    dry = pairs["flash_attention", "recompute_full"]
    assert dry.memory == 0 and dry.predicted and dry.log_time is None, "1000 and 600 of 1200 MiB leave 500, as expected"
    assert pairs["bf16", "recompute_full"].refused == "both set precision <x>"
    assert math.isnan(pairs["bf16", "recompute_full"].memory)


def test_interval_of_an_interaction_holds_what_it_should():
    """Times drawn around ratios whose interaction is log 1.5: near 95 of 100 intervals hold it."""
    generator = np.random.default_rng(5)

    def case(milliseconds: float) -> figures.Case:
        def run(number: int, mean: float) -> records.Record:
            steps = made.steps(mean * generator.normal(1, 0.03), 12)
            return records.parse(made.record(round=number, steps=steps))
        made_up = figures.Case("c", [run(number, milliseconds) for number in range(8)], [], "baseline")
        figures.compare(made_up, figures.Case("baseline", [run(number, 1000) for number in range(8)], [], ""))
        return made_up

    held = 0
    for _ in range(20):
        interval = sweep_parts.log_time_interaction(case(600), [case(800), case(500)])
        assert interval.low <= interval.value <= interval.high
        held += interval.low <= math.log(1.5) <= interval.high
    assert held >= 15  # 19 are expected


def test_dry_runs_of_pairs_are_of_the_sweep_in_their_setting(whole, tmp_path):
    """A baseline of 1200 MiB is theirs, one of the same model in another setting is not."""
    (sweep,) = sweep_parts.together(whole[0])
    (other,) = sweeps_of(tmp_path, [made.record(round=number, activations=600, against=None) for number in (1, 2)])
    assert other.model == sweep.model and whole[1].predictions_of(other) is None
    assert whole[1].predictions_of(sweep).peak("bf16") == 900 * made.MIB


def test_pairs_without_records_or_dry_runs_are_no_part(whole, tmp_path):
    (sweep,) = sweep_parts.together(sweeps_of(tmp_path, made.sweep()))
    assert sweep_part_pages.pair_blocks(sweep, None, "") == []
    (full,) = sweep_parts.together(whole[0])
    assert [pair.names for pair in sweep_parts.pairs(full, None)] == [("flash_attention", "bf16")]


def test_pages_say_what_is_unmeasured_and_refused(whole):
    (sweep,) = sweep_parts.together(whole[0])
    text = rendering.to_markdown(sweep_part_pages.pair_blocks(sweep, whole[1].predictions_of(sweep), ""))
    for mark in ("Dot: not measured.", "x: cannot be combined.", "Blank: as the product."):
        assert mark in text, "beside the PNG, whose legend has no marks"
    assert "3 pairs: 1 measured, 1 only dry-run (their time is unmeasured), 1 that cannot be combined." in text
    assert "| `flash_attention` + `bf16` | +350.00 MiB | -100.00 MiB | 1.67 × | +40.5 % (+40.5 to +40.5) | 2 |" in text


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_single_round_only_outlines_its_cell(rounds):
    case = figures.Case("c", [], [], "baseline")
    case.pairs = [()] * rounds
    pair = sweep_parts.Pair(("a", "b"), case, 100.0, 5.0, -9.0, False, figures.Interval(0.2, 0.1, 0.3), "")
    figure = pair_plots.pair_map([pair], ["a", "b"], theme.WIDE)
    memory, time = figure.axes[0].patches
    assert memory.get_facecolor()[3] > 0 and (time.get_facecolor()[3] > 0) == (rounds > 1)
    assert time.get_edgecolor()[3] > 0
    plt.close(figure)


@pytest.mark.parametrize("memory, excess, face", [(5.0, -9.0, pair_plots.BETTER), (-5.0, -1.0, pair_plots.OVERLAP),
                                                  (-5.0, 0.9, pair_plots.OVERLAP), (-5.0, 1.1, pair_plots.WORSE)])
def test_only_a_pair_that_is_larger_than_one_alone_is_red_in_memory(memory, excess, face):
    pair = sweep_parts.Pair(("a", "b"), None, 100.0, memory, excess, True, None, "")
    figure = pair_plots.pair_map([pair], ["a", "b"], theme.PRINTED)
    assert figure.axes[0].patches[0].get_facecolor()[:3] == face
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 and box.x1 <= figure.bbox.x1, "no word is cut"
    plt.close(figure)
