"""scripts/kernel_mutants.py: what it leaves out, what it reads, and the page that its records make."""
import importlib.util
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
STORE = ROOT / "results/kernel-mutants.jsonl"
spec = importlib.util.spec_from_file_location("kernel_mutants", ROOT / "scripts/kernel_mutants.py")
mutants = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutants)

CODE = """#include <x>
__device__ void f() {
  a[threadIdx.x] = 1;  // before __syncthreads();
  __syncthreads();
  if (leader) {
    __threadfence();
  }
}
"""
COPIES = """void follow(const Mark& mark);
void g() {
  copies.follow();
  const Mark there = copies.wait(mark);
  if (there) slab_->fetches().wait(there);
  return copies.join();
}
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    (tmp_path / "kernel.cu").write_text(CODE)
    (tmp_path / "copies.cpp").write_text(COPIES)
    return tmp_path


def test_each_statement_is_left_out_once(root):
    found = mutants.mutants_of("kernel.cu", mutants.KERNEL_STATEMENT)
    assert [(m.line, m.text) for m in found] == [(4, "__syncthreads();"), (6, "__threadfence();")]
    assert found[0].source() == CODE.replace("\n  __syncthreads();", "\n  ;")


def test_calls_whose_value_is_used_and_declarations_stay(root):
    found = mutants.mutants_of("copies.cpp", mutants.COPY_STATEMENT)
    assert [m.text for m in found] == ["copies.follow();", "slab_->fetches().wait(there);"]


def test_what_a_test_says_is_read():
    assert mutants.what_failed(1, "emulator: race in shared memory: …\n[  FAILED  ] A.B/c_Cuda (3 ms)") == "a race in shared memory"
    assert mutants.what_failed(1, "[  FAILED  ] Shapes/A.B/c_Cuda, where") == "Shapes/A.B/c_Cuda"
    assert mutants.what_failed(-11, "") == "it crashes (exit code -11)"


def test_the_page_is_what_its_records_say():
    records = [json.loads(line) for line in STORE.read_text().splitlines()]
    assert mutants.page(records) == STORE.with_suffix(".md").read_text(), f"scripts/kernel_mutants.py --page {STORE} makes it anew"


def test_every_mutant_was_tried_and_those_that_survive_have_a_reason():
    there = mutants.all_mutants()
    last = {record["mutant"]: record["noticed_by"] for line in STORE.read_text().splitlines() for record in [json.loads(line)]}
    assert there.keys() <= last.keys()
    assert mutants.reasons().keys() == {name for name in there if last[name] is None}
