"""Memory: a training whose budget is drawn anew every few steps (tests/train/program/commands/test_random_budgets.cpp)."""
import pathlib
import re
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import ctest_tests  # noqa: E402

STEPS = 200  # with drawn budgets; as many again until it has grown back
SECONDS = 600


def run(build: pathlib.Path, seed: int, steps: int = STEPS) -> tuple[dict, list[str]]:
    """How many steps and changes of the micro-batch there were with budgets of that seed, and what went wrong."""
    test = ctest_tests.tests_of(build)["test_commands"]
    command = [*test["command"], "--gtest_filter=RandomBudgetTest.*"]
    printed, wrong = ctest_tests.run(test, command, {"MOELAB_BUDGET_SEED": str(seed), "MOELAB_BUDGET_STEPS": str(steps)}, SECONDS)
    said = re.search(r"^(\d+) steps, (\d+) changes, (\d+) refusals$", printed, re.MULTILINE)
    counts = dict(zip(("steps", "changes", "refusals"), map(int, said.groups()), strict=True)) if said else {}
    if not said and not wrong:
        wrong = f"no counts: {printed[-2000:]}"
    return counts, [f"seed {seed}: {wrong}"] if wrong else []
