"""The C++ tokenizer gives what the `tokenizers` package gives, id by id and byte by byte."""

import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from conftest import find_tool
from mixed_text import MARKS, SIZE, mixed_text, standard_library
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

PREPARE = Path(__file__).resolve().parents[4] / "scripts" / "prepare_data.py"
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def pack(numbers):
    return struct.pack(f"<{len(numbers)}q", *numbers)


def unpack(data):
    return list(struct.unpack(f"<{len(data) // 8}q", data))


def prepare(folder, *arguments):
    inputs = folder / "inputs"
    inputs.mkdir()
    for index, text in enumerate([*standard_library(), *mixed_text(0)[:200]]):
        (inputs / f"{index}.txt").write_text(text, newline="")
    done = subprocess.run([sys.executable, PREPARE, *arguments, "--out", folder, inputs], capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / "tokenizer.json"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("bpe"), "--train-bpe", "2000")


@pytest.fixture(scope="module")
def single_bytes(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("bytes"), "--bytes")


def variant(path, folder, change):
    """Another tokenizer.json: `change` is given the tokenizer of `path`."""
    tokenizer = Tokenizer.from_file(str(path))
    change(tokenizer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def assert_encodes_alike(ask, path, texts):
    reference = Tokenizer.from_file(str(path))
    answers = ask("encode", path, [text.encode() for text in texts])
    for text, answer in zip(texts, answers):
        assert unpack(answer) == reference.encode(text, add_special_tokens=False).ids, repr(text)


def assert_decodes_alike(ask, path, sequences):
    reference = Tokenizer.from_file(str(path))
    messages = [pack(ids) for ids in sequences]
    for mode in ("decode", "stream"):
        for ids, answer in zip(sequences, ask(mode, path, messages)):
            assert answer.decode() == reference.decode(ids), (mode, ids)


def random_sequences(ids, seed, size=SIZE):
    """Sequences of ids from `ids`, as many as there are bytes in `size`: few of them make UTF-8."""
    rng, sequences = random.Random(seed), []
    while size > 0:
        sequences.append(rng.choices(ids, k=rng.randrange(1, 200)))
        size -= len(sequences[-1])
    return sequences


def test_encodes_mixed_text(ask, trained):
    texts = mixed_text(1)
    assert_encodes_alike(ask, trained, ["", *texts, "".join(texts)])


def test_decodes_mixed_text(ask, trained):
    reference = Tokenizer.from_file(str(trained))
    sequences = [encoding.ids for encoding in reference.encode_batch(mixed_text(2))]
    assert_decodes_alike(ask, trained, [[], *sequences, [id for ids in sequences for id in ids]])


def test_decodes_any_ids(ask, trained):
    size = Tokenizer.from_file(str(trained)).get_vocab_size()
    end = Tokenizer.from_file(str(trained)).token_to_id("<|endoftext|>")
    assert_decodes_alike(ask, trained, random_sequences([*range(size), end, size, 2**32 - 1], seed=3))


def test_decodes_broken_characters(ask, trained):
    """Single bytes from 0x80 on: lone continuations, characters cut short, overlong forms, surrogates."""
    reference = Tokenizer.from_file(str(trained))
    high = [character for character in ALPHABET if 0x80 < ord(character) < 0x100 or ord(character) > 0x121]
    assert len(high) == 128
    characters = [*high, *"\xe0\xed\xef\xf0\xf4" * 8, "a"]
    some = [reference.token_to_id(character) for character in characters]
    assert_decodes_alike(ask, trained, random_sequences(some, seed=4))


def test_bytes(ask, single_bytes):
    rng = random.Random(5)
    contents = [rng.randbytes(rng.randrange(1, 300)) for _ in range(3000)]
    contents += [text.encode() for text in mixed_text(6)]
    assert ask("encode", single_bytes, contents) == [pack(list(content)) for content in contents]
    for mode in ("decode", "stream"):
        texts = ask(mode, single_bytes, [pack(list(content)) for content in contents])
        expected = [content.decode("utf-8", "replace") for content in contents]
        assert [text.decode() for text in texts] == expected
    assert_decodes_alike(ask, single_bytes, [list(content) for content in contents[:500]])
    assert_encodes_alike(ask, single_bytes, mixed_text(6)[:500])


def test_added_tokens(ask, trained, tmp_path):
    """Tokens that overlap, that hold one another, with spaces, and one that reads as a byte."""
    def change(tokenizer):
        tokenizer.add_special_tokens(["<|pad|>", "<|pad|>>"])
        tokenizer.add_tokens(["é", "naïve ", "<|endof", " the quick", AddedToken("fox", normalized=False),
                              AddedToken("brown fox jumps", normalized=True),
                              AddedToken("\u3000", normalized=False)])

    path = variant(trained, tmp_path, change)
    texts = mixed_text(7)
    assert_encodes_alike(ask, path, [*texts, *MARKS, "<|pad|>>>", "<|pad|", "the the quick brown fox jumps"])
    size = Tokenizer.from_file(str(path)).get_vocab_size()
    assert_decodes_alike(ask, path, random_sequences([*range(size), *range(size - 12, size)], 8, SIZE // 10))


@pytest.mark.parametrize("prefix, regex", [(True, True), (False, False), (True, False)])
def test_pre_tokenizer_options(ask, trained, tmp_path, prefix, regex):
    def change(tokenizer):
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)

    path = variant(trained, tmp_path, change)
    assert_encodes_alike(ask, path, ["", " ", "\n", "\tx", "\u3000x", "x", *mixed_text(9)[:1000]])


def test_words_around_every_character(ask):
    """The cut depends on each character's class alone: tried beside a letter, a digit and the others."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    points = (*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE0200))  # elsewhere none is assigned
    characters = [chr(point) for point in points]
    chunks = [characters[start:start + 5000] for start in range(0, len(characters), 5000)]
    texts = ["".join(f"{character}{beside}" for character in chunk) for beside in "a1!" for chunk in chunks]
    texts += ["".join(f" {character}  " for character in chunk) for chunk in chunks[:60]]
    answers = ask("words", None, [text.encode() for text in texts])
    for text, answer in zip(texts, answers):
        assert unpack(answer) == [len(word) for word, _ in level.pre_tokenize_str(text)]


def random_merges(rng):
    """A tokenizer.json of few characters; many tokens come about in several ways, some merges repeat."""
    vocabulary, tokens, merges = {character: id for id, character in enumerate(ALPHABET)}, list("abc"), []
    for _ in range(rng.randrange(1, 40)):
        pair = (rng.choice(tokens), rng.choice(tokens))
        merges.append(pair)
        if "".join(pair) not in vocabulary:
            vocabulary["".join(pair)] = len(vocabulary)
            tokens.append("".join(pair))
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    file = json.loads(tokenizer.to_str())
    file["model"]["merges"] = merges
    return json.dumps(file)


def test_order_of_merges(ask, tmp_path):
    rng = random.Random(10)
    for _ in range(150):
        (tmp_path / "tokenizer.json").write_text(random_merges(rng))
        texts = ["".join(rng.choices("abc", k=rng.randrange(1, 60))) for _ in range(200)]
        assert_encodes_alike(ask, tmp_path / "tokenizer.json", texts)


# --- Hostile files ---

HOSTILE = (-1, 0, 3, 255, 256, 2**20, 2**31, 2**32, 2**63, 2**64, 1.5, 1e308, None, True, False, "", "a",
           "\0", "x" * 999, [], {}, [[]], {"type": "ByteLevel"}, {"type": "BPE"}, {"id": 0}, ["a", "b"],
           [["a", "b"]])


def places(node, path=()):
    yield path
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def spoiled(rng, whole, everywhere):
    """A copy in which one value is replaced, removed or doubled."""
    copy = json.loads(whole)
    path = rng.choice(everywhere)
    if not path:
        return rng.choice(HOSTILE)
    node = copy
    for key in path[:-1]:
        node = node[key]
    kind = rng.randrange(4)
    if kind == 0:
        del node[path[-1]]
    elif kind == 1 and isinstance(node, list):
        node.append(node[path[-1]])
    else:
        node[path[-1]] = rng.choice(HOSTILE)
    return copy


@pytest.fixture(scope="module")
def victim():
    """A small tokenizer.json with every part in it, as text."""
    tokenizer = Tokenizer.from_str(random_merges(random.Random(11)))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.add_tokens(["<x>"])
    return tokenizer.to_str()


def assert_refused(message):
    text = message.decode()
    assert text.startswith("FILE: ") and "\n" not in text and len(text) < 250, text


def test_damaged_files(ask, victim):
    """Cut short, or with other bytes: refused in a line, or taken. Never more."""
    rng, whole = random.Random(12), victim.encode()
    files = [whole[:size] for size in range(0, len(whole), 7)]
    for answer in ask("check", None, files):
        assert_refused(answer)
    damaged = []
    for _ in range(2000):
        copy = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            copy[rng.randrange(len(copy))] = rng.randrange(256)
        damaged.append(bytes(copy))
    for answer in ask("check", None, damaged):
        if answer:
            assert_refused(answer)


def test_spoiled_files(ask, victim, tmp_path):
    """Refused, or what is taken reads like the package's reading of it, where that takes it too."""
    rng, everywhere = random.Random(13), list(places(json.loads(victim)))
    small = [path for path in everywhere if path[:2] != ("model", "vocab")]  # as often as the 256 characters
    files = [json.dumps(spoiled(rng, victim, rng.choice((everywhere, small)))) for _ in range(2000)]
    answers = ask("check", None, [file.encode() for file in files])
    taken = 0
    for file, answer in zip(files, answers):
        if answer:
            assert_refused(answer)
            continue
        try:
            reference = Tokenizer.from_str(file)
        except Exception:  # the package raises plain Exception
            continue
        taken += 1
        if taken <= 150:
            path = tmp_path / "tokenizer.json"
            path.write_text(file)
            assert_encodes_alike(ask, path, ["abcabcaabbcc", "<|endoftext|>a<x> b", "ab é\u3000 12"])
            assert_decodes_alike(ask, path, [list(range(reference.get_vocab_size() + 3))])
    assert taken > 100


def test_refusal_at_the_door(tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer(models.WordPiece({"a": 0}, unk_token="a"))
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.save(str(path))
    done = subprocess.run([find_tool(), "encode", tmp_path], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f'{path}: the model "WordPiece" is not supported; only "BPE" is\n'
