#!/usr/bin/env python3
"""Compares runs by what they left behind: speed and peak memory, held against the first.

Each RUN_DIR holds a summary.json of `moelab train`. Of several runs of one label the median counts, and the
spread is (fastest - slowest) / median: a difference smaller than that says nothing.
"""
import argparse
import dataclasses
import json
import pathlib
import statistics
import sys

USAGE = "compare_runs.py LABEL=RUN_DIR[,RUN_DIR…] …"
HEADINGS = ("", "tokens/s", "spread", "peak memory", "speed", "memory")


@dataclasses.dataclass
class Measured:
    """The runs of one label. speed and peak are None where a run didn't finish; failure then says why."""

    label: str
    speed: float | None
    spread: float
    peak: float | None
    failure: str = ""


def read_summary(folder: pathlib.Path) -> dict:
    file = folder / "summary.json"
    try:
        return json.loads(file.read_text())
    except (OSError, json.JSONDecodeError) as error:
        sys.exit(f"compare_runs: {file}: {error}")


def measure(label: str, summaries: list[dict]) -> Measured:
    failures = {summary["status"] for summary in summaries} - {"ok"}
    if failures:
        reason = "out of memory" if "oom" in failures else "failed"
        return Measured(label, None, 0.0, None, reason)
    speeds = [summary["tokens_per_second"]["median"] for summary in summaries]
    middle = statistics.median(speeds)
    peak = statistics.median(summary["peak_bytes"] for summary in summaries)
    return Measured(label, middle, (max(speeds) - min(speeds)) / middle, peak)


def human_bytes(count: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count / 1024:.0f} KiB"


def row(run: Measured, first: Measured) -> list[str]:
    if run.speed is None:
        return [run.label, run.failure, "", "", "", ""]
    cells = [run.label, f"{run.speed:,.0f}", f"{run.spread:.0%}", human_bytes(run.peak)]
    if first.speed is None:
        return cells + ["", ""]
    return cells + [f"{run.speed / first.speed:.2f} x", f"{run.peak / first.peak:.2f} x"]


def table(rows: list[list[str]]) -> str:
    """Columns as wide as they need be; the first aligned left, numbers right."""
    rows = [list(HEADINGS), *rows]
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(HEADINGS))]
    lines = []
    for cells in rows:
        numbers = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:])]
        lines.append("  ".join([cells[0].ljust(widths[0]), *numbers]).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(usage=USAGE, description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="+", metavar="LABEL=RUN_DIR[,RUN_DIR…]")
    measured = []
    for group in parser.parse_args().groups:
        label, separator, folders = group.partition("=")
        if not separator or not label or not folders:
            parser.error(f"'{group}': LABEL=RUN_DIR[,RUN_DIR…] is expected")
        measured.append(measure(label, [read_summary(pathlib.Path(folder)) for folder in folders.split(",")]))
    print(table([row(run, measured[0]) for run in measured]))


if __name__ == "__main__":
    main()
