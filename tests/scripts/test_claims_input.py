"""scripts/claims.py refuses what it can't judge by, in one line, and overwrites nothing then."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
import sweep_records as made

ROOT = pathlib.Path(__file__).resolve().parents[2]

CLAIM = """{id: a.b, text: t, figures: {memory_saved_percent: 50, of: activation memory}}"""
GOOD = "schema: 1\nguides: {a: A}\nclaims:\n  - " + CLAIM
ROW = {"name": "x", "parts": [], "claims": [{"id": "a.b"}], "settings": {"precision.compute": "bf16"}}


def called(folder: pathlib.Path, claimed: str, rows: list[dict], *more: str) -> subprocess.CompletedProcess:
    """scripts/claims.py on a record of ROW's technique that resolved precision.compute, in a folder with pages of before."""
    run = made.record(ROW["name"])
    run["summary"]["settings"] = {"precision": {"compute": "fp32"}}
    made.write(folder / "records.jsonl", [run])
    (folder / "claims.md").write_text("of before")
    (folder / "dry_runs.json").write_text(json.dumps({"schema": 1, "runs": []}))
    (folder / "claims.yaml").write_text(claimed)
    (folder / "techniques.json").write_text(json.dumps({"schema": 1, "techniques": rows}))
    command = [sys.executable, ROOT / "scripts" / "claims.py", folder, "--techniques", folder / "techniques.json", "--claims",
               folder / "claims.yaml", *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_sound_claims_and_techniques_are_judged(tmp_path):
    done = called(tmp_path, GOOD, [ROW])
    assert done.returncode == 0 and (tmp_path / "claims.md").read_text() != "of before", done.stderr


@pytest.mark.parametrize("old, new, words", [
    ("memory_saved", "memory_savd", "memory_savd_percent"), ("activation memory", "activation memry", "memry"),
    ("text: t", "text: t, textt: u", "textt"), ("guides:", "guide: {}\nguides:", "guide"),
    ("schema: 1", "schema: 2", "schema"), (CLAIM, f"{CLAIM}\n  - {CLAIM}", "given twice: a.b"),
    ("memory_saved_percent: 50", "reduction_factor: 0", "a claim has"), (": 50", ": 50, against: fp15", "fp15"),
    (": 50", ": 50, from_sequence: far", "number"), ("text: t", "text: [t]", "no text")])
def test_unknown_words_in_the_file_of_claims_are_refused(tmp_path, old, new, words):
    done = called(tmp_path, GOOD.replace(old, new), [ROW])
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and words in done.stderr, done.stderr
    assert (tmp_path / "claims.md").read_text() == "of before"


def test_records_from_before_a_technique_know_nothing_of_its_settings(tmp_path):
    later = ROW | {"name": "y", "settings": {"parallel.data": "2"}, "ranks": 2}
    assert called(tmp_path, GOOD, [ROW, later]).returncode == 0
    assert "unknown settings parallel.data" in called(tmp_path, GOOD, [later | {"name": ROW["name"]}]).stderr


@pytest.mark.parametrize("changes, words", [
    ({"settings": {"precision.comput": "bf61"}}, "precision.comput"), ({"setings": {}}, "setings"),
    ({"settings": 3}, "table"), ({"parts": ["y"]}, "unknown y")])
def test_unknown_words_in_the_table_of_techniques_are_refused(tmp_path, changes, words):
    done = called(tmp_path, GOOD, [ROW | changes])
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and words in done.stderr, done.stderr
    assert (tmp_path / "claims.md").read_text() == "of before"


def test_the_program_refuses_values_of_settings_and_nothing_is_overwritten(tmp_path):
    program = os.environ.get("MOELAB_PROGRAM")
    if not program:
        pytest.skip("MOELAB_PROGRAM names no program")
    before = json.dumps({"schema": 1, "runs": []})
    done = called(tmp_path, GOOD, [ROW | {"settings": {"precision.compute": "bf61"}}], "--program", program)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "x: precision.compute: expected one of" in done.stderr
    assert (tmp_path / "claims.md").read_text() == "of before" and (tmp_path / "dry_runs.json").read_text() == before


def test_missing_dry_runs_are_a_mistake_that_is_named(tmp_path):
    (tmp_path / "techniques.json").write_text(json.dumps({"schema": 1, "techniques": []}))
    made.write(tmp_path / "records.jsonl", [made.record()])
    done = subprocess.run([sys.executable, ROOT / "scripts" / "claims.py", tmp_path, "--techniques",
                           tmp_path / "techniques.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--program" in done.stderr
    assert not (tmp_path / "claims.md").exists()
