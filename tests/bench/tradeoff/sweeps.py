"""Calls of the harness as a program, on moelab or on a stand-in for it.

The stand-in serves where a run must crash, hang or run out of memory: it does what the setting run.name, which is the
case's name, is listed with. Asked for a prediction, it prints the one that it was given.
"""
import json
import os
import pathlib
import subprocess
import time


FAKE = """#!{python}
import json, os, pathlib, signal, sys, time
if sys.argv[1] == "--version":
    print({version!r})
    sys.exit()
if sys.argv[1] != "train":
    with open({calls!r} + ".asked", "a") as asked:
        asked.write(" ".join(sys.argv[1:]) + "\\n")
    answer = {answers!r}.get(sys.argv[1])
    print("half of it is done", file=sys.stderr)
    if not answer:
        sys.exit("moelab: no answer")
    print(json.dumps(answer))
    sys.exit()
settings = dict(word.split("=", 1) for word in sys.argv[4:])
name, folder = settings["run.name"], pathlib.Path(settings["run.dir"])
rank, ranks = (int(os.environ.get(key, one)) for key, one in (("RANK", 0), ("WORLD_SIZE", 1)))
with open({calls!r}, "a") as calls:
    calls.write(name + (f", rank {{rank}} of {{ranks}}" if ranks > 1 else "") + "\\n")
does = {does!r}.get(name, "works")
if rank > 0:
    does, folder = {does!r}.get(f"{{name}} on {{rank}}", "works"), folder / "ranks" / str(rank)
folder.mkdir(parents=True, exist_ok=ranks > 1)
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
if does.startswith("takes"):  # so many milliseconds a step, in turn
    before = pathlib.Path({calls!r}).read_text().splitlines().count(name) - 1
    times = does.split()[1:]
    step = dict(step=1, tokens=64, loss=5.5, step_ms=float(times[before % len(times)]))
    (folder / "metrics.jsonl").write_text(json.dumps(step) + "\\n")
    does = "works"
if does == "sleeps":
    time.sleep(0.6)
    does = "works"
summary = dict(status="ok", tokens_per_second=dict(median=100.0), peak_bytes=(1 + rank) << 20, state_bytes=dict(optimizer=rank))
if does in ("works", "ends with 3"):
    summary["status"] = "ok" if does == "works" else "oom"
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "memory.json").write_text(json.dumps(dict(last_step_bytes_by_phase=dict(step=dict(optimizer=8)))))
if does.startswith("ends with"):
    print("first line\\nmoelab: the last error\\nand advice", file=sys.stderr)
    sys.exit(int(does.split()[-1]))
"""


class Sweep:
    """Calls of the harness on one file of records."""

    def __init__(self, harness: str, program: pathlib.Path | str, folder: pathlib.Path):
        self.out = folder / "records.jsonl"
        self.calls = folder / "calls"
        self.harness, self.program, self.model = harness, str(program), "moe-pico"
        self.settings = ["data.path=shards"]

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        command = [self.harness, "--program", self.program, "--out", str(self.out)]
        if self.model is not None:
            command += ["--model", self.model]
        return subprocess.Popen([*command, *arguments, *self.settings], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, cwd=self.out.parent, env=os.environ | environment)

    def run(self, *arguments: str, code: int = 0, **environment: str) -> str:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, (out, err)
        return out if code == 0 else err

    def records(self) -> list[dict]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines()

    def asked(self) -> list[str]:
        """What predictions, one word each."""
        return [line.split()[0] for line in pathlib.Path(f"{self.calls}.asked").read_text().splitlines()]


def wait_for(path: pathlib.Path) -> str:
    for _ in range(3000):
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.01)
    raise TimeoutError(path)
