"""Disks: every call on a file that a training's checkpoints make fails once, in a training that saves and in one that goes on
from a checkpoint; or the disk fails while it trains: no space, no writing, gone. Each time the last good checkpoint is the one
that goes on, and it ends with the bits of an undisturbed training."""
import contextlib
import errno
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import kills

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import built  # noqa: E402

STEPS, FIRST_SAVE = 8, 4
# The first checkpoint that a save finds is deleted by it: keep is 1.
SMALL = {"train.micro_batch": 2, "train.sequence": 32, "model.vocab": 256, "model.layers": 1, "train.steps": STEPS,
         "checkpoint.every": FIRST_SAVE, "checkpoint.keep": 1, "eval.batches": 0, "run.log_every": 1, "run.threads": 1}
# What a call fails with; 0: a write or read that takes half of its bytes.
FAULTS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR, "short write": 0, "short read": 0}
RESUMED = ", resumed"  # a fault of this name: in a training that goes on after its first save
CELLS = [fault + stage for stage in ("", RESUMED) for fault in FAULTS]
STOP = -1  # instead of an error: the process stops there
EVENTS = ("full disk", "read-only disk", "vanished folder")
DISK_BYTES = 16 << 20


def training(program: str, data: pathlib.Path, folder: pathlib.Path, **more) -> list[str]:
    return kills.command(program, SMALL | {"data.path": data, "run.dir": folder} | more)


def result(folder: pathlib.Path, saved: pathlib.Path) -> dict:
    return kills.result(folder, saved / f"step-{STEPS}")


def run(command: list, environment: dict | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | (environment or {}))


def wrong_end(code: int, errors: str, lines: str = "") -> list[str]:
    """A training succeeds, or names the one mistake in one line; `lines`: "+" where it has said before what it set aside."""
    named = code == 2 and re.fullmatch(rf"(moelab: [^\n]+\n){lines}", errors)
    return [] if code == 0 or named else [f"exit code {code}: {errors.strip()}"]


def fault(saved: pathlib.Path, number: int, error: int) -> dict[str, str]:
    """The environment of a training whose call of that number on files below `saved` fails."""
    log = saved.parent.with_suffix(".calls")
    log.unlink(missing_ok=True)
    shim = built("MOELAB_FAILING_CALL", "tests/train/checkpoint/libcheckpoint_failing_call.so")
    return {"LD_PRELOAD": shim, "MOELAB_FAULT_FOLDER": str(saved), "MOELAB_FAULT_LOG": str(log),
            "MOELAB_FAULT_CALL": str(number), "MOELAB_FAULT_ERRNO": str(error)}


class Undisturbed:
    """A training that nothing disturbs: its result, and the calls on files below its checkpoints; and what it is after its first
    save, with the calls of one that goes on from there."""

    def __init__(self, program: str, data: pathlib.Path, work: pathlib.Path):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        self.program, self.data, self.work = program, data, work
        self.calls = self.calls_of("whole")
        self.result = result(work / "whole", work / "whole/checkpoints")
        self.stop_after_the_first_save()
        self.begin_as("resumed", RESUMED)
        self.resumed_calls = self.calls_of("resumed")
        if result(work / "resumed", work / "resumed/checkpoints") != self.result:
            raise RuntimeError("a training that goes on does not end as one that was not interrupted")

    def calls_of(self, name: str) -> list[str]:
        done, calls = self.faulty(self.work / name, 0, 0)
        if done.returncode != 0:
            raise RuntimeError(f"the undisturbed training failed: {done.stderr.strip()}")
        return calls

    def second_save(self) -> int:
        """The number of its first call."""
        return next(number for number, call in enumerate(self.calls, 1) if f"step-{STEPS}.tmp" in call)

    def stop_after_the_first_save(self) -> None:
        """Before the second has written anything."""
        folder = self.work / "begun"
        process = subprocess.Popen(training(self.program, self.data, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=os.environ | fault(folder / "checkpoints", self.second_save(), STOP))
        wait_for_stop(process)
        process.kill()
        process.wait()

    def begin_as(self, name: str, cell: str) -> pathlib.Path:
        """The folder of that name, as the cell's training finds it."""
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        if cell.endswith(RESUMED):
            shutil.copytree(self.work / "begun", folder)
        return folder

    def faulty(self, folder: pathlib.Path, number: int, error: int) -> tuple[subprocess.CompletedProcess, list[str]]:
        """A training whose call of that number fails, and its calls."""
        environment = fault(folder / "checkpoints", number, error)
        done = run(training(self.program, self.data, folder), environment)
        return done, pathlib.Path(environment["MOELAB_FAULT_LOG"]).read_text().splitlines()

    def numbers(self, cell: str) -> list[int]:
        """The calls that can fail so."""
        calls = self.resumed_calls if cell.endswith(RESUMED) else self.calls
        fault = cell.removesuffix(RESUMED)
        short = fault.removeprefix("short ") + " "  # the name of the call
        return [number for number, call in enumerate(calls, 1) if FAULTS[fault] or call.startswith(short)]

    def goes_on(self, folder: pathlib.Path, saved: pathlib.Path, at_least: int, **settings) -> list[str]:
        """What is wrong with the training that goes on from what the disturbed one left."""
        done = run(training(self.program, self.data, folder, **settings))
        if done.returncode != 0 or "damaged" in done.stderr:
            return [f"it does not go on: exit code {done.returncode}: {done.stderr.strip()}"]
        found = re.search(r"resumed from \S+/step-\d+ after step (\d+)\n", done.stdout)
        if (int(found[1]) if found else 0) < at_least:
            return [f"it goes on from {found[1] if found else 'the beginning'}, and step {at_least} had been saved"]
        left = sorted(path.name for path in saved.iterdir())
        if left != ["LATEST", f"step-{STEPS}"]:
            return [f"it leaves {left}"]
        return [] if result(folder, saved) == self.result else ["its numbers or its last tensors are not the undisturbed training's"]


def saved_before(calls: list[str], number: int, at_first: int) -> int:
    """The step of the last checkpoint that had its name before the call of that number; `at_first`: when the process began."""
    named = [re.search(r"step-(\d+)\.tmp-\d+$", call) for call in calls[:number - 1] if call.startswith("rename ")]
    return max([int(found[1]) for found in named if found], default=at_first)


def put_back(saved: pathlib.Path) -> None:
    """Names a checkpoint again that was set aside because it could not be read: the disk was at fault, and it is whole."""
    for aside in saved.glob("*.damaged*"):
        aside.rename(saved / aside.name.split(".damaged")[0])


def fail_call(undisturbed: Undisturbed, cell: str, number: int) -> list[str]:
    """What is wrong when that call fails."""
    folder, error = undisturbed.begin_as("disturbed", cell), FAULTS[cell.removesuffix(RESUMED)]
    done, calls = undisturbed.faulty(folder, number, error)
    if len(calls) < number:
        return [f"{cell}: there was no call {number}"]
    wrong = wrong_end(done.returncode, done.stderr, "+" if cell.endswith(RESUMED) else "")
    if error == 0 and done.returncode != 0:
        wrong.append(f"it is not taken up again: {done.stderr.strip()}")
    put_back(folder / "checkpoints")
    before = saved_before(calls, number, FIRST_SAVE if cell.endswith(RESUMED) else 0)
    wrong += undisturbed.goes_on(folder, folder / "checkpoints", before)
    return [f"{cell} at call {number}, {calls[number - 1].replace(str(folder), '')}: {text}" for text in wrong]


def fail_calls(undisturbed: Undisturbed, cell: str, first: int, count: int) -> tuple[dict, list[str]]:
    """Lets `count` calls fail, one in each training, from the one after `first` others on, until each has failed once."""
    numbers = undisturbed.numbers(cell)
    turns = range(first, min(first + count, len(numbers)))
    failures = [text for turn in turns for text in fail_call(undisturbed, cell, numbers[turn])]
    return {"faults": len(turns)}, failures


@contextlib.contextmanager
def disk(folder: pathlib.Path, event: str):
    """Where the event can happen: a small file system of its own, or for a folder that vanishes just a folder. False where
    mounting is not permitted."""
    folder.mkdir(parents=True)
    if event == "vanished folder":
        yield True
        return
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", folder], capture_output=True)
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)


def fill(folder: pathlib.Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))


def disturb(event: str, folder: pathlib.Path) -> None:
    if event == "full disk":
        fill(folder)
    elif event == "read-only disk":
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    else:
        shutil.rmtree(folder / "checkpoints")


def wait_for_stop(process: subprocess.Popen, seconds: float = 120) -> None:
    """Until the process has stopped or ended; one that does neither is killed."""
    end = time.monotonic() + seconds
    while not os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG):
        if time.monotonic() > end:
            process.kill()
            process.wait()
            raise TimeoutError(f"the training neither stopped nor ended in {seconds:.0f} s")
        time.sleep(0.01)


def fail_disk(undisturbed: Undisturbed, event: str) -> tuple[dict, list[str]]:
    """The disk of the checkpoints fails between the first save and the second. Where mounting is not permitted, that is
    counted as refused."""
    place = undisturbed.work / event.replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    with disk(place / "disk", event) as possible:
        if not possible:
            return {"refused": 1}, []
        saved = place / "disk/checkpoints"
        command = training(undisturbed.program, undisturbed.data, place / "run", **{"checkpoint.dir": saved})
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   env=os.environ | fault(saved, undisturbed.second_save(), STOP))
        wait_for_stop(process)
        disturb(event, place / "disk")
        process.send_signal(signal.SIGCONT)
        errors = process.communicate(timeout=600)[1]
        wrong = wrong_end(process.returncode, errors)
        if event != "vanished folder" and process.returncode == 0:
            wrong.append("nothing of it was noticed")
        if event == "read-only disk":
            subprocess.run(["mount", "-o", "remount,rw", place / "disk"], check=True)
        (place / "disk/filler").unlink(missing_ok=True)
        wrong += undisturbed.goes_on(place / "run", saved, 0 if event == "vanished folder" else FIRST_SAVE, **{"checkpoint.dir": saved})
    shutil.rmtree(place)
    return {"faults": 1}, [f"{event}: {text}" for text in wrong]
