"""configs/*.yaml run as they are: those for the CPU take a step, those for a GPU fit what they say they fit."""
import json
import pathlib

import programs
import pytest
import yaml

CONFIGS = sorted((programs.ROOT / "configs").glob("*.yaml"))
DEVICES = {path: yaml.safe_load(path.read_text())["run"]["device"] for path in CONFIGS}
BY_NAME = {"ids": lambda path: path.stem}


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    """Where the commands are given: a little text lies where scripts/prepare_data.py --bytes would have put it."""
    shards = programs.prepare_bytes(tmp_path, "".join(f"line {number}\n" for number in range(5000)))
    (tmp_path / "data").mkdir()
    shards.rename(tmp_path / "data/python-stdlib")
    return tmp_path


def train(folder: pathlib.Path, config: pathlib.Path, *arguments: str) -> tuple[dict, str]:
    """The summary of a training and what it prints. The settings given here only make it short."""
    short = ["eval.batches=1", "run.threads=1", *arguments]
    done = programs.run([programs.moelab(), "train", "--config", config, *short], cwd=folder)
    return programs.summary(done, folder / "runs" / config.stem), done.stdout


def test_every_device_has_configs():
    assert set(DEVICES.values()) == {"cpu", "cuda"}


@pytest.mark.parametrize("config", [path for path in CONFIGS if DEVICES[path] == "cpu"], **BY_NAME)
def test_a_config_for_the_cpu_trains(folder, config):
    summary, _ = train(folder, config, "train.steps=1")
    assert (summary["status"], summary["steps"]) == ("ok", 1)


def test_the_run_to_be_resumed_goes_on_from_its_checkpoint(folder):
    config = programs.ROOT / "configs/resume.yaml"
    train(folder, config, "train.steps=1")
    _, printed = train(folder, config, "train.steps=2", "--resume", "latest")
    assert "resumed from runs/resume/checkpoints/step-1 after step 1\n" in printed
    assert [line["step"] for line in programs.metrics(folder / "runs/resume")] == [1, 2]


@pytest.mark.parametrize("config", [path for path in CONFIGS if DEVICES[path] == "cuda"], **BY_NAME)
def test_a_config_for_a_gpu_fits_it(config):
    """A third of the card at least is used: a config for a smaller card would do otherwise."""
    done = programs.run([programs.moelab(), "estimate", "--config", config, "--json"])
    assert done.returncode == 0, done.stderr
    estimate = json.loads(done.stdout)
    limit = estimate["memory_limit_bytes"]
    assert limit / 3 < estimate["peak_bytes"] <= estimate["reserved_bytes"] < estimate["on_card_bytes"] <= limit


def test_seven_billion_parameters_in_miniature(folder):
    """Beside the card, all that the full size has on the host is there too."""
    config = programs.ROOT / "configs/dense-7b-24gb.yaml"
    small = ["run.device=cpu", "run.scale=1/1024", "model.layers=4", "train.steps=2", "train.accumulation=2", "data.path=data/python-stdlib"]
    summary, _ = train(folder, config, *small)
    assert (summary["status"], summary["steps"]) == ("ok", 2)
    assert summary["peak_bytes"] <= summary["memory_limit_bytes"] == 24 * 2**20
    assert summary["host_bytes"] > summary["state_bytes"]["optimizer"] > 0
