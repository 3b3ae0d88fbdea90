"""A model's folder says what shape the model has: for train.init=FOLDER, and for --config FOLDER without its weights."""

import json
import shutil

import programs
import pytest
import tiny_models
import yaml
from programs import expect_mistake
from safetensors.torch import load_file

USUAL = ["train.steps=2", "train.micro_batch=2", "train.sequence=32", "eval.batches=1", "run.log_every=0",
         "monitor.quiet=true", "run.threads=1"]  # fmt: skip
STILL = ["optim.lr=0", "optim.min_lr=0"]


def succeed(result):
    assert result.returncode == 0, result
    return result


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    text = "".join(f"{n} times {n} is {n * n}.\n" for n in range(3000))
    return programs.prepare_bytes(tmp_path_factory.mktemp("data"), text)


@pytest.fixture(scope="module")
def folders(moelab, shards, tmp_path_factory):
    """One model in each kind of folder."""
    root = tmp_path_factory.mktemp("models")
    tiny_models.build(tiny_models.qwen3_moe()).save_pretrained(root / "hub")
    succeed(moelab("import", root / "hub", root / "ours"))
    succeed(moelab("train", f"train.init={root / 'hub'}", f"data.path={shards}", f"run.dir={root / 'run'}", *USUAL,
                   *STILL))  # fmt: skip
    return {"hub": root / "hub", "checkpoint": root / "ours" / "step-0", "checkpoints": root / "ours",
            "run": root / "run"}  # fmt: skip


KINDS = ["hub", "checkpoint", "checkpoints", "run"]


def settings_of(result):
    return yaml.safe_load(succeed(result).stdout)


def expect_shape(model):
    """That of tiny_models.qwen3_moe, by its own numbers."""
    theirs = tiny_models.qwen3_moe()
    assert (model["vocab"], model["d_model"], model["layers"], model["heads"], model["kv_heads"], model["head_dim"],
            model["d_expert"], model["experts"], model["experts_per_token"]) == (
        theirs.vocab_size, theirs.hidden_size, theirs.num_hidden_layers, theirs.num_attention_heads,
        theirs.num_key_value_heads, theirs.head_dim, theirs.moe_intermediate_size, theirs.num_experts,
        theirs.num_experts_per_tok)  # fmt: skip
    assert (model["qk_norm"], model["norm_eps"], model["tie_embeddings"]) == ("head", theirs.rms_norm_eps, False)


@pytest.mark.parametrize("kind", KINDS)
def test_training_needs_the_folder_alone(moelab, shards, folders, tmp_path, kind):
    succeed(moelab("train", f"train.init={folders[kind]}", f"data.path={shards}", f"run.dir={tmp_path}", *USUAL, *STILL))
    expect_shape(json.loads((tmp_path / "summary.json").read_text())["settings"]["model"])
    # at learning rate 0 the weights are still there after the steps
    there, here = (load_file(folder / "model.safetensors")
                   for folder in [folders["checkpoint"], tmp_path / "checkpoints" / "step-2"])
    assert there.keys() == here.keys() and all(there[name].equal(here[name]) for name in there)


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_sees_the_shape(moelab, folders, kind):
    parameters = sum(tensor.numel() for tensor in load_file(folders["hub"] / "model.safetensors").values())
    for given in [["--config", folders[kind]], [f"train.init={folders[kind]}"],
                  ["--config", "moe-nano", f"train.init={folders[kind]}"]]:
        expect_shape(settings_of(moelab("train", *given, "--print-config"))["model"])
        estimate = json.loads(succeed(moelab("estimate", *given, "--json", "train.sequence=32")).stdout)
        assert estimate["model"]["parameters"] == parameters
    for given in [["--model", folders[kind]], [f"train.init={folders[kind]}"]]:
        plan = succeed(moelab("plan", "--memory", "64MiB", *given, "train.sequence=32", "train.micro_batch=2"))
        question = f"qwen3-30b-a3b, {parameters / 1000:.1f}k parameters, on this CPU with 64.0 MiB; 2 sequences of 32 tokens"
        assert plan.stdout.startswith(question)


def test_the_folder_gives_attention_and_sequence_too(moelab, tmp_path):
    tiny_models.build(tiny_models.mixtral(sliding_window=5)).save_pretrained(tmp_path / "hub")
    succeed(moelab("import", tmp_path / "hub", tmp_path / "ours"))
    imported = yaml.safe_load((tmp_path / "ours/step-0/config.yaml").read_text())
    assert (imported["attention"]["window"], imported["train"]["sequence"]) == (5, 32)
    for folder in ["hub", "ours"]:
        s = settings_of(moelab("train", "--config", tmp_path / folder, "--print-config"))
        assert (s["model"], s["attention"]) == (imported["model"], imported["attention"])
        assert s["train"]["sequence"] == 32
        s = settings_of(moelab("train", f"train.init={tmp_path / folder}", "--print-config"))
        assert s["attention"] == imported["attention"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_contradicts_is_named(moelab, folders, tmp_path, kind):
    (tmp_path / "own.yaml").write_text("model:\n  layers: 2\n  heads: 6\n")
    for command in ["train", "estimate"]:
        for given, named in [(["--config", tmp_path / "own.yaml", f"train.init={folders[kind]}"],
                              f"train.init={folders[kind]}: another model: it has model.heads=4 ({tmp_path}/own.yaml:3: 6);"),
                             ([f"train.init={folders[kind]}", "model.experts=4"],
                              "another model: it has model.experts=8 (command line: 4);"),
                             (["--config", folders[kind], "model.experts=4"],
                              f"--config {folders[kind]}: another model: it has model.experts=8 (command line: 4);")]:
            expect_mistake(moelab(command, *given, f"run.dir={tmp_path}/run"), named)
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_model(moelab, tmp_path):
    for given in [["--config", tmp_path], [f"train.init={tmp_path}"]]:
        expect_mistake(moelab("train", *given), f"{tmp_path}: no model there")
    expect_mistake(moelab("train", f"train.init={tmp_path}/gone"), "gone: no such folder")


def test_the_tokenizer_belongs_to_the_model(moelab, shards, folders, tmp_path):
    hub = shutil.copytree(folders["hub"], tmp_path / "hub")
    given = [f"train.init={hub}", *USUAL]
    tokenizer = json.loads((shards / "tokenizer.json").read_text())
    # another layout of the same ids is the same tokenizer
    (hub / "tokenizer.json").write_text(json.dumps(tokenizer | {"truncation": None}, indent=1, sort_keys=True))
    succeed(moelab("train", *given, f"data.path={shards}", f"run.dir={tmp_path}/same"))
    # shards that say nothing are taken to be of the model's
    bare = shutil.copytree(shards, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer.json"))
    succeed(moelab("train", *given, f"data.path={bare}", f"run.dir={tmp_path}/bare-run"))
    saved = "checkpoints/step-2/tokenizer.json"
    assert (tmp_path / "bare-run" / saved).read_bytes() == (hub / "tokenizer.json").read_bytes()
    succeed(moelab("train", f"train.init={folders['run']}", *USUAL, f"data.path={bare}", f"run.dir={tmp_path}/from-run"))
    assert (tmp_path / "from-run" / saved).read_bytes() == (shards / "tokenizer.json").read_bytes()
    ids = tokenizer["model"]["vocab"]
    first, second = list(ids)[:2]
    ids[first], ids[second] = ids[second], ids[first]
    (hub / "tokenizer.json").write_text(json.dumps(tokenizer))
    expect_mistake(moelab("train", *given, f"data.path={shards}", f"run.dir={tmp_path}/other"),
                   f"train.init={hub}", f"{shards}/tokenizer.json", "prepare_data.py --tokenizer")  # fmt: skip
    assert not (tmp_path / "other").exists()
    (hub / "tokenizer.json").write_text("[]")
    expect_mistake(moelab("train", *given, f"data.path={shards}", f"run.dir={tmp_path}/other"), f"{hub}/tokenizer.json")


def test_a_run_outlives_the_folder_that_it_started_from(moelab, shards, folders, tmp_path):
    hub = shutil.copytree(folders["hub"], tmp_path / "hub")
    run = tmp_path / "run"
    succeed(moelab("train", f"train.init={hub}", f"data.path={shards}", f"run.dir={run}", *USUAL))
    shutil.rmtree(hub)
    config = ["--config", run / "config.yaml"]
    succeed(moelab("eval", *config))
    resumed = succeed(moelab("train", *config, "--resume", "latest", "train.steps=3"))
    assert "after step 2" in resumed.stdout
    expect_mistake(moelab("train", *config, f"run.dir={tmp_path}/again"), f"{hub}: no such folder")
