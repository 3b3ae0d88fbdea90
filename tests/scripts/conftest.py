import pathlib
import sys

import pytest
import sweep_records as made

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import figures, records, sidecars  # noqa: E402


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> tuple[list[figures.Sweep], sidecars.Sidecars]:
    """The sweeps of a plan with every kind of part, and what lies beside their records."""
    folder = made.write_plan(tmp_path_factory.mktemp("plan"))
    return figures.sweeps(records.read_records([folder])[0]), sidecars.read_beside([folder])
