"""The store of soak counts: one line of JSON for each piece of work that was finished, so that a soak which is interrupted
loses one piece at most."""
import collections
import datetime
import json
import os
import pathlib
import subprocess


def machine() -> dict:
    model = next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": os.cpu_count()}


def commit_of(program: str) -> str:
    """The commit that the program was built from, as it says itself."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return said.split("commit ")[1].rstrip(")\n")


class Store:
    """Counts are kept by part of the soak and by cell, which is a case of that part, e.g. a technique."""

    def __init__(self, path: pathlib.Path, commit: str, command: str):
        self.path = path
        self.about = {"commit": commit, "machine": machine(), "command": command}
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, part: str, cell: str, counts: dict[str, int], failures: list[str], **more) -> None:
        record = {"schema": 1, "part": part, "cell": cell, "counts": counts, "failures": failures, **more, **self.about,
                  "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def records(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def sums(of: list[dict]) -> collections.Counter:
    """What some records counted, together."""
    total = collections.Counter()
    for record in of:
        total.update(record["counts"])
    return total
