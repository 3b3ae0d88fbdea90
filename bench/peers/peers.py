"""What the comparisons with `transformers` share."""
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
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers"))
    return f"{cpu}, {len(os.sched_getaffinity(0))} CPUs, {versions}"


def write_record(path, kind, record):
    """Appends one JSON line with the command, commit and machine beside the figures."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
    line = {"kind": kind, "machine": machine(), "commit": git.stdout.strip(), "command": sys.argv,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())} | record
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
