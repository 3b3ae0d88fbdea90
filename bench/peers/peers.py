"""What the comparisons with other people's layers and trainers share."""
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
from report.cpu_classes import cpu_classes  # noqa: E402

BACKENDS = ("eager", "grouped_mm")  # of transformers' experts


def avx2_limits():
    """The variables, with their values, by which a CPU plays one with AVX2. Both sides inherit them."""
    return cpu_classes()["avx2"].limits


def cpu_class():
    """The best class of CPU that this one belongs to, and what it was lowered to by the environment."""
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    flags = set(flags[1].split()) if flags else set()
    own = next((one.title for one in reversed(cpu_classes().values()) if flags.issuperset(one.flags)), "no AVX2")
    limits = " ".join(f"{name}={os.environ[name]}" for name in avx2_limits() if name in os.environ)
    if plays_avx2() and own != "AVX2":
        return f"AVX2 (an {own} CPU with {limits})"
    return f"{own} (with {limits})" if limits else own


def plays_avx2():
    """Whether the environment holds LibTorch, oneDNN and MKL to AVX2."""
    return all(os.environ.get(name) == value for name, value in avx2_limits().items())


def write_avx2_compiler(folder):
    """A C++ compiler for torch.compile without AVX-512, for a CPU that plays one with AVX2: its path.

    ATEN_CPU_CAPABILITY chooses the vectors that torch.compile writes, but it compiles with -march=native; GCC takes
    the last -march."""
    path = Path(folder) / "g++"
    path.write_text(f'#!/bin/sh\nexec {shutil.which(os.environ.get("CXX", "g++"))} "$@" -march=x86-64-v3\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def machine():
    """One line on the machine. LibTorch is not imported for it: a caller may be measuring memory."""
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), "unknown CPU")
    versions = ", ".join(f"{name} {version}" for name in ("torch", "transformers") if (version := version_of(name)))
    return f"{cpu}, {len(os.sched_getaffinity(0))} CPUs, class {cpu_class()}, {versions}"


def resident_peak(process):
    """The peak resident memory of a process in bytes, since it began or since reset_peak; None once it has ended."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else None


def reset_peak(process):
    """The kernel's account of a process's peak begins again at what is resident now (man 5 proc, clear_refs)."""
    Path(f"/proc/{process}/clear_refs").write_text("5", encoding="utf-8")


def version_of(package):
    """None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit_of(program):
    """The commit that a moelab was built from, as its --version says: "HASH", or "HASH, modified"."""
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"\(commit ([^)]+)\)", version)[1]


def commit_of_sources(root):
    """The commit that the repository `root` has checked out, as a program says its own: "HASH", or "HASH, modified"."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=normal", "--", "kernels", "tests", "scripts", "train")
    return git("rev-parse", "--short=12", "HEAD") + (", modified" if changed else "")


def summary_of(command, environment=None):
    """Runs a training, `moelab train …`, in a folder of its own: its summary.json."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, f"run.dir={folder}/run"], check=True, stdout=subprocess.DEVNULL, env=environment)
        return json.loads(Path(folder, "run/summary.json").read_text(encoding="utf-8"))


def write_record(path, kind, commit, record):
    """Appends one JSON line with the command, the measured program's commit and the machine beside the figures."""
    line = {"kind": kind, "machine": machine(), "commit": commit, "command": sys.argv,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())} | record
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
