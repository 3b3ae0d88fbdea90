"""The tests of a build folder, as ctest knows them: for tools that run one with other arguments."""
import json
import os
import pathlib
import subprocess


def tests_of(build: pathlib.Path) -> dict[str, dict]:
    """By name; each has its `command`, a list of words, and its `properties`."""
    said = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout
    return {test["name"]: test for test in json.loads(said)["tests"]}


def run(test: dict, command: list, more: dict[str, str], seconds: float) -> tuple[str, str]:
    """Runs the command with the test's environment and `more`: what it printed, and what went wrong, nothing if it passed."""
    try:
        done = subprocess.run(command, env=environment_of(test) | more, capture_output=True, text=True, timeout=seconds,
                              check=False, errors="replace")
    except subprocess.TimeoutExpired:
        return "", f"not done after {seconds} s"
    failed = f"exit code {done.returncode}: {(done.stdout + done.stderr)[-2000:]}" if done.returncode else ""
    return done.stdout, failed


def environment_of(test: dict) -> dict[str, str]:
    """This process's environment with what the test sets."""
    own = [entry for prop in test["properties"] if prop["name"] == "ENVIRONMENT" for entry in prop["value"]]
    return os.environ | dict(entry.split("=", 1) for entry in own)
