"""tidy.py gives clang-tidy the flags of a build of GCC, and tells what it finds, in a made-up tree."""
import json
import shutil
import subprocess
import sys

import pytest
import tidy


def test_flags_are_those_that_clang_takes():
    command = "/usr/bin/c++ -DA=1 -I. -isystem lib/include -O2 -fopenmp -Winvalid-pch -include b/cmake_pch.hxx -o a.o -c a.cpp"
    expected = f"-DA=1 -I. -isystem lib/include -O2 -include {tidy.ROOT}/cmake/pch.h"
    assert tidy.clang_flags(command.split()) == tuple(expected.split())


@pytest.fixture
def check(tmp_path, monkeypatch, capfd):
    """Checks files of a made-up tree whose build compiles what compile_commands.json says: the exit code and what is printed."""
    def checked(commands, *files):
        (tmp_path / "compile_commands.json").write_text(json.dumps(commands))
        monkeypatch.setattr(sys, "argv", ["tidy.py", "--build", str(tmp_path), *files])
        return tidy.main(), capfd.readouterr().out

    shutil.copy(tidy.ROOT / ".clang-tidy", tmp_path)
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    return checked


def source(folder, name, loop):
    """A source that adds up, in a folder beside the build's; its entry in compile_commands.json."""
    file = folder / "kernels" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("#include <vector>\nstruct S { int n; std::vector<int> v; };\n"
                    f"int sum(const std::vector<S>& all) {{\n  int n = 0;\n  {loop}\n  return n;\n}}\n")
    return {"file": str(file), "command": f"/usr/bin/c++ -std=c++20 -fopenmp -o a.o -c {file}"}


GOOD, BAD = "for (const S& s : all) n += s.n;", "for (const S s : all) n += s.n;"


# Both files define S and sum: they are checked together first, then apart.
@pytest.mark.parametrize("loop, code", [(GOOD, 0), (BAD, 1)])
def test_what_is_found_is_told(tmp_path, check, loop, code):
    subprocess.run("git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m a", shell=True, check=True)
    found, out = check([source(tmp_path, "a.cpp", GOOD), source(tmp_path, "b.cpp", loop)], "--store", "page.md")
    assert found == code, out
    assert ("kernels/b.cpp:5:" in out and "performance-for-range-copy" in out) == (code == 1)
    assert (tmp_path / "page.md").exists() == (code == 0)


def test_a_name_of_a_header_may_be_another_one_of_a_source(tmp_path, check):
    (tmp_path / "s.h").write_text("#pragma once\nnamespace n { struct S {}; inline int f(S) { return 0; } }\n")
    commands = [source(tmp_path, name, GOOD) for name in ("a.cpp", "b.cpp")]
    (tmp_path / "kernels/a.cpp").write_text("namespace n { namespace { struct S { int k; }; } int a(S s) { return s.k; } }\n")
    (tmp_path / "kernels/b.cpp").write_text(f'#include "{tmp_path}/s.h"\nint b() {{ return n::f({{}}); }}\n')
    assert check(commands) == (0, "")


def test_what_was_clean_is_checked_again_only_when_something_that_a_check_reads_changes(tmp_path, check, monkeypatch):
    def checked_again(commands):
        seen.clear()
        assert check(commands)[0] == 0
        return sorted(file.name for file in seen)

    seen, header = [], tmp_path / "s.h"
    header.write_text("struct S { int n; };\n")
    commands = [source(tmp_path, "a.cpp", GOOD), source(tmp_path, "b.cpp", GOOD), source(tmp_path, "c.cpp", GOOD)]
    included = {tmp_path / "kernels/a.cpp": {header}, tmp_path / "kernels/b.cpp": set()}  # c.cpp was not compiled yet
    monkeypatch.setattr(tidy, "headers_of_sources", lambda build: included)
    monkeypatch.setattr(tidy, "check", lambda files, flags: seen.extend(files) or "")
    assert checked_again(commands) == ["a.cpp", "b.cpp", "c.cpp"]
    assert checked_again(commands) == ["c.cpp"]
    header.write_text("struct S { long n; };\n")
    tidy.bytes_of.cache_clear()
    assert checked_again(commands) == ["a.cpp", "c.cpp"]
    commands[1]["command"] += " -DB"
    assert checked_again(commands) == ["b.cpp", "c.cpp"]


def test_a_finding_is_told_each_time(tmp_path, check, monkeypatch):
    commands = [source(tmp_path, "a.cpp", BAD)]
    monkeypatch.setattr(tidy, "headers_of_sources", lambda build: {tmp_path / "kernels/a.cpp": set()})
    assert [check(commands)[0] for _ in range(2)] == [1, 1]


def test_a_source_that_the_build_does_not_compile_is_named_and_left_out(check):
    assert check([], "a.cpp") == (0, "a.cpp: left out, the build does not compile it\n")
