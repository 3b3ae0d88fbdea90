"""Where the programs that the Python tests drive are: ctest says so; by hand, the newest build's."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def built(variable: str, path: str) -> str:
    """`path` within a build's folder, unless the environment names another file; skips what asks when there is none."""
    if variable in os.environ:
        return os.environ[variable]
    found = sorted(ROOT.glob(f"build/*/{path}"), key=lambda file: file.stat().st_mtime)
    if not found:
        pytest.skip(f"{path} is not built", allow_module_level=True)
    return str(found[-1])


def moelab() -> str:
    return built("MOELAB_PROGRAM", "bin/moelab")
