#!/usr/bin/env python3
"""How far predicted memory lies from measured: trains drawn configurations for a few steps and compares.

Each draw changes a few settings of a small model. What moelab refuses (contradictory settings, exit code 2) is drawn
again. Compared are the bytes of the state, exactly, and the tensors at the peak; what libraries take inside of a
product (scratch) no dry run sees: it has a column of its own.

--run compares a finished run instead: what was allocated at its peak, and reserved on a GPU, beside what an estimate of
its settings says. Exit code 1: off by more than 3 % or 5 %, or past the run's memory.limit.

example: scripts/check_estimates.py --program build/dev/bin/moelab --data data/python-stdlib --out estimates.jsonl
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

BASE = {"model.layers": 3, "model.d_model": 64, "model.heads": 4, "model.d_expert": 128, "train.sequence": 128,
        "train.micro_batch": 2, "train.steps": 2, "eval.batches": 0, "checkpoint.keep": 0, "monitor.quiet": True,
        "run.log_every": 0}
# Settings and the values that a draw may give them. Sizes come one by one, techniques by chance.
SIZES = {
    "model.layers": [2, 3, 5], "model.d_model": [32, 64, 96, 128], "model.d_expert": [32, 64, 128, 160],
    "model.experts": [0, 4, 8], "model.kv_heads": [1, 2, 4], "model.shared_experts": [0, 1],
    "train.sequence": [64, 128, 256], "train.micro_batch": [1, 2, 4], "train.accumulation": [1, 2],
    "model.tie_embeddings": ["true", "false"], "model.dispatch": ["capacity", "dropless", "onehot"],
    "model.router": ["softmax", "sigmoid", "expert_choice"], "model.qk_norm": ["none", "head", "full"],
}
TECHNIQUES = {
    "attention.kernel": ["materialised", "sliding_window", "block_sparse"],
    "precision.compute": ["bf16", "fp16", "fp8"], "precision.master": ["none"], "precision.store": ["int8", "fp8"],
    "activations.checkpoint": ["full", "every", "ratio"],
    "activations.pieces": ["[norms]", "[attention]", "[expert_hidden]", "[moe]", "[norms, expert_hidden]"],
    "activations.storage": None, "optim.name": None, "optim.state": ["bf16"],  # None: all in the table of techniques
    "optim.in_backward": ["true"], "placement.parameters": ["host", "nvme"], "placement.gradients": ["host", "nvme"],
    "placement.optimizer": ["host", "nvme"],
}
CHANCE = 0.3  # of each technique
ALLOCATED, RESERVED = 0.03, 0.05  # what a run's peaks may be off by


def techniques_of(program: pathlib.Path) -> dict[str, list[str]]:
    """TECHNIQUES, with the values that the program's own table of techniques knows."""
    rows = [row["settings"] for row in json.loads(call(program, "techniques", "--json").stdout)["techniques"]]
    return {key: values or list(dict.fromkeys(row[key] for row in rows if key in row))
            for key, values in TECHNIQUES.items()}


def draw(chance: random.Random, nvme: pathlib.Path, techniques: dict[str, list[str]]) -> dict:
    settings = dict(BASE)
    for key, values in SIZES.items():
        settings[key] = chance.choice(values)
    for key, values in techniques.items():
        if chance.random() < CHANCE:
            settings[key] = chance.choice(values)
    if settings.get("activations.checkpoint") == "every":
        settings["activations.every"] = 2
    if settings.get("activations.checkpoint") == "ratio":
        settings["activations.ratio"] = 0.5
    if settings.get("attention.kernel") == "sliding_window":
        settings["attention.window"] = 64
    if settings.get("attention.kernel") == "block_sparse":
        settings |= {"attention.block_size": 16, "attention.local_blocks": 4}
    if "nvme" in settings.values():
        settings["placement.nvme_path"] = nvme
    return settings


def words(settings: dict) -> list[str]:
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]


def call(*command) -> subprocess.CompletedProcess:
    try:
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    except OSError as error:
        sys.exit(f"check_estimates: {command[0]}: {error.strerror}")


def measure(program: pathlib.Path, shared: list[str], settings: dict, folder: pathlib.Path) -> dict | None:
    """The record of one configuration; None where moelab refuses it."""
    changed = {key: value for key, value in settings.items() if BASE.get(key) != value and key != "placement.nvme_path"}
    predicted = call(program, "estimate", "--json", *shared, *words(settings))
    if predicted.returncode == 2:
        return None
    if predicted.returncode not in (0, 3):
        sys.exit(f"check_estimates: estimate {' '.join(words(changed))}: {predicted.stderr.strip()}")
    run = call(program, "train", "--overwrite", *shared, *words(settings), f"run.dir={folder}")
    if run.returncode != 0:
        sys.exit(f"check_estimates: train {' '.join(words(changed))}: {run.stderr.strip()}")
    summary, estimate = json.loads((folder / "summary.json").read_text()), json.loads(predicted.stdout)
    tensors = summary["peak_tensor_bytes"]
    return {"schema": 1, "settings": words(changed), "commit": summary["commit"], "machine": summary["machine"],
            "predicted_bytes": estimate["peak_bytes"], "measured_bytes": tensors,
            "scratch_bytes": summary["peak_bytes"] - tensors, "error": tensors / estimate["peak_bytes"] - 1,
            "state_predicted": estimate["state_bytes"], "state_measured": summary["state_bytes"],
            "host_bytes": [estimate["host_bytes"], summary["host_bytes"]],
            "nvme_bytes": [estimate["nvme_bytes"], summary["nvme_bytes"]]}


def compare_run(program: pathlib.Path, run: pathlib.Path) -> bool:
    """Prints how far a finished run's peaks lie from an estimate of its settings; whether that is near enough."""
    if not (run / "summary.json").is_file():
        sys.exit(f"check_estimates: --run {run}: no summary.json; give the folder of a run that has ended")
    summary = json.loads((run / "summary.json").read_text())
    # for this machine's device, not for the card of a preset
    predicted = call(program, "estimate", "--json", "--config", run / "config.yaml", "run.preset=")
    if predicted.returncode not in (0, 3):
        sys.exit(f"check_estimates: estimate --config {run / 'config.yaml'}: {predicted.stderr.strip()}")
    estimate = json.loads(predicted.stdout)
    peak, limit = summary["peak_bytes"], summary["memory_limit_bytes"]
    # on the CPU without the scratch inside of products, which no dry run sees
    gpu = estimate["gpu"]
    expected = estimate["peak_bytes"] + (gpu["workspace_bytes"] if gpu else 0)
    measured = {"allocated": (summary["peak_tensor_bytes"], expected, ALLOCATED)}
    if gpu:
        reserved = round(peak / (1 - summary["fragmentation"]))
        measured["reserved"] = (reserved, estimate["reserved_bytes"], RESERVED)
    held = max([peak, *(bytes_ for bytes_, _, _ in measured.values())])
    passed = summary["status"] == "ok" and (limit == 0 or held <= limit)
    said = []
    for name, (bytes_, expected, most) in measured.items():
        error = bytes_ / expected - 1
        passed = passed and abs(error) <= most
        said.append(f"{name} {bytes_ / 2**20:,.1f} MiB, {error:+.2%} of the predicted (at most {most:.0%})")
    print(f"{run.name}: {'ok' if passed else 'FAILED'}; limit {limit / 2**20:,.1f} MiB; " + "; ".join(said))
    return passed


def verdict(records: list[dict]) -> str:
    errors = [abs(record["error"]) for record in records]
    state = sum(record["state_predicted"] != record["state_measured"] for record in records)
    lines = [f"{len(records)} configurations: tensors at the peak off by {statistics.median(errors):.3%} (median), "
             f"{max(errors):.3%} (worst); state differs in {state}",
             f"scratch of libraries: at most {max(r['scratch_bytes'] for r in records) / 2**20:.2f} MiB", "the worst:"]
    for record in sorted(records, key=lambda r: -abs(r["error"]))[:10]:
        lines.append(f"  {record['error']:+.3%} of {record['predicted_bytes']:,} bytes  {' '.join(record['settings'])}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True, help="moelab")
    parser.add_argument("--run", type=pathlib.Path, help="compare this run's folder, and draw nothing")
    parser.add_argument("--data", type=pathlib.Path, help="folder of shards with 256 token ids")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--draws", type=int, default=200, help="configurations (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="of the draws (default: 1)")
    parser.add_argument("--out", type=pathlib.Path, help="file of records, written anew")
    arguments = parser.parse_args()
    if arguments.run:
        sys.exit(not compare_run(arguments.program, arguments.run))
    if not (arguments.data and arguments.out):
        parser.error("--data and --out, or --run, are needed")
    if arguments.draws < 1:
        parser.error("--draws: at least 1")
    if not arguments.data.is_dir():
        parser.error(f"--data {arguments.data}: no folder; scripts/prepare_data.py makes one")
    call(arguments.program, "--version")  # a mistake is found before the old records are gone
    techniques = techniques_of(arguments.program)
    shared = [f"data.path={arguments.data}", f"run.device={arguments.device}"]
    chance, records, seen = random.Random(arguments.seed), [], set()
    with tempfile.TemporaryDirectory() as scratch, open(arguments.out, "w", encoding="utf-8") as out:
        nvme = pathlib.Path(scratch) / "nvme"
        nvme.mkdir()
        while len(records) < arguments.draws:
            settings = draw(chance, nvme, techniques)
            if str(settings) in seen:
                continue
            seen.add(str(settings))
            record = measure(arguments.program, shared, settings, pathlib.Path(scratch) / "run")
            if record is None:
                continue
            records.append(record)
            out.write(json.dumps(record) + "\n")
            out.flush()
            if sys.stdout.isatty() or len(records) % 20 == 0:
                print(f"{len(records)} of {arguments.draws}, {len(seen)} drawn", flush=True)
    print(verdict(records))


if __name__ == "__main__":
    main()
