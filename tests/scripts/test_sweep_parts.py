"""The parts of a full sweep: what is compared within them, the ladder, and what leaving one out costs."""
import dataclasses
import pathlib
import sys

import pytest
from report_calls import sweeps_of, table_rows
import sweep_records as made
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import pages, sidecars, sweep_part_pages, sweep_parts  # noqa: E402


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


def test_parts_that_are_absent_leave_no_trace(tmp_path):
    sweeps = sweeps_of(tmp_path, made.sweep())
    (sweep,) = sweep_parts.together(sweeps)
    beside = sidecars.read_beside([tmp_path / "records.jsonl"])
    assert not any(getattr(beside, field.name) for field in dataclasses.fields(beside))
    assert [*sweep_part_pages.ladder_blocks(sweep, ""), *sweep_part_pages.leave_one_out_blocks(sweep),
            *sweep_part_pages.crossover_blocks(sweeps), *sweep_part_pages.fit_blocks(sweeps, []), *sweep_part_pages.estimate_blocks([]),
            *sweep_part_pages.check_blocks([])] == []
