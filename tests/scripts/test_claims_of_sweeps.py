"""Claims that sweeps decide, under the conditions that they name: what records made up here say of them, worked out by hand."""
import pathlib
import sys

import pytest
from claim_rows import ALL, run_of, swept, twice
from report_calls import sweeps_of
import sweep_records as made

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report.claims import judge as judging, stated as statements  # noqa: E402


def test_a_claim_is_right_where_all_cases_have_all_of_its_figures(tmp_path):
    """1200 MiB become 600, of activations 800 become 200; a step takes 1250 ms for 1000, or as long as before."""
    stated = {"memory_saved_percent": 50, "slowdown_percent": 25}
    rows = [*twice(), *twice("half", milliseconds=1250, activations=200), *twice("other", activations=200)]
    row = swept(tmp_path, rows, stated, "half")
    assert (row.verdict, row.untested, row.claimed) == ("right", [], "saves 50 %, 25 % more time")
    assert row.decided == "saves 50 % of the peak, 25 % more time (`half` on moe-micro)"
    assert row.evidence[-1] == ("`half` on moe-micro: saves 75 % of activation memory, 0 % of state, 50 % of the whole peak; "
                                "added step time 25 %")
    row = swept(tmp_path, rows, stated, "half", "other")
    assert row.verdict == "right in part" and row.decided == (
        "right: saves 50 % of the peak, 25 % more time by `half`; understated: 0 % more time by `other`")
    assert row.evidence[-1] == "in all: memory: right; time: right in 1 case, understated in 1 case"
    row = swept(tmp_path, rows, stated, "other")
    assert row.verdict == "right in part" and row.decided == (
        "right: saves 50 % of the peak; understated: 0 % more time; by `other` on moe-micro")


@pytest.mark.parametrize("stated, verdict", [
    ({"memory_saved_percent": 80}, "overstated"), ({"memory_saved_percent": 20}, "understated"),
    ({"slowdown_percent": 10}, "overstated"), ({"slowdown_percent": 50}, "understated"),
    ({"slowdown_percent": -10}, "overstated"), ({"speed_percent": -5}, "overstated"), ({"speed_percent": -50}, "understated"),
    ({"memory_saved_percent": 80, "slowdown_percent": 50}, "off both ways")])
def test_less_good_than_claimed_is_overstated_and_more_understated(tmp_path, stated, verdict):
    """Half of the peak is saved for a quarter more time."""
    rows = [*twice(), *twice("x", milliseconds=1250, activations=200)]
    assert swept(tmp_path, rows, stated, "x").verdict == verdict


def test_a_saving_is_stated_of_the_memory_that_is_named_first(tmp_path):
    rows = [made.record(), made.record("half", activations=200)]
    row = swept(tmp_path, rows, {"memory_saved_percent": 50, "of": "attention memory"}, "half")
    assert row.evidence[-1].startswith("`half` on moe-micro: saves 75 % of attention memory, 75 % of activation memory, ")
    assert (row.verdict, row.decided) == ("understated", "saves 75 % of attention memory (`half` on moe-micro)")


def test_offload_to_the_host_has_no_time_on_a_cpu(tmp_path):
    stated = {"memory_saved_percent": 50, "slowdown_factor": [2, 3]}
    lacking = ["2 to 3 × the time (100 to 200 % more): not measured here"]
    for gpu, expected in ((None, ("right in part", lacking)), ("a GPU", ("right", []))):
        machine = {"cpu": "a CPU", "cores": 2, "gpu": gpu}
        rows = [*twice(machine=machine), *twice("host_x", milliseconds=2500, activations=200, machine=machine)]
        row = swept(tmp_path, rows, stated, "host_x")
        assert (row.verdict, row.untested) == expected


@pytest.mark.parametrize("ratios, verdict, note", [
    ((1.2, 0.9, 0.5), "right", ""), ((0.9, 0.9, 0.5), "right", "already from 512 tokens on"),
    ((0.9, 0.9, 1.2), "right in part", ""), ((0.9, 1.1, 1.2), "overstated", ""),
    ((1.2, 0.9, 1), "untested", "from 2,048 tokens on the interval is too wide")])
def test_sparse_attention_beside_flash_attention(tmp_path, ratios, verdict, note):
    """Step times over flash attention's at 512, 2048 and 4096 tokens; a claim "from 2048 tokens on" is of 2048 too."""
    rows = []
    for sequence, ratio in zip((512, 2048, 4096), ratios):
        for name, milliseconds in (("flash_attention", 1000), ("block_sparse", 1000 * ratio)):
            rows += made.in_part(f"attention over {sequence} tokens", "crossover", name, milliseconds, 400, [name], sequence)
    entry = ALL["ava.sparse_attention"]
    row = judging.Judge(sweeps_of(tmp_path, rows), [], [], {}).row(entry)
    assert row.verdict == verdict and "at 4,096 tokens on moe-micro" in row.evidence[-1]
    assert note in "; ".join([row.decided, *row.untested]) and ("already" in row.decided) == ("already" in note)


def test_sparse_attention_of_one_round_decides_nothing(tmp_path):
    rows = [made.in_part("attention over 4096 tokens", "crossover", name, milliseconds, 400, [name], 4096)[0]
            for name, milliseconds in (("flash_attention", 1000), ("block_sparse", 500))]
    entry = ALL["ava.sparse_attention"]
    row = judging.Judge(sweeps_of(tmp_path, rows), [], [], {}).row(entry)
    assert row.verdict == "untested" and "2.00 × (one round)" in row.evidence[-1] and "two rounds" in row.untested[0]


def test_a_time_of_one_round_decides_nothing(tmp_path):
    """However far off, or however near. The bytes of one round count as ever."""
    for milliseconds in (1250, 9000):
        rows = [made.record(), made.record("x", milliseconds=milliseconds, activations=200)]
        row = swept(tmp_path, rows, {"slowdown_percent": 25}, "x")
        assert (row.verdict, row.untested) == ("untested", ["25 % more time: one round alone"])
        assert f"{milliseconds / 10 - 100:.0f} % (one round)" in row.evidence[-1]
        row = swept(tmp_path, rows, {"memory_saved_percent": 50, "slowdown_percent": 25}, "x")
        assert (row.verdict, row.untested) == ("right in part", ["25 % more time: one round alone"])
        assert row.decided == "right: saves 50 % of the peak; untested: 25 % more time; by `x` on moe-micro"
    rows = [*twice(), *twice("x", milliseconds=1250), made.record("y", milliseconds=9000)]
    assert swept(tmp_path, rows, {"slowdown_percent": 25}, "x", "y").verdict == "right"


def test_an_interval_across_the_end_of_a_claim_decides_nothing(tmp_path):
    """Steps of 900 to 1500 ms for 1000, where 10 to 20 % more are claimed."""
    rows = [*twice(), *(made.record("x", number, ms) for number, ms in ((1, 900), (2, 1500)))]
    row = swept(tmp_path, rows, {"slowdown_percent": [10, 20]}, "x")
    assert row.verdict == "untested" and "the interval is too wide" in row.untested[0]


def test_a_combination_of_which_one_part_alone_peaks_as_low_decides_nothing(tmp_path):
    """600 MiB of 1200 with both parts; with one alone 600 as well, or 900."""
    for alone, verdict in ((200, "untested"), (500, "right")):
        rows = [*twice(), *twice("a", activations=alone), *twice("b", activations=700), *twice("both", activations=200)]
        techniques = [statements.Technique("a", [], []), statements.Technique("b", [], []),
                      statements.Technique("both", ["a", "b"], ["a.b"])]
        entry = {"id": "a.b", "text": "t", "figures": {"memory_saved_percent": 50}}
        row = judging.Judge(sweeps_of(tmp_path, rows), techniques, statements.claims_of(entry, "A"), {}).row(entry)
        assert row.verdict == verdict and ("`a` alone peaks as low" in " ".join(row.untested)) == (verdict == "untested")


def test_models_of_too_few_layers_cannot_tell_amounts_of_recomputation_apart(tmp_path):
    for full, verdict in ((200, "untested"), (100, "right")):
        rows = [*twice(), *twice("half", activations=200), *twice("full", activations=full)]
        techniques = [statements.Technique("half", [], ["a.b"], {"activations.checkpoint": "ratio"}),
                      statements.Technique("full", [], [], {"activations.checkpoint": "full"})]
        entry = {"id": "a.b", "text": "t", "figures": {"memory_saved_percent": 50}}
        row = judging.Judge(sweeps_of(tmp_path, rows), techniques, statements.claims_of(entry, "A"), {}).row(entry)
        assert row.verdict == verdict and ("`full` peaks at the same bytes" in " ".join(row.untested)) == (verdict == "untested")


def sized(case: str, parameters: float, sequence: int, precision: str = "fp32", layers: int = 8, **changes) -> list[dict]:
    """Of a model and a part of the plan of its own, with the baseline."""
    resolved = {"train": {"sequence": sequence, "micro_batch": 4}, "model": {"layers": layers},
                "precision": {"compute": precision}}
    rows = [*twice(sweep=case), *twice(case, sweep=case, **changes)]
    for row in rows:
        row["summary"] |= {"model": {"parameters": parameters}, "settings": resolved}
    return rows


def test_cases_outside_of_what_a_claim_names_do_not_count_against_it(tmp_path):
    stated = {"memory_saved_percent": 50, "from_parameters": 1e9, "from_sequence": 512}
    large, long = sized("large", 1e9, 256, activations=200), sized("long", 1e6, 512, activations=200)
    small = sized("small", 1e6, 256)  # saves nothing
    row = swept(tmp_path, large + long + small, stated, "large", "long", "small")
    assert (row.verdict, row.untested) == ("right", [])
    (small_text,) = [one for one in row.evidence if one.startswith("`small` on moe-micro (small), 8 layers, 4 × 256 tokens: saves 0 %")]
    assert small_text.endswith("; not counted: not from 1B parameters or 512 tokens on")
    row = swept(tmp_path, small, stated, "small")
    assert row.verdict == "untested" and "every case lies outside of the claim" in row.untested[0]


def test_a_case_where_a_claim_says_that_it_does_not_hold_shows_so(tmp_path):
    stated = {"memory_saved_percent": 50, "not_below_parameters": 1e8}
    rows = sized("large", 1e9, 256, activations=200) + sized("small", 1e6, 256)
    row = swept(tmp_path, rows, stated, "large", "small")
    assert row.verdict == "right"
    assert row.evidence[-1] == "below 100M parameters it does not hold, as it says: `small` on moe-micro (small)"
    assert swept(tmp_path, sized("small", 1e6, 256), stated, "small").verdict == "untested"


@pytest.mark.parametrize("condition, outside, inside", [
    ({"every": 4}, {"layers": 2}, {"layers": 4}), ({"every": 4}, {"layers": 6}, {"layers": 16}),
    ({"layers": [0, 4, 8, 12]}, {"layers": 12}, {"layers": 13}), ({"against": "fp16"}, {"precision": "fp32"}, {"precision": "bf16"})])
def test_what_a_claim_is_against_and_of(tmp_path, condition, outside, inside):
    for setting, verdict in ((outside, "untested"), (inside, "overstated")):
        row = swept(tmp_path, sized("x", 1e6, 256, **setting), {"memory_saved_percent": 50, **condition}, "x")
        assert row.verdict == verdict


def test_arithmetic_is_counted_and_its_time_stands_beside_it(tmp_path):
    """A step takes twice as long for a third more FLOPs."""
    entries = {name: ALL[name] for name in ("vibee.checkpoint_all", "verl.gradient_checkpointing")}
    claimed = [claim for entry in entries.values() for claim in statements.claims_of(entry, "A")]
    rows = [*twice(), *twice("x", milliseconds=2000, activations=0)]
    dry = {"none": run_of(100, 60, 3), "more": run_of(30, 10, 4)}
    judge = judging.Judge(sweeps_of(tmp_path, rows), [statements.Technique("x", [], list(entries))], claimed,
                          {name: dry for name in entries})
    for entry in entries.values():
        row = judge.row(entry)
        assert row.verdict == "right" and "33 % more FLOPs" in row.decided
        assert "added step time 100 %" in row.evidence[-1]


def test_the_time_of_state_in_a_file_is_that_of_all_of_it_together(tmp_path):
    """Five to ten times as long are claimed; weights alone take twice as long, all of the state six times."""
    entry = ALL["vibee.offload_nvme"]
    runs = {name: {"peak_bytes": peak, "peak_bytes_by_kind": dict.fromkeys(("parameters", "master", "gradients", "optimizer"), peak)}
            for name, peak in (("device", 100), ("away", 5))}
    techniques = [statements.Technique("nvme_weights", [], [entry["id"]]),
                  statements.Technique("nvme_state", ["nvme_weights", "nvme_optimizer"], [entry["id"]])]
    rows = [*twice(), *twice("nvme_weights", milliseconds=2000, activations=700)]
    for more, verdict in (([], "right in part"), (twice("nvme_state", milliseconds=6000, activations=200), "right")):
        judge = judging.Judge(sweeps_of(tmp_path, rows + more), techniques, statements.claims_of(entry, "A"), {entry["id"]: runs})
        row = judge.row(entry)
        assert row.verdict == verdict and ("500 % more time" in row.decided) == (verdict == "right"), row


@pytest.mark.parametrize("activations, settings, counted", [
    (800, {"activations.checkpoint": "full"}, True), (200, {"activations.checkpoint": "full"}, False),
    (200, {"activations.checkpoint": "full", "precision.compute": "bf16"}, True)])
def test_a_saving_of_the_peak_needs_activations_that_are_as_much_of_it(tmp_path, activations, settings, counted):
    """Of the baseline's peak 67 or 17 %, where 50 % is said to be saved by what acts on activations alone."""
    rest = 1200 - activations
    rows = [made.record(activations=activations, rest=rest), made.record("x", activations=0, rest=rest)]
    entry = {"id": "a.b", "text": "t", "figures": {"memory_saved_percent": 50}}
    techniques = [statements.Technique("x", [], ["a.b"], settings)]
    row = judging.Judge(sweeps_of(tmp_path, rows), techniques, statements.claims_of(entry, "A"), {}).row(entry)
    assert (row.verdict != "untested") == counted
    assert ("activations are 17 % of the baseline's peak" in row.evidence[-1]) == (not counted)


def test_what_was_measured_of_a_claim_without_figures_is_there_to_read(tmp_path):
    entry = {"id": "ava.oom_at_times", "text": "t"}
    techniques = [statements.Technique("empty_cache", [], [entry["id"]])]
    rows = [*twice(), *twice("empty_cache", milliseconds=500, activations=200)]
    row = judging.Judge(sweeps_of(tmp_path, rows), techniques, [], {}).row(entry)
    assert row.verdict == "untested" and row.evidence == [
        "`empty_cache` on moe-micro: saves 75 % of activation memory, 0 % of state, 50 % of the whole peak; added step time -50 %"]
