"""Claims of advice, settings and orders: what dry runs made up here say of them, worked out by hand."""
import pathlib
import sys

import pytest
from claim_rows import ALL, row_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import records  # noqa: E402
from report.claims import advice_judges, dry_judges, dry_runs, lines  # noqa: E402
from report.claims.outcomes import Part  # noqa: E402

CARD = {"name": "RTX 3090", "compute_capability": "8.6"}


def taking(gigabytes: float, limit: float = 24, **more) -> dict:
    """A dry run that takes so much of a card."""
    return {"peak_bytes": gigabytes * 1e9, "on_card_bytes": gigabytes * 1e9, "memory_limit_bytes": limit * 1e9, "fits": gigabytes <= limit,
            "gpu": CARD, "host_bytes": 0, **more}


@pytest.mark.parametrize("peaks, order, outcomes", [
    ([10, 5, 4, 4.5], "right", ["right", "right", "overstated"]), ([10, 9.95, 5, 4.9], "overstated", ["overstated", "right", "right"])])
def test_a_step_of_advice_saves_a_hundredth_of_what_is_left(peaks, order, outcomes):
    """10 GB become 5, 4 and again 4.5: the last step is none. With the largest saving in the middle the order is wrong."""
    runs = {f"step {index}": taking(peak) for index, peak in enumerate(peaks)}
    _, parts = advice_judges.steps_down(runs, {})
    assert [part.outcome for part in parts.values()] == outcomes and "the order" not in parts
    _, parts = advice_judges.steps_down(runs, {}, largest_first=True)
    assert parts["the order"].outcome == order


def test_what_to_shrink_next_is_judged_step_by_step():
    names = dry_runs.DRY_CLAIMS["parrot.if_still_too_large"].runs
    row = row_of("parrot.if_still_too_large", dict(zip(names, map(taking, (10, 7, 6.99, 6.5)))))
    assert row.verdict == "right in part"
    assert row.decided == "right: 2 experts (30 % less), and 1 more; overstated: 1 expert a token (0.14 % less), and 1 more"
    assert row.evidence[1].startswith("10 GB become 6.5 GB: 2 experts 30 % less, 1 expert a token 0.14 % less, capacity 1 7 % less (dry run: ")


@pytest.mark.parametrize("taken, verdict, wrong", [
    ((100, 10, 20), "right", []), ((20, 10, 20), "right in part", ["7B"]), ((100, 10, 30), "right in part", ["ZeRO-3 on 8 ranks"])])
def test_what_runs_out_of_memory_does_not_fit_and_its_remedies_do(taken, verdict, wrong):
    runs = dict(zip(dry_runs.DRY_CLAIMS["ava.oom_at_step_0"].runs, map(taking, taken)))
    _, parts = advice_judges.remedies(runs, {})
    assert [name for name, part in parts.items() if part.outcome != "right"] == wrong
    assert row_of("ava.oom_at_step_0", runs).verdict == verdict


@pytest.mark.parametrize("limit, text", [(24 << 30, "of 24 GiB: 7B 93.1 GiB, a smaller model 9.31 GiB, "), (24e9, "of 24 GB: 7B 100 GB, a ")])
def test_a_limit_is_written_as_cards_are_named(limit, text):
    taken = (taking(gigabytes) | {"memory_limit_bytes": limit} for gigabytes in (100, 10, 20))
    runs = dict(zip(dry_runs.DRY_CLAIMS["ava.oom_at_step_0"].runs, taken))
    assert row_of("ava.oom_at_step_0", runs).decided.startswith(text)


def test_a_higher_target_lets_more_rows_in():
    """Of 24 GB 18 and 21.6 may be taken."""
    taken = {"353 rows": 17.9, "354 rows": 18.1, "406 rows": 20, "407 rows": 20, "435 rows": 21.5}
    names = dry_runs.DRY_CLAIMS["ava.memory_thresholds"].runs
    row = row_of("ava.memory_thresholds", {name: taking(taken.get(name, 21.7)) for name in names})
    assert (row.verdict, row.decided) == ("right", "435 rows at 90 % of the card instead of 353 at 75 %, 23 % more")


def test_the_largest_batch_is_known_only_beside_one_row_more():
    runs = {"5 rows": taking(10), "6 rows": taking(13), "9 rows": taking(20)}
    assert advice_judges.rows_within(runs, 50) == 5
    with pytest.raises(KeyError, match="7 rows"):
        advice_judges.rows_within(runs, 60)


@pytest.mark.parametrize("claim, taken, more, outcomes", [
    ("ava.thresholds_aggressive", 22, 22.1, ["right", "right"]), ("ava.thresholds_aggressive", 21, 22.1, ["overstated", "right"]),
    ("ava.thresholds_conservative", 20, 20.5, ["right", "right"]), ("ava.thresholds_conservative", 20, 22, ["right", "overstated"])])
def test_thresholds_use_what_they_are_said_to_and_notice_a_row_in_time(claim, taken, more, outcomes):
    """Of 24 GB: nearly all is 21.6 or more, 22.56 and 21.12 are where they warn."""
    dry = dry_runs.DRY_CLAIMS[claim].judge
    _, parts = dry({"5 rows": taking(taken), "6 rows": taking(more)}, ALL[claim]["figures"])
    assert [part.outcome for part in parts.values()] == outcomes


@pytest.mark.parametrize("held, verdict", [((0.29, 0.39, 0.49, 0.7), "right in part"), ((0.31, 0.41, 0.51, 0.81), "overstated"),
                                           ((0.29, 0.29, 0.29, 0.29), "overstated")])
def test_generation_stays_in_its_share_and_takes_more_of_a_larger_one(held, verdict):
    """Of a limit of 1 GB, beside 2 GB of optimizer state. Memory of CUDA graphs is not known."""
    runs = {name: taking(2 + bytes_, 1, peak_bytes_by_kind={"optimizer": 2e9})
            for name, bytes_ in zip(dry_runs.DRY_CLAIMS["verl.inference_memory_share"].runs, held)}
    row = row_of("verl.inference_memory_share", runs)
    assert row.verdict == verdict and "graphs of decoding" in row.untested[0]
    assert row.decided.endswith("; untested: memory without CUDA graphs")


@pytest.mark.parametrize("changes, wrong", [({}, []), ({"peak_bytes": 9}, ["memory"]), ({"flops": 2}, ["time"]), ({"host_bytes": 9}, ["time"])])
def test_the_reference_is_the_run_that_others_are_held_against(changes, wrong):
    run = {"peak_bytes": 1, "flops": 1, "host_bytes": 0, "nvme_bytes": 0}
    _, parts = advice_judges.reference({"default": run, "named": run | changes}, {})
    assert [name for name, part in parts.items() if part.outcome != "right"] == wrong


@pytest.mark.parametrize("ours, plain, on_host, wrong", [
    ((5, 100), 110, True, []), ((5, 0), 110, True, ["what it offloads"]), ((30, 100), 110, True, ["memory"]), ((5, 100), 20, True, ["memory"]),
    ((12, 0), 14, False, []), ((15, 0), 14, False, ["memory"])])
def test_a_profile_does_what_it_is_for(ours, plain, on_host, wrong):
    """On a card of 24 GB. One that offloads lets in what does not fit without it; one that doesn't takes less than without it."""
    taken, host = ours
    runs = {"without it": taking(plain), "with it": taking(taken, state_bytes={"optimizer": 50e9}) | {"host_bytes": host * 1e9}}
    _, parts = advice_judges.profile(runs, {}, on_host=on_host, fits_alone=not on_host, lacks={"packing": "there is none"})
    assert [name for name, part in parts.items() if part.outcome == "overstated"] == wrong
    assert parts["packing"] == Part(None, "there is none")


@pytest.mark.parametrize("changes, wrong", [({}, []), ({"percent": 94}, ["percent"]), ({"status": "warning"}, ["status"]),
                                            ({"used_gb": 23.5, "percent": 98}, ["status"])])
def test_the_line_of_the_dashboard(changes, wrong):
    """22.8 of 24 GB are 95 %, where it is critical; 98 % are an emergency."""
    _, parts = dry_runs.DRY_CLAIMS["ava.dashboard"].judge({}, ALL["ava.dashboard"]["figures"] | changes)
    assert [name for name, part in parts.items() if part.outcome != "right"] == wrong


def test_what_a_program_does_is_held_by_tests_that_exist():
    row = row_of("ava.threshold_actions", {})
    assert row.verdict == "right" and "(by tests)" in row.evidence[0]
    file = "tests/train/memory/test_manager.cpp"
    _, parts = advice_judges.held_by_tests({}, {}, {file: {"a": "Manager, HasHysteresis", "b": "Manager, HasNone"}})
    assert [part.outcome for part in parts.values()] == ["right", "overstated"]


@pytest.mark.parametrize("flops, outcome", [(1e12, None), (1e18, "overstated")])
def test_a_speed_is_overstated_if_the_card_cannot_reckon_so_fast(flops, outcome):
    """180 tokens/s of 12,288 in a step: 15 GFLOP/s or 15 PFLOP/s; the planner reckons with 28 TFLOP/s."""
    _, parts = dry_judges.rtx_3090({"preset": taking(3) | {"flops": flops}}, ALL["ava.gpu_rtx_3090"]["figures"])
    assert parts["tokens/s"].outcome == outcome and "the card's 28 TFLOP/s" in parts["tokens/s"].found


# Of lines.


def test_a_line_is_short_and_says_which_parts_hold():
    parts = {f"a part of several words, number {number}": Part("right" if number else "overstated", f"{number} GB") for number in range(9)}
    line = lines.line_of(["what was found " * 9], parts)
    assert line == ("overstated: a part of several words, number 0 (0 GB); right: a part of several words, number 1 (1 GB), and 7 more")
    assert lines.line_of(["few words"], {"a": Part("right"), "b": Part("overstated")}) == "few words; right: a; overstated: b"
    assert lines.line_of(["few words"], {"a": Part(None, "why"), "b": Part("right", "1 GB")}) == "few words; right: b; untested: a"
    assert lines.line_of(["few words"], {"a": Part("overstated", "1 GB", "less than claimed")}) == "few words; less than claimed"
    assert lines.line_of(["words " * 30], {"a": Part(None, "why"), "b": Part("right", "1 GB")}) == "right: b (1 GB); untested: a"
    assert lines.line_of(["few words", "more words " * 15], {"a": Part("right")}) == "few words"
    wordy = {"word " * 20 + outcome: Part(outcome) for outcome in ("right", "overstated")}
    assert lines.line_of([""], wordy) == "right: 1 part; overstated: 1 part"


@pytest.mark.parametrize("text", sorted(ROOT.glob("results/*/claims.md")), ids=lambda path: path.parent.name)
def test_lines_of_the_pages_are_short_and_say_what_is_not_right(text):
    cells = [line.removesuffix(" |").split(" | ") for line in text.read_text().splitlines() if line.count(" | ") == 4 and "](#" in line]
    assert len(cells) > 50 and [said for *_, said in cells if not lines.short(said)] == []
    words = ("overstated:", "understated:", "more than claimed:", "less than claimed:", "untested:")
    assert [said for _, verdict, *_, said in cells if verdict == "**right in part**" and not any(word in said for word in words)] == []
    assert [said for _, verdict, *_, said in cells if verdict != "**right**" and not any(map(str.isdigit, said))] == []


def test_a_claim_without_the_batch_that_it_is_judged_by():
    runs = {name: taking(1) for name in dry_runs.DRY_CLAIMS["ava.memory_thresholds"].runs}
    with pytest.raises(records.ReportError, match="ava.memory_thresholds has no figure '448 rows'"):
        row_of("ava.memory_thresholds", runs)
