"""How far long work is, for somebody who waits."""
import sys


def working(text: str) -> None:
    """A line on standard error, which the next one replaces and an empty one clears; nothing unless it is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
