"""Ranks that cannot begin, die, hang, are stopped or run out of memory: all end with one line that says why, or go on alike."""
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import pytest
from programs import metrics, moelab, numbers, start_and_take_a_step
from rank_runs import RANKS, UNTIED, checkpoint, run, settings, torchrun

@pytest.mark.parametrize("setting, said", [
    ("parallel.data=3", "parallel.data=3 times parallel.tensor=1 times parallel.pipeline=1 takes 3 ranks; this run has 2"),
    ("parallel.tensor=4", "parallel.tensor=4 times parallel.pipeline=1 does not divide the 2 ranks of this run"),
    ("parallel.expert=4", "parallel.expert=4 does not divide the 2 data-parallel ranks"),
    ("placement.reshard_after_forward=false", "placement.reshard_after_forward=false with parallel.zero=0: only parallel.zero=3"),
])
def test_what_cannot_be_is_one_line_of_rank_0(tmp_path, corpus, setting, said):
    done = run(2, tmp_path / "run", corpus, 1, setting)
    assert done.returncode == 2
    assert done.stderr.startswith("moelab: ") and done.stderr.count("\n") == 1 and said in done.stderr


def test_without_gpus_ranks_on_them_are_refused_in_one_line_of_rank_0(tmp_path, corpus):
    done = run(2, tmp_path / "run", corpus, 1, "run.device=cuda")
    if done.returncode == 0:
        pytest.skip("this machine has GPUs")
    assert done.returncode == 2
    assert done.stderr.startswith("moelab: run.device=cuda: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("rank_1, said", [('set -- "$@" optim.lr=0.5', "settings"), ("cd other", "data in data.path")])
def test_ranks_with_other_settings_or_data_refuse_each_other(tmp_path, corpus, make_shards, rank_1, said):
    (tmp_path / "data").symlink_to(corpus)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/data").symlink_to(make_shards(21_000, 2_000))
    script = tmp_path / "rank.sh"
    script.write_text(f'#!/bin/sh\n[ "$RANK" = 0 ] || {rank_1}\nexec "$@"\n')
    script.chmod(0o755)
    command = [RANKS, 2, script, *settings(tmp_path / "run", "data", 1)]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"moelab: rank 1 has other {said} than rank 0; all ranks need the same\n"


def test_a_rank_that_never_comes_is_named_by_the_wait(tmp_path, corpus):
    alone = os.environ | {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29617"}
    done = subprocess.run([str(w) for w in settings(tmp_path / "run", corpus, 1, "parallel.timeout=2")], env=alone,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "the 2 ranks of this run did not all meet at 127.0.0.1:29617 within parallel.timeout (2 s)" in done.stderr


def start(tmp_path, corpus, *more, **how):
    """Two ranks that have taken a step of a long run: scripts/ranks.sh, and the process of rank 1."""
    folder = tmp_path / "run"
    command = [RANKS, 2, *settings(folder, corpus, 1, "train.steps=100000", "eval.batches=0", "eval.every=0", *more)]
    started = start_and_take_a_step([str(word) for word in command], folder / "ranks/1", text=True, **how)
    for process in subprocess.run(["pgrep", "-P", str(started.pid)], capture_output=True, text=True).stdout.split():
        if b"\0RANK=1\0" in pathlib.Path(f"/proc/{process}/environ").read_bytes():
            return started, int(process)
    raise AssertionError("rank 1 does not run")


def assert_names_a_lost_rank(errors, reason):
    """Whichever group of ranks 0 and 1 notices first is in the line."""
    said = [line for line in errors.splitlines() if line.startswith("moelab: ")]
    assert len(said) == 1 and re.fullmatch(
        r"moelab: rank 0: another rank has died or hung: (data|all)/\w+, communication \d+, rank 0 of 2: .*" + reason + ".*; "
        "look for what that rank said last, and go on from the last checkpoint with --resume latest", said[0]), errors
    assert "frame #" not in errors and "internal error" not in errors, errors


def test_when_a_rank_dies_all_end(tmp_path, corpus):
    started, rank_1 = start(tmp_path, corpus, stderr=subprocess.PIPE)
    os.kill(rank_1, signal.SIGKILL)
    errors = started.communicate(timeout=30)[1]
    assert started.returncode == 128 + signal.SIGKILL
    assert_names_a_lost_rank(errors, "Connection")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["status"] == "error" and summary["reason"].startswith("another rank has died or hung")


def with_little_memory_on_one_rank(tmp_path, corpus, share, *more, rank=1, layout="parallel.data=2"):
    """Runs as two ranks with micro-batches of 4 rows and of 2; the first with a memory.limit on one rank alone, at that share of
    the way from the peak of 2 rows to that of 4. Returns what they printed, and their folders."""
    def given(folder, micro_batch):
        return settings(folder, corpus, 8 // micro_batch, f"train.micro_batch={micro_batch}", "train.sequence=256", "precision.compute=bf16",
                        "eval.batches=0", "eval.every=0", layout, *more)

    def peak(micro_batch):
        command = [moelab(), "estimate", "--json", *given(tmp_path, micro_batch)[2:]]
        return json.loads(subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout)["peak_bytes"]

    limit = round(peak(2) + share * (peak(4) - peak(2)))
    script = tmp_path / "rank.sh"
    script.write_text(f'#!/bin/sh\n[ "$RANK" != {rank} ] || set -- "$@" memory.limit={limit}B\nexec "$@"\n')
    script.chmod(0o755)
    folders = tmp_path / "reduced", tmp_path / "small"
    printed = []
    for folder, micro_batch, wrapper in [(folders[0], 4, [script]), (folders[1], 2, [])]:
        command = [RANKS, 2, *wrapper, *given(folder, micro_batch)]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    losses = [[(step["loss"], step["micro_batch"]) for step in numbers(folder)] for folder in (folders[0], folders[0] / "ranks/1")]
    assert losses[0] == losses[1]
    return printed[0], *folders


@pytest.mark.parametrize("zero", range(4))
def test_when_one_rank_has_too_little_memory_all_repeat_the_step_in_smaller_micro_batches(tmp_path, corpus, zero):
    printed, reduced, small = with_little_memory_on_one_rank(tmp_path, corpus, 0.5, f"parallel.zero={zero}", "memory.critical=0.99",
                                                           "memory.emergency=1")
    assert "reducing batch size (4 x 2 to 2 x 4)" in printed, printed
    assert numbers(reduced) == numbers(small)
    assert checkpoint(reduced) == checkpoint(small)
    for folder in (reduced, reduced / "ranks/1"):
        assert json.loads((folder / "memory.json").read_text())["monitor"]["recoveries"] == 1


def test_when_one_stage_has_too_little_memory_all_repeat_the_step_in_smaller_micro_batches(tmp_path, corpus):
    """The first stage, which keeps the most passes, fails within the schedule, while the other waits for it."""
    printed, reduced, small = with_little_memory_on_one_rank(tmp_path, corpus, 0.5, "memory.critical=0.99", "memory.emergency=1", UNTIED,
                                                             rank=0, layout="parallel.pipeline=2")
    assert "reducing batch size (4 x 2 to 2 x 4)" in printed, printed
    assert numbers(reduced) == numbers(small) == numbers(reduced / "ranks/1")
    assert checkpoint(reduced) == checkpoint(small)


def test_when_no_micro_batch_is_small_enough_the_rank_says_so_and_all_end(tmp_path, corpus):
    script = tmp_path / "rank.sh"
    script.write_text('#!/bin/sh\n[ "$RANK" = 0 ] || set -- "$@" memory.limit=24MiB\nexec "$@"\n')
    script.chmod(0o755)
    command = [RANKS, 2, script, *settings(tmp_path / "run", corpus, 1, "train.micro_batch=4", "train.sequence=256", "parallel.zero=2",
                                           "monitor.snapshot=oom")]  # else the prediction ends it before it starts
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 3
    assert "the memory budget of 24.0 MiB cannot be met after step 0" in done.stderr, done.stderr
    assert "moelab: another rank has no more memory after step 0" in done.stderr
    for folder in (tmp_path / "run", tmp_path / "run/ranks/1"):
        assert json.loads((folder / "summary.json").read_text())["status"] == "oom"


def test_when_one_rank_is_nearly_full_all_take_smaller_micro_batches(tmp_path, corpus):
    printed, reduced, _ = with_little_memory_on_one_rank(tmp_path, corpus, 1.1, "parallel.zero=2")
    assert "reducing batch size (4 x 2 to 2 x 4)" in printed, printed
    assert [step["micro_batch"] for step in numbers(reduced)] == [4, 2, 2, 2]


def is_rank(process: int) -> bool:
    try:
        return b"\0RANK=" in pathlib.Path(f"/proc/{process}/environ").read_bytes()
    except OSError:  # it has just ended
        return False


def kill_often(command, folder, kills, seed):
    """Runs the command, which restarts its ranks, and kills a random one of them every now and then. Returns its exit code."""
    rng = random.Random(seed)
    started = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while kills > 0 and started.poll() is None:
        time.sleep(rng.uniform(1, 4))
        children = subprocess.run(["pgrep", "-P", str(started.pid)], capture_output=True, text=True).stdout.split()
        ranks = [int(one) for one in children if is_rank(int(one))]
        with contextlib.suppress(IndexError, ProcessLookupError):  # there is none, or it has just ended
            os.kill(rng.choice(ranks), signal.SIGKILL)
            kills -= 1
    return started.wait(timeout=300)


@pytest.mark.parametrize("launcher, zero", [("ranks.sh", 0), ("ranks.sh", 2), ("torchrun", 3)])
def test_ranks_that_are_killed_start_again_and_end_with_the_same_bits(tmp_path, corpus, launcher, zero):
    given = [corpus, 1, "train.steps=60", "checkpoint.every=3", f"parallel.zero={zero}"]
    start = [*torchrun(), "--max-restarts=9"] if launcher == "torchrun" else [RANKS, "--restarts", 9, 2]
    assert run(2, tmp_path / "whole", *given).returncode == 0
    command = [*start, *settings(tmp_path / "killed", *given), "--resume", "auto"]
    assert kill_often(command, tmp_path / "killed", 3, seed=zero) == 0
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")
    assert checkpoint(tmp_path / "killed") == checkpoint(tmp_path / "whole")


def test_a_rank_that_hangs_is_named_after_the_timeout(tmp_path, corpus):
    started, rank_1 = start(tmp_path, corpus, "parallel.timeout=3", stderr=subprocess.PIPE)
    os.kill(rank_1, signal.SIGSTOP)
    errors = started.communicate(timeout=60)[1]  # scripts/ranks.sh kills the one that does not end
    assert started.returncode == 1
    assert_names_a_lost_rank(errors, "[Tt]imed out waiting 3000ms")


def test_when_one_rank_cannot_write_no_checkpoint_is_complete(tmp_path, corpus):
    script = tmp_path / "rank.sh"
    script.write_text('#!/bin/sh\n[ "$RANK" = 0 ] || ulimit -f 500\nexec "$@"\n')
    script.chmod(0o755)
    command = [RANKS, 2, script, *settings(tmp_path / "run", corpus, 1, "parallel.zero=2", "checkpoint.every=1")]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "-1.safetensors: File too large (EFBIG)" in done.stderr
    assert "step-1: not saved, because rank 1 could not write its part" in done.stderr
    assert list((tmp_path / "run/checkpoints").iterdir()) == []
    for folder in (tmp_path / "run", tmp_path / "run/ranks/1"):
        assert json.loads((folder / "summary.json").read_text())["status"] == "error"


@pytest.mark.parametrize("name, more", [("SIGTERM", []), ("SIGINT", ["parallel.pipeline=2"])])
def test_a_signal_to_one_rank_stops_and_saves_all(tmp_path, corpus, name, more):
    started, rank_1 = start(tmp_path, corpus, *more)
    os.kill(rank_1, getattr(signal, name))
    assert started.wait(timeout=30) == 0
    steps = len(metrics(tmp_path / "run"))
    assert (tmp_path / f"run/checkpoints/step-{steps}").exists()
    reasons = [json.loads((folder / "summary.json").read_text())["reason"] for folder in (tmp_path / "run", tmp_path / "run/ranks/1")]
    assert reasons == ["a signal to another rank", name]
