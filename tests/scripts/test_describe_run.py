"""describe_run.py on summaries made up here; what is expected is worked out by hand."""
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


def test_description_converts_nats_to_bits(run):
    folder = run("a", summary(held_out_loss=2 * math.log(2), memory_limit_bytes=4 * 2**30))
    text = call("describe_run.py", folder, "--unit", "byte").stdout
    for part in ("32.1 million", "18.0 million", "1.386 nats a byte", "2.00 bits", "25%", "4.0 equally",
                 "1.00 GiB", "of 4.00 GiB"):
        assert part in text, text


def test_description_counts_the_steps_before_a_run_was_resumed(run):
    folder = run("a", summary())
    assert "for 12 steps" in call("describe_run.py", folder).stdout
    pathlib.Path(folder, "metrics.jsonl").write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 31)))
    assert "for 30 steps" in call("describe_run.py", folder).stdout


def test_description_of_a_run_without_steps_names_no_speed(run):
    text = call("describe_run.py", run("a", summary(speed=None, held_out_loss=math.log(2)))).stdout
    assert "It took 1.00 GiB of memory at its peak." in text and "tokens a second" not in text, text


def test_description_of_a_run_that_ran_out_of_memory(run):
    text = call("describe_run.py", run("a", summary(status="oom"))).stdout
    assert "status oom" in text and "nats" not in text
