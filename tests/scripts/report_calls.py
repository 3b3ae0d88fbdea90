"""Sweeps of made-up records, and calls of scripts/report.py."""
import pathlib
import subprocess
import sys

import sweep_records as made

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import figures, records  # noqa: E402


def sweep_of(tmp_path: pathlib.Path, rows: list[dict]) -> figures.Sweep:
    read, _ = records.read_records([made.write(tmp_path / "records.jsonl", rows)])
    (sweep,) = figures.sweeps(read)
    return sweep


def call(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, ROOT / "scripts" / "report.py", *map(str, arguments)], capture_output=True,
                          text=True, timeout=300)


def refused(*arguments) -> str:
    done = call(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr
