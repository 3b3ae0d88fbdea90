"""scripts/compare.py, on records and runs whose differences are known."""
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import sweep_records as made

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import comparison, figures, records, runs as measured  # noqa: E402


def call(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, ROOT / "scripts" / "compare.py", *map(str, arguments)], capture_output=True,
                          text=True, check=False)


def refused(*arguments) -> str:
    done = call(*arguments)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stdout + done.stderr
    return done.stderr


def run_folder(folder: pathlib.Path, milliseconds: float = 1000, count: int = 12, settings: dict | None = None,
               **changes) -> pathlib.Path:
    """As `moelab train` leaves it, with the fields that compare reads."""
    folder.mkdir()
    lines = [{"step": int(step), "tokens": tokens, "loss": loss, "step_ms": ms, "status": "normal"}
             for step, tokens, loss, ms in made.steps(milliseconds, count, jitter=0.01)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {"schema": 1, "status": "ok", "commit": "abc", "command": "moelab train", "machine": {"cpu": "a CPU", "cores": 2},
               "model": {"preset": "moe-micro", "parameters": 10}, "peak_bytes": 2**30,
               "settings": settings or {"train": {"sequence": 256, "micro_batch": 8}, "run": {"name": folder.name}}, **changes}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def store(tmp_path: pathlib.Path, rounds: int = 3, **cases: float) -> pathlib.Path:
    """A baseline of 1000 ms and cases of so many; every round half as slow again, in all cases alike."""
    rows = [made.record(name, number, ms * 1.5**number, jitter=0.002) for number in range(rounds)
            for name, ms in {"baseline": 1000, **cases}.items()]
    return made.write(tmp_path / "records.jsonl", rows)


def verdict_of(*arguments: str) -> str:
    return comparison.compare(*map(measured.read, arguments)).verdict


@pytest.mark.parametrize("milliseconds, verdict", [(2000, "SLOWER"), (500, "FASTER"), (1000, "SAME"), (1030, "SLOWER"),
                                                   (1020, "UNSURE"), (980, "UNSURE"), (975, "FASTER"), (985, "SAME")])
def test_cases_of_one_sweep_are_paired_by_round(tmp_path, milliseconds, verdict):
    """Rounds differ by half, pairs don't: unpaired, nothing but UNSURE could be said of most."""
    path = store(tmp_path, other=milliseconds)
    outcome = comparison.compare(measured.read(f"{path}:baseline"), measured.read(f"{path}:other"))
    assert outcome.paired and outcome.rounds == 3
    assert outcome.speed.value == pytest.approx(1000 / milliseconds)
    assert outcome.verdict == verdict, outcome


@pytest.mark.parametrize("rounds, verdicts", [(1, ["UNSURE", "UNSURE", "UNSURE"]), (2, ["UNSURE", "UNSURE", "SLOWER"]),
                                              (3, ["SAME", "SLOWER", "SLOWER"])])
def test_few_rounds_know_less(tmp_path, rounds, verdicts):
    path = store(tmp_path, rounds, twin=1000, little=1040, much=2000)
    assert [verdict_of(f"{path}:baseline", f"{path}:{name}") for name in ("twin", "little", "much")] == verdicts


def test_one_round_in_a_slow_spell_of_its_baseline_decides_nothing(tmp_path):
    """Its baseline took half as long again in that round, and in no other."""
    rows = [made.record("baseline", number, 1500 if number == 1 else 1000, jitter=0.01) for number in range(1, 6)]
    path = made.write(tmp_path / "records.jsonl", [*rows, made.record("other", 1, 1000, jitter=0.01)])
    outcome = comparison.compare(measured.read(f"{path}:baseline"), measured.read(f"{path}:other"))
    assert (outcome.verdict, outcome.rounds, outcome.paired) == ("UNSURE", 1, True)
    assert comparison.ratio_text(outcome) == "1.500 × (one round)"


def test_noisy_twins_are_hardly_ever_told_apart():
    """Runs that differ by 3 % by chance alone: hardly more than one verdict in ten says that one is faster."""
    generator = np.random.default_rng(11)

    def subject(name: str, rounds: int) -> measured.RunSet:
        runs = [records.parse(made.record(name, number, 1000 * generator.normal(1, 0.03), jitter=0.02))
                for number in range(rounds)]
        return measured.RunSet(name, runs, "one sweep", [])

    for rounds in (1, 3, 5):
        said = [comparison.compare(subject("a", rounds), subject("b", rounds)).verdict for _ in range(60)]
        assert sum(word in ("FASTER", "SLOWER") for word in said) <= 9, (rounds, said)


def test_runs_by_their_folders(tmp_path):
    slow, fast = run_folder(tmp_path / "slow", 2000), run_folder(tmp_path / "fast", settings={
        "train": {"sequence": 256, "micro_batch": 4}, "run": {"name": "fast"}}, peak_bytes=2**29)
    done = call(slow, fast, slow)
    assert done.returncode == 0, done.stderr
    _, _, first, second, third, *_ = done.stdout.splitlines()
    assert "UNSURE" in second and "2.000 × (one round)" in second and "512.00 MiB (0.500 ×)" in second
    assert "UNSURE" not in first and "UNSURE" in third and "run.name" not in done.stdout
    assert re.search(r"^train\.micro_batch +8 +4 +8$", done.stdout, re.MULTILINE), done.stdout
    assert "rounds don't pair" in done.stdout and "one round alone" in done.stdout


def test_interval_of_unpaired_runs_holds_what_it_should():
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(30):
        sides = [[generator.normal(mean, 0.04 * mean, 12) for _ in range(6)] for mean in (1500, 1000)]
        draws = [figures.drawn_rates(side, index) for index, side in enumerate(sides)]
        interval = figures.interval_of(1.5, draws[0] / draws[1])
        held += interval.low <= 1.5 <= interval.high
    assert held >= 25  # 28 or 29 are expected


def test_cases_of_several_parts_need_the_part(tmp_path):
    path = made.write(tmp_path / "r.jsonl", made.plan())
    assert "core/baseline" in refused(f"{path}:baseline", f"{path}:bf16")
    done = call(f"{path}:core/baseline", f"{path}:core/ladder 2: + bf16")
    assert done.returncode == 0 and "FASTER" in done.stdout, done.stdout + done.stderr


def test_what_differs_besides_is_said(tmp_path):
    a = run_folder(tmp_path / "a")
    b = run_folder(tmp_path / "b", 1000, 9, machine={"cpu": "another"}, commit="def", status="oom")
    text = call(a, b).stdout
    for words in ("another machine: another", "commit def, not abc", "losses don't compare", "ended with status oom"):
        assert words in text, text


def test_mistakes_are_named(tmp_path):
    path, run = store(tmp_path), run_folder(tmp_path / "run")
    assert "no case bf17; it has baseline" in refused(f"{path}:baseline", f"{path}:bf17")
    assert "which case?" in refused(path, run)
    assert "no such file" in refused(run, tmp_path / "none")
    assert "no summary.json" in refused(run, tmp_path)
    made.write(tmp_path / "failed.jsonl", [made.failed("baseline")])
    assert "no run of it finished: asked for 3 GiB" in refused(run, f"{tmp_path / 'failed.jsonl'}:baseline")
    assert call(run).returncode == 2


@pytest.mark.parametrize("file, content, words", [
    ("summary.json", "{", "damaged"), ("summary.json", "[]", "damaged"), ("summary.json", '{"schema": 2}', "schema 2"),
    ("summary.json", '{"schema": 1}', "not a summary"), ("metrics.jsonl", "", "not finished a step"),
    ("metrics.jsonl", '{"step": 1}\n', "metrics.jsonl:1"), ("metrics.jsonl", "[1]\n", "metrics.jsonl:1")])
def test_damaged_runs_are_refused(tmp_path, file, content, words):
    good, bad = run_folder(tmp_path / "good"), run_folder(tmp_path / "bad")
    (bad / file).write_text(content)
    assert words in refused(good, bad)


def test_records_of_another_schema_are_refused(tmp_path):
    path = made.write(tmp_path / "r.jsonl", [made.record(schema=2)])
    assert "schema 2" in refused(f"{path}:baseline", f"{path}:baseline")
