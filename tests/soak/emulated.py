"""The emulator's tests (tests/emulator) with seeds that no earlier run tried. Streams: copies, placement and graphs, with all work
late and in an order that the seed draws. Races: every kernel, its blocks and threads in an order that the seed draws."""
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import ctest_tests  # noqa: E402

PREFIXES = {"streams": "test_streams_emulated_", "races": "test_races_"}
ROUNDS = {"streams": 5, "races": 1}  # of one process: a seed each
SECONDS = 900


def tests_of(build: pathlib.Path, part: str) -> dict[str, dict]:
    """The tests of a build folder, by what they test."""
    prefix = PREFIXES[part]
    return {name.removeprefix(prefix): test for name, test in ctest_tests.tests_of(build).items() if name.startswith(prefix)}


def first_seed(test: dict) -> int:
    """The first that a run of the tests does not try."""
    return 1 + next((int(word.split("=")[1]) for word in test["command"] if word.startswith("--gtest_repeat=")), 1)


def run(test: dict, first: int, rounds: int) -> tuple[dict, list[str]]:
    """Runs a test with the seeds from `first` on: how many seeds were tried, and what went wrong."""
    command = [word for word in test["command"] if not word.startswith("--gtest_repeat")] + [f"--gtest_repeat={rounds}", "--gtest_fail_fast"]
    _, wrong = ctest_tests.run(test, command, {"MOELAB_EMULATOR_SEED": str(first)}, SECONDS)
    return {"seeds": rounds}, [f"seeds from {first} on: {wrong}"] if wrong else []
