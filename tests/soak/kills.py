"""Kills: a training is killed at random moments, each resumption is the next victim, and what it ends with is compared with
a training of the same settings that nobody disturbed."""
import contextlib
import functools
import hashlib
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from forked import ForkServer

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import ROOT, numbers  # noqa: E402

STEPS = 24
# What every cell has: a small model and a checkpoint every other step, so that many kills meet a save.
SMALL = {"train.steps": STEPS, "train.sequence": 32, "model.vocab": 256, "checkpoint.every": 2, "eval.batches": 2, "eval.every": 6,
         "run.log_every": 1, "run.threads": 1, "parallel.timeout": 20}
# The share of the undisturbed training's time within which each is killed, so that one meets several kills. Several ranks are
# started anew each time, which takes half of theirs.
SOON, SOON_OF_RANKS = 0.3, 0.5
GRACE = 5.0  # seconds that a stop by SIGTERM may take beside a micro-batch


def cells(program: str) -> dict[str, dict]:
    """Each row of the technique table: its settings, and its ranks."""
    said = subprocess.run([program, "techniques", "--json"], capture_output=True, text=True, check=True).stdout
    rows = json.loads(said)["techniques"]
    # Rows are changes to the first, whose batch is cut to what a second of one core trains many steps of.
    small = rows[0]["settings"] | {"train.micro_batch": "2"}
    return {row["name"]: {"settings": small | row["settings"], "ranks": row["ranks"]} for row in rows}


def command(program: str, settings: dict) -> list[str]:
    """A training that starts, or goes on where one has saved."""
    return [program, "train", "--config", "moe-pico", "--resume", "auto", *(f"{key}={value}" for key, value in settings.items())]


def training(program: str, data: pathlib.Path, folder: pathlib.Path, cell: dict) -> list[str]:
    """The command that starts the cell's training in the folder, or goes on with it."""
    settings = SMALL | cell["settings"] | {"data.path": data, "run.dir": folder}
    if "train.tokens_per_device" in settings:
        settings["train.tokens_per_device"] = 2 * settings["train.sequence"]
    if "placement.nvme_path" in settings:
        settings["placement.nvme_path"] = folder.parent
    start = [str(ROOT / "scripts/ranks.sh"), str(cell["ranks"])] if cell["ranks"] > 1 else []
    return [*start, *command(program, settings)]


def result(folder: pathlib.Path, last: pathlib.Path) -> dict:
    """What must not depend on how often the training was interrupted: every step's numbers, and the tensors of its last
    checkpoint."""
    files = sorted(last.glob("*.safetensors"))
    return {"steps": numbers(folder), "tensors": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}}


class Group(subprocess.Popen):
    """A command with the processes that it starts."""

    def __init__(self, command: list[str]):
        super().__init__(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def victims(self) -> list[int]:
        """Those that run moelab, not the script that started them."""
        found = subprocess.run(["pgrep", "-g", str(self.pid), "-x", "moelab"], capture_output=True, text=True).stdout
        return [int(word) for word in found.split()]

    def kill(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)


def states(group: int) -> str:
    """Of the processes in a group: what each does, in which call of the kernel and for how many seconds."""
    listed = subprocess.run(["ps", "-o", "pid=,stat=,wchan=,etimes=,args=", "-g", str(group)], capture_output=True, text=True).stdout
    return "; ".join(" ".join(line.split()) for line in listed.splitlines())


def what_it_did(folder: pathlib.Path) -> str:
    """Where a kill met the training, from what it left."""
    saved = folder / "checkpoints"
    if any(saved.glob("*.tmp*")):
        return "in a save"
    return "between saves" if any(saved.glob("step-*")) else "before the first save"


class Chain:
    """One training that is killed again and again. `start()`: its process, a Group or a Forked; `seconds`: that the undisturbed
    training took; `soon`: the share of them within which it is killed."""

    def __init__(self, start: Callable, folder: pathlib.Path, seconds: float, soon: float, seed: int):
        self.start, self.folder, self.seconds, self.soon = start, folder, seconds, soon
        self.random = random.Random(seed)
        self.patience = 60.0  # seconds in which a training that was stopped or killed must be gone
        self.counts: dict[str, int] = {}
        self.failures: list[str] = []

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def disturb(self) -> bool:
        """Starts the training and kills or stops it. False: it had ended before."""
        process = self.start()
        delay = self.random.uniform(0, self.soon * self.seconds)
        with contextlib.suppress(subprocess.TimeoutExpired):
            errors = process.communicate(timeout=delay)[1]
            if process.returncode != 0:
                self.failures.append(f"exit code {process.returncode} after {self.counts}: {errors.strip()}")
            return False
        self.stop(process) if self.random.random() < 0.1 else self.kill(process)
        return not self.failures

    def kill(self, process) -> None:
        """All at once, or one rank, whose companions then end by themselves."""
        victims = process.victims()
        if len(victims) > 1 and self.random.random() < 0.5:
            os.kill(self.random.choice(victims), signal.SIGKILL)
        else:
            process.kill()
        try:
            process.communicate(timeout=self.patience)
        except subprocess.TimeoutExpired:
            self.failures.append(f"SIGKILL: still there after {self.patience:.0f} s: {states(process.pid)}")
            process.kill()
            return
        self.count("kills")
        self.count(what_it_did(self.folder))

    def stop(self, process) -> None:
        """By SIGTERM: it must save and be out in time."""
        asked = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        try:
            errors = process.communicate(timeout=self.patience)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            self.failures.append(f"SIGTERM: still there after {self.patience:.0f} s")
            return
        took = time.monotonic() - asked
        self.count("stops")
        if process.returncode not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            self.failures.append(f"SIGTERM: exit code {process.returncode}: {errors.strip()}")
        if took > GRACE + self.seconds / STEPS:
            self.failures.append(f"SIGTERM: out after {took:.1f} s")

    def finish(self) -> None:
        process = self.start()
        errors = process.communicate(timeout=600)[1]
        if process.returncode != 0:
            self.failures.append(f"exit code {process.returncode} at the end: {errors.strip()}")


@contextlib.contextmanager
def starts(program: str, command: list[str], work: pathlib.Path, ranks: int):
    """A function that starts the command: several ranks by their script, one in a process that has its libraries already."""
    if ranks > 1:
        yield functools.partial(Group, command)
        return
    with ForkServer(program, work / "errors") as server:
        yield functools.partial(server.start, command)


def run_chain(program: str, data: pathlib.Path, work: pathlib.Path, cell: dict, kills: int, seed: int) -> tuple[dict, list[str]]:
    """Counts, and what was wrong. `work` is emptied."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    begun = time.monotonic()
    whole = subprocess.run(training(program, data, work / "whole", cell), capture_output=True, text=True)
    if whole.returncode != 0:
        return {}, [f"the undisturbed training failed: {whole.stderr.strip()}"]
    seconds = time.monotonic() - begun
    with starts(program, training(program, data, work / "killed", cell), work, cell["ranks"]) as start:
        chain = Chain(start, work / "killed", seconds, SOON_OF_RANKS if cell["ranks"] > 1 else SOON, seed)
        while chain.counts.get("kills", 0) < kills and not chain.failures:
            if not chain.disturb() and not chain.failures:  # it got to its end: the next victim starts anew
                compare(work, chain)
                shutil.rmtree(work / "killed")
        chain.finish()
        if not chain.failures:
            compare(work, chain)
    return chain.counts, chain.failures


def first_difference(whole: list[dict], killed: list[dict]) -> str:
    for right, found in itertools.zip_longest(whole, killed):
        if right != found:
            return f"undisturbed {json.dumps(right)}, killed {json.dumps(found)}"
    return "none"


def compare(work: pathlib.Path, chain: Chain) -> None:
    whole, killed = (result(work / name, work / name / f"checkpoints/step-{STEPS}") for name in ("whole", "killed"))
    chain.count("chains")
    if whole["steps"] != killed["steps"]:
        chain.failures.append(f"the steps' numbers differ: {first_difference(whole['steps'], killed['steps'])}")
    if not whole["tensors"] or whole["tensors"] != killed["tensors"]:
        chain.failures.append("the last checkpoint's tensors differ from the undisturbed training's")
