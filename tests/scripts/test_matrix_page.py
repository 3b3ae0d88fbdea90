"""results/matrix.md: made of stored dry runs, some of which the program is asked for again; missing ones alone are made."""
import json
import pathlib
import re
import subprocess
import sys

import programs
import pytest
import sweep_records as made
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import matrix_page  # noqa: E402

LINES = matrix_page.Store(matrix_page.PAGE.with_suffix(".jsonl")).lines()


@pytest.fixture(scope="module")
def table() -> list[dict]:
    said = subprocess.run([programs.moelab(), "techniques", "--json"], capture_output=True, text=True, check=True).stdout
    return json.loads(said)["techniques"]


def test_the_page_is_what_the_stored_dry_runs_say():
    assert matrix_page.PAGE.read_text() == matrix_page.page(LINES), "scripts/matrix_page.py makes it anew"


def test_each_card_has_the_same_techniques_of_the_table(table):
    names = {line["technique"] for line in LINES}
    assert names <= {row["name"] for row in table} and len(names) == len(LINES) > 20
    for card in matrix_page.CARDS:
        found = {technique for technique, _ in matrix_page.of_card(LINES, card)}
        refused = {line["technique"] for line in LINES if line["status"] == "refused"}
        assert found | refused == names and not found & refused, card
        assert len(found) > 0.9 * len(names)


@pytest.mark.parametrize("technique", ["baseline", "recompute_full"])
def test_the_program_still_predicts_so(technique):
    (stored,) = [line for line in LINES if line["technique"] == technique]
    assert matrix_page.dry_run(programs.moelab(), technique)["rows"] == stored["rows"], \
        "remove results/matrix.jsonl; scripts/matrix_page.py --program PROGRAM makes it anew"


FAKE = """#!{python}
import json, sys
with open({calls!r}, "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] == "--version":
    print("moelab 0.0.0 (commit c0de)")
elif sys.argv[1] == "techniques":
    print(json.dumps(dict(schema=1, techniques=[dict(name="baseline"), dict(name="host_reference"), dict(name="bf16")])))
elif sys.argv[-1] == "host_reference":
    print("a first line\\nmoelab: no reference", file=sys.stderr)
    sys.exit(2)
else:
    fields = dict(limit=8 << 30, stack=sys.argv[-1], largest_model=None, largest_batch=5, largest_sequence=64, status="red",
                  on_card=9 << 30, model=sys.argv[4])
    print(json.dumps(dict(rows=[dict(fields, card=card) for card in {cards!r}])))
"""


def fake(folder: pathlib.Path) -> str:
    program = folder / "moelab"
    program.write_text(FAKE.format(python=sys.executable, calls=str(folder / "calls"), cards=[*matrix_page.CARDS, "H100 80 GB"]))
    program.chmod(0o755)
    return str(program)


def test_only_missing_dry_runs_are_made_and_an_interrupted_line_is_made_again(tmp_path, monkeypatch):
    program, store = fake(tmp_path), matrix_page.Store(tmp_path / "matrix.jsonl")
    matrix_page.make(program, store)
    lines, calls = store.lines(), (tmp_path / "calls").read_text()
    assert len(lines) == calls.count("fits ") == 3
    assert {line["status"] for line in lines if line["technique"] == "host_reference"} == {"refused"}
    assert all([row["card"] for row in line["rows"]] == list(matrix_page.CARDS) for line in lines if line["status"] == "ok")
    text = store.path.read_text()
    store.path.write_text(text[:-9])
    assert len(store.lines()) == 2
    matrix_page.make(program, store)
    assert store.path.read_text() == text and (tmp_path / "calls").read_text().count("fits ") == 4
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(matrix_page, "ROOT", tmp_path)
    page = matrix_page.page(lines)
    assert "| `bf16` | 9.00 GiB | **too large** | 5 | 64 | none |\n" in page and "Speeds are not measured yet" in page
    assert "`host_reference`: moelab: no reference" in page and "0 of 2 rows fit" in page


def miniature(path: pathlib.Path, model: str, milliseconds: float, **changes) -> None:
    """Two rounds of bf16 and packing, one of lion."""
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {"train.tokens_per_device": "1024"}
    rows = [made.record(round=number, model=model, **changes) for number in (1, 2)]
    rows += [made.record("bf16", number, milliseconds, model=model, **changes) for number in (1, 2)]
    rows += [made.record("packing", number, milliseconds, model=model, settings=settings, **changes) for number in (1, 2)]
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in [*rows, made.record("lion", 1, milliseconds, model=model, **changes)])


def row_of(page: str, card: str, technique: str) -> str:
    return next(line for line in page.partition(f": {card}\n")[2].splitlines() if line.startswith(f"| `{technique}` |"))


def test_speeds_are_of_the_miniature_of_the_cards_model_and_of_the_newest_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix_page, "ROOT", tmp_path)
    old = {"machine": {"cpu": "z", "class": "other"}, "started": "2025-01-01T00:00:00Z"}
    miniature(tmp_path / "results/here/miniatures.jsonl", "moe-nano", 500)
    miniature(tmp_path / "results/here/miniatures.jsonl", "moe-230m", 250)
    miniature(tmp_path / "results/there/miniatures.jsonl", "moe-nano", 100, **old)
    page = matrix_page.page(LINES)
    for card in ("RTX 4060", "RTX 4070", "RTX 4080", "RTX 4090"):
        assert row_of(page, card, "bf16").endswith("| 2.00 × |"), "an older machine's says 10"
    assert row_of(page, "A100 40 GB", "bf16").endswith("| 4.00 × |")
    assert row_of(page, "RTX 4060", "lion").endswith("| not measured |"), "one round"
    assert row_of(page, "RTX 4060", "packing").endswith("| 2.00 ×, other tokens |")
    assert row_of(page, "RTX 4060", "baseline").endswith("| 1 × |") and row_of(page, "RTX 4060", "zero_1").endswith("| of 2 ranks |")
    assert page.count("CPU miniature: speed of a small `moe-nano` on a CPU, 2 cores, commit `abc123`.") == 4
    eighty = page.partition(": A100 80 GB\n")[2]
    assert "×" not in eighty and "speed" not in eighty.partition("##")[0] and "not measured yet" not in page


def test_a_presets_own_speed_stands_below_its_card(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix_page, "ROOT", tmp_path)
    (tmp_path / "results/here").mkdir(parents=True)
    made.write(tmp_path / "results/here/records.jsonl", made.plan())
    page = matrix_page.page(LINES)
    said = "Preset `gpu-8gb` trains its miniature of `moe-nano` at 2.00 × its own baseline's speed and 0.58 × of its peak (a CPU, 2 cores"
    assert f": RTX 4060\n\n{said}" in page and page.count("Preset `") == 1, "gpu-12gb ended out of memory"


def test_what_does_not_bound_a_technique_is_no_figure():
    page = matrix_page.page(LINES)
    assert all(row_of(page, card, "packing").split(" | ")[3:5] == ["–", "–"] for card in matrix_page.CARDS)
    assert "`packing` has neither batch nor sequence" in page and "](../docs/techniques.md)" in page
    assert row_of(page, "A100 80 GB", "dynamic_batch").split(" | ")[3] == "16 (its maximum)"
    assert row_of(page, "RTX 4090", "dynamic_batch").split(" | ")[3] == "12"


def test_ranks_and_the_largest_batch_are_the_programs(table):
    ranked = {row["name"]: row["ranks"] for row in table if row["ranks"] > 1}
    assert set(ranked.values()) == {matrix_page.RANKS}
    assert all(name == "data_parallel" or name.startswith("zero_") for name in ranked)
    options = (ROOT / "tests/train/settings/options.txt").read_text()
    assert re.search(rf"^.*memory\.dynamic_batch\.max\b.*\b{matrix_page.BATCH_MAXIMUM}\b", options, re.MULTILINE)
    assert not any("memory.dynamic_batch.max" in row["settings"] for row in table)


def test_cards_have_the_presets_and_models_of_the_plan_and_of_the_program():
    parts = yaml.safe_load((ROOT / "bench/tradeoff/full.yaml").read_text())["parts"]
    (trained,) = [part["fit"] for part in parts if "fit" in part]
    known = {(row["card"], row["preset"], row["model"])
             for row in json.loads((ROOT / "results/epyc-2-cores/card_plans.json").read_text())["rows"]}
    for card, (preset, model) in matrix_page.CARDS.items():
        assert trained[preset] == model and (card, preset, model) in known
