"""Reads the records of a sweep: JSON lines, one for each run of a case, as bench_tradeoff appends them."""
import contextlib
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Iterator

import numpy as np

SCHEMA = 1
ESTIMATES = "estimates.jsonl"  # written by check_estimates.py
PLANS = "plans.jsonl"  # written by check_plan.py
# Of other programs, and of sweeps that have pages of their own.
NO_RECORDS = (ESTIMATES, PLANS, "peers.jsonl", "ranks.jsonl", "cpu.jsonl", "soak.jsonl", "quality.jsonl", "rates.jsonl", "miniatures.jsonl")
# What is raised where JSON is read that is none, lacks a field or has another kind of value there.
WRONG_FIELDS = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
WARM_UP = "the first three steps of a run, or the first third of one of fewer than nine"


class ReportError(Exception):
    """A user's mistake: what, where, what would be right, in one line."""


@contextlib.contextmanager
def mistakes_of(script: str) -> Iterator[None]:
    """A mistake, or a file that cannot be read or written, ends the script with a line on standard error and exit code 2."""
    try:
        yield
    except (ReportError, OSError) as error:
        print(f"{script}: {error}", file=sys.stderr)
        sys.exit(2)


@dataclasses.dataclass(frozen=True)
class Record:
    """One run. steps is (n, 4): step, tokens so far, loss in nats, milliseconds; gradient_norms is (n), empty where
    none were recorded; memory[phase][kind] is in bytes."""

    case: str
    techniques: tuple[str, ...]
    against: str
    model: str
    round: int
    settings: dict
    settings_hash: str
    command: str
    commit: str
    dirty: bool
    machine: dict
    started: str
    status: str
    message: str
    peak: float
    predicted_peak: float
    held_out_loss: float
    steps: np.ndarray
    gradient_norms: np.ndarray
    memory: dict
    family: str  # the kind of its part of the plan: single, leave_one_out, ladder, pair, fit, crossover or ranks
    sweep: str  # the name of that part of the plan
    noisy: bool  # the rounds of its case differ too much, even when repeated
    parameters: float  # of the model
    limit: float  # of memory, in bytes; 0: none
    resolved: dict  # its settings in full, by group; empty where it ended before they were known
    ranks: int  # processes that trained together; peaks and state are of the fullest, the rest is rank 0's
    link: str  # between the ranks; "" for one
    state: float  # bytes of weights, masters, gradients and optimizer state
    optimizer_state: float  # bytes
    host_bytes: float  # held in host memory at most, batches read ahead among them
    fill_rate: float  # share of the places in its rows that tokens filled
    resident: float  # bytes that the process was at most in memory, all of LibTorch with it
    sent: float  # bytes to other ranks in a step
    gemm_rate: float  # operations a second of a large product in the type of the run's, measured at its end
    hidden: float  # of the time that exchanges were under way, the share in which the rank did not wait
    waited: dict[str, float]  # share of the steps' time in which they waited for what is on the "host" or in a file ("nvme")

    @property
    def is_baseline(self) -> bool:
        return self.against in ("", self.case)

    @property
    def sequence(self) -> float:
        """Tokens."""
        return number(self.resolved.get("train", {}).get("sequence"))

    @property
    def tokens(self) -> float:
        """Trained on in the whole run."""
        return self.steps[-1, 1]

    @property
    def rates(self) -> np.ndarray:
        """Tokens a second of each step after the warm-up; see WARM_UP."""
        return 1000 * self.step_tokens[-len(self.timed_ms):] / self.timed_ms

    @property
    def step_tokens(self) -> np.ndarray:
        """Tokens of each step."""
        return np.diff(self.steps[:, 1], prepend=0)

    @property
    def timed_ms(self) -> np.ndarray:
        """Milliseconds of each step after the warm-up."""
        return self.steps[min(3, len(self.steps) // 3):, 3]


def number(value: object) -> float:
    """The number; NaN for null, because JSON has no NaN."""
    return math.nan if value is None else float(value)


def steps_array(rows: list) -> np.ndarray:
    return np.array([[number(value) for value in row] for row in rows], dtype=float).reshape(-1, 4)


def state_of(summary: dict) -> float:
    state = summary.get("state_bytes")
    return sum(state[kind] for kind in ("parameters", "gradients", "optimizer")) if state else math.nan


def sent_in_a_step(summary: dict) -> float:
    """Without what ranks decide together."""
    sent = (summary.get("communication") or {}).get("sent_bytes") or {}
    total = sum(count for use, count in sent.items() if not use.endswith("/control"))
    return total / summary["steps"] if total else 0


def gemm_rate_of(summary: dict) -> float:
    rate, share = summary.get("flops_per_second"), summary.get("fraction_of_gemm_peak")
    return rate / share if rate and share else math.nan


def parse(fields: dict) -> Record:
    """Raises one of WRONG_FIELDS where the fields aren't those of schema 1."""
    summary = fields["summary"] or {}
    of_ranks = fields.get("by_rank") or [summary]
    return Record(
        case=fields["case"], techniques=tuple(fields["techniques"]), against=fields["against"] or "", model=fields["model"],
        round=int(fields["round"]), settings=fields["settings"],
        settings_hash=fields["settings_hash"], command=fields["command"], commit=fields["commit"],
        dirty=bool(fields["dirty"]), machine=fields["machine"] or {}, started=fields["started"],
        status=fields["status"], message=fields["message"],
        peak=max(number(one.get("peak_bytes")) for one in of_ranks),
        predicted_peak=max(number(one.get("estimated_peak_bytes")) for one in of_ranks),
        held_out_loss=number(summary.get("held_out_loss")),
        steps=steps_array(fields["steps"] or []),
        gradient_norms=np.array([number(norm) for norm in fields.get("gradient_norms") or []], dtype=float),
        memory=fields["memory"] or {}, family=fields.get("family") or "single", sweep=fields.get("sweep") or "",
        noisy=bool(fields.get("noisy")), parameters=number((summary.get("model") or {}).get("parameters")),
        limit=number(summary.get("memory_limit_bytes")),
        resolved=summary.get("settings") or {}, ranks=int(fields.get("ranks") or 1), link=fields.get("link") or "",
        state=max(map(state_of, of_ranks)), optimizer_state=number((summary.get("state_bytes") or {}).get("optimizer")),
        host_bytes=number(summary.get("host_bytes")), fill_rate=number(summary.get("fill_rate")),
        resident=number(fields.get("resident_bytes")), sent=sent_in_a_step(summary),
        gemm_rate=gemm_rate_of(summary), hidden=number((summary.get("communication") or {}).get("hidden_share")),
        waited={home: number(one["share"]) for home, one in (summary.get("waited") or {}).items() if one["steps"]})


def read_line(line: str, where: str) -> Record | None:
    """The record in a line; None for a line that isn't whole JSON."""
    try:
        fields = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        return None
    schema = fields.get("schema") if isinstance(fields, dict) else None
    if schema != SCHEMA:
        raise ReportError(f"{where}: schema {schema}; this report reads schema {SCHEMA}, as bench_tradeoff writes it")
    try:
        return parse(fields)
    except KeyError as missing:
        raise ReportError(f"{where}: {missing} is missing from the record") from None
    except WRONG_FIELDS as error:
        raise ReportError(f"{where}: not a record of bench_tradeoff: {error}") from None


def read_text(path: pathlib.Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None


def read_file(path: pathlib.Path) -> tuple[list[Record], list[str]]:
    """The records, and a note on a torn last line. A crash tears nothing else, so any other bad line is a mistake."""
    *lines, rest = read_text(path).split("\n")
    records, torn = [], []
    for index, line in enumerate([*lines, rest], 1):
        if not line.strip():
            continue
        record = read_line(line, f"{path}:{index}")
        if record:
            records.append(record)
        elif index > len(lines):
            torn.append(f"{path}:{index}: torn line left out (a sweep was interrupted while writing it)")
        else:
            raise ReportError(f"{path}:{index}: damaged: no JSON; repair or remove the line")
    return records, torn


def files_of(path: pathlib.Path) -> list[pathlib.Path]:
    """The file, or the files of records in the folder."""
    if not path.is_dir():
        return [path]
    return [file for file in sorted(path.glob("*.jsonl")) if file.name not in NO_RECORDS]


def read_records(paths: list[pathlib.Path]) -> tuple[list[Record], list[str]]:
    """The records of files and of folders, with a note for each torn line."""
    records, notes = [], []
    for file in (file for path in paths for file in files_of(path)):
        read, torn = read_file(file)
        records += read
        notes += torn
    if not records:
        names = ", ".join(map(str, paths))
        raise ReportError(f"{names}: no records; bench_tradeoff writes them")
    return records, notes


def near(folder: pathlib.Path, name: str) -> list[pathlib.Path]:
    """The folders beside this one in results/, which has one for each machine, that hold a file of this name."""
    parent = folder.resolve().parent
    return [path.parent for path in sorted(parent.glob(f"*/{name}"))] if parent.name == "results" else []
