#!/usr/bin/env python3
"""Turn text into the token shards that `moelab train data.path=DIR` reads.

DIR then holds train.bin and val.bin (16-bit token ids), tokenizer.json and meta.json. Nothing is downloaded.

Inputs are text files, folders of them (searched in depth), JSON lines and Parquet. A document is a text file,
a line of JSON lines or a row of Parquet; a text file longer than 1 MiB is cut at line ends into documents of
that size. A hash of its content decides whether a document is for training or for validation, so equal
documents never stand on both sides and the split is the same on every machine. When none falls to validation
there is no val.bin, and the trainer holds out the last 5 % by itself.

After each document comes its end: the tokenizer's end-of-text token, or with --bytes a zero byte.
"""

import own_python  # noqa: F401, first: it takes .venv's Python
import argparse
import array
import contextlib
import hashlib
import json
import os
import struct
import sys
import tempfile
import time
from pathlib import Path

from data_inputs import Mistake, documents, find_files

EXAMPLES = """examples:
  prepare_data.py --bytes --python-stdlib --out data/python       Python's own sources, one id a byte
  prepare_data.py --bytes --out data/notes notes/ README.md       a folder and a file
  prepare_data.py --train-bpe 4096 --out data/web crawl.jsonl     train a byte-level BPE tokenizer on it first
  prepare_data.py --tokenizer tokenizer.json --field body --out data/news news.parquet
"""

MAX_VOCAB = 1 << 16
MIN_BPE = 257  # 256 bytes and the end of text
BATCH = 4 << 20  # bytes; documents tokenized at once
LLMC_MAGIC, LLMC_VERSION, LLMC_HEADER, LLMC_MOST = 20240520, 1, 1024, 2**31 - 1
END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "<|eot|>", "</s>", "<eos>", "<|im_end|>", "[EOS]")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Mistake(f"{message} (see --help)")


class Split:
    """Which side a document is on, by a hash of its content. The first one, and its copies, always train."""

    def __init__(self, share, seed):
        self.below, self.salt, self.first = share * 2.0**64, struct.pack("<q", seed), None

    def is_validation(self, content):
        digest = hashlib.blake2b(content, digest_size=8, salt=self.salt).digest()
        if self.first is None:
            self.first = digest
        return digest != self.first and int.from_bytes(digest, "little") < self.below


# --- Tokenizers ---------------------------------------------------------------------------------------------

def printable_bytes():
    """What byte-level BPE (GPT-2) writes for each byte: its character if it prints, else one from U+0100."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


class Bytes:
    """One id a byte. Its tokenizer.json is a byte-level BPE of 256 tokens without merges."""

    kind, vocab, end, end_name = "bytes", 256, 0, "\0"

    def encode(self, contents):
        for content in contents:
            ids = bytearray(2 * len(content) + 2)  # the zero byte at the end included
            ids[0:-2:2] = content
            yield ids

    def to_json(self):
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                 "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                 "ignore_merges": False, "merges": [],
                 "vocab": {character: byte for byte, character in enumerate(printable_bytes())}}
        return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
                           "normalizer": None, "pre_tokenizer": level, "post_processor": None,
                           "decoder": level, "model": model}, ensure_ascii=False, indent=1)


class Subwords:
    """A tokenizer of the `tokenizers` package. Special tokens in a text are text and end no document."""

    kind = "bpe"

    def __init__(self, tokenizer, end_name=None):
        ids = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab = max(ids.values(), default=-1) + 1
        if not 1 <= self.vocab <= MAX_VOCAB:
            raise Mistake(f"the tokenizer has {self.vocab} ids; 16-bit shards hold 1 to {MAX_VOCAB}")
        names = [end_name] if end_name else END_OF_TEXT
        self.end_name = next((name for name in names if name in ids), None)
        if self.end_name is None:
            raise Mistake(f"the tokenizer has no token {' or '.join(names)}; "
                          "name its end of text with --end-of-text")
        self.end = ids[self.end_name]
        self.json = tokenizer.to_str(pretty=True)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self.tokenizer = tokenizer

    def encode(self, contents):
        texts = [content.decode("utf-8", "replace") for content in contents]
        for encoding in self.tokenizer.encode_batch(texts, add_special_tokens=False):
            ids = array.array("H", encoding.ids)
            ids.append(self.end)
            if sys.byteorder == "big":
                ids.byteswap()
            yield ids.tobytes()

    def to_json(self):
        return self.json


def import_tokenizers():
    try:
        import tokenizers
    except ImportError:
        raise Mistake("the `tokenizers` package is missing: pip install tokenizers, or use --bytes") from None
    return tokenizers


def load_tokenizer(path, end_name):
    tokenizers = import_tokenizers()
    if not Path(path).is_file():
        raise Mistake(f"--tokenizer {path}: no such file")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception
        raise Mistake(f"--tokenizer {path}: not a tokenizer.json: {' '.join(str(error).split())}") from None
    return Subwords(tokenizer, end_name)


def train_bpe(size, contents, show_progress):
    """Byte-level BPE as GPT-2's, trained on the training documents alone."""
    tokenizers = import_tokenizers()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END_OF_TEXT[0]], show_progress=show_progress,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((content.decode("utf-8", "replace") for content in contents), trainer)
    return Subwords(tokenizer)


# --- Output -------------------------------------------------------------------------------------------------

class Shard:
    """A shard under a temporary name until `publish`, so that it is whole or absent."""

    def __init__(self, path, llmc):
        self.path, self.llmc, self.tokens, self.documents = path, llmc, 0, 0
        self.file = tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False)
        if llmc:
            self.file.write(bytes(LLMC_HEADER))

    def write(self, ids):
        self.file.write(ids)
        self.tokens += len(ids) // 2
        self.documents += 1

    def publish(self):
        if self.llmc:
            if self.tokens > LLMC_MOST:
                raise Mistake(f"{self.path.name}: {self.tokens} tokens; llm.c's format holds {LLMC_MOST}: "
                              "use --format nanogpt")
            self.file.seek(0)
            self.file.write(struct.pack("<3i", LLMC_MAGIC, LLMC_VERSION, self.tokens))
        publish(self.file, self.path)

    def discard(self):
        self.file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file.name)


def publish(file, path):
    file.flush()
    os.fchmod(file.fileno(), 0o644)
    os.fsync(file.fileno())
    file.close()
    os.replace(file.name, path)


def write_text(path, text):
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.",
                                     delete=False) as file:
        file.write(text + "\n")
        publish(file, path)


class Progress:
    """A line on stderr: rewritten in a terminal, else a new one every ten seconds."""

    def __init__(self, files):
        self.files, self.documents, self.bytes, self.what = files, 0, 0, ""
        self.live = sys.stderr.isatty()
        self.shown = time.monotonic()

    def begin(self, what):
        self.what, self.documents, self.bytes = what, 0, 0

    def add(self, index, content):
        self.documents += 1
        self.bytes += len(content)
        if time.monotonic() - self.shown >= (0.2 if self.live else 10):
            self.shown = time.monotonic()
            line = (f"{self.what}: file {index + 1:,} of {self.files:,}, {self.documents:,} documents, "
                    f"{self.bytes / 1e6:,.1f} MB")
            line = f"\r{line}\033[K" if self.live else line + "\n"
            print(line, end="", file=sys.stderr, flush=True)

    def end(self):
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def refuse_other_shards(out):
    """Shards of another make beside ours would silently become part of the data."""
    for path in sorted([*out.glob("train*.bin"), *out.glob("val*.bin")]):
        if path.name not in ("train.bin", "val.bin"):
            raise Mistake(f"{path} is in the way: the trainer would read it too; choose another --out")


def encode_all(stream, tokenizer, split, train, validation):
    """Documents to the shards in batches of BATCH bytes; the number of bytes read."""
    total, pending, held = 0, 0, []

    def flush():
        for (shard, _), ids in zip(held, tokenizer.encode([content for _, content in held])):
            shard.write(ids)
        held.clear()

    for content in stream:
        total += len(content)
        pending += len(content)
        held.append((validation if split.is_validation(content) else train, content))
        if pending >= BATCH:
            flush()
            pending = 0
    flush()
    return total


def publish_all(out, train, validation, tokenizer, meta):
    """train.bin goes first and comes last, so that a run cut short leaves a folder without one."""
    for old in ("train.bin", "val.bin"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(out / old)
    if validation.tokens:
        validation.publish()
    write_text(out / "tokenizer.json", tokenizer.to_json())
    sides = {"train": train, "validation": validation}
    meta = {**meta, "tokens": {side: shard.tokens for side, shard in sides.items()},
            "documents": {side: shard.documents for side, shard in sides.items()}}
    write_text(out / "meta.json", json.dumps(meta, indent=2))
    train.publish()
    return meta


def prepare(args):
    files = find_files(args.inputs, args.glob, args.python_stdlib, args.out)
    out = Path(args.out)
    refuse_other_shards(out)
    progress = Progress(len(files))

    def read(what):
        progress.begin(what)
        for index, content in documents(files, args.field):
            progress.add(index, content)
            yield content

    if args.bytes:
        tokenizer = Bytes()
    elif args.tokenizer:
        tokenizer = load_tokenizer(args.tokenizer, args.end_of_text)
    else:
        split = Split(args.validation, args.seed)
        contents = (content for content in read("tokenizer") if not split.is_validation(content))
        tokenizer = train_bpe(args.train_bpe, contents, progress.live)

    out.mkdir(parents=True, exist_ok=True)
    llmc = args.format == "llmc"
    shards = []
    try:
        for name in ("train.bin", "val.bin"):
            shards.append(Shard(out / name, llmc))
        total = encode_all(read("tokens"), tokenizer, Split(args.validation, args.seed), *shards)
        progress.end()
        if total == 0:
            raise Mistake(f"the {len(files)} input files hold no text")
        meta = {"format": args.format, "tokenizer": tokenizer.kind, "vocab": tokenizer.vocab,
                "end_of_text": {"id": tokenizer.end, "text": tokenizer.end_name}, "sources": len(files),
                "bytes": total, "seed": args.seed, "validation_share": args.validation}
        return publish_all(out, *shards, tokenizer, meta)
    finally:
        for shard in shards:
            shard.discard()


def counted(count, what):
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def print_summary(args, meta):
    tokens, count = meta["tokens"], sum(meta["tokens"].values())
    held = meta["documents"]["validation"]
    print(f"{args.out}: {count:,} tokens of {counted(sum(meta['documents'].values()), 'document')} from "
          f"{counted(meta['sources'], 'file')} ({meta['bytes'] / 1e6:,.1f} MB, "
          f"{meta['bytes'] / count:.2f} bytes a token)")
    print(f"  train.bin  {tokens['train']:>15,} tokens")
    print(f"  val.bin    {tokens['validation']:>15,} tokens ({counted(held, 'document')})" if held else
          "  no val.bin: too few documents to set some apart; the trainer holds out the last 5 %")
    print(f"  tokenizer  {meta['tokenizer']}, {meta['vocab']:,} ids, end of text {meta['end_of_text']['id']}")
    print(f"train on it: moelab train data.path={args.out} model.vocab={meta['vocab']}")


def share(text):
    value = float(text)
    if not 0 <= value < 1:
        raise ValueError
    return value


def parse(arguments):
    parser = Parser(prog="prepare_data.py", description=__doc__, epilog=EXAMPLES, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--bytes", action="store_true", help="one token id a byte (256 ids)")
    how.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json of at most 65,536 ids")
    how.add_argument("--train-bpe", metavar="N", type=int, help="train a byte-level BPE tokenizer of N ids")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to write")
    parser.add_argument("--validation", metavar="SHARE", type=share, default=0.05,
                        help="share of the documents for val.bin, 0 to below 1 (default: 0.05)")
    parser.add_argument("--format", choices=("nanogpt", "llmc"), default="nanogpt",
                        help="nanogpt: ids alone; llmc: llm.c's header first (default: nanogpt)")
    parser.add_argument("--field", default="text", help="field of JSON lines and Parquet (default: text)")
    parser.add_argument("--glob", metavar="PATTERN", action="append",
                        help="files to take from folders, e.g. '*.md'; repeatable (default: texts)")
    parser.add_argument("--end-of-text", metavar="TOKEN",
                        help="with --tokenizer: the token that ends a document")
    parser.add_argument("--python-stdlib", action="store_true",
                        help="also read the sources of this Python's standard library, without its tests")
    parser.add_argument("--seed", type=int, default=0, help="of the hash that splits documents (default: 0)")
    parser.add_argument("inputs", metavar="INPUT", nargs="*",
                        help="text, .jsonl or .parquet file, or a folder")
    args = parser.parse_args(arguments)
    if not args.inputs and not args.python_stdlib:
        raise Mistake("no INPUT: name files or folders, or use --python-stdlib")
    if args.train_bpe is not None and not MIN_BPE <= args.train_bpe <= MAX_VOCAB:
        raise Mistake(f"--train-bpe {args.train_bpe}: must be {MIN_BPE} to {MAX_VOCAB}")
    if args.end_of_text and not args.tokenizer:
        raise Mistake("--end-of-text goes with --tokenizer")
    if not -(2**63) <= args.seed < 2**63:
        raise Mistake(f"--seed {args.seed}: must fit 64 bits")
    return args


def main(arguments=None):
    try:
        args = parse(arguments)
        print_summary(args, prepare(args))
    except (Mistake, OSError) as error:
        print(f"prepare_data.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("prepare_data.py: stopped; nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
