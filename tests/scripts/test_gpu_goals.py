"""scripts/gpu_goals.py on records as scripts/gpu_check.sh leaves them."""
import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/gpu_goals.py"
sys.path.insert(0, str(SCRIPT.parent))
from gpu_goals import RULES  # noqa: E402

FIRST = {"T": 32768, "d": 2048, "F": 1024, "E": 64, "k": 8}


def layer(load: str, ours: float, other: float, **changed) -> dict:
    return {"kind": "moe_layer", **FIRST, "load": load, "status": "ok", "device": "a GPU",
            "median": {"moelab": ours, "torch._grouped_mm": other}, "gflops": {"moelab": 9.9e6 / ours}} | changed


def update(rule: str, share: float) -> dict:
    return {"name": f"{rule}/64_of_1024/bf16/manual_time", "of_copy": share}


def run_of(rate: float) -> dict:
    return {"status": "ok", "tokens_per_second": {"median": rate, "p10": 1.0, "p90": 1e9}}


def write(folder: pathlib.Path, layers=(), updates=(), rates=()) -> None:
    (folder / "peers.jsonl").write_text("".join(json.dumps(record) + "\n" for record in layers))
    (folder / "kernels.json").write_text(json.dumps({"benchmarks": list(updates)}))
    for mode, rate in zip(("none", "step"), rates):
        (folder / f"olmoe-graphs-{mode}.json").write_text(json.dumps(run_of(rate)))
        (folder / f"olmoe-graphs-{mode}-estimate.json").write_text(json.dumps({"peak_bytes": 1}))


def goals(folder: pathlib.Path) -> list[str]:
    """What is said of each goal."""
    done = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line[52 + 1 + 18 + 1:] for line in done.stdout.splitlines()]


def test_met(tmp_path):
    write(tmp_path, [layer("even", 18, 27), layer("zipf", 19.8, 27), layer("four_hot", 18.9, 27)],
          [update(rule, 0.83 + 0.01 * i) for i, rule in enumerate(RULES)], [29_000, 31_000])
    assert goals(tmp_path) == ["1.50 x, met", "550 TFLOP/s, met", "10.0%, met", "83%, met", "31,000 tokens/s, met"]


def test_not_met_and_the_worst_counts(tmp_path):
    loads = [layer("even", 30, 40), layer("zipf", 33, 40), layer("four_hot", 36, 40)]
    wider = [layer(load, ours, 40, d=1536) for load, ours in (("even", 10), ("zipf", 10), ("four_hot", 14))]
    write(tmp_path, loads + wider, [update(rule, 0.9) for rule in RULES] + [update("lion", 0.7)], [20_000, 10_000])
    assert goals(tmp_path) == ["1.33 x, not met", "330 TFLOP/s, not met", "40.0%, not met", "70%, not met",
                               "20,000 tokens/s, not met"]


@pytest.mark.parametrize("layers", [
    [], [layer("even", 18, 27, device="cpu")], [layer("even", 18, 27, E=8)],
    [layer("even", 18, 27), layer("even", 18, 27, status="disagrees")],  # the last counts
])
def test_not_measured(tmp_path, layers):
    write(tmp_path, layers, [update(rule, 0.9) for rule in RULES[1:]])
    assert goals(tmp_path) == ["not measured"] * 5


def test_an_opponent_that_failed_and_a_benchmark_that_was_stopped(tmp_path):
    write(tmp_path, [layer("even", 18, 27, median={"moelab": 18})])
    (tmp_path / "kernels.json").write_text('{"benchmarks": [')
    assert goals(tmp_path) == ["not measured", "550 TFLOP/s, met", *["not measured"] * 3]


def test_a_benchmark_that_was_stopped_counts_as_far_as_it_came(tmp_path):
    text = json.dumps({"context": {}, "benchmarks": [update(rule, 0.9) for rule in RULES]}, indent=2)
    write(tmp_path)
    (tmp_path / "kernels.json").write_text(text[:text.rindex("}\n  ]")] + '},\n    {\n      "name": "emb')
    assert goals(tmp_path)[3] == "90%, met"


def test_no_records_and_no_folder(tmp_path):
    assert goals(tmp_path) == ["not measured"] * 5
    done = subprocess.run([sys.executable, SCRIPT, tmp_path / "none"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no such folder" in done.stderr
