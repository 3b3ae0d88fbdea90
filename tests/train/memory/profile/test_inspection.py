"""What monitor.profile_steps and monitor.snapshot leave in a run's folder, through the program."""

import json
import pathlib
import re
import signal
import subprocess
import time

import programs
import pytest

SETTINGS = {
    "model.d_model": 64, "model.heads": 2, "model.d_expert": 96, "train.sequence": 64, "train.micro_batch": 8,
    "train.steps": 9, "eval.batches": 0, "run.threads": 1, "run.log_every": 0, "monitor.every": 0,
}  # fmt: skip


@pytest.fixture(scope="session")
def shards(make_shards) -> pathlib.Path:
    return make_shards(60_000, 4_000)


def command(shards, run, *arguments) -> list[str]:
    return programs.train_command(SETTINGS | {"data.path": shards, "run.dir": run}, "--device", "cpu", *arguments)


def train(*arguments) -> subprocess.CompletedProcess:
    return programs.run(command(*arguments))


def metrics(run: pathlib.Path, name: str) -> list:
    return [line[name] for line in programs.metrics(run)]


def read(path: pathlib.Path) -> dict:
    return json.loads(path.read_text())


def whole(kinds: dict) -> int:
    """Parts, those with a dot, are in their wholes."""
    return sum(count for kind, count in kinds.items() if "." not in kind)


@pytest.fixture(scope="session")
def plain(shards, tmp_path_factory) -> pathlib.Path:
    run = tmp_path_factory.mktemp("plain")
    done = train(shards, run)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="session")
def profiled(shards, tmp_path_factory) -> tuple[pathlib.Path, subprocess.CompletedProcess]:
    run = tmp_path_factory.mktemp("profiled")
    done = train(shards, run, "monitor.profile_steps=2")
    assert done.returncode == 0, done.stderr
    return run, done


def test_profiling_changes_no_bit(plain, profiled):
    assert not (plain / "trace.json").exists() and not (plain / "profile.txt").exists()
    for name in ("loss", "grad_norm", "peak_bytes", "peak_bytes_by_kind"):
        assert metrics(profiled[0], name) == metrics(plain, name)
    weights = "checkpoints/step-9/model.safetensors"
    assert (profiled[0] / weights).read_bytes() == (plain / weights).read_bytes()


def test_the_trace_has_the_operators_of_the_profiled_steps(profiled):
    events = read(profiled[0] / "trace.json")["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["ts"] > 0 and event["dur"] >= 0 and "pid" in event and "tid" in event for event in spans)
    calls = [event["name"] for event in spans]
    layers = 2 * read(profiled[0] / "summary.json")["settings"]["model"]["layers"]  # of two steps
    for operator in ("moelab::expert_block_forward", "moelab::expert_block_backward"):
        assert calls.count(operator) == layers, (operator, calls.count(operator))
    memory = [event for event in events if event["name"] == "[memory]"]
    totals = [event["args"]["Total Allocated"] for event in memory]
    assert max(totals) == max(metrics(profiled[0], "peak_bytes")[3:5])  # the ledger's own


def test_the_table_is_printed_and_kept(profiled):
    run, done = profiled
    text = (run / "profile.txt").read_text()
    assert text in done.stdout and f"wrote {run}/profile.txt and {run}/trace.json" in done.stdout
    title, columns, *rows = text.splitlines()
    assert title.startswith("operators that hold most at the peak of steps 4 to 5: ") and len(rows) == 10
    size = {"B": 1, "KiB": 2**10, "MiB": 2**20}
    at_peak = [float(row.split()[0]) * size[row.split()[1]] for row in rows]
    assert at_peak == sorted(at_peak, reverse=True)
    peak, before = [float(number) * size[unit] for number, unit in re.findall(r"([\d.]+) (B|KiB|MiB)", title)]
    assert 0.8 * peak <= sum(at_peak) + before <= 1.01 * peak
    assert any("moelab::expert_block_forward" in row for row in rows), text


def test_a_run_shorter_than_what_is_asked_profiles_what_there_is(shards, tmp_path):
    done = train(shards, tmp_path, "train.steps=3", "monitor.profile_steps=50")
    assert done.returncode == 0, done.stderr
    assert "at the peak of steps 2 to 3: " in (tmp_path / "profile.txt").read_text()
    assert read(tmp_path / "trace.json")["traceEvents"]


def test_a_trace_that_cannot_be_written_is_one_line(shards, tmp_path):
    (tmp_path / "trace.json").mkdir()
    (tmp_path / "trace.json/in_the_way").touch()
    done = train(shards, tmp_path, "monitor.profile_steps=1")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    assert f"cannot write {tmp_path}/trace.json" in done.stderr
    assert read(tmp_path / "summary.json")["status"] == "error"


def test_the_timeline_tells_each_phase_of_each_step_by_kind(plain):
    memory = read(plain / "memory.json")
    assert memory["steps_per_entry"] == 1
    assert [entry["step"] for entry in memory["steps"]] == list(range(1, 10))
    peaks = metrics(plain, "peak_bytes")
    for entry, peak in zip(memory["steps"], peaks):
        phases = {phase: whole(kinds) for phase, kinds in entry["bytes_by_phase"].items()}
        assert list(phases)[-3:] == ["forward", "backward", "step"]
        assert max(phases.values()) == peak == entry["peak_bytes"]
    assert memory["steps"][-1]["bytes_by_phase"].keys() == memory["last_step_bytes_by_phase"].keys()
    assert whole(memory["opened"]["bytes_by_phase"]["init"]) == memory["peak_bytes_by_phase"]["init"]


def test_a_resumed_run_has_the_timeline_of_the_whole_one(shards, plain, tmp_path):
    assert train(shards, tmp_path, "train.steps=5", "optim.schedule=wsd").returncode == 0
    assert train(shards, tmp_path, "train.steps=9", "optim.schedule=wsd", "--resume", "latest").returncode == 0
    steps = read(tmp_path / "memory.json")["steps"]
    assert [entry["step"] for entry in steps] == list(range(1, 10))
    assert [entry["peak_bytes"] for entry in steps] == metrics(tmp_path, "peak_bytes")


def test_a_refusal_leaves_what_was_held(shards, plain, tmp_path):
    limit = max(metrics(plain, "peak_bytes")) * 9 // 10
    refuse = [f"memory.limit={limit}", "memory.recover=false"]
    done = train(shards, tmp_path, *refuse, "monitor.snapshot=oom")
    assert done.returncode == 3 and f"out of memory: wrote {tmp_path}/snapshot-oom.json" in done.stdout, done
    held = read(tmp_path / "snapshot-oom.json")
    assert whole(held["bytes_by_kind"]) == held["allocated_bytes"] <= limit == held["limit_bytes"]
    assert held["allocated_bytes"] + held["requested_bytes"] > limit
    assert held["phase"] in ("forward", "backward")
    train(shards, tmp_path / "quiet", *refuse)
    assert not list((tmp_path / "quiet").glob("snapshot-*"))


def test_a_signal_asks_for_one(shards, tmp_path):
    long = command(shards, tmp_path, "train.steps=100000", "monitor.snapshot=step")
    run = subprocess.Popen(long, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: (tmp_path / "metrics.jsonl").exists() and (tmp_path / "metrics.jsonl").stat().st_size > 0)
        run.send_signal(signal.SIGUSR1)
        wait_for(lambda: list(tmp_path.glob("snapshot-step-*.json")))
    finally:
        run.send_signal(signal.SIGTERM)
        out, _ = run.communicate(timeout=60)
    (path,) = tmp_path.glob("snapshot-step-*.json")
    assert f"SIGUSR1: wrote {path}\n" in out
    held = read(path)
    line = programs.metrics(tmp_path)[held["step"] - 1]
    assert whole(held["bytes_by_kind"]) == held["allocated_bytes"] == line["allocated_bytes"]
    assert max(whole(kinds) for kinds in held["bytes_by_phase"].values()) == held["peak_bytes"] == line["peak_bytes"]


def wait_for(happened) -> None:
    for _ in range(6000):
        if happened():
            return
        time.sleep(0.01)
    pytest.fail("a minute went by")
