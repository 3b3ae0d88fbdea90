"""Kernels qualify themselves: the program on the emulated GPU (runtime.cpp), on which events take no time, so that of the
variants that agree the one named last is kept."""

import json
import os
import pathlib
import re

import programs
import pytest

EMULATED = programs.built("MOELAB_EMULATED", "tests/emulator/moelab_emulated")
PLANTED = programs.built("MOELAB_PLANTED_PROGRAM", "tests/emulator/moelab_planted")
TINY = ["--config", "moe-pico", "model.layers=1", "model.d_model=32", "model.heads=2", "model.d_expert=32",
        "train.sequence=16", "train.micro_batch=1", "precision.compute=bf16", "model.dispatch=dropless"]  # fmt: skip
FAST = {"combine_rows": "packed", "expert_products": "grouped", "router_gradients": "split", "router_logits": "split",
        "swiglu": "packed", "swiglu_backward": "packed"}  # fmt: skip
VARIANTS = [(op, variant) for op in FAST for variant in ("plain", FAST[op])] + [("expert_products", "gathered"), ("expert_products", "hopper")]
PLAIN = dict.fromkeys(FAST, "plain")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> pathlib.Path:
    """The user's cache, which is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MOELAB_KERNELS", raising=False)
    return tmp_path / "cache/moelab"


def qualified(*words, program=EMULATED, **environment: str) -> dict:
    done = programs.run([program, "qualify", "--json", *TINY, *words], env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def outcomes(said: dict) -> dict[tuple[str, str], str]:
    return {(one["operator"], one["variant"]): one["failure"] for one in said["tried"]}


def test_every_variant_agrees_on_hopper(cache):
    said = qualified()
    assert said["kernels"] == FAST and said["gpu"] == "emulator"
    assert outcomes(said) == dict.fromkeys(VARIANTS, "")
    (file,) = cache.iterdir()
    record = json.loads(file.read_text())
    assert record["key"]["gpu"] == "emulator" and record["key"]["sizes"]["tokens"] == 16 and record["tried"] == said["tried"]


@pytest.mark.parametrize("words, tried", [
    (["precision.compute=fp32"], {"combine_rows", "swiglu", "swiglu_backward"}),
    (["precision.compute=fp16"], {"combine_rows", "expert_products", "swiglu", "swiglu_backward"}),
    (["model.experts=0"], {"swiglu", "swiglu_backward"})])  # fmt: skip
def test_what_a_run_does_not_use_is_not_tried(words, tried):
    said = qualified(*words)
    assert {op for op, _ in outcomes(said)} == tried and set(outcomes(said).values()) == {""}
    assert said["kernels"] == {op: FAST[op] if op in tried else "plain" for op in FAST}


@pytest.mark.parametrize("does, failure", [("wrong", r"wrong with one token, result 1: error \S+ of the norm, .*"),
                                           ("crashes", r"crashed: signal 11.*"),
                                           ("hangs", r"hung: no answer for 20 s")])  # fmt: skip
def test_a_planted_variant_is_out_and_the_others_are_tried_all_the_same(does, failure):
    said = qualified("--patience", "20", program=PLANTED, MOELAB_PLANTED=does)
    tried = outcomes(said)
    assert re.fullmatch(failure, tried.pop(("combine_rows", "planted"))), said
    assert tried == dict.fromkeys(VARIANTS, "")
    assert said["kernels"] == FAST


def test_the_page_for_people():
    done = programs.run([EMULATED, "qualify", *TINY])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("emulator: kernels beside LibTorch's operators"), lines
    assert re.fullmatch(r"expert_products +gathered +0\.000  agrees", lines[6]), lines
    assert lines[-1] == "kernels: " + ", ".join(f"{op} {variant}" for op, variant in FAST.items())


def test_without_a_gpu_it_is_a_mistake():
    programs.expect_mistake(programs.run([EMULATED, "qualify", *TINY], env={**os.environ, "MOELAB_EMULATOR_DRIVER": "0"}),
                            "there is no NVIDIA driver")  # fmt: skip


class Training:
    """Short trainings in one folder."""

    def __init__(self, shards: pathlib.Path, folder: pathlib.Path):
        self.words = ["train", *TINY, "eval.batches=0", "run.threads=1", f"data.path={shards}"]
        self.folder = folder

    def lines(self, *words, program=EMULATED, **environment: str) -> list[str]:
        """What it says of its kernels and its GPU."""
        done = programs.run([program, *self.words, f"run.dir={self.folder}", *words], env={**os.environ, **environment})
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith(("kernels:", "emulator:"))]

    def kernels(self) -> dict:
        return json.loads((self.folder / "summary.json").read_text())["kernels"]


@pytest.fixture
def training(make_shards, tmp_path) -> Training:
    return Training(make_shards(2_000, 500), tmp_path / "run")


def said(kernels: dict, why: str) -> str:
    return "kernels: " + ", ".join(f"{op} {variant}" for op, variant in kernels.items()) + f" ({why})"


def test_a_run_qualifies_once_and_then_reads_the_record(training, cache):
    first = training.lines("train.steps=1")
    (file,) = cache.iterdir()
    record = json.loads(file.read_text())
    assert first[0].startswith("emulator: moelab's kernels are unproved on this GPU")
    assert first[1] == said(FAST, f"qualified here on {record['date']}") and training.kernels() == FAST
    file.write_text(json.dumps(record | {"date": "1999-01-01"}))
    again = training.lines("train.steps=1", "--overwrite")
    assert again[0].startswith("emulator: the kernels of experts agreed here with LibTorch's operators on 1999-01-01")
    assert again[1] == said(FAST, "qualified here on 1999-01-01")
    file.write_text(file.read_text()[:100])
    assert training.lines("train.steps=1", "--overwrite") == first and json.loads(file.read_text()) == record
    assert training.lines("train.steps=1", "--overwrite", MOELAB_EMULATOR_DRIVER="13.9")[0] == first[0]
    assert len(list(cache.iterdir())) == 2, "a driver has a record of its own"


def test_a_run_whose_variant_crashes_goes_on_without_it(training):
    lines = training.lines("train.steps=1", program=PLANTED, MOELAB_PLANTED="crashes")
    assert "; combine_rows planted is out: crashed: signal 11" in lines[1] and training.kernels() == FAST


def test_plain_kernels_are_taken_unasked_and_untried(training, cache):
    assert training.lines("train.steps=1", MOELAB_KERNELS="plain")[1] == "kernels: plain (MOELAB_KERNELS)"
    assert training.kernels() == PLAIN and not cache.exists()
    wrong = programs.run([EMULATED, *training.words, f"run.dir={training.folder}", "--overwrite"],
                         env={**os.environ, "MOELAB_KERNELS": "fast"})  # fmt: skip
    programs.expect_mistake(wrong, "MOELAB_KERNELS=fast: only plain is known")


def test_a_resumed_run_keeps_its_checkpoints_kernels(training, tmp_path):
    training.lines("train.steps=1", "checkpoint.keep=1", MOELAB_KERNELS="plain")
    assert json.loads((training.folder / "checkpoints/step-1/kernels.json").read_text()) == PLAIN
    qualified()
    resumed = training.lines("train.steps=2", "checkpoint.keep=1", "--resume", "latest")
    assert resumed[1] == said(PLAIN, "the checkpoint's") and training.kernels() == PLAIN
    assert json.loads((training.folder / "checkpoints/step-2/kernels.json").read_text()) == PLAIN
    other = Training(training.words[-1].removeprefix("data.path="), tmp_path / "other")
    assert other.lines("train.steps=1")[1].startswith(said(FAST, "qualified here")[:-1])
