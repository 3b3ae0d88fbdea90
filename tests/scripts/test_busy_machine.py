"""bench/busy_machine.py: what its runs are given, and its figures, worked out by hand."""
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import busy_machine  # noqa: E402

# In place of moelab: notes its environment and what is busy beside it, and leaves the summary of a run.
PROGRAM = """#!/bin/sh
[ "$1" = --version ] && echo 'moelab 0.0.0 (commit c0de, modified)' && exit
for word in "$@"; do case $word in run.dir=*) folder=${word#*=} ;; esac; done
mkdir -p "$folder"
echo "${GOMP_SPINCOUNT-unset} ${OMP_WAIT_POLICY-unset} $(cat /proc/"$PPID"/task/*/children | wc -w)" >>LOG
echo '{"tokens_per_second": {"median": 50.0}}' >"$folder/summary.json"
"""


def test_figures_are_medians_and_their_ratios():
    runs = {"alone": [100, 300, 200], "busy": [80, 90, 10], "busy, spinning": [40, 10, 50],
            "pairs": [[99, 100], [50, 100], [102, 100]]}
    found = busy_machine.figures(runs)
    assert found["tokens_per_second"] == {"alone": 200, "busy": 80, "busy, spinning": 40}
    assert found["ratios"] == {"busy beside alone": 0.4, "busy beside spinning": 2.0, "alone beside spinning": 0.99}


def test_figures_of_rounds_or_pairs_alone():
    nothing = {"alone": [], "busy": [], "busy, spinning": []}
    assert busy_machine.figures({**nothing, "pairs": [[99, 100]]})["ratios"] == {"alone beside spinning": 0.99}
    runs = {"alone": [2], "busy": [1], "busy, spinning": [4], "pairs": []}
    assert set(busy_machine.figures(runs)["ratios"]) == {"busy beside alone", "busy beside spinning"}


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "program"
    file.write_text(PROGRAM.replace("LOG", str(tmp_path / "log")))
    file.chmod(0o755)
    return file


def test_each_run_has_its_spin_count_and_its_busy_processes(program, tmp_path, monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setattr(busy_machine.os, "sched_getaffinity", lambda pid: {0, 1, 2})
    runs = busy_machine.measure([str(program)], rounds=2, pairs=2)
    assert runs == {"alone": [50] * 2, "busy": [50] * 2, "busy, spinning": [50] * 2, "pairs": [[50, 50]] * 2}
    own, libgomp = "unset unset", "300000 unset"
    a_round = [f"{own} 1", f"{own} 4", f"{libgomp} 4"]  # the program itself is one of the children
    pairs = [f"{own} 1", f"{libgomp} 1", f"{libgomp} 1", f"{own} 1"]  # the order changes from pair to pair
    assert (tmp_path / "log").read_text().splitlines() == 2 * a_round + pairs


def test_record_has_command_commit_and_machine(program, tmp_path):
    out = tmp_path / "out.jsonl"
    subprocess.run([sys.executable, ROOT / "bench/busy_machine.py", "--program", program, "--rounds", "1", "--pairs", "1",
                    "--out", out, "data.path=somewhere"], check=True, capture_output=True)
    record = json.loads(out.read_text())
    assert record["kind"] == "busy_machine" and record["command"] and record["machine"] and record["commit"] == "c0de, modified"
    assert record["train"][:3] == ["train", "--config", "moe-pico"] and "data.path=somewhere" in record["train"]
    assert record["ratios"] == {"busy beside alone": 1, "busy beside spinning": 1, "alone beside spinning": 1}
