"""cmake/BuildCommit.cmake in a project of its own: one program that prints its commit, with train/program's template."""
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(one LANGUAGES CXX)
include(cmake/BuildCommit.cmake)
moelab_commit_source(${CMAKE_BINARY_DIR}/build_commit.cpp ${CMAKE_SOURCE_DIR}/train/program/record/build_commit.cpp.in)
add_executable(one train/main.cpp ${CMAKE_BINARY_DIR}/build_commit.cpp)
target_include_directories(one PRIVATE ${CMAKE_SOURCE_DIR})
"""
MAIN = """#include <iostream>
#include "train/program/record/build_commit.h"
int main() { std::cout << moelab::build_commit() << (moelab::build_modified() ? " modified" : ""); }
"""
NOT_BUILT = ("results/table", "tests/test_one.py", "scripts/one.sh", "docs/one.svg", "README.md")
BUILT = ("train/one.cpp", "kernels/one.cu", "tests/kernels/cases/one.h", "bench/one.yaml", "CMakePresets.json")


class Project:
    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def call(self, *command: str) -> str:
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def commit(self) -> str:
        self.call("git", "add", "-A")
        self.call("git", "-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "-m", "more")
        return self.call("git", "rev-parse", "--short=12", "HEAD")

    def build(self, *options: str) -> str:
        return self.call("ninja", "-C", "build", *options)

    def says(self) -> str:
        return self.call("build/one")


@pytest.fixture
def project(tmp_path) -> Project:
    made = Project(tmp_path)
    for name in ("cmake/BuildCommit.cmake", "cmake/write_commit.cmake", "train/program/record/build_commit.cpp.in",
                 "train/program/record/build_commit.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name, text in {"CMakeLists.txt": PROJECT, "train/main.cpp": MAIN, ".gitignore": "build\n"}.items():
        (tmp_path / name).write_text(text)
    for name in NOT_BUILT:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    made.call("git", "init", "-q")
    made.commit()
    made.call("cmake", "-G", "Ninja", "-B", "build")
    made.build()
    return made


def test_a_new_commit_compiles_one_file_and_configures_nothing(project):
    assert project.says() == project.call("git", "rev-parse", "--short=12", "HEAD")
    program = project.folder / "build/one"
    linked = program.stat().st_mtime_ns
    project.build()
    assert program.stat().st_mtime_ns == linked, "the same commit links nothing"
    (project.folder / "train/main.cpp").write_text(MAIN + "\n")
    project.build()
    commit = project.commit()
    steps = [line for line in project.build("-n").splitlines() if line.startswith("[")]
    assert [line.split(maxsplit=1)[1] for line in steps] == [
        "Asking git for the commit", "Building CXX object CMakeFiles/one.dir/build_commit.cpp.o",
        "Linking CXX executable one"]
    project.build()
    assert project.says() == commit


def test_a_change_that_is_not_committed_is_told(project):
    (project.folder / "notes.txt").write_text("untracked")
    for name in NOT_BUILT:
        (project.folder / name).write_text("changed")
    project.build()
    assert not project.says().endswith("modified")
    (project.folder / "train/main.cpp").write_text(MAIN + "// changed\n")
    project.build()
    assert project.says().endswith(" modified")
    commit = project.commit()
    project.build()
    assert project.says() == commit


@pytest.mark.parametrize("name", NOT_BUILT)
def test_a_commit_of_what_is_not_built_leaves_the_program_as_it_is(project, name):
    before = project.says()
    (project.folder / name).write_text("changed")
    assert project.commit() != before
    project.build()
    assert project.says() == before


@pytest.mark.parametrize("name", BUILT)
def test_a_commit_of_what_is_built_is_the_programs(project, name):
    (project.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (project.folder / name).write_text("changed")
    commit = project.commit()
    project.build()
    assert project.says() == commit


def test_outside_of_a_checkout_the_commit_is_unknown(project):
    shutil.rmtree(project.folder / ".git")
    project.build()
    assert project.says() == "unknown"
