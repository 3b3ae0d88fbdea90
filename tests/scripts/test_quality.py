"""scripts/quality_page.py: changes of held-out losses in pairs of one seed, worked out by hand, and rates that end lowest."""
import json
import pathlib
import subprocess
import sys

import matplotlib
import pytest
import sweep_records as made
import yaml
from report_calls import call, sweeps_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import figures, quality, records, sidecars  # noqa: E402
from report.plots import loss_colours  # noqa: E402


def run(case: str, seed: int, loss: float, **changes) -> dict:
    """A run of one seed that ends at this held-out loss."""
    one = made.record(case, seed, family="single", sweep=changes.pop("sweep", "quality"), settings={"case": case}, **changes)
    one["summary"] |= {"held_out_loss": loss, "settings": {"optim": {"lr": changes.get("rate", 1e-3)}}}
    return one


def seeds(case: str, losses: list[float], **changes) -> list[dict]:
    return [run(case, seed, loss, **changes) for seed, loss in enumerate(losses, 1)]


BASE = [2.0, 2.1, 1.9, 2.2, 2.0]


def page(folder: pathlib.Path, rows: list[dict]) -> subprocess.CompletedProcess:
    made.write(folder / "quality.jsonl", rows)
    return subprocess.run([ROOT / "scripts/quality_page.py", folder], capture_output=True, text=True, check=False)


def cells(folder: pathlib.Path) -> dict[str, list[str]]:
    rows = [line.split("|")[1:-1] for line in (folder / "quality.md").read_text().splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in rows}


def test_the_change_is_of_pairs_and_its_interval_students(tmp_path):
    """Differences of 0.1, 0.1, 0.1, 0.2, 0.0: mean 0.1, deviation 0.0707, times 2.776 / sqrt(5) is 0.0878."""
    differences = {"lion": [0.1, 0.1, 0.1, 0.2, 0.0], "bf16": [0.01, -0.01, 0.01, -0.01, 0.0], "recompute_full": [0.0] * 5}
    rows = seeds("baseline", BASE)
    for case, changes in differences.items():
        rows += seeds(case, [base + change for base, change in zip(BASE, changes)], activations=200)
    done = page(tmp_path, rows)
    assert done.returncode == 0, done.stderr
    found = cells(tmp_path)
    assert list(found) == ["lion", "bf16", "recompute_full"], "the largest change first"
    assert found["lion"][:3] == ["+0.1000 (+0.0122 to +0.1878)", "**worse**", "0.0878"]
    assert found["bf16"][1] == "**the seeds can't tell**" and found["bf16"][5] == "5"
    assert found["recompute_full"][:3] == ["0", "**the seeds can't tell**", "0.0000"]
    assert found["lion"][3] == "0.50 ×"
    assert found["lion"][6].startswith("`")
    assert (tmp_path / "quality.png").stat().st_size > 5000


def test_what_was_tried_again_on_another_model_stands_apart(tmp_path):
    """The report's colours are of the model that has most techniques, whatever the other says."""
    rows = seeds("baseline", BASE) + seeds("lion", [base + 0.1 for base in BASE]) + seeds("bf16", BASE)
    rows += seeds("baseline", BASE[:3], model="moe-nano") + seeds("lion", [base - 0.2 for base in BASE[:3]], model="moe-nano")
    assert page(tmp_path, rows).returncode == 0
    first, _, again = (tmp_path / "quality.md").read_text().partition("## Again on a larger model")
    assert "| `lion` | +0.1000 |" in first and "-0.2000" not in first and "`moe-nano`" not in first
    assert "| `lion` | -0.2000 | **better** |" in again and again.count("| `lion`") == 1 and "+0.1000, **worse**" in again
    assert "On `moe-nano`, `lion` ends at a better loss instead." in again
    found = sidecars.read_beside([tmp_path]).effects
    assert [effect.change.value > 0 for effect in found if effect.case.name == "lion"] == [True] and len(found) == 2


def test_a_change_that_is_seen_is_never_grey():
    def face(low: float, value: float, high: float) -> object:
        change = figures.Interval(value, low, high)
        return loss_colours.face(quality.Effect(None, None, change, high - value))
    assert face(-0.001, 0.003, 0.007) == face(-0.2, -0.05, 0.1) == loss_colours.GREY
    seen = [face(value - 0.001, value, value + 0.001) for value in (-0.5, -0.07, -0.03, -0.005, 0.005, 0.03, 0.07, 0.5)]
    grey = matplotlib.colors.to_rgba(loss_colours.GREY)
    assert all(max(abs(a - b) for a, b in zip(one, grey)) > 0.1 for one in seen) and len(set(seen)) == 6


def test_seeds_are_never_mixed(tmp_path):
    """A run is held against the baseline of its own seed: the losses of seeds differ by more than the technique's change."""
    rows = seeds("baseline", [1.0, 5.0]) + seeds("lion", [1.5, 5.5])
    assert page(tmp_path, rows).returncode == 0 and cells(tmp_path)["lion"][:3] == ["+0.5000", "**worse**", "0.0000"]


def test_a_report_has_the_changes_of_the_quality_beside_its_records(tmp_path):
    made.write(tmp_path / "records.jsonl", made.sweep())
    rows = seeds("baseline", BASE) + seeds("flash_attention", [base + 0.1 for base in BASE])
    made.write(tmp_path / "quality.jsonl", rows + seeds("bf16", [2.01, 2.09, 1.91, 2.19, 2.0]))
    done = call(tmp_path, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "report.md").read_text()
    costs = text.partition("## What each technique costs")[2].partition("## ")[0]
    said = {line.split("|")[1].strip(" `"): line.split("|")[5].strip() for line in costs.splitlines() if line.startswith("| `")}
    assert said["flash_attention"] == "+0.1000, **worse**" and said["bf16"] == "**the seeds can't tell**"
    assert said["capacity"] == "not measured"
    assert f"## {quality.TITLE}" in text and "![Memory, speed and change of the held-out loss" in text
    assert "| `flash_attention` | +0.1000 | **worse** | 0.0000 | 5 | `moe-micro`" in text
    assert '<strong class="grey">the seeds can\'t tell' in (tmp_path / "report.html").read_text()
    assert (tmp_path / "quality.png").stat().st_size > 5000
    (tmp_path / "quality.jsonl").unlink()
    assert call(tmp_path, "--out", tmp_path).returncode == 0
    text = (tmp_path / "report.md").read_text()
    assert quality.TITLE not in text and "final loss" not in text


@pytest.mark.parametrize("sequence, known", [(256, False), (1024, True), (2048, True)])
def test_what_is_known_of_longer_rows_says_nothing_of_shorter_ones(tmp_path, sequence, known):
    rows = seeds("baseline", BASE) + seeds("sliding_window", BASE)
    for row in rows:
        row["summary"]["settings"] |= {"train": {"sequence": 1024}}
    case = made.record("sliding_window")
    case["summary"]["settings"] = {"train": {"sequence": sequence}}
    effects, cases = (sweeps_of(tmp_path, some) for some in (rows, [made.record(), case]))
    found = quality.about(cases[0].cases, quality.effects(effects))
    assert list(found) == (["sliding_window"] if known else [])


def test_a_report_without_quality_has_that_of_a_machine_near_and_says_so(tmp_path):
    here, there = tmp_path / "results/here", tmp_path / "results/there"
    for folder in (here, there):
        folder.mkdir(parents=True)
    made.write(here / "records.jsonl", made.sweep())
    made.write(there / "quality.jsonl", seeds("baseline", BASE) + seeds("flash_attention", [base + 0.1 for base in BASE]))
    assert call(here, "--out", here).returncode == 0
    text = (here / "report.md").read_text()
    assert "+0.1000, **worse**" in text and "](../there/quality.md)" in text
    assert "on a CPU, 2 cores" in text.partition(f"## {quality.TITLE}")[2].partition("## ")[0]
    assert "![Memory, speed and change" not in text and not (here / "quality.png").exists(), "its speeds are of the other machine"


def test_one_seed_alone_shows_nothing(tmp_path):
    done = page(tmp_path, [run("baseline", 1, 2.0), run("lion", 1, 2.1), run("baseline", 2, 2.0), run("lion", 2, None)])
    assert done.returncode == 2 and "two seeds" in done.stderr and not (tmp_path / "quality.md").exists()


def test_records_of_quality_are_not_those_of_a_report(tmp_path):
    for name in ("quality.jsonl", "rates.jsonl", "miniatures.jsonl", "records.jsonl"):
        made.write(tmp_path / name, seeds("baseline", BASE))
    assert [file.name for file in records.files_of(tmp_path)] == ["records.jsonl"]


def rated(losses: dict[str, dict[float, float]]) -> list[dict]:
    rows = []
    for case, found in losses.items():
        for rate, loss in found.items():
            one = run(case, 1, loss, sweep=f"rate {rate}")
            one["summary"]["settings"]["optim"]["lr"] = rate
            rows.append(one)
    return rows


def test_the_rates_that_end_lowest_go_into_the_plan(tmp_path):
    made.write(tmp_path / "rates.jsonl", rated({"baseline": {3e-4: 2.2, 1e-3: 2.0, 3e-3: 2.1}, "lion": {3e-5: 2.5, 1e-4: 2.3, 3e-4: 2.4},
                                                "adam8bit": {3e-4: 2.3, 1e-3: 2.0, 3e-3: 2.1}}))
    command = [ROOT / "scripts/quality_page.py", "--plan", tmp_path / "rates.jsonl"]
    plan = yaml.safe_load(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    given = yaml.safe_load(quality.PLAN.read_text())
    assert [part["name"] for part in plan["parts"]] == [part["name"] for part in given["parts"]]
    assert all(part["settings"]["optim.lr"] == 1e-3 for part in plan["parts"])
    assert plan["parts"][0]["rates"] == {"lion": 1e-4}, "a rule that ends lowest at the baseline's rate has no other"
    assert all("rates" not in part for part in plan["parts"][1:])
    made.write(tmp_path / "rates.jsonl", rated({"baseline": {1e-3: 2.0}}))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "two rates or more" in done.stderr


@pytest.mark.parametrize("portions", [1, 2])
def test_portions_of_a_sweep_are_put_together(tmp_path, portions):
    """The rounds of another portion have other numbers, and its baselines other losses, as on another machine."""
    rows = seeds("baseline", BASE) + seeds("lion", [base + 0.1 for base in BASE])
    for one in seeds("baseline", [base + 1 for base in BASE]) + seeds("muon", [base + 1.2 for base in BASE]):
        rows.append(one | {"round": one["round"] + 100000 * (portions - 1)})
    sweep, = figures.sweeps([records.parse(json.loads(json.dumps(row))) for row in rows])
    found = {effect.case.name: effect.change.value for effect in quality.effects([sweep])}
    if portions == 2:
        assert found == pytest.approx({"lion": 0.1, "muon": 0.2})
    else:
        assert found["lion"] != pytest.approx(0.1), "without numbers of its own a portion takes the other's baselines"
