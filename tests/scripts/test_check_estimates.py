"""scripts/check_estimates.py, on a few draws of its own."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import check_estimates  # noqa: E402


def record(predicted: int, measured: int, **changes) -> dict:
    return {"settings": ["a=b"], "predicted_bytes": predicted, "measured_bytes": measured, "scratch_bytes": 0,
            "error": measured / predicted - 1, "state_predicted": {"optimizer": 8}, "state_measured": {"optimizer": 8},
            **changes}


def test_the_verdict_names_median_worst_and_states_that_differ():
    records = [record(1000, 1000), record(1000, 990), record(1000, 1030, state_measured={"optimizer": 7})]
    text = check_estimates.verdict(records)
    assert text.startswith("3 configurations: tensors at the peak off by 1.000% (median), 3.000% (worst); state differs in 1")
    assert text.splitlines()[3] == "  +3.000% of 1,000 bytes  a=b"


def test_a_mistake_leaves_the_old_records_alone(tmp_path):
    out = tmp_path / "estimates.jsonl"
    out.write_text("as it was")
    for program, data, words in (("/none", tmp_path, "/none: No such file"), (sys.executable, "/none", "--data /none")):
        run = subprocess.run([sys.executable, ROOT / "scripts/check_estimates.py", "--program", program, "--data", data,
                              "--out", out], capture_output=True, text=True, check=False)
        assert run.returncode != 0 and words in run.stderr and "Traceback" not in run.stderr, run.stderr
        assert out.read_text() == "as it was"


def test_drawn_configurations_are_predicted(make_shards, tmp_path):
    program = os.environ.get("MOELAB_PROGRAM")
    if not program:
        pytest.skip("MOELAB_PROGRAM names no program")
    out = tmp_path / "estimates.jsonl"
    run = subprocess.run([sys.executable, ROOT / "scripts/check_estimates.py", "--program", program, "--data",
                          make_shards(20000, 2000), "--draws", "6", "--seed", "3", "--out", out],
                         capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({tuple(entry["settings"]) for entry in records}) == 6
    for entry in records:
        assert entry["state_predicted"] == entry["state_measured"] and sum(entry["state_measured"].values()) > 1000
        assert abs(entry["error"]) <= 0.02 and entry["predicted_bytes"] > 1_000_000, entry


def test_a_run_is_compared_with_an_estimate_of_its_settings(make_shards, tmp_path):
    program = os.environ.get("MOELAB_PROGRAM")
    if not program:
        pytest.skip("MOELAB_PROGRAM names no program")
    run = tmp_path / "run"
    settings = [f"{key}={str(value).lower()}" for key, value in check_estimates.BASE.items()]
    command = [program, "train", "--device", "cpu", f"data.path={make_shards(20000, 2000)}", "memory.limit=64MiB", *settings]
    subprocess.run([*command, f"run.dir={run}"], check=True, capture_output=True)

    def compared() -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, ROOT / "scripts/check_estimates.py", "--program", program, "--run", run],
                              capture_output=True, text=True, check=False)

    near = compared()
    assert near.returncode == 0 and near.stdout.startswith("run: ok; limit 64.0 MiB; allocated "), near.stdout + near.stderr
    summary = json.loads((run / "summary.json").read_text())
    higher = {"peak_tensor_bytes": round(summary["peak_tensor_bytes"] * 1.1)}
    for change in (higher, {"memory_limit_bytes": 1000}, {"status": "oom"}):
        (run / "summary.json").write_text(json.dumps(summary | change))
        far = compared()
        assert far.returncode == 1 and far.stdout.startswith("run: FAILED"), far.stdout
