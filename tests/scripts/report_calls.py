"""Sweeps of made-up records, tables of their pages, and calls of scripts/report.py."""
import pathlib
import subprocess
import sys

import sweep_records as made

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import document, figures, records  # noqa: E402


def sweeps_of(folder: pathlib.Path, rows: list[dict]) -> list[figures.Sweep]:
    read, _ = records.read_records([made.write(folder / "records.jsonl", rows)])
    return figures.sweeps(read)


def sweep_of(folder: pathlib.Path, rows: list[dict]) -> figures.Sweep:
    (sweep,) = sweeps_of(folder, rows)
    return sweep


def table_rows(blocks: list, heading: str) -> list[list[str]]:
    (table,) = [block for block in blocks if isinstance(block, document.Table) and block.headings[0] == heading]
    return table.rows


def call(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, ROOT / "scripts" / "report.py", *map(str, arguments)], capture_output=True,
                          text=True, timeout=300)


def refused(*arguments) -> str:
    done = call(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr
