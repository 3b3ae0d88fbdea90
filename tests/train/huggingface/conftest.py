"""Where the programs that these tests drive are (ctest says so; by hand, the newest build), and the table of how
well the two implementations agree, printed after the tests."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PARITY = pytest.StashKey[list]()


def built(variable: str, path: str) -> str:
    if variable in os.environ:
        return os.environ[variable]
    found = sorted(ROOT.glob(f"build/*/{path}"), key=lambda file: file.stat().st_mtime)
    if not found:
        pytest.skip(f"{path} is not built")
    return str(found[-1])


@pytest.fixture(scope="session")
def moelab():
    """Runs the program; returns what subprocess.run does."""
    program = built("MOELAB_PROGRAM", "bin/moelab")

    def run(*arguments):
        return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=300)

    return run


@pytest.fixture(scope="session")
def tool():
    """Runs parity_tool, which must succeed."""
    program = built("MOELAB_PARITY_TOOL", "tests/train/huggingface/parity_tool")

    def run(*arguments):
        subprocess.run([program, *map(str, arguments)], check=True, timeout=300)

    return run


@pytest.fixture(scope="session")
def parity(request):
    """Rows (model, worst logit, worst gradient, its name)."""
    return request.config.stash.setdefault(PARITY, [])


def pytest_terminal_summary(terminalreporter, config):
    rows = config.stash.get(PARITY, [])
    if rows:
        terminalreporter.write_line("\nmodel                 logits, worst absolute   gradients, worst relative norm")
    for model, logit, gradient, name in rows:
        terminalreporter.write_line(f"{model:20}  {logit:22.1e}   {gradient:.1e} ({name})")
