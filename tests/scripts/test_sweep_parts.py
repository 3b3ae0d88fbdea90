"""The parts of a full sweep, from records made up so that interactions and crossovers are known in closed form."""
import dataclasses
import json
import math
import pathlib
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import sweep_records as made
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import assemble, cards, document, figures, pages, records, rendering, sidecars, sweep_part_pages, sweep_parts  # noqa: E402
from report.claims import stated  # noqa: E402
from report.plots import crossovers, pairs as pair_plots, theme  # noqa: E402


def sweeps_of(folder: pathlib.Path, rows: list[dict]) -> list[figures.Sweep]:
    return figures.sweeps(records.read_records([made.write(folder / "records.jsonl", rows)])[0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[list[figures.Sweep], sidecars.Sidecars]:
    folder = made.write_plan(tmp_path_factory.mktemp("plan"))
    return figures.sweeps(records.read_records([folder])[0]), sidecars.read_beside([folder])


NO_LINKS = cards.Links(False, "", "")


def markdown(blocks: list) -> str:
    return rendering.to_markdown(blocks)


def table_rows(blocks: list, heading: str) -> list[list[str]]:
    (table,) = [block for block in blocks if isinstance(block, document.Table) and block.headings[0] == heading]
    return table.rows


def test_parts_with_the_same_baseline_are_one_and_others_stay_apart(whole):
    (sweep,) = sweep_parts.together(whole[0])
    names = [case.name for case in sweep.cases]
    assert len(names) == len(set(names)) == 12 and "flash_attention + bf16" in names and "gpu-8gb" not in names
    assert {case.any.sweep for case in sweep.cases} == {"core", "pairs"}


def test_parts_of_another_baseline_are_not_merged(tmp_path):
    rows = made.core() + made.in_part("short", "single", "baseline", 10, 800, [], settings_hash="of another length")
    assert [len(sweep.cases) for sweep in sweep_parts.together(sweeps_of(tmp_path, rows))] == [11, 1]


def test_ratios_pair_within_a_part(tmp_path):
    """The baseline of the other part is ten times as fast, in the same rounds."""
    rows = made.in_part("core", "single", "baseline", 1000, 800, []) + made.in_part("core", "single", "bf16", 500, 400, ["bf16"])
    rows += made.in_part("pairs", "single", "baseline", 100, 800, [])
    rows += made.in_part("pairs", "pair", "bf16 + lion", 50, 400, ["bf16", "lion"])
    (sweep,) = sweep_parts.together(sweeps_of(tmp_path, rows))
    assert [sweep.case(name).speed_ratio.value for name in ("bf16", "bf16 + lion")] == pytest.approx([2, 2])
    speed = sweep.case("baseline").speed
    assert len(sweep.case("baseline").runs) == 4 and speed.high == pytest.approx(10 * 2048) and speed.low == pytest.approx(2048 / 1.1)
    assert "compare ratios, not tokens/s" in pages.case_table(sweep).caption
    alone = pages.case_table(sweep_parts.together(sweeps_of(tmp_path, rows[:4]))[0])
    assert "tokens/s" not in alone.caption


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
    text = markdown(sweep_part_pages.pair_blocks(sweep, whole[1].predictions_of(sweep), ""))
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


def test_ladder_rises_and_leaving_out_is_ordered_by_memory(whole):
    (sweep,) = sweep_parts.together(whole[0])
    rows = table_rows(sweep_part_pages.ladder_blocks(sweep, ""), "rung")
    assert [(row[0], row[-1]) for row in rows] == [("ladder 1: flash_attention", "`flash_attention`"), ("ladder 2: + bf16", "`bf16`"),
                                                   ("ladder 3: + recompute_full", "`recompute_full`")]
    assert [row[3] for row in rows] == ["1000.00 MiB", "800.00 MiB", "600.00 MiB"]
    left_out = table_rows(sweep_part_pages.leave_one_out_blocks(sweep), "case")
    assert [(row[0], row[3]) for row in left_out] == [
        ("guides_stack without recompute_full", "+150.00 MiB"), ("guides_stack without bf16", "+100.00 MiB"),
        ("guides_stack without flash_attention", "+50.00 MiB")]
    assert left_out[2][2].startswith("0.92 ×")  # 550 ms against 600


def test_steps_of_the_guide_without_a_rung_are_named_with_the_reason(tmp_path):
    rungs = ["flash_attention", "bf16", "recompute_full", "accumulation"]
    rows = made.in_part("core", "single", "baseline", 1000, 800, [])
    for count in (3, 4):
        rows += made.in_part("core", "ladder", f"ladder {count}", 900, 300, rungs[:count])
    (sweep,) = sweep_parts.together(sweeps_of(tmp_path, rows))
    shown = table_rows(sweep_part_pages.ladder_blocks(sweep, ""), "rung")
    assert [row[0] for row in shown] == ["ladder 3", "–", "–", "–", "–", "ladder 4"]
    assert [row[-1].partition(":")[0] for row in shown[1:5]] == ["`data_pipeline`", "`zero_1`", "`memory_thresholds`", "`zero_2`"]
    assert "measured apart" in shown[2][-1] and "no effect here" in shown[3][-1]


def test_the_ladders_order_is_the_guides():
    stated = yaml.safe_load((ROOT / "train/predict/techniques/claims.yaml").read_text())["claims"]
    (order,) = [claim["figures"]["order"] for claim in stated if claim["id"] == "ava.priority"]
    assert list(sweep_parts.PRIORITY) == order
    assert all(step.keys() in ({"technique"}, {"reason", "of_ranks"}) for step in sweep_parts.PRIORITY.values())
    ladder = next(part["ladder"] for part in yaml.safe_load((ROOT / "bench/tradeoff/full.yaml").read_text())["parts"]
                  if "ladder" in part)
    rungs = [step["technique"] for step in sweep_parts.PRIORITY.values() if "technique" in step]
    assert ladder[:len(rungs)] == rungs
    (of_ranks,) = [part["ladder"] for part in yaml.safe_load((ROOT / "bench/tradeoff/ranks.yaml").read_text())["parts"]
                   if "ladder" in part]
    assert of_ranks == [step.get("technique", step.get("of_ranks")) for step in sweep_parts.PRIORITY.values()]
    assert len(of_ranks) == 8


def test_a_ladder_of_ranks_has_all_rungs(tmp_path):
    rungs = [step.get("technique", step.get("of_ranks")) for step in sweep_parts.PRIORITY.values()]
    rows = made.in_part("core", "single", "baseline", 1000, 800, [])
    for count in range(1, 9):
        rows += made.in_part("core", "ladder", f"ladder {count}", 900, 300, rungs[:count])
    (sweep,) = sweep_parts.together(sweeps_of(tmp_path, rows))
    shown = table_rows(sweep_part_pages.ladder_blocks(sweep, ""), "rung")
    assert [(row[0], row[-1]) for row in shown] == [(f"ladder {count}", f"`{rungs[count - 1]}`") for count in range(1, 9)]


def test_crossovers_by_sequence_and_by_model(whole):
    by_sequence, by_model = sorted(sweep_parts.crossings(whole[0]), key=lambda one: one.axis, reverse=True)
    assert (by_sequence.label, by_sequence.axis) == ("flash_attention", "sequence")
    assert [(x, case.speed_ratio.value) for x, case in by_sequence.points] == [
        (512, pytest.approx(0.5)), (1024, pytest.approx(1)), (2048, pytest.approx(2))]
    assert (by_model.label, by_model.axis, [x for x, _ in by_model.points]) == ("recompute_full", "parameters", [1e6, 4e8])
    text = markdown(sweep_part_pages.crossover_blocks(whole[0]))
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


def test_what_fits(whole):
    text = markdown(sweep_part_pages.fit_blocks(whole[0], whole[1].fits))
    for row in ("| RTX 4060 | 8.00 GiB | baseline | **too large** | moe-nano | 13.00 GiB | none | 0 | 4 |",
                "| RTX 4060 | 8.00 GiB | guides_stack | **fits** | moe-nano | 6.00 GiB | moe-nano | 20 | 4 |",
                "| gpu-8gb | 0.58 × | 2.00 × | moe-nano | 1 | 1.37 GiB | 700.00 MiB (50%) | 2,793 | 2 |",
                "| gpu-16gb | – | – | moe-nano | 1 | 1000.00 MiB | 500.00 MiB (50%) | 5,585 | 2 |", "| gpu-12gb | **failed**: out of memory |",
                "asked for 3 GiB"):
        assert row in text, text
    assert "within memory.critical, and what is taken within the card" in text and f"taken: {sweep_part_pages.TAKEN}" in text
    assert "| gpu-8gb's baseline" not in text and "# gpu-8gb's baseline\n" in text, "it has a command and no row"
    assert rendering.inline("**fits**") == '<strong class="green">fits</strong>'


def test_the_estimator_by_hand(whole):
    """30 errors from 0 to 0.29 %: the median is 0.145 %."""
    blocks = sweep_part_pages.estimate_blocks(whole[1].draws)
    text = markdown(blocks)
    assert "30 drawn configurations: tensors at the peak off by 0.145% (median) and 0.290% (worst)" in text
    assert "exact in all" in text and "at most 29 KiB" in text
    rows = table_rows(blocks, "error")
    assert [row[0] for row in rows] == [f"{'-' if index % 2 else '+'}{index / 100:.3f}%" for index in range(29, 19, -1)]


def test_parts_that_are_absent_leave_no_trace(tmp_path):
    sweeps = sweeps_of(tmp_path, made.sweep())
    (sweep,) = sweep_parts.together(sweeps)
    beside = sidecars.read_beside([tmp_path / "records.jsonl"])
    assert not any(getattr(beside, field.name) for field in dataclasses.fields(beside))
    assert [*sweep_part_pages.ladder_blocks(sweep, ""), *sweep_part_pages.leave_one_out_blocks(sweep),
            *sweep_part_pages.crossover_blocks(sweeps), *sweep_part_pages.fit_blocks(sweeps, []), *sweep_part_pages.estimate_blocks([]),
            *sweep_part_pages.check_blocks([])] == []


@pytest.mark.parametrize("name, content, words", [
    ("predictions.json", '{"schema": 2}', ["schema 2", "schema 1"]),
    ("predictions.json", "{", ["damaged", "bench_tradeoff"]),
    ("predictions.json", json.dumps(made.predictions() | {"cases": [{}]}), ["damaged", "status"]),
    ("fits.json", "[]", ["schema None"]),
    ("fits.json", json.dumps(made.fits() | {"rows": [made.fits()["rows"][0] | {"status": "blue"}]}), ["blue", "green"]),
    ("card_plans.json", json.dumps(made.card_plans() | {"rows": [{}]}), ["damaged", "card_plans.py", "missing"]),
    ("estimates.jsonl", '{"schema": 1}\n', [":1", "check_estimates.py", "missing"]),
    ("plans.jsonl", '{"schema": 1, "budget": "1MiB"}\n', [":1", "check_plan.py", "missing"]),
    ("plans.jsonl", json.dumps(made.plans()[0]) + "\n", ["without", "nothing drawn", "check_plan.py"]),
    ("plans.jsonl", "".join(json.dumps(made.plans()[at]) + "\n" for at in (0, 3)), ["in a round", "check_plan.py"]),
    ("estimates.jsonl", '{"sch\n{"schema": 1}\n', [":1", "damaged"]),
])
def test_damaged_companions_are_refused_and_nothing_is_written(tmp_path, name, content, words):
    made.write_plan(tmp_path)
    (tmp_path / name).write_text(content)
    (tmp_path / "report.md").write_text("as it was")
    done = subprocess.run([sys.executable, ROOT / "scripts" / "report.py", tmp_path, "--out", tmp_path], text=True,
                          capture_output=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert str(tmp_path / name) in done.stderr and all(word in done.stderr for word in words), done.stderr
    assert (tmp_path / "report.md").read_text() == "as it was" and not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("gpu, card, same", [
    ("NVIDIA GeForce RTX 4090", "RTX 4090", True), ("NVIDIA GeForce RTX 4060 Ti", "RTX 4060", False),
    (None, "RTX 4060", False), (None, "", False),
    ("NVIDIA H100 80GB HBM3", "H100 80 GB", True), ("NVIDIA A100-SXM4-40GB", "A100 40 GB", True),
    ("NVIDIA A100-SXM4-80GB", "A100 40 GB", False)])
def test_a_gpu_is_the_card_of_a_preset(gpu, card, same):
    assert cards.is_card(gpu, card) == same


def test_your_card_opens_with_the_best_that_is_known(whole):
    """What a plan predicts; on a card that was measured, the fastest measured case that fits."""
    sweeps, beside = whole
    blocks = cards.your_card(beside, [], sweeps, NO_LINKS)
    first, *_ = (block for block in blocks if isinstance(block, document.Table))
    assert first.rows == [
        ["RTX 4060", "8.00 GiB", "`moe-micro`", "4.00 GiB (50%)", "14,540"],
        ["H100 80 GB", "80.00 GiB", "`moe-micro`", "4.00 GiB (5%)", "14,540"]]
    assert first.caption.endswith("Each speed here: a guess from the datasheet."), "no column, which a phone would not show"
    on_h100 = [dataclasses.replace(sweep, machine={"gpu": "NVIDIA H100 80GB HBM3"}) for sweep in sweeps]
    (commands,) = (block for block in blocks if isinstance(block, document.Commands))
    assert commands.lines == ["# RTX 4060\nmoelab train --preset 8", "# H100 80 GB\nmoelab train --preset 80"]
    _, table, _, commands, *_ = cards.your_card(beside, [], on_h100, NO_LINKS)
    fastest = max(cards.measured_on("H100 80 GB", "moe-micro", on_h100), key=lambda case: case.speed.value)
    assert table.rows[0][5] == "a guess from the datasheet" and table.rows[1][4:] == [f"{fastest.speed.value:,.0f}", "measured"]
    assert commands.lines[1] == f"# H100 80 GB\n{fastest.command}"


def test_a_report_without_cards_links_to_the_one_beside_it_that_has_them(tmp_path):
    results = tmp_path / "results"
    for folder in ("here", "there"):
        (results / folder).mkdir(parents=True)
        made.write(results / folder / "records.jsonl", made.core())
    (results / "there/card_plans.json").write_text(json.dumps(made.card_plans()))
    links = assemble.links_from(results / "here")
    assert links == cards.Links(False, "", "../there/report.md#your-card")
    assert assemble.links_from(results) == NO_LINKS, "results/ alone has a folder for each machine"
    beside = sidecars.read_beside([results / "here"])
    heading, text = cards.your_card(beside, [], [], links)
    assert heading.text == "Your card" and "](../there/report.md#your-card)" in text.text
    assert cards.your_card(beside, [], [], NO_LINKS) == []
    assert assemble.links_from(ROOT / "results/any").techniques == "../../docs/techniques.md"


def test_every_technique_has_its_row_of_costs_beside_its_own_baseline(tmp_path):
    """Two parts of other baselines; bf16 is in both, in more rounds in the first; lion in both, in as many."""
    rows = made.in_part("core", "single", "baseline", 1000, 800, []) + made.in_part("core", "single", "bf16", 500, 400, ["bf16"])
    rows += made.in_part("core", "single", "lion", 900, 700, ["lion"])
    other = made.in_part("other", "single", "baseline", 1000, 800, [], sequence=512, settings_hash="of another sequence")
    other += made.in_part("other", "single", "muon", 1100, 600, ["muon"], sequence=512)
    other += made.in_part("other", "single", "lion", 200, 100, ["lion"], sequence=512)
    rows += other + made.in_part("other", "single", "bf16", 100, 100, ["bf16"], sequence=512)[:1]
    titles = {"bf16": "bf16 compute", "lion": "Lion", "muon": "Muon"}
    techniques = [stated.Technique(name, [], [], title=title) for name, title in titles.items()]
    _, table, words = cards.costs(sweep_parts.together(sweeps_of(tmp_path, rows)), [], techniques, cards.Links(False, "there.md", ""))
    assert table.headings == ["technique", "memory", "speed", "change", "rounds", "baseline", "what it is"]
    assert [(row[0], row[2], *row[5:]) for row in table.rows] == [
        ("`bf16`", "2.00 ×", "the usual", "bf16 compute"), ("`muon`", "0.91 ×", "`train.sequence=512`", "Muon"),
        ("`lion`", "1.11 ×", "the usual", "Lion")]
    for said in ("same bits: ", "; 0: ", "<0.0001: ", "–: ", "noisy: ", "[What each technique does and trades](there.md)",
                 "`train.sequence=256`"):
        assert said in words.text, said
    _, table, words = cards.costs(sweep_parts.together(sweeps_of(tmp_path, rows[:6])), [], [], NO_LINKS)
    assert table.headings[-1] == "rounds" and "baseline: in what" not in words.text and "](" not in words.text


def test_a_column_without_a_measurement_is_left_out(whole):
    sweeps, beside = whole

    def table(machine: dict) -> document.Table:
        of = [dataclasses.replace(sweep, machine=machine, model="moe-nano") for sweep in sweeps]
        tables = [block for block in cards.your_card(beside, [], of, NO_LINKS) if isinstance(block, document.Table)]
        return next(one for one in tables if "largest batch" in one.headings)
    unmeasured = table({"cpu": "a CPU"})
    assert "tokens/s" not in unmeasured.headings and unmeasured.caption.endswith("Its speed was measured on none of them.")
    assert all(len(row) == len(unmeasured.headings) for row in unmeasured.rows)
    assert unmeasured.headings[2] == "taken" and unmeasured.rows[0][2] == "13.00 GiB (162%)", "as on_card says, not peak"
    measured = table({"gpu": "NVIDIA GeForce RTX 4060"})
    assert measured.headings[-1] == "tokens/s" and measured.rows[0][-1] not in ("", "not measured")


def test_another_models_largest_batch_is_another_row():
    def fit(model, batch):
        return sidecars.Fit("RTX 4060", 8.0, "baseline", "", 1, batch, model, "green", 1.0)
    both = cards.chosen([sidecars.Fits("", "", [fit("moe-nano", 9), fit("moe-570m", 2)])])
    assert {(one.model, one.largest_batch) for one in both} == {("moe-nano", 9), ("moe-570m", 2)}


def test_the_planners_checks_by_hand(whole):
    """At 300 MiB twice as fast as the fastest drawn; at 400 MiB, recorded without its techniques and predicted speed, half as
    fast."""
    rows = table_rows(sweep_part_pages.check_blocks(whole[1].checks), "budget")
    assert rows == [
        ["300MiB", "bf16, adam8bit", "200.00 MiB", "2,000", "1,900", "bf16", "1,000", "2.00 ×", "2", "**holds**"],
        ["400MiB", "not recorded", "200.00 MiB", "500", "–", "bf16", "1,000", "0.50 ×", "2", "**does not hold**"]]
    text = markdown(sweep_part_pages.check_blocks(whole[1].checks))
    assert "drawn at random (2 or 1 for each budget)" in text


def test_a_draw_that_was_cut_off_is_left_out(tmp_path):
    path = made.write(tmp_path / "estimates.jsonl", made.estimates(3), torn='{"schema": 1, "sett')
    assert len(sidecars.read_draws(path)) == 3
