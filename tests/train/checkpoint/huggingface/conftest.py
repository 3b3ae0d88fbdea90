"""The programs that these tests drive, and the table of how well the two implementations agree, printed after
the tests."""

import subprocess

import programs
import pytest
from programs import built

PARITY = pytest.StashKey[list]()


@pytest.fixture(scope="session")
def moelab():
    """Runs the program; returns what subprocess.run does."""
    program = programs.moelab()

    def run(*arguments):
        return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=300)

    return run


@pytest.fixture(scope="session")
def tool():
    """Runs parity_tool, which must succeed."""
    program = built("MOELAB_PARITY_TOOL", "tests/train/checkpoint/huggingface/parity_tool")

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
