"""moelab train, eval and generate short of memory, and of disk, through the program: exit codes, what is said, what is
left behind."""

import json
import pathlib
import re
import resource
import shlex
import subprocess

import numpy as np
import programs
import pytest
from programs import limited_files

PROGRAM = programs.moelab()


@pytest.fixture(scope="session")
def shards(tmp_path_factory) -> pathlib.Path:
    text = np.random.default_rng(1).integers(97, 123, 60_000, dtype=np.uint8).tobytes()
    return programs.prepare_bytes(tmp_path_factory.mktemp("data"), text.decode())


def train(shards, run, *arguments, **how) -> subprocess.CompletedProcess:
    settings = {
        "data.path": shards, "run.dir": run, "model.d_model": 64, "model.heads": 2, "model.d_expert": 96,
        "train.sequence": 64, "train.micro_batch": 8, "train.steps": 6, "eval.batches": 2, "run.threads": 1,
        "run.log_every": 0, "monitor.every": 0,
    }  # fmt: skip
    return programs.run(programs.train_command(settings, "--device", "cpu", *arguments), **how)


def metrics(run: pathlib.Path, name: str) -> list:
    return [line[name] for line in programs.metrics(run)]


@pytest.fixture(scope="session")
def free(shards, tmp_path_factory) -> tuple[pathlib.Path, int]:
    """A run with all the memory that it wants, and how much that was."""
    run = tmp_path_factory.mktemp("free")
    done = train(shards, run)
    assert done.returncode == 0, done.stderr
    return run, json.loads((run / "summary.json").read_text())["peak_bytes"]


def test_a_budget_too_small_for_the_batch_is_met_with_smaller_ones(shards, free, tmp_path):
    wanted, peak = free
    done = train(shards, tmp_path, f"memory.limit={peak * 9 // 10}")
    assert done.returncode == 0, done
    assert "Status: out of memory - reducing batch size (8 x 1 to " in done.stdout, done.stdout
    assert max(metrics(tmp_path, "micro_batch")) < 8
    np.testing.assert_allclose(metrics(tmp_path, "loss"), metrics(wanted, "loss"), rtol=2e-5)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "ok" and summary["peak_bytes"] <= peak * 9 // 10
    # with nothing of it undone, there is the old way
    stopped = train(shards, tmp_path / "stopped", f"memory.limit={peak * 9 // 10}", "memory.recover=false",
                    "monitor.snapshot=oom")
    assert stopped.returncode == 3
    for line in ["out of memory in ", "likely cause, at the first step: ", "what would be enough, each by itself:",
                 "train.micro_batch=4 train.accumulation=2 ", "placement.optimizer=host ", ", saves ",
                 "cannot be met after step 0; summary in "]:  # fmt: skip
        assert line in stopped.stderr, (line, stopped.stderr)
    assert json.loads((tmp_path / "stopped/summary.json").read_text())["status"] == "oom"


def test_a_card_s_preset_says_how_much_of_it_a_run_takes(shards, tmp_path):
    done = train(shards, tmp_path, "--preset", "gpu-8gb", "train.steps=1", "memory.limit=1GiB")
    found = re.match(r"gpu-8gb: predicted to need ([\d.]+) MiB of tensors, (\d+) % of 1.0 GiB; what would fit too, one change at a time: "
                     r"train.micro_batch=\d+, train.sequence=\d+ or --config moe-\w+\n", done.stdout)
    assert found and abs(float(found[1]) / 1024 * 100 - int(found[2])) <= 0.5, done.stdout


def test_a_run_that_is_predicted_not_to_fit_is_refused_at_once_with_what_fits(shards, free, tmp_path):
    limit = f"memory.limit={free[1] * 9 // 10}"
    refused = train(shards, tmp_path / "run", limit, "memory.recover=false")
    assert refused.returncode == 3 and not (tmp_path / "run").exists()
    assert refused.stderr.startswith("moelab: predicted not to fit memory.limit="), refused.stderr
    (added,) = re.findall(r"^the fastest combination that fits on this CPU needs .+; add\n  (.+)$", refused.stderr, re.M)
    done = train(shards, tmp_path / "run", limit, "memory.recover=false", *shlex.split(added))
    assert done.returncode == 0, done.stderr
    # not even a micro-batch of one row: no run is begun that recovery could not bring to its end
    least = train(shards, tmp_path / "least", "train.micro_batch=1", "train.accumulation=8")
    assert least.returncode == 0, least.stderr
    smallest = json.loads((tmp_path / "least/summary.json").read_text())["peak_bytes"]
    assert train(shards, tmp_path / "none", f"memory.limit={smallest * 99 // 100}").returncode == 3
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("settings", [["placement.optimizer=host", "placement.gradients=host"],
                                      ["placement.optimizer=nvme", "placement.gradients=nvme"],
                                      ["placement.parameters=host"], ["placement.parameters=nvme"]])  # fmt: skip
def test_a_refusal_is_got_over_wherever_the_state_is(shards, free, drive, tmp_path, settings):
    wanted, _ = free
    settings = [*settings, f"placement.nvme_path={drive}"]
    assert train(shards, tmp_path / "moved", *settings).returncode == 0
    limit = json.loads((tmp_path / "moved/summary.json").read_text())["peak_bytes"] * 9 // 10
    done = train(shards, tmp_path / "less", f"memory.limit={limit}", *settings)
    assert done.returncode == 0, done
    assert "Status: out of memory - reducing batch size (8 x 1 to " in done.stdout, done.stdout
    assert max(metrics(tmp_path / "less", "micro_batch")) < 8
    np.testing.assert_allclose(metrics(tmp_path / "less", "loss"), metrics(wanted, "loss"), rtol=2e-5)
    assert json.loads((tmp_path / "less/summary.json").read_text())["peak_bytes"] <= limit
    assert list(drive.iterdir()) == []


def test_at_the_threshold_the_batch_is_halved(shards, free, tmp_path):
    wanted, peak = free
    done = train(shards, tmp_path, f"memory.limit={int(peak / 0.96)}")
    assert done.returncode == 0, done
    monitor = json.loads((tmp_path / "memory.json").read_text())["monitor"]
    assert monitor["status"] == "normal" and monitor["open_bytes_by_setting"] == {}
    assert "(96%), Status: critical - reducing batch size (8 x 1 to 4 x 2)\n" in done.stdout
    assert metrics(tmp_path, "micro_batch") == [8] + 5 * [4]
    np.testing.assert_allclose(metrics(tmp_path, "loss"), metrics(wanted, "loss"), rtol=2e-5)
    # the profile moves the threshold: of this share the aggressive one only warns
    done = train(shards, tmp_path, f"memory.limit={int(peak / 0.955)}", "memory.profile=aggressive", "--overwrite")
    assert metrics(tmp_path, "micro_batch") == 6 * [8] and "Status: warning\n" in done.stdout
    said = "memory is at warning; to stay within memory.target=0.92, what would be enough, each by itself:\n"
    assert done.stdout.count(said) == 1 and "\n  train.micro_batch=4 train.accumulation=2 " in done.stdout.split(said)[1]
    monitor = json.loads((tmp_path / "memory.json").read_text())["monitor"]
    assert monitor["status"] == "warning"
    assert monitor["open_bytes_by_setting"]["train.micro_batch=4 train.accumulation=2"] > 0


@pytest.mark.parametrize("wrong, said", [
    (["memory.critical=0.99", "memory.emergency=0.98"], "must rise in this order; they are 0.9, 0.92, 0.99, 0.98"),
    (["memory.warning=0.5"], "must rise in this order; they are 0.9, 0.5, 0.95, 0.97"),
    (["memory.emergency=1.5"], "memory.emergency: expected a number from 0 to 1, got 1.5"),
    (["memory.dynamic_batch.min=17"], "memory.dynamic_batch.min=17 is more than memory.dynamic_batch.max=16"),
    (["memory.dynamic_batch.enabled=true", "train.micro_batch=2"], "train.micro_batch=2 is outside of memory.dynamic"),
    (["memory.dynamic_batch.enabled=true", "optim.in_backward=true"], "a smaller batch needs accumulation"),
    (["memory.dynamic_batch.enabled=true", "memory.recover=false"], "the one lets the batch change, the other forbids it"),
    (["memory.dynamic_batch.every=0"], "memory.dynamic_batch.every: expected an integer from 1 to"),
    (["memory.dynamic_batch.evry=5"], "did you mean memory.dynamic_batch.every?"),
    (["memory.empty_cache_every=-1"], "memory.empty_cache_every: expected an integer of at least 0, got -1"),
])  # fmt: skip
def test_impossible_settings(shards, tmp_path, wrong, said):
    done = train(shards, tmp_path, *wrong)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1 and said in done.stderr, done


def test_a_group_inside_a_group_is_read_from_yaml(tmp_path):
    def printed(text: str) -> subprocess.CompletedProcess:
        (tmp_path / "own.yaml").write_text(text)
        command = [PROGRAM, "train", "--config", str(tmp_path / "own.yaml"), "--print-config"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    done = printed("memory:\n  dynamic_batch: {enabled: true, max: 32}\n")
    assert "dynamic_batch.enabled: true" in done.stdout and "dynamic_batch.max: 32" in done.stdout, done
    assert printed(done.stdout).stdout == done.stdout
    done = printed("memory:\n  dynamic_batch:\n    enabld: true\n")
    assert done.returncode == 2 and "own.yaml:3: memory.dynamic_batch.enabld: unknown setting; did you mean" in done.stderr
    done = printed("memory:\n  dynamic_batch.min: 2\n  dynamic_batch: {min: 3}\n")
    assert done.returncode == 2 and "own.yaml:3: memory.dynamic_batch.min: given twice" in done.stderr, done


def test_the_monitor_answers_at_the_end(free):
    run, _ = free
    memory = json.loads((run / "memory.json").read_text())
    monitor = memory["monitor"]
    assert monitor["status"] == "normal" and 0 < monitor["fragmentation"] < 1 and monitor["recoveries"] == 0
    assert monitor["leaks"] == []
    # an undisturbed run holds what its dry run does
    assert monitor["activations_bytes"] == pytest.approx(monitor["estimated_activations_bytes"], rel=0.01)
    saved = monitor["saved_bytes_by_technique"]
    assert set(saved) == {"flash_attention", "capacity"} and min(saved.values()) > 0
    without = ["attention.kernel=materialised", "model.d_model=64", "model.heads=2", "model.d_expert=96",
               "train.sequence=64", "train.micro_batch=8", "eval.batches=2", "run.threads=1"]  # fmt: skip
    peaks = [json.loads(subprocess.run([PROGRAM, "estimate", "--json", "--config", "moe-pico", *settings], check=True,
                                       capture_output=True, text=True).stdout)["peak_bytes"]
             for settings in (without, without[1:])]  # fmt: skip
    assert saved["flash_attention"] == peaks[0] - peaks[1]


def test_evaluation_and_generation_take_smaller_pieces(shards, free):
    run, _ = free
    evaluation = [PROGRAM, "eval", "--config", str(run / "config.yaml"), "--checkpoint", str(run / "checkpoints/step-6")]
    generation = [PROGRAM, "generate", "--from", str(run), "--prompt", "a" * 60, "--max-tokens", "4"]

    def run_in(command: list[str], limit: int) -> subprocess.CompletedProcess:
        settings = ["run.threads=1", f"memory.limit={limit}"]
        return subprocess.run(command + settings, capture_output=True, text=True, timeout=60)

    def least(command: list[str]) -> int:
        """The smallest limit, to a kilobyte, that the command gets by with."""
        low, high = 0, 1 << 26
        while high - low > 1000:
            middle = (low + high) // 2
            low, high = (low, middle) if run_in(command, middle).returncode == 0 else (middle, high)
        return high

    whole = run_in(evaluation, 0)
    small = run_in(evaluation, least(evaluation))
    assert "out of memory - reducing evaluation batch (2 to 1)" in small.stdout, small
    loss = [text.split("held-out loss ")[1].split()[0] for text in (whole.stdout, small.stdout)]
    assert loss[0] == loss[1]
    failed = run_in(evaluation, 1 << 20)
    assert failed.returncode == 3 and "give a larger memory.limit" in failed.stderr, failed

    whole = run_in(generation, 0)
    small = run_in(generation, least(generation))
    assert whole.returncode == 0 and small.stdout == whole.stdout
    failed = run_in(generation, 1 << 20)
    assert failed.returncode == 3 and "give a shorter prompt" in failed.stderr, failed


def test_a_checkpoint_that_cannot_be_written_leaves_the_summary(shards, tmp_path):
    done = train(shards, tmp_path, "checkpoint.every=2", "train.steps=40", **limited_files(200_000))
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    assert "cannot write" in done.stderr and "File too large" in done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "error" and 0 < summary["steps"] < 40
    assert done.stderr == f"moelab: {summary['reason']}\n"
    assert len(metrics(tmp_path, "step")) == summary["steps"]
    assert (tmp_path / "memory.json").exists()


def test_metrics_that_cannot_be_written_end_the_run(shards, tmp_path):
    """The last line is cut by the full disk; a resumed run goes on from the checkpoint that was still made."""
    done = train(shards, tmp_path, "train.steps=60", "checkpoint.keep=0", "eval.batches=0", **limited_files(20_000))
    assert done.returncode == 2, done
    assert f"moelab: cannot write {tmp_path}/metrics.jsonl: is the disk full?\n" == done.stderr
    assert ending(tmp_path) == ("error", f"cannot write {tmp_path}/metrics.jsonl: is the disk full?")


def ending(run: pathlib.Path) -> tuple[str, str]:
    summary = json.loads((run / "summary.json").read_text())
    return summary["status"], summary["reason"]


def test_samples_that_cannot_be_written_end_the_run(shards, tmp_path):
    (tmp_path / "prompts").write_text("some text\n" * 100)
    done = train(shards, tmp_path, "sample.every=1", f"sample.prompt=@{tmp_path}/prompts", "train.steps=60",
                 "checkpoint.keep=0", "eval.batches=0", **limited_files(20_000))  # fmt: skip
    assert done.returncode == 2, done
    reason = f"cannot write {tmp_path}/samples.jsonl: is the disk full?"
    assert done.stderr == f"moelab: {reason}\n" and ending(tmp_path) == ("error", reason)


def test_a_timeline_that_cannot_be_written_ends_the_run(shards, tmp_path):
    in_the_way = tmp_path / "memory.json.tmp"
    in_the_way.mkdir()
    (in_the_way / "file").touch()
    done = train(shards, tmp_path, "checkpoint.every=2")
    assert done.returncode == 2, done
    reason = f"cannot write {tmp_path}/memory.json: is the disk full or the folder read-only?"
    assert done.stderr == f"moelab: {reason}\n" and ending(tmp_path) == ("error", reason)
    assert max(metrics(tmp_path, "step")) == 2


def test_a_summary_that_cannot_be_written_is_told(shards, tmp_path):
    assert train(shards, tmp_path).returncode == 0
    in_the_way = tmp_path / "summary.json.tmp"
    in_the_way.mkdir()
    (in_the_way / "file").touch()
    reason = f"cannot write {tmp_path}/summary.json: is the disk full or the folder read-only?"
    done = train(shards, tmp_path, "--overwrite")
    assert done.returncode == 2 and done.stderr == f"moelab: {reason}\n", done
    assert not (tmp_path / "summary.json").exists()  # that of the run before
    metrics_too = train(shards, tmp_path, "train.steps=60", "checkpoint.keep=0", "--overwrite",
                        **limited_files(20_000))  # fmt: skip
    assert metrics_too.returncode == 2 and metrics_too.stderr == (
        f"moelab: no summary of this run: {reason}\nmoelab: cannot write {tmp_path}/metrics.jsonl: is the disk full?\n")


def test_a_disk_that_fills_up_still_takes_the_summary(shards, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk], capture_output=True).returncode != 0:
        pytest.skip("mounting a small tmpfs is not permitted here")
    try:
        settings = {"data.path": shards, "run.dir": disk / "run", "train.sequence": 64, "train.steps": 100_000,
                    "checkpoint.keep": 0, "eval.batches": 0, "run.threads": 1, "run.log_every": 0}  # fmt: skip
        command = programs.train_command(settings, "--device", "cpu")
        process = programs.start_and_take_a_step(command, disk / "run", stderr=subprocess.PIPE, text=True)
        fill(disk)
        _, said = process.communicate(timeout=600)
        reason = f"cannot write {disk}/run/metrics.jsonl: is the disk full?"
        assert process.returncode == 2 and said == f"moelab: {reason}\n"
        assert ending(disk / "run") == ("error", reason)
    finally:
        subprocess.run(["umount", disk], check=True)


def fill(disk: pathlib.Path) -> None:
    """Takes all space that is left on the disk."""
    with open(disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
        while True:
            filler.write(bytes(4096))


def test_a_machine_without_memory_ends_the_run(shards, tmp_path):
    """The system refuses, at a step in the middle; there is no memory.limit."""
    settings = {"data.path": shards, "run.dir": tmp_path, "train.sequence": 64, "train.steps": 100_000,
                "run.threads": 1, "run.log_every": 0, "memory.recover": "false"}  # fmt: skip
    command = programs.train_command(settings, "--device", "cpu")
    process = programs.start_and_take_a_step(command, tmp_path, stderr=subprocess.PIPE, text=True)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))  # less than it has
    _, said = process.communicate(timeout=600)
    assert process.returncode == 3, said
    status, reason = ending(tmp_path)
    assert status == "oom" and reason.startswith("out of memory") and reason.endswith("the system has no more"), reason
    assert "moelab: the machine has no more memory after step " in said
