"""moelab train with saved activations compressed, on the host or in a file: what it leaves, and how it fails."""

import pathlib
import shutil
import signal
import subprocess

import programs
import pytest
from programs import expect_mistake, limited_files, losses


@pytest.fixture(scope="module")
def shards(make_shards) -> pathlib.Path:
    return make_shards(30_000, 10_000)


def command(shards, run, *settings) -> list[str]:
    given = {"data.path": shards, "run.dir": run, "model.vocab": 256, "train.sequence": 64, "train.micro_batch": 4,
             "train.steps": 4, "eval.batches": 0, "checkpoint.keep": 0, "run.threads": 1}  # fmt: skip
    return programs.train_command(given, *settings)


def train(shards, run, *settings, **how) -> subprocess.CompletedProcess:
    return programs.run(command(shards, run, *settings), **how)


def summary(shards, run, *settings) -> dict:
    return programs.summary(train(shards, run, *settings), run)


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
    done = train(shards, tmp_path / "run", "activations.storage=nvme", f"placement.nvme_path={drive}",
                 **limited_files(1 << 19))  # fmt: skip
    expect_mistake(done, str(drive))  # refused at once, or after a part
    assert "EFBIG" in done.stderr or "a limit on the size of files" in done.stderr
    assert list(drive.iterdir()) == []


def start(shards, drive, run):
    words = command(shards, run, "activations.storage=nvme", f"placement.nvme_path={drive}")
    return programs.start_and_take_a_step(words, run)


def test_a_run_that_is_killed_leaves_nothing(shards, drive, tmp_path):
    process = start(shards, drive, tmp_path / "run")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(drive.iterdir()) == []


def test_a_folder_that_vanishes_is_not_missed(shards, drive, tmp_path):
    process = start(shards, drive, tmp_path / "run")
    shutil.rmtree(drive)
    assert process.wait(timeout=60) == 0
