"""Readers of the Python scripts: texts that were valid before something in them was changed, by a seed. Each is read, or refused
by the reader's own error, within a second of CPU time, which a busy machine does not lengthen."""
import copy
import json
import os
import pathlib
import random
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))
from data_inputs import Mistake, json_documents  # noqa: E402
from report import records, runs, sidecars  # noqa: E402

SECONDS = 1.0
INPUTS = 2000  # in a piece
# What a field holds instead.
ODD = (None, True, -1, 0, 0.5, 2**70, float("inf"), float("nan"), "", "x", "é\n", [], {}, [None], [[[]]], {"": {}}, ["a", 1])
DEEP = "[" * 100_000

RECORD = (ROOT / "results/epyc-2-cores/records.jsonl").read_text().splitlines()[0]
SUMMARY = json.dumps(json.loads(RECORD)["summary"])
METRICS = "".join(json.dumps(dict(zip(runs.STEP, step, strict=True))) + "\n" for step in json.loads(RECORD)["steps"])
ESTIMATES = (ROOT / "results/epyc-2-cores/estimates.jsonl").read_text().splitlines()[0]
PLANS = "".join(line + "\n" for line in (ROOT / "results/epyc-2-cores/plans.jsonl").read_text().splitlines() if '"320MiB"' in line)
DOCUMENTS = '{"text": "one"}\n{"text": "two", "more": [1]}\n'


def read_folder(folder: pathlib.Path, name: str, text: bytes) -> None:
    """A finished run one of whose files is the text."""
    (folder / "summary.json").write_text(SUMMARY)
    (folder / "metrics.jsonl").write_text(METRICS)
    (folder / name).write_bytes(text)
    runs.of_folder(folder)


def reader_of(name: str, read):
    def of_text(folder: pathlib.Path, text: bytes) -> None:
        (folder / name).write_bytes(text)
        read(folder / name)
    return of_text


# A valid text and what reads it, by name.
READERS = {
    "records": (RECORD + "\n", reader_of("records.jsonl", records.read_file)),
    "summary": (SUMMARY, lambda folder, text: read_folder(folder, "summary.json", text)),
    "metrics": (METRICS, lambda folder, text: read_folder(folder, "metrics.jsonl", text)),
    "estimates": (ESTIMATES + "\n", reader_of("estimates.jsonl", sidecars.read_draws)),
    "plans": (PLANS, reader_of("plans.jsonl", sidecars.read_checks)),
    "documents": (DOCUMENTS, reader_of("documents.jsonl", lambda path: list(json_documents(path, "text")))),
}


def places(value, at=()):
    """Where something can be changed: the keys and indexes that lead there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from places(inner, (*at, key))


def with_odd_field(line: str, rng: random.Random) -> str:
    content = copy.deepcopy(json.loads(line))
    *way, last = rng.choice(list(places(content)))
    inner = content
    for key in way:
        inner = inner[key]
    if rng.random() < 0.2:
        del inner[last]
    else:
        inner[last] = rng.choice(ODD)
    return json.dumps(content)


def damaged(text: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text))
    how = rng.randrange(4)
    if how == 0:
        return text[:at]
    if how == 1:
        return text[:at] + bytes([text[at] ^ 1 << rng.randrange(8)]) + text[at + 1:]
    if how == 2:
        return text[:at] + rng.randbytes(rng.randrange(1, 9)) + text[at:]
    return text[:at] + DEEP.encode() + text[at:] if rng.random() < 0.1 else text[:at] + text[at + rng.randrange(1, 99):]


def drawn(valid: str, rng: random.Random) -> bytes:
    lines = valid.splitlines()
    if rng.random() < 0.7:
        index = rng.randrange(len(lines))
        for _ in range(rng.randrange(1, 3)):
            lines[index] = with_odd_field(lines[index], rng) if lines[index] != "{}" else lines[index]
        return ("\n".join(lines) + "\n").encode()
    return damaged(valid.encode(), rng)


def run(name: str, seed: int, inputs: int = INPUTS, seconds: float = SECONDS) -> tuple[dict, list[str]]:
    """Gives that many inputs to the reader: how many, and what was wrong."""
    valid, read = READERS[name]
    rng = random.Random(f"{name} {seed}")
    failures = []
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        for number in range(inputs):
            text = drawn(valid, rng)
            begun = time.process_time()
            try:
                read(pathlib.Path(folder), text)
            except (records.ReportError, Mistake):
                pass
            except Exception as error:  # noqa: BLE001
                failures.append(f"seed {seed}, input {number}: {type(error).__name__}: {error}")
            if (took := time.process_time() - begun) > seconds:
                failures.append(f"seed {seed}, input {number}: {took:.1f} s")
    return {"inputs": inputs}, failures
