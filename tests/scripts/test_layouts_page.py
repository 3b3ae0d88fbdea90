"""results/layouts.md: made of stored plans, one of which the program is asked for again."""
import json
import pathlib
import sys

import programs
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import layouts_page  # noqa: E402

STORED = json.loads(layouts_page.PAGE.with_suffix(".json").read_text())


def test_the_page_is_what_the_stored_plans_say():
    assert layouts_page.PAGE.read_text() == layouts_page.page(STORED)
    assert [(plan["model"], plan["ranks"], plan["given"]) for plan in STORED["plans"]] == layouts_page.cases()


def test_the_program_still_plans_so():
    now, then = layouts_page.planned(programs.moelab(), *layouts_page.cases()[0]), STORED["plans"][0]
    assert layouts_page.layout(now) == layouts_page.layout(then), "scripts/layouts_page.py --program PROGRAM makes the page anew"
    assert now["tokens_per_second"] == pytest.approx(then["tokens_per_second"], rel=0.01)


@pytest.mark.parametrize("plan", [plan for plan in STORED["plans"] if plan["given"]], ids=lambda plan: plan["model"])
def test_a_layout_that_is_given_is_kept(plan):
    said = layouts_page.layout(plan)
    assert all(setting.removeprefix("parallel.").replace("=", " ").replace("zero ", "ZeRO-") in said for setting in plan["given"]), said


def test_waits_are_a_part_of_the_step():
    assert all(sum(plan["waits_ms"].values()) < plan["step_ms"] for plan in STORED["plans"])
