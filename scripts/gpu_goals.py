#!/usr/bin/env python3
"""The goals on a GPU beside what the records of scripts/gpu_check.sh say: met, not met or not measured.

FOLDER holds peers.jsonl (bench/peers/hf_moe_layer.py), kernels.json (bench_kernels) and the summaries of the runs.

example: scripts/gpu_goals.py results/nvidia-h200
"""
import argparse
import json
import pathlib
import sys

SHAPE = {"T": 32768, "d": 2048, "F": 1024, "E": 64, "k": 8}  # the first of the layer's
OPPONENT = "torch._grouped_mm"
CASE = "64_of_1024"  # of the update rules: larger than any cache
RULES = ("adamw", "adamw_bf16_moments", "adamw_no_master", "adamw_compact", "adam8bit", "adam_mini", "lion", "sgd",
         "adafactor")  # fmt: skip


def layers(folder: pathlib.Path) -> dict[tuple[int, ...], dict[str, dict]]:
    """The last record of each shape and load that agreed with its reference."""
    found: dict[tuple[int, ...], dict[str, dict]] = {}
    path = folder / "peers.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        record = json.loads(line)
        shape = tuple(record[axis] for axis in SHAPE)
        found.setdefault(shape, {}).pop(record["load"], None)
        if record["status"] == "ok" and record["device"] != "cpu":
            found[shape][record["load"]] = record
    return found


def speed(folder: pathlib.Path) -> dict | None:
    """The record of the first shape under even load."""
    return layers(folder).get(tuple(SHAPE.values()), {}).get("even")


def against_grouped_mm(folder: pathlib.Path) -> float | None:
    record = speed(folder)
    if record is None or OPPONENT not in record["median"]:
        return None
    return record["median"][OPPONENT] / record["median"]["moelab"]


def tflops(folder: pathlib.Path) -> float | None:
    record = speed(folder)
    return record and record["gflops"]["moelab"] / 1e3


def slower_under_skew(folder: pathlib.Path) -> float | None:
    """The worst of all shapes, as a share of the time under even load; of both skewed loads."""
    shares = []
    for loads in layers(folder).values():
        if loads.keys() >= {"even", "zipf", "four_hot"}:
            even, *skewed = (loads[load]["median"]["moelab"] for load in ("even", "zipf", "four_hot"))
            shares.append(max(skewed) / even - 1)
    return max(shares, default=None)


def kernels(folder: pathlib.Path) -> list[dict]:
    """What bench_kernels has measured; of one that was stopped, as far as it came."""
    path = folder / "kernels.json"
    text = path.read_text(encoding="utf-8") if path.is_file() else '{"benchmarks": []}'
    try:
        return json.loads(text)["benchmarks"]
    except json.JSONDecodeError:
        whole, _, _ = text.rpartition("\n    },")
        return json.loads(whole + "}]}")["benchmarks"] if whole else []


def share_of_copy(folder: pathlib.Path) -> float | None:
    """Of the slowest update rule; none unless all were timed."""
    shares: dict[str, list[float]] = {}
    for run in kernels(folder):
        rule, case, *_ = (run["name"] + "/").split("/")
        if rule in RULES and case == CASE and "of_copy" in run:
            shares.setdefault(rule, []).append(run["of_copy"])
    return min(map(min, shares.values())) if shares.keys() == set(RULES) else None


def tokens_per_second(folder: pathlib.Path) -> float | None:
    """Of olmoe-1b-7b, launched or as a graph, whichever is faster."""
    paths = [path for path in sorted(folder.glob("olmoe-graphs-*.json")) if not path.stem.endswith("-estimate")]
    summaries = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    rates = [s["tokens_per_second"]["median"] for s in summaries if s["status"] == "ok"]
    return max(rates, default=None)


# what is asked, whether more is better, the least or most, how a figure reads, what measures it
GOALS = [
    ("layer beside torch._grouped_mm's, first shape", True, 1.4, "{:.2f} x", against_grouped_mm),
    ("layer, first shape, forward and backward (stretch)", True, 500, "{:,.0f} TFLOP/s", tflops),
    ("layer slower under skew, worst shape", False, 0.15, "{:.1%}", slower_under_skew),
    ("optimizer updates, share of the copy rate, slowest", True, 0.8, "{:.0%}", share_of_copy),
    ("olmoe-1b-7b, training", True, 30_000, "{:,.0f} tokens/s", tokens_per_second),
]


def table(folder: pathlib.Path) -> list[str]:
    lines = []
    for name, more, bound, form, measure in GOALS:
        figure = measure(folder)
        asked = (">= " if more else "<= ") + form.format(bound)
        met = figure is not None and (figure >= bound if more else figure <= bound)
        said = "not measured" if figure is None else f"{form.format(figure)}, {'met' if met else 'not met'}"
        lines.append(f"{name:52} {asked:18} {said}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="of the records")
    folder = parser.parse_args().folder
    if not folder.is_dir():
        parser.error(f"{folder}: no such folder")
    sys.stdout.write("\n".join(table(folder)) + "\n")


if __name__ == "__main__":
    main()
