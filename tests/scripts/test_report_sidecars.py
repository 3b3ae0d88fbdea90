"""What lies beside a sweep's records: what fits, the checks of estimates and plans. Damaged files are refused."""
import json
import pathlib
import subprocess
import sys

import pytest
from report_calls import table_rows
import sweep_records as made

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import rendering, sidecars, sweep_part_pages  # noqa: E402


def test_what_fits(whole):
    text = rendering.to_markdown(sweep_part_pages.fit_blocks(whole[0], whole[1].fits))
    for row in ("| RTX 4060 | 8.00 GiB | baseline | **too large** | moe-nano | 13.00 GiB | none | 0 | 4 |",
                "| RTX 4060 | 8.00 GiB | guides_stack | **fits** | moe-nano | 6.00 GiB | moe-nano | 20 | 4 |",
                "| gpu-8gb | 0.58 × | 2.00 × | moe-nano | 1 | 1.37 GiB | 700.00 MiB (50%) | 2,793 | 2 |",
                "| gpu-16gb | – | – | moe-nano | 1 | 1000.00 MiB | 500.00 MiB (50%) | 5,585 | 2 |", "| gpu-12gb | **failed**: out of memory |",
                "asked for 3 GiB"):
        assert row in text, text
    assert "within memory.critical, and what is taken within the card" in text and f"taken: {sweep_part_pages.TAKEN}" in text
    assert "| gpu-8gb's baseline" not in text and "# gpu-8gb's baseline\n" in text, "it has a command and no row"
    assert rendering.inline("**fits**") == '<strong class="green">fits</strong>'


def test_the_estimator_by_hand(whole):
    """30 errors from 0 to 0.29 %: the median is 0.145 %."""
    blocks = sweep_part_pages.estimate_blocks(whole[1].draws)
    text = rendering.to_markdown(blocks)
    assert "30 drawn configurations: tensors at the peak off by 0.145% (median) and 0.290% (worst)" in text
    assert "exact in all" in text and "at most 29 KiB" in text
    rows = table_rows(blocks, "error")
    assert [row[0] for row in rows] == [f"{'-' if index % 2 else '+'}{index / 100:.3f}%" for index in range(29, 19, -1)]


def test_the_planners_checks_by_hand(whole):
    """At 300 MiB twice as fast as the fastest drawn; at 400 MiB, recorded without its techniques and predicted speed, half as
    fast."""
    rows = table_rows(sweep_part_pages.check_blocks(whole[1].checks), "budget")
    assert rows == [
        ["300MiB", "bf16, adam8bit", "200.00 MiB", "2,000", "1,900", "bf16", "1,000", "2.00 ×", "2", "**holds**"],
        ["400MiB", "not recorded", "200.00 MiB", "500", "–", "bf16", "1,000", "0.50 ×", "2", "**does not hold**"]]
    text = rendering.to_markdown(sweep_part_pages.check_blocks(whole[1].checks))
    assert "drawn at random (2 or 1 for each budget)" in text


def test_a_draw_that_was_cut_off_is_left_out(tmp_path):
    path = made.write(tmp_path / "estimates.jsonl", made.estimates(3), torn='{"schema": 1, "sett')
    assert len(sidecars.read_draws(path)) == 3


@pytest.mark.parametrize("name, content, words", [
    ("predictions.json", '{"schema": 2}', ["schema 2", "schema 1"]),
    ("predictions.json", "{", ["damaged", "bench_tradeoff"]),
    ("predictions.json", json.dumps(made.predictions() | {"cases": [{}]}), ["damaged", "status"]),
    ("fits.json", "[]", ["schema None"]),
    ("fits.json", json.dumps(made.fits() | {"rows": [made.fits()["rows"][0] | {"status": "blue"}]}), ["blue", "green"]),
    ("card_plans.json", json.dumps(made.card_plans() | {"rows": [{}]}), ["damaged", "card_plans.py", "missing"]),
    ("estimates.jsonl", '{"schema": 1}\n', [":1", "check_estimates.py", "missing"]),
    ("plans.jsonl", '{"schema": 1, "budget": "1MiB"}\n', [":1", "check_plan.py", "missing"]),
    ("plans.jsonl", json.dumps(made.plans()[0]) + "\n", ["without", "nothing drawn", "check_plan.py"]),
    ("plans.jsonl", "".join(json.dumps(made.plans()[at]) + "\n" for at in (0, 3)), ["in a round", "check_plan.py"]),
    ("estimates.jsonl", '{"sch\n{"schema": 1}\n', [":1", "damaged"]),
])
def test_damaged_companions_are_refused_and_nothing_is_written(tmp_path, name, content, words):
    made.write_plan(tmp_path)
    (tmp_path / name).write_text(content)
    (tmp_path / "report.md").write_text("as it was")
    done = subprocess.run([sys.executable, ROOT / "scripts" / "report.py", tmp_path, "--out", tmp_path], text=True,
                          capture_output=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert str(tmp_path / name) in done.stderr and all(word in done.stderr for word in words), done.stderr
    assert (tmp_path / "report.md").read_text() == "as it was" and not (tmp_path / "report.html").exists()
