"""How far long work is, for somebody who waits."""
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
APART = 5  # seconds between two lines in a pipe or a log, where short work says nothing
told = time.monotonic()  # when the last line was written; at first, when the script started


def working(text: str) -> None:
    """A line on standard error. On a terminal the next one replaces it and an empty one clears it."""
    global told
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text and time.monotonic() - told >= APART:
        told = time.monotonic()
        print(text, file=sys.stderr, flush=True)


def each(what: str, items: Iterable[T], total: int | None = None) -> Iterator[T]:
    """The items, each announced before it is made and worked on: "what 3 of 12". total: how many, where items have no length."""
    total, made = len(items) if total is None else total, iter(items)
    for number in range(1, total + 1):
        working(f"{what} {number} of {total}")
        yield next(made)
    working("")
