"""Text of every kind that a tokenizer meets, the same at each run."""

import random
import string
import sysconfig
from pathlib import Path

SIZE = 1_000_000  # bytes
MARKS = ["<|endoftext|>", "<|endof", "<|pad|>", "<|pad|>>", "é", "naïve "]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\n\n    ", "\u00a0", "\u3000", "\u2028", "\x85", "\x1c", "\u180e",
          "\u200b"]
EMOJI = ["😀", "👩\u200d👩\u200d👧\u200d👦", "🇫🇷", "👍🏽", "❤\ufe0f",
         "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"]
ACCENTS = "Déjà vu: l'été à Zürich, où l'œuvre naïve coûte 3½ € – ça m'étonne. Ærøskøbing e\u0301te\u0301 "
CJK = "你好，世界。日本語のテキスト、한국어 텍스트。東京タワー３３３メートル "
OTHERS = "Привет, мир! Ελληνικά κείμενο שלום עולם مرحبا بالعالم १२३ नमस्ते สวัสดี ⅷ ²³ "
CONTRACTIONS = "I'll you've they're it's don't I'd I'm 'tis IT'S 'sx ''s '' don’t x'  's\n'll"


def standard_library():
    folder = Path(sysconfig.get_paths()["stdlib"])
    names = ("argparse.py", "ast.py", "textwrap.py", "json/decoder.py")
    return [(folder / name).read_text("utf-8") for name in names]


def random_characters(rng, count):
    points = (rng.randrange(rng.choice((0x250, 0x3000, 0x110000))) for _ in range(count))
    return "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)


def piece(rng, sources):
    kind = rng.randrange(8)
    if kind == 0:
        source = rng.choice(sources)
        start = rng.randrange(len(source))
        return source[start:start + rng.randrange(1, 400)]
    if kind == 1:
        return rng.choice((ACCENTS, CJK, OTHERS, CONTRACTIONS))[rng.randrange(10):]
    if kind == 2:
        return "".join(rng.choices(EMOJI, k=rng.randrange(1, 5)))
    if kind == 3:
        return "".join(rng.choices(SPACES, k=rng.randrange(1, 6)))
    if kind == 4:
        return random_characters(rng, rng.randrange(1, 30))
    if kind == 5:
        return "".join(rng.choices(string.printable, k=rng.randrange(1, 60)))
    if kind == 6:
        return rng.choice(MARKS)
    number = str(rng.randrange(10**9))
    return rng.choice((number, "the quick brown fox jumps over it's lazy dogs ", "aaaaaaa"))


def mixed_text(seed):
    """Documents of some hundred characters, SIZE bytes together."""
    rng, sources, documents, size = random.Random(seed), standard_library(), [], 0
    while size < SIZE:
        documents.append("".join(piece(rng, sources) for _ in range(rng.randrange(1, 12))))
        size += len(documents[-1].encode())
    return documents
