"""scripts/check_plan.py, with a program whose speeds are known."""
import json
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import check_plan  # noqa: E402
from report import planner_checks, sidecars  # noqa: E402

# Fits with at least one technique or two micro-batches. Each technique, and each halving, makes a step 10 % slower.
FAKE = '''#!{python}
import json, pathlib, sys
TABLE = [("baseline", {{}}), ("a", {{"activations.checkpoint": "full"}}), ("b", {{"optim.name": "adam8bit"}}),
         ("c", {{"activations.storage": "host"}}), ("d", {{"optim.name": "lion"}}), ("e", {{"model.dispatch": "dropless"}})]
command, given = sys.argv[1], dict(word.split("=", 1) for word in sys.argv if "=" in word)
if command == "techniques":
    rows = [{{"name": name, "settings": settings, "ranks": 1, "parts": []}} for name, settings in TABLE]
    print(json.dumps({{"techniques": rows}}))
elif command == "plan":
    pathlib.Path(sys.argv[sys.argv.index("--out") + 1]).write_text(
        "train: {{micro_batch: 4, accumulation: 1}}\\nactivations: {{checkpoint: full}}\\n")
    print("best first\\n\\n           peak   tokens/s  techniques\\n  1   299.7 MiB       3806  a, b\\n  2   1 MiB  7  b")
elif "--print-config" in sys.argv:
    print("train: {{micro_batch: 4, accumulation: 1}}\\nactivations: {{checkpoint: none}}")
else:
    config = sys.argv[sys.argv.index("--config") + 1]
    used = sum(given.get(key) == value for _, row in TABLE for key, value in row.items())
    slow = used + {{"4": 0, "2": 1, "1": 2}}[given.get("train.micro_batch", "4")]
    if command == "estimate":
        sys.exit(0 if slow else 3)
    folder = pathlib.Path(given["run.dir"])
    folder.mkdir(exist_ok=True)
    rate = {speed} if config.endswith(".yaml") else 1000 * 0.9 ** slow
    (folder / "summary.json").write_text(json.dumps({{"peak_bytes": 1, "commit": "x", "machine": {{}}}}))
    lines = [json.dumps({{"tokens_per_second": 1 if step < 2 else rate}}) for step in range(int(given["train.steps"]))]
    (folder / "metrics.jsonl").write_text("\\n".join(lines))
'''


def run(tmp_path, speed: float, *arguments):
    program = tmp_path / "moelab"
    program.write_text(FAKE.format(python=sys.executable, speed=speed))
    program.chmod(0o755)
    return subprocess.run([sys.executable, ROOT / "scripts/check_plan.py", "--program", program, "--data", tmp_path, "--out",
                           tmp_path / "out.jsonl", "--budgets", "1MiB", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("speed", "code", "says"), [(1000, 0, ": holds"), (860, 0, ": holds"), (850, 1, ": does not hold")])
def test_within_five_percent_of_the_fastest_drawn(tmp_path, speed, code, says):
    done = run(tmp_path, speed, "--samples", "5", "--rounds", "2")
    assert done.returncode == code and done.stdout.strip().endswith(says), done.stderr
    assert "the fastest of 5 drawn 900" in done.stdout
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(records) == 2 * 6
    drawn = [" ".join(r["command"]) for r in records]
    assert not any(word in line for line in drawn for word in ("host", "lion", "dropless"))
    # each round is begun by another
    assert [records[0]["case"], records[6]["case"]] == [planner_checks.CHOICE, records[1]["case"]]


def test_the_choice_outlives_its_file(tmp_path):
    done = run(tmp_path, 1000, "--samples", "2", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record.get("techniques") for record in records] == [["a", "b"], None, None]
    assert [record.get("settings") for record in records] == [{"activations.checkpoint": "full"}, None, None]
    assert [record.get("predicted") for record in records] == [3806, None, None] and "(predicted: 3,806)" in done.stdout
    (found,) = sidecars.read_checks(tmp_path / "out.jsonl")
    assert found.choice.techniques == "a, b" and found.choice.predicted == 3806 and found.holds


def test_a_choice_within_the_noise_holds():
    def rates(name, values):
        return [planner_checks.Run("1MiB", name, number, np.full(5, value), "", 1, "abc") for number, value in enumerate(values)]
    slow, fast = rates(planner_checks.CHOICE, [90.0, 120.0, 80.0]), rates("drawn", [100.0, 100.0, 100.0])
    found = planner_checks.check(slow + fast)
    assert found.holds and "ratio 0.900" in check_plan.spoken(found)
    assert not planner_checks.check(rates(planner_checks.CHOICE, [90.0, 91.0, 90.0]) + fast).holds


def test_contradictions_are_not_drawn():
    techniques = {"a": {"x": "1"}, "b": {"x": "2"}, "c": {"y": "1"}}
    chance = random.Random(0)
    drawn = [check_plan.draw(chance, techniques, 8) for _ in range(300)]
    assert None in drawn
    named = [set(one[0]) for one in drawn if one]
    assert not any({"a", "b"} <= names for names in named) and any({"a", "c"} <= names for names in named)
    assert {one[1]["train.micro_batch"] * one[1]["train.accumulation"] for one in drawn if one} == {8}


def test_a_plan_of_one_rank_divides_nothing():
    row = {"settings": {"parallel.data": "2", "activations.checkpoint": "full"}, "parts": [], "ranks": 1}
    assert check_plan.of_plan(row) and not check_plan.of_plan(row | {"ranks": 2})


def test_nothing_that_fits_is_an_error(tmp_path):
    done = run(tmp_path, 1, "--samples", "0")
    assert done.returncode == 2


def test_a_mistake_leaves_the_old_records_alone(tmp_path):
    (tmp_path / "out.jsonl").write_text("as it was")
    done = run(tmp_path, 1000, "--budgets", "/none/1MiB")
    assert done.returncode == 1 and "plan --memory /none/1MiB" in done.stderr
    assert (tmp_path / "out.jsonl").read_text() == "as it was"
