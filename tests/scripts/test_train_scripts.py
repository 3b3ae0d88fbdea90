"""scripts/train_*.sh and the presets behind them: each trains a miniature under its budget, with what it promises."""

import os
import pathlib
import re
import shutil
import subprocess

import programs
import pytest
import yaml
from programs import expect_mistake

PROGRAM = programs.moelab()
SCRIPTS = programs.ROOT / "scripts"
MIB = 1 << 20

# At 1/64: MiB of budget, micro-batch, accumulation, sequence, layers, width, experts, products, recomputed blocks.
PROMISED = {
    "train_8gb": (128, 4, 4, 128, 12, 64, 4, "bf16", "full"),
    "train_12gb": (192, 8, 2, 128, 12, 64, 4, "bf16", "full"),
    "train_16gb": (256, 16, 1, 128, 12, 64, 4, "bf16", "full"),
    "train_24gb": (384, 32, 1, 128, 12, 64, 4, "bf16", "none"),
    "train_rtx3090": (384, 12, 4, 32, 14, 64, 8, "fp16", "none"),
    "train_rtx4090": (384, 16, 4, 64, 14, 64, 8, "fp16", "none"),
    "train_a100_40gb": (640, 8, 4, 64, 16, 96, 8, "bf16", "none"),
    "train_a100_80gb": (1280, 4, 8, 256, 24, 128, 8, "bf16", "full"),
    "train_h100_80gb": (1280, 6, 8, 512, 32, 128, 8, "bf16", "full"),
    "train_memory_optimized": (6e9 / 64 / MIB, 8, 2, 128, 12, 64, 4, "bf16", "full"),
    "train_distributed": (6e9 / 64 / MIB, 8, 2, 128, 12, 64, 4, "bf16", "full"),
}

# What a run profile changes, and the MiB that a rank of moe-nano's miniature stays below: 12.7 of bf16 weights and masters
# and 17.0 of moments are on the device where it says so, a half or a quarter of them where ranks share each matrix.
PROFILES = {
    "constrained": (10, {"activations": {"checkpoint": "full", "storage": "host"},
                         "placement": {"parameters": "host", "optimizer": "host"},
                         "train": {"tokens_per_device": 512, "micro_batch": 1},
                         "sample": {"share": 0.3}, "reference": {"placement": "device"},
                         "memory": {"dynamic_batch.enabled": True, "dynamic_batch.min": 1}}),
    "balanced": (40, {"activations": {"checkpoint": "full", "storage": "keep"},
                      "placement": {"parameters": "device", "optimizer": "device"},
                      "sample": {"share": 0.5},
                      "memory": {"dynamic_batch.enabled": True, "dynamic_batch.min": 1}}),
    "multi_device": (10, {"activations": {"checkpoint": "full", "storage": "host"},
                          "placement": {"parameters": "host", "optimizer": "host"},
                          "sample": {"share": 0.8},
                          "parallel": {"zero": 3, "tensor": 4, "pipeline": 1},
                          "memory": {"dynamic_batch.enabled": False}}),
    "nemo-memory-efficient": (27, {"activations": {"checkpoint": "every", "every": 4,
                                                   "pieces": ["norms", "expert_hidden"]},
                                   "placement": {"parameters": "device", "optimizer": "host"},
                                   "train": {"accumulation": 4}, "parallel": {"tensor": 2, "pipeline": 1}}),
    "nemo-large-model": (14, {"activations": {"checkpoint": "every", "every": 2, "storage": "host"},
                              "placement": {"parameters": "device", "optimizer": "host"},
                              "parallel": {"tensor": 4, "pipeline": 2}}),
}  # fmt: skip

QUICK = ["--device", "cpu", "--scale", "1/64", "train.steps=2", "run.threads=1"]
PICO = ["--device", "cpu", "--config", "moe-pico", "train.sequence=64", "train.steps=2", "eval.batches=1",
        "run.threads=1"]  # fmt: skip


@pytest.fixture(scope="module")
def shards(make_shards) -> pathlib.Path:
    return make_shards(60_000, 20_000)


def run(folder, command, **environment) -> subprocess.CompletedProcess:
    environment = {"MOELAB_PROGRAM": PROGRAM, **environment}
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([str(word) for word in command], cwd=folder, env=env, capture_output=True, text=True,
                          timeout=600)  # fmt: skip


def script(folder, name, *arguments, **environment) -> subprocess.CompletedProcess:
    return run(folder, [SCRIPTS / f"{name}.sh", *arguments], **environment)


def settings(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


def summary(done: subprocess.CompletedProcess, run_folder: pathlib.Path, steps: int = 2) -> dict:
    found = programs.summary(done, run_folder)
    assert found["status"] == "ok" and found["steps"] == steps
    assert 0 < found["peak_bytes"] <= found["memory_limit_bytes"]
    return found


@pytest.mark.parametrize("name", PROMISED)
def test_a_miniature_keeps_to_its_budget(name, shards, tmp_path):
    # gradients are as large after two micro-batches as after eight, and later steps hold what the first one does
    fewer = [f"train.accumulation={min(2, PROMISED[name][2])}", "train.steps=1"]
    done = script(tmp_path, name, *QUICK, "eval.batches=0", "checkpoint.keep=0", f"data.path={shards}", *fewer)
    found = summary(done, tmp_path / "runs" / f"{name}-scale-1-64", steps=1)
    assert found["memory_limit_bytes"] == int(PROMISED[name][0] * MIB)
    assert not (tmp_path / "runs" / f"{name}-scale-1-64" / "checkpoints").exists()


@pytest.mark.parametrize("name", PROMISED)
def test_a_script_sets_what_it_promises(name, tmp_path):
    once = ["--ranks", "1"] if name == "train_distributed" else []  # every rank prints
    s = settings(script(tmp_path, name, *once, "--scale", "1/64", "--print-config", "data.path=any"))
    assert (s["train"]["micro_batch"], s["train"]["accumulation"], s["train"]["sequence"], s["model"]["layers"],
            s["model"]["d_model"], s["model"]["experts"], s["precision"]["compute"],
            s["activations"]["checkpoint"]) == PROMISED[name][1:]  # fmt: skip
    assert (s["model"]["dispatch"], s["attention"]["kernel"]) == ("capacity", "flash")


def test_a_filled_miniature_runs(shards, tmp_path):
    """Filled by the full size's prediction for CUDA; the miniature shrinks everything but the number of rows."""
    done = script(tmp_path, "train_8gb", *QUICK, "--fill", "eval.batches=0", "checkpoint.keep=0", f"data.path={shards}",
                  "train.accumulation=1", "train.steps=1")  # fmt: skip
    found = summary(done, tmp_path / "runs/train_8gb-scale-1-64", steps=1)
    rows = int(re.search(r"filled: train\.micro_batch=(\d+); predicted to need .* of 8\.0 GiB, on RTX 4060", done.stderr)[1])
    assert rows > 40 and found["settings"]["train"]["micro_batch"] == rows
    assert found["peak_bytes"] > found["memory_limit_bytes"] / 2
    for wrong, named in ((["--config", "moe-pico", "--fill"], "memory.limit is not set"),
                         (["--config", "moe-nano", "--preset", "gpu-8gb", "--fill", "train.tokens_per_device=4096",
                           "train.micro_batch=1"], "train.tokens_per_device=4096")):  # fmt: skip
        expect_mistake(run(tmp_path, [PROGRAM, "estimate", *wrong]), "--fill", named)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_does_what_it_promises(profile, tmp_path):
    # what packs documents wants to know what ends them
    shards = programs.prepare_bytes(tmp_path, "the same words, time and again; " * 3000)
    below, promised = PROFILES[profile]
    axes = promised.get("parallel", {})
    ranks = axes.get("tensor", 1) * axes.get("pipeline", 1)
    start = [SCRIPTS / "ranks.sh", ranks] if ranks > 1 else []
    done = run(tmp_path, [*start, PROGRAM, "train", "--config", "moe-nano", "--preset", profile, *QUICK, "eval.batches=1",
                          "checkpoint.keep=0", "memory.limit=8GiB", f"data.path={shards}",
                          "run.name=profile"])  # fmt: skip
    found = summary(done, tmp_path / "runs/profile")
    assert found["memory_limit_bytes"] == 128 * MIB
    s = yaml.safe_load((tmp_path / "runs/profile/config.yaml").read_text())
    assert found["peak_bytes"] < below * MIB
    for group, values in promised.items():
        assert {key: s[group][key] for key in values} == values


def test_every_script_explains_itself(tmp_path):
    files = sorted(file.stem for file in SCRIPTS.glob("train_*.sh"))
    assert files == sorted([*PROMISED, "train_lib"])
    for name in PROMISED:
        done = script(tmp_path, name, "--help", MOELAB_PROGRAM="/nowhere")
        assert done.returncode == 0 and "Examples:" in done.stdout, name
        assert f"{name}.sh --device cpu --scale 1/64" in done.stdout and "Trains " in done.stdout


def test_arguments_of_the_memory_optimized_script(shards, tmp_path):
    given = [*PICO, "--batch_size", "2", "--grad_accum=3", "--monitor_memory", f"data.path={shards}"]
    s = settings(script(tmp_path, "train_memory_optimized", *given, "--print-config"))
    assert (s["model"]["preset"], s["train"]["micro_batch"], s["train"]["accumulation"]) == ("moe-pico", 2, 3)
    assert (s["monitor"]["every"], s["memory"]["limit"]) == (10, "6GB")
    summary(script(tmp_path, "train_memory_optimized", *given), tmp_path / "runs/train_memory_optimized")
    given[given.index("train.steps=2")] = "train.steps=3"
    again = script(tmp_path, "train_memory_optimized", *given, "--resume", "latest")
    assert again.returncode == 0 and "after step 2" in again.stdout, again
    for wrong, named in ((["--batch_size", "many"], "--batch_size many"), (["--grad_accum"], "--grad_accum"),
                         (["--batch_size=0"], "train.micro_batch"), (["--batch_sizes", "4"], "--batch_sizes")):  # fmt: skip
        expect_mistake(script(tmp_path, "train_memory_optimized", *wrong, f"data.path={shards}"), named)


def test_the_distributed_script_trains_on_ranks_that_divide_the_state(shards, tmp_path):
    """Two of this machine, then as torchrun would start them: as one of its ranks, which is refused --ranks."""
    given = [*PICO, "train.micro_batch=2", f"data.path={shards}"]
    found = summary(script(tmp_path, "train_distributed", "--ranks", "2", *given), tmp_path / "runs/train_distributed")
    assert len(found["ranks"]) == 2 and found["settings"]["parallel"]["zero"] == 3
    whole = summary(script(tmp_path, "train_distributed", "--ranks=1", *given, "run.name=one"), tmp_path / "runs/one")
    state = [sum(run["state_bytes"].values()) for run in (found, whole)]
    assert 0.45 < state[0] / state[1] < 0.55
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29871"}  # fmt: skip
    again = script(tmp_path, "train_distributed", *given, "run.name=torchrun", **torchrun)
    assert summary(again, tmp_path / "runs/torchrun")["settings"]["parallel"]["zero"] == 3
    for words, named, environment in ((["--ranks", "two"], "--ranks two", {}), (["--ranks"], "a number is expected", {}),
                                      (["--ranks=2"], "leave --ranks away", torchrun)):  # fmt: skip
        expect_mistake(script(tmp_path, "train_distributed", *words, *given, **environment), named)


def test_an_argument_replaces_what_the_script_sets(shards, tmp_path):
    arguments = ["--scale", "1/64", "--config=moe-pico", "--preset", "gpu-8gb", "run.name=mine", f"data.path={shards}",
                 "train.accumulation=3", "--print-config"]  # fmt: skip
    s = settings(script(tmp_path, "train_24gb", *arguments))
    assert (s["model"]["preset"], s["run"]["preset"], s["run"]["name"]) == ("moe-pico", "gpu-8gb", "mine")
    assert (s["data"]["path"], s["train"]["accumulation"]) == (str(shards), 3)
    (tmp_path / "own.yaml").write_text(f"data: {{path: {shards}}}\nmodel: {{preset: moe-pico}}\n")
    for config in (["--config", "own.yaml"], ["--config=own.yaml"]):
        s = settings(script(tmp_path, "train_8gb", *config, "--print-config"))
        assert (s["data"]["path"], s["model"]["preset"]) == (str(shards), "moe-pico")


def test_weights_in_front_of_a_script(shards, tmp_path):
    small = [*PICO, f"data.path={shards}", "train.micro_batch=2"]
    first = summary(script(tmp_path, "train_12gb", *small), tmp_path / "runs/train_12gb")
    still = [*small, "optim.lr=0", "optim.min_lr=0", "run.name=second"]
    weights = tmp_path / "runs/train_12gb/checkpoints/step-2"
    done = script(tmp_path, "train_12gb", *still, MODEL_PATH=str(weights))
    assert summary(done, tmp_path / "runs/second")["held_out_loss"] == first["held_out_loss"]
    # the weights say what shape the model has: moe-nano's budget and batch, moe-pico's shape
    done = script(tmp_path, "train_8gb", "--device", "cpu", f"data.path={shards}", "--print-config",
                  MODEL_PATH=str(tmp_path / "runs/train_12gb"))  # fmt: skip
    s = settings(done)
    assert (s["model"]["d_model"], s["model"]["vocab"], s["run"]["preset"]) == (128, 256, "gpu-8gb")
    expect_mistake(script(tmp_path, "train_12gb", *small, MODEL_PATH=str(tmp_path / "gone")), "gone")


def test_what_the_budget_cannot_hold(shards, tmp_path):
    large = ["--scale", "1/64", f"data.path={shards}", "model.d_expert=90112"]
    done = script(tmp_path, "train_8gb", *large)
    assert done.returncode == 3, done
    refusal, combination, words = done.stderr.splitlines()
    assert refusal.startswith("moelab: memory.limit=128MiB cannot hold") and "would do is memory.limit=" in refusal
    needs = re.search(r"fits on RTX 4060 needs ([0-9.]+) MiB", combination)
    assert needs and float(needs[1]) < 128, combination
    assert "placement.parameters=host" in words.split(), words
    assert not (tmp_path / "runs").exists()


def test_what_comes_first_is_named(shards, tmp_path):
    """In a clone that has neither a build nor data."""
    clone = tmp_path / "clone" / "scripts"
    clone.mkdir(parents=True)
    for name in ("lib.sh", "train_lib.sh", "train_8gb.sh"):
        shutil.copy(SCRIPTS / name, clone)
    command = [clone / "train_8gb.sh"]
    expect_mistake(run(tmp_path, command, MOELAB_PROGRAM=""), "scripts/quickstart.sh", "scripts/setup.sh")
    expect_mistake(run(tmp_path, command), "scripts/prepare_data.py --bytes --python-stdlib",
                   f"--out {tmp_path}/clone/data/python-stdlib", "data.path=DIR")  # fmt: skip
    expect_mistake(script(tmp_path, "train_8gb", f"data.path={tmp_path}/none"), "none", "scripts/prepare_data.py")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing():
    done = subprocess.run(["shellcheck", "-x", "-P", str(SCRIPTS), *map(str, SCRIPTS.glob("train_*.sh"))],
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stdout
