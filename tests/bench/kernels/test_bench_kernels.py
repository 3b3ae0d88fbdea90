"""bench_kernels on its small cases: that each operator is there, and that the figures hang together."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "scripts"))
import gpu_goals  # noqa: E402

PROGRAM = os.environ["BENCH_KERNELS"]
WITH_BACKWARD = {"rms_norm", "rope", "attention", "attention_materialised", "attention_span", "embedding",
                 "linear_cross_entropy", "router", "expert_block"}
RULES = set(gpu_goals.RULES)
WITHOUT_BACKWARD = RULES | {"dispatch", "squared_norm", "pack_int8", "unpack_int8", "pack_fp8", "unpack_fp8"}
# their only, or first, pass allocates nothing
IN_PLACE = RULES - {"adafactor"} | {"rope", "squared_norm", "unpack_int8", "unpack_fp8"}


def call(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([PROGRAM, "--benchmark_min_time=0.001", *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict:
    """Table and JSON of one run of the small cases."""
    out = tmp_path_factory.mktemp("bench") / "kernels.json"
    done = call("--benchmark_filter=/small", f"--benchmark_out={out}")
    assert done.returncode == 0, done.stderr
    return {"table": done.stdout, **json.loads(out.read_text())}


@pytest.fixture(scope="module")
def runs(report) -> dict[str, dict]:
    return {run["name"].removesuffix("/manual_time"): run for run in report["benchmarks"]}


def test_every_operator_is_there_with_its_passes(runs):
    passes: dict[str, set[str]] = {}
    for name in runs:
        operator, case, dtype, *which = name.split("/")
        assert case.startswith("small") and dtype in ("fp32", "bf16", "int32")
        passes.setdefault(operator, set()).update(which)
    assert passes == {**dict.fromkeys(WITH_BACKWARD, {"forward", "backward"}),
                      **dict.fromkeys(WITHOUT_BACKWARD, set())}


def test_rates_are_positive_and_shares_are_of_the_rates_of_this_run(report, runs):
    context = report["context"]
    for name, run in runs.items():
        assert run["median_us"] > 0 and run["GB/s"] > 0 and run["copy_GB/s"] > 0, name
        assert run["of_copy"] == pytest.approx(run["GB/s"] / run["copy_GB/s"]), name
        operator, _, dtype, *_ = name.split("/")
        if "GFLOP/s" in run:
            products = "fp32" if operator == "router" else dtype
            peak = float(context[f"gemm_{products}_gflops"])
            assert run["GFLOP/s"] > 0
            assert run["of_gemm"] == pytest.approx(run["GFLOP/s"] / peak, rel=1e-2), name
    products = {name.split("/")[0] for name, run in runs.items() if "GFLOP/s" in run}
    assert products == {"attention", "attention_materialised", "attention_span", "linear_cross_entropy", "router",
                        "expert_block"}


def test_rates_are_the_stated_work_over_the_median_time(runs):
    # 4 x 64 rows of 384: x, y, one fp32 a row, and the weight; the products of 48 tokens, 2 routes each
    norm, block = runs["rms_norm/small/fp32/forward"], runs["expert_block/small_dropless/fp32/forward"]
    norm_bytes = 2 * 256 * 384 * 4 + 256 * 4 + 384 * 4
    block_flops = 2 * (48 * 2) * 3 * 32 * 48
    block_bytes = (2 * 48 * 32 + 3 * 4 * 32 * 48 + 2 * 96 * 48) * 4 + 8 * 96
    assert norm["GB/s"] == pytest.approx(norm_bytes / norm["median_us"] / 1e3)
    assert block["GB/s"] == pytest.approx(block_bytes / block["median_us"] / 1e3)
    assert block["GFLOP/s"] == pytest.approx(block_flops / block["median_us"] / 1e3)
    assert 0.1 < norm["median_us"] / norm["real_time"] < 10  # the mean of the same calls


def test_peak_memory_is_the_closed_form(runs):
    rows, width, tokens, vocabulary = 4 * 64, 384, 4 * 128, 256
    for dtype, element in (("fp32", 4), ("bf16", 2)):
        # the norm's result and one fp32 a row; the embedding's result, then the gradient of its weight
        norm = rows * width * element + rows * 4
        assert runs[f"rms_norm/small/{dtype}/forward"]["max_bytes_used"] == norm
        embedding = tokens * width * element
        assert runs[f"embedding/small/{dtype}/forward"]["max_bytes_used"] == embedding
        assert runs[f"embedding/small/{dtype}/backward"]["max_bytes_used"] >= \
            embedding + vocabulary * width * element
        # attention keeps its result and one fp32 a row and head; its baseline the scores besides
        flash, scores = (runs[f"{name}/small/{dtype}/forward"]["max_bytes_used"]
                         for name in ("attention", "attention_materialised"))
        assert scores > flash >= 2 * 65 * 4 * (32 * element + 4)


def test_peak_memory_is_there_for_all(runs):
    for name, run in runs.items():
        in_place = name.split("/")[0] in IN_PLACE and not name.endswith("/backward")
        assert (run["max_bytes_used"] == 0) if in_place else (run["max_bytes_used"] > 0), name


def test_context_names_machine_and_commit(report):
    context = report["context"]
    assert context["threads"] == os.environ.get("OMP_NUM_THREADS", context["threads"])
    for key in ("commit", "cpu", "cpu_capability", "gemm_fp32_gflops", "gemm_bf16_gflops",
                "copy_256mb_gb_per_s"):
        assert context[key]
    assert context["deterministic"] == "false"


def test_deterministic_is_an_option(tmp_path):
    done = call("--deterministic", "--benchmark_filter=rms_norm/small/fp32/forward", f"--benchmark_out={tmp_path}/k")
    assert done.returncode == 0
    assert json.loads((tmp_path / "k").read_text())["context"]["deterministic"] == "true"


def test_table_has_a_line_for_each(report, runs):
    lines = report["table"].splitlines()
    assert lines[0].split() == "median us spread GFLOP/s of GEMM GB/s of copy peak memory".split()
    assert [line.split()[0] for line in lines[1:]] == list(runs)
    norm = next(line for line in lines if line.startswith("rms_norm/small/fp32/forward")).split()
    assert norm[3:5] == ["-", "-"] and norm[-2:] == ["385.0", "KiB"]


def test_unknown_cases_and_options_are_refused():
    assert call("--benchmark_filter=no_such_operator").returncode == 2
    assert call("--no_such_option").returncode == 2
    refused = call("--device", "tpu")
    assert refused.returncode == 2 and refused.stderr == "bench_kernels: --device tpu: cpu or cuda\n"


def test_without_a_gpu_it_says_so():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    refused = call("--device", "cuda", "--benchmark_filter=/small")
    assert refused.returncode == 2 and refused.stderr == "bench_kernels: --device cuda: no GPU, or a build without CUDA\n"
    assert call("--device", "cpu", "--benchmark_filter=rms_norm/small/fp32/forward").returncode == 0
