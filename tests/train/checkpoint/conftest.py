"""Where the programs that these tests drive are."""

import shutil
import subprocess

import pytest
from crashes import Tool
from programs import built


@pytest.fixture(scope="session")
def tool() -> str:
    return built("MOELAB_CHECKPOINT_TOOL", "tests/train/checkpoint/checkpoint_tool")


@pytest.fixture(scope="session")
def short_writes() -> str:
    return built("MOELAB_SHORT_WRITES", "tests/train/checkpoint/libcheckpoint_short_writes.so")


@pytest.fixture
def server(tool):
    server = Tool(tool)
    yield server
    server.close()


@pytest.fixture
def strace():
    probe = ["strace", "-qq", "-e", "inject=getppid:retval=1", "true"]
    if not shutil.which("strace") or subprocess.run(probe, capture_output=True).returncode != 0:
        pytest.skip("strace is not installed, or may not trace here")
