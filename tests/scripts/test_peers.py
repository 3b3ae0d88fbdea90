"""bench/peers: what its comparisons do where packages are missing and opponents fail, and what its tables say."""
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]
PEERS = ROOT / "bench/peers"
sys.path[:0] = [str(PEERS), str(ROOT / "scripts")]

import expert_sweep  # noqa: E402
import hf_moe_layer  # noqa: E402
import moe_layers  # noqa: E402
import step_profile  # noqa: E402
import tensor_files  # noqa: E402
from peer_records import HEAD, SOURCE  # noqa: E402
from report import peer_tables  # noqa: E402
from report.rendering import to_markdown  # noqa: E402

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


def below(page: str, heading: str) -> list[str]:
    """The lines below a heading."""
    lines = page.splitlines()
    return lines[lines.index(heading) + 2:]


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
        assert re.fullmatch("[0-9a-f]{12}(, modified)?|unknown", record["commit"])
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


def test_the_tables_are_printed_and_a_mistake_is_named(tmp_path):
    (tmp_path / "bad.jsonl").write_text("{")
    for file, code, out, error in ((ROOT / "results/epyc-2-cores/peers.jsonl", 0, "| :-- | --: |", ""),
                                   (tmp_path / "none.jsonl", 2, "", "none.jsonl: [Errno 2]"),
                                   (tmp_path / "bad.jsonl", 2, "", "bad.jsonl: Expecting")):
        done = subprocess.run([sys.executable, ROOT / "scripts/report_peers.py", file], capture_output=True, text=True,
                              check=False)
        assert (done.returncode, out in done.stdout, error in done.stderr) == (code, True, True), done.stderr
        assert "Traceback" not in done.stderr


def test_the_sweep_over_experts_has_a_table_of_its_own():
    layer = HEAD | {"kind": "moe_layer", "dtype": "float32", "T": 8, "d": 4, "F": 2, "E": 4, "k": 1, "load": "even",
                    "median": {"moelab": 10.0}, "gflops": {"moelab": 50.0}, "gemm_gflops": 100.0,
                    "spread": {"moelab": 0.04}}
    sweep = layer | {"kind": "moe_layer_sweep", "command": ["run", "--sweep"],
                     "median": {"moelab": 100.0, "eager": 200.0}}
    wide = sweep | {"E": 256, "median": {"moelab": 109.0, "eager": 900.0}, "spread": {"moelab": 0.12}}
    skewed = sweep | {"load": "zipf", "median": {"moelab": 50.0}}
    page = to_markdown(peer_tables.report([layer, sweep, wide, skewed]))
    assert below(page, "## One MoE layer")[4] == SOURCE and page.startswith("# Beside other people's code\n")
    lines = below(page, "## A layer with more experts")
    assert lines[0] == "| MoE layer alone: T, d, F, E, k | moelab, ms | beside E = 4 | spread | eager, ms |"
    assert lines[2:5] == ["| float32 8, 4, 2, 4, 1 | 100 |  | 4% | 200 |",
                          "| float32 8, 4, 2, 256, 1 | 109 | +9% | 12% | 900 (+350%) |",
                          "| float32 8, 4, 2, 4, 1, zipf | 50 |  | 4% | – |"]
    assert "the update of its weights is not in it" in lines[6]
    assert lines[8] == SOURCE.replace("run 'a b'", "run --sweep") and len(lines) == 9


def test_the_growth_of_a_step_is_of_the_same_round():
    def run(parameters, *milliseconds):
        return {"parameters": parameters, "rss": 3 << 20, "milliseconds": milliseconds}

    found = expert_sweep.figures({4: [run(1e6, 90, 100, 900), run(1e6, 200)], 256: [run(6e7, 110, 112), run(6e7, 250)]})
    assert found[4]["growth"] == found[4]["most"] == 0 and found[4]["step_ms"] == 150
    assert [found[256][name] for name in ("growth", "least", "most")] == pytest.approx([0.18, 0.11, 0.25])
    record = HEAD | {"kind": "expert_sweep", "precision": "bf16", "table": {str(e): row for e, row in found.items()},
                     "settings": expert_sweep.SHAPE | {"train.micro_batch": 32}}
    lines = below(to_markdown(peer_tables.report([record])), "## A training step with more experts")
    assert lines[0] == "| training step: E | parameters | step, ms | beside E = 4 | peak resident |"
    assert lines[2:4] == ["| 4 | 1M | 150 |  | 3 MiB |", "| 256 | 60M | 112 | +18% (+11% to +25%) | 3 MiB |"]
    assert lines[5].startswith("Equal work a token: 32 × 512 tokens in bf16, 2 layers, d 256, F 512, k 4. The whole")
    assert lines[7] == SOURCE


PROGRAM, LIBTORCH = "/home/me/moelab/build/dev/bin/moelab", "/opt/torch/lib/libtorch_cpu.so"
ANONYMOUS, BF16 = "moelab::(anonymous namespace)", "c10::BFloat16"
TENSOR, TASK = "at::Tensor const&", "{lambda(long, long)#1}"
SYMBOLS = [  # as perf script printed them, the longest shortened
    ("products", f"moelab::detail::word_tile<{BF16}, 6, 4>", PROGRAM),
    ("products", "moelab::multiply_block<float>", PROGRAM),
    ("products", "mkl_blas_def_sgemm_kernel_0_zen", LIBTORCH),
    ("products", "dnnl::impl::cpu::x64::matmul::brgemm_matmul_t<(dnnl::impl::cpu::x64::cpu_isa_t)13168>::compute_kernel",
     LIBTORCH),
    ("products", "[unknown]", "/tmp/perf-7178.map"),
    ("laying out operands", f"at::vec::AVX512::transpose_mxn<{BF16}>", PROGRAM),
    ("laying out operands",
     f"moelab::BlockedProducts<{BF16}>::multiply<moelab::columns_of<{BF16}>({BF16} const*, long, long)::{TASK}, "
     f"moelab::Results<moelab::BlockedExpert<{BF16}>::hidden_backward(long) const::{TASK}> >(long) const::{TASK}", PROGRAM),
    ("laying out operands",
     "_ZZNK6moelab15BlockedProductsIfE8multiplyIZNKS1_21multiply_by_transposeIZNS_9halves_ofIfEEDaPKT_lEUllllE_NS_"
     "7ResultsIZNS_10store_rowsIfEEDaPS5_lEUlPKfllllE_E_clESP_l", PROGRAM),
    ("SwiGLU", f"moelab::detail::swiglu_backward_block<{BF16}>", PROGRAM),
    ("attention's own",
     f"{ANONYMOUS}::for_tasks<{ANONYMOUS}::BackwardScratch, moelab::blocked_attention_backward({TENSOR})::{TASK}>::{TASK}",
     PROGRAM),
    ("attention's own",
     f"at::native::(anonymous namespace)::cpu_flash_attention<float, float, 64l, 512l, false>({TENSOR})::{TASK}", LIBTORCH),
    ("optimizer",
     f"moelab::for_each_vector<{ANONYMOUS}::step_cpu<{BF16}, float>({TENSOR}, moelab::OptimizerStep const&)::{TASK}>", PROGRAM),
    ("routing, gather, scatter",
     f"at::internal::invoke_parallel<at::parallel_for<{ANONYMOUS}::scatter_add<float>(float const*)::{TASK}>(long)>", PROGRAM),
    ("routing, gather, scatter",
     f"{ANONYMOUS}::backward_cpu({ANONYMOUS}::ExpertCall const&, {TENSOR}, {TENSOR})::{TASK}", PROGRAM),
    ("norms, rotary embedding",
     f"{ANONYMOUS}::backward_cpu({TENSOR}, {TENSOR}, {TENSOR}, {TENSOR})::{{lambda(auto:1)#1}}::operator()<float>", PROGRAM),
    ("norms, rotary embedding", f"{ANONYMOUS}::normalise_row<float>", PROGRAM),
    ("loss", f"moelab::cpu::CrossEntropyTask<{BF16}>::for_tiles<moelab::cpu::CrossEntropyTask<{BF16}>::run()>", PROGRAM),
    ("LibTorch, other",
     "at::native::AVX2::vectorized_loop<at::native::(anonymous namespace)::add_kernel(at::TensorIteratorBase&)>", LIBTORCH),
    ("C library", "__memmove_avx512_unaligned_erms", "/usr/lib/x86_64-linux-gnu/libc.so.6"),
    ("moelab, other", "moelab::Shard::check_ids", PROGRAM),
    ("other", "operator new", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30"),
    ("waiting for the other thread", "[unknown]", "/opt/torch/lib/libgomp.so.1"),
    ("kernel: pages, files", "clear_page_erms", "[kernel.kallsyms]"),
]


@pytest.mark.parametrize("deleted", ["", " (deleted)"])
def test_samples_are_attributed_by_symbol_and_file(deleted):
    lines = [f" 7178 100.{number:06}:      7f5d9e4f23e7 {symbol} ({file}{deleted})"
             for number, (_, symbol, file) in enumerate(SYMBOLS)]
    for line, (group, *_) in zip(lines, SYMBOLS):
        assert dict(step_profile.count_groups([line], 100, 101)) == {group: 1}, line
        assert group in step_profile.GROUPS
    assert step_profile.count_groups([*lines, "not a sample"], 100.000001, 100.000003).total() == 2
    assert step_profile.count_groups(lines, 101, 102).total() == 0


def test_the_rates_of_a_profile_by_hand():
    """Two cores for ten steps of 0.1 s: 3998 samples would fill them, and of 3598 taken, 1999 are products."""
    summary = {"machine": {"threads": 2}, "model_flops_per_token": 1e9 / 2048, "flops_per_second": 8e9,
               "fraction_of_gemm_peak": 0.4, "commit": "fedcba987654"}
    counts = collections.Counter({"products": 1999, "SwiGLU": 1599})
    found = step_profile.figures(counts, 1.0, [90, 90, 90, 90, 100, 100, 100, 110, 110, 120], summary)
    assert found["groups"]["products"] == 0.5 and found["groups"]["SwiGLU"] == pytest.approx(0.4, abs=1e-4)
    assert found["groups"]["idle cores"] == pytest.approx(0.1, abs=1e-4)
    assert sum(found["groups"].values()) == pytest.approx(1)
    assert found["commit"] == "fedcba987654"  # of the program, which need not be the checkout's
    assert (found["gflop"], found["gemm_gflops"], found["step_ms"]) == (pytest.approx(1), pytest.approx(20), 100)
    assert found["step_of_gemm"] == pytest.approx(10 / 20)  # 1 GFLOP in 0.1 s
    assert found["products_of_gemm"] == pytest.approx(1 / (0.5 * 0.1) / 20)  # 1 GFLOP in half of that
    full = step_profile.figures(counts, 0.5, [100] * 5, summary)  # more samples than a perfect clock would take
    assert full["groups"]["idle cores"] == 0 and sum(full["groups"].values()) == pytest.approx(1)


def test_profiles_before_and_after_stand_side_by_side():
    def record(label, precision, products, **more):
        return HEAD | {"kind": "step_profile", "label": label, "precision": precision, "step_ms": 400.4, "gflop": 226.1,
                       "groups": dict.fromkeys(step_profile.GROUPS, 0.0) | {"products": products}, "gemm_gflops": 1234.5,
                       "step_of_gemm": 0.46, "products_of_gemm": 0.8} | more

    before = [record("before", precision, 0.58) for precision in ("bf16", "fp32")]
    after = [record("after", precision, 0.655, commit="fedcba9876543210", step_ms=350) for precision in ("bf16", "fp32")]
    lines = below(to_markdown(peer_tables.report([*before, *after])), "## Where the time of a step goes")
    assert lines[0] == ("| share of cores × time in a training step of moe-micro | before bf16 | after bf16 | before fp32 |"
                        " after fp32 |")
    assert lines[2] == "| products | 58.0% | 65.5% | 58.0% | 65.5% |"
    last = 2 + len(step_profile.GROUPS)
    assert lines[last:last + 5] == ["| step, ms | 400 | 350 | 400 | 350 |", "| GFLOP of a step | 226 | 226 | 226 | 226 |",
                                    "| LibTorch's product, GFLOP/s | 1,234 | 1,234 | 1,234 | 1,234 |",
                                    "| whole step beside it | 46% | 46% | 46% | 46% |",
                                    "| products beside it | 80% | 80% | 80% | 80% |"]
    assert "more than 100 %" in lines[last + 6]
    assert lines[last + 7:] == ["", f"before: {SOURCE}", "", "after: " + SOURCE.replace("0123456789", "fedcba9876")]


def test_a_profile_without_perf_says_what_is_missing(tmp_path):
    done = subprocess.run([sys.executable, PEERS / "step_profile.py"], capture_output=True, text=True, check=False,
                          env={**os.environ, "PATH": str(tmp_path)})  # fmt: skip
    assert done.returncode == 1 and done.stderr == "perf is not installed (Debian: apt-get install linux-perf)\n"


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
