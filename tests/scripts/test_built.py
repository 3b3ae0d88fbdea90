"""Which built sources changed since the program of some records: of a small repository made here, and as a report says it."""
import pathlib
import subprocess

import pytest
import sweep_records as made
from report_calls import ROOT, call

from report import built, pages


def git(folder: pathlib.Path, *words: str) -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(["git", "-C", folder, *named], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def commits(tmp_path, monkeypatch) -> list[str]:
    """What is built in three commits: two files, four more and one changed, and texts alone."""
    monkeypatch.setattr(built, "ROOT", tmp_path)
    git(tmp_path, "init", "-q")
    found = []
    for files in (["train/io/a.cpp", "CMakeLists.txt"], ["train/io/a.cpp", "train/io/deep/b.cpp", "moe/c.cpp", "bench/d.cpp", "cmake/e.cmake"],
                  ["docs/f.md"]):
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(str(len(found)))
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", "one")
        found.append(git(tmp_path, "rev-parse", "--short=12", "HEAD"))
    return found


def test_what_changed_is_grouped_by_folder_and_texts_do_not_count(commits, monkeypatch):
    first, second, texts = commits
    assert built.last_commit() == second
    assert built.changed(first, texts) == "since then 5 files changed: train/io (2), bench (1), cmake (1), moe (1)"
    monkeypatch.setattr(built, "FOLDERS", 2)
    assert built.changed(first, texts).endswith("train/io (2), bench (1) and others"), "a full stop follows"
    assert built.changed(second, texts) == "nothing that is built changed since"
    assert built.changed("0123456", texts) == built.changed(first, "") == "what changed since is not known"


def test_outside_of_a_checkout_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(built, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert built.last_commit() == "" and built.changed("HEAD", "HEAD") == "what changed since is not known"


def test_the_paths_are_those_that_name_a_programs_commit():
    assert {"CMakeLists.txt", "cmake", "kernels", "moe", "train", "bench"} <= set(built.PATHS)
    assert all((ROOT / path).exists() for path in built.PATHS)


def test_a_report_says_what_changed_by_the_commit_that_it_was_made_at(tmp_path):
    path = made.write(tmp_path / "r.jsonl", [made.record(commit="HEAD"), made.record(commit="gone")])
    assert call(path, "--out", tmp_path / "out").returncode == 0
    text = (tmp_path / "out/report.md").read_text()
    assert pages.made_at(text) == built.last_commit() and "- Of commit `gone`: what changed since is not known.\n" in text
    if built.last_commit():
        assert "- Of commit `HEAD`: nothing that is built changed since.\n" in text
