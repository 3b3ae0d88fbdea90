"""The completion of command lines, in bash and zsh themselves."""

import pathlib
import re
import shutil
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
    for command in ("train", "plan", "generate", "qualify"):
        told = programs.run([programs.moelab(), command, "--help"], check=True).stdout
        first = [line.split()[0] for line in told.splitlines() if line.startswith("  -")]
        listed = [word for words in first for word in words.split(",") if word.startswith("--")]
        assert sorted(complete(script, f"moelab {command} -")) == sorted(listed)


# What stands on the command line of an interactive zsh after a line and a tab, for each line.
ZSH = r"""zmodload zsh/zpty
zpty shell zsh -f -i
wait_for() {
  local all more
  repeat 600; do
    zpty -r -t shell more && all+=$more
    [[ $all == *"$1"* ]] && print -r -- "$all" && return
    sleep 0.05
  done
  print -r -- "no $1 in: $all" >&2
  exit 1
}
zpty -w shell "PS1=; unset zle_bracketed_paste; stty -echo; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D
show() { print -r -- \"<\$BUFFER>shown\"; BUFFER= }; zle -N show; bindkey '^X' show; print rea''dy"
wait_for ready >/dev/null
shift
for line; do
  zpty -n -w shell "$line"$'\t\C-x'
  wait_for '>shown'
done
"""


def test_zsh_completes_as_bash_does(tmp_path):
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("no zsh")
    (tmp_path / "_moelab").write_text(programs.run([programs.moelab(), "completion", "zsh"], check=True).stdout)
    completed = {"moelab tra": "moelab train ", "moelab train --conf": "moelab train --config ",
                 "moelab train --resume l": "moelab train --resume latest ", "moelab train --help mod": "moelab train --help model ",
                 "moelab train --preset=gpu-8": "moelab train --preset=gpu-8gb ",
                 "moelab train model.dis": "moelab train model.dispatch=",
                 "moelab train model.dispatch=d": "moelab train model.dispatch=dropless ",
                 "moelab eval optim.in": "moelab eval optim.in"}  # fmt: skip
    done = programs.run([zsh, "-f", "-c", ZSH, "zsh", tmp_path, *completed])
    assert done.returncode == 0, done.stderr
    assert re.findall(r"<(.*?)>shown", done.stdout) == list(completed.values())


def test_install_puts_it_where_shells_look(script, tmp_path):
    folder = pathlib.Path(programs.moelab()).parents[1] / "train/program"
    subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={tmp_path}", "-P", folder / "cmake_install.cmake"], check=True,
                   capture_output=True)  # fmt: skip
    assert (tmp_path / "share/bash-completion/completions/moelab").read_text() == script.read_text()
    zsh = (tmp_path / "share/zsh/site-functions/_moelab").read_text()
    assert zsh.startswith("#compdef moelab\n") and "'model.dispatch') echo 'capacity dropless onehot'" in zsh
