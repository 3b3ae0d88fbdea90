"""prepare_data.py, run as the user runs it."""

import json
import struct
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "prepare_data.py"


def run(*arguments, python=(sys.executable,)):
    return subprocess.run([*python, SCRIPT, *map(str, arguments)], capture_output=True, text=True,
                          timeout=120)


def prepare(*arguments, **options):
    done = run(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done


def refuse(*arguments):
    done = run(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def ids(path, skip=0):
    return list(array("H", path.read_bytes()[skip:]))


def split(tokens, end):
    """Documents as lists of ids; each one ends with the end of text."""
    result, current = [], []
    for token in tokens:
        if token == end:
            result.append(current)
            current = []
        else:
            current.append(token)
    assert current == []
    return result


def byte_documents(folder):
    return {name: [bytes(document) for document in split(ids(folder / f"{name}.bin"), 0)]
            for name in ("train", "val")}


def stories(count):
    return [f"Story {i}: the {'quick ' * (i % 7)}brown fox jumps over {i * i} lazy dogs – naïve café.\n"
            for i in range(count)]


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    for i, story in enumerate(stories(200)):
        path = folder / f"part{i % 3}" / f"{i:03}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(story, encoding="utf-8")
    return folder


def test_bytes_round_trip(corpus, tmp_path):
    out = tmp_path / "out"
    done = prepare("--bytes", "--out", out, corpus)
    sides = byte_documents(out)
    assert sorted(sides["train"] + sides["val"]) == sorted(story.encode() for story in stories(200))
    assert not set(sides["train"]) & set(sides["val"])
    assert 1 <= len(sides["val"]) <= 25
    meta = json.loads((out / "meta.json").read_text())
    assert meta["vocab"] == 256 and meta["tokenizer"] == "bytes" and meta["sources"] == 200
    assert meta["documents"] == {"train": len(sides["train"]), "validation": len(sides["val"])}
    assert meta["tokens"]["train"] == len(ids(out / "train.bin"))
    assert meta["bytes"] == sum(len(story.encode()) for story in stories(200))
    assert f"{sum(meta['tokens'].values()):,} tokens" in done.stdout
    assert sorted(file.name for file in out.iterdir()) == [
        "meta.json", "tokenizer.json", "train.bin", "val.bin"]


def test_the_bytes_tokenizer_is_a_tokenizer(corpus, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    prepare("--bytes", "--out", tmp_path / "out", corpus)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 256
    text = "".join(map(chr, range(1, 0x300))) + "日本 🦊\r\n  x"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def test_the_split_depends_on_content_and_seed_alone(corpus, tmp_path):
    lines = tmp_path / "same.jsonl"
    lines.write_text("".join(json.dumps({"text": story}) + "\n" for story in stories(200) * 2))
    prepare("--bytes", "--out", tmp_path / "a", corpus)
    prepare("--bytes", "--out", tmp_path / "b", lines)
    prepare("--bytes", "--seed", 1, "--out", tmp_path / "c", corpus)
    a, b, c = (byte_documents(tmp_path / name) for name in "abc")
    assert set(a["val"]) == set(b["val"]) and len(b["val"]) == 2 * len(a["val"])
    assert set(a["val"]) != set(c["val"])


def test_without_validation_there_is_no_val_and_an_old_one_goes(corpus, tmp_path):
    out = tmp_path / "out"
    prepare("--bytes", "--validation", 0.3, "--out", out, corpus)
    assert 35 <= len(byte_documents(out)["val"]) <= 85
    done = prepare("--bytes", "--validation", 0, "--out", out, corpus)
    assert not (out / "val.bin").exists() and "no val.bin" in done.stdout
    assert len(split(ids(out / "train.bin"), 0)) == 200


@pytest.mark.parametrize("seed", range(3))
def test_a_single_document_always_trains(tmp_path, seed):
    (tmp_path / "one.txt").write_text("one document, and its copy")
    (tmp_path / "two.txt").write_text("one document, and its copy")
    prepare("--bytes", "--validation", 0.999999, "--seed", seed, "--out", tmp_path / "out",
            tmp_path / "one.txt", tmp_path / "two.txt")
    assert len(split(ids(tmp_path / "out" / "train.bin"), 0)) == 2
    assert not (tmp_path / "out" / "val.bin").exists()


def test_the_llmc_header(corpus, tmp_path):
    prepare("--bytes", "--format", "llmc", "--out", tmp_path / "l", corpus)
    prepare("--bytes", "--out", tmp_path / "n", corpus)
    for name in ("train.bin", "val.bin"):
        header = struct.unpack("<256i", (tmp_path / "l" / name).read_bytes()[:1024])
        body = ids(tmp_path / "l" / name, skip=1024)
        assert header == (20240520, 1, len(body), *[0] * 253)
        assert body == ids(tmp_path / "n" / name)


def test_bpe_train_and_load_round_trip(corpus, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    trained, loaded = tmp_path / "trained", tmp_path / "loaded"
    prepare("--train-bpe", 400, "--out", trained, corpus)
    tokenizer = tokenizers.Tokenizer.from_file(str(trained / "tokenizer.json"))
    meta = json.loads((trained / "meta.json").read_text())
    assert meta["tokenizer"] == "bpe" and 257 < meta["vocab"] == tokenizer.get_vocab_size() <= 400
    end = tokenizer.token_to_id("<|endoftext|>")
    assert meta["end_of_text"] == {"id": end, "text": "<|endoftext|>"}
    documents = {name: [tokenizer.decode(d) for d in split(ids(trained / f"{name}.bin"), end)]
                 for name in ("train", "val")}
    assert sorted(documents["train"] + documents["val"]) == sorted(stories(200))
    assert not set(documents["train"]) & set(documents["val"])
    assert sum(meta["tokens"].values()) < meta["bytes"] / 1.5
    prepare("--tokenizer", trained / "tokenizer.json", "--out", loaded, corpus)
    for name in ("train.bin", "val.bin", "tokenizer.json"):
        assert (loaded / name).read_bytes() == (trained / name).read_bytes()


def test_special_tokens_in_a_text_are_text(corpus, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    text = "before <|endoftext|> after"
    (tmp_path / "evil.txt").write_text(text)
    prepare("--train-bpe", 300, "--out", tmp_path / "t", corpus)
    file = tmp_path / "t" / "tokenizer.json"
    prepare("--tokenizer", file, "--out", tmp_path / "out", tmp_path / "evil.txt")
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    end = tokenizer.token_to_id("<|endoftext|>")
    [document] = split(ids(tmp_path / "out" / "train.bin"), end)
    assert tokenizer.decode(document) == text


def test_json_lines_and_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": s}) + "\n" for s in stories(50)) + "\n")
    table = pyarrow.table({"n": range(51), "body": [None, *stories(50)]})
    parquet.write_table(table, tmp_path / "b.parquet")
    for name in ("a.jsonl", "b.parquet"):
        prepare("--bytes", "--field", "body", "--validation", 0, "--out", tmp_path / name[0], tmp_path / name)
        documents = [bytes(d).decode() for d in split(ids(tmp_path / name[0] / "train.bin"), 0)]
        assert documents == stories(50)


def test_long_files_are_cut_at_line_ends(tmp_path):
    text = "".join(f"line {i} of a long book\n" for i in range(120_000))
    (tmp_path / "book.txt").write_text(text)
    (tmp_path / "oneline.txt").write_text("é€🦊" * 200_000)
    prepare("--bytes", "--validation", 0, "--out", tmp_path / "out", tmp_path / "book.txt")
    documents = [bytes(d).decode() for d in split(ids(tmp_path / "out" / "train.bin"), 0)]
    assert "".join(documents) == text
    assert len(documents) == 3 and all(d.endswith("\n") and len(d) <= 1 << 20 for d in documents)
    prepare("--bytes", "--validation", 0, "--out", tmp_path / "out", tmp_path / "oneline.txt")
    documents = [bytes(d).decode() for d in split(ids(tmp_path / "out" / "train.bin"), 0)]
    assert len(documents) == 2 and "".join(documents) == "é€🦊" * 200_000


def test_folders_take_text_and_leave_the_rest(tmp_path):
    folder = tmp_path / "in"
    (folder / ".git").mkdir(parents=True)
    for name, content in {"a.txt": b"AAA", "b.md": b"BBB", "c.png": b"CCC", ".hidden.txt": b"DDD",
                          ".git/e.txt": b"EEE", "binary.txt": b"F\0F"}.items():
        (folder / name).write_bytes(content)
    prepare("--bytes", "--validation", 0, "--out", folder, folder)
    assert split(ids(folder / "train.bin"), 0) == [list(b"AAA"), list(b"BBB")]
    # Once more: its own output is no input, and a file that is named twice is read once.
    prepare("--bytes", "--validation", 0, "--out", folder, folder, folder / "a.txt")
    assert split(ids(folder / "train.bin"), 0) == [list(b"AAA"), list(b"BBB")]
    choice = ("--glob", "*.md", "--glob", "*.png")
    prepare("--bytes", "--validation", 0, *choice, "--out", tmp_path / "out", folder)
    assert split(ids(tmp_path / "out" / "train.bin"), 0) == [list(b"BBB"), list(b"CCC")]


def test_the_standard_library_by_a_python_without_packages(tmp_path):
    prepare("--bytes", "--python-stdlib", "--out", tmp_path / "out", python=(sys.executable, "-E", "-S"))
    sides = byte_documents(tmp_path / "out")
    assert len(sides["train"]) > 300 and len(sides["val"]) > 5
    assert Path(json.__file__).read_bytes() in sides["train"] + sides["val"]


def test_mistakes_are_told_in_one_line(corpus, tmp_path):
    out = tmp_path / "out"
    text = corpus / "part0" / "000.txt"
    assert "no INPUT" in refuse("--bytes", "--out", out)
    assert "--out" in refuse("--bytes", corpus)
    assert "required" in refuse("--out", out, corpus)
    assert "not allowed with" in refuse("--bytes", "--train-bpe", 300, "--out", out, corpus)
    assert "no such file" in refuse("--bytes", "--out", out, tmp_path / "none")
    assert "no input files" in refuse("--bytes", "--glob", "*.xyz", "--out", out, corpus)
    assert "257 to 65536" in refuse("--train-bpe", 256, "--out", out, corpus)
    assert "257 to 65536" in refuse("--train-bpe", 65537, "--out", out, corpus)
    assert "--validation" in refuse("--bytes", "--validation", 1, "--out", out, corpus)
    assert "no such file" in refuse("--tokenizer", tmp_path / "none.json", "--out", out, corpus)
    assert "--end-of-text" in refuse("--bytes", "--end-of-text", "x", "--out", out, corpus)
    assert "exists" in refuse("--bytes", "--out", text, corpus)
    assert not list(out.glob("*")) and not list(out.glob(".*"))


def test_bad_files_are_told_in_one_line(tmp_path):
    out = tmp_path / "out"

    def refuse_file(name, content, *options):
        (tmp_path / name).write_bytes(content)
        message = refuse("--bytes", "--out", out, *options, tmp_path / name)
        assert not out.exists() or not list(out.iterdir())
        return message

    assert "a.jsonl:2: not a line of JSON" in refuse_file("a.jsonl", b'{"text": "x"}\n{"text": \n')
    assert "b.jsonl:1: no text in field 'text'" in refuse_file("b.jsonl", b'{"body": "x"}\n')
    assert "c.jsonl:1: no text in field 'n'" in refuse_file("c.jsonl", b'{"n": 3}\n', "--field", "n")
    assert "hold no text" in refuse_file("empty.txt", b"")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    assert "unreadable Parquet" in refuse_file("d.parquet", b"nothing of the kind")
    parquet.write_table(pyarrow.table({"n": [1]}), tmp_path / "e.parquet")
    content = (tmp_path / "e.parquet").read_bytes()
    assert "no column 'text'" in refuse_file("e.parquet", content)
    assert "holds no text" in refuse_file("e.parquet", content, "--field", "n")


def test_bad_tokenizers_are_told_in_one_line(corpus, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    file, out = tmp_path / "tokenizer.json", tmp_path / "out"

    def refuse_vocabulary(vocabulary, *options):
        model = tokenizers.models.WordLevel(vocabulary, unk_token="?")
        tokenizers.Tokenizer(model).save(str(file))
        return refuse("--tokenizer", file, "--out", out, *options, corpus)

    assert "65537 ids" in refuse_vocabulary({"?": 0, "</s>": 65536})
    assert "end of text" in refuse_vocabulary({"?": 0, "stop": 1})
    assert "no token halt" in refuse_vocabulary({"?": 0, "stop": 1}, "--end-of-text", "halt")
    prepare("--tokenizer", file, "--end-of-text", "stop", "--out", out, corpus)
    file.write_text("{}")
    assert "not a tokenizer.json" in refuse("--tokenizer", file, "--out", out, corpus)


def test_other_shards_in_the_way(corpus, tmp_path):
    (tmp_path / "train_00.bin").write_bytes(b"ab")
    assert "in the way" in refuse("--bytes", "--out", tmp_path, corpus)
    assert not (tmp_path / "train.bin").exists()


def test_help_names_every_option_and_examples():
    text = prepare("--help").stdout
    for option in ("--bytes", "--tokenizer", "--train-bpe", "--out", "--validation", "--format", "--field",
                   "--glob", "--python-stdlib", "--seed", "--end-of-text", "examples:"):
        assert option in text
