"""Importing this first makes a script run by the Python of .venv, which has the packages that scripts/setup.sh installed,
unless another virtual environment is active or there is no .venv."""

import os
import pathlib
import sys

python = pathlib.Path(__file__).parents[1] / ".venv/bin/python"
if sys.prefix == sys.base_prefix and python.exists():
    os.execv(python, [python, *sys.argv])
