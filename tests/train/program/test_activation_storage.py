"""moelab train with saved activations compressed, on the host or in a file: what it leaves, and how it fails."""

import json
import pathlib
import shutil
import signal
import subprocess
import time

import programs
import pytest

PROGRAM = programs.moelab()


@pytest.fixture(scope="module")
def shards(make_shards) -> pathlib.Path:
    return make_shards(30_000, 10_000)


@pytest.fixture
def drive(tmp_path) -> pathlib.Path:
    (tmp_path / "drive").mkdir()
    return tmp_path / "drive"


def command(shards, run, *settings) -> list[str]:
    return [PROGRAM, "train", "--config", "moe-pico", f"data.path={shards}", f"run.dir={run}", "model.vocab=256",
            "train.sequence=64", "train.micro_batch=4", "train.steps=4", "eval.batches=0", "checkpoint.keep=0",
            "run.threads=1", *settings]  # fmt: skip


def train(shards, run, *settings) -> subprocess.CompletedProcess:
    return subprocess.run(command(shards, run, *settings), capture_output=True, text=True, timeout=120)


def summary(shards, run, *settings) -> dict:
    done = train(shards, run, *settings)
    assert done.returncode == 0, done.stderr
    return json.loads((run / "summary.json").read_text())


def losses(run) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_every_storage_saves_what_was_predicted(shards, drive, tmp_path):
    kept = summary(shards, tmp_path / "keep")
    for storage in ["int8", "fp8", "host", "nvme"]:
        run = tmp_path / storage
        got = summary(shards, run, f"activations.storage={storage}", f"placement.nvme_path={drive}")
        assert got["peak_bytes"] < kept["peak_bytes"]
        assert abs(got["peak_bytes"] / got["estimated_peak_bytes"] - 1) < 0.01, storage
        assert (got["nvme_bytes"] > 1 << 20) == (storage == "nvme")
        assert (got["host_bytes"] - kept["host_bytes"] > 1 << 20) == (storage in ("host", "nvme")), storage
        assert losses(run)[0] == losses(tmp_path / "keep")[0], "forward is untouched"
        assert (losses(run) == losses(tmp_path / "keep")) == (storage in ("host", "nvme"))
    assert list(drive.iterdir()) == []


def expect_mistake(done, *expected):
    assert done.returncode == 2, done
    assert done.stderr.startswith("moelab: ") and done.stderr.count("\n") == 1, done.stderr
    for text in expected:
        assert text in done.stderr


def test_nvme_without_a_path_names_both_settings(shards, tmp_path):
    done = train(shards, tmp_path / "run", "activations.storage=nvme")
    expect_mistake(done, "activations.storage=nvme", "placement.nvme_path")
    assert not (tmp_path / "run").exists()


def test_blocks_that_are_not_aligned_are_refused(shards, tmp_path):
    expect_mistake(train(shards, tmp_path / "run", "placement.nvme_block=5000"), "placement.nvme_block", "4096")


def test_a_folder_that_is_not_there(shards, tmp_path):
    gone = tmp_path / "gone"
    done = train(shards, tmp_path / "run", "activations.storage=nvme", f"placement.nvme_path={gone}")
    expect_mistake(done, str(gone), "No such file or directory")
    assert not gone.exists() and not (tmp_path / "run").exists()


def test_a_drive_that_takes_no_more(shards, drive, tmp_path):
    words = command(shards, tmp_path / "run", "activations.storage=nvme", f"placement.nvme_path={drive}")
    limited = ["bash", "-c", 'ulimit -f 512 && exec "$@"', "limited", *words]  # in KiB
    done = subprocess.run(limited, capture_output=True, text=True, timeout=120)
    expect_mistake(done, str(drive))  # refused at once, or after a part
    assert "EFBIG" in done.stderr or "a limit on the size of files" in done.stderr
    assert list(drive.iterdir()) == []


def start(shards, drive, run):
    process = subprocess.Popen(command(shards, run, "activations.storage=nvme", f"placement.nvme_path={drive}"),
                               stdout=subprocess.DEVNULL)  # fmt: skip
    metrics, until = run / "metrics.jsonl", time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < until:  # a step is done
        time.sleep(0.01)
    return process


def test_a_run_that_is_killed_leaves_nothing(shards, drive, tmp_path):
    process = start(shards, drive, tmp_path / "run")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(drive.iterdir()) == []


def test_a_folder_that_vanishes_is_not_missed(shards, drive, tmp_path):
    process = start(shards, drive, tmp_path / "run")
    shutil.rmtree(drive)
    assert process.wait(timeout=60) == 0
