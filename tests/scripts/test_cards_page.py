"""docs/cards.md says how full each script makes its card; the program says the same of one, whose row is quick to make."""
import re
import subprocess

import programs

PAGE = programs.ROOT / "docs/cards.md"


def check(page) -> subprocess.CompletedProcess:
    command = [programs.ROOT / "scripts/cards_page.py", "--program", programs.moelab(), "--check", "train_8gb", page]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_row_is_what_the_program_predicts(tmp_path):
    done = check(PAGE)
    assert done.returncode == 0, done.stderr
    (tmp_path / "cards.md").write_text(PAGE.read_text().replace("8.0 GiB", "9.0 GiB"))
    done = check(tmp_path / "cards.md")
    assert done.returncode == 1 and "9.0 GiB" in done.stderr and "writes it anew" in done.stderr


def test_every_script_fills_its_card():
    rows = {name: cells.split("|") for name, cells in re.findall(r"^\| `(train_\w+)\.sh` \|(.*)\|$", PAGE.read_text(), re.MULTILINE)}
    assert set(rows) == {path.stem for path in (programs.ROOT / "scripts").glob("train_*.sh")} - {"train_lib", "train_distributed"}
    for name, cells in rows.items():
        taken, filled = (int(cells[i].strip(" %")) for i in (4, 7))
        assert taken < 80 <= filled <= 95, name
