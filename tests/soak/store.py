"""The store of soak counts: one line of JSON for each piece of work that was finished, so that a soak which is interrupted
loses one piece at most."""
import collections
import json
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench/peers"))
from peers import write_record  # noqa: E402


class Store:
    """Counts are kept by part of the soak and by cell, which is a case of that part, e.g. a technique. `commit`: of the
    program that is tried."""

    def __init__(self, path: pathlib.Path, commit: str):
        self.path, self.commit = path, commit

    def add(self, part: str, cell: str, counts: dict[str, int], failures: list[str], **more) -> None:
        write_record(self.path, "soak", self.commit, {"part": part, "cell": cell, "counts": counts, "failures": failures, **more})


def records(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def sums(of: list[dict]) -> collections.Counter:
    """What some records counted, together."""
    total = collections.Counter()
    for record in of:
        total.update(record["counts"])
    return total
