"""What the tests of this folder start: moelab on ranks of a small model, and what its checkpoints hold."""
import hashlib
import json
import subprocess
import sys

import pytest
from programs import ROOT, moelab

RANKS = ROOT / "scripts/ranks.sh"
UNTIED = "model.tie_embeddings=false"


def settings(folder, data, accumulation, *more):
    given = {"data.path": data, "run.dir": folder, "train.steps": 4, "train.micro_batch": 2, "train.sequence": 32, "model.vocab": 256,
             "train.accumulation": accumulation, "eval.batches": 5, "eval.every": 2, "run.log_every": 1,
             "parallel.timeout": 20, "run.threads": 1} | dict(one.split("=", 1) for one in more)
    return [moelab(), "train", "--config", "moe-pico", *(f"{key}={value}" for key, value in given.items())]


def run(ranks, *arguments):
    command = settings(*arguments)
    if ranks > 1:
        command = [RANKS, ranks, *command]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)


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


def torchrun():
    command = [sys.executable, "-m", "torch.distributed.run"]
    if subprocess.run([*command, "--help"], capture_output=True).returncode != 0:
        pytest.skip("torchrun cannot be imported beside this installation of LibTorch")
    return [*command, "--standalone", "--no-python", "--nproc-per-node=2"]
