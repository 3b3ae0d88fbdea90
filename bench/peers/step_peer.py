"""The opponent's process of hf_mixtral.py: trains one model for a few steps and prints what they took as JSON.

usage: step_peer.py MODEL MODE PRECISION FOLDER DATA STEPS

MODEL      Mixtral with an expert backend of transformers (eager, grouped_mm), or padded: padded_moe.py
MODE       plain, compiled (torch.compile) or max-autotune (torch.compile of that mode)
PRECISION  fp32 or bf16 (autocast)
FOLDER     model/ and padded.safetensors as write_models writes them
"""
import ctypes
import gc
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import padded_moe
import tensor_files
from peers import reset_peak, resident_peak

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
from report.step_figures import BATCH, SEQUENCE, WARM_UP  # noqa: E402

MODES = {"plain": None, "compiled": "default", "max-autotune": "max-autotune"}


def write_models(folder, config):
    """The same random weights for every side: transformers' folder, which moelab reads too, and padded_moe.py's file.
    Prints the rates of LibTorch's products as JSON."""
    from transformers import MixtralForCausalLM
    torch.manual_seed(5)
    model = MixtralForCausalLM(config)
    model.save_pretrained(Path(folder) / "model")
    tensor_files.save(padded_moe.from_mixtral(model.state_dict()), Path(folder) / "padded.safetensors")
    print(json.dumps({"fp32": product_gflops(torch.float32), "bf16": product_gflops(torch.bfloat16)}))


def product_gflops(dtype):
    """GFLOP/s of the second product of two 512 x 512 matrices: the first generates code."""
    a = torch.randn(512, 512).to(dtype)
    for _ in range(2):
        start = time.perf_counter()
        a @ a
        seconds = time.perf_counter() - start
    return 2 * 512**3 / seconds / 1e9


def load(model, folder):
    """The model, and its logits as a function of tokens."""
    if model == "padded":
        config = json.loads((Path(folder) / "model/config.json").read_text(encoding="utf-8"))
        found = padded_moe.PaddedMoe(config)
        found.load_state_dict(tensor_files.load(Path(folder) / "padded.safetensors"))
        return found, found
    from transformers import MixtralForCausalLM
    found = MixtralForCausalLM.from_pretrained(Path(folder) / "model", dtype=torch.float32, attn_implementation="sdpa",
                                               experts_implementation=model)
    return found, lambda tokens: found(input_ids=tokens).logits


def loss_function(logits_of, mode):
    """The loss of a batch (B, S + 1), compiled as a whole unless mode is plain."""
    def loss_of(batch):
        logits = logits_of(batch[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    if MODES[mode] is None:
        return loss_of
    # The padded model's capacity is a number read from a tensor. Captured, it ends no graph, which is faster;
    # max-autotune needs to know it (InductorError "Cannot convert symbols to int").
    torch._dynamo.config.capture_scalar_outputs = mode == "compiled"
    return torch.compile(loss_of, mode=MODES[mode])


def batches(data):
    """Batches (B, S + 1) of consecutive windows, again and again."""
    tokens = np.memmap(Path(data) / "train.bin", dtype=np.uint16)
    windows = (len(tokens) - 1) // SEQUENCE
    window = 0
    while True:
        starts = [(window + row) % windows * SEQUENCE for row in range(BATCH)]
        yield torch.from_numpy(np.stack([tokens[s:s + SEQUENCE + 1] for s in starts]).astype(np.int64))
        window += BATCH


def drop_compilers_memory():
    """Gives back what compiling left free, so that it does not count as the steps' memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def train(model, loss_of, precision, data, steps):
    """Losses and milliseconds of the steps, and peak resident bytes up to the end of warm-up and since."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    found, source = {"losses": [], "milliseconds": [], "first_rss": 0}, batches(data)
    for step in range(steps):
        if step == WARM_UP:
            drop_compilers_memory()
            found["first_rss"] = resident_peak("self")
            reset_peak("self")
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(next(source))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found["losses"].append(loss.item())
        found["milliseconds"].append((time.perf_counter() - start) * 1e3)
    return found | {"steady_rss": resident_peak("self")}


def main():
    name, mode, precision, folder, data, steps = sys.argv[1:]
    model, logits_of = load(name, folder)
    model.train()
    print(json.dumps(train(model, loss_function(logits_of, mode), precision, data, int(steps))))


if __name__ == "__main__":
    main()
