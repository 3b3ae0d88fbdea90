"""The header check on small made-up trees: what a header lacks is found, whatever precedes it."""
import json
import pathlib
import subprocess
import sys

import pytest

CHECK = pathlib.Path(__file__).with_name("check_headers.py")


def run_check(tree: pathlib.Path, headers: dict[str, str]) -> subprocess.CompletedProcess:
    (tree / "moe").mkdir()
    (tree / "outside/ATen").mkdir(parents=True)
    (tree / "outside/ATen/ATen.h").write_text("#pragma once\nnamespace at { struct Tensor {}; }\n")
    for name, text in headers.items():
        (tree / name).write_text(text)
    command = f"c++ -std=c++20 -I{tree} -isystem {tree}/outside -include gone.hxx -o a.o -c {tree}/moe/a.cpp"
    (tree / "commands.json").write_text(json.dumps([{"file": f"{tree}/moe/a.cpp", "command": command}]))
    return subprocess.run([sys.executable, CHECK, "commands.json"], cwd=tree, capture_output=True, text=True)


GOOD = {
    "moe/a.h": "#pragma once\n#include <ATen/ATen.h>\ninline at::Tensor a() { return {}; }\n",
    "moe/b.h": '#pragma once\n#include "moe/a.h"\ninline at::Tensor b() { return a(); }\n',
    "moe/c.h": "#pragma once\n#include <vector>\ninline std::vector<int> c() { return {}; }\n",
}


def test_headers_that_compile_alone_pass(tmp_path):
    done = run_check(tmp_path, GOOD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 headers" in done.stdout


@pytest.mark.parametrize("text", [
    "#pragma once\ninline at::Tensor d() { return {}; }\n",  # LibTorch not included
    "#pragma once\n#include <ATen/ATen.h>\ninline at::Tensor d() { return a(); }\n",  # a.h not included
    "#pragma once\ninline std::vector<int> d() { return {}; }\n",
    "#include <vector>\ninline int d() { return 1; }\n",  # no guard
    '#pragma once\n#include "moe/none.h"\n',
    "#pragma once\n#include <ATen/none.h>\n",
])
def test_a_header_that_does_not_is_named(tmp_path, text):
    done = run_check(tmp_path, GOOD | {"moe/d.h": text})
    assert done.returncode == 1
    assert "moe/d.h does not compile alone" in done.stdout and done.stdout.count("compile alone") == 1
