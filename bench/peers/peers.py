"""What the comparisons with other people's layers and trainers share."""
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from pathlib import Path

BACKENDS = ("eager", "grouped_mm")  # of transformers' experts


def machine():
    """One line on the machine. LibTorch is not imported for it: a caller may be measuring memory."""
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), "unknown CPU")
    versions = ", ".join(f"{name} {version}" for name in ("torch", "transformers") if (version := version_of(name)))
    return f"{cpu}, {len(os.sched_getaffinity(0))} CPUs, {versions}"


def version_of(package):
    """None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit():
    """Of the checkout; empty in a bundle, which has none."""
    try:
        git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
    except FileNotFoundError:
        return ""
    return git.stdout.strip()


def write_record(path, kind, record):
    """Appends one JSON line with the command, commit and machine beside the figures."""
    line = {"kind": kind, "machine": machine(), "commit": commit(), "command": sys.argv,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())} | record
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
