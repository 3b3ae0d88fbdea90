import pathlib

import pytest


@pytest.fixture(scope="session")
def corpus(make_shards) -> pathlib.Path:
    return make_shards(20_000, 2_000)
