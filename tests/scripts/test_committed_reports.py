"""Numbers are never typed: what lies under results/ is what its records say."""
import functools
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import gpu_page  # noqa: E402
import guides_page  # noqa: E402
import quality_page  # noqa: E402
from report import assemble, built, cpu_tables, document, pages, peer_tables, quality, rank_tables, records, rendering  # noqa: E402
from report.claims import page as claims_page  # noqa: E402

FOLDERS = sorted(folder for folder in (ROOT / "results").iterdir() if folder.is_dir())
by_folder = functools.partial(pytest.mark.parametrize, ids=lambda path: path.parent.name)


@pytest.fixture(scope="module")
def techniques(tmp_path_factory) -> pathlib.Path:
    program = os.environ.get("MOELAB_PROGRAM")
    if not program:
        pytest.skip("MOELAB_PROGRAM names no program")
    path = tmp_path_factory.mktemp("techniques") / "techniques.json"
    path.write_text(subprocess.run([program, "techniques", "--json"], capture_output=True, text=True, check=True).stdout)
    return path


def verdicts_in(page: str) -> str:
    """How many claims have which."""
    return re.search(r"^\d+ claims.*?: ([^.]+)\.", page, re.M)[1]


def captions(blocks: list) -> list[str]:
    """Of tables and pictures, without the passages that another page has."""
    return [caption for block in blocks for caption in
            ([block.caption] if isinstance(block, document.Table | document.Picture) else
             captions(block.blocks) if isinstance(block, document.Fold) and not block.elsewhere else [])]


@by_folder("page", sorted(ROOT.glob("results/*/report.md")))
def test_reports_are_what_their_records_say(page, techniques):
    stored = page.read_text()
    at = pages.made_at(stored)
    blocks, _, _ = assemble.blocks_of([page.parent], techniques, claims_page.CLAIMS, page.parent, at)
    text = rendering.to_markdown(blocks)
    if built.git("rev-list", "-1", at or "HEAD") is None:  # what changed is only known with its history
        text, stored = (re.sub(r"^- Of commit .*\n", "", one, flags=re.MULTILINE) for one in (text, stored))
    assert text == stored, f"scripts/report.py makes {page} anew"
    assert [caption for caption in captions(blocks) if len(caption.split()) > 40] == []
    if (page.parent / "dry_runs.json").exists():
        assert verdicts_in(text) == verdicts_in((page.parent / "claims.md").read_text())


@by_folder("page", sorted(ROOT.glob("results/*/claims.md")))
def test_verdicts_are_what_their_records_say(page, techniques):
    text = claims_page.make(page.parent, techniques, claims_page.CLAIMS)
    assert text == page.read_text(), f"scripts/claims.py makes {page} anew"


@by_folder("page", sorted(ROOT.glob("results/*/peers.md")))
def test_tables_of_peers_are_what_their_records_say(page):
    records_of_peers = peer_tables.read(page.with_suffix(".jsonl"))
    assert rendering.to_markdown(peer_tables.report(records_of_peers)) == page.read_text(), f"scripts/report_peers.py makes {page} anew"


@by_folder("page", sorted(ROOT.glob("results/*/cpu.md")))
def test_tables_of_cpus_are_what_their_records_say(page):
    found, peers = (peer_tables.read(page.with_name(name)) for name in ("cpu.jsonl", "peers.jsonl"))
    text = rendering.to_markdown(cpu_tables.report(found, peers))
    assert text == page.read_text(), f"scripts/report_cpu.py makes {page} anew"


@by_folder("page", sorted(ROOT.glob("results/*/ranks.md")))
def test_tables_of_ranks_are_what_their_records_say(page):
    text = rendering.to_markdown(rank_tables.blocks_of(page.with_suffix(".jsonl")))
    assert text == page.read_text(), f"scripts/report_ranks.py makes {page} anew"


@by_folder("page", sorted(ROOT.glob("results/*/quality.md")))
def test_tables_of_quality_are_what_their_records_say(page):
    text = rendering.to_markdown(quality.blocks(quality_page.read(page.with_suffix(".jsonl"))))
    assert text == page.read_text(), f"scripts/quality_page.py makes {page} anew"


def test_the_readmes_figures_of_quality_are_its_records():
    found, others = quality.by_model(quality.effects(quality_page.read(ROOT / "results/epyc-2-cores/quality.jsonl")))
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert quality.summary(found).rstrip(".") in readme and quality.turned(found, others) in readme
    assert {len(run.steps) for effect in found for run in effect.case.runs} == {2000} and "for 2,000 steps from several seeds" in readme


@by_folder("page", sorted(ROOT.glob("results/*/page.md")))
def test_the_page_of_a_gpu_is_what_its_records_say(page):
    assert gpu_page.page(page.parent) == page.read_text(), f"scripts/gpu_page.py {page.parent} makes it anew"


def test_the_guides_tables_are_what_claims_and_records_say(techniques):
    assert guides_page.made(techniques) == guides_page.PAGE.read_text(), "scripts/guides_page.py makes it anew"


@by_folder("page", sorted(ROOT.glob("results/*/*.md")))
def test_no_page_is_left_out_and_its_pictures_lie_beside_it(page):
    made = ("report.md", "claims.md", "peers.md", "cpu.md", "ranks.md", "reliability.md", "quality.md", "page.md")
    assert page.name in made, "no test makes this page anew"
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text()):
        assert (page.parent / picture).stat().st_size > 5_000, picture


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_records_have_a_report(folder):
    devices = json.loads((ROOT / "train/predict/calibration.json").read_text())["devices"].values()
    if set(records.files_of(folder)) - {ROOT / path for device in devices for path in device["records"]}:
        assert (folder / "report.md").exists()
    if (folder / "dry_runs.json").exists():
        assert (folder / "claims.md").exists()


def rows_under(lines: list[str], heading: str) -> dict[str, dict[str, str]]:
    """The first table of cases under a heading: each case's cells by column."""
    start = next(i for i in itertools.count(lines.index(heading)) if lines[i].startswith("| case |"))
    table = [[cell.strip() for cell in line.split("|")[1:-1]]
             for line in itertools.takewhile(lambda line: line.startswith("|"), lines[start:])]
    return {cells[0]: dict(zip(table[0], cells, strict=True)) for cells in table[2:]}


def test_the_readmes_table_is_the_reports(techniques):
    report_lines = (ROOT / "results/epyc-2-cores/report.md").read_text().splitlines()
    measured = rows_under(report_lines, next(line for line in report_lines if line.startswith("## moe-micro (core, pairs)")))
    titles = {row["name"]: row["title"] for row in json.loads(techniques.read_text())["techniques"]}
    shown = rows_under((ROOT / "README.md").read_text().splitlines(), "## What techniques cost")
    assert len(shown) >= 5 and "baseline" in shown
    for case, row in shown.items():
        assert row.pop("what it is") == titles[case]
        assert row == {column: measured[case][column] for column in row}
        assert "(+0.0%)" in measured[case]["predicted"], "README says so of every row"
