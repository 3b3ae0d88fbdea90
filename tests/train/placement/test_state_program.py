"""moelab train with optimizer state and gradients on the host or in a file: what it leaves, and how it fails."""

import pathlib
import re
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
    given = {"data.path": shards, "run.dir": run, "model.vocab": 256, "train.sequence": 32, "train.micro_batch": 2,
             "train.steps": 4, "eval.batches": 0, "checkpoint.keep": 1, "run.threads": 1,
             "precision.compute": "bf16"}  # fmt: skip
    return programs.train_command(given, *settings)


def train(shards, run, *settings, **how) -> subprocess.CompletedProcess:
    return programs.run(command(shards, run, *settings), **how)


def summary(shards, run, *settings) -> dict:
    return programs.summary(train(shards, run, *settings), run)


def saved(run, step) -> tuple[bytes, bytes]:
    folder = run / "checkpoints" / f"step-{step}"
    return (folder / "model.safetensors").read_bytes(), (folder / "optimizer.safetensors").read_bytes()


PLACEMENTS = {
    "host": ["placement.optimizer=host", "placement.gradients=host"],
    "nvme": ["placement.optimizer=nvme", "placement.gradients=nvme"],
    "nvme_in_backward": ["placement.optimizer=nvme", "optim.in_backward=true", "optim.clip=0"],
}


def test_each_placement_trains_the_same_and_says_where_bytes_are(shards, drive, tmp_path):
    kept = summary(shards, tmp_path / "kept", "optim.clip=0")
    parameters = kept["model"]["parameters"]
    assert kept["waited"] == {home: {"seconds": 0, "steps": 0, "share": 0} for home in ("host", "nvme")}
    for name, settings in PLACEMENTS.items():
        run = tmp_path / name
        clip = [] if "clip" in str(settings) else ["optim.clip=0"]
        got = summary(shards, run, *settings, f"placement.nvme_path={drive}", *clip)
        assert losses(run) == losses(tmp_path / "kept"), name
        assert saved(run, 4) == saved(tmp_path / "kept", 4), name
        assert abs(got["peak_bytes"] / got["estimated_peak_bytes"] - 1) < 0.01, name
        assert kept["peak_bytes"] - got["peak_bytes"] > 11 * parameters, name
        assert got["state_bytes"]["optimizer"] == kept["state_bytes"]["optimizer"]
        assert got["state_bytes"]["parameters"] == kept["state_bytes"]["parameters"]
        away = "host_bytes" if name == "host" else "nvme_bytes"
        assert got[away] - kept[away] > 11.5 * parameters, name
        home = away.removesuffix("_bytes")
        assert got["waited"][home]["seconds"] == pytest.approx(sum(step["waited_ms"][home] for step in programs.metrics(run)) / 1000)
        assert got["waited"][home]["steps"] == 4 and 0 < got["waited"][home]["share"] < 1, name
    assert list(drive.iterdir()) == []


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_run_goes_on_bitwise(shards, drive, tmp_path, name):
    settings = [*PLACEMENTS[name], f"placement.nvme_path={drive}"]
    summary(shards, tmp_path / "whole", *settings)
    summary(shards, tmp_path / "parts", *settings, "train.steps=2", "optim.schedule=wsd", "optim.min_lr=0.001")
    summary(shards, tmp_path / "again", *settings, "optim.schedule=wsd", "optim.min_lr=0.001")
    summary(shards, tmp_path / "parts", "--resume", "latest", *settings, "optim.schedule=wsd", "optim.min_lr=0.001")
    assert saved(tmp_path / "parts", 4) == saved(tmp_path / "again", 4)


@pytest.mark.parametrize("what", ["optimizer", "gradients"])
def test_a_folder_that_is_missing(shards, tmp_path, what):
    expect_mistake(train(shards, tmp_path / "run", f"placement.{what}=nvme"), f"placement.{what}=nvme",
                   "placement.nvme_path")  # fmt: skip
    gone = tmp_path / "gone"
    done = train(shards, tmp_path / "run", f"placement.{what}=nvme", f"placement.nvme_path={gone}")
    expect_mistake(done, str(gone), "No such file or directory")
    assert not gone.exists() and not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ["optimizer", "gradients"])
def test_a_drive_that_takes_no_more(shards, drive, tmp_path, what):
    done = train(shards, tmp_path / "run", f"placement.{what}=nvme", f"placement.nvme_path={drive}",
                 "checkpoint.keep=0", **limited_files(1 << 19))  # fmt: skip
    expect_mistake(done, str(drive), "EFBIG")
    assert list(drive.iterdir()) == []


def start(shards, drive, run, *settings):
    words = command(shards, run, "placement.optimizer=nvme", "placement.gradients=nvme",
                    f"placement.nvme_path={drive}", "train.steps=100000", *settings)  # fmt: skip
    return programs.start_and_take_a_step(words, run)


def test_a_run_that_is_killed_leaves_nothing(shards, drive, tmp_path):
    process = start(shards, drive, tmp_path / "run")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(drive.iterdir()) == []


def test_a_stopped_run_saves_even_when_the_folder_vanished(shards, drive, tmp_path):
    process = start(shards, drive, tmp_path / "run")
    shutil.rmtree(drive)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    steps = len(losses(tmp_path / "run"))
    assert (tmp_path / "run" / "checkpoints" / f"step-{steps}" / "optimizer.safetensors").exists()


@pytest.mark.parametrize("settings", [[], ["placement.optimizer=host"], ["train.micro_batch=8"]])
def test_a_limit_below_the_weights_names_one_that_does(shards, tmp_path, settings):
    for limit in ["1KiB", "4KiB", "1MiB"]:
        done = train(shards, tmp_path / "run", f"memory.limit={limit}", *settings)
        assert done.returncode == 3, done
        assert done.stdout == "" and done.stderr.count("\n") == 1, done
        assert done.stderr.startswith("moelab: memory.limit="), done.stderr
        assert not (tmp_path / "run").exists()
    smallest = re.search(r"the smallest that would do is (memory\.limit=\d+MiB)$", done.stderr.strip())
    assert smallest, done.stderr
    assert summary(shards, tmp_path / "run", smallest[1], *settings)["steps"] == 4
    fitting = int(smallest[1].split("=")[1][:-3])
    less = train(shards, tmp_path / "less", f"memory.limit={int(0.9 * fitting)}MiB", "memory.recover=false", *settings)
    assert less.returncode == 3, "what is named is not far above what is needed"
