"""The harness as a program: what it records, how it is interrupted and how it goes on."""
import os
import pathlib
import re
import shlex
import shutil
import signal
import time

import programs
import pytest
from sweeps import Sweep, wait_for


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
    only = "--only=capacity,dropless,bf16,recompute_full,recompute_half,guides_stack"
    out = sweep.run(only, "--rounds=1", "--timeout=1.5")
    record = {record["case"]: record for record in sweep.records()}
    assert {name: (r["status"], r["exit_code"]) for name, r in record.items()} == {
        "baseline": ("ok", 0), "capacity": ("crash", 128 + signal.SIGSEGV), "dropless": ("oom", 3),
        "bf16": ("timeout", 128 + signal.SIGKILL), "recompute_full": ("error", 1), "recompute_half": ("error", 0),
        "guides_stack": ("ok", 0)}
    assert record["baseline"]["message"] == "" and record["baseline"]["memory"] == {"step": {"optimizer": 8}}
    assert record["capacity"]["message"] == "ended by Segmentation fault; about to fail"
    assert record["capacity"]["summary"] is None and record["capacity"]["memory"] == {}
    assert record["dropless"]["message"] == "moelab: the last error"
    assert record["dropless"]["summary"]["status"] == "oom"
    assert record["bf16"]["message"] == "killed after 1 s"
    assert record["bf16"]["steps"] == [[1, 64, 5.5, 3.25]]
    assert record["recompute_half"]["message"] == "exit code 0, but no summary.json"
    assert record["guides_stack"]["techniques"] == ["flash_attention", "capacity", "bf16", "recompute_full",
                                                   "accumulation"]
    assert "[7/7] round 1, guides_stack: 100 tokens/s, peak 1.0 MiB; 0:00 taken, 0:00 left" in out
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


def test_the_commit_is_what_the_program_says(fake):
    sweep = fake()
    for version in ("moelab 0.0.0 (commit 0123456789ab, modified)", "moelab 0.0.0 (commit ba9876543210)", "no answer"):
        fake(version=version).run("--only=bf16", "--rounds=1")
    assert [(record["commit"], record["dirty"]) for record in sweep.records() if record["case"] == "bf16"] == [
        ("0123456789ab", True), ("ba9876543210", False), ("unknown", False)]


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


def noisy_rounds(sweep: Sweep) -> list[tuple]:
    return [(record["case"], record["round"]) for record in sweep.records() if "noisy" in record]


def test_what_spreads_is_repeated_and_marked_where_that_does_not_help(fake):
    steady = {"baseline": "takes 10", "capacity": "takes 20"}
    sweep = fake(steady | {"bf16": "takes 10 30"})
    arguments = ["--only=bf16,capacity", "--rounds=3", "--extra-rounds=2"]
    sweep.run(*arguments)
    extra = [(record["case"], record["round"]) for record in sweep.records()[9:]]
    assert extra == [(case, number) for number in (4, 5) for case in ("baseline", "bf16")]
    assert noisy_rounds(sweep) == [("bf16", 5)]
    sweep.run(*arguments)
    assert len(sweep.called()) == 13, "a noisy case was repeated again"


def test_what_spreads_no_more_is_not_marked(fake):
    """Of seven ratios an outlier moves the interval of the median no more, of six it does; see test_spread.cpp."""
    sweep = fake(baseline="takes 10", bf16="takes 10 30 10 10 10 10 10")
    sweep.run("--only=bf16", "--rounds=3", "--extra-rounds=6")
    assert len(sweep.called()) == 14 and noisy_rounds(sweep) == []
    sweep.run("--only=bf16", "--rounds=3", "--extra-rounds=6", "--spread=0.01")
    assert len(sweep.called()) == 14


@pytest.fixture(scope="session")
def shards(tmp_path_factory) -> pathlib.Path:
    text = "".join(f"{n} times {n} is {n * n}.\n" for n in range(4000))
    return programs.prepare_bytes(tmp_path_factory.mktemp("it's data"), text)


def test_ranks_are_started_and_held_against_one_that_takes_all_their_micro_batches(fake):
    sweep = fake({"zero_2 on 1": "ends with 3"})
    out = sweep.run("--only=zero_1,zero_2", "--rounds=1")
    one, first, second = sweep.records()
    assert sorted(sweep.called()) == ["baseline, 2 micro-batches", *(f"zero_{stage}, rank {rank} of 2" for stage in (1, 2)
                                                                    for rank in (0, 1))]
    assert (one["case"], one["against"], one["settings"]["train.accumulation"]) == ("baseline, 2 micro-batches", None, "2")
    assert "ranks" not in one and one["settings"]["parallel.data"] == "1"
    assert (first["against"], first["techniques"], first["ranks"], first["link"]) == (one["case"], ["zero_1"], 2, "unlimited")
    assert first["settings"]["train.accumulation"] == "1"
    assert [(rank["peak_bytes"], rank["state_bytes"]["optimizer"]) for rank in first["by_rank"]] == [(1 << 20, 0), (2 << 20, 1)]
    assert "zero_1: 100 tokens/s, peak 2.0 MiB" in out, "of the fullest rank"
    assert re.match(r"\S*scripts/ranks\.sh 2 \S*fake train ", first["command"])
    assert (second["status"], second["exit_code"]) == ("oom", 3)


def test_a_link_that_the_machine_does_not_make_is_skipped_with_the_reason(fake, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bash").symlink_to(shutil.which("bash"))
    sweep = fake()
    sweep.run("--only=zero_1 over 1Gbit", "--links=1Gbit", "--rounds=1", PATH=str(tmp_path / "bin"))
    record = sweep.records()[1]
    assert (record["case"], record["link"], record["status"]) == ("zero_1 over 1Gbit", "1Gbit", "skipped")
    assert "scripts/slow_link.sh: unshare is missing" in record["message"] and record["summary"] is None
    assert re.match(r"\S*slow_link\.sh 1000 \S*ranks\.sh 2 ", record["command"])
    assert sweep.called() == ["baseline, 2 micro-batches"]
    assert "link fast: unlimited, or a rate" in sweep.run("--links=fast", "--rounds=1", code=2)


def test_real_ranks_have_the_bits_of_the_one_they_are_held_against(harness, moelab, shards, tmp_path):
    sweep = Sweep(harness, moelab, tmp_path)
    sweep.settings = [f"data.path={shards}", "train.sequence=64", "run.threads=1"]
    sweep.run("--only=zero_3", "--rounds=1", "--case-steps=3")
    one, ranks = sweep.records()
    assert [record["status"] for record in (one, ranks)] == ["ok", "ok"], ranks["message"]
    assert [step[:3] for step in ranks["steps"]] == [step[:3] for step in one["steps"]] and len(one["steps"]) == 3
    assert ranks["steps"][-1][1] == 3 * 2 * 8 * 64, "tokens of both ranks"
    assert ranks["gradient_norms"] == one["gradient_norms"]
    assert len(ranks["by_rank"]) == 2 and ranks["summary"]["communication"]["sent_bytes"]["data/gradients"] > 0
    whole, parts = one["summary"]["state_bytes"], [rank["state_bytes"] for rank in ranks["by_rank"]]
    assert sum(part["optimizer"] for part in parts) == whole["optimizer"], "nothing is held twice"


def test_real_runs_of_moelab(harness, moelab, shards, tmp_path):
    sweep = Sweep(harness, moelab, tmp_path)
    sweep.settings = [f"data.path={shards}", "train.sequence=64", "run.threads=1"]
    sweep.run("--only=guides_stack", "--rounds=1", "--case-steps=3")
    baseline, stack = sweep.records()
    for record in (baseline, stack):
        assert record["status"] == "ok" and record["summary"]["steps"] == 3
        assert [step[:2] for step in record["steps"]] == [[n, n * 512] for n in (1, 2, 3)]
        assert all(4 < loss < 7 and ms > 0 for _, _, loss, ms in record["steps"])
        assert len(record["gradient_norms"]) == 3 and all(norm > 0 for norm in record["gradient_norms"])
        assert set(record["memory"]) == {"forward", "backward", "step"}
        assert record["settings"]["data.path"] == str(shards) and record["wall_seconds"] > 0
        assert record["summary"]["peak_bytes"] < record["resident_bytes"] < 8 << 30
        assert record["machine"]["cores"] == os.cpu_count() and record["commit"]
        by_phase = record["summary"]["peak_bytes_by_phase"]
        for phase, kinds in record["memory"].items():  # of the last step, and by_phase of all
            held = sum(size for kind, size in kinds.items() if "." not in kind)
            assert 0.9 * by_phase[phase] <= held <= by_phase[phase], phase
    assert shlex.split(baseline["command"]) == shlex.split(baseline["summary"]["command"])
    assert baseline["summary"]["settings"]["precision"]["compute"] == "fp32"
    assert stack["summary"]["settings"]["precision"]["compute"] == "bf16"
    assert stack["summary"]["peak_bytes"] < baseline["summary"]["peak_bytes"]
    sweep.settings.append("memory.limit=20MB")
    sweep.run("--only=bf16", "--rounds=1", "--case-steps=3")
    assert [record["status"] for record in sweep.records()[2:]] == ["oom", "oom"]
    assert "memory.limit=20MB cannot hold" in sweep.records()[2]["message"]
