#!/usr/bin/env python3
"""Whether several ranks have the numbers of one: trains a model with both, the same global batch and seed.

Compared is metrics.jsonl line by line, as it is written, but for times and memory, under each stage of ZeRO. On GPUs, where
run.deterministic is set, the norm of all gradients is left out of ZeRO's lines: ranks that divide them add their own
sums; clipping is off, because it would use the norm. Exit code 1: a run failed, or the first difference, which is printed.

example: scripts/check_ranks.py --program build/dev/bin/moelab --data data/python-stdlib --device cpu --ranks 2
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIMES_AND_MEMORY = ("step_ms", "waited_ms", "tokens_per_second", "allocated_bytes", "reserved_bytes", "peak_bytes",
                    "peak_bytes_by_kind")
STAGES = (0, 1, 2, 3)


def train(arguments: argparse.Namespace, ranks: int, folder: pathlib.Path, *more: str) -> list[str]:
    """The lines of a run's metrics. Each step takes as many micro-batches as --ranks."""
    settings = {"data.path": arguments.data.resolve(), "run.dir": folder, "run.device": arguments.device,
                "run.deterministic": "true", "run.log_every": 0, "train.steps": arguments.steps, "train.micro_batch": 2,
                "train.accumulation": arguments.ranks // ranks, "optim.clip": 0, "eval.every": 5, "eval.batches": 3,
                "checkpoint.keep": 0, "parallel.timeout": 120}  # fmt: skip
    command = [arguments.program.resolve(), "train", "--config", arguments.model, *(f"{key}={value}" for key, value in settings.items()), *more]
    if ranks > 1:
        command = [ROOT / "scripts/ranks.sh", ranks, *command]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{ranks} rank{'s' * (ranks > 1)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return (folder / "metrics.jsonl").read_text().splitlines()


def compared(line: str, without: tuple[str, ...]) -> str:
    return json.dumps({key: value for key, value in json.loads(line).items() if key not in without})


def first_difference(one: list[str], several: list[str], without: tuple[str, ...]) -> str:
    """Empty: there is none."""
    if len(one) != len(several):
        return f"{len(one)} steps by one rank, {len(several)} by several"
    for step, lines in enumerate(zip(one, several), 1):
        alone, together = (compared(line, without) for line in lines)
        if alone != together:
            return f"step {step}:\n  one rank  {alone}\n  several   {together}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="as scripts/prepare_data.py makes it")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--ranks", type=int, default=2, help="on this machine, each with a GPU of its own")
    parser.add_argument("--model", default="moe-micro")
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    same = True
    with tempfile.TemporaryDirectory() as name:
        one = train(arguments, 1, pathlib.Path(name) / "one")
        for zero in STAGES:
            several = train(arguments, arguments.ranks, pathlib.Path(name) / f"zero-{zero}", f"parallel.zero={zero}")
            divided_on_gpus = zero > 0 and arguments.device == "cuda"
            difference = first_difference(one, several, TIMES_AND_MEMORY + (("grad_norm",) if divided_on_gpus else ()))
            print(f"{arguments.ranks} ranks, ZeRO-{zero}: {difference or 'the numbers of one'}", flush=True)
            same = same and not difference
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
