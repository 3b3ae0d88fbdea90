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
    assert all(record["noticed_by"] or record["mutant"] in mutants.reasons() for record in records), "a mutant survives without a reason"


def test_reasons_are_of_mutants_that_exist():
    def names(file):
        pattern = mutants.KERNEL_STATEMENT if file.endswith((".cu", ".cuh")) else mutants.COPY_STATEMENT
        seen = {}
        for mutant in mutants.mutants_of(file, pattern):
            seen[mutant.text] = seen.get(mutant.text, 0) + 1
            yield f"{file} {mutant.text} {seen[mutant.text]}"

    for name in mutants.reasons():
        assert name in names(name.split()[0]), name
