"""The soak's own tools: they find what is wrong, count what was done, and go on where they stopped. A short soak of each part
is among them; the long ones are scripts/soak.sh's."""
import functools
import json
import pathlib
import subprocess
import sys
import time

import budgets
import disks
import filled
import kills
import long_run
import page
import programs
import pytest
import readers
import sanitizers
import soak as program
import store
from peers import commit_of


@pytest.fixture(scope="session")
def data(make_shards) -> pathlib.Path:
    return make_shards(20_000, 4_000)


@pytest.fixture(scope="session")
def cells() -> dict:
    return kills.cells(programs.moelab())


@pytest.mark.parametrize("name", ["baseline", "nvme_optimizer", "zero_2"])
def test_a_training_that_is_killed_ends_with_the_bits_of_one_that_is_not(data, cells, tmp_path, name):
    counts, failures = kills.run_chain(programs.moelab(), data, tmp_path / "work", cells[name], 3, seed=7)
    assert failures == [] and counts["kills"] == 3 and counts["chains"] >= 1
    assert sum(counts.get(where, 0) for where in page.MEETINGS) == 3


def test_other_numbers_and_other_bits_are_found(data, cells, tmp_path, monkeypatch):
    command = kills.training
    monkeypatch.setattr(kills, "training", lambda program, data, folder, cell:
                        [*command(program, data, folder, cell), *(["train.seed=2"] if folder.name == "killed" else [])])
    _, failures = kills.run_chain(programs.moelab(), data, tmp_path / "work", cells["sgd"], 1, seed=1)
    assert len(failures) == 2 and "step" in failures[0] and "tensors differ" in failures[1], failures


def test_a_training_that_fails_is_found(data, cells, tmp_path):
    broken = {**cells["sgd"], "settings": cells["sgd"]["settings"] | {"optim.lr": "much"}}
    counts, failures = kills.run_chain(programs.moelab(), data, tmp_path / "work", broken, 1, seed=1)
    assert counts == {} and len(failures) == 1 and "optim.lr" in failures[0]


def test_a_stop_that_takes_too_long_is_found(tmp_path):
    deaf = ["sh", "-c", f"trap '' TERM; touch {tmp_path}/deaf; while :; do sleep 0.1; done"]
    chain = kills.Chain(functools.partial(kills.Group, deaf), tmp_path, 0.2, 0.5, seed=0)
    chain.patience = 1
    process = chain.start()
    while not (tmp_path / "deaf").exists():
        time.sleep(0.01)
    chain.stop(process)
    assert chain.failures == ["SIGTERM: still there after 1 s"] and process.wait() != 0


def test_a_process_that_outlives_its_kill_is_found(tmp_path):
    start = functools.partial(kills.Group, ["sh", "-c", f"setsid sleep 20 & touch {tmp_path}/started; sleep 20"])
    chain = kills.Chain(start, tmp_path, 0.2, 0.5, seed=0)
    chain.patience = 1
    process = chain.start()
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    chain.kill(process)
    (failure,) = chain.failures
    assert failure.startswith("SIGKILL: still there after 1 s: ") and str(process.pid) in failure and chain.counts == {}


@pytest.fixture(scope="session")
def undisturbed(data, tmp_path_factory) -> disks.Undisturbed:
    return disks.Undisturbed(programs.moelab(), data, tmp_path_factory.mktemp("disks") / "work")


def last_call(undisturbed: disks.Undisturbed, name: str, of: str) -> int:
    return max(number for number, call in enumerate(undisturbed.calls, 1) if call.startswith(f"{name} ") and of in call)


# In the second save, when the first is on disk.
@pytest.mark.parametrize("fault, name, of", [("EIO", "fsync", "manifest.json"), ("ENOSPC", "write", "optimizer.safetensors"),
                                             ("EINTR", "rename", "step-8.tmp"), ("short write", "write", "manifest.json")])
def test_a_call_that_fails_leaves_the_last_checkpoint(undisturbed, fault, name, of):
    number = last_call(undisturbed, name, of)
    assert disks.saved_before(undisturbed.calls, number, 0) == 4
    assert disks.fail_call(undisturbed, fault, number) == []


# In a training that goes on: its checkpoint is read, or set aside whole.
@pytest.mark.parametrize("fault, name", [("EIO", "read"), ("EIO", "mmap"), ("ENOSPC", "flock"), ("short read", "read")])
def test_a_call_that_fails_while_it_goes_on_loses_nothing(undisturbed, fault, name):
    cell = fault + disks.RESUMED
    numbers = [number for number in undisturbed.numbers(cell) if undisturbed.resumed_calls[number - 1].startswith(f"{name} ")]
    assert disks.fail_call(undisturbed, cell, numbers[-1]) == []


def test_each_call_fails_once_and_is_counted_so(undisturbed, monkeypatch):
    failed = []
    monkeypatch.setattr(disks, "fail_call", lambda undisturbed, cell, number: failed.append(number) or [])
    numbers = undisturbed.numbers("short write")
    assert disks.fail_calls(undisturbed, "short write", 0, 3) == ({"faults": 3}, [])
    assert disks.fail_calls(undisturbed, "short write", 3, 1000) == ({"faults": len(numbers) - 3}, [])
    assert failed == numbers


@pytest.mark.parametrize("event", disks.EVENTS)
def test_a_disk_that_fails_leaves_the_last_checkpoint(undisturbed, event):
    counts, failures = disks.fail_disk(undisturbed, event)
    assert failures == []
    if counts == {"refused": 1} and event != "vanished folder":
        pytest.skip("mounting a small tmpfs is not permitted here")
    assert counts == {"faults": 1}


def test_a_lost_checkpoint_and_other_bits_are_found(undisturbed, tmp_path):
    whole = undisturbed.work / "whole"
    assert undisturbed.goes_on(whole, whole / "checkpoints", 9) == ["it goes on from 8, and step 9 had been saved"]
    other = disks.training(undisturbed.program, undisturbed.data, tmp_path, **{"train.seed": 2})
    assert disks.run(other).returncode == 0
    assert undisturbed.goes_on(tmp_path, tmp_path / "checkpoints", 8)[0].startswith("its numbers or its last tensors")
    assert disks.wrong_end(1, "moelab: a defect\n") and disks.wrong_end(2, "moelab: two\nlines\n")
    assert not disks.wrong_end(2, "moelab: one line\n")


def test_a_long_training_is_measured_and_judged(data, tmp_path):
    found = long_run.run(programs.moelab(), data, tmp_path / "work", 220)
    assert found["exit_code"] == 0 and len(found["cost_ratios"]) == long_run.ROUNDS and found["cost_ratio"] > 0
    calm = found | {"at_nine_tenths": found["at_a_tenth"], "cost_ratio": 1.0}
    assert long_run.failures(calm) == []
    grown = {key: 2 * value for key, value in calm["at_a_tenth"].items()}
    wrong = long_run.failures(calm | {"exit_code": 1, "at_nine_tenths": grown, "cost_ratio": 1.1})
    assert [text.split()[0] for text in wrong] == ["exit", "resident", "handles", "allocated_bytes", "a"]


def test_a_filled_miniature_is_trained_and_judged(data, tmp_path):
    counts, failures, found = filled.run(programs.moelab(), "train_24gb", data, tmp_path / "work", steps=2)
    assert (counts, failures) == ({"steps": 2}, []) and int(found["changes"][0].removeprefix("train.micro_batch=")) > 32
    assert len(filled.scripts()) == 10 and "| `train_24gb.sh` | `train.micro_batch=" in page.filled_text(
        [{"cell": "train_24gb", "failures": [], "found": found}])
    larger = {"peak_bytes": 1.02 * found["predicted_bytes"], "library_bytes": 0}
    wrong = filled.failures(found | {"filled_share": 0.6, "losses": found["losses"][::-1]} | larger)
    assert [text.split()[0] for text in wrong] == ["filled", "the", "a"]
    assert filled.failures(found | {"losses": [2.0, float("nan")]})[0].startswith("losses")
    code, failures, _ = filled.run(programs.moelab(), "train_24gb", tmp_path / "none", tmp_path / "work", steps=2)
    assert code == {} and failures[0].startswith("exit code 2: ")


def test_budgets_are_counted_and_what_fails_is_found(tmp_path, monkeypatch):
    said = "12 steps, 3 changes, 1 refusals"
    for code, counts in ((0, {"steps": 12, "changes": 3, "refusals": 1}), (1, {"steps": 12, "changes": 3, "refusals": 1})):
        test = {"command": ["sh", "-c", f"echo $MOELAB_BUDGET_SEED; echo '{said}'; exit {code}"], "properties": []}
        monkeypatch.setattr(budgets.ctest_tests, "tests_of", lambda build, test=test: {"test_commands": test})
        found, failures = budgets.run(tmp_path, 7)
        assert found == counts and len(failures) == code and all("seed 7: exit code 1: 7\n" in text for text in failures)


@pytest.mark.parametrize("name", readers.READERS)
def test_generated_inputs_are_read_or_refused(name):
    assert readers.run(name, seed=1, inputs=300, seconds=float("inf")) == ({"inputs": 300}, [])


def test_a_reader_that_fails_otherwise_is_found(monkeypatch):
    monkeypatch.setitem(readers.READERS, "broken", (readers.DOCUMENTS, lambda folder, text: json.loads(text.split(b"\n")[0])))
    failures = readers.run("broken", seed=1, inputs=50)[1]
    assert failures and "JSONDecodeError" in failures[0] and failures[0].startswith("seed 1, input ")


FAULTY = {
    "asan": ("address,undefined", "int* p = new int[2]; volatile int i = 2; p[i] = 1; delete[] p;",
             "ERROR: AddressSanitizer: heap-buffer-overflow"),
    "tsan": ("thread", "int n = 0; std::thread other([&] { ++n; }); ++n; other.join();",
             "WARNING: ThreadSanitizer: data race"),
}


@pytest.mark.parametrize("sanitizer", FAULTY)
@pytest.mark.parametrize("faulty", [True, False])
def test_what_a_sanitizer_finds_is_read(tmp_path, sanitizer, faulty):
    flag, code, expected = FAULTY[sanitizer]
    main = f'{code if faulty else ""} std::puts("[==========] 3 tests from 1 test suite ran. (1 ms total)");'
    (tmp_path / "main.cpp").write_text(f"#include <cstdio>\n#include <thread>\nint main() {{ {main} }}\n")
    subprocess.run(["g++", f"-fsanitize={flag}", "-pthread", tmp_path / "main.cpp", "-o", tmp_path / "main"], check=True)
    test = {"name": "made", "command": [str(tmp_path / "main")], "properties": []}
    counts, failures = sanitizers.run(test, sanitizer, tmp_path / "log")
    assert len(failures) == faulty and all(expected in text for text in failures), failures
    assert counts == ({} if faulty and sanitizer == "asan" else {"tests": 3})


def test_a_test_that_fails_under_a_sanitizer_and_one_that_says_nothing_are_found():
    printed = "[  FAILED  ] Safetensors.Reads (3 ms)\n[==========] 7 tests from 2 test suites ran. (9 ms total)\n"
    assert sanitizers.judge(printed, 1) == ({"tests": 7}, ["[  FAILED  ] Safetensors.Reads"])
    assert sanitizers.judge("", 0) == ({}, ["exit code 0: "])


def test_the_page_names_what_no_sanitizer_ran(tmp_path):
    kept = store.Store(tmp_path / "soak.jsonl", "abc")
    for failures in (["a race"], []):
        kept.add("sanitizers", "test_io", {"tests": 9}, failures, sanitizer="tsan", programs=["test_io", "test_data"])
    text = page.text(store.records(tmp_path / "soak.jsonl"))
    assert "| ThreadSanitizer | `test_io` | 9 | nothing | abc |" in text and "a race" not in text
    assert "Not run under ThreadSanitizer: `test_data`." in text
    assert "| kills | 0 | 10,000 |" in text and "| tests under sanitizers | 18 | every test program |" in text


@pytest.mark.parametrize("path", sorted((programs.ROOT / "results").glob("*/soak.jsonl")), ids=lambda path: path.parent.name)
def test_committed_counts_have_their_page(path):
    assert path.with_name("reliability.md").read_text() == page.text(store.records(path))


def soak(folder: pathlib.Path, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, pathlib.Path(__file__).parent / "soak.py", "--store", folder / "soak.jsonl", "--program", programs.moelab()]
    done = subprocess.run([*map(str, command), *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def test_inputs_that_crash_or_take_a_second_are_found():
    printed = "stat::number_of_executed_units: 70\nstat::average_exec_per_sec:     7\nstat::slowest_unit_time_sec:    {}\n"
    assert program.fuzzed(printed.format(0), 0) == ({"inputs": 70}, 0, [])
    assert program.fuzzed(printed.format(2), 0) == ({"inputs": 70}, 2, ["an input took 2 s"])
    counts, _, failures = program.fuzzed("ERROR: AddressSanitizer: heap-buffer-overflow", 1)
    assert counts == {} and failures == ["exit code 1: ERROR: AddressSanitizer: heap-buffer-overflow"]


def test_the_page_says_what_the_fuzzer_found_and_counts_failed_calls_by_program():
    undefined = "NEW_FUNC[1/1]: f\nfile.hpp:67:47: runtime error: 1.2e+68 is outside the range\nSUMMARY: …"
    overflow = "exit code 1: 0x0c047fff8000: fa fa\n" * 50 + "SUMMARY: AddressSanitizer: heap-buffer-overflow f.cpp:3:1 in f\nMS: 1"
    text = page.inputs_text([{"cell": "manifest", "commit": "abc", "counts": {"inputs": 7}, "failures": [undefined, overflow]}])
    assert text.endswith("\n- `manifest`, commit abc: runtime error: 1.2e+68 is outside the range\n"
                         "- `manifest`, commit abc: SUMMARY: AddressSanitizer: heap-buffer-overflow f.cpp:3:1 in f\n"), text
    pieces = [{"cell": "EIO", "commit": commit, "counts": {"faults": 10}, "failures": [], "calls": calls}
              for commit, calls in (("abc", 25), ("abc", 25), ("def", 90))]
    assert "| EIO | 25 | 20 |  | 0 |" in page.disks_text(pieces)


def test_the_fuzzer_goes_on_with_what_is_furthest_from_its_goal(tmp_path):
    one = program.Soak.__new__(program.Soak)
    one.only, one.commit, one.store = [], "abc", store.Store(tmp_path / "soak.jsonl", "abc")
    one.store.add("inputs", "safetensors", {"inputs": 10_000_000}, [])  # of fifty
    one.store.add("inputs", "metrics", {"inputs": 2_000_000}, [])  # of five
    assert one.least("inputs", ["metrics", "safetensors"], "inputs", page.goal_of_inputs) == "safetensors"
    store.Store(one.store.path, "before").add("inputs", "safetensors", {"inputs": 20_000_000}, [])
    assert one.least("inputs", ["metrics", "safetensors"], "inputs", page.goal_of_inputs) == "safetensors"
    assert one.least("inputs", ["metrics", "safetensors"], "inputs", page.goal_of_inputs, of_all_commits=True) == "metrics"


def test_the_cell_that_was_counted_least_comes_first_and_the_page_sums_up(tmp_path):
    before = store.Store(tmp_path / "soak.jsonl", commit_of(programs.moelab()))
    before.add("kills", "lion", {"kills": 10, "in a save": 10, "chains": 1}, [])
    store.Store(tmp_path / "soak.jsonl", "another").add("kills", "sgd", {"kills": 2000, "chains": 5}, ["lost a step"])
    said = soak(tmp_path, "--minutes=0.01", "--part=kills", "--cell=lion", "--cell=sgd", "--seed=3")
    assert said.startswith("kills sgd: ")
    text = (tmp_path / "reliability.md").read_text()
    assert f"**{2010 + program.KILLS_IN_A_PIECE:,} kills of 10,000 " in text and "1 wrong.**" in text
    assert "| `lion` | 10 | 0 | 0 | 10 | 0 | 1 | 0 |" in text
    before.add("kills", "lion", {}, ["what went wrong"])
    soak(tmp_path, "--minutes=0", "--part=kills", code=1)
