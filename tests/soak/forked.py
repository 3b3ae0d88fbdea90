"""Trainings that are forked from one process, whose libraries are loaded: to load them takes longer than a kill's training."""
import os
import pathlib
import select
import signal
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import built  # noqa: E402


class ForkServer:
    """The program, waiting for commands (shim/fork_server.cpp); one runs at a time. `errors`: the file for what they say on stderr."""

    def __init__(self, program: str, errors: pathlib.Path):
        shim = built("MOELAB_FORK_SERVER", "tests/soak/libsoak_fork_server.so")
        self.errors = errors
        # Unbuffered, so that select() knows of every answer that was not read.
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                                        env=os.environ | {"LD_PRELOAD": shim})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def start(self, command: list[str]) -> "Forked":
        """Of the command, the program's own name is left out."""
        self.process.stdin.write(("\t".join([str(self.errors), *command[1:]]) + "\n").encode())
        return Forked(self, command, self.answer())

    def answer(self) -> int:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fork server ended with {self.process.wait()}")
        return int(line)


class Forked:
    """What kills.Group is for a command of its own."""

    def __init__(self, server: ForkServer, command: list[str], pid: int):
        self.server, self.args, self.pid, self.returncode = server, command, pid, None

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        if not select.select([self.server.process.stdout], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout)
        self.returncode = os.waitstatus_to_exitcode(self.server.answer())
        return None, self.server.errors.read_text(errors="replace")

    def victims(self) -> list[int]:
        return [self.pid]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
