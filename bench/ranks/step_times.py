#!/usr/bin/env python3
"""Whether the planner knows how long a step of several ranks takes: measures layouts of ranks over links of different rates,
and what the loopback device costs, and asks `moelab plan` about each.

Without --compare it measures: the layouts take turns, one thread a rank, and one JSON line of all runs is appended to --out.
With --compare it measures nothing: it asks the planner about every run in --out, and appends a line that has both.

example: .venv/bin/python bench/ranks/step_times.py --build build/quick --out results/my-machine/step-times.jsonl \\
             data.path=data/python-stdlib
"""
import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from ranks import LINKS, exchange_alone, over, ranks_command

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/peers"), str(ROOT / "scripts")]
from peers import commit_of, write_record  # noqa: E402
from report.figures import flat  # noqa: E402

NAMES = {"unlimited": "loopback", "10 Gbit/s": "10Gbit", "1 Gbit/s": "1Gbit"}  # of links, as `moelab plan --link` has them
WARM_UP = 3  # steps
GRADIENTS = (16, 64_000_000)  # bytes, of which a rank of two sends half: what a message costs, and what a byte
COMMON = ["precision.compute=bf16", "train.micro_batch=2", "eval.batches=0", "checkpoint.keep=0", "monitor.quiet=true", "run.log_every=0",
          "memory.recover=false", "run.threads=1"]
TWICE = ["train.micro_batch=1", "train.accumulation=2"]  # the same rows
LAYOUTS = {
    "ZeRO-0": [],
    "ZeRO-0, two micro-batches, once a step": [*TWICE, "parallel.reduce=step"],
    "ZeRO-1": ["parallel.zero=1"],
    "ZeRO-1, two micro-batches, once a step": [*TWICE, "parallel.zero=1", "parallel.reduce=step"],
    "ZeRO-1, stepped in backward": ["parallel.zero=1", "optim.in_backward=true"],
    "ZeRO-2, two micro-batches": [*TWICE, "parallel.zero=2"],
    "ZeRO-2, optimizer and gradients on the host": ["parallel.zero=2", "placement.optimizer=host", "placement.gradients=host"],
    "ZeRO-3": ["parallel.zero=3"],
    "ZeRO-3, weights kept": ["parallel.zero=3", "placement.reshard_after_forward=false"],
    "ZeRO-3, two micro-batches": [*TWICE, "parallel.zero=3"],
    "ZeRO-3, weights on the host": ["parallel.zero=3", "placement.parameters=host"],
    "ZeRO-3, weights in int8": ["parallel.zero=3", "precision.store=int8"],
}
STEP = re.compile(r"a step of the first takes ([\d.e+]+) ms: ([\d.e+]+) ms computing, ([\d.e+]+) ms copying messages, ([\d.e+]+) ms waiting")


def metrics_of(command):
    """Milliseconds of each step after the warm-up, and bytes that rank 0 sent in a step."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, f"run.dir={folder}/run"], check=True, stdout=subprocess.DEVNULL)
        steps = [json.loads(line)["step_ms"] for line in Path(folder, "run/metrics.jsonl").read_text().splitlines()]
        summary = json.loads(Path(folder, "run/summary.json").read_text())
    sent = sum(count for use, count in summary["communication"]["sent_bytes"].items() if not use.endswith("/control"))
    return {"step_ms": steps[WARM_UP:], "sent_bytes": sent / summary["steps"]}


def loopback(a):
    """Of an exchange over the loopback device: bytes that a rank sends, and milliseconds."""
    program = a.build / "bin/bench_exchange"
    return [{"sent_bytes": size * (a.ranks - 1) // a.ranks, "ms": exchange_alone(program, "unlimited", a.ranks, size)["sent"]}
            for size in GRADIENTS]


def measure(a):
    runs = []
    train = [str(a.build / "bin/moelab"), "train", "--device", "cpu", f"--config={a.model}", f"train.steps={a.steps}", *COMMON]
    for number in range(a.rounds):
        for name in a.layouts:
            for link in a.links:
                print(f"round {number + 1} of {a.rounds}: {name} over {link}", file=sys.stderr, flush=True)
                command = over(link, ranks_command(a.ranks, [*train, *LAYOUTS[name], *a.settings]))
                runs.append({"layout": name, "link": link, **metrics_of(command)})
    write_record(a.out, "step_times", commit_of(a.build / "bin/moelab"),
                 {"model": a.model, "ranks": a.ranks, "settings": [*COMMON, *a.settings], "runs": runs,
                  "loopback": loopback(a) if "unlimited" in a.links else None})


def technique_keys(program):
    """Every setting that a plan might change."""
    table = json.loads(subprocess.run([program, "techniques", "--json"], check=True, capture_output=True, text=True).stdout)
    keys = {key for row in table["techniques"] for key in row["settings"]}
    keys |= {"train.micro_batch", "train.accumulation", "parallel.zero", "parallel.reduce", "placement.reshard_after_forward"}
    return keys - {"parallel.data"}  # --ranks


def predicted(program, record, words, link, device):
    """Milliseconds of a step, as the planner predicts it for these settings alone."""
    model = [f"--config={record['model']}", "run.device=cpu", *record["settings"], *words]
    printed = subprocess.run([program, "train", "--print-config", *model], check=True, capture_output=True, text=True).stdout
    now = flat(yaml.load(printed, yaml.BaseLoader))  # values as they are written
    keys = sorted(technique_keys(program) & {key for key, value in now.items() if value != ""})
    pinned = [f"{key}={now[key]}".replace("'", "").replace(" ", "") for key in keys]  # lists, too
    command = [program, "plan", "--ranks", str(record["ranks"]), "--link", NAMES[link], "--device", device, "--memory", "64GiB", "--model",
               record["model"], *record["settings"], *pinned]
    done = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "\n1 combinations of techniques" in done, done
    total, computing, copying, waiting = map(float, STEP.search(done).groups())
    return {"total": total, "computing": computing, "copying": copying, "waiting": waiting}


def compare(a):
    """A row for each layout and link: the median of the measured steps, the distance between their quartiles as a share of it,
    and the prediction."""
    program = str(a.build / "bin/moelab")
    records = [json.loads(line) for line in Path(a.out).read_text().splitlines()]
    records = [record for record in records if record["kind"] == "step_times"]
    cases = {}
    for record in records:
        for run in record["runs"]:
            cases.setdefault((run["layout"], run["link"]), []).append((record, run))
    rows = []
    for (layout, link), runs in sorted(cases.items(), key=lambda item: (list(LAYOUTS).index(item[0][0]), list(LINKS).index(item[0][1]))):
        steps = [time for _, run in runs for time in run["step_ms"]]
        low, middle, high = statistics.quantiles(steps, n=4, method="inclusive")
        rows.append({"layout": layout, "settings": LAYOUTS[layout], "link": link, "step_ms": middle, "steps": len(steps),
                     "spread": (high - low) / middle, "sent_bytes": runs[0][1]["sent_bytes"],
                     "predicted_ms": predicted(program, runs[0][0], LAYOUTS[layout], link, a.device)})
    write_record(a.out, "predicted_steps", commit_of(program),
                 {"model": records[0]["model"], "ranks": records[0]["ranks"], "settings": records[0]["settings"], "device": a.device,
                  "measured": sorted({record["commit"] for record in records}), "rows": rows})
    errors = sorted(abs(row["predicted_ms"]["total"] / row["step_ms"] - 1) for row in rows)
    print(f"{len(rows)} cases: median error {statistics.median(errors):.1%}, worst {errors[-1]:.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/quick", help="has moelab (default: build/quick)")
    parser.add_argument("--model", default="moe-micro", help="default: moe-micro")
    parser.add_argument("--ranks", type=int, default=2, help="default: 2")
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=LAYOUTS, metavar="LAYOUT", help="default: all")
    parser.add_argument("--links", nargs="+", default=list(LINKS), choices=LINKS, help="default: all")
    parser.add_argument("--steps", type=int, default=7, help=f"of each run; the first {WARM_UP} are warm-up (default: 7)")
    parser.add_argument("--rounds", type=int, default=2, help="default: 2")
    parser.add_argument("--compare", action="store_true", help="ask the planner about what --out has")
    parser.add_argument("--device", default="cpu", help="whose speed the planner assumes (default: cpu)")
    parser.add_argument("--out", required=True, help="file that takes the JSON line")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of the training")
    a = parser.parse_intermixed_args()  # settings may follow options
    compare(a) if a.compare else measure(a)


if __name__ == "__main__":
    main()
