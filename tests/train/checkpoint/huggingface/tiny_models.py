"""Tiny random models of the three families, with their gradients by moelab's names."""

import dataclasses

import torch
import transformers


@dataclasses.dataclass
class Tiny:
    name: str
    config: transformers.PreTrainedConfig
    max_shard_size: str = "5GB"


def mixtral(**changes):
    shape = dict(vocab_size=257, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 intermediate_size=40, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=32)
    return transformers.MixtralConfig(**(shape | changes))


def olmoe(**changes):
    shape = dict(vocab_size=257, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
                 intermediate_size=24, num_experts=8, num_experts_per_tok=3, max_position_embeddings=32,
                 pad_token_id=None, eos_token_id=None)  # a padding row would get no gradient
    return transformers.OlmoeConfig(**(shape | changes))


def qwen3_moe(**changes):
    shape = dict(vocab_size=257, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 head_dim=16, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True,
                 max_position_embeddings=32)
    return transformers.Qwen3MoeConfig(**(shape | changes))


MODELS = [
    Tiny("mixtral", mixtral()),
    Tiny("mixtral, odd", mixtral(vocab_size=101, hidden_size=35, num_hidden_layers=3, num_attention_heads=5,
                                 num_key_value_heads=1, head_dim=6, intermediate_size=13, num_local_experts=5,
                                 num_experts_per_tok=3, rms_norm_eps=1e-3, rope_parameters={
                                     "rope_type": "default", "rope_theta": 500.0}), "20KB"),
    Tiny("mixtral, tied", mixtral(tie_word_embeddings=True)),
    Tiny("mixtral, window", mixtral(sliding_window=5)),
    Tiny("olmoe", olmoe()),
    Tiny("olmoe, clipped", olmoe(clip_qkv=0.7)),
    Tiny("olmoe, odd", olmoe(vocab_size=103, hidden_size=42, num_attention_heads=3, num_key_value_heads=1,
                             intermediate_size=11, num_experts=7, num_experts_per_tok=5, norm_topk_prob=True,
                             clip_qkv=0.9, tie_word_embeddings=True), "30KB"),
    Tiny("qwen3_moe", qwen3_moe()),
    Tiny("qwen3_moe, odd", qwen3_moe(vocab_size=107, hidden_size=37, num_hidden_layers=3, num_attention_heads=3,
                                     num_key_value_heads=3, head_dim=10, moe_intermediate_size=9, num_experts=9,
                                     num_experts_per_tok=4, norm_topk_prob=False, tie_word_embeddings=True), "20KB"),
]


def build(config):
    """Weights large enough, norms far enough from 1, for every term to show."""
    torch.manual_seed(7)
    model = load(lambda **options: transformers.AutoModelForCausalLM.from_config(config, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(1, 0.3)
            else:
                parameter.normal_(0, 0.15)
    return model


def load(make):
    """The plain implementations: the fused ones may reorder sums or round."""
    return make(attn_implementation="eager", experts_implementation="eager").eval()


def load_folder(folder):
    return load(lambda **options: transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, **options))


def batch_for(config):
    generator = torch.Generator().manual_seed(3)
    shape = (3, 17)
    return {name: torch.randint(config.vocab_size, shape, generator=generator) for name in ["tokens", "targets"]}


def by_our_names(theirs, config):
    """A dict of transformers' parameters (or their gradients), which has an expert layer in one tensor."""
    ours = {"embedding": theirs["model.embed_tokens.weight"], "final_norm": theirs["model.norm.weight"]}
    if not config.tie_word_embeddings:
        ours["head"] = theirs["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        def of(name, layer=layer):
            return theirs[f"model.layers.{layer}.{name}"]
        block = {
            "attention_norm": of("input_layernorm.weight"),
            "qkv": torch.cat([of(f"self_attn.{part}_proj.weight") for part in "qkv"]),
            "attention_out": of("self_attn.o_proj.weight"),
            "moe_norm": of("post_attention_layernorm.weight"),
            "router": of("mlp.gate.weight"),
            "experts.w13": of("mlp.experts.gate_up_proj"),
            "experts.w2": of("mlp.experts.down_proj"),
        }
        if config.model_type != "mixtral":
            block |= {"q_norm": of("self_attn.q_norm.weight"), "k_norm": of("self_attn.k_norm.weight")}
        ours |= {f"blocks.{layer}.{name}": tensor for name, tensor in block.items()}
    return ours


def logits_and_gradients(model, batch):
    """What parity_tool writes: the logits, and the gradient of the mean cross entropy by each parameter."""
    model.zero_grad()
    logits = model(batch["tokens"]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten()).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return logits.detach(), by_our_names(gradients, model.config)
