"""What decided a claim, in a line that is read at a glance; all of it stands in the evidence."""
from collections.abc import Iterable

from .outcomes import Part

WORDS = 25  # of a line


def short(line: str) -> bool:
    return len(line.split()) <= WORDS


def by_outcome(parts: dict[str, Part]) -> str:
    """"right: fp32, bf16; overstated: fp8"; "" where all parts have one outcome."""
    known = {name: part.outcome for name, part in parts.items() if part.outcome}
    if len(set(known.values())) < 2:
        return ""
    return "; ".join(f"{word}: {', '.join(part for part, outcome in known.items() if outcome == word)}"
                     for word in dict.fromkeys(known.values()))


def first_of_each(parts: dict[str, Part], found: bool) -> str:
    """"overstated: batch 8 (saves 0.2 %), and 5 more; right: ZeRO-2 (saves 30 %)": of each outcome the first part."""
    of_word: dict[str, list[str]] = {}
    for name, part in parts.items():
        if part.outcome:
            of_word.setdefault(part.outcome, []).append(f"{name} ({part.found})" if found and part.found else name)
    return "; ".join(f"{word}: {first}" + (f", and {len(rest)} more" if rest else "") for word, (first, *rest) in of_word.items())


def counted(parts: dict[str, Part]) -> str:
    """"right: 8 parts; overstated: 1 part"."""
    words = [part.outcome for part in parts.values() if part.outcome]
    return "; ".join(f"{word}: {words.count(word)} part{'s' if words.count(word) > 1 else ''}" for word in dict.fromkeys(words))


def shortest(lines: Iterable[str]) -> str:
    """The first that is short, else the last."""
    line = ""
    for line in lines:
        if line and short(line):
            return line
    return line


def line_of(texts: list[str | None], parts: dict[str, Part]) -> str:
    """What was found and which parts hold; of too much the first thing found, or where parts differ an example of each outcome."""
    said, differ = [text for text in texts if text], by_outcome(parts)
    return shortest(["; ".join([*said, *([differ] if differ else [])]), *([] if differ else said), first_of_each(parts, found=True),
                     first_of_each(parts, found=False), counted(parts)])
