"""moelab train interrupted from outside: by SIGTERM or SIGINT in every phase, a limit on file sizes, a damaged checkpoint,
changed settings. What a run resumed after that leaves is compared with an uninterrupted one, bit by bit."""

import json
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import time

import programs
import pytest

STEPS = 12


@pytest.fixture(scope="session")
def shards(make_shards, tmp_path_factory) -> pathlib.Path:
    """With a tokenizer, for samples; the ids themselves are random."""
    shards = make_shards(20_000, 380_000)
    shutil.copy(programs.prepare_bytes(tmp_path_factory.mktemp("text"), "text\n" * 100) / "tokenizer.json", shards)
    return shards


def command(shards: pathlib.Path, run: pathlib.Path, *arguments) -> list[str]:
    settings = {
        "data.path": shards, "run.dir": run, "model.vocab": 256, "train.sequence": 32, "train.micro_batch": 2,
        "train.accumulation": 2, "train.steps": STEPS, "eval.batches": 0, "checkpoint.every": 2, "checkpoint.keep": 3,
        "run.threads": 1, "run.log_every": 1,
    }  # fmt: skip
    return programs.train_command(settings, *arguments)


def train(shards, run, *arguments, **how) -> subprocess.CompletedProcess:
    return programs.run(command(shards, run, *arguments), **how)


def result(run: pathlib.Path) -> tuple:
    """Losses of all steps, and the hashes of the last checkpoint's weights and optimizer state."""
    manifest = json.loads((run / f"checkpoints/step-{STEPS}/manifest.json").read_text())["body"]["files"]
    tensors = {name: manifest[name]["xxh3_128"] for name in ("model.safetensors", "optimizer.safetensors")}
    return [(line["step"], line["tokens"], line["loss"], line["grad_norm"]) for line in programs.metrics(run)], tensors


@pytest.fixture(scope="session")
def uninterrupted(shards, tmp_path_factory) -> tuple:
    run = tmp_path_factory.mktemp("uninterrupted")
    done = train(shards, run)
    assert done.returncode == 0, done.stderr
    return result(run)


def checkpoints(run: pathlib.Path) -> list[int]:
    """The steps of which there is a whole checkpoint; nothing else may be left."""
    names = [path.name for path in (run / "checkpoints").iterdir() if path.name != "LATEST"]
    assert all(re.fullmatch(r"step-\d+", name) for name in names), names
    return sorted(int(name.removeprefix("step-")) for name in names)


def catches_sigterm(process) -> bool:
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    caught = int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def has_started(process, run) -> bool:
    """The files of the run are there: what follows is the first step, then its evaluation."""
    return (run / "metrics.jsonl").exists() and (time.sleep(1.5) or True)


def takes_samples(process, run) -> bool:
    """The first step is in the metrics: what follows are its samples."""
    metrics = run / "metrics.jsonl"
    return metrics.exists() and metrics.stat().st_size > 0 and (time.sleep(0.5) or True)


PHASES = {
    "start": ([], lambda process, run: catches_sigterm(process)),
    "first step": ([], lambda process, run: (run / "metrics.jsonl").exists()),
    "steps": ([], lambda process, run: (run / "checkpoints/step-4").exists()),
    # Long enough (11 875 batches) that it can't be over when the signal comes.
    "evaluation": (["eval.every=1", "eval.batches=100000", "eval.micro_batch=1"], has_started),
    "saving": (["checkpoint.every=1"], lambda process, run: any((run / "checkpoints").glob("step-*.tmp-*"))),
    # One prompt of 3000 at a time: minutes.
    "sampling": (["sample.every=1", "sample.prompt=@PROMPTS", "sample.max_sequences=1"], takes_samples),
}


def summary(run: pathlib.Path) -> dict:
    return json.loads((run / "summary.json").read_text())


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_checkpoint_and_a_summary(shards, tmp_path, uninterrupted, phase, number):
    arguments, reached = PHASES[phase]
    (tmp_path / "prompts").write_text("text\n" * 3000)
    arguments = [argument.replace("PROMPTS", str(tmp_path / "prompts")) for argument in arguments]
    process = subprocess.Popen(command(shards, tmp_path, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not reached(process, tmp_path):
        assert process.poll() is None
    process.send_signal(number)
    said, at_once = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert ("a second signal ends this at once" in at_once) == (number == signal.SIGINT)
    stopped = int(re.search(rf"{number.name}: stopped after step (\d+); this goes on from there: ", said)[1])
    way_on = shlex.split(re.search("goes on from there: (.*)\n", said)[1])
    assert way_on == [*command(shards, tmp_path, *arguments), "--resume", "latest"]
    assert stopped < STEPS and checkpoints(tmp_path)[-1] == stopped
    told = summary(tmp_path)
    assert (told["status"], told["reason"], told["steps"]) == ("ok", number.name, stopped)
    if phase == "evaluation":
        assert stopped == 1 and "held-out" not in said
    if phase == "sampling":
        assert stopped == 1 and "samples:" not in said
    resumed = train(shards, tmp_path, "--resume", "latest")
    assert resumed.returncode == 0 and f"after step {stopped}\n" in resumed.stdout, resumed
    assert result(tmp_path) == uninterrupted


MOMENTS = 16


def test_a_signal_at_any_moment_ends_the_run_or_comes_before_it(shards, tmp_path):
    """Spread over the life of a process: until it takes signals there is no file; from then on it ends as a success."""
    begin = time.monotonic()
    assert train(shards, tmp_path / "whole", "train.steps=2").returncode == 0
    life = time.monotonic() - begin
    codes = set()
    for moment in range(MOMENTS):
        run = tmp_path / str(moment)
        process = subprocess.Popen(command(shards, run, "train.steps=2"), stdout=subprocess.PIPE, text=True)
        time.sleep(life * moment / MOMENTS)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        codes.add(process.returncode)
        if process.returncode == 0:
            assert summary(run)["status"] == "ok"
        else:
            assert process.returncode == -signal.SIGTERM and not run.exists()
    assert codes == {0, -signal.SIGTERM}


def test_a_signal_while_the_program_exits_changes_nothing(shards, tmp_path):
    """At the end of its output a run is over, and the process is not yet."""
    for trial in range(5):
        words = command(shards, tmp_path / str(trial), "train.steps=2")
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        while "files in" not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(0.002 * trial)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0 and summary(tmp_path / str(trial))["reason"] is None


def test_a_run_of_no_steps_evaluates_and_saves_and_a_finished_one_says_so(shards, tmp_path):
    begun = train(shards, tmp_path, "train.steps=0", "eval.batches=2")
    assert begun.returncode == 0 and "[Step 0] held-out loss" in begun.stdout, begun
    assert "nan tokens" not in begun.stdout and checkpoints(tmp_path) == [0]
    trained = train(shards, tmp_path, "train.steps=2", "eval.batches=2", "--resume", "latest")
    assert trained.returncode == 0 and "resumed from" in trained.stdout and checkpoints(tmp_path)[-1] == 2, trained
    records = {path.name: path.read_bytes() for path in tmp_path.glob("*.json*")}
    again = train(shards, tmp_path, "train.steps=2", "eval.batches=2", "--resume", "latest")
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.json*")} == records
    assert again.returncode == 0 and "nan tokens" not in again.stdout and "saved" not in again.stdout
    assert "the checkpoint is after step 2, where train.steps ends; a larger train.steps goes on" in again.stdout


def test_file_size_limit_is_a_clean_error(shards, tmp_path):
    """An error and no kill; the checkpoint before it stays, and goes on without the limit."""
    assert train(shards, tmp_path, "train.steps=2").returncode == 0
    limited = train(shards, tmp_path, "--resume", "latest", **programs.limited_files(100_000))
    assert limited.returncode == 2, limited
    assert re.fullmatch(r"moelab: cannot write \S+/model.safetensors: File too large \(EFBIG\)\n", limited.stderr)
    assert checkpoints(tmp_path) == [2]
    assert train(shards, tmp_path, "--resume", "latest").returncode == 0


@pytest.mark.parametrize("source", ["latest", "checkpoints/step-12"])
def test_a_damaged_checkpoint_is_passed_over_and_said_so(shards, tmp_path, uninterrupted, source):
    assert train(shards, tmp_path).returncode == 0
    assert checkpoints(tmp_path) == [8, 10, 12]
    damaged = tmp_path / "checkpoints/step-12/optimizer.safetensors"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 4
    damaged.write_bytes(content)
    resumed = train(shards, tmp_path, "--resume", source if source == "latest" else str(tmp_path / source))
    assert resumed.returncode == 0
    assert "step-12/optimizer.safetensors: damaged" in resumed.stderr
    assert f"fell back to the checkpoint {tmp_path}/checkpoints/step-10" in resumed.stderr
    assert "after step 10\n" in resumed.stdout
    assert result(tmp_path) == uninterrupted


@pytest.mark.parametrize("setting, before", [
    ("model.experts_per_token=1", "2"), ("model.rope_theta=5000", "10000.0"), ("model.capacity_factor=2", "1.25"),
    ("model.d_expert=64", None),
])  # fmt: skip
def test_a_changed_model_setting_is_named(shards, tmp_path, setting, before):
    assert train(shards, tmp_path, "train.steps=2").returncode == 0
    metrics = (tmp_path / "metrics.jsonl").read_text()
    resumed = train(shards, tmp_path, "--resume", "latest", setting)
    assert resumed.returncode == 2, resumed
    key, value = setting.split("=")
    expected = rf"{key} was {re.escape(before) if before else '.*'}, now {value}(\.0)?; "
    assert resumed.stderr.count("\n") == 1 and re.search(expected, resumed.stderr), resumed.stderr
    assert (tmp_path / "metrics.jsonl").read_text() == metrics and checkpoints(tmp_path) == [2]


def test_what_saving_cost_is_reported(shards, tmp_path):
    done = train(shards, tmp_path)
    saved = json.loads((tmp_path / "summary.json").read_text())["checkpoints"]
    files = sum(path.stat().st_size for path in (tmp_path / f"checkpoints/step-{STEPS}").iterdir())
    assert saved["saved"] == STEPS // 2 and saved["bytes"] == files
    assert 0 < saved["blocked_seconds"] and 0 < saved["write_seconds"]
    assert f"{STEPS // 2} checkpoints of " in done.stdout
