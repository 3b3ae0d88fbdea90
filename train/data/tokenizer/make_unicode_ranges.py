#!/usr/bin/env python3
r"""Write unicode_ranges.inc: what \p{L}, \p{N} and \s match in the `tokenizers` package, asked of itself.

Its regular expressions follow the Unicode version of the library inside it, which is not Python's.
"""

import sys
from pathlib import Path

import tokenizers
from tokenizers import Regex, pre_tokenizers

CLASSES = {"kLetters": r"\p{L}", "kNumbers": r"\p{N}", "kSpaces": r"\s"}
LAST = 0x10FFFF
WIDTH = 110


def members(pattern):
    """The code points that match, ascending. Surrogates are no characters of UTF-8 text."""
    for start in range(0, LAST + 1, 0x1000):
        points = [point for point in range(start, start + 0x1000) if not 0xD800 <= point <= 0xDFFF]
        if points:
            text = "".join(map(chr, points))
            kept = pre_tokenizers.Split(Regex(pattern), "removed", invert=True).pre_tokenize_str(text)
            yield from (ord(character) for piece, _ in kept for character in piece)


def ranges(points):
    """[first, last] of each run of neighbours."""
    result = []
    for point in points:
        if result and result[-1][1] == point - 1:
            result[-1][1] = point
        else:
            result.append([point, point])
    return result


def table(name, pattern):
    lines, line = [f"constexpr Range {name}[] = {{  // {pattern}"], " "
    for first, last in ranges(members(pattern)):
        entry = f" {{{first:#x}, {last:#x}}},"
        if len(line) + len(entry) > WIDTH:
            lines.append(line)
            line = " "
        line += entry
    return "\n".join([*lines, line, "};\n"])


def main():
    text = (f"// Made by make_unicode_ranges.py from the `tokenizers` package {tokenizers.__version__}; "
            "first and last code point of each run.\n")
    text += "".join(table(name, pattern) for name, pattern in CLASSES.items())
    path = Path(__file__).with_name("unicode_ranges.inc")
    path.write_text(text)
    print(f"{path}: {len(text.splitlines())} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
