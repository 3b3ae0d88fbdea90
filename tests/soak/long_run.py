"""A long training: its memory, its file handles and its speed at the end are those of its beginning."""
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import time

ROUNDS = 60  # short ones, in which the long training's last steps and a fresh one take turns: what else the machine does meets both
MARGIN = 1000  # steps that may pass while a process is looked at, over all turns
SETTINGS = {"train.micro_batch": 2, "train.sequence": 32, "model.vocab": 256, "checkpoint.every": 500, "checkpoint.keep": 2,
            "eval.batches": 2, "eval.every": 500, "run.log_every": 100, "run.threads": 1}


def start(program: str, data: pathlib.Path, folder: pathlib.Path, steps: int) -> subprocess.Popen:
    settings = SETTINGS | {"data.path": data, "run.dir": folder, "train.steps": steps}
    return subprocess.Popen([program, "train", "--config", "moe-pico", *(f"{key}={value}" for key, value in settings.items())],
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def resident(process: int) -> int:
    pages = pathlib.Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def handles(process: int) -> int:
    return len(list(pathlib.Path(f"/proc/{process}/fd").iterdir()))


def cpu_seconds(process: int) -> float:
    """Of the threads that it has now, by the scheduler's nanoseconds: /proc/PID/stat counts ticks of 10 ms."""
    return sum(int(file.read_text().split()[0]) for file in pathlib.Path(f"/proc/{process}/task").glob("*/schedstat")) / 1e9


class Watched:
    """A training whose steps are counted as they are written."""

    def __init__(self, program: str, data: pathlib.Path, folder: pathlib.Path, steps: int):
        self.process, self.folder = start(program, data, folder, steps), folder
        self.read, self.last, self.rest = 0, {}, b""

    def steps(self) -> int:
        path = self.folder / "metrics.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self.read)
                text = self.rest + file.read()
                self.read = file.tell()
            *lines, self.rest = text.split(b"\n")
            if lines:
                self.last = json.loads(lines[-1])
        return self.last.get("step", 0)

    def until(self, step: int) -> None:
        while self.steps() < step:
            if self.process.poll() is not None:
                raise RuntimeError(f"it ended at step {self.steps()} with {self.process.returncode}: {self.process.stderr.read()}")
            time.sleep(0.01)

    def cost(self, steps: int) -> float:
        """CPU seconds a step of the next steps, after which it stands still."""
        self.process.send_signal(signal.SIGCONT)
        first, before = self.steps(), cpu_seconds(self.process.pid)
        self.until(first + steps)
        seconds = (cpu_seconds(self.process.pid) - before) / (self.steps() - first)
        self.process.send_signal(signal.SIGSTOP)
        return seconds

    def state(self) -> dict[str, int]:
        return {"resident_bytes": resident(self.process.pid), "handles": handles(self.process.pid),
                "allocated_bytes": self.last["allocated_bytes"]}


def compare_costs(long: Watched, fresh: Watched, steps: int) -> list[float]:
    """The long training's CPU time a step over the fresh one's, each taking `steps` in turn."""
    ratios = []
    for turn in range(ROUNDS):
        pair = [(long, "long"), (fresh, "fresh")][::-1 if turn % 2 else 1]
        took = {name: watched.cost(steps) for watched, name in pair}
        ratios.append(took["long"] / took["fresh"])
    return ratios


def run(program: str, data: pathlib.Path, work: pathlib.Path, steps: int) -> dict:
    """What was measured. The first tenth is warm-up, and the last tenth takes turns with a fresh training. Both have more
    steps before them than they take, and are stopped."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    long = Watched(program, data, work / "long", 2 * steps + MARGIN)
    fresh = None
    try:
        long.until(steps // 10)
        begin = long.state()
        long.until(steps - steps // 10)
        end = long.state()
        long.process.send_signal(signal.SIGSTOP)
        fresh = Watched(program, data, work / "fresh", 2 * steps + MARGIN)
        fresh.until(steps // 50)
        fresh.process.send_signal(signal.SIGSTOP)
        ratios = compare_costs(long, fresh, max(steps // 10 // (ROUNDS + 1), 1))
        long.process.send_signal(signal.SIGCONT)
        long.process.send_signal(signal.SIGTERM)
        ended = long.process.wait(timeout=600)
    finally:
        for watched in filter(None, (long, fresh)):
            watched.process.kill()
            watched.process.wait()
    return {"steps": steps, "exit_code": ended, "at_a_tenth": begin, "at_nine_tenths": end,
            "cost_ratios": ratios, "cost_ratio": statistics.median(ratios)}


def failures(found: dict) -> list[str]:
    begin, end = found["at_a_tenth"], found["at_nine_tenths"]
    wrong = []
    if found["exit_code"] != 0:
        wrong.append(f"exit code {found['exit_code']}")
    if abs(end["resident_bytes"] / begin["resident_bytes"] - 1) > 0.01:
        wrong.append(f"resident memory went from {begin['resident_bytes']} to {end['resident_bytes']} bytes")
    for key in ("handles", "allocated_bytes"):
        if begin[key] != end[key]:
            wrong.append(f"{key} went from {begin[key]} to {end[key]}")
    if abs(found["cost_ratio"] - 1) > 0.05:
        wrong.append(f"a late step takes {found['cost_ratio']:.3f} x the CPU time of a fresh training's")
    return wrong
