#!/usr/bin/env python3
"""What ranks cost: a training on one rank with one thread, and on ranks with one thread each, whose loopback device is
limited to a link's rate.

Rounds take turns between all layouts and links. Beside each link an exchange of gradients is timed alone (bench_exchange):
of the shorter of exchange and computation, what a step's time leaves unexplained was hidden behind the other. Appends one
JSON line to --out: every run and the medians, command, commit and machine. Run it on a quiet machine.

example: .venv/bin/python bench/ranks/ranks.py --build build/quick --out results/my-machine/ranks.jsonl \\
             data.path=data/python-stdlib precision.compute=bf16
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/peers"))
from peers import commit_of, summary_of, write_record  # noqa: E402

LINKS = {"unlimited": None, "10 Gbit/s": 10_000, "1 Gbit/s": 1_000}  # megabits per second in each direction


def over(link, command):
    """The command, on a link of that name."""
    rate = LINKS[link]
    return command if rate is None else [str(ROOT / "scripts/slow_link.sh"), str(rate), *command]


def ranks_command(ranks, command):
    return [str(ROOT / "scripts/ranks.sh"), str(ranks), *command] if ranks > 1 else command


def exchange_alone(program, link, ranks, gradient_bytes):
    """Milliseconds of one exchange: medians of a few, as {"sent": …, "ordered": …, "gloo": …}."""
    command = ranks_command(ranks, [str(program), "bf16", str(gradient_bytes), "5"])
    done = subprocess.run(over(link, command), check=True, capture_output=True, text=True)
    return {name.removesuffix("_ms"): statistics.median(times) for name, times in json.loads(done.stdout).items()}


def step_of(command):
    """What is needed of one training's summary."""
    summary = summary_of(command)
    communication = summary["communication"]
    sent = sum(count for use, count in communication["sent_bytes"].items() if not use.endswith("/control"))
    return {"step_ms": summary["step_ms"]["median"], "sent_bytes": sent / summary["steps"],
            "hidden_share": communication["hidden_share"], "peak_bytes": summary["peak_tensor_bytes"],
            "estimated_peak_bytes": summary["estimated_peak_bytes"], "parameters": summary["model"]["parameters"]}


def hidden(step_ms, compute_ms, exchange_ms):
    """The share of the shorter one that passed while the other did: 1 when the step took as long as the longer one."""
    return (exchange_ms + compute_ms - step_ms) / min(exchange_ms, compute_ms)


def measure(a):
    """Every run: of one rank alone, of each layout over each link, and of the exchanges alone."""
    train = [str(a.build / "bin/moelab"), "train", "--device", "cpu", "eval.batches=0", "checkpoint.keep=0", "run.threads=1",
             f"train.steps={a.steps}", f"--config={a.model}", *a.settings]
    alone, steps, exchanges = [], {}, {}
    for number in range(a.rounds):
        print(f"round {number + 1} of {a.rounds}", file=sys.stderr, flush=True)
        alone.append(step_of(train))
        for link in a.links:
            for zero in a.zero:
                command = over(link, ranks_command(a.ranks, [*train, f"parallel.zero={zero}"]))
                steps.setdefault((zero, link), []).append(step_of(command))
            exchanges.setdefault(link, []).append(
                exchange_alone(a.build / "bin/bench_exchange", link, a.ranks, 2 * alone[0]["parameters"]))
    return alone, steps, exchanges


def rows_of(alone, steps, exchanges, ranks):
    """The medians of each layout over each link."""
    rows = []
    for (zero, link), runs in steps.items():
        sent = runs[0]["sent_bytes"]
        share = sent / (2 * runs[0]["parameters"] * (ranks - 1) / ranks)  # of what bench_exchange sends
        shares = [hidden(run["step_ms"], one["step_ms"], share * exchange["sent"])
                  for run, one, exchange in zip(runs, alone, exchanges[link])]
        rows.append({"zero": zero, "link": link, "step_ms": statistics.median(run["step_ms"] for run in runs),
                     "exchange_ms": share * statistics.median(exchange["sent"] for exchange in exchanges[link]),
                     "sent_bytes": sent, "hidden": statistics.median(shares), "hidden_runs": shares,
                     "efficiency": statistics.median(one["step_ms"] / run["step_ms"] for one, run in zip(alone, runs)),
                     "hidden_share": statistics.median(run["hidden_share"] for run in runs),
                     "peak_bytes": runs[0]["peak_bytes"], "estimated_peak_bytes": runs[0]["estimated_peak_bytes"]})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/quick", help="has moelab and bench_exchange (default: build/quick)")
    parser.add_argument("--model", default="moe-micro", help="default: moe-micro")
    parser.add_argument("--ranks", type=int, default=2, help="default: 2")
    parser.add_argument("--zero", type=int, nargs="+", default=[0, 2, 3], choices=range(4), help="stages (default: 0 2 3)")
    parser.add_argument("--links", nargs="+", default=list(LINKS), choices=LINKS, help="default: all")
    parser.add_argument("--steps", type=int, default=8, help="of each run; the first three are warm-up (default: 8)")
    parser.add_argument("--rounds", type=int, default=9, help="default: 9")
    parser.add_argument("--out", required=True, help="file that takes the JSON line")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of the training")
    a = parser.parse_args()
    alone, steps, exchanges = measure(a)
    record = {"model": a.model, "ranks": a.ranks, "settings": a.settings, "rounds": a.rounds,
              "alone_ms": statistics.median(run["step_ms"] for run in alone), "layouts": rows_of(alone, steps, exchanges, a.ranks),
              "exchanges": exchanges, "runs": [{"zero": zero, "link": link, "step_ms": [run["step_ms"] for run in runs]}
                                               for (zero, link), runs in steps.items()]}
    write_record(a.out, "ranks", commit_of(a.build / "bin/moelab"), record)
    print(json.dumps({key: record[key] for key in ("alone_ms", "layouts")}, indent=2))


if __name__ == "__main__":
    main()
