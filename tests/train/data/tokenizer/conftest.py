"""The program that these tests drive: ctest says where it is; by hand, the newest build."""

import os
import pathlib
import struct
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[4]


def find_tool():
    if "MOELAB_TOKENIZER_TOOL" in os.environ:
        return os.environ["MOELAB_TOKENIZER_TOOL"]
    found = sorted(ROOT.glob("build/*/tests/train/data/tokenizer/tokenizer_tool"),
                   key=lambda path: path.stat().st_mtime)
    if not found:
        pytest.skip("tokenizer_tool is not built")
    return found[-1]


@pytest.fixture(scope="session")
def ask():
    """ask(mode, path or None, messages): the tool's answer to each message, all as bytes."""
    tool = find_tool()

    def run(mode, path, messages):
        given = b"".join(struct.pack("<Q", len(message)) + message for message in messages)
        done = subprocess.run([tool, mode, *([path] if path else [])], input=given, capture_output=True,
                              timeout=120)
        assert done.returncode == 0, done.stderr.decode()
        answers, at = [], 0
        while at < len(done.stdout):
            (size,) = struct.unpack_from("<Q", done.stdout, at)
            answers.append(done.stdout[at + 8:at + 8 + size])
            at += 8 + size
        assert len(answers) == len(messages)
        return answers

    return run
