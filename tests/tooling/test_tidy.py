"""tidy.py gives clang-tidy the flags of a build of GCC, and tells what it finds, in a made-up tree."""
import json
import pathlib
import shutil
import subprocess
import sys

import pytest

from tidy import clang_flags

TIDY = pathlib.Path(__file__).with_name("tidy.py")


def test_flags_are_those_that_clang_takes():
    command = "/usr/bin/c++ -DA=1 -I. -isystem lib/include -O2 -fopenmp -Winvalid-pch -include b/cmake_pch.hxx -o a.o -c a.cpp"
    assert clang_flags(command.split()) == "-DA=1 -I. -isystem lib/include -O2 -include cmake/pch.h".split()


@pytest.mark.skipif(not shutil.which("clang-tidy-14"), reason="clang-tidy-14 is not installed")
@pytest.mark.parametrize("line, code", [("  for (const S& s : all) n += s.n;", 0), ("  for (const S s : all) n += s.n;", 1)])
def test_what_is_found_is_told(tmp_path, line, code):
    shutil.copy(TIDY.parents[2] / ".clang-tidy", tmp_path)
    source = tmp_path / "a.cpp"
    source.write_text("#include <vector>\nstruct S { int n; std::vector<int> v; };\n"
                      f"int sum(const std::vector<S>& all) {{\n  int n = 0;\n{line}\n  return n;\n}}\n")
    entry = {"file": str(source), "command": f"/usr/bin/c++ -std=c++20 -fopenmp -o a.o -c {source}"}
    (tmp_path / "compile_commands.json").write_text(json.dumps([entry]))
    done = subprocess.run([sys.executable, TIDY, "--build", ".", "a.cpp"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("performance-for-range-copy" in done.stdout) == (code == 1)


def test_a_source_that_the_build_does_not_compile_is_named_and_left_out(tmp_path):
    (tmp_path / "compile_commands.json").write_text("[]")
    done = subprocess.run([sys.executable, TIDY, "--build", ".", "a.cpp"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "a.cpp: left out, the build does not compile it\n")
