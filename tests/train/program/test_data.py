"""moelab train with packed documents, workers that read ahead, and another malloc: what it leaves, and how it fails."""

import os
import pathlib
import random
import re
import subprocess

import programs
import pytest
from programs import expect_mistake, metrics, summary

LIBRARIES = {"jemalloc": ("libjemalloc.so.2", "libjemalloc2"),
             "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4")}  # fmt: skip
FOLDERS = [pathlib.Path(folder) for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib")]


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> pathlib.Path:
    """Documents of 1 to 200 bytes, each with its end, and the tokenizer of bytes."""
    folder = programs.prepare_bytes(tmp_path_factory.mktemp("data"), "x" * 3000)
    lengths = random.Random(3)
    for side, documents in (("train", 400), ("val", 40)):
        ids = bytearray()
        for _ in range(documents):
            ids += b"".join(bytes([97 + n % 26, 0]) for n in range(lengths.randint(1, 200))) + b"\0\0"
        (folder / f"{side}.bin").write_bytes(ids)
    return folder


def command(shards, folder, *arguments) -> list[str]:
    given = {"data.path": shards, "run.dir": folder, "model.layers": 2, "train.sequence": 64, "train.micro_batch": 2,
             "train.steps": 4, "eval.batches": 0, "checkpoint.keep": 2, "run.threads": 1, "run.log_every": 1}  # fmt: skip
    return programs.train_command(given, *arguments)


def run(shards, folder, *arguments, **environment) -> subprocess.CompletedProcess:
    return programs.run(command(shards, folder, *arguments), env={**os.environ, **environment})


PACKED = ["train.micro_batch=1", "train.tokens_per_device=256", "train.accumulation=2"]


def weights(folder) -> bytes:
    return (folder / "checkpoints/step-4/model.safetensors").read_bytes()


def test_the_fill_rate_is_reported_and_the_peak_foretold(shards, tmp_path):
    assert summary(run(shards, tmp_path, *PACKED), tmp_path)["fill_rate"] > 0.97
    done = run(shards, tmp_path, *PACKED, "train.sequence=200", "data.buffer=3", "--overwrite")
    found, lines = summary(done, tmp_path), metrics(tmp_path)
    assert 0.4 < found["fill_rate"] < 0.95
    assert found["fill_rate"] == pytest.approx(sum(line["fill_rate"] for line in lines) / 4)
    assert lines[-1]["tokens"] == round(4 * 2 * 256 * found["fill_rate"])
    assert f"fill {100 * lines[-1]['fill_rate']:.1f}%" in done.stdout
    assert lines[0]["tokens_per_second"] == pytest.approx(1000 * lines[0]["tokens"] / lines[0]["step_ms"])
    assert abs(found["peak_bytes"] / found["estimated_peak_bytes"] - 1) < 0.01


def test_a_packed_run_goes_on_bit_for_bit(shards, tmp_path):
    summary(run(shards, tmp_path / "whole", *PACKED, "data.buffer=7"), tmp_path / "whole")
    for extra in (["checkpoint.every=2"], ["--resume", str(tmp_path / "parts/checkpoints/step-2")]):
        summary(run(shards, tmp_path / "parts", *PACKED, "data.buffer=7", *extra), tmp_path / "parts")
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert [line["tokens"] for line in metrics(tmp_path / "parts")] == \
        [line["tokens"] for line in metrics(tmp_path / "whole")]  # fmt: skip


def test_a_packed_run_without_room_says_so(shards, tmp_path):
    done = run(shards, tmp_path, *PACKED, "memory.limit=26MiB", "train.tokens_per_device=4096")
    assert done.returncode == 3, done
    assert "predicted not to fit memory.limit=26MiB: " in done.stderr
    assert re.search(r"what would be enough, each by itself:\n  train.tokens_per_device=\d+ train.accumulation=\d+ ", done.stderr)


def test_bytes_in_a_model_for_many_tokens_are_noticed(shards, tmp_path):
    nothing = ["train.steps=0", "eval.batches=0", "checkpoint.keep=0"]
    done = run(shards, tmp_path / "many", "model.vocab=1024", *nothing)
    assert "ids above 255 never occur" in done.stdout and "model.vocab=256 saves 98.3k parameters" in done.stdout, done
    assert "warning" not in run(shards, tmp_path / "bytes", *nothing).stdout


@pytest.mark.parametrize("kind", [[], PACKED])
def test_workers_change_nothing_but_who_reads(shards, tmp_path, kind):
    for name, settings in {"alone": ["data.workers=0", "data.prefetch=0"], "many": ["data.workers=5"]}.items():
        summary(run(shards, tmp_path / name, *kind, *settings), tmp_path / name)
    assert weights(tmp_path / "alone") == weights(tmp_path / "many")


def test_what_batches_ahead_hold(shards, tmp_path):
    """The guides' formula, (workers x prefetch + the one at work) x batch x sequence, at 8 + 8 bytes a token."""
    held = {}
    for prefetch in (2, 4):
        found = summary(run(shards, tmp_path, "--overwrite", "data.workers=3", f"data.prefetch={prefetch}", "checkpoint.keep=0",
                            "train.steps=30", "run.log_every=0"), tmp_path)  # fmt: skip
        assert found["data_bytes_by_formula"] == (3 * prefetch + 1) * 2 * 64 * 16
        held[prefetch] = found["host_bytes"]
        assert held[prefetch] == found["data_bytes_by_formula"]
    assert held[4] > 1.8 * held[2]


def test_workers_live_as_long_as_the_run(shards, tmp_path):
    threads = set()
    process = programs.start_and_take_a_step(command(shards, tmp_path, "data.workers=7", "train.steps=1000000"), tmp_path)
    try:
        for _ in range(20):
            names = os.listdir(f"/proc/{process.pid}/task")
            threads.add(frozenset(names))
            programs.time.sleep(0.02)
    finally:
        process.terminate()
        process.wait(timeout=60)
    assert len(min(threads, key=len)) >= 8
    always = frozenset.intersection(*threads)
    assert len(always) >= 8  # the main one and seven workers, at every look


def test_mistakes_name_what_would_be_right(shards, tmp_path, make_shards):
    bare = make_shards(20_000, 4_000)
    expect_mistake(run(bare, tmp_path, *PACKED), "train.tokens_per_device=256", "tokenizer.json", "prepare_data.py")
    for settings, expected in (
        (["train.tokens_per_device=256"], "set train.micro_batch=1"),
        ([*PACKED, "attention.kernel=materialised"], "attention.kernel=flash"),
        ([*PACKED, "model.router=expert_choice"], "model.router"),
        (["data.workers=0"], "data.prefetch=0"),
        (["memory.host_allocator=hoard"], "one of system, jemalloc, tcmalloc"),
    ):
        expect_mistake(run(shards, tmp_path, *settings), expected)
    assert list(tmp_path.iterdir()) == []


def test_documents_that_teach_nothing_are_a_mistake(shards, tmp_path):
    (tmp_path / "ends").mkdir()
    for name in ("train.bin", "val.bin"):
        (tmp_path / "ends" / name).write_bytes(bytes(2000))
    (tmp_path / "ends/tokenizer.json").write_bytes((shards / "tokenizer.json").read_bytes())
    expect_mistake(run(tmp_path / "ends", tmp_path / "run", *PACKED), "no document of two tokens or more")


@pytest.mark.parametrize("choice", LIBRARIES)
def test_another_malloc(shards, tmp_path, choice):
    library, package = LIBRARIES[choice]
    given = command(shards, tmp_path, f"memory.host_allocator={choice}", "train.steps=1000000")
    if not any((folder / library).exists() for folder in FOLDERS):
        done = programs.run(given)
        expect_mistake(done, f"memory.host_allocator={choice}: {library} is missing", f"apt-get install {package}")
        return
    process = programs.start_and_take_a_step(given, tmp_path)
    try:
        assert library in pathlib.Path(f"/proc/{process.pid}/maps").read_text()
        environment = pathlib.Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        assert sum(pair.startswith(b"LD_PRELOAD=") and library.encode() in pair for pair in environment) == 1
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0


def test_a_library_that_does_not_load_is_tried_once(shards, tmp_path):
    (tmp_path / "lib").mkdir()
    for library, _ in LIBRARIES.values():
        (tmp_path / "lib" / library).write_bytes(b"no library")
    for choice, (library, package) in LIBRARIES.items():
        done = run(shards, tmp_path / "run", f"memory.host_allocator={choice}", LD_LIBRARY_PATH=str(tmp_path / "lib"))
        assert done.returncode == 2, done
        assert f"moelab: memory.host_allocator={choice}: {library} does not load; reinstall the package {package}" \
            in done.stderr  # fmt: skip
    assert not (tmp_path / "run").exists()
