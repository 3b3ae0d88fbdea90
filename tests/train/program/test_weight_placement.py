"""moelab train with the blocks' weights on the host, in a file or in eight bits: what it leaves, and how it fails."""

import pathlib
import subprocess

import programs
import pytest
from programs import expect_mistake, limited_files, losses


@pytest.fixture(scope="module")
def shards(make_shards) -> pathlib.Path:
    return make_shards(30_000, 10_000)


def run(shards, folder, *settings, **how) -> subprocess.CompletedProcess:
    given = {"data.path": shards, "run.dir": folder, "model.vocab": 256, "model.layers": 6, "train.sequence": 32,
             "train.micro_batch": 1, "train.steps": 4, "eval.batches": 2, "checkpoint.keep": 2,
             "run.threads": 1}  # fmt: skip
    return programs.run(programs.train_command(given, *settings), **how)


def train(shards, folder, *settings) -> dict:
    return programs.summary(run(shards, folder, *settings), folder)


def weights(folder) -> bytes:
    return (folder / "checkpoints" / "step-4" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_weights_elsewhere_train_the_same_model_in_less(shards, drive, tmp_path, compute):
    kept = train(shards, tmp_path / "device", f"precision.compute={compute}")
    for home in ["host", "nvme"]:
        folder = tmp_path / home
        got = train(shards, folder, f"precision.compute={compute}", f"placement.parameters={home}",
                    f"placement.nvme_path={drive}")  # fmt: skip
        assert losses(folder) == losses(tmp_path / "device")
        assert got["held_out_loss"] == kept["held_out_loss"]
        assert weights(folder) == weights(tmp_path / "device")
        assert got["state_bytes"] == kept["state_bytes"]
        assert abs(got["peak_bytes"] / got["estimated_peak_bytes"] - 1) < 0.01
        # but for the embedding, and two blocks of six that are under way
        assert kept["peak_bytes"] - got["peak_bytes"] > 0.6 * kept["state_bytes"]["parameters"]
        there = got[f"{home}_bytes"] - kept[f"{home}_bytes"]
        assert there > 0.9 * kept["state_bytes"]["parameters"]
        assert (got["nvme_bytes"] > 0) == (home == "nvme")
    assert list(drive.iterdir()) == []


@pytest.mark.parametrize("settings", [["placement.parameters=host"],
                                      ["placement.parameters=nvme", "precision.compute=bf16"],
                                      ["precision.store=int8", "precision.compute=bf16"]])  # fmt: skip
def test_a_run_goes_on_bit_for_bit(shards, drive, tmp_path, settings):
    settings = [*settings, f"placement.nvme_path={drive}"]
    train(shards, tmp_path / "whole", *settings)
    train(shards, tmp_path / "parts", *settings, "checkpoint.every=2")
    train(shards, tmp_path / "parts", *settings, "--resume", str(tmp_path / "parts/checkpoints/step-2"))
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")


@pytest.mark.parametrize("store", ["int8", "fp8"])
def test_coded_weights_take_a_byte_each(shards, tmp_path, store):
    plain = train(shards, tmp_path / "plain", "precision.compute=bf16")
    folder = tmp_path / store
    coded = train(shards, folder, "precision.compute=bf16", f"precision.store={store}")
    assert abs(coded["peak_bytes"] / coded["estimated_peak_bytes"] - 1) < 0.01
    assert 0 < abs(losses(folder)[-1] - losses(tmp_path / "plain")[-1]) < 0.02
    # of 2 + 4 bytes a parameter, 1 - 4/256 are saved in the blocks, which are nearly all
    saved = plain["state_bytes"]["parameters"] - coded["state_bytes"]["parameters"]
    assert 0.14 < saved / plain["state_bytes"]["parameters"] < (1 - 4 / 256) / 6
    # what is evaluated later is what training computed with
    again = programs.run([programs.moelab(), "eval", "--config", folder / "config.yaml", "--checkpoint",
                          folder / "checkpoints/step-4"])  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert f"held-out loss {coded['held_out_loss']:.4f}" in again.stdout


def test_training_starts_from_a_checkpoint(shards, drive, tmp_path):
    train(shards, tmp_path / "first")
    start = f"train.init={tmp_path}/first/checkpoints/step-4"
    train(shards, tmp_path / "device", start)
    train(shards, tmp_path / "nvme", start, "placement.parameters=nvme", f"placement.nvme_path={drive}")
    assert weights(tmp_path / "nvme") == weights(tmp_path / "device")


def test_contradictions_name_both_settings(shards, tmp_path):
    def mistake(*settings):
        return run(shards, tmp_path / "run", *settings)

    expect_mistake(mistake("placement.parameters=nvme"), "placement.parameters=nvme", "placement.nvme_path")
    expect_mistake(mistake("precision.store=int8"), "precision.store=int8", "precision.compute=fp32")
    expect_mistake(mistake("precision.store=fp8", "precision.compute=bf16", "precision.master=none"),
                   "precision.store=fp8", "precision.master=none")  # fmt: skip
    expect_mistake(mistake("precision.store=fp16", "precision.compute=bf16"), "precision.store=fp16", "bf16")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_not_there(shards, tmp_path):
    gone = tmp_path / "gone"
    done = run(shards, tmp_path / "run", "placement.parameters=nvme", f"placement.nvme_path={gone}")
    expect_mistake(done, str(gone), "No such file or directory")
    assert not gone.exists()


def test_a_drive_that_takes_no_more(shards, drive, tmp_path):
    done = run(shards, tmp_path / "run", "placement.parameters=nvme", f"placement.nvme_path={drive}",
               **limited_files(1 << 19))  # fmt: skip
    expect_mistake(done, str(drive))
    assert "EFBIG" in done.stderr or "a limit on the size of files" in done.stderr
    assert list(drive.iterdir()) == []
