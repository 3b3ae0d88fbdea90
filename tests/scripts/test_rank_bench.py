"""bench/ranks/ranks.py with programs that only say numbers, its figures worked out by hand, and scripts/report_ranks.py."""
import json
import pathlib
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/ranks"), str(ROOT / "scripts")]
import bubble  # noqa: E402
import one_rank  # noqa: E402
import ranks as bench  # noqa: E402
import step_times  # noqa: E402
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


def test_a_stage_waits_for_a_share_of_its_passes_and_waiting(tmp_path):
    """2 steps of 4 micro-batches: a pass of the first stage takes 0.25 s forward and 0.5 s back."""
    simulator = tmp_path / "simulator"
    simulator.write_text("""#!/bin/sh\n[ "$*" = "1 4 0.125 0.25 0.5 0.5 0.5" ] && echo '{"bubble": [0.4, 0.1]}'\n""")
    simulator.chmod(0o755)
    stages = [dict(zip(("forward_seconds", "backward_seconds", "waited_seconds"), seconds)) for seconds in ((2, 4, 2), (4, 4, 0))]
    figures = bubble.bubbles_of([{"steps": 2, "communication": {"stage": stage}} for stage in stages], simulator, 0.125, 1, 4)
    assert figures == {"measured": [0.25, 0], "simulated": [0.4, 0.1], "message_ms": 125}
    sent = {"steps": 2, "communication": {"sent_bytes": {"pipeline/activations": 2 * 3 * 4 * 1000}}}
    assert bubble.message_bytes([sent], 3, 4) == 1000
    row = bubble.row_of(1, [figures] * 3)
    assert (row["measured"], row["simulated"]) == (0.125, 0.25)
    record = {"kind": "bubble", "machine": "mine", "commit": "c0de", "command": ["bubble.py"], "date": "2026-11-24", "model": "m", "stages": 2,
              "micro_batches": 4, "settings": ["a=b"], "rows": [row, row | {"chunks": 3}]}
    out = tmp_path / "ranks.jsonl"
    out.write_text(json.dumps(record) + "\n")
    page = subprocess.run([sys.executable, ROOT / "scripts/report_ranks.py", out], check=True, capture_output=True, text=True).stdout
    page = " ".join(page.split())
    assert "| 1f1b | 125.00 | 12.5% | 25.0% | -12.5 |" in page and "| interleaved, 3 chunks | 125.00 | 12.5% | 25.0% | -12.5 |" in page
    assert "Medians of 3 rounds" in page


def make_programs(folder, exchange):
    """A build's folder with stand-ins for moelab and, of the text `exchange`, bench_exchange."""
    (folder / "bin").mkdir()
    for name, text in (("moelab", MOELAB), ("bench_exchange", exchange)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)


def test_figures_and_their_tables(tmp_path, monkeypatch):
    make_programs(tmp_path, EXCHANGE)
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


# In place of moelab: a step takes 100 ms, and 120 in another run; three first ones take 500. The planner thinks 120.
PLANNED = """#!/bin/sh
case "$1" in
  --version) echo 'moelab 0.0.0 (commit c0de)' ;;
  techniques) echo '{"techniques": [{"settings": {"optim.name": "adamw"}}]}' ;;
  plan) echo "$@" >>"$0.asked"
    echo 'memory: of 1 combinations of techniques 0 are too large'
    echo 'a step of the first takes 120 ms: 90 ms computing, 10 ms copying messages, 20 ms waiting' ;;
  *) for word in "$@"; do case $word in
       --print-config) printf 'optim: {name: lion}\\nparallel: {zero: 3}\\nplacement: {reshard_after_forward: true}\\n' && exit ;;
       run.dir=*) folder=${word#*=} ;;
     esac; done
     [ "$RANK" = 0 ] || exit 0
     mkdir -p "$folder"
     time=100; [ -e "$0.again" ] && time=120; touch "$0.again"
     for step in 500 500 500 $time $time; do echo "{\\"step_ms\\": $step}" >>"$folder/metrics.jsonl"; done
     echo '{"steps": 5, "communication": {"sent_bytes": {"data/gradients": 500, "data/control": 7}}}' >"$folder/summary.json" ;;
esac
"""


def test_steps_beside_what_the_planner_thinks(tmp_path, monkeypatch):
    program, out = tmp_path / "bin/moelab", tmp_path / "ranks.jsonl"
    program.parent.mkdir()
    program.write_text(PLANNED)
    program.chmod(0o755)
    common = ["step_times.py", "--build", str(tmp_path), "--out", str(out), "a=b"]
    monkeypatch.setattr(sys, "argv", [*common, "--layouts", "ZeRO-3", "--links", "unlimited"])
    step_times.main()
    monkeypatch.setattr(sys, "argv", [*common, "--compare", "--device", "epyc_core"])
    step_times.main()
    record = json.loads(out.read_text().splitlines()[-1])
    (row,) = record["rows"]
    assert row["step_ms"] == 110 and row["sent_bytes"] == 100 and row["steps"] == 4
    assert row["spread"] == pytest.approx(20 / 110) and row["predicted_ms"]["waiting"] == 20
    asked = pathlib.Path(f"{program}.asked").read_text()
    assert "--link loopback --device epyc_core" in asked  # and nothing is left to choose
    assert "optim.name=lion" in asked and "parallel.zero=3" in asked and "placement.reshard_after_forward=true" in asked
    page = subprocess.run([sys.executable, ROOT / "scripts/report_ranks.py", out], check=True, capture_output=True, text=True).stdout
    page = " ".join(page.split())
    assert "| ZeRO-3 | 0 | 110 / 120 (+9%, ± 9%) |" in page
    assert "The error is 9.1% in the median and 9.1% at worst of 1 cases" in page


# In place of bench_exchange: of three exchanges one takes longer.
MESSAGES = """#!/bin/sh
[ "$RANK" = 1 ] || echo '{"sent_ms": [1, 1, 4]}'
"""


def test_a_device_is_fitted_to_what_steps_take_beyond_their_messages(tmp_path, monkeypatch):
    """Steps of 100 ms, of which 1e6 bytes take 2 at 0.5 bytes a nanosecond; stepping in backward is left out."""
    runs = [{"layout": name, "link": link, "step_ms": [100, 100], "sent_bytes": 1e6}
            for name in ("ZeRO-0", "ZeRO-1", "ZeRO-1, stepped in backward", "ZeRO-3") for link in ("unlimited", "1 Gbit/s")]
    record = {"kind": "step_times", "machine": "mine, torch 2", "commit": "c0de", "model": "m", "ranks": 2, "settings": [], "runs": runs}
    out = tmp_path / "ranks.jsonl"
    out.write_text(json.dumps(record) + "\n")
    (tmp_path / "devices.json").write_text(json.dumps({"links": {"loopback": {"gigabytes_per_second": 0.5}},
                                                       "devices": {"mine": {"nanoseconds": {"products": 2.0}}}}))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/moelab").write_text("#!/bin/sh\necho '{\"step_work\": {\"products\": 49e6}}'\n")
    (tmp_path / "bin/moelab").chmod(0o755)
    monkeypatch.setattr(step_times.calibrate, "PLAN", tmp_path)
    monkeypatch.setattr(sys, "argv", ["step_times.py", "--calibrate", "--device", "mine", "--build", str(tmp_path), "--out", str(out),
                                      "--calibration", str(tmp_path / "calibration.json")])
    step_times.main()
    entry = json.loads((tmp_path / "calibration.json").read_text())["devices"]["mine"]
    assert entry["nanoseconds"] == {"products": 2.0} and entry["cases"] == ["m ZeRO-0", "m ZeRO-1", "m ZeRO-3"]
    assert entry["machine"] == "mine, one core a rank, measured at c0de" and entry["records"] == [str(out)]


def test_messages_over_loopback_are_means(tmp_path, monkeypatch):
    make_programs(tmp_path, MESSAGES)
    out = tmp_path / "ranks.jsonl"
    monkeypatch.setattr(sys, "argv", ["step_times.py", "--loopback", "--build", str(tmp_path), "--out", str(out)])
    step_times.main()
    assert json.loads(out.read_text())["exchanges"] == [{"sent_bytes": 8, "ms": 2}, {"sent_bytes": 32_000_000, "ms": 2}]


def test_the_planners_loopback_is_what_was_measured():
    """Rate and latency in devices.json, from the newest record of this machine's loopback device."""
    lines = map(json.loads, (ROOT / "results/epyc-2-cores/ranks.jsonl").read_text().splitlines())
    small, large = [record["exchanges"] for record in lines if record["kind"] == "loopback"][-1]
    link = json.loads((ROOT / "train/predict/devices.json").read_text())["links"]["loopback"]
    assert link["microseconds"] == pytest.approx(1e3 * small["ms"], rel=0.01)
    assert 1e3 * link["gigabytes_per_second"] == pytest.approx(large["sent_bytes"] / 1e3 / (large["ms"] - small["ms"]), rel=0.01)


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


def test_ranks_end_when_their_script_is_killed(tmp_path):
    program = tmp_path / "sleeper"
    program.write_text("#!/bin/sh\necho $$ >$1/$RANK\nexec sleep 100\n")
    program.chmod(0o755)
    script = subprocess.Popen([ROOT / "scripts/ranks.sh", "2", program, tmp_path])
    written = [tmp_path / str(rank) for rank in range(2)]
    until(lambda: all(one.exists() and one.read_text().strip() for one in written))
    script.kill()
    script.wait()
    until(lambda: all(ended(int(one.read_text())) for one in written))


def until(holds):
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.01)
    raise TimeoutError


def ended(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("arguments", [[], ["fast", "true"], ["0", "true"], ["100"]])
def test_a_link_without_rate_or_command_says_how(arguments):
    done = subprocess.run([ROOT / "scripts/slow_link.sh", *arguments], capture_output=True, text=True)
    assert done.returncode == 2 and "usage: scripts/slow_link.sh RATE COMMAND" in done.stderr
