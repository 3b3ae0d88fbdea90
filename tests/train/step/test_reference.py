"""moelab train held close to a frozen model: what it leaves, and how it fails."""

import pathlib
import subprocess

import programs
import pytest
from programs import expect_mistake, metrics


@pytest.fixture(scope="module")
def shards(make_shards) -> pathlib.Path:
    return make_shards(30_000, 10_000)


def run(shards, folder, *settings) -> subprocess.CompletedProcess:
    given = {"data.path": shards, "run.dir": folder, "train.sequence": 32, "train.micro_batch": 1, "train.steps": 4,
             "eval.batches": 2, "checkpoint.keep": 9, "run.threads": 1, "run.log_every": 0}  # fmt: skip
    return programs.run(programs.train_command(given, *settings))


def train(shards, folder, *settings) -> dict:
    return programs.summary(run(shards, folder, *settings), folder)


def state(folder) -> bytes:
    saved = folder / "checkpoints" / "step-4"
    return (saved / "model.safetensors").read_bytes() + (saved / "optimizer.safetensors").read_bytes()


@pytest.fixture(scope="module")
def model(shards, tmp_path_factory) -> pathlib.Path:
    """A checkpoint to start from and stay close to."""
    folder = tmp_path_factory.mktemp("model")
    train(shards, folder)
    return folder / "checkpoints/step-4"


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_a_reference_anywhere_trains_the_same_model(shards, model, tmp_path, compute):
    settings = [f"precision.compute={compute}", f"train.init={model}", f"reference.path={model}", "reference.kl=1",
                f"placement.nvme_path={tmp_path}"]  # fmt: skip
    got = {home: train(shards, tmp_path / home, *settings, f"reference.placement={home}")
           for home in ["device", "host", "nvme"]}  # fmt: skip
    for home, summary in got.items():
        assert state(tmp_path / home) == state(tmp_path / "device")
        assert abs(summary["peak_bytes"] / summary["estimated_peak_bytes"] - 1) < 0.01
        assert summary["peak_bytes"] <= got["device"]["peak_bytes"]
    assert got["device"]["peak_bytes_by_kind"]["reference"] > got["host"]["peak_bytes_by_kind"]["reference"]
    # from the reference itself the first step has no divergence, though tokens are dropped
    divergences = [line["reference_kl"] for line in metrics(tmp_path / "device")]
    assert divergences[0] == 0 and all(value > 0 for value in divergences[1:])


def test_the_metric_is_there_when_it_is_on(shards, model, tmp_path):
    train(shards, tmp_path / "plain")
    train(shards, tmp_path / "measured", f"reference.path={model}", "reference.kl=0")
    assert all("reference_kl" not in line for line in metrics(tmp_path / "plain"))
    assert all(line["reference_kl"] > 0 for line in metrics(tmp_path / "measured"))
    assert [line["loss"] for line in metrics(tmp_path / "measured")] == [
        line["loss"] for line in metrics(tmp_path / "plain")]  # fmt: skip
    assert state(tmp_path / "measured") == state(tmp_path / "plain")


@pytest.mark.parametrize("home", ["device", "host"])
def test_a_run_goes_on_bit_for_bit(shards, model, tmp_path, home):
    settings = [f"reference.path={model}", "reference.kl=1", f"reference.placement={home}", "checkpoint.every=2"]
    train(shards, tmp_path / "whole", *settings)
    train(shards, tmp_path / "parts", *settings)
    done = run(shards, tmp_path / "parts", *settings, "--resume", tmp_path / "parts/checkpoints/step-2")
    assert done.returncode == 0, done.stderr
    assert state(tmp_path / "parts") == state(tmp_path / "whole")
    kept = ["step", "loss", "reference_kl"]
    assert [[line[key] for key in kept] for line in metrics(tmp_path / "parts")] == [
        [line[key] for key in kept] for line in metrics(tmp_path / "whole")]  # fmt: skip


def test_mistakes_are_one_line(shards, model, tmp_path):
    def mistake(*settings):
        return run(shards, tmp_path / "run", *settings)

    expect_mistake(mistake(f"reference.path={tmp_path}/gone"), f"{tmp_path}/gone", "no such folder")
    (tmp_path / "empty").mkdir()
    expect_mistake(mistake(f"reference.path={tmp_path}/empty"), f"{tmp_path}/empty")
    expect_mistake(mistake(f"reference.path={model}", "model.vocab=264"), f"reference.path={model}",
                   "model.vocab=256 (here 264)")  # fmt: skip
    expect_mistake(mistake(f"reference.path={model}", "model.layers=3"), "model.layers=4 (here 3)")
    expect_mistake(mistake(f"reference.path={model}", "reference.placement=nvme"), "placement.nvme_path")
    expect_mistake(mistake(f"reference.path={model}", "reference.kl=-1"), "reference.kl")
