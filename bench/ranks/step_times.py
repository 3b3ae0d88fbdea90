#!/usr/bin/env python3
"""Whether the planner knows how long a step of several ranks takes: measures layouts of ranks over links of different rates,
and what the loopback device costs, and asks `moelab plan` about each.

Without an option it measures: the layouts take turns, one thread a rank, and one JSON line of all runs is appended to --out.
--loopback measures messages over the loopback device alone: the figures that devices.json has of it. --calibrate fits what a
device computes to the steps that --out has over the loopback device, beyond the time of their messages; nothing is fitted to
other links. --compare asks the planner about every run in --out, and appends a line that has both.

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

from ranks import LINKS, over, ranks_command

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/peers"), str(ROOT / "scripts")]
import calibrate  # noqa: E402
from peers import commit_of, write_record  # noqa: E402
from report.figures import flat  # noqa: E402

NAMES = {"unlimited": "loopback", "10 Gbit/s": "10Gbit", "1 Gbit/s": "1Gbit"}  # of links, as `moelab plan --link` has them
WARM_UP = 3  # steps
# Sizes of exchanged gradients in bytes (each of two ranks sends half), and how often each is exchanged. The small one shows
# what a message costs, the large one what a byte costs. Means are taken: a message to a busy core waits for the scheduler.
GRADIENTS = ((16, 600), (64_000_000, 60))
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
    """Times exchanges over the loopback device, and records the bytes that a rank sends and the mean of their milliseconds."""
    found = []
    for size, rounds in GRADIENTS:
        command = ranks_command(a.ranks, [str(a.build / "bin/bench_exchange"), "bf16", str(size), str(rounds)])
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append({"sent_bytes": size * (a.ranks - 1) // a.ranks, "ms": statistics.mean(json.loads(done.stdout)["sent_ms"])})
    write_record(a.out, "loopback", commit_of(a.build / "bin/moelab"), {"ranks": a.ranks, "exchanges": found})


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
                 {"model": a.model, "ranks": a.ranks, "settings": [*COMMON, *a.settings], "runs": runs})



def technique_keys(program):
    """Every setting that a plan might change."""
    table = json.loads(subprocess.run([program, "techniques", "--json"], check=True, capture_output=True, text=True).stdout)
    keys = {key for row in table["techniques"] for key in row["settings"]}
    keys |= {"train.micro_batch", "train.accumulation", "placement.reshard_after_forward",
             *(f"parallel.{key}" for key in ("zero", "reduce", "tensor", "pipeline", "expert", "schedule", "chunks"))}
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
    assert " of 1 combinations of techniques " in done, done
    total, computing, copying, waiting = map(float, STEP.search(done).groups())
    return {"total": total, "computing": computing, "copying": copying, "waiting": waiting}


def cases_of(path):
    """The (record, run) of each measured layout and link, in order."""
    records = [json.loads(line) for line in Path(path).read_text().splitlines()]
    cases = {}
    for record in (record for record in records if record["kind"] == "step_times"):
        for run in record["runs"]:
            cases.setdefault((run["layout"], run["link"]), []).append((record, run))
    return dict(sorted(cases.items(), key=lambda item: (list(LAYOUTS).index(item[0][0]), list(LINKS).index(item[0][1]))))


def case_over_loopback(program, layout, runs, rate):
    """What a step of a rank computes, and how long that takes in nanoseconds; `rate` is loopback's, in bytes a nanosecond."""
    record, run = runs[0]
    command = [program, "estimate", "--json", f"--config={record['model']}", "run.device=cpu", f"parallel.data={record['ranks']}",
               *(word for word in record["settings"] if not word.startswith("data.")), *LAYOUTS[layout]]
    work = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["step_work"]
    step = 1e6 * statistics.median(time for _, run in runs for time in run["step_ms"])
    return calibrate.Case(f"{record['model']} {layout}", step - run["sent_bytes"] / rate, work)


def fit_device(a):
    """Writes the device's entry of calibration.json."""
    devices = json.loads((calibrate.PLAN / "devices.json").read_text())
    rate = devices["links"]["loopback"]["gigabytes_per_second"]
    # stepping in backward waits for each message: what it waits is not what its bytes take
    measured = {layout: runs for (layout, link), runs in cases_of(a.out).items()
                if link == "unlimited" and "optim.in_backward=true" not in LAYOUTS[layout]}
    cases = [case_over_loopback(str(a.build / "bin/moelab"), layout, runs, rate) for layout, runs in measured.items()]
    first = next(iter(measured.values()))[0][0]
    entry, errors = calibrate.calibrate(cases, devices["devices"][a.device]["nanoseconds"],
                                        f"{first['machine'].split(', torch')[0]}, one core a rank, measured at {first['commit']}")
    calibrate.store(a.calibration, a.device, [a.out], entry)
    print(calibrate.spoken(a.device, entry, errors))


def compare(a):
    """A row for each layout and link: the median of the measured steps, the distance between their quartiles as a share of it,
    and the prediction."""
    program = str(a.build / "bin/moelab")
    rows, records = [], []
    for (layout, link), runs in cases_of(a.out).items():
        records += [record for record, _ in runs]
        steps = [time for _, run in runs for time in run["step_ms"]]
        low, middle, high = statistics.quantiles(steps, n=4, method="inclusive")
        rows.append({"layout": layout, "settings": LAYOUTS[layout], "link": link, "step_ms": middle, "steps": len(steps),
                     "spread": (high - low) / middle, "sent_bytes": runs[0][1]["sent_bytes"],
                     "predicted_ms": predicted(program, runs[0][0], LAYOUTS[layout], link, a.device)})
    fitted = json.loads((calibrate.PLAN / "calibration.json").read_text())["devices"].get(a.device, {})
    write_record(a.out, "predicted_steps", commit_of(program),
                 {"model": records[0]["model"], "ranks": records[0]["ranks"], "settings": records[0]["settings"], "device": a.device,
                  "fitted": fitted.get("records") == [a.out], "measured": sorted({record["commit"] for record in records}), "rows": rows})
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
    parser.add_argument("--loopback", action="store_true", help="measure messages over the loopback device alone")
    parser.add_argument("--compare", action="store_true", help="ask the planner about what --out has")
    parser.add_argument("--calibrate", action="store_true", help="fit the device's costs to what --out has over the loopback device")
    parser.add_argument("--calibration", type=Path, default=calibrate.PLAN / "calibration.json",
                        help="where --calibrate replaces the device's entry (default: train/predict/calibration.json)")
    parser.add_argument("--device", default="cpu", help="whose speed the planner assumes (default: cpu)")
    parser.add_argument("--out", required=True, help="file that takes the JSON line")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of the training")
    a = parser.parse_intermixed_args()  # settings may follow options
    (compare if a.compare else fit_device if a.calibrate else loopback if a.loopback else measure)(a)


if __name__ == "__main__":
    main()
