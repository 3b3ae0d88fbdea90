"""A plan of the harness: its parts are measured once each, and go on where they stopped."""
import json
import pathlib
import signal

import pytest
from sweeps import Sweep, wait_for

PLAN = """
minutes: 60
fits: moe-nano
parts:
  - {name: core, rounds: 2, steps: 3, singles: [bf16, guides_stack], leave_one_out: guides_stack,
     ladder: [flash_attention, bf16]}
  - {name: small, model: moe-nano, rounds: 1, steps: 3, crossover: [bf16]}
  - {name: presets, rounds: 1, steps: 2, settings: {run.scale: 0.015625}, fit: {gpu-8gb: moe-nano}}
  - {name: pairs, rounds: 1, steps: 3, pairs: 2}
"""
PLANS = pathlib.Path(__file__).resolve().parents[3] / "bench/tradeoff"
PEAKS = {(): 100, ("bf16",): 60, ("capacity", "bf16"): 50, ("bf16", "lion"): 40, ("capacity", "lion"): 70}
ANSWERS = {
    "techniques": {"schema": 1, "model": "moe-pico", "cases": [
        *({"techniques": list(names), "status": "ok", "ranks": 1, "peak": peak} for names, peak in PEAKS.items()),
        {"techniques": ["bf16", "fp16"], "status": "refused", "reason": "both set precision.compute"}]},
    "fits": {"schema": 1, "rows": [{"size": "8GB"}]},
}
WITHOUT = ["flash_attention", "capacity", "bf16", "recompute_full", "accumulation"]
CORE = ["baseline", "bf16", "guides_stack", *(f"guides_stack without {name}" for name in WITHOUT),
        "ladder 1: flash_attention", "ladder 2: + bf16"]
RUNS = {*(("core", case, number) for case in CORE for number in (1, 2)), ("small", "baseline", 1), ("small", "bf16", 1),
        ("presets", "gpu-8gb's baseline", 1), ("presets", "gpu-8gb", 1), ("pairs", "baseline", 1),
        ("pairs", "capacity + bf16", 1), ("pairs", "bf16 + lion", 1)}


def runs_of(sweep: Sweep) -> list[tuple]:
    return [(record["sweep"], record["case"], record["round"]) for record in sweep.records()]


@pytest.fixture
def plan(tmp_path) -> str:
    (tmp_path / "plan.yaml").write_text(PLAN)
    return "--plan=plan.yaml"


def test_a_plan_is_measured_part_by_part_and_once(fake, plan):
    sweep = fake(answers=ANSWERS)
    assert f"0 of {len(RUNS)} runs done before" in sweep.run(plan)
    runs = runs_of(sweep)
    assert len(runs) == len(RUNS) and set(runs) == RUNS
    assert list(dict.fromkeys(run[0] for run in runs)) == ["core", "small", "presets", "pairs"]
    record = {(record["sweep"], record["case"]): record for record in sweep.records()}
    families = {("core", "bf16"): "single", ("core", "guides_stack without bf16"): "leave_one_out",
                ("core", "ladder 2: + bf16"): "ladder", ("small", "bf16"): "crossover", ("presets", "gpu-8gb"): "fit",
                ("pairs", "bf16 + lion"): "pair"}
    assert {key: record[key]["family"] for key in families} == families
    assert record["core", "guides_stack without bf16"]["against"] == "guides_stack"
    assert record["core", "ladder 2: + bf16"]["techniques"] == ["flash_attention", "bf16"]
    assert record["presets", "gpu-8gb"]["against"] == "gpu-8gb's baseline"
    assert all(record["presets", case]["model"] == "moe-nano" for case in ("gpu-8gb", "gpu-8gb's baseline"))
    assert record["small", "bf16"]["model"] == "moe-nano" and record["core", "bf16"]["model"] == "moe-pico"
    called = sweep.called()
    assert sweep.asked() == ["techniques", "fits"]
    for name, answer in (("predictions", "techniques"), ("fits", "fits")):
        stored = json.loads((sweep.out.parent / f"{name}.json").read_text())
        assert stored["schema"] == 1 and stored["machine"] == record["core", "bf16"]["machine"]
        assert f" {answer} " in stored["command"] and stored["commit"] == record["core", "bf16"]["commit"]
        assert stored.items() >= ANSWERS[answer].items()
    assert "train.steps=3" in json.loads((sweep.out.parent / "predictions.json").read_text())["command"]
    assert f"{len(RUNS)} of {len(RUNS)} runs done before" in sweep.run(plan)
    assert sweep.called() == called and runs_of(sweep) == runs


def test_an_interrupted_plan_goes_on_and_repeats_nothing(fake, plan):
    sweep = fake({"guides_stack without bf16": "hangs"}, ANSWERS)
    process = sweep.start(plan)
    wait_for(pathlib.Path(f"{sweep.calls}.pids"))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    before = sweep.called()
    assert process.returncode == 128 + signal.SIGTERM and 0 < len(before) < len(RUNS)
    fake(answers=ANSWERS).run(plan)
    runs = runs_of(sweep)
    assert len(runs) == len(RUNS) and set(runs) == RUNS
    assert len(sweep.called()) == len(RUNS) + 1, "the run that was cut off is the only one made twice"


def test_a_plan_stops_when_its_time_is_over_and_goes_on(fake, tmp_path):
    (tmp_path / "plan.yaml").write_text("""
minutes: 0.001
parts: [{name: one, rounds: 2, steps: 3, singles: [bf16]}, {name: two, rounds: 1, steps: 4, singles: [capacity]}]
""")
    sweep = fake(dict.fromkeys(["baseline", "bf16", "capacity"], "sleeps"))
    calls, out = 1, sweep.run("--plan=plan.yaml")
    while "the time set is over" in out:
        calls, out = calls + 1, sweep.run("--plan=plan.yaml")
    assert 2 <= calls <= 6
    assert sorted(runs_of(sweep)) == sorted([("one", case, number) for case in ("baseline", "bf16") for number in (1, 2)]
                                            + [("two", "baseline", 1), ("two", "capacity", 1)])
    assert len(sweep.called()) == 6


def test_portions_together_are_the_whole_and_each_has_its_own_baseline(fake, plan, tmp_path):
    whole = []
    for portion in ("1/3", "2/3", "3/3"):
        sweep = fake(answers=ANSWERS)
        sweep.out = tmp_path / portion[0] / "records.jsonl"
        sweep.out.parent.mkdir()
        sweep.run(f"--plan={tmp_path / 'plan.yaml'}", "--part", portion)
        own = runs_of(sweep)
        against = {(one["sweep"], one["against"], one["round"]) for one in sweep.records() if one["against"]}
        assert against and against <= set(own)
        whole += own
    assert len(whole) == len(set(whole)), "rounds of two portions have other numbers, so that their baselines stay apart"
    assert {(part, case) for part, case, _ in whole} == {(part, case) for part, case, _ in RUNS}
    assert "--part 4/3: I/N is expected" in sweep.run(f"--plan={tmp_path / 'plan.yaml'}", "--part=4/3", code=2)


def test_each_round_of_a_part_with_seeds_has_its_own(fake, tmp_path):
    (tmp_path / "plan.yaml").write_text("""
parts: [{name: quality, seeds: true, rounds: 2, steps: 3, singles: [bf16, lion], rates: {lion: 3e-4}}]
""")
    sweep = fake(lion="takes 1 9")  # however noisy, no third seed is drawn
    sweep.run("--plan=plan.yaml", "--part=2/2", "--spread=0.01")
    records = sweep.records()
    assert [(record["case"], record["seed"]) for record in records if record["case"] != "baseline"] == [
        ("lion", 1), ("lion", 2)]
    assert {record["case"]: record["seed"] for record in records if record["round"] % 2} == {"baseline": 1, "lion": 1}
    assert all(f" train.seed={record['seed']} " in record["command"] + " " for record in records)
    assert len({record["settings_hash"] for record in records}) == 2 and len(records) == 4


@pytest.mark.parametrize("name, parts, cases", [("rates", 3, 18), ("quality", 4, 22)])
def test_the_plans_of_quality_are_runs_with_a_loss_at_their_end(fake, name, parts, cases):
    sweep = fake()
    sweep.model = None
    sweep.run(f"--plan={PLANS / name}.yaml", "--rounds=1")
    records = sweep.records()
    assert len({record["sweep"] for record in records}) == parts
    assert len({(record["sweep"], record["case"]) for record in records}) == cases
    assert all(record["model"] == "moe-pico" and record["seed"] == 1 for record in records)
    assert all(int(record["settings"]["eval.batches"]) > 0 and record["settings"]["train.steps"] == "2000" for record in records)


def test_a_plans_model_gives_way_to_the_one_asked_for(fake, tmp_path):
    (tmp_path / "plan.yaml").write_text("""
model: moe-nano
parts: [{name: one, rounds: 1, steps: 3, singles: [bf16]},
        {name: two, model: moe-micro, rounds: 1, steps: 3, singles: [bf16]}]
""")
    sweep = fake()
    asked = sweep.model
    for model in (None, asked):
        sweep.model = model
        sweep.run("--plan=plan.yaml")
    assert [(r["sweep"], r["model"]) for r in sweep.records() if r["case"] == "bf16"] == [
        ("one", "moe-nano"), ("two", "moe-micro"), ("one", asked)]


def test_mistakes_in_a_plan_or_its_predictions_measure_nothing(fake, plan, tmp_path):
    sweep = fake()
    assert "techniques --pairs" in (message := sweep.run(plan, code=2)) and "moelab: no answer" in message
    assert sweep.records() == [] and not list(tmp_path.glob("*.json")) and not list(tmp_path.glob("*.work"))
    sweep.out.write_text('{"schema":2}\n')
    assert "record of schema 2" in sweep.run(plan, code=2)
    assert sweep.asked() == ["techniques"] and sweep.out.read_text() == '{"schema":2}\n'
    sweep.out.unlink()
    (tmp_path / "plan.yaml").write_text(PLAN.replace("leave_one_out", "leave_one_uot"))
    assert "plan.yaml:5: unknown key leave_one_uot of a part; did you mean leave_one_out?" in sweep.run(plan, code=2)
    assert "did you mean quick?" in sweep.run("--plan=quik", code=2)
    assert "--full" in sweep.run("--full", "--quick", code=2)
    assert "did you mean guides_stack without bf16?" in sweep.run("--quick", "--only=guides_stack without bf61", code=2)
    assert not sweep.out.exists() and not sweep.calls.exists()


def test_some_cases_of_the_quick_plan(fake):
    sweep = fake()
    sweep.run("--quick", "--only=bf16,guides_stack without bf16", "--rounds=1")
    assert runs_of(sweep) == [("core", case, 1) for case in ("baseline", "bf16", "guides_stack",
                                                             "guides_stack without bf16")]
