"""The cards that open a report: your card, and what each technique costs."""
import dataclasses
import json
import pathlib
import sys

import pytest
from report_calls import sweeps_of
import sweep_records as made

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import assemble, cards, document, sidecars, sweep_parts  # noqa: E402
from report.claims import stated  # noqa: E402

NO_LINKS = cards.Links(False, "", "")


@pytest.mark.parametrize("gpu, card, same", [
    ("NVIDIA GeForce RTX 4090", "RTX 4090", True), ("NVIDIA GeForce RTX 4060 Ti", "RTX 4060", False),
    (None, "RTX 4060", False), (None, "", False),
    ("NVIDIA H100 80GB HBM3", "H100 80 GB", True), ("NVIDIA A100-SXM4-40GB", "A100 40 GB", True),
    ("NVIDIA A100-SXM4-80GB", "A100 40 GB", False)])
def test_a_gpu_is_the_card_of_a_preset(gpu, card, same):
    assert cards.is_card(gpu, card) == same


def test_your_card_opens_with_the_best_that_is_known(whole):
    """What a plan predicts; on a card that was measured, the fastest measured case that fits."""
    sweeps, beside = whole
    blocks = cards.your_card(beside, [], sweeps, NO_LINKS)
    first, *_ = (block for block in blocks if isinstance(block, document.Table))
    assert first.rows == [
        ["RTX 4060", "8.00 GiB", "`moe-micro`", "4.00 GiB (50%)", "14,540"],
        ["H100 80 GB", "80.00 GiB", "`moe-micro`", "4.00 GiB (5%)", "14,540"]]
    assert first.caption.endswith("Each speed here: a guess from the datasheet."), "no column, which a phone would not show"
    on_h100 = [dataclasses.replace(sweep, machine={"gpu": "NVIDIA H100 80GB HBM3"}) for sweep in sweeps]
    (commands,) = (block for block in blocks if isinstance(block, document.Commands))
    assert commands.lines == [f"# {card}, moe-micro, micro-batches of 16 × 512 tokens\nbuild/quick/bin/moelab train --preset {limit}"
                              for card, limit in (("RTX 4060", 8), ("H100 80 GB", 80))]
    _, table, commands, *_ = cards.your_card(beside, [], on_h100, NO_LINKS)
    fastest = max(cards.measured_on("H100 80 GB", "moe-micro", on_h100), key=lambda case: case.speed.value)
    assert table.rows[0][5] == "a guess from the datasheet" and table.rows[1][4:] == [f"{fastest.speed.value:,.0f}", "measured"]
    assert commands.lines[1] == f"# H100 80 GB, moe-micro\n{fastest.command}"


def test_a_report_without_cards_links_to_the_one_beside_it_that_has_them(tmp_path):
    results = tmp_path / "results"
    for folder in ("here", "there"):
        (results / folder).mkdir(parents=True)
        made.write(results / folder / "records.jsonl", made.core())
    (results / "there/card_plans.json").write_text(json.dumps(made.card_plans()))
    links = assemble.links_from(results / "here")
    assert links == cards.Links(False, "", "../there/report.md#your-card")
    assert assemble.links_from(results) == NO_LINKS, "results/ alone has a folder for each machine"
    beside = sidecars.read_beside([results / "here"])
    heading, text = cards.your_card(beside, [], [], links)
    assert heading.text == "Your card" and "](../there/report.md#your-card)" in text.text
    assert cards.your_card(beside, [], [], NO_LINKS) == []
    assert assemble.links_from(ROOT / "results/any").techniques == "../../docs/techniques.md"


def test_every_technique_has_its_row_of_costs_beside_its_own_baseline(tmp_path):
    """Two parts of other baselines; bf16 is in both, in more rounds in the first; lion in both, in as many."""
    rows = made.in_part("core", "single", "baseline", 1000, 800, []) + made.in_part("core", "single", "bf16", 500, 400, ["bf16"])
    rows += made.in_part("core", "single", "lion", 900, 700, ["lion"])
    other = made.in_part("other", "single", "baseline", 1000, 800, [], sequence=512, settings_hash="of another sequence")
    other += made.in_part("other", "single", "muon", 1100, 600, ["muon"], sequence=512)
    other += made.in_part("other", "single", "lion", 200, 100, ["lion"], sequence=512)
    rows += other + made.in_part("other", "single", "bf16", 100, 100, ["bf16"], sequence=512)[:1]
    titles = {"bf16": "bf16 compute", "lion": "Lion", "muon": "Muon"}
    techniques = [stated.Technique(name, [], [], title=title) for name, title in titles.items()]
    _, table, words = cards.costs(sweep_parts.together(sweeps_of(tmp_path, rows)), [], techniques, cards.Links(False, "there.md", ""))
    assert table.headings == ["technique", "memory", "speed", "change", "rounds", "baseline", "what it is"]
    assert [(row[0], row[2], *row[5:]) for row in table.rows] == [
        ("`bf16`", "2.00 ×", "the usual", "bf16 compute"), ("`muon`", "0.91 ×", "`train.sequence=512`", "Muon"),
        ("`lion`", "1.11 ×", "the usual", "Lion")]
    for said in ("same bits: ", "; 0: ", "<0.0001: ", "–: ", "noisy: ", "[What each technique does and trades](there.md)",
                 "`train.sequence=256`", "Speeds are of a CPU, 2 cores; a GPU's ratios are others"):
        assert said in words.text, said
    _, table, words = cards.costs(sweep_parts.together(sweeps_of(tmp_path, rows[:6])), [], [], NO_LINKS)
    assert table.headings[-1] == "rounds" and "baseline: in what" not in words.text and "](" not in words.text


def test_what_a_technique_is_names_the_single_ones_that_it_needs():
    """As the table of the program: the settings of one lie within those of another."""
    bf16 = stated.Technique("bf16", [], [], {"precision.compute": "bf16"})
    capacity = stated.Technique("capacity", [], [], {"model.dispatch": "capacity"})
    compact = stated.Technique("adamw_compact", [], [], {"precision.compute": "bf16", "optim.name": "adamw_compact"}, title="compact AdamW")
    both = stated.Technique("both", ["bf16", "capacity"], [], bf16.settings | capacity.settings, title="the two")
    every = [bf16, capacity, compact, both]
    assert cards.what_it_is(compact, every) == "compact AdamW (with `bf16`)" and cards.what_it_is(both, every) == "the two"


def test_a_column_without_a_measurement_is_left_out(whole):
    sweeps, beside = whole

    def table(machine: dict) -> document.Table:
        of = [dataclasses.replace(sweep, machine=machine, model="moe-nano") for sweep in sweeps]
        tables = [block for block in cards.your_card(beside, [], of, NO_LINKS) if isinstance(block, document.Table)]
        return next(one for one in tables if "largest batch" in one.headings)
    unmeasured = table({"cpu": "a CPU"})
    assert "tokens/s" not in unmeasured.headings and unmeasured.caption.endswith("Its speed was measured on none of them.")
    assert all(len(row) == len(unmeasured.headings) for row in unmeasured.rows)
    assert unmeasured.headings[2] == "taken" and unmeasured.rows[0][2] == "13.00 GiB (162%)", "as on_card says, not peak"
    measured = table({"gpu": "NVIDIA GeForce RTX 4060"})
    assert measured.headings[-1] == "tokens/s" and measured.rows[0][-1] not in ("", "not measured")


def test_another_models_largest_batch_is_another_row():
    def fit(model, batch):
        return sidecars.Fit("RTX 4060", 8.0, "baseline", "", 1, batch, model, "green", 1.0)
    both = cards.chosen([sidecars.Fits("", "", [fit("moe-nano", 9), fit("moe-570m", 2)])])
    assert {(one.model, one.largest_batch) for one in both} == {("moe-nano", 9), ("moe-570m", 2)}
