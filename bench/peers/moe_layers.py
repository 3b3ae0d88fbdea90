"""One MoE layer in other people's ways, with its gradients: hf_moe_layer.py's opponents and reference."""
import torch

TENSORS = ("y", "dx", "drouter", "dw13", "dw2")


def log_share(load, experts):
    place = torch.arange(1, experts + 1, dtype=torch.float32)
    if load == "zipf":
        return -1.2 * place.log()
    if load == "four_hot":
        return torch.where(place <= 4, 0.9 / 4, 0.1 / (experts - 4)).log()
    return torch.zeros(experts)


def inputs(dtype, tokens, d, f, experts, load, device):
    """Tensors at the scale of a trained layer, so that an all-zero answer is far off. The first feature is 1 in every
    token, and its weights in the router make some experts likelier."""
    g = torch.Generator(device).manual_seed(7)
    normal = lambda *shape, scale: (torch.randn(*shape, generator=g, device=device) * scale).to(dtype)
    made = {
        "x": normal(tokens, d, scale=1.0),
        "dy": normal(tokens, d, scale=1.0),
        "router": normal(experts, d, scale=d**-0.5),
        "w13": normal(experts, 2 * f, d, scale=d**-0.5),
        "w2": normal(experts, d, f, scale=f**-0.5),
    }
    if load != "even":
        made["x"][:, 0] = 1
        made["router"][:, 0] = log_share(load, experts).to(made["router"])
    return made


class Layer:
    """An opponent; it has x, dy and, in the order of TENSORS, the gradients that `weights_of` collects."""

    def __init__(self, tensors, k, dtype):
        self.k = k
        self.x = tensors["x"].to(dtype).clone().requires_grad_()
        self.dy = tensors["dy"].to(dtype)

    def run(self):
        for leaf in (self.x, *self.leaves()):
            leaf.grad = None
        y = self.forward()
        y.backward(self.dy)
        return y.detach()

    def results(self):
        y = self.run()
        return dict(zip(TENSORS, (y, self.x.grad, *self.gradients())))

    def gradients(self):
        return [leaf.grad for leaf in self.leaves()]

    def times(self, n, clock):
        return [clock.milliseconds(self.run) for _ in range(n)]


class Transformers(Layer):
    """The block of `transformers` with one expert backend."""

    def __init__(self, tensors, k, dtype, backend):
        from transformers import MixtralConfig
        from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
        super().__init__(tensors, k, dtype)
        experts, d, f = tensors["w2"].shape
        config = MixtralConfig(hidden_size=d, intermediate_size=f, num_local_experts=experts, num_experts_per_tok=k)
        config._experts_implementation = backend
        self.block = MixtralSparseMoeBlock(config).to(self.x.device, dtype)
        with torch.no_grad():
            for parameter, name in zip(self.leaves(), ("router", "w13", "w2")):
                parameter.copy_(tensors[name])

    def leaves(self):
        return self.block.gate.weight, self.block.experts.gate_up_proj, self.block.experts.down_proj

    def forward(self):
        return self.block(self.x.unsqueeze(0))[0]


class Routed(Layer):
    """Softmax over the logits in fp32, the k best, renormalised."""

    def __init__(self, tensors, k, dtype):
        super().__init__(tensors, k, dtype)
        leaf = lambda name: tensors[name].to(dtype).clone().requires_grad_()
        self.router, self.w13, self.w2 = leaf("router"), leaf("w13"), leaf("w2")

    def leaves(self):
        return self.router, self.w13, self.w2

    def forward(self):
        scores = torch.nn.functional.linear(self.x, self.router).float().softmax(dim=-1)
        top, ids = scores.topk(self.k, dim=-1)
        return self.experts(ids, top / top.sum(dim=-1, keepdim=True))


class OneByOne(Routed):
    """The textbook: expert by expert, its tokens' rows scaled and added. What all are compared with, in fp32."""

    def experts(self, ids, weights):
        y = torch.zeros_like(self.x)
        for expert in range(len(self.w2)):
            token, choice = (ids == expert).nonzero(as_tuple=True)
            gate, up = (self.x[token] @ self.w13[expert].T).chunk(2, dim=1)
            rows = (torch.nn.functional.silu(gate) * up) @ self.w2[expert].T
            y = y.index_add(0, token, rows * weights[token, choice].unsqueeze(1).to(rows.dtype))
        return y


class GroupedMM(Routed):
    """Tokens sorted by expert, three torch._grouped_mm, scores behind them; gate and up are weights of their own."""

    def __init__(self, tensors, k, dtype):
        super().__init__(tensors, k, dtype)
        self.w1, self.w3 = (half.detach().clone().requires_grad_() for half in self.w13.chunk(2, dim=1))
        self.w13 = None

    def leaves(self):
        return self.router, self.w1, self.w3, self.w2

    def gradients(self):
        return self.router.grad, torch.cat([self.w1.grad, self.w3.grad], dim=1), self.w2.grad

    def experts(self, ids, weights):
        experts, d = self.w2.shape[:2]
        order = ids.flatten().argsort(stable=True)
        rows = torch.histc(ids.flatten().float(), bins=experts, min=0, max=experts)
        ends = rows.cumsum(0).to(torch.int32)
        token = (order // self.k).unsqueeze(1).expand(-1, d)
        x = self.x.gather(0, token)
        product = lambda a, w: torch._grouped_mm(a, w.transpose(-2, -1), offs=ends)
        hidden = torch.nn.functional.silu(product(x, self.w1)) * product(x, self.w3)
        scaled = (product(hidden, self.w2).float() * weights.flatten()[order].unsqueeze(1)).to(self.x.dtype)
        return torch.zeros_like(self.x).scatter_add(0, token, scaled)


class Liger(Routed):
    """The fused experts of liger-kernel, which takes the routing and gives the weights' gradient in x's type."""

    def experts(self, ids, weights):
        from liger_kernel.ops.fused_moe import LigerFusedMoEFunction
        return LigerFusedMoEFunction.apply(self.x, self.w13, self.w2, ids.to(torch.int32), weights)
