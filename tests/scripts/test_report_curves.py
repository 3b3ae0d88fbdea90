"""The loss over a run and the memory by kind, of records made up here."""
import matplotlib.pyplot as plt
import sweep_records as made
from report_calls import sweep_of

from report import pages
from report.plots import run_curves, theme


def test_losses_of_rounding_are_flat(tmp_path):
    """Differences of a hundred-millionth do not fill the panel, and the baseline's curve has a colour of its own."""
    rows = [made.record(round=number) for number in (1, 2)] + [made.record("rounded", number, loss_change=1e-7) for number in (1, 2)]
    figure = run_curves.loss(sweep_of(tmp_path, rows), theme.WIDE)
    low, high = figure.axes[1].get_ylim()
    assert low <= -1e-3 and high >= 1e-3
    assert figure.axes[0].get_lines()[0].get_color() == theme.WIDE.ink != figure.axes[0].get_lines()[1].get_color()
    plt.close(figure)


def test_a_baseline_alone_has_no_picture_of_the_loss(tmp_path):
    assert pages.loss_blocks(sweep_of(tmp_path, [made.record()]), "") == []
    assert pages.loss_blocks(sweep_of(tmp_path, [made.record(), made.record("lean")]), "") != []


def test_curves_of_the_cases_that_end_farthest(tmp_path):
    rows = [made.record()] + [made.record(f"case {index}", loss_change=0.01 * index * (-1)**index) for index in range(20)]
    names = [case.name for case in run_curves.with_curves(sweep_of(tmp_path, rows))]
    assert names == ["baseline", *(f"case {index}" for index in range(9, 20))]


def test_every_case_has_its_panel_of_memory(tmp_path):
    rows = [made.record(), *(made.record(f"case {index}") for index in range(50))]
    assert len(run_curves.with_memory(sweep_of(tmp_path, rows))) == 51
