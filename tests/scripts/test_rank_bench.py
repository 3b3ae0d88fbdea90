"""bench/ranks/ranks.py with programs that only say numbers, its figures worked out by hand, and scripts/report_ranks.py."""
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/ranks"), str(ROOT / "scripts")]
import one_rank  # noqa: E402
import ranks as bench  # noqa: E402
import stages  # noqa: E402
from report import rank_tables  # noqa: E402

# In place of moelab: a step of one rank takes 80 ms, one of two 100 ms. A step sends 150 bytes, and 25 of control.
MOELAB = """#!/bin/sh
[ "$1" = --version ] && echo 'moelab 0.0.0 (commit c0de)' && exit
for word in "$@"; do case $word in run.dir=*) folder=${word#*=} ;; esac; done
[ "${RANK-0}" = 0 ] || exit 0
mkdir -p "$folder"
time=80; [ -z "$RANK" ] || time=100
echo "{\\"step_ms\\": {\\"median\\": $time}, \\"steps\\": 2, \\"model\\": {\\"parameters\\": 100}, \\"peak_tensor_bytes\\": 7,
 \\"estimated_peak_bytes\\": 7, \\"communication\\": {\\"sent_bytes\\": {\\"data/gradients\\": 100, \\"data/updates\\": 200,
 \\"data/control\\": 50}, \\"hidden_share\\": 0.5}}" >"$folder/summary.json"
"""
# In place of bench_exchange: 100 bytes, the half of a gradient of 100 bf16 elements, take 20 ms.
EXCHANGE = """#!/bin/sh
[ "$1 $2" = "bf16 200" ] || exit 1
[ "$RANK" = 1 ] || echo '{"sent_ms": [30, 20, 10], "ordered_ms": [25, 25, 25], "gloo_ms": [50, 50, 50]}'
"""


@pytest.mark.parametrize("step, compute, exchange, share", [(110, 100, 10, 0), (100, 100, 10, 1), (105, 100, 10, 0.5), (150, 20, 140, 0.5)])
def test_the_hidden_share_is_of_the_shorter(step, compute, exchange, share):
    assert bench.hidden(step, compute, exchange) == share


@pytest.mark.parametrize("step, share", [(100, 1), (150, 0), (120, 0.6)])
def test_what_a_link_adds_is_beside_the_unlimited_one(step, share):
    unlimited = {"step_ms": 100, "exchange_ms": 10}
    assert rank_tables.hidden_of_link({"step_ms": step, "exchange_ms": 60}, unlimited) == share


def test_figures_and_their_tables(tmp_path, monkeypatch):
    for name, text in (("moelab", MOELAB), ("bench_exchange", EXCHANGE)):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    out = tmp_path / "ranks.jsonl"
    monkeypatch.setattr(sys, "argv", ["ranks.py", "--build", str(tmp_path), "--rounds", "2", "--zero", "2", "--links", "unlimited",
                                      "--out", str(out), "data.path=data"])
    bench.main()
    record = json.loads(out.read_text())
    (row,) = record["layouts"]
    assert record["alone_ms"] == 80 and record["commit"] == "c0de"
    assert row["sent_bytes"] == 150 and row["exchange_ms"] == 30  # half as much again as what was timed
    assert row["hidden"] == pytest.approx((30 + 80 - 100) / 30) and row["efficiency"] == 0.8
    page = subprocess.run([sys.executable, ROOT / "scripts/report_ranks.py", out], check=True, capture_output=True, text=True).stdout
    assert "| parallel.zero=2 | unlimited | 100 | 80 % | 30 | 33 % | |" in " ".join(page.split())
    assert "| unlimited | 25 | 50 | 2.00 × |" in " ".join(page.split())


def held(ranks, zero, share):
    """A rank of a model of 10 parameters at 16 bytes, of which 8 are the optimizer's and divided from ZeRO-1 on."""
    state = {"parameters": 40, "gradients": 40, "optimizer": 80 if zero == 0 else 80 // ranks}
    return {"ranks": ranks, "zero": zero, "state_bytes": state, "peak_bytes": 1000 * share, "estimated_peak_bytes": 1000 * share - 4,
            "parameters": 10}


STAGE_7B = {"parameters": 2e9, "gradients": 4e9, "optimizer": 4e9}
ESTIMATES = {
    "--ranks 16": {"ranks": {"by_stage": [{"zero": zero, "peak_bytes": 1e6} for zero in range(4)]}},
    "--ranks 8": {"model": {"parameters": 1e9}, "ranks": {"by_stage": [{"zero": zero, **STAGE_7B} for zero in range(4)]}},
    "parallel.data": {"peak_bytes": 80e9, "host_bytes": 2e9},
}


def test_what_a_rank_holds_beside_what_guides_claim(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "train", lambda program, ranks, zero, a: held(ranks, zero, 1 if zero == 0 else 0.8))
    monkeypatch.setattr(stages, "estimate", lambda program, *words: next(
        answer for asked, answer in ESTIMATES.items() if asked in " ".join(words)))
    monkeypatch.setattr(stages, "commit_of", lambda program: "c0de")
    out = tmp_path / "ranks.jsonl"
    monkeypatch.setattr(sys, "argv", ["stages.py", "--ranks", "1", "2", "--predicted-ranks", "16", "--out", str(out), "a=b"])
    stages.main()
    layouts = [{"zero": zero, "link": link, "step_ms": 100 + zero * (10 if link == "slow" else 0), "efficiency": 1, "exchange_ms": 1,
                "hidden": 0, "sent_bytes": 1, "peak_bytes": 1, "estimated_peak_bytes": 1}
               for zero in (0, 2, 3) for link in ("unlimited", "slow")]
    ranks = {"kind": "ranks", "machine": "m", "commit": "c", "date": "2026-01-01", "command": ["x"], "model": "m", "ranks": 2, "settings": [],
             "rounds": 1, "alone_ms": 100, "layouts": layouts, "exchanges": {}}
    with out.open("a") as file:
        file.write(json.dumps(ranks) + "\n")
    page = subprocess.run([sys.executable, ROOT / "scripts/report_ranks.py", out], check=True, capture_output=True, text=True).stdout
    page = " ".join(page.split())
    assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG") and "](ranks.png)" in page
    assert "| 2 | 0.0 (16.00) | 0.0 (12.00) | 0.0 (12.00) | 0.0 (12.00) |" in page
    assert "missed no peak by more than 4 bytes" in page
    # 7 times the 1e9 parameters of the dry run
    assert "| vibee.zero_0 | 14 / 14 | 28 / 14 | 28 / 28 | 70 / 56 | **but for** gradients 28 GB |" in page
    assert "| vibee.zero_1 | 14 / 14 | 28 / 14 | 28 / 3.5 | 70 / 31.5 | **but for** gradients 28 GB and optimizer 28 GB |" in page
    # a quarter of the state saved, a fifth of the peak; 120 and 130 ms beside 100 over the slow link
    assert ("| ava.zero_1 | 33 % | 25 % (20 %) | 0 % | +0 % | -17 % | **saves less**, **costs no more** over unlimited |") in page
    assert "| ava.zero_3 | 75 % | 25 % (20 %) | -15 % | +0 % | -23 % | **saves less**, **costs no more** over unlimited |" in page
    assert "8 of 80 GB | 80.0 | 2 | **fits** |" in page


def test_one_rank_beside_the_program_before(tmp_path, monkeypatch):
    """The new program's steps cost half as much again; what a run costs beside its steps is left out."""
    cost = {"old": 2.0, "new": 3.0}
    monkeypatch.setattr(one_rank, "cpu_seconds", lambda program, steps, settings: 100 + cost[program] * steps)
    monkeypatch.setattr(one_rank, "commit_of", {"old": "0ld", "new": "0123456789ab, modified"}.get)
    out = tmp_path / "ranks.jsonl"
    monkeypatch.setattr(sys, "argv", ["one_rank.py", "old", "new", "--pairs", "3", "--out", str(out), "a=b"])
    one_rank.main()
    record = json.loads(out.read_text())
    assert record["ratio"] == 1.5 and record["pairs"] == 3 * [[2, 3]] and record["old_commit"] == "0ld"
    page = subprocess.run([sys.executable, ROOT / "scripts/report_ranks.py", out], check=True, capture_output=True, text=True).stdout
    assert "One rank (a=b) takes 3.00 CPU seconds a step" in page and "1.500 (1.500 to 1.500)" in page
    assert "commit 0123456789 (modified), " in page


def test_cpu_seconds_are_the_programs(tmp_path):
    program = tmp_path / "busy"
    program.write_text("#!/usr/bin/python3\nimport time\nwhile time.process_time() < 0.5: pass\n")
    program.chmod(0o755)
    assert 0.5 <= one_rank.cpu_seconds(str(program), 3, []) < 1.5


def test_a_slow_link_takes_its_time(tmp_path):
    """2.5 MB in one direction, and as much in the other, over 100 Mbit/s each: 200 ms, where nothing limits a few."""
    link = ROOT / "scripts/slow_link.sh"
    if subprocess.run([link, "100", "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine makes no network namespace with a rate")
    talk = tmp_path / "talk.py"
    talk.write_text("""
import socket, threading, time
a = socket.create_server(("127.0.0.1", 0))
b = socket.create_connection(a.getsockname())
c = a.accept()[0]
def send(s):
    s.sendall(bytes(2_500_000))
def take(s):
    left = 2_500_000
    while left: left -= len(s.recv(left))
start = time.monotonic()
threads = [threading.Thread(target=f, args=(s,)) for f in (send, take) for s in (b, c)]
for t in threads: t.start()
for t in threads: t.join()
print(time.monotonic() - start)
""")
    seconds = float(subprocess.run([link, "100", sys.executable, talk], check=True, capture_output=True, text=True).stdout)
    assert seconds > 0.15


@pytest.mark.parametrize("arguments", [[], ["fast", "true"], ["0", "true"], ["100"]])
def test_a_link_without_rate_or_command_says_how(arguments):
    done = subprocess.run([ROOT / "scripts/slow_link.sh", *arguments], capture_output=True, text=True)
    assert done.returncode == 2 and "usage: scripts/slow_link.sh RATE COMMAND" in done.stderr
