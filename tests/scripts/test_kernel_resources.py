"""scripts/kernel_resources.py: what ptxas says, read and shown; and no kernel of the build under test spills."""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/kernel_resources.py"
spec = importlib.util.spec_from_file_location("kernel_resources", SCRIPT)
resources = importlib.util.module_from_spec(spec)
spec.loader.exec_module(resources)

SAID = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN6moelab4cuda3oneEv' for 'sm_75'
ptxas info    : Function properties for _ZN6moelab4cuda3oneEv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem, 396 bytes cmem[0]
ptxas info    : Compile time = 3.210 ms
ptxas info    : Compiling entry function '_ZN6moelab4cuda3oneEv' for 'sm_90a'
ptxas info    : Function properties for _ZN6moelab4cuda3oneEv
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Function properties for helper
    24 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 396 bytes cmem[0]
ptxas info    : Compiling entry function '_Z3twov' for 'sm_90a'
ptxas info    : Function properties for _Z3twov
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers
"""


def test_what_ptxas_says_is_read():
    one, spilling, two = resources.kernels_in(SAID)
    assert one == ("_ZN6moelab4cuda3oneEv", "sm_75", 40, 0, 0, 0, 1024, "") and not one.spills()
    assert spilling == ("_ZN6moelab4cuda3oneEv", "sm_90a", 255, 40, 12, 8, 0, "") and spilling.spills()
    assert two == ("_Z3twov", "sm_90a", 8, 0, 0, 0, 0, "")


def test_the_table_has_a_row_a_kernel_and_a_column_an_architecture():
    kernels = [kernel._replace(file="a.cu") for kernel in resources.kernels_in(SAID)]
    lines = resources.table([*kernels, kernels[-1]._replace(file="b.cu", registers=9)]).splitlines()
    assert lines[0] == "| file | kernel: registers a thread | sm_75 | sm_90a | shared memory |"
    assert lines[2:5] == ["| a.cu | `one` | 40 | 255; 40 B stack; 12 B stored, 8 B loaded | 1024 B |",
                          "| a.cu | `two` | – | 8 | 0 B |", "| b.cu | `two` | – | 9 | 0 B |"]
    assert lines[-1] == "4 kernels, 1 of them spill registers."


def test_no_kernel_of_this_build_spills(tmp_path):
    program = os.environ.get("MOELAB_PROGRAM")
    build = pathlib.Path(program).parents[1] if program else ROOT / "build/dev"
    done = subprocess.run([sys.executable, SCRIPT, "--build", build, "--out", tmp_path / "table.md"], capture_output=True,
                          text=True, check=False)
    if "built without CUDA" in done.stderr:
        pytest.skip("a build without CUDA")
    assert done.returncode == 0, done.stdout + done.stderr
    table = (tmp_path / "table.md").read_text()
    assert table == done.stdout and table.endswith(" 0 of them spill registers.\n")
    kernels = {line.split("`")[1].split("<")[0] for line in table.splitlines() if ".cu | `" in line}
    assert {"adamw_kernel", "swiglu_backward_kernel", "token_kernel", "pack_kernel"} <= kernels


def test_mistakes_are_told(tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, "--build", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no compile_commands.json in it" in done.stderr
