"""scripts/claims.py: every claim has a verdict, and those of records made up here are worked out by hand."""
import json
import pathlib
import subprocess
import sys

import pytest
import sweep_records as made
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import claims  # noqa: E402
from tradeoff import dry_claims  # noqa: E402

ALL = yaml.safe_load(claims.CLAIMS.read_text())["claims"]


def rows_of(entries: list[dict], dry: dict, states: dict | None = None) -> list[claims.Row]:
    judge = claims.Judge([], [], [], states or {}, dry)
    return [judge.row(entry) for entry in entries]


def test_every_claim_has_one_verdict_and_a_reason_where_it_is_out_of_reach():
    rows = rows_of(ALL, {})
    assert len(rows) == len(ALL) == len({row.id for row in rows})
    for row in rows:
        assert row.verdict in claims.VERDICTS
        assert row.note, row.id
    table = claims.markdown(rows, {"ava": "Ava", "vibee": "V", "verl": "v", "nemo": "N", "parrot": "P"}, ["nothing"])
    assert table.count("\n| ") == len(rows) + 2 * 5  # with a head of two lines for each guide


def test_wrong_arithmetic_stays_wrong_whatever_is_measured():
    (entry,) = [entry for entry in ALL if entry["id"] == "vibee.fits_7b_on_24gb"]
    (row,) = rows_of([entry], {entry["id"]: {"plan": {"peak_bytes": 1 << 30, "memory_limit_bytes": 24 << 30}}})
    assert row.verdict == "its own arithmetic is wrong" and "1.00 GiB of 24 GiB" in row.measured


@pytest.mark.parametrize("peak, verdict", [(23 << 30, "holds"), (25 << 30, "does not hold")])
def test_a_card_that_is_said_to_do(peak, verdict):
    (entry,) = [entry for entry in ALL if entry["id"] == "parrot.gpu_24gb"]
    (row,) = rows_of([entry], {entry["id"]: {"preset": {"peak_bytes": peak, "memory_limit_bytes": 24 << 30}}})
    assert row.verdict == verdict


def test_dry_runs_are_of_claims_that_exist():
    assert set(dry_claims.DRY_CLAIMS) <= {entry["id"] for entry in ALL}


def test_missing_dry_runs_are_a_mistake_that_is_named(tmp_path):
    (tmp_path / "techniques.json").write_text(json.dumps({"schema": 1, "techniques": []}))
    made.write(tmp_path / "records.jsonl", [made.record()])
    done = subprocess.run([sys.executable, ROOT / "scripts" / "claims.py", tmp_path, "--techniques",
                           tmp_path / "techniques.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--program" in done.stderr
    assert not (tmp_path / "claims.md").exists()
