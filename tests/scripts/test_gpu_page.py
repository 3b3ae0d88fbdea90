"""scripts/gpu_page.py on records as scripts/gpu_check.sh leaves them."""
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
COSTS = json.loads((ROOT / "train/predict/devices.json").read_text())["devices"]["h100"]["nanoseconds"]
MIB = 1 << 20


def write(folder: pathlib.Path, steps, runs=(), kernels=(), name="NVIDIA H100 80GB HBM3") -> str:
    """The page of these records. runs: (name, predicted ms, measured ms, predicted MiB, measured MiB)."""
    machine = {"name": name, "driver": "580.65.06", "build": "commit abc", "device": "cuda", "minutes": 30,
               "date": "2026-11-24"}  # fmt: skip
    (folder / "machine.json").write_text(json.dumps(machine))
    (folder / "check.tsv").write_text("".join(f"{step}\t{outcome}\t7\n" for step, outcome in steps))
    (folder / "kernels.json").write_text(json.dumps({"benchmarks": list(kernels)}))
    for run, predicted, measured, expected, held in runs:
        amount = 1e6 * predicted / COSTS["row_bytes"]
        estimate = {"gpu": {"workspace_bytes": 64 * MIB}, "peak_bytes": (expected - 64) * MIB, "step_work": {"row_bytes": amount}}
        (folder / f"{run}-estimate.json").write_text(json.dumps(estimate))
        summary = {"status": "ok", "step_ms": {"median": measured}, "peak_bytes": held * MIB}
        (folder / f"{run}.json").write_text(json.dumps(summary))
    done = subprocess.run([sys.executable, ROOT / "scripts/gpu_page.py", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == (folder / "page.md").read_text(), done.stderr
    return done.stdout


def look_at(page: str) -> list[str]:
    part = page[page.index("## What to look at first"):page.index("## What ran")]
    return [line for line in part.splitlines() if line[:1].isdigit()]


def test_nothing_to_look_at(tmp_path):
    page = write(tmp_path, [("operators", "ok"), ("steps", "ok")], [("fp32", 10, 12, 1000, 1010)])
    assert look_at(page) == ["1. nothing: what ran agrees with its reference and with what was predicted"]
    assert "| fp32 | 10.0 | 12.0 | 1.20 x | 1000.00 MiB | 1010.00 MiB | +1.0% |" in page
    assert "| operators | ok | 7 |" in page and "H100 SXM by datasheet" in page and "## Goals" in page
    assert "2026-11-24, build commit abc, driver 580.65.06; `scripts/gpu_check.sh --minutes 30`." in page
    assert "run.device=cpu" not in page


def test_what_decides_comes_first_then_memory_then_speed(tmp_path):
    (tmp_path / "operators.log").write_text("[  FAILED  ] DispatchCuda.Agrees (4 ms)\n[  FAILED  ] DispatchCuda.Agrees\n")
    runs = [("slow", 10, 20, 1000, 1000), ("slower", 10, 40, 1000, 1000), ("as_said", 10, 12.4, 1000, 1029),
            ("larger", 10, 10, 1000, 1100)]
    kernels = [{"name": "rope/a", "of_copy": 0.2}, {"name": "adamw/b", "of_copy": 0.9},
               {"name": "experts/c", "of_copy": 0.1, "of_gemm": 0.8}]
    steps = [("operators", "FAILED (exit 1): see operators.log"), ("peers", "FAILED: cut off after its 90 s; give --minutes more"),
             ("sweep", "not run: no time was left")]
    page = write(tmp_path, steps, runs, kernels)
    assert look_at(page) == [
        "1. **operators** FAILED (exit 1): see operators.log: DispatchCuda.Agrees; an operator disagrees with its reference: "
        "nothing that this GPU computes counts before that is mended",
        "2. **peers** FAILED: cut off after its 90 s; give --minutes more",
        "3. **larger** holds 1.07 GiB at its peak, +10.0% of the predicted",
        "4. **slower** takes 4.0 times the predicted step time",
        "5. **slow** takes 2.0 times the predicted step time",
        "6. **rope/a** moves bytes at 20% of a copy's rate",
        "7. not run for want of time: sweep; give --minutes more, or name them alone"]
    assert "`run.device=cpu` trains without the GPU" in page


@pytest.mark.parametrize("name", ["NVIDIA L4", "an emulator"])
def test_a_gpu_without_a_datasheet_has_no_predicted_times(tmp_path, name):
    page = write(tmp_path, [("operators", "ok")], [("fp32", 10, 99, 1000, 1000)], name=name)
    assert "no device in devices.json has this name" in page and "| fp32 | – | 99.0 | – |" in page


def test_a_folder_without_records_is_a_mistake(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "scripts/gpu_page.py", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no machine.json" in done.stderr


def record(case, round, ms, peak, against="baseline"):
    steps = [[step + 1, 8192 * (step + 1), 5.0, 900.0 if step == 0 else ms] for step in range(8)]
    summary = {"peak_bytes": peak * MIB, "estimated_peak_bytes": 1000 * MIB, "settings": {"train": {"sequence": 1024}}}
    return {"schema": 1, "case": case, "techniques": [], "against": None if case == against else against, "family": "single",
            "sweep": "in bf16", "model": "moe-740m", "round": round, "settings": {}, "settings_hash": "", "command": "", "commit": "",
            "dirty": False, "machine": {}, "started": "", "status": "ok", "message": "", "summary": summary, "steps": steps,
            "memory": None}  # fmt: skip


def test_a_technique_is_held_against_the_baseline_of_its_round(tmp_path):
    rows = [record("baseline", 1, 100, 1010), record("lion", 1, 50, 505), record("baseline", 2, 300, 1010), record("lion", 2, 75, 505),
            record("muon", 3, 100, 2020), {**record("sgd", 3, 100, 1), "status": "error", "summary": None}]  # fmt: skip
    (tmp_path / "tradeoff.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write(tmp_path, [("sweep", "ok")])
    assert "### in bf16: moe-740m, 1,024 tokens a row" in page and "sgd" not in page
    assert "| baseline | 54,613 | – | 1010.00 MiB | – | +1.0% | 2 |" in page
    assert "| lion | 136,533 | 3.00 x | 505.00 MiB | -50.0% | -49.5% | 2 |" in page
    assert "| muon | 81,920 | – | 1.97 GiB | +100.0% | +102.0% | 1 |" in page
