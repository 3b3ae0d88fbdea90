"""Finds the documents that prepare_data.py turns into tokens: text files, folders, JSON lines, Parquet."""

import fnmatch
import json
import os
import sysconfig
from pathlib import Path

PIECE = 1 << 20  # bytes; the longest document that a text file makes
TEXT_SUFFIXES = frozenset(
    ".txt .md .rst .tex .org .html .xml .csv .tsv .json .yaml .yml .toml .ini .py .pyi .sh .c .h .cc .cpp "
    ".hpp .cu .cuh .rs .go .java .js .ts .rb .lua .sql .jsonl .ndjson .parquet".split())
OUTPUTS = ("train.bin", "val.bin", "tokenizer.json", "meta.json")
STDLIB_SKIP = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


class Mistake(Exception):
    """The user's mistake: told in one line, exit status 2."""


def walk(folder, patterns, skip_folders=frozenset()):
    """Files below a folder in a fixed order, hidden ones left out."""
    def failed(error):
        raise error

    for root, folders, names in os.walk(folder, onerror=failed):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in skip_folders)
        for name in sorted(names):
            path = Path(root, name)
            if not name.startswith(".") and path.is_file() and matches(path.relative_to(folder), patterns):
                yield path


def matches(path, patterns):
    if not patterns:
        return path.suffix.lower() in TEXT_SUFFIXES
    return any(fnmatch.fnmatch(path.name, p) or fnmatch.fnmatch(path.as_posix(), p) for p in patterns)


def find_files(inputs, patterns, python_stdlib, out):
    """Every input file once, in a fixed order, as (path, named by the user), but for our own output."""
    found, own = {}, {os.path.realpath(os.path.join(out, name)) for name in OUTPUTS}
    for name in inputs:
        path = Path(name)
        if not path.exists():
            raise Mistake(f"{name}: no such file or folder")
        inside = walk(path, patterns) if path.is_dir() else [path]
        for file in inside:
            if os.path.realpath(file) not in own:
                found.setdefault(os.path.realpath(file), (file, not path.is_dir()))
    if python_stdlib:
        for file in walk(sysconfig.get_path("stdlib"), ["*.py"], STDLIB_SKIP):
            found.setdefault(os.path.realpath(file), (file, False))
    if not found:
        raise Mistake("no input files found; name text, JSON lines or Parquet files, or use --glob")
    return list(found.values())


def text_documents(path, named):
    """Documents of at most PIECE bytes, cut at line ends; a binary file in a folder gives none."""
    rest = b""
    with open(path, "rb") as file:
        while block := rest + file.read(PIECE - len(rest)):
            if not named and b"\0" in block:
                return
            rest = b""
            if len(block) == PIECE:
                cut = block.rfind(b"\n") + 1 or character_start(block)
                block, rest = block[:cut], block[cut:]
            yield block


def character_start(block):
    """Where the last UTF-8 character of a block begins, so that a cut there splits none."""
    for back in range(1, 5):
        if block[-back] & 0xC0 != 0x80:
            return len(block) - back
    return len(block)


def json_documents(path, field):
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise Mistake(f"{path}:{number}: not a line of JSON: {error}") from None
            text = record.get(field) if isinstance(record, dict) else None
            if not isinstance(text, str):
                raise Mistake(f"{path}:{number}: no text in field '{field}'; name another with --field")
            yield text.encode("utf-8", "replace")


def parquet_documents(path, field):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Mistake(f"{path}: Parquet needs pyarrow: pip install pyarrow") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise Mistake(f"{path}: no column '{field}'; name one of {', '.join(names)} with --field")
            for batch in file.iter_batches(batch_size=512, columns=[field]):
                for text in batch.column(0).to_pylist():
                    if text is not None and not isinstance(text, str):
                        raise Mistake(f"{path}: column '{field}' holds no text; name another with --field")
                    yield (text or "").encode("utf-8", "replace")
    except pyarrow.ArrowException as error:
        raise Mistake(f"{path}: unreadable Parquet: {' '.join(str(error).split())}") from None


def documents(files, field):
    """(index of the file, content as bytes) of every document that is not empty."""
    for index, (path, named) in enumerate(files):
        suffix = path.suffix.lower()
        if suffix in (".jsonl", ".ndjson"):
            source = json_documents(path, field)
        elif suffix == ".parquet":
            source = parquet_documents(path, field)
        else:
            source = text_documents(path, named)
        yield from ((index, content) for content in source if content)
