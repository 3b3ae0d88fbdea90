"""quickstart_plan.py: what it chooses for fast and slow machines, worked out by hand; what quickstart.sh builds."""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import quickstart_plan  # noqa: E402


@pytest.mark.parametrize("seconds, steps", [(0.1, 500), (0.48, 500), (0.6, 400), (2.3, 100), (60, 20)])
def test_training_takes_four_minutes_or_500_steps(seconds, steps):
    assert quickstart_plan.training_steps(seconds) == steps


# 24 runs of 10 steps and 3 s each in 240 s leave 0.70 s a step, 16 such runs 1.20 s, 16 of 6 steps 2.00 s.
@pytest.mark.parametrize("seconds, choice", [
    (0.1, ("moe-micro", 3, 10)), (0.69, ("moe-micro", 3, 10)),
    (0.71, ("moe-micro", 2, 10)), (1.19, ("moe-micro", 2, 10)),
    (1.21, ("moe-micro", 2, 6)), (1.99, ("moe-micro", 2, 6)),
    (2.01, ("moe-pico", 3, 10)), (30, ("moe-pico", 3, 10)),
])
def test_comparison_gives_up_rounds_steps_and_the_model_in_that_order(seconds, choice):
    assert quickstart_plan.comparison(seconds) == choice


def test_the_time_is_planned_for_the_cases_that_are_measured():
    cases = re.search(r"CASES=\((.*?)\)", (SCRIPTS / "quickstart.sh").read_text(), re.S)[1]
    assert len(shlex.split(cases)) + 1 == quickstart_plan.CASES


def test_reads_two_runs_and_prints_shell_assignments(tmp_path):
    for name, milliseconds in (("training", 1200.0), ("baseline", 2900.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps({"step_ms": {"median": milliseconds}}))
    done = subprocess.run([sys.executable, SCRIPTS / "quickstart_plan.py", tmp_path / "training", tmp_path / "baseline"],
                          capture_output=True, text=True, check=True)
    assert done.stdout == "steps=200 model=moe-pico rounds=3 case_steps=10\n"
    assert "1.20 s" in done.stderr and "200 steps, about 4.0 minutes" in done.stderr


@pytest.mark.parametrize("listed, cuda", [("GPU 0: NVIDIA L4", "AUTO"), ("No devices were found", "OFF")])
def test_the_quick_start_builds_cuda_where_there_is_a_gpu(tmp_path, listed, cuda):
    """As far as its build, in a clone whose set-up does nothing and whose cmake only says what it is asked for."""
    clone, tools = tmp_path / "clone", tmp_path / "tools"
    (clone / "scripts").mkdir(parents=True)
    tools.mkdir()
    for name in ("quickstart.sh", "lib.sh"):
        shutil.copy(SCRIPTS / name, clone / "scripts")
    (clone / "CMakePresets.json").write_text("{}")
    for path, text in ((clone / "scripts/setup.sh", "true"), (tools / "nvidia-smi", f"echo '{listed}'"),
                       (tools / "cmake", 'echo "asked for: $*"; exit 1')):
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    done = subprocess.run([clone / "scripts/quickstart.sh"], capture_output=True, text=True, timeout=30, check=False,
                          env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
    assert done.returncode != 0 and f"asked for: --preset quick -DMOELAB_CUDA={cuda}\n" in done.stderr, done
