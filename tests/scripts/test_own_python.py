"""A script that needs installed packages, started by a Python that has none, finds that of .venv."""
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["plot_run.py", "claims.py", "wandb_run.py"])
def test_a_script_finds_its_python(script):
    base = pathlib.Path(sys.base_prefix) / "bin/python3"  # without .venv's packages
    done = subprocess.run([base, "-s", ROOT / "scripts" / script, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and script in done.stdout, done.stderr
