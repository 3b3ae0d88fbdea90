#!/usr/bin/env python3
"""Whether the planner's choice is the fastest: measures it beside combinations drawn from all that fit the budget.

For each budget the plan's winner and drawn combinations of techniques, each of which fits by its dry run, train in
turns for a few steps. The choice holds when its speed is within 5 % of the fastest drawn one's, or no further than the
95 % interval of their ratio.

example: scripts/check_plan.py --program build/dev/bin/moelab --data data/python-stdlib --out plans.jsonl \
  --budgets 320MiB,450MiB,800MiB
"""
import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import dataclasses
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import yaml

from report.figures import flat
from report.planner_checks import CHOICE, Check, check, parse_run
from report.working import each

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
    the device's, and no drive is given; it is of one rank. Empty: it takes no part."""
    settings = {key: value for key, value in technique["settings"].items() if not key.startswith(("model.", "attention."))}
    away = {"host", "nvme"} & set(settings.values())
    other_rule = settings.get("optim.name", "adamw") not in ("adamw", "adam8bit", "adamw_compact")
    batch = "train.micro_batch" in settings
    return {} if technique["parts"] or technique["ranks"] > 1 or away or other_rule or batch else settings


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


def rows_of(config: dict) -> int:
    """The sequences of a step."""
    return config["train"]["micro_batch"] * config["train"]["accumulation"]


def first_of(printed: str) -> tuple[float, list[str]]:
    """Tokens a second and techniques in the first row of what `moelab plan` prints."""
    row = re.search(r"^ +1  +[\d.]+ \S+  +(\d+)  (.+)$", printed, re.M)
    if row is None:
        sys.exit("check_plan: moelab plan printed no row 1; is --program as new as this script?")
    return float(row[1]), row[2].split(", ")


@dataclasses.dataclass(frozen=True)
class Choice:
    """What the planner chose: words for `moelab train`, and what records keep once its file is gone."""

    command: list[str]
    rows: int  # sequences of a step
    predicted: float  # tokens/s
    techniques: list[str]
    settings: dict[str, str]  # that differ from the model's own


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

    def choice(self) -> Choice:
        out, data = self.folder / f"{self.limit}.yaml", f"data.path={self.arguments.data}"
        plan = call(self.arguments.program, "plan", "--memory", self.limit, "--model", self.arguments.model, "--out", out,
                    data)
        if plan.returncode != 0:
            sys.exit(f"check_plan: plan --memory {self.limit}: {plan.stderr.strip()}")
        model = call(self.arguments.program, "train", "--config", self.arguments.model, "--print-config", data)
        config, before = yaml.safe_load(out.read_text()), flat(yaml.safe_load(model.stdout))
        settings = {key: value for key, value in flat(config).items() if before.get(key) != value}
        return Choice(["--config", str(out)], rows_of(config), *first_of(plan.stdout), settings)

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
        run = call(self.arguments.program, "train", "--overwrite", *case, *self.common, f"run.dir={self.folder / 'run'}")
        if run.returncode != 0:
            sys.exit(f"check_plan: train {' '.join(case)}: {run.stderr.strip()}")
        summary = json.loads((self.folder / "run/summary.json").read_text())
        steps = [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]
        return {"rates": [step["tokens_per_second"] for step in steps[2:]], "peak_bytes": summary["peak_bytes"],
                "commit": summary["commit"], "machine": summary["machine"]}


def records_of(budget: Budget, choice: Choice, cases: dict[str, list[str]]):
    """A record a run, the cases in turns, each round begun by another."""
    names = list(cases)
    for turn in range(budget.arguments.rounds):
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            chosen = {"techniques": choice.techniques, "settings": choice.settings, "predicted": choice.predicted}
            yield {"schema": 1, "budget": budget.limit, "case": name, "round": turn, "command": cases[name],
                   **(chosen if name == CHOICE else {}), **budget.train(cases[name])}


def spoken(found: Check) -> str:
    return (f"{found.choice.budget}: the plan's choice makes {found.speed:,.0f} tokens/s (predicted: "
            f"{found.choice.predicted:,.0f}), the fastest of {found.drawn} "
            f"drawn {found.fastest_speed:,.0f} ({found.fastest}); ratio {found.ratio.value:.3f}, 95 % interval "
            f"{found.ratio.low:.3f} to {found.ratio.high:.3f}: {found.verdict}")


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
            cases = {CHOICE: choice.command, **budget.samples(techniques, choice.rows)}
            if len(cases) < 2:
                sys.exit(f"check_plan: --budgets {limit}: none of {DRAWS} drawn combinations fits")
            records = []
            for record in each(f"check_plan: {limit}, training", records_of(budget, choice, cases), arguments.rounds * len(cases)):
                records.append(record)
                out.write(json.dumps(record) + "\n")
                out.flush()
            found = check([parse_run(record) for record in records])
            all_hold &= found.holds
            print(spoken(found), flush=True)
    draft.replace(arguments.out)
    sys.exit(0 if all_hold else 1)


if __name__ == "__main__":
    main()
