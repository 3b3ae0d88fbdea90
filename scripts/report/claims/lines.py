"""What decided a claim, in a line that is read at a glance; all of it stands in the evidence."""
from collections.abc import Iterable

from .outcomes import UNTESTED, Part

WORDS = 25  # of a line


def short(line: str) -> bool:
    return len(line.split()) <= WORDS


def grouped(said: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """{"right": ["fp32", "bf16"], "overstated": ["fp8"]} of the pairs of both; what is untested comes last."""
    of_word: dict[str, list[str]] = {}
    for word, text in sorted(said, key=lambda one: one[0] == UNTESTED):
        of_word.setdefault(word, []).append(text)
    return of_word


def all_of_each(of_word: dict[str, list[str]]) -> str:
    """As "right: fp32, bf16; overstated: fp8"."""
    return "; ".join(f"{word}: {', '.join(texts)}" for word, texts in of_word.items())


def first_of_each(of_word: dict[str, list[str]]) -> str:
    """As "overstated: batch 8 (0.2 % less), and 5 more; right: ZeRO-2 (30 % less)"."""
    return "; ".join(f"{word}: {first}" + (f", and {len(rest)} more" if rest else "") for word, (first, *rest) in of_word.items())


def counted(of_word: dict[str, list[str]]) -> str:
    """As "right: 8 parts; overstated: 1 part"."""
    return "; ".join(f"{word}: {len(texts)} part{'s' if len(texts) > 1 else ''}" for word, texts in of_word.items())


def by_outcome(parts: dict[str, Part]) -> str:
    """As all_of_each(), of the names of parts; where all parts are alike, whether they are more or less than claimed."""
    of_word = grouped((part.word, name) for name, part in parts.items())
    return all_of_each(of_word) if len(of_word) > 1 else next((part.beside for part in parts.values()), "")


def shortest(lines: Iterable[str]) -> str:
    """The first that is short, else the last."""
    line = ""
    for line in lines:
        if line and short(line):
            return line
    return line


def line_of(texts: list[str | None], parts: dict[str, Part]) -> str:
    """What was found and which parts hold; of too much the first things found, or an example of each outcome."""
    said, differ = [text for text in texts if text], by_outcome(parts)
    whole = ["; ".join([*said[:count], *filter(None, [differ])]) for count in range(len(said), 0, -1)]
    names = grouped((part.word, name) for name, part in parts.items())
    found = grouped((part.word, f"{name} ({part.found})" if part.outcome and part.found else name) for name, part in parts.items())
    return shortest([*whole, first_of_each(found), first_of_each(names), counted(names)])
