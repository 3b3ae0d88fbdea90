"""The harness as a program: what it records, how it is interrupted and how it goes on.

The `fake` stands for moelab where a run must crash, hang or run out of memory: it does what the setting run.name,
which is the case's name, is listed with.
"""

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import programs
import pytest

FAKE = """#!{python}
import json, os, pathlib, signal, sys, time
settings = dict(word.split("=", 1) for word in sys.argv[4:])
name, folder = settings["run.name"], pathlib.Path(settings["run.dir"])
with open({calls!r}, "a") as calls:
    calls.write(name + "\\n")
does = {does!r}.get(name, "works")
folder.mkdir(parents=True)
if does == "segfaults":
    print("about to fail")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSEGV)
if does == "hangs":
    step = dict(step=1, tokens=64, loss=5.5, step_ms=3.25)
    (folder / "metrics.jsonl").write_text(json.dumps(step) + "\\n" + '{{"step": 2, "tok')
    child = os.fork()  # killing the run must end what it started too
    if child > 0:
        pathlib.Path({calls!r} + ".pids").write_text(f"{{os.getpid()}} {{child}}")
    time.sleep(600)
summary = dict(status="ok", tokens_per_second=dict(median=100.0), peak_bytes=1 << 20)
if does in ("works", "ends with 3"):
    summary["status"] = "ok" if does == "works" else "oom"
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "memory.json").write_text(json.dumps(dict(last_step_bytes_by_phase=dict(step=dict(optimizer=8)))))
if does.startswith("ends with"):
    print("first line\\nmoelab: the last line", file=sys.stderr)
    sys.exit(int(does.split()[-1]))
"""


@pytest.fixture(scope="session")
def harness() -> str:
    return programs.built("MOELAB_TRADEOFF", "bin/bench_tradeoff")


@pytest.fixture(scope="session")
def moelab() -> str:
    return programs.moelab()


class Sweep:
    """Calls of the harness on one file of records."""

    def __init__(self, harness: str, program: pathlib.Path | str, folder: pathlib.Path):
        self.out = folder / "records.jsonl"
        self.calls = folder / "calls"
        self.harness, self.program, self.model = harness, str(program), "moe-pico"
        self.settings = ["data.path=shards"]

    def start(self, *arguments: str) -> subprocess.Popen:
        command = [self.harness, "--program", self.program, "--out", str(self.out), "--model", self.model]
        return subprocess.Popen([*command, *arguments, *self.settings], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, cwd=self.out.parent)

    def run(self, *arguments: str, code: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, (out, err)
        return out if code == 0 else err

    def records(self) -> list[dict]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def called(self) -> list[str]:
        return self.calls.read_text().split()


@pytest.fixture
def fake(harness, tmp_path):
    """fake(NAME="hangs", …) is a sweep of a program that does so."""
    def make(**does: str) -> Sweep:
        program = tmp_path / "fake"
        program.write_text(FAKE.format(python=sys.executable, calls=str(tmp_path / "calls"), does=does))
        program.chmod(0o755)
        return Sweep(harness, program, tmp_path)
    return make


def wait_for(path: pathlib.Path) -> str:
    for _ in range(3000):
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.01)
    raise TimeoutError(path)


def is_gone(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def all_gone(pids: list[int]) -> bool:
    for _ in range(500):
        if all(map(is_gone, pids)):
            return True
        time.sleep(0.01)
    return False


def test_however_a_run_ends_it_is_recorded_and_the_sweep_goes_on(fake):
    sweep = fake(capacity="segfaults", dropless="ends with 3", bf16="hangs", recompute_full="ends with 1",
                 recompute_half="ends with 0")
    only = "--only=capacity,dropless,bf16,recompute_full,recompute_half,recommended"
    out = sweep.run(only, "--rounds=1", "--timeout=1.5")
    record = {record["case"]: record for record in sweep.records()}
    assert {name: (r["status"], r["exit_code"]) for name, r in record.items()} == {
        "baseline": ("ok", 0), "capacity": ("crash", 128 + signal.SIGSEGV), "dropless": ("oom", 3),
        "bf16": ("timeout", 128 + signal.SIGKILL), "recompute_full": ("error", 1), "recompute_half": ("error", 0),
        "recommended": ("ok", 0)}
    assert record["baseline"]["message"] == "" and record["baseline"]["memory"] == {"step": {"optimizer": 8}}
    assert record["capacity"]["message"] == "ended by Segmentation fault; about to fail"
    assert record["capacity"]["summary"] is None and record["capacity"]["memory"] == {}
    assert record["dropless"]["message"] == "moelab: the last line"
    assert record["dropless"]["summary"]["status"] == "oom"
    assert record["bf16"]["message"] == "killed after 1 s"
    assert record["bf16"]["steps"] == [[1, 64, 5.5, 3.25]]
    assert record["recompute_half"]["message"] == "exit code 0, but no summary.json"
    assert record["recommended"]["techniques"] == ["flash_attention", "capacity", "bf16", "recompute_full",
                                                   "accumulation"]
    assert "[7/7] round 1, recommended: 100 tokens/s, peak 1.0 MiB; 0:00 taken, 0:00 left" in out
    assert all_gone([int(pid) for pid in pathlib.Path(f"{sweep.calls}.pids").read_text().split()])
    assert not list(sweep.out.parent.glob("*.work")), "the folder of the runs is left behind"


def test_rounds_interleave_and_a_finished_sweep_does_nothing(fake):
    sweep = fake()
    sweep.run("--only=bf16,capacity", "--rounds=3")
    names = sweep.called()
    assert [sorted(names[i:i + 3]) for i in (0, 3, 6)] == 3 * [["baseline", "bf16", "capacity"]]
    assert names[:3] != names[3:6]
    assert [(r["round"], r["position"]) for r in sweep.records()] == [(r, p) for r in (1, 2, 3) for p in (1, 2, 3)]
    assert {(r["case"], r["against"]) for r in sweep.records()} == {
        ("baseline", None), ("bf16", "baseline"), ("capacity", "baseline")}
    before = sweep.out.read_bytes()
    assert "9 of 9 runs done before" in sweep.run("--only=bf16,capacity", "--rounds=3")
    assert sweep.out.read_bytes() == before and sweep.called() == names
    sweep.run("--only=bf16,capacity", "--rounds=4")
    assert len(sweep.called()) == 12
    sweep.run("--only=bf16", "--rounds=1", "--case-steps=7")
    assert sweep.called()[12:] == ["baseline", "bf16"], "other settings are other runs"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_kills_the_run_and_the_next_call_goes_on(fake, number):
    sweep = fake(bf16="hangs")
    process = sweep.start("--only=capacity,bf16", "--rounds=1")
    pids = [int(pid) for pid in wait_for(pathlib.Path(f"{sweep.calls}.pids")).split()]
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (128 + number, "")
    assert "stopped; the same command goes on with the 1 runs that are left" in out
    assert all_gone(pids)
    assert [r["case"] for r in sweep.records()] == ["baseline", "capacity"], "a run cut off is no result"
    assert not list(sweep.out.parent.glob("*.work"))
    fake()  # the same program, cured
    sweep.run("--only=capacity,bf16", "--rounds=1")
    assert sweep.called() == ["baseline", "capacity", "bf16", "bf16"]
    assert [(r["case"], r["status"]) for r in sweep.records()] == [("baseline", "ok"), ("capacity", "ok"), ("bf16", "ok")]


def test_a_killed_harness_leaves_a_file_that_goes_on(fake):
    sweep = fake(bf16="hangs")
    process = sweep.start("--only=capacity,bf16", "--rounds=1")
    run, child = map(int, wait_for(pathlib.Path(f"{sweep.calls}.pids")).split())
    process.kill()
    process.communicate()
    assert all_gone([run]), "the run outlives the harness"
    os.kill(child, signal.SIGKILL)
    with sweep.out.open("a") as file:
        file.write('{"schema":1,"case":"bf16","rou')
    fake()
    sweep.run("--only=capacity,bf16", "--rounds=1")
    assert [r["case"] for r in sweep.records()] == ["baseline", "capacity", "bf16"]


def test_mistakes_record_nothing(fake):
    sweep = fake()
    for argument, expected in [("--only=bf61", "did you mean bf16?"), ("train.stesp=1", "did you mean train.steps?"),
                               ("--rounds=0", "--rounds"), ("--tiemout=3", "--tiemout")]:
        message = sweep.run(argument, code=2)
        assert expected in message and message.count("\n") == 1
    for attribute, value, expected in [("model", "moe-pic", "did you mean moe-pico?"),
                                       ("program", "/none", "/none is no program")]:
        broken = fake()
        setattr(broken, attribute, value)
        assert expected in broken.run(code=2)
    sweep.settings = []
    assert "data.path is not set" in sweep.run(code=2)
    assert not sweep.out.exists() and not sweep.calls.exists()


def test_a_damaged_file_of_records_is_left_alone(fake):
    sweep = fake()
    sweep.out.write_text('{"schema":2}\n')
    assert "records.jsonl:1: record of schema 2" in sweep.run("--rounds=1", code=2)
    assert sweep.out.read_text() == '{"schema":2}\n' and not sweep.calls.exists()


def test_a_set_up_that_was_wrong_is_run_again(fake):
    sweep = fake(baseline="ends with 2", bf16="ends with 2")
    sweep.run("--only=bf16", "--rounds=1")
    assert [r["status"] for r in sweep.records()] == ["error", "error"]
    fake()
    sweep.run("--only=bf16", "--rounds=1")
    assert [r["status"] for r in sweep.records()] == ["error", "error", "ok", "ok"]


@pytest.fixture(scope="session")
def shards(tmp_path_factory) -> pathlib.Path:
    text = "".join(f"{n} times {n} is {n * n}.\n" for n in range(4000))
    return programs.prepare_bytes(tmp_path_factory.mktemp("it's data"), text)


def test_real_runs_of_moelab(harness, moelab, shards, tmp_path):
    sweep = Sweep(harness, moelab, tmp_path)
    sweep.settings = [f"data.path={shards}", "train.sequence=64", "run.threads=1"]
    sweep.run("--only=recommended", "--rounds=1", "--case-steps=3")
    baseline, recommended = sweep.records()
    for record in (baseline, recommended):
        assert record["status"] == "ok" and record["summary"]["steps"] == 3
        assert [step[:2] for step in record["steps"]] == [[n, n * 512] for n in (1, 2, 3)]
        assert all(4 < loss < 7 and ms > 0 for _, _, loss, ms in record["steps"])
        assert len(record["gradient_norms"]) == 3 and all(norm > 0 for norm in record["gradient_norms"])
        assert set(record["memory"]) == {"forward", "backward", "step"}
        assert record["settings"]["data.path"] == str(shards) and record["wall_seconds"] > 0
        assert record["machine"]["cores"] == os.cpu_count() and record["commit"]
        by_phase = record["summary"]["peak_bytes_by_phase"]
        for phase, kinds in record["memory"].items():  # of the last step, and by_phase of all
            held = sum(size for kind, size in kinds.items() if "." not in kind)
            assert 0.9 * by_phase[phase] <= held <= by_phase[phase], phase
    assert shlex.split(baseline["command"]) == shlex.split(baseline["summary"]["command"])
    assert baseline["summary"]["settings"]["precision"]["compute"] == "fp32"
    assert recommended["summary"]["settings"]["precision"]["compute"] == "bf16"
    assert recommended["summary"]["peak_bytes"] < baseline["summary"]["peak_bytes"]
    sweep.settings.append("memory.limit=20MB")
    sweep.run("--only=bf16", "--rounds=1", "--case-steps=3")
    assert [record["status"] for record in sweep.records()[2:]] == ["oom", "oom"]
    assert "memory.limit=20MB cannot hold" in sweep.records()[2]["message"]
