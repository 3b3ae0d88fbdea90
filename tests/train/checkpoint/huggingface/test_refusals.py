"""What import cannot take is refused by name, with exit code 2 and one line, and leaves nothing behind."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_models

COMMON = dict(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
              num_experts_per_tok=2, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=1e4)
CONFIGS = {
    "mixtral": COMMON | dict(model_type="mixtral", intermediate_size=8, num_local_experts=4),
    "olmoe": COMMON | dict(model_type="olmoe", intermediate_size=8, num_experts=4),
    "qwen3_moe": COMMON | dict(model_type="qwen3_moe", moe_intermediate_size=8, num_experts=4, head_dim=8),
}

UNSUPPORTED = [
    ("mixtral", {"model_type": "llama"}, 'model_type="llama"'),
    ("mixtral", {"model_type": None}, "model_type=null"),
    ("mixtral", {"architectures": ["MixtralForTokenClassification"]}, "architectures="),
    ("mixtral", {"hidden_act": "gelu"}, 'hidden_act="gelu"'),
    ("olmoe", {"sliding_window": 4096}, "sliding_window=4096"),
    ("mixtral", {"sliding_window": 0}, "attention.window"),
    ("mixtral", {"sliding_window": True}, "sliding_window: expected an integer"),
    ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise=0.1"),
    ("mixtral", {"attention_dropout": 0.1}, "attention_dropout=0.1"),
    ("mixtral", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config="),
    ("mixtral", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling."),
    ("olmoe", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "rope_parameters."),
    ("olmoe", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters.full_attention"),
    ("olmoe", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ("olmoe", {"attention_bias": True}, "attention_bias=true"),
    ("olmoe", {"clip_qkv": 0}, "clip_qkv=0"),
    ("olmoe", {"head_dim": 10}, "head_dim=10"),
    ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window=true"),
    ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step=2"),
    ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers=[0]"),
    ("qwen3_moe", {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size=64"),
    ("qwen3_moe", {"n_shared_experts": 1}, "n_shared_experts=1"),
    ("qwen3_moe", {"num_experts": 0}, "num_experts=0"),
    ("mixtral", {"hidden_size": None}, "hidden_size: expected an integer, got null"),
    ("mixtral", {"hidden_size": 16.5}, "hidden_size: expected an integer, got 16.5"),
    ("mixtral", {"vocab_size": -1}, "model.vocab"),
    ("mixtral", {"vocab_size": 2**63}, "model.vocab"),
    ("mixtral", {"num_experts_per_tok": 5}, "model.experts_per_token=5"),
    ("mixtral", {"hidden_size": 15}, "model.d_model=15"),
    ("mixtral", {"rms_norm_eps": "small"}, "rms_norm_eps: expected a number"),
    ("mixtral", {"tie_word_embeddings": 1}, "tie_word_embeddings: expected true or false"),
]


def refused(moelab, folder, out, expected):
    result = moelab("import", folder, out)
    assert result.returncode == 2 and result.stdout == "", result
    assert result.stderr.startswith("moelab: ") and result.stderr.count("\n") == 1, result
    assert expected in result.stderr, result
    assert not out.exists()


@pytest.mark.parametrize("family, change, expected", UNSUPPORTED, ids=lambda value: json.dumps(value))
def test_config(moelab, tmp_path, family, change, expected):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[family] | change))
    refused(moelab, tmp_path, tmp_path / "out", expected)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model_type":"mixtral"', "[" * 100000, "\xff"])
def test_config_that_is_no_object(moelab, tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    refused(moelab, tmp_path, tmp_path / "out", "config.json")


@pytest.mark.parametrize("family", CONFIGS)
def test_pickles_are_not_read(moelab, tmp_path, family):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[family]))
    refused(moelab, tmp_path, tmp_path / "out", "has neither model.safetensors")
    torch.save({}, tmp_path / "pytorch_model.bin")
    refused(moelab, tmp_path, tmp_path / "out", "pytorch_model.bin: pickled weights are not read")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    tiny_models.build(tiny_models.mixtral(num_hidden_layers=1)).save_pretrained(folder, max_shard_size="50KB")
    return folder


@pytest.fixture
def folder(sharded, tmp_path):
    """A fresh copy of a good folder."""
    copy = tmp_path / "good"
    copy.mkdir()
    for file in sharded.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def change_index(folder, change):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


NORM = "model.norm.weight"


@pytest.mark.parametrize("change, expected", [
    (lambda files: files.pop(NORM), f"lacks the tensor '{NORM}'"),
    (lambda files: files.update({NORM: "../model-00001-of-00003.safetensors"}), f"'{NORM}' is not in a .safetensors"),
    (lambda files: files.update({NORM: "/etc/passwd"}), f"'{NORM}' is not in a .safetensors"),
    (lambda files: files.update({NORM: "model.bin"}), f"'{NORM}' is not in a .safetensors"),
    (lambda files: files.update({NORM: 3}), f"'{NORM}' is not in a .safetensors"),
    (lambda files: files.update({NORM: "gone.safetensors"}), "gone.safetensors"),
    (lambda files: files.update({"other": files[NORM]}), "'other' is not in model-"),
])
def test_index(moelab, folder, tmp_path, change, expected):
    change_index(folder, change)
    refused(moelab, folder, tmp_path / "out", expected)


def change_tensors(folder, change):
    """All tensors in one file, after `change`."""
    tensors = {}
    for file in folder.glob("model-*.safetensors"):
        tensors |= load_file(file)
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("change, expected", [
    (lambda t: t.update({NORM: torch.ones(49)}), f"'{NORM}' is F32 [49]; expected F32 [48]"),
    (lambda t: t.update({NORM: torch.ones(48, dtype=torch.float64)}), f"'{NORM}' is F64 [48]; expected F32 [48]"),
    (lambda t: t.update({NORM: torch.ones(48, dtype=torch.int8)}), f"'{NORM}' is I8 [48]"),
    (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}), "q_proj.bias"),
    (lambda t: t.pop("lm_head.weight"), "lacks the tensor 'lm_head.weight'"),
])
def test_tensors(moelab, folder, tmp_path, change, expected):
    change_tensors(folder, change)
    refused(moelab, folder, tmp_path / "out", expected)


def test_a_tied_head_may_be_written_out_but_not_differ(moelab, tmp_path):
    model = tiny_models.build(tiny_models.mixtral(tie_word_embeddings=True))
    for name, change, good in [("same", 0, True), ("other", 1, False)]:
        folder = tmp_path / name
        model.save_pretrained(folder)
        tensors = load_file(folder / "model.safetensors")
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + change
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        if good:
            assert moelab("import", folder, tmp_path / "out").returncode == 0
        else:
            refused(moelab, folder, tmp_path / "none", "lm_head.weight is not the embedding")


def test_a_truncated_file(moelab, folder, tmp_path):
    file = sorted(folder.glob("model-*.safetensors"))[1]
    file.write_bytes(file.read_bytes()[:-1])
    refused(moelab, folder, tmp_path / "out", file.name)


def test_folders_that_exist_are_left_alone(moelab, folder, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    assert moelab("import", folder, tmp_path / "empty").returncode == 0
    for arguments in [("import", folder, tmp_path / "full"), ("export", tmp_path / "empty", tmp_path / "full")]:
        result = moelab(*arguments)
        assert result.returncode == 2 and "already exists" in result.stderr, result
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    for source in [tmp_path / "none", tmp_path / "full"]:
        assert moelab("import", source, tmp_path / "out").returncode == 2
        assert moelab("export", source, tmp_path / "out").returncode == 2
    assert not (tmp_path / "out").exists()


def test_help_and_missing_arguments(moelab):
    for command in ["import", "export"]:
        assert f"moelab {command} " in moelab(command, "--help").stdout
        assert moelab(command, "only-one").returncode == 2
        assert moelab(command, "a", "b", "c").returncode == 2


@pytest.mark.parametrize("change, expected", [
    ({"hidden_size": 1 << 18, "intermediate_size": 1 << 19, "head_dim": 64}, "; expected F32 ["),
    ({"num_hidden_layers": 4096, "num_local_experts": 4096}, " tensors, and config.json describes 16777216 experts"),
])
def test_a_model_described_as_larger_than_any_machine(moelab, folder, tmp_path, change, expected):
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "mixtral"
    (folder / "config.json").write_text(json.dumps(config | change))
    refused(moelab, folder, tmp_path / "out", expected)
