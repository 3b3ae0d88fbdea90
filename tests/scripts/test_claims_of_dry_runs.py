"""Claims that dry runs and formulas decide: what those made up here say of them, worked out by hand."""
import json
import pathlib
import sys

import pytest
from claim_rows import ALL, row_of, rows_of, run_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import records  # noqa: E402
from report.claims import dry_judges, dry_runs, judge as judging, page, stated as statements  # noqa: E402


def on_card(taken: int, fits: bool) -> dict:
    return {"gpu": {"name": "RTX 4090", "compute_capability": "8.9"}, "peak_bytes": taken // 2, "on_card_bytes": taken,
            "host_bytes": 0, "memory_limit_bytes": 24 << 30, "fits": fits}


def test_a_breakdown_promises_nothing():
    """A share that is smaller than claimed is overstated, a larger one understated; what has no name is overhead."""
    figures_ = ALL["ava.typical_breakdown"]["figures"]
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
    state = {"parameters": 2, "gradients": gradients, "optimizer": 4 if claim == "vibee.zero_0" else 0.5}
    row = row_of(claim, {"rank": {"state_bytes": state, "model": {"parameters": 1}}})
    assert row.verdict == verdict and row.decided.endswith(f"; right: parameters, optimizer; {word} than claimed: gradients, total")


@pytest.mark.parametrize("claim, gradients, outcome", [
    ("vibee.zero_0", 4, "understated"), ("vibee.zero_0", 1, "overstated"), ("vibee.zero_1", 4, "overstated"),
    ("vibee.zero_1", 1, "understated"), ("vibee.breakdown_7b_fp32", 8, "understated")])
def test_the_state_that_nothing_divides_promises_nothing(claim, gradients, outcome):
    run = {"state_bytes": {"parameters": 2, "gradients": gradients, "optimizer": 4}, "model": {"parameters": 1}}
    _, parts = dry_runs.DRY_CLAIMS[claim].judge({"rank": run}, ALL[claim]["figures"])
    assert parts["gradients"].outcome == outcome


@pytest.mark.parametrize("before, after, verdict", [(30.5, 3.34, "understated"), (24, 5, "right"), (30, 9, "off both ways"),
                                                    (15, 9, "overstated")])
def test_a_start_that_is_larger_than_claimed_is_understated(before, after, verdict):
    """24 GB are claimed to become 4 to 6."""
    runs = {"textbook": on_card(before * 1e9, True), "everything": on_card(after * 1e9, True)}
    row = row_of("parrot.moe_nano", runs)
    assert row.verdict == verdict
    assert row.decided.endswith("; more than claimed: before; less than claimed: after") == (verdict == "understated")


def test_wrong_sums_stand_beside_the_verdict_and_hide_nothing():
    entry = ALL["vibee.fits_7b_on_24gb"]
    runs = dict.fromkeys(dry_runs.DRY_CLAIMS[entry["id"]].runs, on_card(2 << 30, True))
    row = row_of(entry["id"], runs)
    assert (row.verdict, row.sums) == ("right", entry["arithmetic"])
    assert "2.15 GB taken, 8 % of the memory of RTX 4090 (compute capability 8.9), of tensors 1.07 GB" in row.evidence[1]
    assert page.line(row)[1:] == ["**right**", "**wrong**", "takes 20 GB", row.decided]
    (row,) = rows_of([entry], {})
    assert (row.verdict, row.sums) == ("untested", entry["arithmetic"])


def test_where_one_of_several_runs_fits_its_card_the_page_says_which():
    claim = "vibee.fits_7b_on_24gb"
    card, host = dry_runs.DRY_CLAIMS[claim].runs
    row = row_of(claim, {card: on_card(50 << 30, False), host: on_card(20 << 30, True) | {"host_bytes": 26 << 30}})
    assert (row.verdict, row.decided) == ("right in part", f"overstated: {card} (53.7 GB); right: {host} (21.5 GB)")
    assert f"{host}: 21.5 GB taken, 83 % of " in row.evidence[1] and "27.9 GB on the host" in row.evidence[1]


@pytest.mark.parametrize("fits, verdict", [(True, "right"), (False, "overstated")])
def test_a_card_that_is_said_to_do(fits, verdict):
    assert row_of("parrot.gpu_24gb", {"preset": on_card(23 << 30, fits)}).verdict == verdict


def test_claims_about_cards_are_estimated_for_cards():
    """That is, for CUDA with its workspaces and context: a preset of a card makes it so on any machine."""
    of_cards = [claim for claim in ALL if claim in dry_runs.DRY_CLAIMS
                and (".gpu_" in claim or ".fits_" in claim or "gb" in claim.split("_")[-1])]
    assert len(of_cards) == 14
    for claim in [*of_cards, "parrot.moe_nano", "ava.typical_breakdown"]:
        for words in dry_runs.DRY_CLAIMS[claim].runs.values():
            assert words[words.index("--preset") + 1].startswith("gpu-"), (claim, words)


def test_dry_runs_are_of_claims_that_exist():
    assert set(dry_runs.DRY_CLAIMS) <= set(ALL)


def test_dry_runs_of_a_deeper_model_decide_memory_and_batches():
    """Of 100 bytes 40 are left, 5 of 60 of activations. Four times the batch takes 30 bytes more, so 7 times takes 100."""
    entry = ALL["ava.gradient_checkpointing"]
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
    entries = [entry for id, entry in ALL.items() if id.startswith("ava.formula_data")]
    assert [row.decided for row in rows_of(entries, {})] == [
        f"17 batches take {bytes_} bytes; less than claimed" for bytes_ in ("104,448", "835,584")]
    assert [row.sums for row in rows_of(entries, {})] == ["the product is 98,304 bytes", "the product is 786,432 bytes"]
    estimate = {"peak_bytes_by_kind": {"activations": 5e8, "activations.attention": 5e7}}
    for id, words in (("ava.formula_activations", "176 MB for all 14 layers"), ("ava.formula_attention", "12.6 MB a layer"),
                      ("ava.formula_flash_attention", "3.15 MB a layer")):
        runs = {name: estimate for name in dry_runs.DRY_CLAIMS[id].runs}
        assert row_of(id, runs).decided.startswith(words)


def test_a_claim_without_the_figure_that_a_dry_run_is_held_against(tmp_path):
    entry = {"id": "ava.data_pipeline", "text": "t", "figures": {"workers": 8}}
    with pytest.raises(records.ReportError, match="ava.data_pipeline has no figure 'prefetch'"):
        rows_of([entry], {})


def test_parts_of_a_claim_that_hold_are_named():
    runs = {name: {"peak_bytes_by_kind": {"parameters": bytes_}, "model": {"parameters": 1}}
            for name, bytes_ in (("fp32", 4), ("bf16", 2), ("fp8", 1.2))}
    row = row_of("vibee.precision_7b", runs)
    assert row.verdict == "right in part"
    assert row.decided == "fp32 28 GB, bf16 14 GB, fp8 8.4 GB; right: fp32, bf16; more than claimed: fp8"
    assert row.evidence[1].startswith("fp32 28 GB, bf16 14 GB, fp8 8.4 GB (dry run: `estimate --config dense-7b`; ")


def test_reading_ahead_by_formula():
    (row,) = rows_of([ALL["ava.data_pipeline"]], {})
    assert row.decided == "33 batches become 17, 48 % less; right: memory; untested: time" and row.verdict == "right in part"


def test_dry_runs_of_other_settings_are_refused(tmp_path):
    run = {"claim": "parrot.gpu_8gb", "run": "preset", "arguments": ["--config", "moe-pico"], "estimate": {}}
    (tmp_path / "dry_runs.json").write_text(json.dumps({"schema": 1, "runs": [run]}))
    with pytest.raises(records.ReportError, match="parrot.gpu_8gb.*--program makes it anew"):
        dry_runs.read(tmp_path / "dry_runs.json")


@pytest.mark.parametrize("away, verdict", [(1.5e9, "right in part"), (5e9, "overstated")])
def test_offload_is_judged_where_all_of_the_state_is_away(away, verdict):
    kinds = dict.fromkeys(("parameters", "master", "gradients", "optimizer"), 2e9)
    runs = {"device": {"peak_bytes": 10e9, "peak_bytes_by_kind": kinds}, "away": {"peak_bytes": away, "peak_bytes_by_kind": kinds}}
    row = row_of("ava.cpu_offload", runs)
    assert (row.verdict, row.untested) == (verdict, [f"time: {dry_judges.NO_BUS}"]) and row.decided.endswith("; untested: time")
