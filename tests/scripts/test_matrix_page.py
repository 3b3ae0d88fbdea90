"""results/matrix.md: made of stored dry runs, some of which the program is asked for again; missing ones alone are made."""
import json
import pathlib
import subprocess
import sys

import programs
import pytest
import sweep_records as made

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


def test_only_missing_dry_runs_are_made_and_an_interrupted_line_is_made_again(tmp_path):
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
    page = matrix_page.page(lines)
    assert "| `bf16` | 9.00 GiB | **too large** | 5 | 64 | none |\n" in page and "Speeds are not measured yet" in page
    assert "`host_reference`: moelab: no reference" in page and "0 of 2 rows fit" in page


def test_speeds_are_of_miniatures_in_two_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix_page, "ROOT", tmp_path)
    (tmp_path / "results/here").mkdir(parents=True)
    rows = [made.record(round=number, model="moe-nano") for number in (1, 2)]
    rows += [made.record("bf16", number, milliseconds=500, model="moe-nano") for number in (1, 2)]
    made.write(tmp_path / "results/here/miniatures.jsonl", [*rows, made.record("lion", 1, milliseconds=500, model="moe-nano")])
    found, sources = matrix_page.speeds()
    page = matrix_page.page(LINES)
    assert "| 2.00 × |" in page and "| not measured |" in page
    assert found == {"bf16": "2.00 ×"} and sources == ["a CPU, 2 cores, commit `abc123`"]
