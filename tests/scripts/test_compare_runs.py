"""compare_runs.py and describe_run.py on summaries made up here; what is expected is worked out by hand."""
import json
import math
import pathlib
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"


def summary(speed=1000.0, peak=2**30, status="ok", **more) -> dict:
    return {
        "status": status, "device": "cpu", "steps": 12, "machine": {"cpu": "a CPU", "gpu": None},
        "model": {"preset": "moe-micro", "parameters": 32_100_000, "active_parameters": 18_000_000},
        "tokens_per_second": {"median": speed}, "peak_bytes": peak, **more,
    }


@pytest.fixture
def run(tmp_path):
    """run(NAME, summary): a run's folder."""
    def make(name: str, content: dict) -> str:
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(content))
        return str(tmp_path / name)
    return make


def call(script: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, SCRIPTS / script, *arguments], capture_output=True, text=True)


def cells(output: str) -> dict[str, list[str]]:
    rows = [line.split("  ") for line in output.splitlines()[2:]]
    return {row[0].strip(): [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}


def test_medians_spread_and_ratios(run):
    base = [run("a1", summary(900, 2**30)), run("a2", summary(1100, 2**30))]
    lean = [run(f"b{i}", summary(speed, 2**29)) for i, speed in enumerate((2500, 2400, 9999))]
    done = call("compare_runs.py", "base=" + ",".join(base), "lean=" + ",".join(lean))
    assert done.returncode == 0, done.stderr
    rows = cells(done.stdout)
    assert rows["base"] == ["1,000", "20%", "1.00 GiB", "1.00 x", "1.00 x"]
    assert rows["lean"] == ["2,500", "304%", "512.00 MiB", "2.50 x", "0.50 x"]


def test_out_of_memory_is_a_row(run):
    done = call("compare_runs.py", f"base={run('a', summary())}", f"big={run('b', summary(status='oom'))}")
    assert done.returncode == 0 and cells(done.stdout)["big"] == ["out of memory"]


def test_first_run_out_of_memory_leaves_no_ratios(run):
    done = call("compare_runs.py", f"big={run('a', summary(status='oom'))}", f"lean={run('b', summary())}")
    assert done.returncode == 0 and cells(done.stdout)["lean"] == ["1,000", "0%", "1.00 GiB"]


def test_missing_summary_is_one_line(tmp_path):
    done = call("compare_runs.py", f"a={tmp_path}")
    assert done.returncode != 0 and done.stderr.count("\n") == 1 and "summary.json" in done.stderr


def test_description_converts_nats_to_bits(run):
    folder = run("a", summary(held_out_loss=2 * math.log(2), memory_limit_bytes=4 * 2**30))
    text = call("describe_run.py", folder, "--unit", "byte").stdout
    for part in ("32.1 million", "18.0 million", "1.386 nats a byte", "2.00 bits", "25%", "4.0 equally",
                 "1.00 GiB", "of 4.00 GiB"):
        assert part in text, text


def test_description_of_a_run_that_ran_out_of_memory(run):
    text = call("describe_run.py", run("a", summary(status="oom"))).stdout
    assert "status oom" in text and "nats" not in text
