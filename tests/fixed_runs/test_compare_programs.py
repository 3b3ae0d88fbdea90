"""compare_programs.py on two of its runs: a program equals itself, and differs from one that is told something else."""

import pathlib
import stat
import subprocess
import sys

import programs

TOOL = pathlib.Path(__file__).with_name("compare_programs.py")
RUNS = ("steps in backward, Lion", "resumed*")


def compared(before, after) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, TOOL, before, after, *RUNS], capture_output=True, text=True, timeout=600)


def told(folder: pathlib.Path, setting: str) -> pathlib.Path:
    """A program that is moelab with one more setting."""
    program = folder / "moelab"
    program.write_text(f'#!/bin/sh\nexec {programs.moelab()} "$@" {setting}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_a_program_equals_itself():
    done = compared(programs.moelab(), programs.moelab())
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["same", "same"]


def test_a_smaller_clip_differs_where_it_clips(tmp_path):
    done = compared(programs.moelab(), told(tmp_path, "optim.clip=0.25"))
    assert done.returncode == 1, done
    # the gradients of one run are clipped harder, those of the other less: the first loss after the first update differs
    assert done.stdout.count("differs ") == 2 and done.stdout.count(" loss: ") == 2, done.stdout


def test_a_setting_that_changes_bytes_alone_differs(tmp_path):
    done = compared(programs.moelab(), told(tmp_path, "activations.checkpoint=full"))
    assert done.returncode == 1, done
    assert "_bytes: " in done.stdout and " loss: " not in done.stdout, done.stdout


def test_a_program_that_is_not_there():
    done = compared(programs.moelab(), "/nowhere/moelab")
    assert done.returncode == 2 and "/nowhere/moelab: no such program" in done.stderr, done
