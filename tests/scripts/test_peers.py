"""bench/peers: what its comparisons do where packages are missing and opponents fail."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

PEERS = pathlib.Path(__file__).parents[2] / "bench/peers"
sys.path.insert(0, str(PEERS))

import hf_moe_layer  # noqa: E402
import moe_layers  # noqa: E402
import table  # noqa: E402
import tensor_files  # noqa: E402

SHAPE = (torch.float32, 64, 32, 16, 4, 2)

# transformers and safetensors cannot be imported; two of the opponents are broken; one shape.
DRIVER = """
import importlib.util, sys, torch
sys.modules["transformers"] = sys.modules["safetensors"] = None
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "transformers" else found(name)
import hf_moe_layer as h

class Broken(h.GroupedMM):
    def forward(self):
        raise RuntimeError("no kernel for this GPU")

class Wrong(h.GroupedMM):
    def forward(self):
        return super().forward() * 1.5

known = h.opponents
h.opponents = lambda device: known(device) | {"broken": Broken, "wrong": Wrong}
h.SHAPES = [(torch.float32, 64, 32, 16, 4, 2), (torch.bfloat16, 64, 32, 16, 4, 2)]
h.main()
"""


def test_one_opponents_failure_does_not_end_the_others(tmp_path):
    program = pathlib.Path(os.environ.get("MOELAB_PROGRAM", "moelab")).parent / "bench_moe_layer"
    if not program.is_file():
        pytest.skip(f"{program} is not built")
    out = tmp_path / "peers.jsonl"
    done = subprocess.run([sys.executable, "-c", DRIVER, "--program", program, "--rounds", "1", "--iterations", "3",
                           "--out", out], capture_output=True, text=True, timeout=300, check=False,
                          env={**os.environ, "PYTHONPATH": str(PEERS)})  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "package transformers is not installed: its layers are left out" in done.stdout
    assert "broken             failed: RuntimeError: no kernel for this GPU" in done.stdout
    assert "wrong              results differ by 5.0e-01, no times" in done.stdout
    for record in map(json.loads, out.read_text().splitlines()):
        assert record["status"] == "ok" and record["median"].keys() == {"moelab", "torch._grouped_mm"}
        assert record["failed"] == {"broken": "RuntimeError: no kernel for this GPU"}
        flops = 18 * 64 * 2 * 32 * 16
        for side, median in record["median"].items():
            assert record["gflops"][side] == pytest.approx(flops / median / 1e6)
        assert record["spread"]["moelab"] >= 0 and record["gemm_gflops"] > 0


def test_the_reference_is_the_block_of_transformers():
    pytest.importorskip("transformers")
    tensors = moe_layers.inputs(*SHAPE[:5], "zipf", "cpu")
    ours = moe_layers.OneByOne(tensors, SHAPE[5], torch.float32).results()
    theirs = moe_layers.Transformers(tensors, SHAPE[5], torch.float32, "eager").results()
    assert hf_moe_layer.agrees(hf_moe_layer.errors_of(ours, theirs), 1e-6)


# A limit that is far above what is measured would let a broken layer pass.
def test_opponents_in_bf16_are_well_inside_their_tolerance():
    shape = (torch.bfloat16, 512, 512, 128, 64, 8)
    tensors = moe_layers.inputs(*shape[:5], "even", "cpu")
    reference = moe_layers.OneByOne({n: t.float() for n, t in tensors.items()}, shape[5], torch.float32).results()
    errors = hf_moe_layer.errors_of(moe_layers.GroupedMM(tensors, shape[5], torch.bfloat16).results(), reference)
    most = hf_moe_layer.PEER_TOLERANCE[torch.bfloat16]
    assert most / 4 < max(errors.values()) < most


def test_the_tables_ratios_are_of_what_was_measured():
    head = {"machine": "a CPU", "commit": "0123456789abcdef", "date": "2026-01-02T03:04:05Z", "command": ["run", "a b"]}
    step = head | {"kind": "mixtral_step", "best_peer": "eager bf16", "table": {
        "eager bf16": {"tokens_per_second": 1000.0, "slowest": 900.0, "fastest": 1100.0, "peak_rss": 512 << 20},
        "moelab bf16": {"tokens_per_second": 2500.0, "slowest": 2400.0, "fastest": 2600.0, "peak_rss": 256 << 20}}}
    layer = head | {"kind": "moe_layer", "status": "ok", "dtype": "float32", "T": 8, "d": 4, "F": 2, "E": 3, "k": 1,
                    "median": {"moelab": 10.0, "eager": 32.0}, "gflops": {"moelab": 50.0}, "gemm_gflops": 100.0}
    other = layer | {"median": {"moelab": 20.0, "grouped_mm": 30.0}}
    lines = table.report([step, layer, other, layer | {"status": "disagrees"}]).splitlines()
    assert lines[2] == "| moelab bf16 | 2,500 | 2,400 to 2,600 | 2.50 × | 256 MiB |"
    assert lines[5] == "a CPU; commit 0123456789, 2026-01-02: `run 'a b'`"
    assert lines[9:11] == ["| float32 8, 4, 2, 3, 1 | 10 | 32 (3.20 ×) | – | 50% |",
                           "| float32 8, 4, 2, 3, 1 | 20 | – | 30 (1.50 ×) | 50% |"]
    assert len(lines) == 13


def test_tensor_files_are_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"x": torch.randn(3, 5), "weight": torch.randn(7, 2).bfloat16(), "none": torch.empty(0, 4),
               "transposed": torch.randn(2, 9).t()}  # fmt: skip
    tensor_files.save(tensors, tmp_path / "ours")
    safetensors.save_file({name: t.contiguous() for name, t in tensors.items()}, tmp_path / "theirs", {"a": "b"})
    for found in (safetensors.load_file(tmp_path / "ours"), tensor_files.load(tmp_path / "ours"),
                  tensor_files.load(tmp_path / "theirs")):
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], t) and found[name].dtype == t.dtype for name, t in tensors.items())
