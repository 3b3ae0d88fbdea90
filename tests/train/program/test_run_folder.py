"""What moelab train does with a folder that holds a run already."""

import fcntl
import json
import os
import pathlib
import shutil

import programs
import pytest

RANKS = programs.ROOT / "scripts/ranks.sh"


@pytest.fixture(scope="session")
def shards(make_shards) -> pathlib.Path:
    return make_shards(20_000, 2_000)


def command(shards, run, *arguments) -> list[str]:
    settings = {
        "data.path": shards, "run.dir": run, "model.vocab": 256, "model.layers": 2, "train.sequence": 32,
        "train.micro_batch": 2, "train.steps": 2, "eval.batches": 0, "run.threads": 1,
    }  # fmt: skip
    return programs.train_command(settings, "--device", "cpu", *arguments)


def train(shards, run, *arguments):
    return programs.run(command(shards, run, *arguments))


def contents(folder: pathlib.Path) -> dict:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def steps(run: pathlib.Path) -> list[int]:
    return [line["step"] for line in programs.metrics(run)]


@pytest.fixture(scope="session")
def two_steps(shards, tmp_path_factory) -> pathlib.Path:
    run = tmp_path_factory.mktemp("runs") / "two_steps"
    assert train(shards, run).returncode == 0
    return run


def test_a_run_is_evaluated_by_its_folder(two_steps):
    """With the settings that it was trained with, by its newest checkpoint."""
    losses = set()
    for words in (["--config", two_steps], ["--checkpoint", two_steps], ["--config", two_steps / "checkpoints/step-2"],
                  ["--config", two_steps / "config.yaml", "--checkpoint", two_steps / "checkpoints/step-2"]):
        done = programs.run([programs.moelab(), "eval", *map(str, words), "eval.batches=2"])
        assert done.returncode == 0 and "step-2: held-out loss " in done.stdout, done
        losses.add(done.stdout.split("step-2: ")[1])
    assert len(losses) == 1


@pytest.mark.parametrize("arguments, why", [
    (["run.dir={0}/file"], "run.dir={0}/file: {0}/file is a file; give a folder"),
    (["run.dir={0}/file/below"], "{0}/file is a file"),
    (["checkpoint.dir={0}/file"], "checkpoint.dir={0}/file: "),
    (["--resume", "latest"], "--resume latest: there is no checkpoint in {0}/run/checkpoints; leave --resume out to start"),
    (["--resume", "{0}/none"], "--resume {0}/none: no such folder")])
def test_a_folder_that_cannot_be_used_is_named_before_anything_is_said(shards, tmp_path, arguments, why):
    (tmp_path / "file").write_text("mine")
    done = train(shards, tmp_path / "run", *[one.format(tmp_path) for one in arguments])
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done
    assert done.stderr.startswith("moelab: ") and why.format(tmp_path) in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


@pytest.fixture
def used(two_steps, tmp_path) -> pathlib.Path:
    """A folder with a run of two steps, and with files that are not the run's."""
    shutil.copytree(two_steps, tmp_path / "used")
    for name in ("notes.txt", "checkpoints/best.txt", "ranks/1/notes.txt"):
        (tmp_path / "used" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "used" / name).write_text("mine")
    return tmp_path / "used"


def test_a_folder_that_holds_a_run_is_left_as_it_is(shards, used):
    before = contents(used)
    ways = ("--resume latest", "run.dir=FOLDER", "--overwrite")
    programs.expect_mistake(train(shards, used, "train.steps=5"), f"{used} holds a run of 2 steps; ", *ways)
    # another folder for the records does not make the checkpoints free
    elsewhere = train(shards, used.parent / "new", f"checkpoint.dir={used}/checkpoints")
    programs.expect_mistake(elsewhere, f"{used}/checkpoints holds a run of 2 steps; ", *ways)
    both = train(shards, used, "--resume=latest", "--overwrite")
    programs.expect_mistake(both, "--resume excludes --overwrite")
    ranks = programs.run([RANKS, 2, *command(shards, used)])
    assert ranks.returncode == 2 and ranks.stderr.count(f"{used} holds a run of 2 steps; ") == 1, ranks
    assert contents(used) == before and not (used.parent / "new").exists()


def test_the_ways_on_are_those_that_there_are(shards, tmp_path):
    named = [word for word in command(shards, "none", "checkpoint.keep=0", "run.name=mine") if "run.dir" not in word]
    assert programs.run(named, cwd=tmp_path).returncode == 0
    refused = programs.run(named, cwd=tmp_path)
    programs.expect_mistake(refused, "runs/mine holds a run of 2 steps; it left no checkpoint", "run.name=NAME")
    assert "--resume" not in refused.stderr


def test_overwrite_deletes_the_run_and_nothing_else(shards, used):
    stale = ["samples.jsonl", "profile.txt", "trace.json", "snapshot-step-1.json", "memory.json.tmp",
             "ranks/1/metrics.jsonl", "ranks/1/summary.json", "ranks/2/metrics.jsonl",
             "events.out.tfevents.000002.moelab", "checkpoints/step-9.superseded/state.json",
             "checkpoints/step-7.damaged/state.json"]  # fmt: skip
    for name in stale:
        (used / name).parent.mkdir(parents=True, exist_ok=True)
        (used / name).write_text("old")
    before = contents(used)
    programs.expect_mistake(train(shards, used, "--overwrite", "data.path=/none"), "/none")
    assert contents(used) == before, "a mistake costs nothing"
    assert train(shards, used, "--overwrite", "train.steps=1").returncode == 0
    assert steps(used) == [1] and not any((used / name).exists() for name in stale)
    assert not (used / "ranks/2").exists() and len(list(used.glob("events.*"))) == 1
    assert sorted(path.name for path in (used / "checkpoints").iterdir()) == ["LATEST", "best.txt", "step-1"]
    assert [(used / name).read_text() for name in ("notes.txt", "ranks/1/notes.txt")] == ["mine", "mine"]


def test_a_checkpoint_of_another_run_goes_on_in_a_folder_of_its_own(shards, used, tmp_path):
    assert train(shards, tmp_path / "other", "train.steps=1").returncode == 0
    other = ("--resume=" + str(used / "checkpoints/step-2"), "train.steps=3")
    before = contents(tmp_path / "other")
    refused = train(shards, tmp_path / "other", *other)
    programs.expect_mistake(refused, "other holds a run of 1 step; run.dir=FOLDER starts another run elsewhere from")
    assert contents(tmp_path / "other") == before
    assert train(shards, tmp_path / "new", *other).returncode == 0 and steps(tmp_path / "new") == [3]
    assert train(shards, used, *other).returncode == 0 and steps(used) == [1, 2, 3]


def test_records_of_later_steps_go_when_a_run_goes_on_from_an_earlier_one(shards, used):
    """Samples too, although the resumed run writes none itself."""
    (used / "samples.jsonl").write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 5)))
    assert train(shards, used, "--resume=latest", "train.steps=3").returncode == 0
    assert [json.loads(line)["step"] for line in (used / "samples.jsonl").read_text().splitlines()] == [1, 2]


def test_what_a_run_without_a_step_left_is_no_obstacle(shards, tmp_path):
    for name in ("metrics.jsonl", "samples.jsonl", "summary.json"):
        (tmp_path / name).write_text("")
    assert train(shards, tmp_path, "train.steps=1").returncode == 0
    assert steps(tmp_path) == [1] and not (tmp_path / "samples.jsonl").exists()


@pytest.mark.parametrize("how", ["--overwrite", "--resume=latest"])
def test_a_folder_where_a_run_is_writing_is_left_alone(shards, used, how):
    before = contents(used)
    lock = os.open(used, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # as a run does
    programs.expect_mistake(train(shards, used, how, "train.steps=3"), f"{used}: another run is writing there")
    os.close(lock)
    assert contents(used) == before
