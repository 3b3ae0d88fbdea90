"""Memory: a training whose budget is drawn anew every few steps (tests/train/program/commands/test_random_budgets.cpp)."""
import pathlib
import re
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import ctest_tests  # noqa: E402

STEPS = 200  # with drawn budgets; as many again until it has grown back
SECONDS = 600


def run(build: pathlib.Path, seed: int, steps: int = STEPS) -> tuple[dict, list[str]]:
    """How many steps and changes of the micro-batch there were with budgets of that seed, and what went wrong."""
    test = ctest_tests.tests_of(build)["test_commands"]
    environment = ctest_tests.environment_of(test) | {"MOELAB_BUDGET_SEED": str(seed), "MOELAB_BUDGET_STEPS": str(steps)}
    command = [*test["command"], "--gtest_filter=RandomBudgetTest.*"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, errors="replace")
    except subprocess.TimeoutExpired:
        return {}, [f"seed {seed}: not done after {SECONDS} s"]
    said = re.search(r"^(\d+) steps, (\d+) changes, (\d+) refusals$", done.stdout, re.MULTILINE)
    counts = dict(zip(("steps", "changes", "refusals"), map(int, said.groups()), strict=True)) if said else {}
    failures = [] if done.returncode == 0 and said else [f"seed {seed}: exit code {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"]
    return counts, failures
