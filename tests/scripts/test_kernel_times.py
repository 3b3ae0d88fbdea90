"""The arithmetic of a layer's predicted time, beside sums by hand."""

import sys

import programs
import pytest

sys.path.append(str(programs.ROOT / "scripts"))
import kernel_times  # noqa: E402
from kernel_times import STAGES, amount, counts, milliseconds, times  # noqa: E402

GPU = {"terabytes_a_second": 2, "share_of_memory": 0.5, "bf16_teraflops": 8, "share_of_products": 0.25, "products": "grouped"}
T, D, F, E, K = 32768, 2048, 1024, 64, 8


def stage(name):
    return next(stage for stage in STAGES if stage.name == name)


def test_products_of_experts_are_three_matrices_three_times():
    experts = sum(amount(stage.work) for stage in STAGES if stage.kind == "bf16" and "router" not in stage.name)
    assert experts == 2 * 3 * (3 * D * F) * (T * K)


def test_bytes_take_their_counted_traffic_at_the_share_of_the_rate():
    swiglu = stage("SwiGLU")  # reads two halves of H, writes one
    assert milliseconds(swiglu, swiglu.work, GPU, {"swiglu": {"memory": 1.5}}) == pytest.approx(1.5 * 2 * 3 * T * K * F / 1e12 * 1e3)


def test_products_take_their_operations_at_theirs():
    router, down = stage("router, products of three bf16 parts"), stage("down projection")
    assert milliseconds(router, router.work, GPU, {}) == pytest.approx(3 * (3 * 2 * T * D * E) / 2e12 * 1e3)
    assert milliseconds(down, down.work, GPU, {}) == pytest.approx(2 * T * K * D * F / 2e12 * 1e3)


def test_what_is_planned_leaves_the_products_of_experts_and_saves_the_gathers():
    named = dict(zip((stage.name for stage in STAGES), times(GPU, counts())))
    assert named["rows gathered: x, its gradient's, x again"][1] == 0 < named["rows gathered: x, its gradient's, x again"][0]
    assert named["down projection"][0] == named["down projection"][1]


def test_products_that_gather_rows_spare_their_copies_and_no_more():
    copied = times(GPU, counts())
    rows = "rows gathered: x, its gradient's, x again"
    for variant, spared in {"gathered": [rows], "hopper": [rows, "SwiGLU"]}.items():
        gathered = times(GPU | {"products": variant}, counts())
        assert [stage.name for stage, one, other in zip(STAGES, copied, gathered) if one[0] != other[0]] == spared
        assert [one[1] for one in copied] == [other[1] for other in gathered]


def test_the_stored_page_is_made_of_the_stored_counts():
    assert (programs.ROOT / "results/kernel-times.md").read_text(encoding="utf-8") == kernel_times.page(counts())
