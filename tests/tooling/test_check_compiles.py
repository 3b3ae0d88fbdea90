"""check_compiles.py on small made-up trees: what a file lacks is found, whatever precedes it."""
import json
import pathlib
import subprocess
import sys

import check_compiles
import pytest

CHECK = pathlib.Path(check_compiles.__file__)

HEADERS = {
    "moe/a.h": "#pragma once\n#include <ATen/ATen.h>\ninline at::Tensor a() { return {}; }\n",
    "moe/b.h": '#pragma once\n#include "moe/a.h"\ninline at::Tensor b() { return a(); }\n',
    "moe/c.h": "#pragma once\n#include <vector>\ninline std::vector<int> c() { return {}; }\n",
}
SOURCES = {
    "moe/a.cpp": '#include "moe/a.h"\n\nnamespace {\nint helper() { return 1; }\n}\nint of_a() { return helper(); }\n',
    "moe/b.cpp": '#include "moe/c.h"\n\nint of_b() { return static_cast<int>(c().size()); }\n',
    "moe/d.cpp": "int of_d() { return 4; }\n",
}
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(made_up CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
include_directories(${CMAKE_SOURCE_DIR})
include_directories(SYSTEM ${CMAKE_SOURCE_DIR}/outside)
file(GLOB sources moe/*.cpp)
add_library(moe STATIC ${sources})
"""
PRESETS = {"version": 6, "configurePresets": [
    {"name": name, "generator": "Ninja", "binaryDir": f"${{sourceDir}}/build/{name}",
     "cacheVariables": {"CMAKE_UNITY_BUILD": "ON", "CMAKE_UNITY_BUILD_BATCH_SIZE": size, "CMAKE_CXX_FLAGS": "-std=c++20"}}
    for name, size in (("ci", "2"), ("quick", "3"))]}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {**HEADERS, **SOURCES, "CMakeLists.txt": PROJECT, "CMakePresets.json": json.dumps(PRESETS),
                       "outside/ATen/ATen.h": "#pragma once\nnamespace at { struct Tensor {}; }\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def complaints_about_headers(tree: pathlib.Path) -> list[str]:
    flags = ["c++", "-std=c++20", f"-I{tree}", "-isystem", f"{tree}/outside"]
    units = check_compiles.header_units({tree / "moe/a.cpp": flags}, {})
    return [complaint for complaint in (check_compiles.complaints_about(unit, None) for unit in units) if complaint]


def test_headers_that_compile_alone_pass(tree):
    assert complaints_about_headers(tree) == []


@pytest.mark.parametrize("text", [
    "#pragma once\ninline at::Tensor d() { return {}; }\n",  # LibTorch not included
    "#pragma once\n#include <ATen/ATen.h>\ninline at::Tensor d() { return a(); }\n",  # a.h not included
    "#pragma once\ninline std::vector<int> d() { return {}; }\n",
    "#include <vector>\ninline int d() { return 1; }\n",  # no guard
    '#pragma once\n#include "moe/none.h"\n',
    "#pragma once\n#include <ATen/none.h>\n",
])
def test_a_header_that_does_not_is_named(tree, text):
    (tree / "moe/d.h").write_text(text)
    (complaint,) = complaints_about_headers(tree)
    assert "moe/d.h alone does not compile" in complaint


@pytest.mark.parametrize("changes, named", [
    ({}, None),
    ({"moe/b.cpp": "int of_b() { return sizeof(at::Tensor); }\n"}, "moe/b.cpp alone"),  # a.cpp before it includes LibTorch
    ({"moe/d.cpp": "namespace {\nint helper() { return 2; }\n}\nint of_d() { return helper(); }\n"},
     "the quick preset's group of moe/a.cpp, moe/b.cpp, moe/d.cpp"),  # a.cpp has such a helper
    ({"moe/a.h": "inline at::Tensor a() { return {}; }\n", "moe/a.cpp": '#include <ATen/ATen.h>\n\n#include "moe/a.h"\n',
      "moe/b.h": "#pragma once\n"}, "moe/a.h alone"),
])
def test_sources_compile_alone_and_together(tree, changes, named):
    for name, text in changes.items():
        (tree / name).write_text(text)
    subprocess.run(["cmake", "--preset", "ci"], check=True, capture_output=True)
    done = subprocess.run([sys.executable, CHECK, "build/ci"], capture_output=True, text=True)
    assert done.returncode == (0 if named is None else 1), done.stdout + done.stderr
    if named is None:
        assert "6 headers, sources and groups of sources compile" in done.stdout
    else:
        assert done.stdout.count("does not compile") == 1 and f"{named} does not compile" in done.stdout
