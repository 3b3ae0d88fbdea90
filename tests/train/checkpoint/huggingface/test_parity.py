"""Models of Hugging Face's transformers and ours are the same functions, with the same gradients, both ways."""

import json
import pathlib

import pytest
import torch
from safetensors.torch import load_file, save_file

import programs
import tiny_models
from tiny_models import MODELS

LOGITS = 1e-5  # absolute, fp32
GRADIENTS = 1e-5  # relative norm of each parameter's


def succeed(result):
    assert result.returncode == 0, result
    return result


def all_tensors(folder):
    """Of every .safetensors file there, by name."""
    tensors = {}
    for file in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        shard = load_file(file)
        assert not tensors.keys() & shard.keys()
        tensors |= shard
    return tensors


def same_bits(a, b):
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and a[name].shape == b[name].shape
        and a[name].flatten().view(torch.uint8).equal(b[name].flatten().view(torch.uint8)) for name in a)


def relative_error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def compare(tool, parity, name, model, checkpoint, folder):
    """Logits and every gradient of the checkpoint, by our program, with those of the transformers model."""
    batch = tiny_models.batch_for(model.config)
    save_file(batch, folder / "batch.safetensors")
    tool("run", checkpoint, folder / "batch.safetensors", folder / "result.safetensors")
    ours = load_file(folder / "result.safetensors")
    logits, gradients = tiny_models.logits_and_gradients(model, batch)
    worst_logit = (ours.pop("logits") - logits).abs().max().item()
    assert ours.keys() == gradients.keys()
    errors = {key: relative_error(ours[key], gradients[key]) for key in ours}
    worst = max(errors, key=errors.get)
    parity.append((name, worst_logit, errors[worst], worst))
    assert logits.abs().max() > 0.1
    assert worst_logit <= LOGITS
    assert all(error <= GRADIENTS for error in errors.values()), errors  # no NaN passes


@pytest.fixture(scope="module", params=MODELS, ids=lambda tiny: tiny.name)
def imported(request, moelab, tmp_path_factory):
    """(name, transformers model, its folder, the checkpoint made of it)"""
    folder = tmp_path_factory.mktemp("imported")
    model = tiny_models.build(request.param.config)
    model.save_pretrained(folder / "theirs", max_shard_size=request.param.max_shard_size)
    succeed(moelab("import", folder / "theirs", folder / "ours"))
    return request.param.name, model, folder / "theirs", folder / "ours" / "step-0"


def test_logits_and_every_gradient_agree(imported, tool, parity, tmp_path):
    name, model, _, checkpoint = imported
    compare(tool, parity, name, model, checkpoint, tmp_path)


def test_imported_weights_are_theirs_bit_by_bit(imported):
    _, model, _, checkpoint = imported
    theirs = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    assert same_bits(all_tensors(checkpoint), tiny_models.by_our_names(theirs, model.config))


def test_export_is_bit_equal(imported, moelab, tmp_path):
    _, model, folder, checkpoint = imported
    succeed(moelab("export", checkpoint, tmp_path / "again"))
    assert same_bits(all_tensors(folder), all_tensors(tmp_path / "again"))
    loaded = tiny_models.load_folder(tmp_path / "again")
    tokens = tiny_models.batch_for(model.config)["tokens"]
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert loaded.config.model_type == model.config.model_type
    for key in ["max_position_embeddings", "tie_word_embeddings", "rms_norm_eps", "clip_qkv", "norm_topk_prob",
                "sliding_window"]:
        assert getattr(loaded.config, key, None) == getattr(model.config, key, None), key


def test_export_in_shards(imported, tool, tmp_path):
    _, _, folder, checkpoint = imported
    tool("export", checkpoint, tmp_path / "shards", 30_000)
    files = sorted(path.name for path in (tmp_path / "shards").glob("*.safetensors"))
    assert len(files) > 2 and files[1] == f"model-00002-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    tensors = all_tensors(tmp_path / "shards")
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    assert sorted(set(index["weight_map"].values())) == files
    for name in files:
        shard = load_file(tmp_path / "shards" / name)
        assert all(index["weight_map"][tensor] == name for tensor in shard)
        assert len(shard) == 1 or sum(t.nbytes for t in shard.values()) <= 30_000
    assert same_bits(all_tensors(folder), tensors)
    tiny_models.load_folder(tmp_path / "shards")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_weights_become_the_same_numbers(moelab, tmp_path, dtype):
    model = tiny_models.build(tiny_models.olmoe()).to(dtype)
    model.save_pretrained(tmp_path / "theirs")
    succeed(moelab("import", tmp_path / "theirs", tmp_path / "ours"))
    succeed(moelab("export", tmp_path / "ours", tmp_path / "again"))
    theirs = {name: tensor.float() for name, tensor in all_tensors(tmp_path / "theirs").items()}
    assert same_bits(theirs, all_tensors(tmp_path / "again"))


@pytest.mark.parametrize("family", ["mixtral", "olmoe", "qwen3_moe"])
def test_config_of_transformers_4(moelab, tool, parity, tmp_path, family):
    """There rope_theta is a key of its own, Qwen3's experts are num_experts, and scaling is null."""
    model = tiny_models.build(getattr(tiny_models, family)(rope_parameters={
        "rope_type": "default", "rope_theta": 700.0}))
    model.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    config = json.loads(path.read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config |= {"rope_scaling": None, "torch_dtype": config.pop("dtype")}
    if family == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
        config |= {"sliding_window": 4096, "max_window_layers": 28}
    path.write_text(json.dumps(config))
    succeed(moelab("import", tmp_path / "theirs", tmp_path / "ours"))
    compare(tool, parity, f"{family}, v4 config", model, tmp_path / "ours" / "step-0", tmp_path)


# train.init, and from a run of ours to theirs


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    text = "".join(f"{n} times {n} is {n * n}.\n" for n in range(3000))
    return programs.prepare_bytes(tmp_path_factory.mktemp("data"), text)


def train(moelab, folder, shards, *settings):
    return moelab("train", *settings, f"run.dir={folder}", f"data.path={shards}", "train.micro_batch=2",
                  "eval.batches=0", "run.log_every=0", "monitor.quiet=true", "run.threads=1")


def test_a_run_of_ours_loads_in_transformers(moelab, tool, parity, shards, tmp_path):
    succeed(train(moelab, tmp_path / "run", shards, "--config", "moe-pico", "train.steps=3", "train.sequence=64",
                  "optim.lr=0.01", "optim.warmup=1"))
    checkpoint = tmp_path / "run" / "checkpoints" / "step-3"
    succeed(moelab("export", checkpoint.parent, tmp_path / "theirs"))
    model = tiny_models.load_folder(tmp_path / "theirs")
    assert model.config.model_type == "mixtral"
    assert (tmp_path / "theirs" / "tokenizer.json").read_bytes() == (shards / "tokenizer.json").read_bytes()
    compare(tool, parity, "moe-pico, trained", model, checkpoint, tmp_path)


def first_loss(folder):
    return programs.losses(folder)[0]


@pytest.mark.parametrize("kind", ["folder", "checkpoint", "folder of checkpoints"])
def test_training_starts_from_the_given_weights(moelab, shards, tmp_path, kind):
    tiny_models.build(tiny_models.qwen3_moe()).save_pretrained(tmp_path / "theirs")
    succeed(moelab("import", tmp_path / "theirs", tmp_path / "ours"))
    start = tmp_path / {"folder": "theirs", "checkpoint": "ours/step-0", "folder of checkpoints": "ours"}[kind]
    settings = ["--config", tmp_path / "ours" / "step-0" / "config.yaml", f"train.init={start}", "train.steps=2"]
    # at learning rate 0 the weights are still there after the steps
    succeed(train(moelab, tmp_path / "still", shards, *settings, "optim.lr=0", "optim.min_lr=0"))
    assert same_bits(all_tensors(tmp_path / "ours" / "step-0"),
                     all_tensors(tmp_path / "still" / "checkpoints" / "step-2"))
    # and it is them that the forward pass reads, in bf16 their rounded copies
    succeed(train(moelab, tmp_path / "bf16", shards, *settings, "precision.compute=bf16"))
    assert first_loss(tmp_path / "bf16") == pytest.approx(first_loss(tmp_path / "still"), abs=0.02)
    succeed(train(moelab, tmp_path / "random", shards, *settings[:2], "train.steps=2"))
    assert first_loss(tmp_path / "random") != pytest.approx(first_loss(tmp_path / "still"), abs=0.1)


@pytest.mark.parametrize("change", ["model.rope_theta=500", "model.experts_per_token=2", "model.d_expert=32",
                                    "model.qk_norm=none", "model.norm_topk=false", "model.kv_heads=4"])
def test_another_model_is_named(moelab, shards, tmp_path, change):
    tiny_models.build(tiny_models.qwen3_moe()).save_pretrained(tmp_path / "theirs")
    succeed(moelab("import", tmp_path / "theirs", tmp_path / "ours"))
    for start in ["theirs", "ours/step-0"]:
        result = train(moelab, tmp_path / "run", shards, "--config", tmp_path / "ours" / "step-0" / "config.yaml",
                       f"train.init={tmp_path / start}", change)
        key, value = change.split("=")
        assert result.returncode == 2 and result.stderr.count("\n") == 1, result
        assert f"train.init={tmp_path / start}: another model: it has {key}=" in result.stderr
        assert result.stderr.count("command line: ") == 1 and value in result.stderr
