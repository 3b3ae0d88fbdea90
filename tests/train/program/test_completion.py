"""The completion of command lines, in bash itself."""

import pathlib
import subprocess

import programs
import pytest

COMPLETE = """source "$1"
COMP_LINE=$2 COMP_POINT=${#2}
_moelab
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="session")
def script(tmp_path_factory) -> pathlib.Path:
    file = tmp_path_factory.mktemp("completion") / "moelab"
    file.write_text(programs.run([programs.moelab(), "completion", "bash"], check=True).stdout)
    return file


def complete(script: pathlib.Path, line: str, *before: str) -> list[str]:
    done = programs.run(["bash", "-c", "\n".join([*before, COMPLETE]), "bash", script, line])
    assert done.returncode == 0 and done.stderr == "", done
    return done.stdout.split()


@pytest.mark.parametrize("line, expected", [
    ("moelab t", ["train", "techniques"]),
    ("moelab train --re", ["--resume"]),
    ("moelab train --ov", ["--overwrite"]),
    ("moelab eval --re", []),
    ("moelab train --resume ", ["latest", "auto"]),
    ("moelab train --resume=l", ["latest"]),
    ("moelab train --config moe-p", ["moe-pico"]),
    ("moelab train --preset gpu-1", ["gpu-12gb", "gpu-16gb"]),
    ("moelab train --device ", ["auto", "cpu", "cuda"]),
    ("moelab plan --config moe-p", ["moe-pico"]),
    ("moelab plan --device h", ["h100", "h200"]),
    ("moelab train --help rou", []),
    ("moelab train --help mo", ["model", "monitor"]),
    ("moelab train --config moe-pico model.dis", ["model.dispatch="]),
    ("moelab train model.dispatch=", ["capacity", "dropless", "onehot"]),
    ("moelab train --config moe-pico model.dispatch=d", ["dropless"]),
    ("moelab train memory.recover=", ["true", "false"]),
    ("moelab train run.preset=gpu-2", ["gpu-24gb"]),
    ("moelab train data.path=", []),  # files
    ("moelab estimate optim.in", ["optim.in_backward="]),
    ("moelab eval optim.in", []),  # eval has no use for it
    ("moelab completion ", ["bash", "zsh"]),
])  # fmt: skip
def test_words_are_completed(script, line, expected):
    assert complete(script, line) == expected


def test_where_the_equals_sign_is_part_of_a_word_it_stays(script):
    assert complete(script, "moelab train model.dispatch=d", "COMP_WORDBREAKS=' '") == ["model.dispatch=dropless"]


def test_all_settings_and_options_are_there(script):
    settings = (programs.ROOT / "tests/train/settings/options.txt").read_text().splitlines()
    assert complete(script, "moelab train ") == [line.split(" = ")[0] + "=" for line in settings]
    for command in ("train", "plan", "generate"):
        told = programs.run([programs.moelab(), command, "--help"], check=True).stdout
        first = [line.split()[0] for line in told.splitlines() if line.startswith("  -")]
        listed = [word for words in first for word in words.split(",") if word.startswith("--")]
        assert sorted(complete(script, f"moelab {command} -")) == sorted(listed)


def test_install_puts_it_where_shells_look(script, tmp_path):
    folder = pathlib.Path(programs.moelab()).parents[1] / "train/program"
    subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={tmp_path}", "-P", folder / "cmake_install.cmake"], check=True,
                   capture_output=True)  # fmt: skip
    assert (tmp_path / "share/bash-completion/completions/moelab").read_text() == script.read_text()
    zsh = (tmp_path / "share/zsh/site-functions/_moelab").read_text()
    assert zsh.startswith("#compdef moelab\n") and "'model.dispatch') echo 'capacity dropless onehot'" in zsh
