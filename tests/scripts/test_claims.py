"""scripts/claims.py: every claim has a verdict, and what its line says."""
import pathlib
import sys

import pytest
from claim_rows import ALL, row_of, rows_of, swept, twice
import sweep_records as made

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import figures  # noqa: E402
from report.claims import dry_runs, findings, judge as judging, lines, outcomes, page, stated as statements, verdicts  # noqa: E402


def test_every_claim_has_one_verdict_and_a_reason_where_it_is_untested():
    rows = rows_of(list(ALL.values()), {})
    assert len(rows) == len(ALL) == len({row.id for row in rows})
    for row in rows:
        assert row.verdict in outcomes.VERDICTS
        assert (row.verdict == "untested") == (row.decided == "") and (row.decided or row.untested), row
    text = page.Judged(rows, [], page.read_guides(page.CLAIMS).titles, ["nothing"]).page([])
    for row in rows:
        assert text.count(f"[{row.id}](#{row.id})") == text.count(f'<details id="{row.id}">') == 1, row.id
    assert all(f"{word} {sum(row.verdict == word for row in rows)}" in text.splitlines()[2] for word in outcomes.VERDICTS)


@pytest.mark.parametrize("found, word", [
    ([], "untested"), ([None], "untested"), (["right", "right"], "right"), (["right", None], "right in part"),
    (["right", "overstated"], "right in part"), (["overstated", None], "overstated"), (["understated"] * 2, "understated"),
    (["overstated", "understated"], "off both ways"), (["overstated", "understated", "right"], "right in part")])
def test_the_verdict_on_all_figures_of_a_claim(found, word):
    assert outcomes.together(found) == word


def test_bytes_needed_and_sizes():
    assert [outcomes.of_need(value, 10) for value in (8.9, 9, 11, 11.1)] == ["understated", "right", "right", "overstated"]
    assert [outcomes.of_size(value, 10, 20) for value in (8.9, 9, 22, 22.1)] == ["overstated", "right", "right", "understated"]


def test_the_data_beside_the_code_is_of_claims_that_exist():
    ids, stated = list(ALL), set().union(*(entry.get("figures", {}) for entry in ALL.values()))
    assert [begin for begin in judging.REASONS if not any(id.startswith(begin) for id in ids)] == []
    assert [name for name in statements.NAMES["stated"] if name not in stated] == []


def test_of_several_reasons_the_one_for_the_longest_beginning_counts(monkeypatch):
    monkeypatch.setattr(judging, "REASONS", {"verl.profile": "any", "verl.profile_multi": "several"})
    reasons = {row.id: row.untested for row in rows_of([entry for id, entry in ALL.items() if id.startswith("verl.profile")], {})}
    assert reasons == {"verl.profile_constrained": ["any"], "verl.profile_balanced": ["any"],
                       "verl.profile_multi_device": ["several"]}


def test_a_line_has_an_example_of_each_outcome_of_each_figure(tmp_path):
    """A half and a sixth of the peak are saved, where the claim has 50 % once and 75 % as a factor."""
    rows = [*twice(), *twice("x", activations=200), *twice("y", activations=600)]
    row = swept(tmp_path, rows, {"memory_saved_percent": 50}, "x", "y")
    assert row.decided == "right: saves 50 % of the peak by `x`; overstated: saves 17 % of the peak by `y`"
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
    said = {id: judging.claimed_text(entry) for id, entry in ALL.items()}
    assert said["ava.gradient_checkpointing"] == ("saves 60 to 80 % of activation memory, 10 to 20 % more time, 2 to 3 × the batch, "
                                                  "not below 100M parameters")
    assert said["vibee.fits_7b_on_24gb"] == "takes 20 GB" and said["ava.optimizer_states"].startswith("AdamW 2 × the weights, Adafactor 1 ×")
    keys = ("memory saved", "slowdown", "reduction", "speedup", "batch factor", "claimed", "device", " -")
    assert [text for text in said.values() if any(key in text for key in keys)] == []


def test_what_was_found_of_each_figure_is_known_by_its_name(tmp_path):
    rows = [*twice(), *twice("x", milliseconds=1250, activations=200)]
    row = swept(tmp_path, rows, {"memory_saved_percent": 50, "slowdown_percent": 80}, "x")
    assert row.found == {"memory_saved_percent": "saves 50 % of the peak", "slowdown_percent": "25 % more time"}
    alone = swept(tmp_path, [made.record(), made.record("x", activations=200)], {"slowdown_percent": 80}, "x")
    assert alone.found == {"slowdown_percent": "0 % more time (one round alone)"}
    state = {"parameters": 28e9, "gradients": 28e9, "optimizer": 60e9}
    run = {"state_bytes": state, "model": {"parameters": 7e9}}
    claim = "vibee.breakdown_7b_fp32"
    row = row_of(claim, dict.fromkeys(dry_runs.DRY_CLAIMS[claim].runs, run))
    assert row.found == {"parameters": "28 GB", "gradients": "28 GB", "optimizer": "60 GB", "total": "116 GB"}
