"""The programs that the Python tests drive: where they are (ctest says so; by hand, the newest build's), how a
training is started, and what it leaves."""

import json
import os
import pathlib
import resource
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def built(variable: str, path: str) -> str:
    """`path` within a build's folder, unless the environment names another file; skips what asks when there is none."""
    if variable in os.environ:
        return os.environ[variable]
    found = sorted(ROOT.glob(f"build/*/{path}"), key=lambda file: file.stat().st_mtime)
    if not found:
        pytest.skip(f"{path} is not built", allow_module_level=True)
    return str(found[-1])


def moelab() -> str:
    return built("MOELAB_PROGRAM", "bin/moelab")


def train_command(settings: dict, *arguments, command: str = "train") -> list[str]:
    """moelab train, or another command, of moe-pico. Arguments with a '=' are settings, in place of the given; the others
    are options."""
    words = [str(argument) for argument in arguments]
    settings = settings | dict(word.split("=", 1) for word in words if "=" in word)
    options = [word for word in words if "=" not in word]
    pairs = [f"{key}={value}" for key, value in settings.items()]
    return [moelab(), command, "--config", "moe-pico", *options, *pairs]


def run(command: list, **how) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, **how)


def limited_files(size: int) -> dict:
    """For run(): what the program writes fails where a file would pass `size` bytes."""
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))}


def start_and_take_a_step(command: list[str], folder: pathlib.Path, **how) -> subprocess.Popen:
    """Returns when the first step of the training is in the metrics of its folder."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, **how)
    metrics_file, until = folder / "metrics.jsonl", time.monotonic() + 60
    while not (metrics_file.exists() and metrics_file.stat().st_size) and time.monotonic() < until:
        time.sleep(0.01)
    return process


def expect_mistake(done: subprocess.CompletedProcess, *expected: str, code: int = 2) -> None:
    """The user's: an exit code and one line that has each of the texts."""
    assert done.returncode == code, done
    assert done.stderr.startswith("moelab: ") and done.stderr.count("\n") == 1, done.stderr
    for text in expected:
        assert text in done.stderr, done.stderr


def summary(done: subprocess.CompletedProcess, folder: pathlib.Path) -> dict:
    """What a training that succeeded says of itself."""
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "summary.json").read_text())


def metrics(folder: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


TIMES_AND_MEMORY = ("step_ms", "waited_ms", "tokens_per_second", "allocated_bytes", "reserved_bytes", "peak_bytes",
                    "peak_bytes_by_kind")


def numbers(folder: pathlib.Path) -> list[dict]:
    """Each step's metrics, but for what differs between two runs with the same bits."""
    return [{key: value for key, value in step.items() if key not in TIMES_AND_MEMORY} for step in metrics(folder)]


def losses(folder: pathlib.Path) -> list[float]:
    return [line["loss"] for line in metrics(folder)]


def prepare_bytes(folder: pathlib.Path, text: str) -> pathlib.Path:
    """The shards that scripts/prepare_data.py makes of the text, with the tokenizer of bytes, in a new folder there."""
    (folder / "text.txt").write_text(text)
    script = [sys.executable, ROOT / "scripts" / "prepare_data.py", "--bytes"]
    subprocess.run([*script, "--out", folder / "shards", folder / "text.txt"], check=True, capture_output=True)
    return folder / "shards"
