"""report.py on records made up here; what is expected is worked out by hand or known in closed form."""
import html.parser
import itertools
import json
import math
import pathlib
import re
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import sweep_records as made
import yaml
from matplotlib.text import Text

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import document, figures, pages, records, rendering  # noqa: E402
from report.claims import findings, stated  # noqa: E402
from report.plots import pareto, run_curves, theme  # noqa: E402


def sweep_of(tmp_path: pathlib.Path, rows: list[dict]) -> figures.Sweep:
    read, _ = records.read_records([made.write(tmp_path / "records.jsonl", rows)])
    (sweep,) = figures.sweeps(read)
    return sweep


def call(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, ROOT / "scripts" / "report.py", *map(str, arguments)], capture_output=True,
                          text=True, timeout=300)


def refused(*arguments) -> str:
    done = call(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_nothing_in_the_package_imports_a_script():
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    imports = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)
    modules = list((ROOT / "scripts/report").rglob("*.py"))
    assert len(modules) > 20
    assert {(path.name, name) for path in modules for name in imports.findall(path.read_text()) if name in scripts} == set()


# Records.


def test_torn_lines_are_left_out_with_a_note(tmp_path):
    path = made.write(tmp_path / "r.jsonl", [made.record(), made.record(round=2)], torn='{"schema": 1, "case": "ba')
    read, notes = records.read_records([path])
    assert [record.round for record in read] == [1, 2]
    assert len(notes) == 1 and f"{path}:3" in notes[0] and "torn" in notes[0]


def test_a_damaged_line_before_the_end_is_refused(tmp_path):
    path = made.write(tmp_path / "r.jsonl", [made.record()], torn='{"schema": 1, "ca\n' + json.dumps(made.record(round=2)) + "\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.md").write_text("as it was")
    assert f"{path}:2: damaged" in refused(path, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "report.md").read_text() == "as it was"


def test_a_whole_record_without_an_end_of_line_counts(tmp_path):
    path = made.write(tmp_path / "r.jsonl", [made.record()], torn=json.dumps(made.record(round=2)))
    assert [record.round for record in records.read_records([path])[0]] == [1, 2]


def test_other_files_in_the_folder_are_no_records(tmp_path):
    made.write(tmp_path / "records.jsonl", [made.record()])
    for name in records.NO_RECORDS:
        (tmp_path / name).write_text('{"schema": 7}\n')
    assert len(records.read_records([tmp_path])[0]) == 1


def test_folders_of_records(tmp_path):
    made.write(tmp_path / "b.jsonl", [made.record(round=2)])
    made.write(tmp_path / "a.jsonl", [made.record(round=1)])
    assert [record.round for record in records.read_records([tmp_path])[0]] == [1, 2]


@pytest.mark.parametrize("changes, words", [
    ({"schema": 2}, ["schema 2", "reads schema 1"]),
    ({"steps": [[1, 2]]}, ["not a record"]),
    ({"round": "one"}, ["not a record", "one"]),
])
def test_what_is_no_record_is_refused_by_line(tmp_path, changes, words):
    path = made.write(tmp_path / "r.jsonl", [made.record(), made.record(**changes)])
    message = refused(path, "--out", tmp_path / "out")
    assert f"{path}:2" in message and all(word in message for word in words), message


def test_missing_field_is_named(tmp_path):
    row = made.record()
    del row["command"]
    assert "'command' is missing" in refused(made.write(tmp_path / "r.jsonl", [row]), "--out", tmp_path)


def test_no_records_and_no_file_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    assert "no records" in refused(tmp_path / "empty.jsonl", "--out", tmp_path / "out")
    assert "No such file" in refused(tmp_path / "none.jsonl", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_warm_up_is_three_steps_or_a_third(tmp_path):
    """Steps 1 to 3 take ten times as long: they would show."""
    for count, kept in ((9, 6), (12, 9), (7, 5), (2, 2), (1, 1)):
        rows = [made.record(steps=made.steps(1000, count))]
        (record,), _ = records.read_records([made.write(tmp_path / "r.jsonl", rows)])
        assert len(record.rates) == kept
        if count >= 9:
            assert np.allclose(record.rates, made.TOKENS)  # a step is 2048 tokens in a second


# Figures.


def test_medians_spread_and_exact_ratios(tmp_path):
    base = [made.record(round=number, milliseconds=ms) for number, ms in enumerate((1000, 1250, 2000), 1)]
    lean = [made.record("lean", round=number, milliseconds=ms / 2, activations=200)
            for number, ms in enumerate((1000, 1250, 2000), 1)]
    sweep = sweep_of(tmp_path, base + lean)
    baseline, case = sweep.case("baseline"), sweep.case("lean")
    assert [baseline.speed.value, baseline.speed.low, baseline.speed.high] == pytest.approx([1638.4, 1024, 2048])
    assert case.speed.value == pytest.approx(2 * 1638.4) and case.peak.value == 600 * made.MIB
    assert (case.step_ms.value, case.step_ms.low, case.step_ms.high) == pytest.approx((625, 500, 1000))
    assert case.predicted.value == pytest.approx(0.992 * 600 * made.MIB)
    # Each round is twice as fast as its own baseline, although rounds differ by half.
    assert [case.speed_ratio.value, case.speed_ratio.low, case.speed_ratio.high] == pytest.approx([2, 2, 2])
    assert case.peak_ratio == figures.Interval(0.5, 0.5, 0.5)
    assert baseline.speed_ratio is None and case.loss_change == 0


def test_slower_and_larger_stays_slower_and_larger(tmp_path):
    bad = made.record("bad", milliseconds=1250, activations=1400, loss_change=0.5)
    case = sweep_of(tmp_path, [made.record(), bad]).case("bad")
    assert case.speed_ratio.value == pytest.approx(0.8) and case.peak_ratio.value == 1.5
    assert case.loss_change == pytest.approx(0.5)


def test_same_bits_are_those_of_losses_and_gradient_norms(tmp_path):
    norms = [1 / 3 + step for step in range(9)]
    cases = {"moved": norms, "rounded": norms[:-1] + [norms[-1] * (1 + 2**-52)], "unknown": []}
    records = [made.record(gradient_norms=norms)] + [made.record(n, gradient_norms=g) for n, g in cases.items()]
    sweep = sweep_of(tmp_path, records)
    assert {name: pages.loss_change(sweep.case(name)) for name in cases} == {
        "moved": "same bits", "rounded": "0", "unknown": "0"}
    other_loss = made.record("other", gradient_norms=norms, loss_change=0.5)
    assert not sweep_of(tmp_path, [records[0], other_loss]).case("other").same_bits


def test_bootstrap_interval_holds_what_it_should():
    """Rates drawn around a true ratio of 1.5, often: near 95 of 100 intervals hold it, and repeating gives the same."""
    generator = np.random.default_rng(7)

    def rounds(count: int) -> list:
        return [(generator.normal(1500, 60, 12), generator.normal(1000, 40, 12)) for _ in range(count)]

    held = 0
    for _ in range(40):
        interval = figures.ratio_of_rates(rounds(6))
        held += interval.low <= 1.5 <= interval.high
        assert interval.low <= interval.value <= interval.high
    assert held >= 33  # 38 are expected; fewer than 33 come once in 1,400 times
    sample = rounds(4)
    assert figures.ratio_of_rates(sample) == figures.ratio_of_rates(sample)


def test_bootstrap_interval_of_rounds_that_differ_spans_them():
    """Constant steps: all of the spread is between the rounds, and a resample's median of three is one of them."""
    pairs = [(np.full(5, ratio), np.ones(5)) for ratio in (1.0, 2.0, 4.0)]
    assert figures.ratio_of_rates(pairs) == figures.Interval(2, 1, 4)


def test_rounds_whose_baseline_failed_leave_no_ratio(tmp_path):
    rows = [made.record(round=1), made.failed("baseline", 2, "crash", "signal 9"), made.record("lean", 1, 500),
            made.record("lean", 2, 100), made.record("other", 2)]
    sweep = sweep_of(tmp_path, rows)
    assert sweep.case("lean").speed_ratio.value == pytest.approx(2)  # of round 1 alone; round 2 would say 10
    assert sweep.case("lean").speed.value == pytest.approx((4096 + 20480) / 2)
    assert sweep.case("other").speed_ratio is None
    assert any("other" in note and "no ratios" in note for note in sweep.notes)


def test_runs_of_different_length_are_not_compared(tmp_path):
    assert sweep_of(tmp_path, [made.record(), made.record("lean", steps=made.steps(500, 8))]).case("lean").pairs == []


def test_repeated_runs_and_earlier_settings_do_not_count(tmp_path):
    rows = [made.record(milliseconds=4000, settings_hash="old", started="2025-01-01T00:00:00Z"),
            made.failed("baseline", 1, "error", started="2025-06-01T00:00:00Z"), made.record(milliseconds=1000)]
    baseline = sweep_of(tmp_path, rows).case("baseline")
    assert baseline.speed.value == pytest.approx(2048) and not baseline.failures


def test_machines_commits_and_models_are_not_mixed(tmp_path):
    rows = [made.record(), made.record(commit="def"), made.record(dirty=True), made.record(model="moe-nano"),
            made.record(machine={"cpu": "another"}), made.record("lean"), made.record(sweep="another part")]
    found = figures.sweeps(records.read_records([made.write(tmp_path / "r.jsonl", rows)])[0])
    assert [len(sweep.cases) for sweep in found] == [2, 1, 1, 1, 1, 1]


def beaten(point, points) -> bool:
    return any(other != point and other[0] <= point[0] and other[1] >= point[1] for other in points)


def test_pareto_front_against_its_definition():
    generator = np.random.default_rng(3)
    for _ in range(200):
        points = [tuple(point) for point in generator.integers(0, 8, (12, 2)).tolist()]
        front = figures.pareto_front(points)
        assert set(front) == {i for i, point in enumerate(points) if not beaten(point, points)}, points
        assert [points[i][0] for i in front] == sorted(points[i][0] for i in front)
    assert figures.pareto_front([]) == []


# Pictures.


def test_only_some_of_many_points_are_named(tmp_path):
    sweep = sweep_of(tmp_path, made.sweep())
    cases, front = figures.measured(sweep), figures.on_front(sweep)
    assert pareto.named(cases, front, 12) == cases
    some = pareto.named(cases, front, 3)
    assert len(some) == 3 and some[0].name == "baseline" and front[0] in some and front[-1] in some


@pytest.mark.parametrize("look", [theme.WIDE, theme.NARROW])
def test_names_stand_near_their_points_and_cover_none(tmp_path, look):
    """Long names on the front, among bars from the slowest to the fastest of three rounds."""
    cases = {"baseline": (1200, (1200, 1300, 1600)), "left": (225, (2700, 3000, 4900)), "recompute + compact": (352, (4100,)),
             "recommended without accumulation": (530, (2600, 4700, 5400)), "beaten": (600, (2700, 3800, 4800))}
    sweep = sweep_of(tmp_path, [made.record(name, number, 1000 * made.TOKENS / rate, mib - 100, 100)
                                for name, (mib, rates) in cases.items() for number, rate in enumerate(rates)])
    figure = pareto.pareto(sweep, look)
    figure.canvas.draw()
    axes = figure.axes[0]
    (x, y) = zip(*(axes.transData.transform(label.xy) for label in axes.texts))
    boxes = [Text.get_window_extent(label) for label in axes.texts]
    for label, box in zip(axes.texts, boxes):
        assert not any(box.x0 < at < box.x1 and box.y0 < height < box.y1 for at, height in zip(x, y)), label.get_text()
        assert math.hypot(*label.xyann) < 40, label.get_text()
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    plt.close(figure)


def test_losses_after_other_tokens_have_no_colour(tmp_path):
    rows = [made.record(), made.record("lean"), made.record("short", steps=made.steps(500, 8))]
    losses = pareto.final_losses(sweep_of(tmp_path, rows).cases)
    assert losses[0] == losses[1] == pytest.approx(5.5 / 9**0.3) and math.isnan(losses[2])


def test_curves_of_the_cases_that_end_farthest(tmp_path):
    rows = [made.record()] + [made.record(f"case {index}", loss_change=0.01 * index * (-1)**index) for index in range(20)]
    names = [case.name for case in run_curves.with_curves(sweep_of(tmp_path, rows))]
    assert names == ["baseline", *(f"case {index}" for index in range(9, 20))]


def test_every_case_has_its_panel_of_memory(tmp_path):
    rows = [made.record(), *(made.record(f"case {index}") for index in range(50))]
    assert len(run_curves.with_memory(sweep_of(tmp_path, rows))) == 51


# Claims.


def interval(low: float, high: float) -> figures.Interval:
    return figures.Interval((low + high) / 2, low, high)


@pytest.mark.parametrize("claimed, measured, expected", [
    ((50, 50), (50, 50), "confirmed"), ((50, 50), (45, 55), "confirmed"),  # a tenth either way
    ((50, 50), (44.9, 50), "partly"), ((50, 50), (55, 55.1), "partly"),
    ((40, 50), (36, 55), "confirmed"), ((40, 50), (35.9, 55), "partly"),
    ((50, 50), (22.5, 23), "partly"), ((50, 50), (10, 22.4), "refuted"),  # half of it is 25
    ((50, 50), (110, 111), "partly"), ((50, 50), (110.1, 120), "refuted"),  # twice is 100
    ((50, 50), (-50, -50), "refuted"), ((-10, -10), (-12, -8), "confirmed"), ((-10, -10), (10, 10), "refuted"),
    ((-10, -10), (-22, -22), "partly"), ((-10, -10), (-22.1, -22.1), "refuted"), ((-10, -10), (-5, -5), "partly"),
    ((0, 0), (-2, 2), "confirmed"), ((0, 0), (1, 3), "partly"), ((0, 0), (3, 4), "refuted"),
    ((10, 20), (-200, 300), "partly"),  # knows next to nothing, so it refutes nothing
])
def test_verdicts(claimed, measured, expected):
    assert findings.verdict(*claimed, interval(*measured)) == expected


def claim(**changes) -> stated.Claim:
    return stated.Claim(**{"id": "a.b", "guide": "A", "text": "t", "figure": "f", "measure": "memory saved", "low": 40,
                           "high": 50, "of": "", "arithmetic": "", **changes})


def test_direction_of_what_differs():
    assert [findings.direction(claim(), interval(value, value)) for value in (45, 30, 60, -5)] == \
        ["", "less", "more", "the opposite"]
    faster = claim(low=-10, high=-10)
    assert [findings.direction(faster, interval(value, value)) for value in (-10, -5, -30, 5)] == \
        ["", "less", "more", "the opposite"]


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
    assert read[-1].arithmetic == "wrong" and read[0].figure == "memory saved 50 %"
    assert read[1].figure == "reduction factor 2 to 4" and read[0].guide == "A guide"


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
    rows = [made.record(), made.record("half"), made.record("both", techniques=["half", "other"]),
            made.record("three", techniques=["half", "other", "third"]), made.failed("other")]
    techniques = [stated.Technique("half", [], ["a.half"]), stated.Technique("other", [], ["a.other"]),
                  stated.Technique("all", ["other", "half"], ["a.all"])]
    claimed = [claim(id=f"a.{name}") for name in ("half", "other", "all", "none")]
    found = findings.findings_of(claimed, techniques, sweep_of(tmp_path, rows))
    assert [(one.claim.id, one.case and one.case.name, one.verdict) for one in found] == [
        ("a.half", "half", "refuted"), ("a.other", "other", "not measured"), ("a.all", "both", "refuted"),
        ("a.none", None, "not measured")]


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

    assert "verdict" not in reported()
    (tmp_path / "dry_runs.json").write_text('{"schema": 1, "runs": []}')
    assert "`claims.md`, which `scripts/claims.py` makes," in reported()
    judged = subprocess.run([sys.executable, ROOT / "scripts/claims.py", tmp_path, *options], capture_output=True, text=True,
                            check=True)
    text, counts = reported(), judged.stdout.strip().partition(": ")[2].removesuffix(".")
    assert f"3 claims of guides: {counts}. [claims.md](claims.md) has" in text
    rows = [line for line in text.splitlines() if "recompute_full | " in line and "added step time" in line]
    assert rows and not any(word in text for word in ("confirmed", "partly", "refuted"))
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
    ("`a * b` **holds**", '<code>a * b</code> <strong class="green">holds</strong>'),
    ("**red** **bold `c`**", '<strong class="red">red</strong> <strong>bold <code>c</code></strong>'),
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


def test_a_sweep_in_which_nothing_finished_is_a_report(tmp_path):
    rows = [made.failed("baseline"), made.failed("lean", status="crash", message="x|y")]
    path = made.write(tmp_path / "r.jsonl", rows)
    done = call(path, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "No case of this sweep finished" in (tmp_path / "out" / "report.md").read_text()


def test_two_sweeps_have_pictures_of_their_own(tmp_path):
    path = made.write(tmp_path / "r.jsonl", [made.record(), made.record(commit="def", milliseconds=500)])
    assert call(path, "--out", tmp_path / "out").returncode == 0
    assert {file.name for file in (tmp_path / "out").glob("*.png")} == {
        f"{index}-{name}.png" for index in (1, 2) for name in ("pareto", "memory", "loss")}
