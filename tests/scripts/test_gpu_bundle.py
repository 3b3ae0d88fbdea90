"""scripts/gpu_bundle.sh and scripts/gpu_check.sh, as far as they go without a GPU."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]
MIB = 1 << 20
WITHOUT_DEVICE = {"test_techniques", "test_settings", "test_tokenizer", "test_tradeoff", "test_tensorboard"}  # tests of texts and tables


def call(*words, cwd: pathlib.Path = ROOT, **variables: str) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    return subprocess.run(list(map(str, words)), cwd=cwd, env={**environment, "PYTHON": sys.executable, **variables},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> pathlib.Path:
    """The unpacked bundle of the build under test, in a folder of its own."""
    program = os.environ.get("MOELAB_PROGRAM")
    if not program:
        pytest.skip("MOELAB_PROGRAM names no program whose build could be packed")
    folder = tmp_path_factory.mktemp("gpu host")
    packed = call(ROOT / "scripts/gpu_bundle.sh", "--build", pathlib.Path(program).parents[1], "--out",
                  folder / "b.tar.gz")
    assert packed.returncode == 0, packed.stdout
    assert 1 * MIB < (folder / "b.tar.gz").stat().st_size < 60 * MIB
    assert call("tar", "xf", "b.tar.gz", cwd=folder).returncode == 0
    return folder / "moelab-gpu"


def programs(bundle: pathlib.Path, pattern: str) -> list[pathlib.Path]:
    return [path for path in bundle.glob(pattern) if path.is_file()]


def test_every_program_is_there_and_none_names_a_path_of_this_machine(bundle):
    assert {path.name for path in programs(bundle, "build/gpu/bin/*")} >= {"moelab", "bench_tradeoff"}
    tests = programs(bundle, "build/gpu/tests/**/test_*")
    built = pathlib.Path(os.environ["MOELAB_PROGRAM"]).parents[1] / "tests"
    assert {path.name for path in tests} == {path.name for path in built.rglob("test_*")
                                             if os.access(path, os.X_OK) and path.is_file() and path.suffix == ""
                                             and path.parent.name != "emulator"} - WITHOUT_DEVICE
    for program in [*tests, bundle / "build/gpu/bin/moelab"]:
        header = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
        assert "NEEDED" in header and "RUNPATH" not in header and "RPATH" not in header, program


def test_it_runs_from_another_folder(bundle):
    check = call("scripts/gpu_check.sh", "--device", "cpu", "--minutes", "4", "environment", "sanitizer", cwd=bundle)
    assert check.returncode == 0, check.stdout
    rows = [line.split("\t") for line in next((bundle / "results").glob("*/check.tsv")).read_text().splitlines()]
    assert [(name, outcome) for name, outcome, _ in rows] == [
        ("environment", "ok"), ("sanitizer", "skipped: there is nothing for it on a CPU")]
    assert (bundle / "data/python-stdlib/meta.json").is_file()
    libraries = f"{bundle}/build/gpu/lib:{torch.__path__[0]}/lib"
    tests = call(bundle / "build/gpu/tests/train/io/test_io", cwd=bundle, LD_LIBRARY_PATH=libraries)
    assert tests.returncode == 0 and "PASSED" in tests.stdout, tests.stdout


def test_a_step_that_fails_is_named_and_fails_the_check(bundle, tmp_path):
    broken = tmp_path / "moelab-gpu"
    shutil.copytree(bundle, broken)
    (broken / "build/gpu/bin/moelab").write_text("#!/bin/sh\nexit 1\n")
    check = call("scripts/gpu_check.sh", "--device", "cpu", "--out", tmp_path / "out", "environment", cwd=broken)
    assert check.returncode == 1 and "FAILED (exit 1): see environment.log" in check.stdout, check.stdout


def test_a_steps_programs_end_with_its_time(bundle, tmp_path):
    slow = tmp_path / "moelab-gpu"
    shutil.copytree(bundle, slow)
    (slow / "build/gpu/bin/bench_tradeoff").write_text("#!/bin/sh\nsleep 290\necho went on\n")
    start = time.monotonic()
    check = call("scripts/gpu_check.sh", "--device", "cpu", "--minutes", "1", "--out", tmp_path / "out", "sweep",
                 "sanitizer", cwd=slow)
    assert check.returncode == 1, check.stdout
    # half of the minute, less what came before
    assert re.search(r"FAILED: cut off after its (2\d|30) s; give --minutes more", check.stdout), check.stdout
    assert "went on" not in check.stdout and time.monotonic() - start < 100


LIBRARY = "libmoelab-absent.so.13"  # none that the loader knows by itself


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> pathlib.Path:
    """A checkout whose only program needs LIBRARY, and a Python whose torch lies in site/."""
    host = tmp_path_factory.mktemp("host")
    for folder in ("build/gpu/bin", "site/torch/lib", "data/python-stdlib"):
        (host / folder).mkdir(parents=True)
    (host / "train/predict").mkdir(parents=True)
    shutil.copy(ROOT / "train/predict/devices.json", host / "train/predict")
    shutil.copytree(ROOT / "scripts", host / "scripts")
    (host / "data/python-stdlib/meta.json").write_text("{}")
    (host / "site/torch/__init__.py").write_text("class version:\n  cuda = '13.0'\n__version__ = '2.11.0'\n")
    (host / "library.c").write_text("int here(void) { return 0; }")
    (host / "program.c").write_text('int puts(const char *), here(void);\nint main(int count, char **words) {\n'
                                    '  puts(words[1][0] == 45 ? "moelab 0.1.0 (commit abc)" : "[]");\n  return here();\n}\n')
    for words in (["-shared", f"-Wl,-soname,{LIBRARY}", "-o", LIBRARY, "library.c"],
                  ["-o", "build/gpu/bin/moelab", "program.c", LIBRARY]):
        subprocess.run(["gcc", *words], cwd=host, check=True)
    return host


def check_environment(host: pathlib.Path, **variables: str) -> subprocess.CompletedProcess:
    return call("scripts/gpu_check.sh", "--device", "cpu", "--out", host / "out", "environment", cwd=host,
                PYTHONPATH=str(host / "site"), **variables)


def test_a_missing_library_is_named(host):
    check = check_environment(host, CUDA_HOME=str(host))
    assert check.returncode == 2 and f"moelab: missing libraries: {LIBRARY} (they" in check.stdout, check.stdout


@pytest.mark.parametrize("folder", ["site/nvidia/cu13/lib", "site/nvidia/cuda_cupti/lib", "site/torch/lib",
                                    "cuda/lib64", "cuda/extras/CUPTI/lib64"])
def test_libraries_are_found_beside_torch_and_in_a_toolkit(host, folder):
    (host / folder).mkdir(parents=True, exist_ok=True)
    there = shutil.copy(host / LIBRARY, host / folder)
    check = check_environment(host, CUDA_HOME=str(host / "cuda"))
    os.remove(there)
    assert check.returncode == 0, check.stdout


def write_script(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def check_on_gpu(host: pathlib.Path, tmp_path: pathlib.Path, *steps: str) -> subprocess.CompletedProcess:
    """Where nvidia-smi lists a GPU named NVIDIA None."""
    write_script(tmp_path / "nvidia-smi", '[ "$1" = -L ] && echo "GPU 0: NVIDIA None" || echo NVIDIA None')
    there = shutil.copy(host / LIBRARY, host / "site/torch/lib")
    check = call("scripts/gpu_check.sh", *steps, cwd=host, PYTHONPATH=str(host / "site"),
                 PATH=f"{tmp_path}:{os.environ['PATH']}")
    os.remove(there)
    return check


def test_on_a_gpu_the_goals_end_its_page(host, tmp_path):
    check = check_on_gpu(host, tmp_path, "environment")
    assert check.returncode == 0 and (host / "results/nvidia-none/check.tsv").is_file(), check.stdout
    page = (host / "results/nvidia-none/page.md").read_text()
    assert check.stdout.endswith(page) and page.startswith("# moelab on NVIDIA None\n")
    goals = page[page.index("## Goals"):].splitlines()[3:-1]
    assert len(goals) == 5 and all(line.endswith("not measured") for line in goals), check.stdout
    assert not (host / "build/gpu/gpu_check.json").exists(), "what decides has not run"


def test_what_decides_is_noted_beside_the_build(host, tmp_path):
    programs = host / "build/gpu/tests"
    write_script(programs / "kernels/test_kernels", 'echo "$0 $*"')
    write_script(programs / "train/step/test_step", 'echo "$0 $*"')
    check = check_on_gpu(host, tmp_path, "operators", "steps")
    assert check.returncode == 0, check.stdout
    record = json.loads((host / "build/gpu/gpu_check.json").read_text())
    assert record | {"driver": "", "date": ""} == {
        "schema": 1, "gpu": "NVIDIA None", "driver": "", "build": "commit abc", "passed": True, "failed": "", "date": ""}
    assert f"{programs.relative_to(host)}/kernels/test_kernels --gtest_filter=*Cuda*:*Gpu*" in check.stdout
    write_script(programs / "kernels/test_kernels", 'echo "[  FAILED  ] RouterCuda.Agrees (3 ms)"; exit 1')
    check = check_on_gpu(host, tmp_path, "operators", "steps")
    record = json.loads((host / "build/gpu/gpu_check.json").read_text())
    assert check.returncode == 1 and (record["passed"], record["failed"]) == (False, "operators"), check.stdout
    page = (host / "results/nvidia-none/page.md").read_text()
    assert "1. **operators** FAILED (exit 1): see operators.log: RouterCuda.Agrees; an operator disagrees" in page
    assert "`run.device=cpu` trains without the GPU" in page


@pytest.mark.parametrize("words, message", [
    (["--minutes", "0"], "--minutes 0: a whole number of minutes, at least 1"),
    (["--device", "tpu"], "--device tpu: cuda or cpu"),
    (["everything"], "everything: unknown step; known: environment operators"),
    (["--out"], "--out: a value is missing"),
])
def test_mistakes_are_told(words, message):
    check = call(ROOT / "scripts/gpu_check.sh", *words)
    assert check.returncode == 2 and f"moelab: {message}" in check.stdout


def test_without_a_gpu_it_says_so():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    check = call(ROOT / "scripts/gpu_check.sh")
    assert check.returncode == 2 and "no GPU: nvidia-smi finds none on this machine" in check.stdout
