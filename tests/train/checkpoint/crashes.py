"""Drives checkpoint_tool: children that save and load checkpoints, killed or fed with faults on the way."""

import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
from typing import NamedTuple

RANDOM_KILLS = int(os.environ.get("MOELAB_RANDOM_KILLS", "300"))
# How many of these there are differs from run to run: memory, and waiting to be let go. They change nothing on disk.
UNCOUNTED = {"brk", "mmap", "munmap", "mremap", "mprotect", "madvise", "futex", "rt_sigtimedwait", "restart_syscall"}
# Calls on files; what else a process does (memory, threads) fails in ways that no file format can mend.
FILE_CALLS = {
    "openat", "write", "fsync", "close", "mkdir", "rename", "renameat2", "unlink", "unlinkat", "rmdir", "getdents64",
    "newfstatat", "stat",
}  # fmt: skip


class Tool:
    """checkpoint_tool serve: forks children that save, so that LibTorch is loaded once and not hundreds of times."""

    def __init__(self, path: str, env: dict[str, str] | None = None):
        self.process = subprocess.Popen(
            [path, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=env,
        )  # fmt: skip

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def tell(self, *words) -> None:
        self.process.stdin.write(" ".join(map(str, words)) + "\n")

    def read(self) -> str:
        line = self.process.stdout.readline()
        assert line, "the tool has died"
        return line.strip()

    def start(self, *words) -> int:
        self.tell(*words)
        return int(re.fullmatch(r"child (\d+)", self.read())[1])

    def wait(self) -> list[str]:
        """What the child said until it ended."""
        self.tell("wait")
        said = []
        while not (line := self.read()).startswith("ended"):
            said.append(line)
        return said

    def run(self, *words) -> list[str]:
        self.start(*words)
        self.tell("go")
        return self.wait()

    def latest(self, folder: pathlib.Path) -> int:
        self.tell("check", folder)
        answer = self.read()
        assert answer.startswith("loaded "), answer
        return int(answer.removeprefix("loaded "))


def assert_whole(folder: pathlib.Path) -> None:
    """What bears a checkpoint's name is one: every file is there, as long as the manifest says."""
    for step in folder.glob("step-*"):
        if ".tmp-" not in step.name:
            assert re.fullmatch(r"step-\d+", step.name), step  # not damaged, not superseded
            files = json.loads((step / "manifest.json").read_text())["body"]["files"]
            assert {name: entry["size"] for name, entry in files.items()} == {
                path.name: path.stat().st_size for path in step.iterdir() if path.name != "manifest.json"
            }


def assert_unharmed(server: Tool, folder: pathlib.Path, at_least: int) -> int:
    """Loads, then opens a writer, which cleans up, and saves once more. Returns the step that was loaded."""
    assert_whole(folder)
    step = server.latest(folder)
    assert step >= at_least
    leftovers = {path.name for path in folder.glob("*.tmp-*")}
    pid = server.start("loop", folder, step + 1)
    server.tell("go")
    assert server.read() == f"saved {step + 1}"
    os.kill(pid, signal.SIGKILL)
    server.wait()
    assert not leftovers & {path.name for path in folder.iterdir()}
    assert server.latest(folder) > step
    return step


@contextlib.contextmanager
def strace_child(pid: int, options: list[str], log: pathlib.Path):
    """Traces a process until it has ended."""
    strace = subprocess.Popen(["strace", "-p", str(pid), "-o", log, *options], stderr=subprocess.PIPE, text=True)
    assert "attached" in strace.stderr.readline()
    yield
    strace.wait()
    strace.stderr.close()


def traced(server: Tool, words: tuple, options: list[str], log: pathlib.Path) -> list[str]:
    """Runs a child under strace; returns what it said."""
    with strace_child(server.start(*words), options, log):
        server.tell("go")
        return server.wait()


class Call(NamedTuple):
    name: str
    number: int  # the how manieth of its name: strace counts each system call for itself
    line: str


def calls_of(server: Tool, words: tuple, log: pathlib.Path) -> list[Call]:
    """The system calls a child makes between being let go and reporting."""
    traced(server, words, ["-y"], log)
    return calls_of_child(log)


def calls_of_child(log: pathlib.Path) -> list[Call]:
    lines = log.read_text().splitlines()
    seen = collections.Counter()
    calls = []
    for line in lines:
        name = line.split("(")[0]
        seen[name] += 1
        calls.append(Call(name, seen[name], line))
    end = next(i for i, call in enumerate(calls) if call.line.startswith("write(1<"))
    return [call for call in calls[:end] if call.name not in UNCOUNTED]


def inject(call: Call, fault: str) -> list[str]:
    return ["-e", f"trace={call.name}", "-e", f"inject={call.name}:{fault}:when={call.number}"]


def copied(prepared: pathlib.Path, name) -> pathlib.Path:
    return shutil.copytree(prepared, prepared.parent / str(name))
