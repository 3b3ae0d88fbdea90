"""Fixtures of all Python tests. Beside them, programs.py is found because pytest puts this folder on the path."""

import pathlib

import numpy as np
import pytest


@pytest.fixture(scope="session")
def make_shards(tmp_path_factory):
    """make_shards(TRAIN, HELD_OUT): a folder of so many token ids below 256, without a header, which moelab takes for
    bytes."""
    def make(train: int, held_out: int) -> pathlib.Path:
        folder = tmp_path_factory.mktemp("shards")
        ids = np.random.default_rng(1).integers(0, 256, train + held_out, dtype=np.uint16)
        ids[:train].tofile(folder / "train.bin")
        ids[train:].tofile(folder / "val.bin")
        return folder
    return make


@pytest.fixture
def drive(tmp_path) -> pathlib.Path:
    """An empty folder, for placement.nvme_path."""
    (tmp_path / "drive").mkdir()
    return tmp_path / "drive"
