#!/usr/bin/env python3
"""Whether the planner's choice is the fastest: measures it beside combinations drawn from all that fit the budget.

For each budget the plan's winner and drawn combinations of techniques, each of which fits by its dry run, train in
turns for a few steps. The choice holds when its speed is within 5 % of the fastest drawn one's, or no further than the
95 % interval of their ratio.

example: scripts/check_plan.py --program build/dev/bin/moelab --data data/python-stdlib --out plans.jsonl \
  --budgets 320MiB,450MiB,800MiB
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import yaml

from tradeoff.figures import Interval, ratio_of_rates

ALLOWED = 0.95  # of the fastest's speed
MOST = 4  # techniques in a drawn combination
DRAWS = 400  # at most, for the samples of a budget
QUIET = {"eval.batches": 0, "checkpoint.keep": 0, "monitor.quiet": "true", "run.log_every": 0, "memory.recover": "false"}


def words(settings: dict) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def call(*command) -> subprocess.CompletedProcess:
    try:
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    except OSError as error:
        sys.exit(f"check_plan: {command[0]}: {error.strerror}")


def of_plan(technique: dict) -> dict:
    """What a plan may change of a technique's settings: the model and its attention stay; on the CPU, host memory is
    the device's, and no drive is given. Empty: it takes no part."""
    settings = {key: value for key, value in technique["settings"].items() if not key.startswith(("model.", "attention."))}
    away = {"host", "nvme"} & set(settings.values())
    other_rule = settings.get("optim.name", "adamw") not in ("adamw", "adam8bit", "adamw_compact")
    batch = "train.micro_batch" in settings
    return {} if technique["parts"] or away or other_rule or batch else settings


def draw(chance: random.Random, techniques: dict[str, dict], rows: int) -> tuple[list[str], dict] | None:
    """A combination by names and settings; None where two of its techniques contradict each other."""
    names = chance.sample(sorted(techniques), chance.randint(0, min(MOST, len(techniques))))
    settings: dict = {}
    for name in names:
        for key, value in techniques[name].items():
            if settings.setdefault(key, value) != value:
                return None
    micro = chance.choice([rows // 2**i for i in range(rows.bit_length()) if rows % 2**i == 0])
    settings |= {"train.micro_batch": micro, "train.accumulation": rows // micro}
    return [*sorted(names), f"micro-batch {micro} x {rows // micro}"], settings


def rows_of(choice: list[str]) -> int:
    """The sequences of a step."""
    train = yaml.safe_load(pathlib.Path(choice[-1]).read_text())["train"]
    return train["micro_batch"] * train["accumulation"]


class Budget:
    """One budget's cases: name -> words for `moelab train`. The first is the planner's choice."""

    def __init__(self, arguments: argparse.Namespace, limit: str, folder: pathlib.Path):
        self.arguments, self.limit, self.folder = arguments, limit, folder
        self.common = [f"data.path={arguments.data}", *words(QUIET), f"train.steps={arguments.steps}",
                       f"memory.limit={limit}"]

    def fits(self, settings: dict) -> bool:
        estimate = call(self.arguments.program, "estimate", "--json", "--config", self.arguments.model, *self.common,
                        *words(settings))
        if estimate.returncode not in (0, 2, 3):
            sys.exit(f"check_plan: estimate {' '.join(words(settings))}: {estimate.stderr.strip()}")
        return estimate.returncode == 0

    def choice(self) -> list[str]:
        out = self.folder / f"{self.limit}.yaml"
        plan = call(self.arguments.program, "plan", "--memory", self.limit, "--model", self.arguments.model, "--out", out,
                    f"data.path={self.arguments.data}")
        if plan.returncode != 0:
            sys.exit(f"check_plan: plan --memory {self.limit}: {plan.stderr.strip()}")
        return ["--config", str(out)]

    def samples(self, techniques: dict[str, dict], rows: int) -> dict[str, list[str]]:
        chance, cases, drawn = random.Random(self.arguments.seed), {}, 0
        while len(cases) < self.arguments.samples and drawn < DRAWS:
            drawn += 1
            one = draw(chance, techniques, rows)
            if one is None or ", ".join(one[0]) in cases or not self.fits(one[1]):
                continue
            cases[", ".join(one[0])] = ["--config", self.arguments.model, *words(one[1])]
        return cases

    def train(self, case: list[str]) -> dict:
        run = call(self.arguments.program, "train", *case, *self.common, f"run.dir={self.folder / 'run'}")
        if run.returncode != 0:
            sys.exit(f"check_plan: train {' '.join(case)}: {run.stderr.strip()}")
        summary = json.loads((self.folder / "run/summary.json").read_text())
        steps = [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]
        return {"rates": [step["tokens_per_second"] for step in steps[2:]], "peak_bytes": summary["peak_bytes"],
                "commit": summary["commit"], "machine": summary["machine"]}


def records_of(budget: Budget, cases: dict[str, list[str]]):
    """A record a run, the cases in turns, each round begun by another."""
    names = list(cases)
    for turn in range(budget.arguments.rounds):
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            yield {"schema": 1, "budget": budget.limit, "case": name, "round": turn, "command": cases[name],
                   **budget.train(cases[name])}


def compared(records: list[dict], name: str, other: str) -> Interval:
    """Speed of a case over that of another, paired by rounds."""
    rates = {(r["case"], r["round"]): np.array(r["rates"]) for r in records}
    rounds = sorted({r["round"] for r in records})
    return ratio_of_rates([(rates[name, i], rates[other, i]) for i in rounds])


CHOICE = "the plan's choice"


def verdict(records: list[dict]) -> tuple[bool, str]:
    """Of the records of one budget."""
    speed = {name: np.median([np.median(r["rates"]) for r in records if r["case"] == name])
             for name in {r["case"] for r in records}}
    others = sorted((name for name in speed if name != CHOICE), key=lambda name: -speed[name])
    ratio = compared(records, CHOICE, others[0])
    holds = ratio.value >= ALLOWED or ratio.high >= 1
    return holds, (f"{records[0]['budget']}: the plan's choice makes {speed[CHOICE]:,.0f} tokens/s, the fastest of "
                   f"{len(others)} drawn {speed[others[0]]:,.0f} ({others[0]}); ratio {ratio.value:.3f}, 95 % interval "
                   f"{ratio.low:.3f} to {ratio.high:.3f}: {'holds' if holds else 'does not hold'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True, help="moelab")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of shards")
    parser.add_argument("--model", default="moe-micro", help="named model or YAML file (default: moe-micro)")
    parser.add_argument("--budgets", required=True, help="for example 320MiB,450MiB,800MiB")
    parser.add_argument("--samples", type=int, default=8, help="combinations drawn for a budget (default: 8)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: 3)")
    parser.add_argument("--steps", type=int, default=8, help="steps of a run, two of them warm-up (default: 8)")
    parser.add_argument("--seed", type=int, default=1, help="of the draws (default: 1)")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="file of records, written anew once all are made")
    arguments = parser.parse_args()
    if arguments.steps < 3 or arguments.samples < 1 or arguments.rounds < 1:
        parser.error("--steps: at least 3; --samples and --rounds: at least 1")
    table = json.loads(call(arguments.program, "techniques", "--json").stdout)["techniques"][1:]
    techniques = {t["name"]: of_plan(t) for t in table if of_plan(t)}
    all_hold = True
    draft = pathlib.Path(f"{arguments.out}.new")
    with tempfile.TemporaryDirectory() as scratch, open(draft, "w", encoding="utf-8") as out:
        for limit in arguments.budgets.split(","):
            budget = Budget(arguments, limit, pathlib.Path(scratch))
            choice = budget.choice()
            cases = {CHOICE: choice, **budget.samples(techniques, rows_of(choice))}
            if len(cases) < 2:
                sys.exit(f"check_plan: --budgets {limit}: none of {DRAWS} drawn combinations fits")
            records = []
            for record in records_of(budget, cases):
                records.append(record)
                out.write(json.dumps(record) + "\n")
                out.flush()
            holds, text = verdict(records)
            all_hold &= holds
            print(text, flush=True)
    draft.replace(arguments.out)
    sys.exit(0 if all_hold else 1)


if __name__ == "__main__":
    main()
