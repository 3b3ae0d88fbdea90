"""Data-parallel ranks: the numbers and the bits of one rank that takes as many micro-batches, and errors that end all."""
import contextlib
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from programs import ROOT, metrics, moelab, numbers, start_and_take_a_step  # noqa: E402

RANKS = ROOT / "scripts/ranks.sh"
MICRO_BATCHES = 6  # of a step, over all ranks


@pytest.fixture(scope="session")
def corpus(make_shards) -> pathlib.Path:
    return make_shards(20_000, 2_000)


def settings(folder, data, accumulation, *more):
    given = {"data.path": data, "run.dir": folder, "train.steps": 4, "train.micro_batch": 2, "train.sequence": 32, "model.vocab": 256,
             "train.accumulation": accumulation, "eval.batches": 5, "eval.every": 2, "run.log_every": 1,
             "parallel.timeout": 20, "run.threads": 1} | dict(one.split("=", 1) for one in more)
    return [moelab(), "train", "--config", "moe-pico", *(f"{key}={value}" for key, value in given.items())]


def run(ranks, *arguments):
    command = settings(*arguments)
    if ranks > 1:
        command = [RANKS, ranks, *command]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)


def checkpoint(folder):
    """Each whole tensor of the newest checkpoint, from the files of the ranks that wrote it."""
    newest = max((folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    pieces = {}
    for name, file in json.loads((newest / "manifest.json").read_text())["body"]["files"].items():
        if "tensors" not in file:
            continue
        written = (newest / name).read_bytes()
        length = int.from_bytes(written[:8], "little")
        header = json.loads(written[8:8 + length])
        for tensor, entry in file["tensors"].items():
            begin, end = (8 + length + at for at in header[tensor]["data_offsets"])
            part = entry.get("part", {"shape": entry["shape"], "first": 0})
            whole = name.split("-")[0].split(".")[0], tensor, entry["dtype"], *part["shape"]
            pieces.setdefault(whole, []).append((part["first"], written[begin:end]))
    return {whole: hashlib.sha256(b"".join(piece for _, piece in sorted(parts))).hexdigest() for whole, parts in pieces.items()}


CASES = {"fp32": [], "bf16": ["precision.compute=bf16"], "sigmoid": ["model.router=sigmoid"], "dropless": ["model.dispatch=dropless"],
         "host": ["placement.gradients=host", "placement.optimizer=host", "precision.compute=bf16"],
         "drive": ["placement.gradients=nvme", "placement.nvme_path=."], "muon": ["optim.name=muon"],
         "recomputed": ["activations.checkpoint=full", "activations.storage=int8"],
         "zero_1": ["parallel.zero=1", "precision.compute=bf16"],
         "zero_2": ["parallel.zero=2", "placement.gradients=host", "placement.optimizer=nvme", "placement.nvme_path=.",
                    "optim.name=adamw_compact", "precision.compute=bf16"],
         "zero_3": ["parallel.zero=3", "precision.compute=bf16", "activations.checkpoint=full"],
         "zero_3_kept": ["parallel.zero=3", "placement.reshard_after_forward=false", "optim.name=muon"],
         "zero_3_host": ["parallel.zero=3", "placement.parameters=host", "precision.compute=bf16", "precision.store=int8"]}


@pytest.fixture(scope="module", params=CASES)
def case_alone(request, tmp_path_factory, corpus):
    """A case's settings, and what one rank left that took them but for those about ranks."""
    given = CASES[request.param]
    folder = tmp_path_factory.mktemp("one")
    alone = [setting for setting in given if not setting.startswith(("parallel.", "placement.reshard"))]
    assert run(1, folder, corpus, MICRO_BATCHES, *alone).returncode == 0
    return given, numbers(folder), checkpoint(folder)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_have_the_bits_of_one(tmp_path, corpus, case_alone, ranks):
    given, numbers_alone, checkpoint_alone = case_alone
    several = tmp_path / "several"
    done = run(ranks, several, corpus, MICRO_BATCHES // ranks, "parallel.check=true", *given)
    assert done.returncode == 0, done.stderr
    assert numbers(several) == numbers_alone
    assert checkpoint(several) == checkpoint_alone
    for rank in range(1, ranks):  # all ranks know the same
        assert numbers(several / f"ranks/{rank}") == numbers_alone


def without_held_out(lines):
    return [{key: value for key, value in line.items() if key != "held_out_loss"} for line in lines]


# in fp32, evaluation alone may differ: it is dropless, and the sums of products depend on where an expert's rows lie
@pytest.mark.parametrize("ranks, experts, more", [(4, 2, ["parallel.zero=0"]),
                                                  (2, 2, ["parallel.zero=3", "precision.compute=bf16"])])
def test_ranks_that_share_the_experts_have_the_bits_of_one(tmp_path, corpus, ranks, experts, more):
    one, several = tmp_path / "one", tmp_path / "several"
    alone = [setting for setting in more if not setting.startswith("parallel.")]
    assert run(1, one, corpus, 4, *alone).returncode == 0
    done = run(ranks, several, corpus, 4 // ranks, f"parallel.expert={experts}", "parallel.check=true", *more)
    assert done.returncode == 0, done.stderr
    assert f"{ranks} data-parallel ranks, with {4 // experts} experts each" in done.stdout
    same = (lambda lines: lines) if "precision.compute=bf16" in more else without_held_out
    assert same(numbers(several)) == same(numbers(one))
    assert checkpoint(several) == checkpoint(one)
    assert numbers(several / "ranks/1") == numbers(several)
    for folder in [several, *(several / f"ranks/{rank}" for rank in range(1, ranks))]:
        summary = json.loads((folder / "summary.json").read_text())
        assert 0 <= summary["peak_tensor_bytes"] - summary["estimated_peak_bytes"] <= 4, folder
        assert summary["communication"]["sent_bytes"]["expert/rows"] > 0
    assert export(several / "checkpoints/step-4", tmp_path / "exported") == export(one / "checkpoints/step-4", tmp_path / "whole")


UNTIED = "model.tie_embeddings=false"


def export(checkpoint_folder, to):
    subprocess.run([moelab(), "export", checkpoint_folder, to], capture_output=True, text=True, check=True)
    return (to / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def untied_alone(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("untied")
    assert run(1, folder, corpus, 4, UNTIED, "checkpoint.every=2").returncode == 0
    return folder


def test_stages_of_a_pipeline_have_the_bits_of_one_rank(tmp_path, corpus, untied_alone):
    stages = tmp_path / "stages"
    done = run(2, stages, corpus, 4, UNTIED, "parallel.pipeline=2", "parallel.check=true", "activations.checkpoint=every",
               "activations.every=2")
    assert done.returncode == 0, done.stderr
    assert "2 stages of a pipeline, 1f1b" in done.stdout
    assert numbers(stages) == numbers(stages / "ranks/1") == numbers(untied_alone)
    assert checkpoint(stages) == checkpoint(untied_alone)
    first, last = (json.loads((folder / "summary.json").read_text()) for folder in (stages, stages / "ranks/1"))
    for summary in (first, last):
        assert 0 <= summary["peak_tensor_bytes"] - summary["estimated_peak_bytes"] <= 4
        stage = summary["communication"]["stage"]
        assert 0 < stage["forward_seconds"] < stage["backward_seconds"] and stage["waited_seconds"] > 0
    message = 2 * 32 * 128 * 4 + 2 * 4  # a micro-batch's rows, tokens, width, bytes of fp32; two losses
    assert last["communication"]["sent_bytes"]["pipeline/gradients"] == 4 * 4 * message
    assert first["communication"]["sent_bytes"]["pipeline/gradients"] == 0
    assert export(stages / "checkpoints/step-4", tmp_path / "a") == export(untied_alone / "checkpoints/step-4", tmp_path / "b")


@pytest.mark.parametrize("ranks, accumulation, layout", [
    (4, 2, ["parallel.pipeline=2", "parallel.data=2", "parallel.zero=1"]),
    (2, 4, ["parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.chunks=2"])])
def test_runs_go_on_with_other_stages(tmp_path, corpus, untied_alone, ranks, accumulation, layout):
    folder = tmp_path / "run"
    shutil.copytree(untied_alone / "checkpoints/step-2", folder / "checkpoints/step-2")
    command = [RANKS, ranks, *settings(folder, corpus, accumulation, UNTIED, *layout, "train.steps=3"), "--resume", "latest"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    command = [*settings(folder, corpus, 4, UNTIED), "--resume", "latest"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert checkpoint(folder) == checkpoint(untied_alone)


@pytest.mark.parametrize("ranks, more", [(2, ["train.accumulation=2", "model.kv_heads=2"]),
                                         (4, ["train.accumulation=1", "parallel.zero=3", "placement.optimizer=host"]),
                                         (4, ["train.accumulation=2", "parallel.pipeline=2", UNTIED])])
def test_ranks_that_share_each_matrix_come_close_to_one(tmp_path, corpus, ranks, more):
    one, several = tmp_path / "one", tmp_path / "several"
    alone = [setting for setting in more if not setting.startswith(("parallel.", "train.accumulation"))]
    assert run(1, one, corpus, 2, *alone).returncode == 0
    done = run(ranks, several, corpus, 2, "parallel.tensor=2", "parallel.check=true", *more)
    assert done.returncode == 0, done.stderr
    assert "2 tensor-parallel ranks have a slice of each matrix" in done.stdout
    for step, want in zip(numbers(several), numbers(one), strict=True):
        assert step.keys() == want.keys()
        for key in ("loss", "grad_norm", "balance_loss", "held_out_loss"):
            assert want[key] is None or step[key] == pytest.approx(want[key], rel=1e-4), key
    for rank in range(1, ranks):  # all ranks know the same
        assert numbers(several / f"ranks/{rank}") == numbers(several)
    for folder in [several, *(several / f"ranks/{rank}" for rank in range(1, ranks))]:
        summary = json.loads((folder / "summary.json").read_text())
        assert 0 <= summary["peak_tensor_bytes"] - summary["estimated_peak_bytes"] <= 4, folder
        assert summary["communication"]["sent_bytes"]["tensor/sums"] > 0
    sizes = []
    for folder in (one, several):
        subprocess.run([moelab(), "export", folder / "checkpoints/step-4", folder / "hf"], capture_output=True, text=True, check=True)
        subprocess.run([moelab(), "eval", "--config", folder / "config.yaml"], capture_output=True, text=True, check=True)
        sizes.append((folder / "hf/model.safetensors").stat().st_size)
    assert sizes[0] == sizes[1]
    # one rank goes on from what several have written, and they from what it has
    for steps, count, settings_of_them in [(5, 1, alone), (6, ranks, [*more, "parallel.tensor=2"])]:
        command = settings(several, corpus, 2, *settings_of_them, f"train.steps={steps}")
        done = subprocess.run([str(word) for word in ([RANKS, ranks] if count > 1 else []) + [*command, "--resume", "latest"]],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert f"after step {steps - 1}" in done.stdout


def test_rank_0_alone_speaks(tmp_path, corpus):
    done = run(2, tmp_path / "run", corpus, 2)
    assert done.stdout.count("[Step 1/4]") == 1 and "on 2 ranks" in done.stdout
    summary = json.loads((tmp_path / "run/ranks/1/summary.json").read_text())
    parameters, steps, micro_batches = summary["model"]["parameters"], 4, 2
    communication = summary["communication"]
    assert 0 < communication["waited_seconds"] <= communication["seconds"] and 0 <= communication["hidden_share"] < 1
    sent = communication["sent_bytes"]
    assert sent["data/gradients"] == parameters * 4 * steps * micro_batches  # fp32, to one other rank
    assert not (tmp_path / "run/ranks/1/checkpoints").exists()


HOMES = {"device": ["precision.compute=bf16"],
         "away": ["precision.compute=bf16", "placement.parameters=host", "placement.gradients=host", "placement.optimizer=nvme",
                  "placement.nvme_path=."]}


@pytest.mark.parametrize("homes", HOMES)
@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_estimate_of_a_rank_is_what_was_measured(tmp_path, corpus, ranks, zero, homes):
    done = run(ranks, tmp_path / "run", corpus, 2, "train.steps=3", f"parallel.zero={zero}", "checkpoint.keep=0", *HOMES[homes])
    assert done.returncode == 0, done.stderr
    for folder in [tmp_path / "run", *(tmp_path / f"run/ranks/{rank}" for rank in range(1, ranks))]:
        summary = json.loads((folder / "summary.json").read_text())
        # a step's share of a micro-batch is a scalar that the dry run does not make on the device
        assert 0 <= summary["peak_tensor_bytes"] - summary["estimated_peak_bytes"] <= 4, folder
        assert len(summary["ranks"]) == ranks and summary["ranks"][0]["peak_bytes"] > 0


@pytest.mark.parametrize("zero", range(4))
def test_the_ranks_send_what_theory_says(tmp_path, corpus, zero):
    """P (N - 1) elements are all parts that N - 1 other ranks need: of a gradient once a micro-batch, of a weight once."""
    ranks, steps, accumulation = 3, 3, 2
    assert run(ranks, tmp_path / "run", corpus, accumulation, f"train.steps={steps}", f"parallel.zero={zero}", "checkpoint.keep=0",
               "eval.batches=0", "eval.every=0").returncode == 0
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "run").rglob("summary.json")]
    sent = {use: sum(one["communication"]["sent_bytes"][f"data/{use}"] for one in summaries) for use in ("gradients", "weights", "updates")}
    P, D = summaries[0]["model"]["parameters"], summaries[0]["settings"]["model"]["d_model"]
    exchange = 4 * P * (ranks - 1)  # in fp32
    passes = steps * accumulation
    assert sent["gradients"] == exchange * passes * (ranks if zero == 0 else 1)
    norm = 4 * (ranks - 1) * D
    assert sent["updates"] == (0, exchange, exchange, norm)[zero] * steps
    # blocks for forward and for backward; what is embedding and head in one for both of its uses
    assert summaries[0]["settings"]["model"]["tie_embeddings"]
    assert sent["weights"] == (2 * (exchange - norm) if zero == 3 else 0) * passes


@pytest.mark.parametrize("before, after", [(0, 0), (3, 1), (0, 3)])
def test_a_run_goes_on_with_another_number_of_ranks_and_stage(tmp_path, corpus, before, after):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    given = ["precision.compute=bf16", "optim.name=adam8bit"]
    assert run(1, whole, corpus, 6, *given).returncode == 0
    assert run(3, parted, corpus, 2, *given, "train.steps=2", f"parallel.zero={before}").returncode == 0
    resumed = subprocess.run([str(w) for w in [RANKS, 2, *settings(parted, corpus, 3, *given, f"parallel.zero={after}"), "--resume", "latest"]],
                             capture_output=True, text=True, timeout=120)
    assert resumed.returncode == 0, resumed.stderr
    assert checkpoint(parted) == checkpoint(whole)
    assert [step["loss"] for step in metrics(parted)] == [step["loss"] for step in metrics(whole)]


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
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
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
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
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


def torchrun():
    command = [sys.executable, "-m", "torch.distributed.run"]
    if subprocess.run([*command, "--help"], capture_output=True).returncode != 0:
        pytest.skip("torchrun cannot be imported beside this installation of LibTorch")
    return [*command, "--standalone", "--no-python", "--nproc-per-node=2"]


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


def test_commands_take_the_checkpoint_of_several_ranks_as_it_is(tmp_path, corpus):
    one, several = tmp_path / "one", tmp_path / "several"
    said = {}
    for folder, ranks, stage in [(one, 1, 0), (several, 2, 3)]:
        assert run(ranks, folder, corpus, 2 // ranks, f"parallel.zero={stage}").returncode == 0
        newest = folder / "checkpoints/step-4"
        evaluated = subprocess.run([moelab(), "eval", "--config", folder / "config.yaml", "parallel.zero=0", "parallel.data=0"],
                                   capture_output=True, text=True, check=True)
        exported = subprocess.run([moelab(), "export", newest, tmp_path / f"hf-{ranks}"], capture_output=True, text=True, check=True)
        assert exported.returncode == 0
        said[folder] = evaluated.stdout.split(": ", 1)[1]
    assert said[one] == said[several]
    exports = [(tmp_path / f"hf-{ranks}/model.safetensors").read_bytes() for ranks in (1, 2)]
    assert exports[0] == exports[1]


@pytest.mark.parametrize("name, more", [("SIGTERM", []), ("SIGINT", ["parallel.pipeline=2"])])
def test_a_signal_to_one_rank_stops_and_saves_all(tmp_path, corpus, name, more):
    started, rank_1 = start(tmp_path, corpus, *more)
    os.kill(rank_1, getattr(signal, name))
    assert started.wait(timeout=30) == 0
    steps = len(metrics(tmp_path / "run"))
    assert (tmp_path / f"run/checkpoints/step-{steps}").exists()
    reasons = [json.loads((folder / "summary.json").read_text())["reason"] for folder in (tmp_path / "run", tmp_path / "run/ranks/1")]
    assert reasons == ["a signal to another rank", name]


def test_torchrun_starts_the_same_ranks(tmp_path, corpus):
    one, several = tmp_path / "one", tmp_path / "several"
    assert run(1, one, corpus, 2).returncode == 0
    command = [*torchrun(), *settings(several, corpus, 1)]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert numbers(several) == numbers(one) and checkpoint(several) == checkpoint(one)
