"""How far long work is, for somebody who waits."""
import sys
import time
from collections.abc import Iterator, Sequence
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


def each(what: str, items: Sequence[T]) -> Iterator[T]:
    """The items, each announced before the work on it: "what 3 of 12"."""
    for number, item in enumerate(items, 1):
        working(f"{what} {number} of {len(items)}")
        yield item
    working("")
