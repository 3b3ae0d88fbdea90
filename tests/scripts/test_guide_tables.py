"""The guides' tables in their own rows and columns: claimed figures, what was found, and what would measure the rest."""
import pathlib
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import document  # noqa: E402
from report.claims import guide_tables, page, places, stated  # noqa: E402
from report.claims.judge import Row  # noqa: E402

ENTRIES = {entry["id"]: entry for entry in yaml.safe_load(page.CLAIMS.read_text())["claims"]}


# Columns that no guide fills.
OURS = ("added arithmetic", "memory", "largest batch at the target")


def test_every_table_is_of_claims_that_exist_and_columns_name_their_figures():
    for spec in guide_tables.TABLES:
        assert {claim.partition(".")[0] for claim in spec["rows"].values()} == {spec["guide"]}
        figures = set().union(*(ENTRIES[claim].get("figures", {}) for claim in spec["rows"].values()))
        for column, names in spec["columns"].items():
            assert figures & set(names) or column in OURS, (spec["title"], column)


@pytest.mark.parametrize("figures, text", [
    ({"memory_saved_percent": [60, 80]}, "saves 60 to 80 %"), ({"slowdown_percent": 20}, "20 % more time"), ({}, "–"),
    ({"slowdown_percent": -10}, "10 % less time"), ({"slowdown_factor": [2, 3]}, "2 to 3 × the time (100 to 200 % more)"),
    ({"parameters_gb": 28}, "28 GB"),
    ({"reduction_factor": 1.5}, "1.5 × less (33 %)"), ({"speed_percent": -15}, "15 % fewer tokens/s"), ({"batch": 12}, "12")])
def test_a_claimed_figure_in_words(figures, text):
    assert guide_tables.claimed(figures, ["speed_percent", *figures]) == text


def row(claim: str, verdict: str = "right", found: dict | None = None, untested: list | None = None) -> Row:
    return Row(claim, "t", "c", verdict, "by a case" if found else "", untested or [], found=found or {})


def made(rows: list[Row], spec: dict, techniques: list | None = None) -> list:
    known = {one.id: guide_tables.Found(one, "a-machine") for one in rows}
    return guide_tables.table_of(spec, ENTRIES, known, techniques or [])


SPEC = {"guide": "nemo", "title": "T", "columns": {"memory": ["memory_saved_percent"], "speed": ["slowdown_percent"], "note": ["layers"]},
        "rows": {"first": "nemo.gradient_checkpointing", "second": "nemo.activation_checkpointing"}}


def test_each_column_stands_beside_what_was_found_and_settings_stand_alone():
    blocks = made([row("nemo.gradient_checkpointing", found={"memory_saved_percent": "saves 20 %", "slowdown_percent": "11 % more time"}),
                   row("nemo.activation_checkpointing", "right in part", {"memory_saved_percent": "saves 19 %"},
                       ["15 % more time: one round alone"])], SPEC, [stated.Technique("x", [], ["nemo.activation_checkpointing"])])
    table = blocks[1]
    assert table.headings == ["", "memory, claimed", "memory, ours", "speed, claimed", "speed, ours", "note", "verdict", "what decided it"]
    assert table.rows[0][:6] == ["first", "saves 50 %", "saves 20 %", "20 % more time", "11 % more time", "–"]
    assert table.rows[1][3:7] == ["15 % more time", "not decided", "0, 4, 8, 12", "**right in part**"]
    assert table.rows[0][-1] == "by a case [nemo.gradient_checkpointing on a-machine](a-machine/claims.md#nemo.gradient_checkpointing)"
    (left,) = [block for block in blocks if isinstance(block, document.Items)]
    assert document.Text("Not decided:") in blocks
    assert left.texts == ["second: 15 % more time: one round alone; to measure it: `build/dev/bin/bench_tradeoff --only x --out "
                          "mine/records.jsonl data.path=FOLDER`"]


def test_no_command_is_named_for_what_no_run_of_the_techniques_decides():
    one = row("nemo.activation_checkpointing", "right in part", {}, ["15 % more time: the baseline's is as long"])
    one.runs_decide = False
    blocks = made([row("nemo.gradient_checkpointing"), one], SPEC, [stated.Technique("x", [], ["nemo.activation_checkpointing"])])
    (left,) = [block for block in blocks if isinstance(block, document.Items)]
    assert left.texts == ["second: 15 % more time: the baseline's is as long"]


def test_of_several_machines_the_one_that_knows_most_of_a_claim():
    def judged(*rows: Row) -> page.Judged:
        return page.Judged(list(rows), [], {"a": "A"}, [])
    best = guide_tables.best({"one": judged(row("a.b", "untested", untested=["x"]), row("a.c", found={"y": "1"})),
                              "two": judged(row("a.b", found={"y": "2"}), row("a.c", found={"y": "3"}))})
    assert {claim: found.folder for claim, found in best.items()} == {"a.b": "two", "a.c": "one"}
    best = guide_tables.best({"one": judged(row("a.b", found={"y": "1"}, untested=["x"]), row("a.c", found={"y": "1"})),
                              "two": judged(row("a.b", found={"y": "2"}), row("a.c", found={"y": "3", "z": "4"}, untested=["x"]))})
    assert {claim: found.folder for claim, found in best.items()} == {"a.b": "two", "a.c": "two"}
    none, cases = row("a.b", "untested", untested=["no record"]), row("a.b", "untested", untested=["no size of one", "nor of another"])
    cases.evidence = ["a case", "another"]
    assert guide_tables.best({"one": judged(none), "two": judged(cases)})["a.b"].folder == "two"


def test_what_was_found_on_ranks_says_on_how_many():
    known = guide_tables.Found(row("ava.zero_2", found={"on 4 ranks": "56 %", "gradients on the host": "3 GB",
                                                        "its speed on 2 ranks over 10Gbit": "5 % fewer"}), "a-machine")
    assert known.ours(["memory", "on 4 ranks"]) == "56 % on 4 ranks" and known.ours(["gradients on the host"]) == "3 GB"
    assert known.ours(["its speed on 2 ranks over 10Gbit"]) == "5 % fewer on 2 ranks over 10Gbit" and known.ours(["memory"]) == ""


@pytest.mark.parametrize("found, timed", [({"slowdown_percent": "33 % more time"}, True), ({"its speed on 2 ranks": "5 %"}, True),
                                          ({"time": "1 %"}, True), ({"memory_saved_percent": "saves 5 %", "on 2 ranks": "5 %"}, False)])
def test_the_page_names_the_machines_that_its_times_are_of(found, timed):
    entries = [entry for entry in ENTRIES.values() if entry["id"].startswith("parrot.")]
    rows = [row(entry["id"], found=found) for entry in entries]
    one = page.Judged(rows, [], {"parrot": "P"}, [], ["a GPU, 16 cores"])
    other = page.Judged([row(entry["id"], "untested") for entry in entries], [], {"parrot": "P"}, [], ["a CPU, 2 cores"])
    intro = guide_tables.blocks({"there": one, "here": other}, entries)[1].text
    assert ("there (a GPU, 16 cores)" in intro) == timed and "a CPU" not in intro


def test_a_preset_is_measured_by_training_it():
    assert guide_tables.command("ava.gpu_rtx_3090", []) == \
        "build/dev/bin/moelab train --config moe-100m --preset gpu-rtx3090 data.path=FOLDER"
    assert guide_tables.command("ava.oom_at_times", []) == ""


def test_a_claim_links_to_its_tables_and_each_table_has_an_anchor_of_its_own():
    lines = (ROOT / "results" / places.GUIDES_PAGE).read_text().splitlines()
    headings = [document.slug(line.lstrip("# ")) for line in lines if line.startswith("#")]
    assert len(headings) == len(set(headings)) and {document.slug(spec["title"]) for spec in places.TABLES} <= set(headings)
    assert places.links("nemo.mixed_precision") == "[Memory against speed](../guides.md#memory-against-speed)"
    assert places.links("ava.zero_1").count("](../guides.md#") == 2 and places.links("ava.priority") == ""
    text = page.Judged([row("nemo.mixed_precision")], [], {"nemo": "N"}, []).page(["another-machine"])
    assert "[another-machine](../another-machine/claims.md)" in text and "[table](../guides.md#memory-against-speed) |" in text
    assert "- in the guide's table: [Memory against speed](../guides.md#memory-against-speed)" in text


def test_what_no_guide_claims_has_no_column_of_claims():
    spec = {"guide": "verl", "title": "T", "columns": {"memory": ["memory"]}, "rows": {"first": "verl.optimizer_offload"}}
    table = made([row("verl.optimizer_offload", found={"memory": "saves 20 %"})], spec)[1]
    assert table.headings == ["", "memory, ours", "verdict", "what decided it"] and table.rows[0][:2] == ["first", "saves 20 %"]
