"""What the report, the page of claims and scripts/report_ranks.py say of cases on ranks."""
import json
import math
import pathlib
import subprocess
import sys

import pytest
from claim_rows import ALL
import rank_records
from report_calls import sweeps_of
import sweep_records as made

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import figures, rank_pages, rank_tables, rendering, sweep_parts  # noqa: E402
from report.claims import dry_runs, judge as judging, rank_speeds, stated as statements  # noqa: E402


def test_a_table_of_ranks_has_the_fullest_rank_and_the_time_of_all(tmp_path):
    skipped = rank_records.of_ranks("zero_3", 2, 1, 1, "1Gbit", by_rank=[], status="skipped", message="no tc here", summary=None, steps=[])
    sweeps = sweeps_of(tmp_path, [*rank_records.sweep(), skipped])
    assert sweep_parts.together(sweeps) == [], "ranks stand in no picture of one device"
    text = " ".join(rendering.to_markdown(rank_pages.blocks(sweeps)).split())
    # 2048 tokens in 1.25 s of round 1 and 1.375 s of round 2, 0.8 of the reference's speed; 600 MiB of its 1200
    assert "| zero_1 | 0.50 × | 0.80 × | 1,564 | 2 | 600.00 MiB | 600.00 MiB (+0.0%) | 2.00 MiB | 25% |" in text
    assert "| baseline, 2 micro-batches | – | – | 1,955 | 1 | 1.17 GiB |" in text
    assert "| zero_3 over 1Gbit | **skipped**: no tc here | | | 2 |" in text


def test_ranks_in_a_sweep_of_every_row_leave_the_pictures_to_the_others(tmp_path):
    rows = [*made.sweep(1), *(row | {"sweep": ""} for row in rank_records.sweep())]
    (whole,) = sweeps_of(tmp_path, rows)
    (shown,) = sweep_parts.together([whole])
    assert {case.family for case in shown.cases} == {"single"} and len(shown.cases) == len(whole.cases) - 5


STAGE = {"parameters": 40, "gradients": 40, "peak_bytes": 100}
BY_STAGE = [{"zero": 0, "optimizer": 80, **STAGE}, *({"zero": zero, "optimizer": 16, **STAGE, "peak_bytes": 90} for zero in (1, 2, 3))]


def ava_zero_1(folder: pathlib.Path, rows: list[dict]) -> judging.Row:
    runs = {name: {"ranks": {"count": 2, "by_stage": BY_STAGE}} for name in dry_runs.DRY_CLAIMS["ava.zero_1"].runs}
    techniques = [statements.Technique("zero_1", [], ["ava.zero_1"])]
    return judging.Judge(sweeps_of(folder, rows), techniques, [], {"ava.zero_1": runs}).row(ALL["ava.zero_1"])


def test_what_zero_saves_is_of_a_dry_run_and_its_speed_beside_undivided_ranks(tmp_path):
    """40 % of the state are saved, where 33 are claimed, and a quarter of the speed is lost over the slow link alone, where none is."""
    row = ava_zero_1(tmp_path, rank_records.sweep())
    assert row.verdict == "right in part" and "saves 40 % of state (10 % of the peak) on 2 ranks" in row.evidence[1]
    assert row.evidence[2] == ("tokens/s beside ranks that divide nothing: 0 % more on 2 ranks over an unlimited link, "
                               "25 % fewer on 2 ranks over 1Gbit")
    assert "; right: its speed on 2 ranks over an unlimited link; overstated: its speed on 2 ranks over 1Gbit" in row.decided
    assert row.found["its speed on 2 ranks over 1Gbit"] == "25 % fewer tokens/s"
    assert row.decided.startswith("understated: on 2 ranks, and 3 more") and "four ranks give 2.29, 2.91 and 4" in row.sums


def test_without_measured_ranks_the_speed_of_zero_is_open(tmp_path):
    row = ava_zero_1(tmp_path, [made.record()])
    assert (row.verdict, row.untested) == ("understated", ["its speed: not measured here"]) and row.decided.endswith("; untested: its speed")
    assert row.runs_decide
    (speed,) = rank_speeds.judged([], "zero_3", -15, 7e9)[1].values()
    assert speed.found == "no ranks trained 7,000,000,000 parameters" and not speed.runs_decide


@pytest.mark.parametrize("speed, text", [
    ((-1, 5, 10), "5 % more (1 % fewer to 10 % more)"), ((2, 5, 12), "5 % more (2 to 12)"), ((-12, -5, -2), "5 % fewer (12 to 2)"),
    ((0, 0, 0), "0 % more")])
def test_a_change_of_speed_says_its_direction(speed, text):
    low, value, high = speed
    assert rank_speeds.changed(figures.Interval(value, low, high)) == text


@pytest.mark.parametrize("kind, verdict, ending", [
    (None, "right", "at 7B parameters"),
    ("gradients", "right in part", "; right: parameters, optimizer; less than claimed: gradients, total")])
def test_each_kind_of_state_on_a_rank_is_held_against_the_claim(kind, verdict, ending):
    entry = {name: value for name, value in ALL["vibee.zero_1"].items() if name != "arithmetic"}
    state = {"parameters": 2, "gradients": 2, "optimizer": 0.5} | ({kind: 0.5} if kind else {})
    runs = {"rank": {"state_bytes": state, "model": {"parameters": 1}}}
    row = judging.Judge([], [], [], {entry["id"]: runs}).row(entry)
    assert row.verdict == verdict and row.decided.endswith(ending)
    assert row.decided.startswith("parameters 14 GB, gradients ")


def test_cards_of_claims_are_those_that_are_dry_run():
    """As many ranks as the claim has cards."""
    for claim in ("vibee.fits_70b_on_8x80gb", "vibee.fits_405b_on_128_h100"):
        for words in dry_runs.DRY_CLAIMS[claim].runs.values():
            ranks = [int(word.partition("=")[2]) for word in words if word.startswith(("parallel.data", "parallel.tensor", "parallel.pipe"))]
            assert math.prod(ranks) == ALL[claim]["figures"]["devices"], words


@pytest.mark.parametrize("claim, peaks, verdict", [
    ("vibee.fits_70b_on_8x80gb", (90, 90, 70), "right in part"), ("vibee.fits_70b_on_8x80gb", (90, 90, 90), "overstated"),
    ("vibee.fits_405b_on_128_h100", (90, 90), "overstated"), ("vibee.fits_405b_on_128_h100", (79, 70), "right")])
def test_whether_the_fullest_of_several_ranks_fits_its_card(claim, peaks, verdict):
    entry = {name: value for name, value in ALL[claim].items() if name != "arithmetic"}
    card = {"gpu": {"name": "a card", "compute_capability": "9.0"}, "host_bytes": 0}
    runs = {name: {"on_card_bytes": 1e9 * peak, **card} for name, peak in zip(dry_runs.DRY_CLAIMS[claim].runs, peaks)}
    row = judging.Judge([], [], [], {claim: runs}).row(entry)
    assert row.verdict == verdict and f"fp32 masters and moments ({peaks[0]} GB)" in row.decided
    assert "; a card has 80 GB (dry run: " in row.evidence[1]


@pytest.mark.parametrize("share, verdict", [(0.25, "right"), (0.5, "overstated")])
def test_ranks_that_share_a_model_hold_their_part_of_its_state(share, verdict):
    runs = {name: {"state_bytes": {"parameters": 100 * (1 if name == "one rank" else share)}}
            for name in dry_runs.DRY_CLAIMS["nemo.model_parallelism"].runs}
    row = judging.Judge([], [], [], {"nemo.model_parallelism": runs}).row(ALL["nemo.model_parallelism"])
    assert row.verdict == verdict and f"4 stages hold {100 * share:.0f} % of the state each" in row.decided


@pytest.mark.parametrize("changed, verdict", [
    ({}, "right"), ({"fits": False}, "overstated"), ({"peak_bytes": 16e9}, "overstated"), ({"sent_bytes": 0}, "overstated")])
def test_a_preset_of_ranks_fits_holds_a_share_and_sends(changed, verdict):
    alone = {"peak_bytes": 16e9, "sent_bytes": 0, "memory_limit_bytes": 12e9, "fits": False}
    runs = {"ranks": {**alone, "peak_bytes": 4e9, "sent_bytes": 2e9, "fits": True} | changed, "one rank": alone}
    nemo, verl = (judging.Judge([], [], [], {claim: runs}).row(ALL[claim])
                  for claim in ("nemo.preset_large_model", "verl.profile_multi_device"))
    assert (nemo.verdict, nemo.untested) == (verdict, [])
    assert verl.verdict == ("right in part" if verdict == "right" else verdict)
    assert verl.untested == (["a frozen reference beside ranks that share each matrix: our preset has none"] if verdict == "right" else [])
    assert nemo.evidence[1].startswith(f"the fullest rank takes {runs['ranks']['peak_bytes'] / 1e9:.3g} GB of 12 GB, ")


def test_presets_of_ranks_are_dry_run_beside_one_rank():
    """The same run, in which each axis that the claim names has one rank."""
    for claim in ("nemo.preset_memory_efficient", "nemo.preset_large_model", "verl.profile_multi_device"):
        ranks, alone = (dry_runs.DRY_CLAIMS[claim].runs[name] for name in ("ranks", "one rank"))
        assert [word for word in alone if not word.startswith("parallel.")] == [word for word in ranks if not word.startswith("parallel.")]
        axes = [axis for axis in ("tensor", "pipeline") if any(figure.endswith(f"{axis}_parallel") for figure in ALL[claim]["figures"])]
        assert axes and all(f"parallel.{axis}=1" in alone for axis in axes)


def test_weights_that_are_kept_are_gathered_once():
    for kept, verdict in ((100, "right"), (150, "overstated")):
        runs = {"ZeRO-2": {"sent_bytes": 100}, "resharded": {"sent_bytes": 150}, "kept": {"sent_bytes": kept}}
        row = judging.Judge([], [], [], {"verl.reshard_after_forward": runs}).row(ALL["verl.reshard_after_forward"])
        assert row.verdict == verdict, row


LAYOUT = {"step_ms": 100, "efficiency": 1, "exchange_ms": 1, "hidden": 0, "sent_bytes": 1, "peak_bytes": 1, "estimated_peak_bytes": 1}


def test_the_page_of_ranks_shows_what_the_sweep_in_its_folder_held(tmp_path):
    made.write(tmp_path / "rank_rows.jsonl", rank_records.sweep())
    ranks = {"kind": "ranks", "machine": "m", "commit": "c", "date": "2026-01-01", "command": ["x"], "model": "m", "ranks": 2, "settings": [],
             "rounds": 1, "alone_ms": 100, "exchanges": {}, "layouts": [{"zero": zero, "link": "unlimited", **LAYOUT} for zero in (0, 2, 3)]}
    made.write(tmp_path / "ranks.jsonl", [ranks])
    runs = [{"claim": "ava.zero_1", "run": f"{count} ranks", "arguments": dry_runs.DRY_CLAIMS["ava.zero_1"].runs[f"{count} ranks"],
             "estimate": {"ranks": {"count": count, "by_stage": [one | {"peak_bytes": 1e6 * count} for one in BY_STAGE]}}} for count in (2, 8)]
    (tmp_path / "dry_runs.json").write_text(json.dumps({"schema": 1, "runs": runs}))
    done = subprocess.run([sys.executable, ROOT / "scripts/report_ranks.py", tmp_path / "ranks.jsonl"], check=True, capture_output=True,
                          text=True)
    text = " ".join(done.stdout.split())
    assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG") and "](ranks.png)" in text
    # 1200 MiB of one rank; of two the fullest: 700 undivided, 600 with ZeRO-1
    assert "| 1 | 1,258.3 (16.00) |" in text and "| 2 | 734.0 (16.00) | 629.1 (12.00) | | |" in text
    assert "| 8, predicted | 8.0 | 8.0 | 8.0 | 8.0 |" in text and "2, predicted" not in text
    assert "missed no measured peak by more than 4 bytes" in text
    assert rank_tables.held([], {}) == {}
