"""A command's help leaves out the settings that it does not read: other values of those change nothing that it prints."""

import json
import re
import sys

import programs
import pytest

SMALL = ["--config", "moe-pico", "run.device=cpu", "run.threads=1", "model.layers=2", "train.sequence=32", "train.micro_batch=2"]
SETTINGS = {line.split(" = ")[0]: line.split(" = ")[1]
            for line in (programs.ROOT / "tests/train/settings/options.txt").read_text().splitlines()}  # fmt: skip
# Alone, or with what else is changed here, another value is a mistake or asks for what is not there.
LEFT = ("model.", "parallel.", "reference.path", "train.init", "train.tokens_per_device", "data.path", "data.validation",
        "checkpoint.dir", "run.name", "run.dir", "run.preset", "run.scale", "optim.state", "optim.in_backward",
        "precision.loss_scale", "placement.nvme_path", "placement.reshard_after_forward", "memory.target", "memory.warning",
        "memory.critical", "memory.emergency", "memory.dynamic_batch.", "memory.cuda_graphs", "memory.host_allocator",
        "sample.every")  # fmt: skip
GIVEN = {"sample.prompt": "a", "optim.betas": "[0.5, 0.5]", "activations.checkpoint": "layers", "activations.layers": "[1]",
         "activations.pieces": "[]", "placement.nvme_block": "2MiB", "memory.max_split": "64MiB",
         "activations.storage": "int8", "monitor.snapshot": "oom", "activations.block": "64"}  # fmt: skip


def other_value(key: str) -> str:
    default, kind = SETTINGS[key].split(": ", 1)
    if key in GIVEN:
        return GIVEN[key]
    if kind == "true or false":
        return "false" if default == "true" else "true"
    if kind.startswith("one of "):
        return next(name for name in kind.removeprefix("one of ").split(", ") if name != default)
    if kind.startswith("an integer"):
        return str(max(1, int(default) - 1) if int(default) > 1 else int(default) + 1)
    if kind.startswith("a number"):
        return str(float(default) / 2 or 0.5)
    raise AssertionError(f"{key} is {kind}: give another value in GIVEN, or leave it")


def changed_settings(command: str) -> list[str]:
    told = programs.run([programs.moelab(), command, "--help", "all"], check=True).stdout
    read = set(re.findall(r"^  ([a-z0-9_.]+)=", told, re.M))
    return [f"{key}={other_value(key)}" for key in SETTINGS if key not in read and not key.startswith(LEFT)]


def printed(*command) -> str:
    done = programs.run([programs.moelab(), *command])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_estimate_reads_no_more_than_its_help_lists():
    base, changed = (json.loads(printed("estimate", "--json", *SMALL, *settings))
                     for settings in ([], changed_settings("estimate")))  # fmt: skip
    assert base == changed


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    programs.run([sys.executable, programs.ROOT / "scripts/prepare_data.py", "--bytes", "--out", folder / "shards",
                  programs.ROOT / "README.md"], check=True)  # fmt: skip
    printed("train", *SMALL, "train.steps=2", "eval.batches=2", f"data.path={folder / 'shards'}", f"run.dir={folder / 'run'}")
    return folder / "run"


@pytest.mark.parametrize("command, words", [
    ("eval", ["--config", "{run}/config.yaml"]),
    ("generate", ["--from", "{run}", "--prompt", "a", "--max-tokens", "8"])])  # fmt: skip
def test_a_checkpoint_is_read_with_no_more_than_help_lists(run, command, words):
    words = [word.format(run=run) for word in words]
    base, changed = (printed(command, *words, *settings) for settings in ([], changed_settings(command)))
    assert base == changed
