"""report.py on records made up here: claims and pages. What is expected is worked out by hand."""
import html.parser
import json
import math
import re
import subprocess
import sys

import pytest
import sweep_records as made
import yaml
from report_calls import ROOT, call, refused, sweep_of

from report import document, figures, pages, rendering
from report.claims import findings, outcomes, stated
from report.plots import theme


def test_nothing_in_the_package_imports_a_script():
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    imports = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)
    modules = list((ROOT / "scripts/report").rglob("*.py"))
    assert len(modules) > 20
    assert {(path.name, name) for path in modules for name in imports.findall(path.read_text()) if name in scripts} == set()


# Claims.


def interval(low: float, high: float) -> figures.Interval:
    return figures.Interval((low + high) / 2, low, high)


@pytest.mark.parametrize("claimed, measured, expected", [
    ((50, 50), (50, 50), "right"), ((50, 50), (45, 55), "right"),  # a tenth either way
    ((50, 50), (44.9, 50), None), ((50, 50), (55, 55.1), None), ((50, 50), (55.1, 60), "understated"),
    ((40, 50), (36, 55), "right"), ((40, 50), (35.9, 55), None), ((50, 50), (10, 44.9), "overstated"),
    ((50, 50), (-50, -50), "overstated"), ((-10, -10), (-12, -8), "right"), ((-10, -10), (10, 10), "understated"),
    ((0, 0), (-2, 2), "right"), ((0, 0), (1, 3), None), ((0, 0), (3, 4), "understated"),
    ((10, 20), (-200, 300), None),  # knows next to nothing, so it decides nothing
])
def test_outcomes_of_intervals(claimed, measured, expected):
    opposite = {"overstated": "understated", "understated": "overstated"}
    assert outcomes.of_interval(*claimed, interval(*measured), True) == expected
    assert outcomes.of_interval(*claimed, interval(*measured), False) == opposite.get(expected, expected)


def claim(**changes) -> stated.Claim:
    return stated.Claim(**{"id": "a.b", "guide": "A", "text": "t", "figure": "f", "measure": "memory saved", "low": 40,
                           "high": 50, "of": "", "arithmetic": "", **changes})


GUIDES = {"schema": 1, "guides": {"a": "A guide"}, "claims": [
    {"id": "a.half", "text": "Halves it.", "figures": {
        "memory_saved_percent": 50, "of": "activation memory", "reduction_factor": [2, 4], "slowdown_percent": [10, 20],
        "slowdown_factor": [2, 3], "speedup_factor": 3, "speed_percent": -20, "extra_compute_percent": 33, "every": 4}},
    {"id": "a.words", "text": "No figure."},
    {"id": "a.host", "text": "Host.", "arithmetic": "wrong",
     "figures": {"memory_saved_percent": 50, "of": "host memory"}},
]}


def test_claims_become_percentages_by_hand(tmp_path):
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(GUIDES, sort_keys=False))
    read = stated.read_guides(tmp_path / "claims.yaml").claims
    assert [(one.measure, one.low, one.high, one.of) for one in read[:-1]] == [
        ("memory saved", 50, 50, "activation memory"), ("memory saved", 50, 75, "activation memory"),
        ("added step time", 10, 20, ""), ("added step time", 100, 200, ""), ("added tokens/s", 200, 200, ""),
        ("added tokens/s", -20, -20, ""), ("added arithmetic", 33, 33, "")]
    assert read[-1].arithmetic == "wrong" and read[0].figure == "saves 50 %"
    assert read[1].figure == "2 to 4 × less (50 to 75 %)" and read[0].guide == "A guide"


def test_claims_are_held_against_what_they_name(tmp_path):
    """Activations 800 -> 200 of 1200 MiB in all; a step 1000 -> 1250 ms."""
    sweep = sweep_of(tmp_path, [made.record(), made.record("half", milliseconds=1250, activations=200)])
    case = sweep.case("half")
    for changes, expected in (({}, 50), ({"of": "activation memory"}, 75), ({"of": "attention memory"}, 75),
                              ({"measure": "added step time"}, 25), ({"measure": "added tokens/s"}, -20)):
        measured = findings.measure(claim(**changes), case)
        assert measured.value == pytest.approx(expected), changes
        assert measured.low <= measured.value <= measured.high
    assert findings.measure(claim(of="host memory"), case) is None
    assert findings.measure(claim(), sweep.case("baseline")) is None


def test_which_case_measures_which_claim(tmp_path):
    rows = [made.record(), made.record("half"), made.record("both", activations=400, techniques=["half", "other"]),
            made.record("three", techniques=["half", "other", "third"]), made.failed("other")]
    techniques = [stated.Technique("half", [], ["a.half"]), stated.Technique("other", [], ["a.other"]),
                  stated.Technique("all", ["other", "half"], ["a.all"])]
    claimed = [claim(id=f"a.{name}") for name in ("half", "other", "all", "none")]
    found = findings.findings_of(claimed, techniques, sweep_of(tmp_path, rows))
    assert [(one.claim.id, one.case and one.case.name, one.outcome) for one in found] == [
        ("a.half", "half", "overstated"), ("a.other", "other", None), ("a.all", "both", "overstated"),
        ("a.none", None, None)]


def test_the_projects_claims_and_techniques_can_be_read(tmp_path):
    read = stated.read_guides(ROOT / "train/predict/techniques/claims.yaml").claims
    assert len(read) > 30 and all(math.isfinite(one.low) and one.low <= one.high for one in read)


GUIDES_WITH_A_SLIP = "schema: 1\nguides: {a: A}\nclaims: [{id: a.b, text: t, arithmetics: wrong}]"
GUIDES_WITHOUT_A_NUMBER = "schema: 1\nguides: {a: A}\nclaims: [{id: a.b, text: t, figures: {slowdown_percent: half}}]"
TABLE_WITH_A_SLIP = '{"schema": 1, "techniques": [{"name": "all", "parts": ["bf17"], "claims": []}]}'


def test_broken_claims_and_techniques_are_refused(tmp_path):
    path = made.write(tmp_path / "r.jsonl", [made.record()])
    bad = tmp_path / "bad"
    for content, option in (("schema: 2", "--claims"), ("a: [", "--claims"), ("schema: 1\nclaims: [{}]", "--claims"),
                            ("[]", "--techniques"), ("{", "--techniques"), (GUIDES_WITH_A_SLIP, "--claims"),
                            (GUIDES_WITHOUT_A_NUMBER, "--claims"), (TABLE_WITH_A_SLIP, "--techniques")):
        bad.write_text(content)
        assert str(bad) in refused(path, "--out", tmp_path / "out", option, bad)


# Pages.


class Page(html.parser.HTMLParser):
    """Checks that elements close in order; collects sources and words."""

    VOID = {"meta", "img", "source", "link", "br"}

    def __init__(self, text: str):
        super().__init__()
        self.open, self.sources, self.words, self.metas = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.sources += [value for key, value in attributes.items() if key in ("src", "srcset", "href", "xlink:href")]
        if tag == "meta":
            self.metas.append(attributes)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, words):
        self.words.append(words)


@pytest.fixture(scope="module")
def made_report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    path = made.write(folder / "r.jsonl", made.sweep(), torn='{"sch')
    (folder / "claims.yaml").write_text(yaml.safe_dump(GUIDES, sort_keys=False))
    (folder / "techniques.json").write_text(json.dumps({"schema": 1, "techniques": [
        {"name": "recompute_full", "parts": [], "claims": [{"id": "a.half"}]}]}))
    done = call(path, "--out", folder / "out", "--claims", folder / "claims.yaml", "--techniques",
                folder / "techniques.json")
    assert done.returncode == 0 and "torn line" in done.stderr, done.stderr
    return folder / "out"


def test_verdicts_are_those_of_the_page_of_claims(tmp_path):
    """They rest on a folder's dry runs as well, without which the figures stand side by side and no more."""
    made.write(tmp_path / "records.jsonl", made.sweep())
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(GUIDES, sort_keys=False))
    (tmp_path / "techniques.json").write_text(json.dumps({"schema": 1, "techniques": [
        {"name": "recompute_full", "parts": [], "claims": [{"id": "a.half"}]}]}))
    options = ["--claims", tmp_path / "claims.yaml", "--techniques", tmp_path / "techniques.json"]

    def reported() -> str:
        assert call(tmp_path, "--out", tmp_path, *options).returncode == 0
        return (tmp_path / "report.md").read_text()

    assert "claims: right" not in reported()
    (tmp_path / "dry_runs.json").write_text('{"schema": 1, "runs": []}')
    assert "`claims.md`, which `scripts/claims.py` makes," in reported()
    judged = subprocess.run([sys.executable, ROOT / "scripts/claims.py", tmp_path, *options], capture_output=True, text=True,
                            check=True)
    text = reported()
    assert f"{judged.stdout.strip()} [claims.md](claims.md) has" in text and "Claimed beside measured" not in text
    assert "a.half" not in text, "claims.md beside it has the claims"
    assert '<details id="a.half">' in (tmp_path / "report.html").read_text()
    assert '<a href="claims.md">claims.md</a>' in (tmp_path / "report.html").read_text()


def test_html_is_whole_and_needs_nothing_else(made_report):
    text = (made_report / "report.html").read_text()
    page = Page(text)
    assert all(source.startswith("#") for source in page.sources)
    assert not re.search(r"https?://|<script .|@import|url\((?!#)|<img|<link", text) and text.count("<script>") == 1
    assert any(meta.get("name") == "viewport" for meta in page.metas)
    assert "@media print" in text and "prefers-color-scheme: dark" in text and "overflow-x: auto" in text


def test_pictures_take_the_colours_of_the_page(made_report):
    text = (made_report / "report.html").read_text()
    assert len(re.findall("<svg ", text)) == 6 and "var(--ink)" in text and "var(--front)" in text
    assert not any(colour in text for colour in theme.STAND_INS)


def test_both_pages_say_who_measured_what(made_report):
    for name in ("report.html", "report.md"):
        text = (made_report / name).read_text()
        for word in ("a CPU, 2 cores", "abc123", "run.name=bf16", "out of memory", "asked for 3 GiB", "torn line",
                     "first three steps", "No case of this sweep measures", "a.host", *made.CASES):
            assert word in text, (name, word)


def test_markdown_tables_are_regular_and_pictures_lie_beside(made_report):
    text = (made_report / "report.md").read_text()
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert len(pictures) == 3 and all((made_report / picture).stat().st_size > 10_000 for picture in pictures)
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block


@pytest.mark.parametrize("text, html", [
    ("`a * b` **right**", '<code>a * b</code> <strong class="green">right</strong>'),
    ("**wrong** **bold `c`**", '<strong class="red">wrong</strong> <strong>bold <code>c</code></strong>'),
    ("[claims.md](claims.md) a_b_c", '<a href="claims.md">claims.md</a> a_b_c'),
    ("1 < 2 & <i>", "1 &lt; 2 &amp; &lt;i&gt;"), ("`<b>`", "<code>&lt;b&gt;</code>"),
    ("saved 5 % `5 %`", "saved 5\N{NO-BREAK SPACE}% <code>5 %</code>"),
    ("[x](javascript:alert)", "[x](javascript:alert)"),
])
def test_texts_are_markdown(text, html):
    assert rendering.inline(text) == html


def test_what_cases_say_cannot_break_the_page():
    table = document.Table("c", ["a", "b"], [["<script>x</script>", "1|2 `<b>`"]])
    page = rendering.to_html("t & <t>", [table, document.Commands(["a < b && c"])])
    assert "<script>x" not in page and "<b>" not in page and "a < b && c" in Page(page).words
    assert "1\\|2" in rendering.to_markdown([table])


def test_headings_of_the_same_words_have_ids_of_their_own():
    """As on GitHub, where Markdown's are."""
    blocks = [document.Heading(3, "Two `together`"), document.Fold("s", [document.Heading(3, "Two together")]), document.Heading(2, "Other"),
              document.Heading(3, "Two together")]
    assert re.findall(r'<h\d id="([^"]+)"', rendering.to_html("t", blocks)) == ["two-together", "two-together-1", "other", "two-together-2"]


def test_steps_that_wait_have_a_table(tmp_path):
    runs = [made.record(), *(made.record("nvme_state", number) for number in (1, 2, 3))]
    for run, share in zip(runs, (0, 0.1, 0.4, 0.2)):
        run["summary"]["waited"] = {home: {"seconds": 9 * part, "steps": 9 if part else 0, "share": part}
                                    for home, part in (("host", 0), ("nvme", share))}
    (table,) = pages.wait_blocks(sweep_of(tmp_path, runs))
    assert table.rows == [["nvme_state", "–", "20.0% (10.0%–40.0%)", "3"]]
    assert pages.wait_blocks(sweep_of(tmp_path, runs[:1])) == []


def test_a_sweep_in_which_nothing_finished_is_a_report(tmp_path):
    rows = [made.failed("baseline"), made.failed("lean", status="crash", message="x|y")]
    path = made.write(tmp_path / "r.jsonl", rows)
    done = call(path, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "No case of this sweep finished" in (tmp_path / "out" / "report.md").read_text()


def test_two_sweeps_have_pictures_of_their_own(tmp_path):
    path = made.write(tmp_path / "r.jsonl", [made.record(case, commit=commit) for commit in ("abc", "def") for case in ("baseline", "lean")])
    assert call(path, "--out", tmp_path / "out").returncode == 0
    assert {file.name for file in (tmp_path / "out").glob("*.png")} == {
        f"{index}-{name}.png" for index in (1, 2) for name in ("pareto", "memory", "loss")}
