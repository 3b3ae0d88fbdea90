"""A hand-written PyTorch MoE transformer of Mixtral's arithmetic: experts as batched products over padded rows.

Each layer copies its tokens into one buffer (E, C, D) and multiplies it by all experts' weights at once. The capacity C is
the largest number of tokens that an expert has in this batch, rounded up to a multiple of 128. So no token is
dropped, and the model computes what a dropless one does. Rows of the buffer that no token takes are zero and are
multiplied as well. There is no auxiliary loss.

Axes: B rows, S sequence, T = B * S tokens, D width, H heads, E experts, K experts of a token, C capacity, F expert width.
"""
import torch
from torch import nn
from torch.nn import functional

ROUND = 128  # rows

class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def compute_type(x):
    """What products are computed in: autocast's type, or that of x without autocast."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def rotation_table(length, head_dim, theta):
    """Cosines and sines (S, head_dim), a pair of features half a head apart."""
    frequency = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency).repeat(1, 2)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin).to(v), rotate(k, cos, sin).to(v)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Experts(nn.Module):
    def __init__(self, width, hidden, experts, k):
        super().__init__()
        self.k = k
        self.router = nn.Linear(width, experts, bias=False)
        self.w13 = nn.Parameter(torch.empty(experts, 2 * hidden, width))
        self.w2 = nn.Parameter(torch.empty(experts, width, hidden))

    def places(self, ids):
        """The capacity, and for each of the T * K routes its row in the buffer."""
        taken = functional.one_hot(ids, len(self.w2))
        counts = taken.cumsum(0)
        capacity = (int(counts[-1].max()) + ROUND - 1) // ROUND * ROUND
        return capacity, ids * capacity + counts.gather(1, ids.unsqueeze(1)).squeeze(1) - 1

    def forward(self, x_TD):
        scores = self.router(x_TD).float().softmax(-1)
        top, ids_TK = scores.topk(self.k, dim=-1)
        weights_TK = top / top.sum(-1, keepdim=True)
        capacity, place = self.places(ids_TK.flatten())
        x_TD = x_TD.to(compute_type(x_TD))
        routed = x_TD.unsqueeze(1).expand(-1, self.k, -1).flatten(0, 1)
        buffer = x_TD.new_zeros(len(self.w2) * capacity, x_TD.shape[1]).index_copy(0, place, routed)
        hidden = torch.bmm(buffer.view(len(self.w2), capacity, -1), self.w13.transpose(1, 2))
        gate, up = hidden.chunk(2, dim=-1)
        y = torch.bmm(functional.silu(gate) * up, self.w2.transpose(1, 2))
        return (y.flatten(0, 1)[place].unflatten(0, (-1, self.k)) * weights_TK.unsqueeze(-1)).sum(1)


class Block(nn.Module):
    def __init__(self, width, heads, hidden, experts, k, eps):
        super().__init__()
        self.norm1, self.norm2 = Norm(width, eps), Norm(width, eps)
        self.attention = Attention(width, heads)
        self.experts = Experts(width, hidden, experts, k)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.experts(self.norm2(x).flatten(0, 1)).view_as(x)


class PaddedMoe(nn.Module):
    """Takes tokens (B, S); gives logits (B, S, V)."""

    def __init__(self, config):
        """config: of transformers' Mixtral, as its config.json has it; key heads = query heads, tied embeddings."""
        super().__init__()
        width, heads = config["hidden_size"], config["num_attention_heads"]
        self.embedding = nn.Embedding(config["vocab_size"], width)
        self.blocks = nn.ModuleList(
            Block(width, heads, config["intermediate_size"], config["num_local_experts"],
                  config["num_experts_per_tok"], config["rms_norm_eps"])
            for _ in range(config["num_hidden_layers"]))
        self.norm = Norm(width, config["rms_norm_eps"])
        table = rotation_table(config["max_position_embeddings"], width // heads, config["rope_parameters"]["rope_theta"])
        self.register_buffer("cos", table[0], persistent=False)
        self.register_buffer("sin", table[1], persistent=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        cos, sin = self.cos[:tokens.shape[1]], self.sin[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        return functional.linear(self.norm(x), self.embedding.weight)


def from_mixtral(state):
    """A state of PaddedMoe from that of transformers' MixtralForCausalLM; gradients by those names fit as well."""
    found = {"embedding.weight": state["model.embed_tokens.weight"], "norm.weight": state["model.norm.weight"]}
    layer = 0
    while (old := f"model.layers.{layer}.") + "input_layernorm.weight" in state:
        new = f"blocks.{layer}."
        found[new + "attention.qkv.weight"] = torch.cat([state[f"{old}self_attn.{n}_proj.weight"] for n in "qkv"])
        for ours, theirs in (("norm1.weight", "input_layernorm.weight"), ("norm2.weight", "post_attention_layernorm.weight"),
                             ("attention.out.weight", "self_attn.o_proj.weight"), ("experts.router.weight", "mlp.gate.weight"),
                             ("experts.w13", "mlp.experts.gate_up_proj"), ("experts.w2", "mlp.experts.down_proj")):
            found[new + ours] = state[old + theirs]
        layer += 1
    return found
