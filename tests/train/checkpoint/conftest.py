"""Where the programs that these tests drive are: ctest says so; by hand, the newest build."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def built(variable: str, name: str) -> str:
    if variable in os.environ:
        return os.environ[variable]
    found = sorted(ROOT.glob(f"build/*/tests/train/checkpoint/{name}"), key=lambda path: path.stat().st_mtime)
    if not found:
        pytest.skip(f"{name} is not built")
    return str(found[-1])


@pytest.fixture(scope="session")
def tool() -> str:
    return built("MOELAB_CHECKPOINT_TOOL", "checkpoint_tool")


@pytest.fixture(scope="session")
def short_writes() -> str:
    return built("MOELAB_SHORT_WRITES", "libcheckpoint_short_writes.so")
