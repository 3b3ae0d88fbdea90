"""bench/cpu_classes.py with programs that only note how they are called, and the tables of scripts/report_cpu.py."""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "scripts")]
import cpu_classes  # noqa: E402
from report import cpu_tables, rendering  # noqa: E402

# In place of moelab: notes what keeps its libraries to a class, and is as fast as its precision is wide.
PROGRAM = """#!/bin/sh
[ "$1" = --version ] && echo 'moelab 0.0.0 (commit c0de)' && exit
for word in "$@"; do case $word in run.dir=*) folder=${word#*=} ;; precision.compute=*) type=${word#*=} ;; esac; done
mkdir -p "$folder"
echo "$ONEDNN_MAX_CPU_ISA $type" >>LOG
echo "{\\"tokens_per_second\\": {\\"median\\": ${type#??}}, \\"peak_bytes\\": 7, \\"estimated_peak_bytes\\": 7}" >"$folder/summary.json"
"""


def test_classes_and_precisions_take_turns_in_their_own_environments(tmp_path, monkeypatch):
    program = tmp_path / "moelab"
    program.write_text(PROGRAM.replace("LOG", str(tmp_path / "log")))
    program.chmod(0o755)
    outcomes = {"avx2": "5 passed", "avx512_bf16": "skipped: this CPU lacks it", "avx512": "FAILED to build", "amx": "6 passed"}
    monkeypatch.setattr(cpu_classes, "test", outcomes.get)
    monkeypatch.setattr(cpu_classes, "program_of", lambda name: program)
    monkeypatch.setattr(sys, "argv", ["cpu_classes.py", *outcomes, "--rounds", "2", "--out", str(tmp_path / "cpu.jsonl")])
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")  # left over from something else
    cpu_classes.main()
    a_round = [f"{isa} {precision}" for isa in ("AVX2", "") for precision in ("fp32", "bf16", "fp16")]
    assert (tmp_path / "log").read_text().splitlines() == 2 * a_round
    record = json.loads((tmp_path / "cpu.jsonl").read_text())
    assert record["tests"] == outcomes and record["commit"] == "c0de"
    assert record["tokens_per_second"]["amx"] == {"fp32": 32, "bf16": 16, "fp16": 16}
    assert record["runs"]["avx2"]["bf16"] == 2 * [{"tokens_per_second": 16, "peak_bytes": 7, "estimated_peak_bytes": 7}]


HEAD = {"machine": "a CPU, 2 CPUs, class AMX, torch 2", "commit": "0123456789abcdef", "date": "2026-11-23T00:00:00Z",
        "command": ["run"]}


def peer(machine, speed):
    return HEAD | {"kind": "mixtral_step", "status": "ok", "machine": machine, "ours": "moelab bf16", "best_peer": "padded fp32",
                   "speed": speed, "memory": 0.4, "products": [{"w2": {"moelab": [10], "library": [8]}}]}


def test_tables(tmp_path):
    classes = HEAD | {"kind": "cpu_classes", "tests": {"avx2": "5 passed", "amx": "6 passed", "avx512": "skipped"},
                      "tokens_per_second": {"avx2": {"fp32": 1000, "bf16": 1100}, "amx": {"fp32": 2000, "bf16": 8000}}}
    busy = HEAD | {"kind": "busy_machine", "model": "moe-pico",
                   "tokens_per_second": {"alone": 100, "busy": 40, "busy, spinning": 20},
                   "ratios": {"busy beside alone": 0.4, "busy beside spinning": 2, "alone beside spinning": 0.99},
                   "runs": {"alone": [1] * 9, "pairs": [[1, 1]] * 15}}
    older = classes | {"tests": {"avx2": "4 passed"}}
    peers = [peer("a CPU, 2 CPUs, class AVX2 (an AMX CPU with ONEDNN_MAX_CPU_ISA=AVX2 X=Y), torch 2", 1.1), peer(HEAD["machine"], 2.5)]
    for name, records in (("cpu.jsonl", [older, classes, busy]), ("peers.jsonl", peers)):
        (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    page = subprocess.run([sys.executable, ROOT / "scripts/report_cpu.py", tmp_path / "cpu.jsonl"], check=True,
                          capture_output=True, text=True).stdout
    assert page == rendering.to_markdown(cpu_tables.report([older, classes, busy], peers))
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert rows[2:5] == [
        "| AVX2 | 5 passed | 1,000 | 1,100 |  | moelab bf16 1.10 × | padded fp32 | 0.40 × | 0.80 |",
        "| AMX | 6 passed | 2,000 | 8,000 |  | moelab bf16 2.50 × | padded fp32 | 0.40 × | 0.80 |",
        "| AVX-512 | skipped |  |  |  |  |  |  |  |"]
    assert rows[7] == "| moe-pico | 100 | 40 | 20 | 0.40 × | 2.00 × | 0.99 × |"
