"""Dependencies point one way: kernels <- moe <- train <- bench, and tests may use all of them. bench_kernels takes its
cases from tests/, so bench may use tests as well. Rooms of kernels/ or train/ form no cycle. docs/architecture.md says
so, and names every room of train/."""
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


def room_of(path: str) -> str:
    """kernels/update, train/step: a folder of the second level, with those below it."""
    return "/".join(path.split("/")[:2])


def cycles(root: pathlib.Path, layer: str) -> list[list[str]]:
    """Rooms of a layer that include one another, directly or by way of other rooms."""
    below: dict[str, set[str]] = {}
    for file in sorted((root / layer).rglob("*")):
        if file.suffix in SOURCES:
            room = room_of(file.relative_to(root).as_posix())
            names = {room_of(name) for name in INCLUDE.findall(file.read_text()) if name.startswith(layer + "/")}
            below[room] = below.get(room, set()) | names - {room}

    def reached(room: str) -> set[str]:
        found, todo = set(), [room]
        while todo:
            new = below.get(todo.pop(), set()) - found
            found |= new
            todo += new
        return found
    reach = {room: reached(room) for room in below}
    groups = {tuple(sorted(other for other in reach[room] if room in reach.get(other, ()))) for room in below if room in reach[room]}
    return [list(group) for group in sorted(groups)]


def test_rooms_form_no_cycle():
    assert cycles(ROOT, "kernels") == cycles(ROOT, "train") == []


def test_a_cycle_of_rooms_is_found(tmp_path):
    for room, name in (("a", "train/b/b.h"), ("b", "train/c/c.h"), ("c", "kernels/d.h"), ("e", "train/a/a.h")):
        (tmp_path / "train" / room).mkdir(parents=True)
        (tmp_path / "train" / room / f"{room}.h").write_text(f'#include "{name}"\n')
    assert cycles(tmp_path, "train") == []
    (tmp_path / "train/c/d.cpp").write_text('#include "train/a/a.h"\n')
    assert cycles(tmp_path, "train") == [["train/a", "train/b", "train/c"]]
