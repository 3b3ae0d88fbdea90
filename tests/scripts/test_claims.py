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
from tradeoff import claims as judging, dry_claims, figures, records  # noqa: E402

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


# Of sweeps.


def sweeps_of(tmp_path: pathlib.Path, rows: list[dict]) -> list[figures.Sweep]:
    return figures.sweeps(records.read_records([made.write(tmp_path / "records.jsonl", rows)])[0])


def swept(tmp_path: pathlib.Path, rows: list[dict], stated: dict, *names: str) -> claims.Row:
    """The verdict on a claim with these figures about techniques of these names."""
    entry = {"id": "a.b", "text": "t", "figures": stated}
    techniques = [judging.Technique(name, [], ["a.b"]) for name in names]
    return claims.Judge(sweeps_of(tmp_path, rows), techniques, judging.claims_of(entry, "A"), {}, {}).row(entry)


def test_a_claim_holds_where_one_case_has_all_of_its_figures(tmp_path):
    """1200 MiB become 600, of activations 800 become 200; a step takes 1250 ms for 1000, or as long as before."""
    stated = {"memory_saved_percent": 50, "slowdown_percent": 25}
    rows = [made.record(), made.record("half", milliseconds=1250, activations=200), made.record("other", activations=200)]
    row = swept(tmp_path, rows, stated, "half")
    assert (row.verdict, row.note, row.claimed) == ("holds", "", "memory saved 50 %, slowdown 25 %")
    assert row.measured == ("half on moe-micro: saves 75 % of activation memory, 0 % of state, 50 % of the whole peak; "
                            "added step time 25 %")
    row = swept(tmp_path, rows, stated, "half", "other")
    assert (row.verdict, row.note) == ("holds when", "half on moe-micro")
    row = swept(tmp_path, rows, stated, "other")
    assert (row.verdict, row.note) == ("does not hold", "holds alone: memory saved 50 % in other on moe-micro")


def test_a_saving_is_stated_of_the_memory_that_is_named_first(tmp_path):
    rows = [made.record(), made.record("half", activations=200)]
    row = swept(tmp_path, rows, {"memory_saved_percent": 50, "of": "attention memory"}, "half")
    assert row.measured.startswith("half on moe-micro: saves 75 % of attention memory, 75 % of activation memory, ")
    assert (row.verdict, row.note) == ("does not hold", "in another size: memory saved 50 % (more)")


def test_offload_to_the_host_has_no_time_on_a_cpu(tmp_path):
    stated = {"memory_saved_percent": 50, "slowdown_factor": [2, 3]}
    for gpu, expected in ((None, ("holds when", "slowdown factor 2 to 3 is not measured here")), ("a GPU", ("holds", ""))):
        machine = {"cpu": "a CPU", "cores": 2, "gpu": gpu}
        rows = [made.record(machine=machine), made.record("host_x", milliseconds=2500, activations=200, machine=machine)]
        row = swept(tmp_path, rows, stated, "host_x")
        assert (row.verdict, row.note) == expected


@pytest.mark.parametrize("ratios, verdict, note", [
    ((1.2, 0.9, 0.5), "holds", ""), ((0.9, 0.9, 0.5), "holds", "already from 512 tokens on"),
    ((0.9, 0.9, 1.2), "does not hold", "")])
def test_sparse_attention_beside_flash_attention(tmp_path, ratios, verdict, note):
    """Step times over flash attention's at 512, 2048 and 4096 tokens; the claim is of more than 2048."""
    rows = []
    for sequence, ratio in zip((512, 2048, 4096), ratios):
        for name, milliseconds in (("flash_attention", 1000), ("block_sparse", 1000 * ratio)):
            rows += made.in_part(f"attention over {sequence} tokens", "crossover", name, milliseconds, 400, [name], sequence)
    (entry,) = [entry for entry in ALL if entry["id"] == "ava.sparse_attention"]
    row = claims.Judge(sweeps_of(tmp_path, rows), [], [], {}, {}).row(entry)
    assert (row.verdict, row.note) == (verdict, note) and "at 4,096 tokens on moe-micro" in row.measured


# Of dry runs and formulas.


def test_parts_of_a_claim_that_hold_are_named():
    (entry,) = [entry for entry in ALL if entry["id"] == "vibee.precision_7b"]
    runs = {name: {"peak_bytes_by_kind": {"parameters": bytes_}, "model": {"parameters": 1}}
            for name, bytes_ in (("fp32", 4), ("bf16", 2), ("fp8", 1.2))}
    (row,) = rows_of([entry], {entry["id"]: runs})
    assert (row.verdict, row.note) == ("holds when", "taken for fp32, bf16 alone")
    assert row.measured.startswith("fp32 28 GB, bf16 14 GB, fp8 8.4 GB (dry run: `estimate --config dense-7b`; ")


def test_reading_ahead_by_formula():
    (entry,) = [entry for entry in ALL if entry["id"] == "ava.data_pipeline"]
    (row,) = rows_of([entry], {})
    assert row.measured == "33 batches become 17, 48 % less (by formula)" and row.verdict == "holds when"


def test_dry_runs_of_other_settings_are_refused(tmp_path):
    run = {"claim": "parrot.gpu_8gb", "run": "preset", "arguments": ["--config", "moe-pico"], "estimate": {}}
    (tmp_path / "dry_runs.json").write_text(json.dumps({"schema": 1, "runs": [run]}))
    with pytest.raises(records.ReportError, match="parrot.gpu_8gb.*--program makes it anew"):
        dry_claims.read(tmp_path / "dry_runs.json")
