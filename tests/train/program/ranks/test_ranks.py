"""Ranks: the numbers and the bits of one rank that takes as many micro-batches, and what they keep and send."""
import json
import shutil
import subprocess

import pytest
from programs import metrics, moelab, numbers
from rank_runs import RANKS, UNTIED, checkpoint, run, settings, torchrun

MICRO_BATCHES = 6  # of a step, over all ranks

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
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    command = [*settings(folder, corpus, 4, UNTIED), "--resume", "latest"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
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
                              capture_output=True, text=True, timeout=600)
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
                             capture_output=True, text=True, timeout=600)
    assert resumed.returncode == 0, resumed.stderr
    assert checkpoint(parted) == checkpoint(whole)
    assert [step["loss"] for step in metrics(parted)] == [step["loss"] for step in metrics(whole)]


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


def test_torchrun_starts_the_same_ranks(tmp_path, corpus):
    one, several = tmp_path / "one", tmp_path / "several"
    assert run(1, one, corpus, 2).returncode == 0
    command = [*torchrun(), *settings(several, corpus, 1)]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert numbers(several) == numbers(one) and checkpoint(several) == checkpoint(one)
