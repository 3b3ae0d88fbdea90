"""The harness, the program, and sweeps of a stand-in for the program."""
import sys

import programs
import pytest
from sweeps import FAKE, Sweep


@pytest.fixture(scope="session")
def harness() -> str:
    return programs.built("MOELAB_TRADEOFF", "bin/bench_tradeoff")


@pytest.fixture(scope="session")
def moelab() -> str:
    return programs.moelab()


@pytest.fixture
def fake(harness, tmp_path):
    """fake({NAME: "hangs"}, …) is a sweep of a program that does so."""
    def make(named: dict | None = None, answers: dict | None = None, version: str = "moelab 0.0.0 (commit c0de)",
             **does: str) -> Sweep:
        program = tmp_path / "fake"
        program.write_text(FAKE.format(python=sys.executable, calls=str(tmp_path / "calls"), does=does | (named or {}),
                                       answers=answers or {}, version=version))
        program.chmod(0o755)
        return Sweep(harness, program, tmp_path)
    return make
