"""Records, figures and pictures of records made up here; what is expected is worked out by hand or known in closed form."""
import itertools
import json
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import sweep_records as made
from matplotlib.colors import to_rgba
from matplotlib.text import Text
from report_calls import refused, sweep_of

from report import figures, format, pages, quality, records
from report.plots import loss_colours, pareto, theme

# Records.


def test_torn_lines_are_left_out_with_a_note(tmp_path):
    path = made.write(tmp_path / "r.jsonl", [made.record(), made.record(round=2)], torn='{"schema": 1, "case": "ba')
    read, notes = records.read_records([path])
    assert [record.round for record in read] == [1, 2]
    assert len(notes) == 1 and f"{path}:3" in notes[0] and "torn" in notes[0]


def test_a_damaged_line_before_the_end_is_refused(tmp_path):
    path = made.write(tmp_path / "r.jsonl", [made.record()], torn='{"schema": 1, "ca\n' + json.dumps(made.record(round=2)) + "\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.md").write_text("as it was")
    assert f"{path}:2: damaged" in refused(path, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "report.md").read_text() == "as it was"


def test_a_whole_record_without_an_end_of_line_counts(tmp_path):
    path = made.write(tmp_path / "r.jsonl", [made.record()], torn=json.dumps(made.record(round=2)))
    assert [record.round for record in records.read_records([path])[0]] == [1, 2]


def test_other_files_in_the_folder_are_no_records(tmp_path):
    made.write(tmp_path / "records.jsonl", [made.record()])
    for name in records.NO_RECORDS:
        (tmp_path / name).write_text('{"schema": 7}\n')
    assert len(records.read_records([tmp_path])[0]) == 1


def test_folders_of_records(tmp_path):
    made.write(tmp_path / "b.jsonl", [made.record(round=2)])
    made.write(tmp_path / "a.jsonl", [made.record(round=1)])
    assert [record.round for record in records.read_records([tmp_path])[0]] == [1, 2]


@pytest.mark.parametrize("changes, words", [
    ({"schema": 2}, ["schema 2", "reads schema 1"]),
    ({"steps": [[1, 2]]}, ["not a record"]),
    ({"round": "one"}, ["not a record", "one"]),
])
def test_what_is_no_record_is_refused_by_line(tmp_path, changes, words):
    path = made.write(tmp_path / "r.jsonl", [made.record(), made.record(**changes)])
    message = refused(path, "--out", tmp_path / "out")
    assert f"{path}:2" in message and all(word in message for word in words), message


def test_missing_field_is_named(tmp_path):
    row = made.record()
    del row["command"]
    assert "'command' is missing" in refused(made.write(tmp_path / "r.jsonl", [row]), "--out", tmp_path)


def test_no_records_and_no_file_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    assert "no records" in refused(tmp_path / "empty.jsonl", "--out", tmp_path / "out")
    assert "No such file" in refused(tmp_path / "none.jsonl", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_warm_up_is_three_steps_or_a_third(tmp_path):
    """Steps 1 to 3 take ten times as long: they would show."""
    for count, kept in ((9, 6), (12, 9), (7, 5), (2, 2), (1, 1)):
        rows = [made.record(steps=made.steps(1000, count))]
        (record,), _ = records.read_records([made.write(tmp_path / "r.jsonl", rows)])
        assert len(record.rates) == kept
        if count >= 9:
            assert np.allclose(record.rates, made.TOKENS)  # a step is 2048 tokens in a second


# Figures.


def test_medians_spread_and_exact_ratios(tmp_path):
    base = [made.record(round=number, milliseconds=ms) for number, ms in enumerate((1000, 1250, 2000), 1)]
    lean = [made.record("lean", round=number, milliseconds=ms / 2, activations=200)
            for number, ms in enumerate((1000, 1250, 2000), 1)]
    sweep = sweep_of(tmp_path, base + lean)
    baseline, case = sweep.case("baseline"), sweep.case("lean")
    assert [baseline.speed.value, baseline.speed.low, baseline.speed.high] == pytest.approx([1638.4, 1024, 2048])
    assert case.speed.value == pytest.approx(2 * 1638.4) and case.peak.value == 600 * made.MIB
    assert (case.step_ms.value, case.step_ms.low, case.step_ms.high) == pytest.approx((625, 500, 1000))
    assert case.predicted.value == pytest.approx(0.992 * 600 * made.MIB)
    # Each round is twice as fast as its own baseline, although rounds differ by half.
    assert [case.speed_ratio.value, case.speed_ratio.low, case.speed_ratio.high] == pytest.approx([2, 2, 2])
    assert case.peak_ratio == figures.Interval(0.5, 0.5, 0.5)
    assert baseline.speed_ratio is None and case.loss_change == 0


def test_slower_and_larger_stays_slower_and_larger(tmp_path):
    bad = made.record("bad", milliseconds=1250, activations=1400, loss_change=0.5)
    case = sweep_of(tmp_path, [made.record(), bad]).case("bad")
    assert case.speed_ratio.value == pytest.approx(0.8) and case.peak_ratio.value == 1.5
    assert case.loss_change == pytest.approx(0.5)


def test_same_bits_are_those_of_losses_and_gradient_norms(tmp_path):
    norms = [1 / 3 + step for step in range(9)]
    cases = {"moved": norms, "rounded": norms[:-1] + [norms[-1] * (1 + 2**-52)], "unknown": []}
    records = [made.record(gradient_norms=norms)] + [made.record(n, gradient_norms=g) for n, g in cases.items()]
    sweep = sweep_of(tmp_path, records)
    assert {name: pages.loss_change(sweep.case(name)) for name in cases} == {
        "moved": "same bits", "rounded": "0", "unknown": "0"}
    other_loss = made.record("other", gradient_norms=norms, loss_change=0.5)
    assert not sweep_of(tmp_path, [records[0], other_loss]).case("other").same_bits


def test_bootstrap_interval_holds_what_it_should():
    """Rates drawn around a true ratio of 1.5, often: near 95 of 100 intervals hold it, and repeating gives the same."""
    generator = np.random.default_rng(7)

    def rounds(count: int) -> list:
        return [(generator.normal(1500, 60, 12), generator.normal(1000, 40, 12)) for _ in range(count)]

    held = 0
    for _ in range(40):
        interval = figures.ratio_of_rates(rounds(6))
        held += interval.low <= 1.5 <= interval.high
        assert interval.low <= interval.value <= interval.high
    assert held >= 33  # 38 are expected; fewer than 33 come once in 1,400 times
    sample = rounds(4)
    assert figures.ratio_of_rates(sample) == figures.ratio_of_rates(sample)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 20])
def test_medians_of_resamples_spread_as_those_of_drawn_samples_do(count):
    generator = np.random.default_rng(count)
    values = np.arange(count, dtype=float)
    drawn = np.median(values[generator.integers(count, size=(40_000, count))], axis=-1)
    medians = figures.resampled_medians(values, (40_000,), generator)
    places = np.unique(drawn)
    assert set(medians) <= set(np.arange(0, count, 0.5))
    for place in places:  # 40,000 draws of a share tell it to 0.0025: four times that
        assert abs((medians <= place).mean() - (drawn <= place).mean()) < 0.014


def test_bootstrap_interval_of_rounds_that_differ_spans_them():
    """Constant steps: all of the spread is between the rounds, and a resample's median of three is one of them."""
    pairs = [(np.full(5, ratio), np.ones(5)) for ratio in (1.0, 2.0, 4.0)]
    assert figures.ratio_of_rates(pairs) == figures.Interval(2, 1, 4)


def test_rounds_whose_baseline_failed_leave_no_ratio(tmp_path):
    rows = [made.record(round=1), made.failed("baseline", 2, "crash", "signal 9"), made.record("lean", 1, 500),
            made.record("lean", 2, 100), made.record("other", 2)]
    sweep = sweep_of(tmp_path, rows)
    assert sweep.case("lean").speed_ratio.value == pytest.approx(2)  # of round 1 alone; round 2 would say 10
    assert sweep.case("lean").speed.value == pytest.approx((4096 + 20480) / 2)
    assert sweep.case("other").speed_ratio is None
    assert any("other" in note and "no ratios" in note for note in sweep.notes)


def test_runs_of_different_length_are_not_compared(tmp_path):
    assert sweep_of(tmp_path, [made.record(), made.record("lean", steps=made.steps(500, 8))]).case("lean").pairs == []


def test_repeated_runs_and_earlier_settings_do_not_count(tmp_path):
    rows = [made.record(milliseconds=4000, settings_hash="old", started="2025-01-01T00:00:00Z"),
            made.failed("baseline", 1, "error", started="2025-06-01T00:00:00Z"), made.record(milliseconds=1000)]
    baseline = sweep_of(tmp_path, rows).case("baseline")
    assert baseline.speed.value == pytest.approx(2048) and not baseline.failures


def test_machines_commits_and_models_are_not_mixed(tmp_path):
    rows = [made.record(), made.record(commit="def"), made.record(dirty=True), made.record(model="moe-nano"),
            made.record(machine={"cpu": "another"}), made.record("lean"), made.record(sweep="another part")]
    found = figures.sweeps(records.read_records([made.write(tmp_path / "r.jsonl", rows)])[0])
    assert [len(sweep.cases) for sweep in found] == [2, 1, 1, 1, 1, 1]


def beaten(point, points) -> bool:
    return any(other != point and other[0] <= point[0] and other[1] >= point[1] for other in points)


def test_pareto_front_against_its_definition():
    generator = np.random.default_rng(3)
    for _ in range(200):
        points = [tuple(point) for point in generator.integers(0, 8, (12, 2)).tolist()]
        front = figures.pareto_front(points)
        assert set(front) == {i for i, point in enumerate(points) if not beaten(point, points)}, points
        assert [points[i][0] for i in front] == sorted(points[i][0] for i in front)
    assert figures.pareto_front([]) == []


def test_the_front_is_of_ratios_to_the_baseline_of_the_same_rounds(tmp_path):
    """Rounds 3 and 4 are ten times as slow: what ran in them has fewer tokens/s and the better ratio."""
    slow = {1: 1, 2: 1, 3: 10, 4: 10}
    rows = [made.record(round=number, milliseconds=1000 * factor) for number, factor in slow.items()]
    rows += [made.record("early", number, 800, 400) for number in (1, 2)]
    rows += [made.record("late", number, 5000, 400) for number in (3, 4)] + [made.record("alone", number, 1, 1) for number in (5, 6)]
    sweep = sweep_of(tmp_path, rows)
    assert sweep.case("late").speed.value < sweep.case("early").speed.value
    assert [case.name for case in figures.on_front(sweep)] == ["late"]
    assert "alone" not in [case.name for case in figures.placed(sweep)], "without a baseline in its rounds it has no ratio"
    assert pages.short_answers(sweep)[0].startswith("Fastest: `late`, 2.00 × the speed in 0.67 × the peak of `baseline`")
    figure = pareto.pareto(sweep, {}, theme.WIDE)
    targets = [line.get_xydata()[0] for line in figure.axes[0].get_lines() if line.get_gid()]
    assert np.allclose(targets, [(1, 1), (2 / 3, 1.25), (2 / 3, 2)])
    plt.close(figure)


def test_what_is_held_against_a_stack_stands_beside_the_baseline_of_the_stack(tmp_path):
    """The stack is twice as fast; without a part it is 1.5 times as fast as the stack, so three times as the baseline."""
    rows = []
    for number in (1, 2):
        rows += [made.record(round=number), made.record("stack", number, 500, 400)]
        rows += [made.record("stack without a", number, 1000 / 3, 300, family="leave_one_out", against="stack")]
    sweep = sweep_of(tmp_path, rows)
    assert sweep.case("stack without a").speed_ratio.value == pytest.approx(1.5)
    whole = figures.beside_roots(sweep)
    left_out = whole.case("stack without a")
    assert left_out.baseline == "baseline" and left_out.speed_ratio.value == pytest.approx(3)
    assert left_out.peak_ratio.value == pytest.approx(700 / 1200)
    assert [case.name for case in figures.on_front(whole)] == ["stack without a"]
    assert whole.case("stack") is sweep.case("stack") and whole.case("baseline") is sweep.case("baseline")


@pytest.mark.parametrize("ends, said", [
    ((0.97, 0.93, 0.998), "0.970 × (0.930–0.998)"), ((0.97, 0.93, 1.0), "0.97 × (0.93–1.00)"), ((0.97, 0.93, 1.004), "0.97 × (0.93–1.00)"),
    ((1.1, 1.003, 1.2), "1.100 × (1.003–1.200)"), ((0.997, 0.996, 0.998), "0.997 × (0.996–0.998)"), ((1.5, 1.4, 1.6), "1.50 × (1.40–1.60)"),
    ((0.9999, 0.9999, 0.9999), "1.00 ×"), ((0.5, 0.5, 0.501), "0.50 ×")])
def test_an_interval_that_excludes_1_never_reads_as_if_it_ended_there(ends, said):
    assert format.times(figures.Interval(*ends)) == said


# Pictures.


def test_only_some_of_many_points_are_named(tmp_path):
    sweep = sweep_of(tmp_path, made.sweep())
    cases, front = figures.measured(sweep), figures.on_front(sweep)
    assert pareto.named(cases, front, [], 12) == cases
    some = pareto.named(cases, front, [], 3)
    assert len(some) == 3 and some[0].name == "baseline" and front[0] in some and front[-1] in some
    coloured = [case for case in cases if case.baseline and case not in front]
    names = pareto.named(cases, front, coloured, 5)
    assert len(coloured) > 2 and front[0] in names and front[-1] in names and len([case for case in names if case in coloured]) == 2


@pytest.mark.parametrize("look", [theme.WIDE, theme.NARROW])
def test_names_stand_near_their_points_and_cover_none(tmp_path, look):
    """Long names on the front, among bars from the slowest to the fastest of three rounds."""
    cases = {"baseline": (1200, (1200, 1300, 1600)), "left": (225, (2700, 3000, 4900)), "recompute + compact": (352, (4100,)),
             "guides_stack without accumulation": (530, (2600, 4700, 5400)), "beaten": (600, (2700, 3800, 4800))}
    sweep = sweep_of(tmp_path, [made.record(name, number, 1000 * made.TOKENS / rate, mib - 100, 100)
                                for name, (mib, rates) in cases.items() for number, rate in enumerate(rates)])
    figure = pareto.pareto(sweep, {}, look)
    figure.canvas.draw()
    axes = figure.axes[0]
    assert axes.get_window_extent().width > 0.7 * figure.bbox.width
    (x, y) = zip(*(axes.transData.transform(label.xy) for label in axes.texts))
    boxes = [Text.get_window_extent(label) for label in axes.texts]
    for label, box in zip(axes.texts, boxes):
        assert not any(box.x0 < at < box.x1 and box.y0 < height < box.y1 for at, height in zip(x, y)), label.get_text()
        assert math.hypot(*label.xyann) < 40, label.get_text()
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    plt.close(figure)


def effect(low: float, high: float) -> quality.Effect:
    return quality.Effect(None, None, figures.Interval((low + high) / 2, low, high), (high - low) / 2)


def long_runs(tmp_path) -> tuple[figures.Sweep, dict[str, quality.Effect]]:
    """After some steps all but the baseline seem better; of long runs two are known, one of which the seeds can't tell."""
    names = ("baseline", "worse", "unsure", "not measured")
    rows = [made.record(name, number, loss_change=-0.05 if name != "baseline" else 0) for number in (1, 2) for name in names]
    rows += [made.record("once"), *(made.record("packing", number, settings={"train.tokens_per_device": "1024"}) for number in (1, 2))]
    known = {"worse": effect(0.02, 0.05), "unsure": effect(-0.01, 0.05), "once": effect(0.02, 0.05), "packing": effect(0.02, 0.05)}
    return sweep_of(tmp_path, rows), known


def test_colours_are_the_change_of_the_loss_of_long_runs_and_what_cannot_be_ranked_is_hollow(tmp_path):
    sweep, known = long_runs(tmp_path)
    faces = {case.name: pareto.face_of(case, known, theme.WIDE) for case in sweep.cases}
    assert faces["worse"] == to_rgba(loss_colours.COLOURS.colors[4]), "as a long run says, not the first steps"
    assert faces["baseline"] == faces["unsure"] == faces["not measured"] == loss_colours.GREY
    assert faces["once"] == faces["packing"] == theme.WIDE.paper


def words_of(sweep: figures.Sweep, known: dict[str, quality.Effect]) -> tuple[list[str], list[str]]:
    """Of the legend, and of the axes' labels: the scale of colours is an axes too."""
    figure = pareto.pareto(sweep, known, theme.WIDE)
    words = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    labels = [axes.get_xlabel() for axes in figure.axes]
    plt.close(figure)
    return words, labels


def test_legend_and_caption_say_what_is_drawn_and_no_more(tmp_path):
    sweep, known = long_runs(tmp_path)
    words, labels = words_of(sweep, known)
    assert words == ["Pareto front", "off the front", "baseline", "one round or other tokens"]
    assert labels[1] == "change of the loss that long runs end at (nats a token); grey: can't tell, or unmeasured"
    caption = pages.pareto_caption(sweep, known)
    assert "95 %" in caption and "Hollow: one round or other tokens." in caption and "Along the line" in caption
    assert caption.endswith("Colour: change of long runs' loss; grey: the seeds can't tell, or unmeasured.") and len(caption.split()) <= 40
    assert len(words_of(sweep, {})[1]) == 1 and "Colour" not in pages.pareto_caption(sweep, {}), "without long runs all is grey"
    once = sweep_of(tmp_path, [made.record(), made.record(round=2), made.record("once", 1, 500, 100)])
    assert words_of(once, known) == (["baseline", "one round"], ["peak memory ÷ the baseline's (less is better)"])
    assert pages.pareto_caption(once, known) == "A point a case beside its baseline. Hollow: one round."
    assert pages.case_table(once).caption == "memory and speed: ratios to the baseline of the same round, the only one."
    assert pages.case_table(sweep).caption.endswith("with 95 % intervals.")


def test_packed_rows_may_hold_fewer_tokens_than_the_baselines_and_no_other_case(tmp_path):
    half = [[step, tokens // 2, *rest] for step, tokens, *rest in made.steps(250)]
    rows = [made.record(), made.record("fewer", steps=half),
            made.record("packing", steps=half, settings={"train.tokens_per_device": "1024"})]
    sweep = sweep_of(tmp_path, rows)
    assert sweep.case("packing").speed_ratio.value == 2, "half of the tokens in a quarter of the time"
    assert not sweep.case("fewer").pairs and any(note.startswith("fewer: no ratios") for note in sweep.notes)


def test_the_fastest_says_where_it_may_be_no_faster_and_who_is_not_ranked(tmp_path):
    rows = [made.record(round=number) for number in (1, 2)]
    rows += [made.record("near", number, ms) for number, ms in ((1, 950), (2, 1010))]
    rows += [made.record("packing", number, 500, settings={"train.tokens_per_device": "1024"}) for number in (1, 2)]
    fastest, _, _, others = pages.short_answers(sweep_of(tmp_path, rows))
    assert fastest.startswith("Fastest: `near`, 1.02 ×")
    assert fastest.endswith("Its interval, 0.99 to 1.05, spans 1: it may be no faster than the baseline.")
    assert others == "Not ranked by speed, for their steps read other tokens than the baseline's: `packing`."
    surely = sweep_of(tmp_path, [*rows[:2], *(made.record("fast", number, 500) for number in (1, 2))])
    assert "spans 1" not in " ".join(pages.short_answers(surely))


def test_a_change_of_the_loss_is_never_zero_with_a_sign(tmp_path):
    rows = [made.record(), made.record("up", loss_change=3e-5), made.record("down", loss_change=-3e-5), made.record("more", loss_change=6e-5)]
    sweep = sweep_of(tmp_path, rows)
    assert [format.loss_change(sweep.case(name)) for name in ("up", "down", "more")] == ["<0.0001", "<0.0001", "+0.0001"]
    with plt.rc_context(theme.style(theme.PRINTED)):
        assert not plt.rcParams["axes.unicode_minus"], "axes write a minus as tables and scales of colours do"


def test_one_round_has_no_interval_and_no_place_on_the_front(tmp_path):
    rows = [made.record(round=number) for number in (1, 2)]
    rows += [made.record("twice", number, 900, jitter=0.1) for number in (1, 2)] + [made.record("once", 1, 500, 100, jitter=0.1)]
    sweep = sweep_of(tmp_path, rows)
    assert [case.name for case in figures.on_front(sweep)] == ["twice"]
    assert pages.speed_times(sweep.case("once")) == "2.00 × (one round)"
    assert "(1.0" in pages.speed_times(sweep.case("twice"))
    assert pages.short_answers(sweep)[0].startswith("Fastest: `twice`,")
    assert pages.short_answers(sweep)[1] == ("Smallest: `once`, 2.00 × the speed in 0.42 × the peak of `baseline` (4,096 tokens/s in "
                                             "500.00 MiB, in a single round)."), "bytes of one round are exact"


def test_what_is_no_smaller_and_perhaps_no_faster_has_no_place_on_the_front(tmp_path):
    rows = [made.record(round=number) for number in (1, 2)]
    rows += [made.record("near", number, ms) for number, ms in ((1, 950), (2, 1010))]
    rows += [made.record("small", number, 1500, 400) for number in (1, 2)]
    sweep = sweep_of(tmp_path, rows)
    assert sweep.case("near").speed_ratio.value > 1
    assert [case.name for case in figures.on_front(sweep)] == ["small", "baseline"]
    fast = sweep_of(tmp_path, [*rows, *(made.record("fast", number, 500) for number in (1, 2))])
    assert [case.name for case in figures.on_front(fast)] == ["small", "fast"]


def test_a_baseline_beside_single_rounds_is_neither_fastest_nor_a_front(tmp_path):
    rows = [made.record(round=number) for number in (1, 2)] + [made.record("once", 1, 500, 100)]
    sweep = sweep_of(tmp_path, rows)
    assert figures.on_front(sweep) == []
    smallest, rounds = pages.short_answers(sweep)
    assert smallest.startswith("Smallest: `once`") and rounds.startswith("1 of 2 cases ran in a single round")
