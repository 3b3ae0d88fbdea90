"""Dependencies point one way: kernels <- moe <- train <- bench, and tests may use all of them. bench_kernels takes its
cases from tests/, so bench may use tests as well. docs/architecture.md says so, and names every room of train/."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAY_INCLUDE = {
    "kernels": {"kernels"},
    "moe": {"kernels", "moe"},
    "train": {"kernels", "moe", "train"},
    "bench": {"kernels", "moe", "train", "bench", "tests"},
    "tests": {"kernels", "moe", "train", "bench", "tests"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
SOURCES = {".h", ".cpp", ".cu", ".cuh"}


def wrong_includes(root: pathlib.Path) -> list[str]:
    wrong = []
    for folder, allowed in MAY_INCLUDE.items():
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in SOURCES:
                names = INCLUDE.findall(file.read_text())
                wrong += [f"{file.relative_to(root)} includes {name}" for name in names
                          if name.split("/")[0] in MAY_INCLUDE.keys() - allowed]
    return wrong


def test_no_file_includes_one_of_a_higher_layer():
    assert wrong_includes(ROOT) == []


def test_an_arrow_upward_is_found(tmp_path):
    for folder in MAY_INCLUDE:
        (tmp_path / folder).mkdir()
    (tmp_path / "moe/a.h").write_text('#pragma once\n#include "kernels/b.h"\n#include <vector>\n')
    assert wrong_includes(tmp_path) == []
    (tmp_path / "moe/c.cpp").write_text('#include "moe/a.h"\n  # include "train/d.h"\n')
    assert wrong_includes(tmp_path) == ["moe/c.cpp includes train/d.h"]


def test_the_page_of_the_architecture_names_every_room():
    page = (ROOT / "docs/architecture.md").read_text()
    rooms = {file.parent.name for file in (ROOT / "train").glob("*/CMakeLists.txt")}
    named = {room for line in page.splitlines() if line.startswith("| `") for room in re.findall(r"`(\w+)`", line)}
    assert rooms and rooms - named == set()
