"""The tests of a build folder, as ctest knows them: for tools that run one with other arguments."""
import json
import os
import pathlib
import subprocess


def tests_of(build: pathlib.Path) -> dict[str, dict]:
    """By name; each has its `command`, a list of words, and its `properties`."""
    said = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout
    return {test["name"]: test for test in json.loads(said)["tests"]}


def environment_of(test: dict) -> dict[str, str]:
    """This process's environment with what the test sets."""
    own = [entry for prop in test["properties"] if prop["name"] == "ENVIRONMENT" for entry in prop["value"]]
    return os.environ | dict(entry.split("=", 1) for entry in own)
