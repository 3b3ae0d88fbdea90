"""report.html in a headless browser: nothing goes wrong in it, nothing is fetched, and it can be read and pointed at on a
phone, on a desktop and on paper."""
import base64
import pathlib
import re
import subprocess
import sys
import time

import browser
import pytest
import sweep_records as made

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report import document, rendering  # noqa: E402

PHONE, DESKTOP = (390, 844), (1280, 900)
SHEET = (688, 1016)  # A4 less its margins of 14 mm, at 96 pixels an inch
sizes = pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
# Pictures that are shown at this width, and their text as high as it comes out, in pixels.
SHOWN = "[...document.querySelectorAll('figure svg')].filter((svg) => svg.getBoundingClientRect().width > 0)"
TEXT_HEIGHTS = (f"{SHOWN}.filter((svg) => !svg.closest('.large')).flatMap((svg) => [...svg.querySelectorAll('text')].map("
                "(text) => parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width"
                " / svg.viewBox.baseVal.width))")
POINT = "[...document.querySelectorAll('[data-point=\"pareto-{}\"]')].find((point) => point.getBoundingClientRect().width > 0)"
DETAILS = "document.querySelector('figure.pointed .details').innerText"


@pytest.fixture(scope="module")
def page():
    name = browser.program()
    if name is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with browser.opened(name) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> pathlib.Path:
    folder = made.write_plan(tmp_path_factory.mktemp("plan"))
    done = subprocess.run([sys.executable, ROOT / "scripts" / "report.py", folder, "--out", folder / "out"], text=True,
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "out" / "report.html"


@sizes
def test_nothing_goes_wrong_and_nothing_is_fetched(page, report, size):
    page.open(report, *size)
    assert page.value("document.querySelectorAll('svg').length") > 8
    assert page.value("document.querySelectorAll('[class=point]').length") > 60
    assert page.told("Runtime.exceptionThrown") == [] and page.told("Log.entryAdded") == []
    assert page.told("Runtime.consoleAPICalled") == []
    asked = {event["request"]["url"] for event in page.told("Network.requestWillBeSent")}
    assert {url for url in asked if not url.startswith("data:")} == {report.resolve().as_uri()}


@sizes
def test_the_page_fits_its_window(page, report, size):
    page.open(report, *size)
    assert page.value("innerWidth") == size[0]
    assert page.value("document.documentElement.scrollWidth") <= size[0]
    assert page.value("[...document.querySelectorAll('p, li, h1, h2, h3, figcaption, summary')]"
                      ".filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.innerText)") == []


@sizes
def test_words_in_pictures_can_be_read(page, report, size):
    page.open(report, *size)
    heights = page.value(TEXT_HEIGHTS)
    assert len(heights) > 100 and min(heights) >= 8, sorted(heights)[:5]
    names = page.value(f"{SHOWN}.map((svg) => svg.getAttribute('aria-label'))")
    assert len(names) == len(set(names)) == 8, names


def test_a_point_says_what_it_is_under_the_mouse(page, report):
    page.open(report, *DESKTOP)
    page.hover("document.querySelector('h1')")
    assert "Point at a mark" in page.value(DETAILS)
    page.hover(POINT.format(2))
    text = page.value(DETAILS)
    for words in ("bf16", "3,910 tokens/s", "900.00 MiB", "2.00 ×", "technique=bf16", "moelab train --config moe-micro"):
        assert words in text, text
    assert "Point at a mark" not in text


def test_a_point_says_what_it_is_when_touched(page, report):
    page.open(report, *PHONE)
    page.touch(POINT.format(3))
    assert "recompute_full" in page.value(DETAILS)


def test_points_are_reached_by_keyboard(page, report):
    page.open(report, *DESKTOP)
    page.value(f"{POINT.format(0)}.focus()")
    assert "baseline" in page.value(DETAILS)
    page.press("ArrowRight")
    assert "flash_attention" in page.value(DETAILS)
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    assert "flash_attention + bf16" in page.value(DETAILS)  # round to the last


def test_every_point_has_details(page, report):
    page.open(report, *DESKTOP)
    assert page.value("[...document.querySelectorAll('.point')]"
                      ".filter((point) => !document.getElementById(point.dataset.point)).length") == 0
    assert page.value("document.getElementById('pairs-2').content.textContent").find("both set precision <x>") > 0


def test_headings_of_columns_sort_their_table(page, report):
    page.open(report, *DESKTOP)
    table = "document.querySelector('#what-each-technique-costs ~ .scroll table')"

    def sorted_by(column: str) -> list[float]:
        page.value(f"[...{table}.querySelectorAll('th [role=button]')].find((b) => b.innerText == '{column}').click()")
        place = page.value(f"[...{table}.querySelectorAll('th')].findIndex((th) => th.innerText.startsWith('{column}'))")
        return page.value(f"[...{table}.tBodies[0].rows].map((row) => parseFloat(row.cells[{place}].innerText))")

    speeds = sorted_by("speed")
    assert len(speeds) > 3 and speeds == sorted(speeds) and sorted_by("speed") == speeds[::-1]
    assert page.value(f"{table}.querySelector('[aria-sort]').ariaSort") == "descending"
    memory = sorted_by("memory")
    assert memory == sorted(memory) and page.value(f"{table}.querySelectorAll('[aria-sort]').length") == 1
    page.value(f"{table}.querySelector('[aria-sort] [role=button]').focus()")
    page.press("Enter")
    assert page.value(f"{table}.querySelector('[aria-sort]').ariaSort") == "descending"


def test_headings_of_columns_stand_on_every_page_of_paper(page, report):
    """Browsers do not repeat headings that hold a control of a form."""
    page.open(report, *DESKTOP)
    assert page.value("document.querySelectorAll('thead button, thead input, thead select').length") == 0


def test_memory_and_speed_stand_beside_the_name_on_a_phone(page, report):
    page.open(report, *PHONE)
    tables = page.value("""[...document.querySelectorAll('.scroll table')].filter((table) => table.rows[0].innerText.includes('memory') &&
      table.rows[0].innerText.includes('speed') && table.rows[0].cells[1].innerText == 'memory').map((table) =>
        [...table.rows].map((row) => row.cells[2].getBoundingClientRect().right))""")
    assert len(tables) >= 6 and max(map(max, tables)) <= PHONE[0]
    # an interval goes below its figure
    assert page.value("getComputedStyle(document.querySelector('.scroll td:nth-child(3)')).whiteSpace") == "normal"


def test_your_card_fits_a_phone(page, report):
    page.open(report, *PHONE)
    assert page.value("document.querySelector('#your-card ~ .scroll table').getBoundingClientRect().right") <= PHONE[0]
    assert "moelab train --preset 80" in page.value("document.querySelector('#your-card ~ details pre').textContent")


def test_the_front_page_links_to_its_parts(page, report):
    page.open(report, *DESKTOP)
    assert page.value("""[...document.querySelector('ul').querySelectorAll('a')].map((a) => !!document.getElementById(
      decodeURIComponent(a.hash.slice(1))))""").count(True) >= 7
    assert page.value("[...document.querySelectorAll('a[href^=\"#\"]')].filter((a) => !document.getElementById("
                      "decodeURIComponent(a.hash.slice(1)))).map((a) => a.hash)") == []


def test_a_link_opens_what_it_leads_to(page, report, tmp_path):
    inner = document.Fold("a claim", [document.Text("its words")], anchor="a.claim")
    other = document.Fold("another", [document.Text("other words")], anchor="a.other")
    path, opened = tmp_path / "folds.html", "[...document.querySelectorAll('details[open]')].map((fold) => fold.id)"

    def wait_for(ids: list[str]) -> None:
        deadline = time.monotonic() + browser.PATIENCE
        while page.value(opened) != ids and time.monotonic() < deadline:
            time.sleep(0.05)
        assert page.value(opened) == ids

    path.write_text(rendering.to_html("t", [document.Text("[go](#a.claim)"), document.Fold("all", [inner, other])]))
    page.open(path, *DESKTOP)
    assert page.value(opened) == []
    page.value("document.querySelector('a').click()")
    wait_for(["", "a.claim"])  # the fold around it has no id
    for url in ("about:blank", f"{path.as_uri()}#a.claim"):
        page.call("Page.navigate", url=url)
    wait_for(["", "a.claim"])


def test_ids_are_given_once(page, report):
    page.open(report, *DESKTOP)
    ids = page.value("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    assert page.value("[...document.querySelectorAll('use')].filter((use) => "
                      "!document.querySelector(use.getAttribute('href') ?? use.getAttribute('xlink:href'))).length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_the_paper(page, report, scheme):
    """As bright as black on white at best: 21; 4.5 is what guidelines ask for."""
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.open(report, *DESKTOP)
    ratio = page.value("""(() => {
      const light = (color) => color.match(/[0-9.]+/g).slice(0, 3).map((v) => v / 255)
        .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const paper = light(getComputedStyle(document.body).backgroundColor);
      return Math.min(...[...document.querySelectorAll('p, td, th, li, strong, figcaption, svg text')].map((e) => {
        const style = getComputedStyle(e), ink = light(e.tagName == 'text' ? style.fill : style.color);
        return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
      }));
    })()""")
    page.call("Emulation.setEmulatedMedia", features=[])
    assert ratio >= 4.5


def test_of_points_on_each_other_the_nearest_is_shown(page, report):
    """Errors of neighbours lie 0.02 % apart where they are as large: their places to point at overlap."""
    page.open(report, *PHONE)
    for number in (20, 22, 24, 26):
        point = POINT.format(0).replace("pareto-0", f"estimates-{number}")
        page.touch(point)
        assert f"model.layers={number}" in page.value("[...document.querySelectorAll('.details')].at(-1).innerText")


@pytest.fixture
def sheet(page, report):
    """The report as it is laid out for paper, in a window of one page's size."""
    page.call("Emulation.setEmulatedMedia", media="print")
    page.open(report, *SHEET)
    yield page
    page.call("Emulation.setEmulatedMedia", media="")


def test_paper_cuts_nothing_off(sheet):
    assert sheet.value("document.documentElement.scrollWidth") <= SHEET[0]
    assert sheet.value("[...document.querySelectorAll('table, tr, th, td, svg, p, li, pre, h1, h2, h3, figcaption')]"
                       ".filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.innerText)") == []
    assert sheet.value("[...document.querySelectorAll('.scroll, th, td')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
                       ".map((e) => e.innerText)") == []
    # scrolled by on a screen, all there on paper
    assert sheet.value("[...document.querySelectorAll('.scroll')].every((e) => getComputedStyle(e).overflow == 'visible')")


def test_a_picture_stays_on_one_sheet_with_its_heading(sheet):
    heights = sheet.value("""[...document.querySelectorAll('figure')].map((figure) => {
      const before = figure.previousElementSibling;
      const top = before && /^H[1-3]$/.test(before.tagName) ? before : figure;
      return figure.getBoundingClientRect().bottom - top.getBoundingClientRect().top;
    })""")
    assert len(heights) == 8 and max(heights) < SHEET[1]
    for element in ("figure", "tr", ".about"):
        assert sheet.value(f"getComputedStyle(document.querySelector('{element}')).breakInside") == "avoid"
    assert sheet.value("[...document.querySelectorAll('h2, h3')].every((e) => getComputedStyle(e).breakAfter == 'avoid')")
    assert sheet.value("[...document.querySelectorAll('thead')].every((e) => "
                       "getComputedStyle(e).display == 'table-header-group')")  # again on each sheet


def test_paper_shows_nothing_to_point_at_or_to_open(sheet):
    assert sheet.value("document.querySelectorAll('.narrow, .details, summary').length") > 8
    assert sheet.value("[...document.querySelectorAll('.narrow, .details, details, summary, h3:has(+ details)')]"
                       ".filter((e) => e.getBoundingClientRect().height > 0).map((e) => e.className)") == []
    names = sheet.value(f"{SHOWN}.map((svg) => svg.getAttribute('aria-label'))")
    assert len(names) == len(set(names)) == 6


def test_words_on_paper_can_be_read(sheet):
    """In points, 0.75 a pixel: tables 7, pictures 4.5 at least; what is too high for a sheet is drawn smaller."""
    assert sheet.value("Math.min(...[...document.querySelectorAll('td, th, p, li, figcaption')]"
                       ".map((e) => 0.75 * parseFloat(getComputedStyle(e).fontSize)))") > 6.99
    heights = sheet.value(f"""{SHOWN}.flatMap((svg) => {{
      const box = svg.viewBox.baseVal, shown = svg.getBoundingClientRect();
      const scale = Math.min(shown.width / box.width, shown.height / box.height);
      return [...svg.querySelectorAll('text')].map((text) => 0.75 * scale * parseFloat(getComputedStyle(text).fontSize));
    }})""")
    assert len(heights) > 100 and min(heights) >= 4.5, sorted(heights)[:5]


def test_the_report_prints_on_a4(page, report):
    page.open(report, *DESKTOP)
    pdf = base64.b64decode(page.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    sizes_found = {tuple(round(float(side)) for side in box.split()[2:])
                   for box in re.findall(rb"/MediaBox \[([^]]+)\]", pdf)}
    assert len(re.findall(rb"/Type /Page\b", pdf)) > 5 and sizes_found == {(595, 842)}
