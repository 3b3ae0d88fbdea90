"""`moelab plan` as a program: exit codes, what it writes, and scripts/calibrate.py, which makes what it assumes."""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import calibrate  # noqa: E402
from report.records import Record, parse  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("MOELAB_PROGRAM", ""))
pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="MOELAB_PROGRAM names no program")


def moelab(*words) -> subprocess.CompletedProcess:
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=600, check=False)


def test_the_winner_trains_as_it_was_written(tmp_path):
    out = tmp_path / "plan.yaml"
    done = moelab("plan", "--memory", "100MB", "--model", "moe-pico", "--out", out, "train.sequence=64")
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^ +(\d+)  +([\d.]+ MiB)  +(\d+)  (.+)$", done.stdout, re.M)
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1)) and 1 <= len(rows) <= 10
    speeds = [int(row[2]) for row in rows]
    assert speeds == sorted(speeds, reverse=True)
    estimate = moelab("estimate", "--json", "--config", out)
    assert estimate.returncode == 0, estimate.stdout
    assert f"{json.loads(estimate.stdout)['peak_bytes'] / 2**20:.1f} MiB" == rows[0][1]
    assert moelab("train", "--config", out, "--print-config").stdout.splitlines() == [
        line for line in out.read_text().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("words", [
    ["--memory", "6GB", "--model", "moe-570m", "--device", "rtx3090", "train.micro_batch=8"],
    ["--memory", "10GB", "--model", "moe-740m", "--device", "h100", "train.micro_batch=16"],
    ["--memory", "500MB", "--model", "moe-micro", "--device", "h100"]])
def test_what_a_gpu_reserves_for_the_winner_fits(tmp_path, words):
    out = tmp_path / "plan.yaml"
    done = moelab("plan", *words, "--out", out)
    assert done.returncode == 0, done.stderr
    estimate = moelab("estimate", "--config", out)  # for a Hopper GPU, whose workspaces are the largest
    assert estimate.returncode == 0 and estimate.stdout.startswith("fits: needs "), estimate.stdout


def test_what_no_combination_fits_on_a_card_is_said_with_the_least_that_would():
    done = moelab("plan", "--preset", "gpu-8gb", "--model", "dense-405b")
    assert done.returncode == 3 and done.stdout == "", done
    assert re.match(r"moelab: nothing fits in 8.0 GiB; the smallest that would do is memory.limit=\d+ \(\d+", done.stderr)


def test_host_memory_is_part_of_the_answer():
    words = ["plan", "--preset", "gpu-8gb", "--model", "moe-pico", "placement.optimizer=host"]
    row = json.loads(moelab(*words, "--json").stdout)["rows"][0]
    *settings, data = shlex.split(row["command"])[2:]
    estimate = json.loads(moelab("estimate", "--json", *settings).stdout)
    assert data == "data.path=FOLDER" and row["host_bytes"] == estimate["host_bytes"] > 2**20
    said = re.search(r" of tensors, and ([\d.]+) MiB of host memory; ", moelab(*words).stdout)[1]
    assert float(said) == round(row["host_bytes"] / 2**20, 1)


@pytest.mark.parametrize("pinned, chosen", [(["parallel.tensor=1", "parallel.pipeline=1", "parallel.expert=1"], r"^  zero: [13]$"),
                                            (["parallel.zero=0", "parallel.pipeline=1", "parallel.expert=1"], r"^  tensor: 2$")])
def test_the_winner_trains_on_its_ranks(tmp_path, make_shards, pinned, chosen):
    """At a budget that whole state on each rank would pass, as the printed command says."""
    out = tmp_path / "plan.yaml"
    words = ["--ranks", "2", "--model", "moe-pico", "train.sequence=64", "train.micro_batch=1", "precision.compute=fp32",
             "optim.name=adamw"]
    estimate = moelab("estimate", "--json", "--config", "moe-pico", "--ranks", "2", *words[4:], "activations.checkpoint=full")
    whole, *_, divided = (stage["peak_bytes"] for stage in json.loads(estimate.stdout)["ranks"]["by_stage"])
    done = moelab("plan", "--device", "epyc_core", "--memory", (whole + divided) // 2, "--link", "1Gbit", "--out", out, *words,
                  "optim.in_backward=false", *pinned)
    assert done.returncode == 0, done.stderr
    assert re.search(r"a step of the first takes [\d.]+ ms: [\d.]+ ms computing, ", done.stdout)
    ranks, command = re.search(r"is in \S+: scripts/ranks.sh (\d+) \S*moelab (.+) data.path=FOLDER", done.stdout).groups()
    assert ranks == "2" and f"# scripts/ranks.sh 2 moelab train --config {out} " in out.read_text()
    assert re.search(chosen, out.read_text(), re.M), out.read_text()
    trained = subprocess.run([ROOT / "scripts/ranks.sh", ranks, PROGRAM, *command.split(), f"data.path={make_shards(20_000, 2_000)}",
                              f"run.dir={tmp_path / 'run'}", "train.steps=2", "eval.batches=0"],
                             capture_output=True, text=True, timeout=600, check=False)
    assert trained.returncode == 0, trained.stderr
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "ok"


def test_data_that_were_given_are_in_the_command_once():
    done = moelab("plan", "--memory", "8GB", "--model", "moe-pico", "--device", "cpu", "data.path=texts")
    assert done.returncode == 0 and re.findall(r"data\.path=\S+", done.stdout) == ["data.path=texts"], done.stdout


def test_a_slower_link_is_never_faster():
    words = ["--memory", "8GB", "--model", "moe-pico", "--ranks", "4", "--device", "epyc_core", "activations.checkpoint=none"]
    speeds = [int(re.search(r"^  1  .+ MiB +(\d+)  ", moelab("plan", *words, "--link", link).stdout, re.M)[1])
              for link in ("100Mbit", "1Gbit", "10Gbit", "nvlink4")]
    assert speeds == sorted(speeds) and speeds[0] < 0.8 * speeds[-1]


def test_the_fastest_that_does_not_fit_is_named_or_that_there_is_none():
    for memory, expected in (("8GB", "the fastest combination fits: more memory would not make this run faster"),
                             ("75MB", "the fastest that does not fit: ")):
        done = moelab("plan", "--memory", memory, "--model", "moe-pico", "--device", "cpu")
        assert done.returncode == 0 and expected in done.stdout, done.stdout


def test_no_plan_has_what_a_run_would_be_warned_of():
    """fp8 products: emulated on CPUs and older cards, slow on others."""
    for device in ("cpu", "a100", "h100"):
        done = moelab("plan", "--memory", "8GB", "--model", "moe-pico", "--device", device)
        assert done.returncode == 0 and not re.search(r"\bfp8\b", done.stdout), done.stdout


def answer(done) -> tuple[list[str], list[tuple[float, int, str]]]:
    """The words of the run that a plan proposes, and its table: MiB, tokens a second, techniques."""
    assert done.returncode == 0, done.stderr
    command = re.search(rf"^  (?:scripts/ranks.sh \d+ )?{PROGRAM} (train .+) data.path=FOLDER$", done.stdout, re.M)[1]
    rows = re.findall(r"^ +\d+  +([\d.]+) ([MG])iB  +(\d+)  (.+)$", done.stdout, re.M)
    return shlex.split(command), [(float(size) * (1024 if unit == "G" else 1), int(speed), names) for size, unit, speed, names in rows]


def test_a_card_is_answered_with_the_run_to_start(tmp_path):
    """Its memory and its batch, how full it gets, what larger would fit; each slower row of the front is smaller."""
    out = tmp_path / "plan.yaml"
    done = moelab("plan", "--preset", "gpu-8gb", "--model", "moe-pico", "--out", out, "train.sequence=64")
    words, rows = answer(done)
    assert "on RTX 4060 with 8.0 GiB; 16 sequences of 64 tokens a step" in done.stdout
    assert words[:6] == ["train", "--config", "moe-pico", "--preset", "gpu-8gb", "train.sequence=64"]
    assert re.search(r"the fastest that fits needs [\d.]+ MiB, \d+ % of the memory, for [\d.]+ MiB of tensors; \d+ tokens/s, "
                     "a guess from the datasheet:", done.stdout)
    found = re.search(r"what would fit too, one change at a time: train.micro_batch=(\d+), train.sequence=(\d+) or --config (\S+)\n",
                      done.stdout)
    settings = moelab(*words, "--print-config", "--device", "cuda")
    planned = [line for line in out.read_text().splitlines() if not line.startswith("#")]
    if settings.returncode == 0:  # this build has CUDA, and a GPU
        assert settings.stdout.splitlines() == planned
    assert "limit: 8GiB" in out.read_text() and "checkpoint: none" in out.read_text()
    sizes, speeds = [row[0] for row in rows], [row[1] for row in rows]
    assert all(later <= 0.951 * earlier for earlier, later in zip(sizes, sizes[1:])) and speeds == sorted(speeds, reverse=True)
    for larger in (f"train.micro_batch={found[1]}", f"train.sequence={found[2]}"):
        estimate = moelab("estimate", "--json", *words[1:], larger)
        assert estimate.returncode == 0 and json.loads(estimate.stdout)["peak_bytes"] > 0.85 * 8 * 2**30, larger
    assert moelab("estimate", "--json", *words[1:3], *words[3:], "--config", found[3]).returncode == 0


def test_the_readme_quotes_what_a_plan_prints():
    quoted = re.search(r"^\$ (\S+moelab) (plan .+)\n((?:.+\n)+?)```", (ROOT / "README.md").read_text(), re.M)
    assert moelab(*quoted[2].split()).stdout.replace(f" {PROGRAM} ", f" {quoted[1]} ").startswith(quoted[3])


@pytest.mark.parametrize("words, device", [
    (["--config", ROOT / "configs/card-8gb.yaml"], "on RTX 4060 with 8.0 GiB; "),
    (["--config", ROOT / "configs/budget.yaml"], "on this CPU with 300.0 MiB; "),
    (["--config", ROOT / "configs/budget.yaml", "--device", "rtx4090"], "on RTX 4090 with 300.0 MiB; "),
    (["--memory", "8GB", "--model", "moe-pico", "run.device=cpu"], "on this CPU with 8.0 GiB; "),
    (["--preset", "gpu-8gb", "--model", "moe-pico", "run.device=cpu"], "on this CPU with 8.0 GiB; ")])
def test_device_and_memory_are_what_the_words_say(words, device):
    done = moelab("plan", *words)
    assert done.returncode == 0 and device in done.stdout, done


@pytest.mark.parametrize("more", [[], ["train.sequence=2048", "optim.name=adamw"]])
def test_a_run_that_does_not_fit_is_told_what_a_plan_for_its_card_says(more):
    words = ["--config", "moe-740m", "--preset", "gpu-8gb", *more]
    refused = moelab("train", *words, "memory.recover=false")
    assert refused.returncode == 3 and refused.stdout.startswith("warning: gpu-8gb is for a GPU, such as RTX 4060, and none can be used")
    names, added = re.search(r"^the fastest combination (?:found )?that fits on RTX 4060 needs .+ [MG]iB, with (.+); add\n  (.+)$",
                             refused.stderr, re.M).groups()
    (first, *_) = json.loads(moelab("plan", *words, "memory.recover=false", "--json").stdout)["rows"]
    assert names.split(", ") == first["techniques"] and shlex.split(added) == first["added"]


def test_a_plan_and_an_estimate_of_it_state_the_same_bytes():
    done = moelab("plan", "--preset", "gpu-8gb", "--model", "moe-pico", "--json")
    (first, *_) = json.loads(done.stdout)["rows"]
    words = shlex.split(first["command"])[2:]
    estimate = moelab("estimate", "--json", *[word for word in words if word != "data.path=FOLDER"])
    found = json.loads(estimate.stdout)
    assert first["needed_bytes"] == found["reserved_bytes"] > first["tensor_bytes"]
    assert first["tensor_bytes"] == found["peak_bytes"] + found["gpu"]["workspace_bytes"]


@pytest.mark.parametrize("words, memory", [
    (["--device", "rtx4090"], "24.0 GiB"), (["--memory", "8GB"], "8.0 GiB"), (["--memory", "900MB"], "858.3 MiB"),
    (["--preset", "gpu-16gb", "--memory", "1GiB"], "1.0 GiB")])
def test_the_memory_is_the_card_s_or_what_is_given(words, memory):
    done = moelab("plan", "--model", "moe-pico", "train.sequence=64", *words)
    assert done.returncode == 0 and f" with {memory}; " in done.stdout, done


def test_what_a_plan_adds_is_what_its_command_adds(tmp_path):
    """On the CPU the command can be held against the file; each technique bought is one of the first row."""
    out = tmp_path / "plan.yaml"
    done = moelab("plan", "--memory", "60MiB", "--model", "moe-pico", "--out", out)
    words, rows = answer(done)
    assert moelab(*words, "--print-config", "--device", "cpu").stdout.splitlines() == [
        line for line in out.read_text().splitlines() if not line.startswith("#")]
    bought = re.search(r"what each technique of the first row buys\n((?:  .+\n)+)", done.stdout)[1]
    assert [re.split(r"  +", line.strip())[0] for line in bought.splitlines()] == rows[0][2].split(", ")
    assert "step times: of this machine, whose products of this model's sizes run at " in done.stdout


def test_a_gpu_that_cannot_hold_it_is_told_a_limit_that_does():
    words = ["--model", "moe-nano", "--device", "rtx4090", "train.micro_batch=8"]
    refused = moelab("plan", "--memory", "20MB", *words)
    assert refused.returncode == 3
    needed = int(re.search(r"memory\.limit=(\d+)", refused.stderr)[1])
    assert moelab("plan", "--memory", needed, *words).returncode == 0


def test_a_plan_that_cannot_fit_names_the_smallest_that_would_do(tmp_path):
    out = tmp_path / "plan.yaml"
    refused = moelab("plan", "--memory", "1MB", "--model", "moe-pico", "--out", out)
    assert refused.returncode == 3 and refused.stdout == "" and refused.stderr.count("\n") == 1
    assert not out.exists()
    needed = int(re.search(r"memory\.limit=(\d+)", refused.stderr)[1])
    assert moelab("plan", "--memory", needed, "--model", "moe-pico").returncode == 0
    assert moelab("plan", "--memory", int(0.9 * needed), "--model", "moe-pico").returncode == 3


@pytest.mark.parametrize("words, expected", [
    (["--memory", "8GB", "--device", "h10"], "did you mean h100?"),
    (["--memory", "much"], "memory.limit"),
    (["--memory", "8GB", "--model", "moe-nan"], "did you mean moe-nano?"),
    (["--memory", "8GB", "train.stepz=3"], "train.steps"),
    (["--memory", "8GB", "--model", "moe-pico", "--out", "/nowhere/plan.yaml"], "/nowhere/plan.yaml"),
    (["--model", "moe-pico"], "the memory is not known; give a card (--preset gpu-8gb"),
    (["--memory", "8GB", "--ranks", "2"], "--ranks 2 needs --link"),
    (["--memory", "8GB", "--link", "10Gbit"], "say how many with --ranks"),
    (["--memory", "8GB", "--ranks", "2", "--link", "10Gbitt"], "did you mean 10Gbit?"),
    (["--memory", "8GB", "--ranks", "2", "--link", "10GB"], "give a rate such as 25Gbit"),
    (["--memory", "8GB", "--ranks", "0", "--link", "10Gbit"], "--ranks"),
    (["--memory", "8GB", "--ranks", "2", "--link", "10Gbit", "parallel.data=2"], "--ranks counts"),
    (["--memory", "8GB", "--ranks", "2", "--link", "10Gbit", "parallel.expert=4"], "parallel.expert=4 does not divide the 2"),
    (["--memory", "8GB", "--ranks", "2", "--link", "10Gbit", "parallel.pipeline=3"], "does not divide the 2 ranks"),
    (["--memory", "8GB", "--ranks", "4", "--link", "nvlink4", "--machines", "2"], "--machines 2 needs --network"),
    (["--memory", "8GB", "--ranks", "4", "--link", "nvlink4", "--network", "10Gbit"], "say how many with --machines"),
    (["--memory", "8GB", "--ranks", "4", "--link", "nvlink4", "--machines", "3", "--network", "10Gbit"], "--machines 3 does not divide"),
])
def test_mistakes_are_named(words, expected):
    done = moelab("plan", *words)
    assert done.returncode == 2 and expected in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_what_is_given_stays(tmp_path):
    out = tmp_path / "plan.yaml"
    done = moelab("plan", "--memory", "8GB", "--model", "moe-pico", "--out", out, "precision.compute=fp32",
                  "optim.name=lion")
    words, rows = answer(done)
    assert not any("bf16" in text for text in [*words, *(names for _, _, names in rows)]) and "name: lion" in out.read_text()


def test_costs_are_found_again():
    """Times made of known costs: more cases than costs."""
    generator = np.random.default_rng(5)
    work = generator.uniform(1, 10, (40, 4))
    costs = np.array([3.0, 0.0, 0.5, 7.0])
    found = calibrate.fit(work, work @ costs, np.array([1.0, 1.0, 1.0, 1.0]))
    assert np.allclose(found, costs, rtol=0.02, atol=0.1)  # drawn a little towards the datasheet


def test_an_effort_that_no_case_has_keeps_its_datasheet_scaled():
    work = np.array([[1.0, 0.0], [2.0, 0.0], [5.0, 0.0]])
    assert np.allclose(calibrate.fit(work, 3 * work[:, 0], np.array([1.0, 10.0])), [3, 30], rtol=1e-3)


def record(case: str, milliseconds: float, steps: int, part: str = "core", **changes) -> Record:
    rows = [[step, 2048 * step, 5.0, milliseconds] for step in range(1, steps + 1)]
    return parse({"case": case, "techniques": [], "against": None, "model": "moe-pico", "round": 1,
                  "settings": {"train.steps": steps}, "settings_hash": case, "command": "", "commit": "abc", "dirty": False,
                  "machine": {}, "started": "", "status": "ok", "message": "", "summary": {}, "steps": rows, "memory": None,
                  "sweep": part, **changes})


def test_runs_that_are_warm_up_to_the_end_are_no_cases():
    """A preset's miniature of two steps, whose first makes up half of its time."""
    records = [record("long", 10, 8), record("preset", 500, 2, "presets"), record("long", 30, 8), record("short", 7, 4),
               record("failed", 9, 8, status="oom")]
    cases = calibrate.read_cases(records, PROGRAM)
    assert [(case.name, case.nanoseconds) for case in cases] == [
        ("moe-pico long (core)", 20e6), ("moe-pico short (core)", 7e6)]
    assert all(case.work["block_passes"] > 0 for case in cases)


def test_the_stated_error_is_that_of_cases_left_out():
    """The third case alone has the second term: without it its cost is the datasheet's, two thirds of what it takes."""
    cases = [calibrate.Case(name, time, {"a": a, "b": b})
             for name, time, a, b in (("one", 10, 10, 0), ("two", 20, 20, 0), ("three", 25, 10, 10))]
    entry, errors = calibrate.calibrate(cases, {"a": 1.0, "b": 1.0}, "a machine")
    assert errors == pytest.approx([0, 0, 20 / 25 - 1], abs=0.05)
    assert entry["error"] == {"median": pytest.approx(0, abs=0.05), "worst": pytest.approx(0.2, abs=0.05), "cases": 3}
    assert entry["cases"] == ["one", "two", "three"] and entry["measured"] == ["a", "b"]
    assert calibrate.spoken("cpu", entry, errors).splitlines()[1].endswith("%  three")


def test_no_cost_of_this_projects_machine_is_left_to_the_datasheet():
    """The committed sweep has every technique, so each term of a step was measured in some case."""
    committed = json.loads((ROOT / "train/predict/calibration.json").read_text())["devices"]
    assert sorted(committed["cpu"]["measured"]) == sorted(committed["cpu"]["nanoseconds"])


def test_the_committed_calibration_is_what_its_records_say(tmp_path):
    committed = json.loads((ROOT / "train/predict/calibration.json").read_text())
    for device, entry in committed["devices"].items():
        out = tmp_path / "calibration.json"
        of_sweep = [ROOT / "scripts/calibrate.py", *entry["records"], "--program", PROGRAM, "--out", out]
        of_ranks = [ROOT / "bench/ranks/step_times.py", "--calibrate", "--build", PROGRAM.resolve().parents[1], "--out",
                    *entry["records"], "--calibration", out]
        command = of_ranks if entry["records"][0].endswith("ranks.jsonl") else of_sweep
        done = subprocess.run([sys.executable, *command, "--device", device], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(out.read_text())["devices"][device] == entry
