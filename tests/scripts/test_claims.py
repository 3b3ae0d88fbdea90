"""scripts/claims.py: every claim has a verdict, and those of records made up here are worked out by hand."""
import json
import pathlib
import sys

import pytest
import sweep_records as made
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import figures, records  # noqa: E402
from report.claims import dry_judges, dry_runs, findings, judge as judging, lines, outcomes, page, stated as statements, verdicts  # noqa: E402

ALL = yaml.safe_load(page.CLAIMS.read_text())["claims"]


def rows_of(entries: list[dict], dry: dict) -> list[judging.Row]:
    judge = judging.Judge([], [], [], dry)
    return [judge.row(entry) for entry in entries]


def test_every_claim_has_one_verdict_and_a_reason_where_it_is_untested():
    rows = rows_of(ALL, {})
    assert len(rows) == len(ALL) == len({row.id for row in rows})
    for row in rows:
        assert row.verdict in outcomes.VERDICTS
        assert (row.verdict == "untested") == (row.decided == "") and (row.decided or row.untested), row
    text = page.Judged(rows, [], page.read_guides(page.CLAIMS).titles, ["nothing"]).page
    for row in rows:
        assert text.count(f"[{row.id}](#{row.id})") == text.count(f'<details id="{row.id}">') == 1, row.id
    assert all(f"{word} {sum(row.verdict == word for row in rows)}" in text.splitlines()[2] for word in outcomes.VERDICTS)


def test_a_breakdown_promises_nothing():
    """A share that is smaller than claimed is overstated, a larger one understated; what has no name is overhead."""
    (figures_,) = [entry["figures"] for entry in ALL if entry["id"] == "ava.typical_breakdown"]
    kinds = {"parameters": 100, "gradients": 200, "optimizer": 300, "master": 100, "activations": 250, "activations.attention": 50}
    said, parts = dry_judges.breakdown({"preset": {"peak_bytes": 1000, "peak_bytes_by_kind": kinds}}, figures_)
    assert said == "parameters 10 %, gradients 20 %, optimizer 40 %, attention 5 %, activations 20 %, overhead 5 %"
    assert {kind: part.outcome for kind, part in parts.items()} == {
        "parameters": "right", "gradients": "understated", "optimizer": "right", "attention": "right", "activations": "overstated",
        "overhead": "right"}


@pytest.mark.parametrize("claim, gradients, word, verdict", [
    ("vibee.zero_0", 4, "more", "right in part"), ("vibee.zero_0", 1, "less", "right in part"), ("vibee.zero_1", 4, "more", "right in part")])
def test_a_line_says_whether_a_size_is_more_or_less_than_claimed(claim, gradients, word, verdict):
    """Of 14 GB in bf16 28 or 7 are found."""
    (entry,) = [entry for entry in ALL if entry["id"] == claim]
    state = {"parameters": 2, "gradients": gradients, "optimizer": 4 if claim == "vibee.zero_0" else 0.5}
    (row,) = rows_of([entry], {claim: {"rank": {"state_bytes": state, "model": {"parameters": 1}}}})
    assert row.verdict == verdict and row.decided.endswith(f"; right: parameters, optimizer; {word} than claimed: gradients, total")


@pytest.mark.parametrize("claim, gradients, outcome", [
    ("vibee.zero_0", 4, "understated"), ("vibee.zero_0", 1, "overstated"), ("vibee.zero_1", 4, "overstated"),
    ("vibee.zero_1", 1, "understated"), ("vibee.breakdown_7b_fp32", 8, "understated")])
def test_the_state_that_nothing_divides_promises_nothing(claim, gradients, outcome):
    (entry,) = [entry for entry in ALL if entry["id"] == claim]
    run = {"state_bytes": {"parameters": 2, "gradients": gradients, "optimizer": 4}, "model": {"parameters": 1}}
    _, parts = dry_runs.DRY_CLAIMS[claim].judge({"rank": run}, entry["figures"])
    assert parts["gradients"].outcome == outcome


@pytest.mark.parametrize("before, after, verdict", [(30.5, 3.34, "understated"), (24, 5, "right"), (30, 9, "off both ways"),
                                                    (15, 9, "overstated")])
def test_a_start_that_is_larger_than_claimed_is_understated(before, after, verdict):
    """24 GB are claimed to become 4 to 6."""
    (entry,) = [entry for entry in ALL if entry["id"] == "parrot.moe_nano"]
    runs = {"textbook": on_card(before * 1e9, True), "everything": on_card(after * 1e9, True)}
    (row,) = rows_of([entry], {entry["id"]: runs})
    assert row.verdict == verdict
    assert row.decided.endswith("; more than claimed: before; less than claimed: after") == (verdict == "understated")


def on_card(taken: int, fits: bool) -> dict:
    return {"gpu": {"name": "RTX 4090", "compute_capability": "8.9"}, "peak_bytes": taken // 2, "on_card_bytes": taken,
            "host_bytes": 0, "memory_limit_bytes": 24 << 30, "fits": fits}


def test_wrong_sums_stand_beside_the_verdict_and_hide_nothing():
    (entry,) = [entry for entry in ALL if entry["id"] == "vibee.fits_7b_on_24gb"]
    runs = dict.fromkeys(dry_runs.DRY_CLAIMS[entry["id"]].runs, on_card(2 << 30, True))
    (row,) = rows_of([entry], {entry["id"]: runs})
    assert (row.verdict, row.sums) == ("right", entry["arithmetic"])
    assert "2.15 GB taken, 8 % of the memory of RTX 4090 (compute capability 8.9), of tensors 1.07 GB" in row.evidence[1]
    assert page.line(row)[1:] == ["**right**", "**wrong**", "takes 20 GB", row.decided]
    (row,) = rows_of([entry], {})
    assert (row.verdict, row.sums) == ("untested", entry["arithmetic"])


def test_where_one_of_several_runs_fits_its_card_the_page_says_which():
    (entry,) = [entry for entry in ALL if entry["id"] == "vibee.fits_7b_on_24gb"]
    card, host = dry_runs.DRY_CLAIMS[entry["id"]].runs
    (row,) = rows_of([entry], {entry["id"]: {card: on_card(50 << 30, False),
                                             host: on_card(20 << 30, True) | {"host_bytes": 26 << 30}}})
    assert (row.verdict, row.decided) == ("right in part", f"overstated: {card} (53.7 GB); right: {host} (21.5 GB)")
    assert f"{host}: 21.5 GB taken, 83 % of " in row.evidence[1] and "27.9 GB on the host" in row.evidence[1]


@pytest.mark.parametrize("fits, verdict", [(True, "right"), (False, "overstated")])
def test_a_card_that_is_said_to_do(fits, verdict):
    (entry,) = [entry for entry in ALL if entry["id"] == "parrot.gpu_24gb"]
    (row,) = rows_of([entry], {entry["id"]: {"preset": on_card(23 << 30, fits)}})
    assert row.verdict == verdict


@pytest.mark.parametrize("found, word", [
    ([], "untested"), ([None], "untested"), (["right", "right"], "right"), (["right", None], "right in part"),
    (["right", "overstated"], "right in part"), (["overstated", None], "overstated"), (["understated"] * 2, "understated"),
    (["overstated", "understated"], "off both ways"), (["overstated", "understated", "right"], "right in part")])
def test_the_verdict_on_all_figures_of_a_claim(found, word):
    assert outcomes.together(found) == word


def test_bytes_needed_and_sizes():
    assert [outcomes.of_need(value, 10) for value in (8.9, 9, 11, 11.1)] == ["understated", "right", "right", "overstated"]
    assert [outcomes.of_size(value, 10, 20) for value in (8.9, 9, 22, 22.1)] == ["overstated", "right", "right", "understated"]


def test_claims_about_cards_are_estimated_for_cards():
    """That is, for CUDA with its workspaces and context: a preset of a card makes it so on any machine."""
    of_cards = [entry["id"] for entry in ALL if entry["id"] in dry_runs.DRY_CLAIMS
                and (".gpu_" in entry["id"] or ".fits_" in entry["id"] or "gb" in entry["id"].split("_")[-1])]
    assert len(of_cards) == 14
    for claim in [*of_cards, "parrot.moe_nano", "ava.typical_breakdown"]:
        for words in dry_runs.DRY_CLAIMS[claim].runs.values():
            assert words[words.index("--preset") + 1].startswith("gpu-"), (claim, words)


def test_dry_runs_are_of_claims_that_exist():
    assert set(dry_runs.DRY_CLAIMS) <= {entry["id"] for entry in ALL}


def test_the_data_beside_the_code_is_of_claims_that_exist():
    ids, stated = [entry["id"] for entry in ALL], set().union(*(entry.get("figures", {}) for entry in ALL))
    assert [begin for begin in judging.REASONS if not any(id.startswith(begin) for id in ids)] == []
    assert [name for name in statements.NAMES["stated"] if name not in stated] == []


def test_of_several_reasons_the_one_for_the_longest_beginning_counts(monkeypatch):
    monkeypatch.setattr(judging, "REASONS", {"verl.profile": "any", "verl.profile_multi": "several"})
    reasons = {row.id: row.untested for row in rows_of([entry for entry in ALL if entry["id"].startswith("verl.profile")], {})}
    assert reasons == {"verl.profile_constrained": ["any"], "verl.profile_balanced": ["any"],
                       "verl.profile_multi_device": ["several"]}


# Of sweeps.


def sweeps_of(tmp_path: pathlib.Path, rows: list[dict]) -> list[figures.Sweep]:
    return figures.sweeps(records.read_records([made.write(tmp_path / "records.jsonl", rows)])[0])


def swept(tmp_path: pathlib.Path, rows: list[dict], stated: dict, *names: str) -> judging.Row:
    """The verdict on a claim with these figures about techniques of these names."""
    entry = {"id": "a.b", "text": "t", "figures": stated}
    techniques = [statements.Technique(name, [], ["a.b"]) for name in names]
    return judging.Judge(sweeps_of(tmp_path, rows), techniques, statements.claims_of(entry, "A"), {}).row(entry)


def twice(*arguments, **changes) -> list[dict]:
    """The record of two rounds alike."""
    return [made.record(*arguments, round=number, **changes) for number in (1, 2)]


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
    assert row.verdict == "right in part" and row.decided == "right: saves 50 % of the peak, 25 % more time; understated: 0 % more time"
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
    (entry,) = [entry for entry in ALL if entry["id"] == "ava.sparse_attention"]
    row = judging.Judge(sweeps_of(tmp_path, rows), [], [], {}).row(entry)
    assert row.verdict == verdict and "at 4,096 tokens on moe-micro" in row.evidence[-1]
    assert note in "; ".join([row.decided, *row.untested]) and ("already" in row.decided) == ("already" in note)


def test_sparse_attention_of_one_round_decides_nothing(tmp_path):
    rows = [made.in_part("attention over 4096 tokens", "crossover", name, milliseconds, 400, [name], 4096)[0]
            for name, milliseconds in (("flash_attention", 1000), ("block_sparse", 500))]
    (entry,) = [entry for entry in ALL if entry["id"] == "ava.sparse_attention"]
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


# Of cases in which a technique has no effect.


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


def test_a_line_has_an_example_of_each_outcome_of_each_figure(tmp_path):
    """A half and a sixth of the peak are saved, where the claim has 50 % once and 75 % as a factor."""
    rows = [*twice(), *twice("x", activations=200), *twice("y", activations=600)]
    row = swept(tmp_path, rows, {"memory_saved_percent": 50}, "x", "y")
    assert row.decided == "right: saves 50 % of the peak; overstated: saves 17 % of the peak"
    row = swept(tmp_path, rows, {"memory_saved_percent": 50, "reduction_factor": 4, "batch_factor": 2}, "x", "y")
    assert row.decided == ("right: saves 50 % against 50 %; overstated: saves 50 % against 75 %, saves 17 % against 50 %; "
                           "untested: 2 × the batch")


def test_too_many_examples_are_one_of_each_outcome():
    """As of everything on by default: three outcomes of each of two figures."""
    known = [("understated", 90), ("overstated", 54), ("right", 75)]
    claims = [statements.Claim("a.b", "A", "t", figure, "memory saved", low, high, "", "")
              for figure, low, high in (("saves 70 to 80 %", 70, 80), ("2 to 3 × less (50 to 67 %)", 50, 67))]
    measured = [verdicts.Measurement(f"case {value}", "", [findings.Finding(one, None, figures.Interval(value, value, value), outcome)
                                                           for one in claims], 2) for outcome, value in known]
    line = verdicts.Verdicts(measured).line([])
    assert line == "understated: saves 90 % against 70–80 %; overstated: saves 54 % against 70–80 %; right: saves 75 % against 70–80 %"
    assert lines.short(line)


# Of conditions that claims name.


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
    ({"every": 4}, {"layers": 2}, {"layers": 4}), ({"against": "fp16"}, {"precision": "fp32"}, {"precision": "bf16"})])
def test_what_a_claim_is_against_and_of(tmp_path, condition, outside, inside):
    for setting, verdict in ((outside, "untested"), (inside, "overstated")):
        row = swept(tmp_path, sized("x", 1e6, 256, **setting), {"memory_saved_percent": 50, **condition}, "x")
        assert row.verdict == verdict


# Of dry runs and formulas.


def run_of(peak: float, activations: float, flops: float) -> dict:
    return {"peak_bytes": peak, "peak_bytes_by_kind": {"activations": activations}, "flops": flops}


def test_arithmetic_is_counted_and_its_time_stands_beside_it(tmp_path):
    """A step takes twice as long for a third more FLOPs."""
    entries = {name: next(entry for entry in ALL if entry["id"] == name)
               for name in ("vibee.checkpoint_all", "verl.gradient_checkpointing")}
    claimed = [claim for entry in entries.values() for claim in statements.claims_of(entry, "A")]
    rows = [*twice(), *twice("x", milliseconds=2000, activations=0)]
    dry = {"none": run_of(100, 60, 3), "more": run_of(30, 10, 4)}
    judge = judging.Judge(sweeps_of(tmp_path, rows), [statements.Technique("x", [], list(entries))], claimed,
                          {name: dry for name in entries})
    for entry in entries.values():
        row = judge.row(entry)
        assert row.verdict == "right" and "33 % more FLOPs" in row.decided
        assert "added step time 100 %" in row.evidence[-1]


def test_dry_runs_of_a_deeper_model_decide_memory_and_batches():
    """Of 100 bytes 40 are left, 5 of 60 of activations. Four times the batch takes 30 bytes more, so 7 times takes 100."""
    (entry,) = [entry for entry in ALL if entry["id"] == "ava.gradient_checkpointing"]
    runs = {"none": run_of(100, 60, 3), "more": run_of(40, 18, 4), "wider": run_of(70, 20, 16)}
    def judged(parameters: float) -> judging.Row:
        runs["none"] |= {"model": {"parameters": parameters}}
        return judging.Judge([], [], statements.claims_of(entry, "A"), {entry["id"]: runs}).row(entry)
    row = judged(5.7e8)
    assert row.decided == "right: saves 70 % of activation memory; understated: 7.0 × the batch; untested: 10 to 20 % more time"
    assert (row.verdict, row.untested) == ("right in part", ["10 to 20 % more time: not measured here"])
    assert judged(9e7).verdict == "untested", "the claim does not hold below 100M parameters"


def test_formulas_of_the_guides_are_evaluated():
    """8 workers with 2 batches each and the one in use hold 17."""
    entries = [entry for entry in ALL if entry["id"].startswith("ava.formula_data")]
    assert [row.decided for row in rows_of(entries, {})] == [
        f"17 batches take {bytes_} bytes; less than claimed" for bytes_ in ("104,448", "835,584")]
    assert [row.sums for row in rows_of(entries, {})] == ["the product is 98,304 bytes", "the product is 786,432 bytes"]
    estimate = {"peak_bytes_by_kind": {"activations": 5e8, "activations.attention": 5e7}}
    for id, words in (("ava.formula_activations", "176 MB for all 14 layers"), ("ava.formula_attention", "12.6 MB a layer"),
                      ("ava.formula_flash_attention", "3.15 MB a layer")):
        runs = {name: estimate for name in dry_runs.DRY_CLAIMS[id].runs}
        (row,) = rows_of([entry for entry in ALL if entry["id"] == id], {id: runs})
        assert row.decided.startswith(words)


def test_the_time_of_state_in_a_file_is_that_of_all_of_it_together(tmp_path):
    """Five to ten times as long are claimed; weights alone take twice as long, all of the state six times."""
    (entry,) = [entry for entry in ALL if entry["id"] == "vibee.offload_nvme"]
    runs = {name: {"peak_bytes": peak, "peak_bytes_by_kind": dict.fromkeys(("parameters", "master", "gradients", "optimizer"), peak)}
            for name, peak in (("device", 100), ("away", 5))}
    techniques = [statements.Technique("nvme_weights", [], [entry["id"]]),
                  statements.Technique("nvme_state", ["nvme_weights", "nvme_optimizer"], [entry["id"]])]
    rows = [*twice(), *twice("nvme_weights", milliseconds=2000, activations=700)]
    for more, verdict in (([], "right in part"), (twice("nvme_state", milliseconds=6000, activations=200), "right")):
        judge = judging.Judge(sweeps_of(tmp_path, rows + more), techniques, statements.claims_of(entry, "A"), {entry["id"]: runs})
        row = judge.row(entry)
        assert row.verdict == verdict and ("500 % more time" in row.decided) == (verdict == "right"), row


# Of words.


@pytest.mark.parametrize("name, value, text", [
    ("memory_saved_percent", [60, 80], "saves 60 to 80 %"), ("slowdown_percent", -10, "10 % less time"),
    ("slowdown_percent", 0, "0 % more time"),
    ("speed_percent", -1000, "1,000 % fewer tokens/s"), ("reduction_factor", [2, 8], "2 to 8 × less (50 to 88 %)"),
    ("speedup_factor", [2, 3], "2 to 3 × the speed (100 to 200 % more)"), ("claimed_gb", 20, "takes 20 GB"),
    ("gpu_gb", [12, 16], "fits 12 to 16 GB"),
    ("not_below_parameters", 1e8, "not below 100M parameters"), ("from_parameters", 7e9, "from 7B parameters on"),
    ("on_by_default", True, "on by default yes"), ("fp8_gb", 7, "fp8 7 GB")])
def test_a_figure_in_words(name, value, text):
    assert statements.figure_text(name, value) == text


def test_what_is_claimed_leaves_out_what_the_sentence_says():
    said = {entry["id"]: judging.claimed_text(entry) for entry in ALL}
    assert said["ava.gradient_checkpointing"] == ("saves 60 to 80 % of activation memory, 10 to 20 % more time, 2 to 3 × the batch, "
                                                  "not below 100M parameters")
    assert said["vibee.fits_7b_on_24gb"] == "takes 20 GB" and said["ava.optimizer_states"].startswith("AdamW 2 × the weights, Adafactor 1 ×")
    keys = ("memory saved", "slowdown", "reduction", "speedup", "batch factor", "claimed", "device", " -")
    assert [text for text in said.values() if any(key in text for key in keys)] == []


# Of input.


def test_a_claim_without_the_figure_that_a_dry_run_is_held_against(tmp_path):
    entry = {"id": "ava.data_pipeline", "text": "t", "figures": {"workers": 8}}
    with pytest.raises(records.ReportError, match="ava.data_pipeline has no figure 'prefetch'"):
        rows_of([entry], {})


def test_parts_of_a_claim_that_hold_are_named():
    (entry,) = [entry for entry in ALL if entry["id"] == "vibee.precision_7b"]
    runs = {name: {"peak_bytes_by_kind": {"parameters": bytes_}, "model": {"parameters": 1}}
            for name, bytes_ in (("fp32", 4), ("bf16", 2), ("fp8", 1.2))}
    (row,) = rows_of([entry], {entry["id"]: runs})
    assert row.verdict == "right in part"
    assert row.decided == "fp32 28 GB, bf16 14 GB, fp8 8.4 GB; right: fp32, bf16; more than claimed: fp8"
    assert row.evidence[1].startswith("fp32 28 GB, bf16 14 GB, fp8 8.4 GB (dry run: `estimate --config dense-7b`; ")


def test_reading_ahead_by_formula():
    (entry,) = [entry for entry in ALL if entry["id"] == "ava.data_pipeline"]
    (row,) = rows_of([entry], {})
    assert row.decided == "33 batches become 17, 48 % less; right: memory; untested: time" and row.verdict == "right in part"


def test_dry_runs_of_other_settings_are_refused(tmp_path):
    run = {"claim": "parrot.gpu_8gb", "run": "preset", "arguments": ["--config", "moe-pico"], "estimate": {}}
    (tmp_path / "dry_runs.json").write_text(json.dumps({"schema": 1, "runs": [run]}))
    with pytest.raises(records.ReportError, match="parrot.gpu_8gb.*--program makes it anew"):
        dry_runs.read(tmp_path / "dry_runs.json")


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


def test_what_was_found_of_each_figure_is_known_by_its_name(tmp_path):
    rows = [*twice(), *twice("x", milliseconds=1250, activations=200)]
    row = swept(tmp_path, rows, {"memory_saved_percent": 50, "slowdown_percent": 80}, "x")
    assert row.found == {"memory_saved_percent": "saves 50 % of the peak", "slowdown_percent": "25 % more time"}
    alone = swept(tmp_path, [made.record(), made.record("x", activations=200)], {"slowdown_percent": 80}, "x")
    assert alone.found == {"slowdown_percent": "0 % more time (one round alone)"}
    (entry,) = [entry for entry in ALL if entry["id"] == "vibee.breakdown_7b_fp32"]
    state = {"parameters": 28e9, "gradients": 28e9, "optimizer": 60e9}
    run = {"state_bytes": state, "model": {"parameters": 7e9}}
    (row,) = rows_of([entry], {entry["id"]: dict.fromkeys(dry_runs.DRY_CLAIMS[entry["id"]].runs, run)})
    assert row.found == {"parameters": "28 GB", "gradients": "28 GB", "optimizer": "60 GB", "total": "116 GB"}


@pytest.mark.parametrize("away, verdict", [(1.5e9, "right in part"), (5e9, "overstated")])
def test_offload_is_judged_where_all_of_the_state_is_away(away, verdict):
    (entry,) = [entry for entry in ALL if entry["id"] == "ava.cpu_offload"]
    kinds = dict.fromkeys(("parameters", "master", "gradients", "optimizer"), 2e9)
    runs = {"device": {"peak_bytes": 10e9, "peak_bytes_by_kind": kinds}, "away": {"peak_bytes": away, "peak_bytes_by_kind": kinds}}
    (row,) = rows_of([entry], {entry["id"]: runs})
    assert (row.verdict, row.untested) == (verdict, ["time: not measured here"]) and row.decided.endswith("; untested: time")
