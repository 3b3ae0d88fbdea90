"""scripts/report/working.py: how far long work is, on a terminal and in a pipe."""
import io
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

from report import working  # noqa: E402


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """A list whose last number is the time; the script started at 0."""
    times = [0.0]
    monkeypatch.setattr(working.time, "monotonic", lambda: times[-1])
    monkeypatch.setattr(working, "told", 0.0)
    return times


def test_in_a_pipe_short_work_says_nothing_and_long_work_a_line_at_times(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for _ in working.each("drawing picture", range(12)):
        clock.append(clock[-1] + 2)
    assert sys.stderr.getvalue() == "drawing picture 4 of 12\ndrawing picture 7 of 12\ndrawing picture 10 of 12\n"


def test_on_a_terminal_each_line_replaces_the_one_before(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(working.each("row", ["a", "b"])) == ["a", "b"]
    assert sys.stderr.getvalue() == "\r\033[Krow 1 of 2\r\033[Krow 2 of 2\r\033[K"
