"""Kernels move the least that their operators can, counted on the emulated GPU; scripts/kernel_traffic.py says which do not."""

import json
import pathlib
import sys

import programs
import pytest

sys.path.append(str(programs.ROOT / "scripts"))
import kernel_traffic  # noqa: E402


@pytest.fixture(scope="module")
def counts() -> dict[str, dict]:
    program = programs.built("MOELAB_TRAFFIC", "tests/emulator/kernel_traffic")
    return {one["operator"]: one for one in kernel_traffic.counted(pathlib.Path(program))}


def test_all_but_those_with_a_reason_stay_within_a_twentieth_of_the_least(counts):
    over = {name: (one["memory"], one["request"]) for name, one in counts.items() if not kernel_traffic.holds(one)}
    assert over.keys() == kernel_traffic.OVER.keys(), over


def test_none_moves_less_than_the_least(counts):
    assert {name: one["memory"] for name, one in counts.items() if one["memory"] < 1 or one["l2"] < one["memory"]} == {}


def test_only_tables_that_are_looked_up_have_bank_conflicts(counts):
    assert {name for name, one in counts.items() if (one["passes"] or 1) > 1} == {"adam8bit"}


def test_the_stored_page_is_the_records():
    store = programs.ROOT / "results/kernel-traffic.jsonl"
    records = [json.loads(line) for line in store.read_text(encoding="utf-8").splitlines()]
    assert kernel_traffic.page(records) == store.with_suffix(".md").read_text(encoding="utf-8")
