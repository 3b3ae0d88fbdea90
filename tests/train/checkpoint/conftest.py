"""Where the programs that these tests drive are."""

import pytest
from programs import built


@pytest.fixture(scope="session")
def tool() -> str:
    return built("MOELAB_CHECKPOINT_TOOL", "tests/train/checkpoint/checkpoint_tool")


@pytest.fixture(scope="session")
def short_writes() -> str:
    return built("MOELAB_SHORT_WRITES", "tests/train/checkpoint/libcheckpoint_short_writes.so")
