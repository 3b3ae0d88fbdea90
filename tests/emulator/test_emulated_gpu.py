"""The program as a user with a GPU has it: moelab on the emulated GPU (runtime.cpp), of which capability, driver and the
build's architectures can be chosen."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import programs
import pytest
import yaml

EMULATED = programs.built("MOELAB_EMULATED", "tests/emulator/moelab_emulated")
TINY = ["--config", "moe-pico", "model.layers=1", "model.d_model=32", "model.heads=2", "model.d_expert=32",
        "train.sequence=16", "train.micro_batch=1", "train.steps=1", "eval.batches=0", "checkpoint.keep=0",
        "run.threads=1"]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> None:
    """A user's cache of its own: what kernels qualified there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def emulated(*words, program=EMULATED, **gpu: str):
    """Runs the program; gpu: MOELAB_EMULATOR_* variables, in small letters."""
    chosen = {f"MOELAB_EMULATOR_{name.upper()}": value for name, value in gpu.items()}
    return programs.run([program, *words], env={**os.environ, **chosen})


def chosen(*words, **gpu: str) -> tuple[str, str]:
    """The device that a training would have, and what is said of that."""
    done = emulated("train", *TINY, *words, "--print-config", **gpu)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)["run"]["device"], done.stderr


@pytest.mark.parametrize("capability", ["8.0", "8.6", "8.9", "9.0", "10.0", "12.0"])
def test_auto_takes_the_gpu_that_the_build_has_code_for(capability):
    device, said = chosen(capability=capability)
    assert device == "cuda" and said.count("\n") == 1
    assert said.startswith("emulator: moelab's kernels are unproved on this GPU"), said
    assert "scripts/gpu_check.sh" in said and "run.device=cpu" in said


def test_a_gpu_that_cannot_be_used_is_refused_in_one_line(tmp_path):
    wanted = ["train", *TINY, "run.device=cuda", f"data.path={tmp_path}"]
    programs.expect_mistake(emulated(*wanted, architectures="90a", capability="8.9"),
                            "run.device=cuda: emulator has compute capability 8.9, and this build has kernels for 90a alone",
                            "-DMOELAB_CUDA_ARCHITECTURES=native", "train with run.device=cpu")
    programs.expect_mistake(emulated(*wanted, driver="12.8"),
                            "run.device=cuda: the NVIDIA driver serves CUDA 12.8, and this build needs CUDA 13.",
                            "install driver 580 or newer, or train with run.device=cpu")
    programs.expect_mistake(emulated(*wanted, driver="0"), "run.device=cuda: there is no NVIDIA driver")


def test_auto_says_why_it_leaves_a_gpu_alone():
    assert chosen(driver="0") == ("cpu", "")
    device, said = chosen(driver="12.8")
    assert device == "cpu" and said.startswith("the GPU is not used: the NVIDIA driver serves CUDA 12.8"), said
    device, said = chosen(architectures="90a", capability="10.0")
    assert device == "cpu" and said.startswith("the GPU is not used: emulator has compute capability 10.0"), said
    assert chosen("run.device=cpu", "memory.cuda_graphs=step", "model.dispatch=capacity") == ("cpu", "")


@pytest.fixture(scope="module")
def shards(make_shards) -> pathlib.Path:
    return make_shards(20_000, 2_000)


def test_training_and_its_first_line(shards, tmp_path):
    """Until its first step: a run's end times products that take this GPU long."""
    command = [EMULATED, "train", *TINY, f"data.path={shards}", f"run.dir={tmp_path}/run"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                           env={**os.environ, "MOELAB_EMULATOR_CAPABILITY": "8.9"})  # fmt: skip
    first, _, device, memory, kernels, step = (run.stdout.readline() for _ in range(6))
    run.kill()
    run.communicate()
    assert first.startswith("emulator: moelab's kernels are unproved on this GPU"), first
    assert kernels.startswith("kernels: combine_rows packed"), kernels
    assert device.startswith("device cuda:0") and step.startswith("[Step 1/1]"), (device, step)
    # predicted for this GPU: Ada's two workspaces of 8.125 MiB
    peak = float(re.search(r"predicted peak (\S+) MiB", memory)[1])
    assert 16.25 < peak < 17, memory
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["run"]["device"] == "cuda"


def test_a_kernel_that_fails_says_how_to_go_on(shards, tmp_path):
    done = emulated("train", *TINY, f"data.path={shards}", f"run.dir={tmp_path}/run", fails="20")
    assert done.returncode == 1 and "moelab: the GPU failed: CUDA error" in done.stderr, done.stderr
    assert done.stderr.rstrip().splitlines()[-1].startswith(
        "moelab: scripts/gpu_check.sh finds the kernel that fails; run.device=cpu goes on without the GPU")
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "error"


def test_the_record_of_a_check_lies_beside_the_build(tmp_path):
    (tmp_path / "bin").mkdir()
    program = shutil.copy(EMULATED, tmp_path / "bin/moelab")
    version = emulated("--version", program=program).stdout
    driver = pathlib.Path("/proc/driver/nvidia/version")  # empty unless this machine has one
    release = re.search(r" (\d[\d.]*\.[\d.]*) ", driver.read_text()) if driver.exists() else None
    record = {"schema": 1, "gpu": "emulator", "driver": release[1] if release else "",
              "build": version[version.index("(") + 1:version.index(")")], "passed": True, "failed": "",
              "date": "2026-11-24"}  # fmt: skip

    def said_with(**changes) -> tuple[str, str]:
        (tmp_path / "gpu_check.json").write_text(json.dumps(record | changes))
        done = emulated("train", *TINY, "--print-config", program=program)
        return yaml.safe_load(done.stdout)["run"]["device"], done.stderr

    assert said_with() == ("cuda", "emulator: scripts/gpu_check.sh passed here on 2026-11-24\n")
    device, said = said_with(passed=False, failed="operators")
    assert device == "cpu" and said.startswith("the GPU is not used: scripts/gpu_check.sh failed on it (operators)")
    assert "unproved on this GPU" in said_with(gpu="another GPU")[1]
