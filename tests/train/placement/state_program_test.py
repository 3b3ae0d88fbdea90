"""moelab train with optimizer state and gradients on the host or in a file: what it leaves, and how it fails."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

PROGRAM = os.environ.get("MOELAB_PROGRAM", "build/dev/bin/moelab")


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> pathlib.Path:
    """Token ids below 256, without a header."""
    folder = tmp_path_factory.mktemp("shards")
    ids = np.random.default_rng(1).integers(0, 256, 40_000, dtype=np.uint16)
    ids[:30_000].tofile(folder / "train.bin")
    ids[30_000:].tofile(folder / "val.bin")
    return folder


@pytest.fixture
def drive(tmp_path) -> pathlib.Path:
    (tmp_path / "drive").mkdir()
    return tmp_path / "drive"


def command(shards, run, *settings) -> list[str]:
    given = {"data.path": shards, "run.dir": run, "model.vocab": 256, "train.sequence": 32, "train.micro_batch": 2,
             "train.steps": 4, "eval.batches": 0, "checkpoint.keep": 1, "run.threads": 1,
             "precision.compute": "bf16"}  # fmt: skip
    given |= dict(setting.split("=", 1) for setting in settings if setting.count("="))
    flags = [word for word in settings if not word.count("=")]
    return [PROGRAM, "train", "--config", "moe-pico", *flags, *(f"{key}={value}" for key, value in given.items())]


def train(shards, run, *settings) -> subprocess.CompletedProcess:
    return subprocess.run(command(shards, run, *settings), capture_output=True, text=True, timeout=120)


def summary(shards, run, *settings) -> dict:
    done = train(shards, run, *settings)
    assert done.returncode == 0, done.stderr
    return json.loads((run / "summary.json").read_text())


def losses(run) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


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
    for name, settings in PLACEMENTS.items():
        run = tmp_path / name
        got = summary(shards, run, *settings, f"placement.nvme_path={drive}", *([] if "clip" in str(settings) else ["optim.clip=0"]))
        assert losses(run) == losses(tmp_path / "kept"), name
        assert saved(run, 4) == saved(tmp_path / "kept", 4), name
        assert abs(got["peak_bytes"] / got["estimated_peak_bytes"] - 1) < 0.01, name
        assert kept["peak_bytes"] - got["peak_bytes"] > 11 * parameters, name
        assert got["state_bytes"]["optimizer"] == kept["state_bytes"]["optimizer"]
        assert got["state_bytes"]["parameters"] == kept["state_bytes"]["parameters"]
        away = "host_bytes" if name == "host" else "nvme_bytes"
        assert got[away] - kept[away] > 11.5 * parameters, name
    assert list(drive.iterdir()) == []


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_run_goes_on_bitwise(shards, drive, tmp_path, name):
    settings = [*PLACEMENTS[name], f"placement.nvme_path={drive}"]
    summary(shards, tmp_path / "whole", *settings)
    summary(shards, tmp_path / "parts", *settings, "train.steps=2", "optim.schedule=wsd", "optim.min_lr=0.001")
    summary(shards, tmp_path / "again", *settings, "optim.schedule=wsd", "optim.min_lr=0.001")
    summary(shards, tmp_path / "parts", "--resume", "latest", *settings, "optim.schedule=wsd", "optim.min_lr=0.001")
    assert saved(tmp_path / "parts", 4) == saved(tmp_path / "again", 4)


def expect_mistake(done, *expected):
    assert done.returncode == 2, done
    assert done.stderr.startswith("moelab: ") and done.stderr.count("\n") == 1, done.stderr
    for text in expected:
        assert text in done.stderr, done.stderr


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
    words = command(shards, tmp_path / "run", f"placement.{what}=nvme", f"placement.nvme_path={drive}",
                    "checkpoint.keep=0")  # fmt: skip
    limited = ["bash", "-c", 'ulimit -f 512 && exec "$@"', "limited", *words]  # in KiB
    done = subprocess.run(limited, capture_output=True, text=True, timeout=120)
    expect_mistake(done, str(drive), "EFBIG")
    assert list(drive.iterdir()) == []


def start(shards, drive, run, *settings):
    words = command(shards, run, "placement.optimizer=nvme", "placement.gradients=nvme",
                    f"placement.nvme_path={drive}", "train.steps=100000", *settings)  # fmt: skip
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    metrics, until = run / "metrics.jsonl", time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < until:  # a step is done
        time.sleep(0.01)
    return process


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
    for limit in ["1", "4096", "1MiB"]:
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
