"""Claims that name no figure of an effect: what cases made up here say of them, worked out by hand."""
import pathlib
import sys

import pytest
from claim_rows import ALL
from report_calls import sweeps_of
import sweep_records as made

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import figures  # noqa: E402
from report.claims import case_judges, judge as judging, stated as statements  # noqa: E402


def twice(case: str = "baseline", settings: dict | None = None, summary: dict | None = None, **changes) -> list[dict]:
    """Two rounds alike, of runs that resolved these settings and have this beside in their summaries."""
    runs = [made.record(case, number, **changes) for number in (1, 2)]
    for run in runs:
        run["summary"] |= {"model": {"parameters": 1}, "state_bytes": dict.fromkeys(("parameters", "gradients", "optimizer"), 1),
                           "settings": settings or {}, **(summary or {})}
    return runs


def judged(tmp_path: pathlib.Path, claim: str, rows: list[dict], *names: str) -> judging.Row:
    """The verdict on a claim about techniques of these names, without dry runs."""
    techniques = [statements.Technique(name, [], [claim]) for name in names]
    return judging.Judge(sweeps_of(tmp_path, rows), techniques, [], {}).row(ALL[claim])


def test_cases_are_of_claims_that_exist():
    assert set(case_judges.CASES) <= set(ALL) and all(case_judges.judge_of(claim) for claim in case_judges.CASES)


@pytest.mark.parametrize("state, verdict, decided", [
    (4, "right", "8.00 bytes a parameter, master included (`adam8bit`)"), (6, "overstated", "10.00 bytes a parameter, master included"),
    (2, "understated", "6.00 bytes a parameter, master included"), (None, "untested", "")])
def test_an_optimizers_bytes_a_parameter_are_its_states_and_a_master(tmp_path, state, verdict, decided):
    held = {"model": {"parameters": 1000}, "state_bytes": state and {"parameters": 4000, "gradients": 4000, "optimizer": 1000 * state}}
    row = judged(tmp_path, "vibee.adam8bit_bytes", [*twice(), *twice("adam8bit", summary=held)], "adam8bit")
    assert row.verdict == verdict and row.decided.startswith(decided)


@pytest.mark.parametrize("milliseconds, activations, verdict", [
    (1250, 200, "right"), (900, 200, "right in part"), (1250, 900, "right in part"), (900, 900, "overstated")])
def test_a_smaller_batch_saves_memory_and_takes_longer(tmp_path, milliseconds, activations, verdict):
    row = judged(tmp_path, "ava.smaller_batch", [*twice(), *twice("x", milliseconds=milliseconds, activations=activations)], "x")
    assert row.verdict == verdict
    if verdict == "right":
        assert row.decided == "saves 50 % of the peak, 25 % more time"
        assert row.found == {"memory": "saves 50 % of the peak", "time": "25 % more time"}


def test_less_time_is_said_so(tmp_path):
    """5 % less and 6 % more; and intervals that hold both."""
    row = judged(tmp_path, "ava.smaller_batch", [*twice(), *twice("x", milliseconds=950, activations=200),
                                                 *twice("y", milliseconds=1060, activations=200)], "x", "y")
    assert row.found["time by `x` on moe-micro"] == "5 % less time" and row.found["time by `y` on moe-micro"] == "6 % more time"
    of_two = [figures.Interval(value, value - 20, value + 20) for value in (-5, 6)]
    assert case_judges.longer_by(of_two) == "5 % less to 6 % more time"
    assert [case_judges.longer_by([one]) for one in of_two] == ["5 % (-15 to 25) less time", "6 % (-14 to 26) more time"]


def test_a_direction_that_nobody_knows_is_not_decided(tmp_path):
    rows = [*twice(), made.record("x", 1, 900, 200), made.record("x", 2, 1500, 200)]
    row = judged(tmp_path, "ava.smaller_batch", rows, "x")
    assert row.verdict == "right in part" and row.untested[0].startswith("time: ")
    row = judged(tmp_path, "ava.smaller_batch", [made.record(), made.record("x", milliseconds=2000, activations=200)], "x")
    assert (row.verdict, row.untested) == ("right in part", ["time: one round alone"])


def test_cases_that_differ_are_named(tmp_path):
    rows = [*twice(), *twice("x", activations=200), *twice("y", activations=900)]
    row = judged(tmp_path, "verl.optimizer_offload", rows, "x", "y")
    assert row.verdict == "right in part" and "right: memory by `x` on moe-micro; overstated: memory by `y` on moe-micro" in row.decided


@pytest.mark.parametrize("tokens, fill, filled_before, size, verdict, untested", [
    (1024, 1, 0.8, 4096, "right", []), (1024, 0.5, 0.8, 4096, "overstated", []), (900, 1, 0.8, 4096, "overstated", []),
    (1024, 1, 1, 4096, "right in part", ["uneven batches: the baseline's are as even and as full"]),
    (1024, 1, 0.8, 1024, "untested", ["its size: no case packs 4,096 to 8,192 tokens"])])
def test_packed_batches_are_even(tmp_path, tokens, fill, filled_before, size, verdict, untested):
    """Steps of 1,024 tokens, and a last one of as many or fewer; packed to as many as the claim names, or not; rows that were full before."""
    rows = [*twice(summary={"fill_rate": filled_before}),
            *twice("packing", {"train": {"tokens_per_device": size, "sequence": 128}}, {"fill_rate": fill})]
    for row in rows:
        is_packed = row["case"] == "packing"
        row["settings"] |= {"train.tokens_per_device": str(size)} if is_packed else {}
        for step in row["steps"]:
            step[1] = 1024 * step[0] - (1024 - tokens if step[0] == 9 and is_packed else 0)
    found = judged(tmp_path, "verl.dynamic_batch_size", rows, "packing")
    assert (found.verdict, found.untested) == (verdict, untested)
    assert found.runs_decide is any("its size" in one for one in untested)


def test_a_reference_that_is_not_there_cannot_be_moved(tmp_path):
    rows = [*twice(), *twice("host_reference")]
    assert judged(tmp_path, "verl.parameter_offload", rows, "host_reference").verdict == "untested"
    for row in rows:
        row["settings"] = {"reference.path": "a/model"}
        row["summary"]["peak_bytes"] -= 100 if row["case"] == "host_reference" else 0
    assert judged(tmp_path, "verl.parameter_offload", rows, "host_reference").verdict == "right"


@pytest.mark.parametrize("limit, activations, verdict, ended", [
    (1800, 1100, "right", True), (4000, 1100, "right in part", False), (1800, 800, "overstated", False), (1600, 1100, "overstated", False)])
def test_a_batch_that_follows_the_memory_grows_up_to_its_bound(tmp_path, limit, activations, verdict, ended):
    """The peak is 1200 MiB before. It grows to 1500 where nine tenths of the limit may be taken, and no further growth would fit; or would;
    or it does not grow; or beyond that bound."""
    rows = [*twice(), *twice("dynamic_batch", {"memory": {"dynamic_batch.target": 0.9}}, activations=activations)]
    for row in rows:
        row["summary"]["memory_limit_bytes"] = limit * made.MIB
    found = judged(tmp_path, "ava.dynamic_batching", rows, "dynamic_batch")
    assert (found.verdict, found.untested) == (verdict, [] if ended else ["its end: in no case did the limit end its growth"])


@pytest.mark.parametrize("before, held, milliseconds, verdict, untested", [
    ((8, 4), 1700, 1000, "right", []), ((8, 4), 2000, 1000, "right in part", []), ((8, 4), 1700, 1100, "right in part", []),
    ((1, 2), 1700, 1000, "right", ["time: no case starts from so many batches read ahead"])])
def test_batches_read_ahead_are_counted_and_timed_from_where_the_claim_starts(tmp_path, before, held, milliseconds, verdict, untested):
    """A batch has 100 bytes: 33 or 3 of them before, 17 after."""
    workers, prefetch = before
    rows = [*twice(settings={"data": {"workers": workers, "prefetch": prefetch}}, summary={"host_bytes": 100 * (workers * prefetch + 1)}),
            *twice("read_ahead", {"data": {"workers": 8, "prefetch": 2}}, {"host_bytes": held}, milliseconds=milliseconds)]
    row = judged(tmp_path, "ava.data_pipeline", rows, "read_ahead")
    assert row.untested == untested and row.evidence[2].startswith(f"17 batches held {held:,} bytes, {workers * prefetch + 1} held ")
    assert row.verdict == ("right in part" if untested else verdict)


@pytest.mark.parametrize("sizes, verdict", [((1000, 900), "right"), ((1000, 1100), "overstated"),
                                            ((1000, 999), "overstated"), ((None, None), "untested")])
def test_another_allocator_makes_the_process_smaller(tmp_path, sizes, verdict):
    before, after = sizes
    rows = [*twice(resident_bytes=before), *twice("jemalloc", resident_bytes=after)]
    row = judged(tmp_path, "verl.host_allocator", rows, "jemalloc")
    assert row.verdict == verdict
    assert row.untested == ([] if before else ["`jemalloc` on moe-micro: the record holds no size of the process"])
    assert judged(tmp_path, "verl.host_allocator", twice(), "jemalloc").untested == ["no record here of `jemalloc`"]


def ladder(*steps: tuple[str, float, float]) -> list[dict]:
    """The baseline of 1200 MiB and 1000 ms, and a rung for each technique with (milliseconds, MiB of activations)."""
    rows, names = twice(), []
    for name, milliseconds, activations in steps:
        names.append(name)
        rows += twice(f"ladder {len(names)}: {name}", techniques=list(names), family="ladder", milliseconds=milliseconds,
                      activations=activations)
    return rows


@pytest.mark.parametrize("steps, wrong", [
    ((("flash_attention", 800, 600), ("bf16", 700, 400), ("recompute_full", 900, 200), ("accumulation", 1200, 150)), []),
    ((("flash_attention", 800, 600), ("recompute_full", 900, 400), ("bf16", 700, 200)), ["gradient checkpointing"]),
    ((("flash_attention", 800, 600), ("accumulation", 1200, 500), ("recompute_full", 1300, 100)), ["smaller batch"]),
    ((("flash_attention", 800, 600), ("recompute_full", 900, 400), ("bf16", 700, 450)), []),
    ((("flash_attention", 800, 600), ("accumulation", 1200, 500), ("capacity", 600, 100)), [])])
def test_what_is_free_comes_first_and_then_what_saves_most_for_its_time(tmp_path, steps, wrong):
    """In order; a free step after one that costs time; one that saves more for less time after another; a free one that saves nothing;
    and a step that is none of the guide's, which counts for nothing."""
    row = judged(tmp_path, "ava.priority", ladder(*steps))
    assert row.verdict == "right in part" and "zero 1 in its place: no ladder has it in two rounds" in row.untested
    _, parts = case_judges.in_order(case_judges.Seen({}, sweeps_of(tmp_path, ladder(*steps)), []))
    assert [name.removesuffix(" in its place") for name, part in parts.items() if part.outcome == "overstated"] == wrong


@pytest.mark.parametrize("saved, low, high, early", [(40, -8, 2, True), (40, -8, 200, False), (40, -8, -1, True), (0, -8, 2, False)])
def test_a_step_that_may_be_free_is_judged_by_the_most_it_may_cost(saved, low, high, early):
    """Beside one that saves 7 % of the peak for a fifth more time at least."""
    first = case_judges.Rung("first", 7, figures.Interval(24, 20, 28))
    assert case_judges.too_early(first, case_judges.Rung("later", saved, figures.Interval(low, low, high))) is early


def test_an_order_without_a_ladder_of_two_rounds_is_not_decided(tmp_path):
    rows = [row for row in ladder(("flash_attention", 800, 600)) if row["round"] == 1]
    row = judged(tmp_path, "ava.priority", rows)
    assert (row.verdict, row.untested) == ("untested", ["the times of its steps: no ladder in the guide's order has two rounds"])
