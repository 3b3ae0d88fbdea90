"""Texts that moelab train writes while it trains, through the program."""

import json
import pathlib
import re
import subprocess

import programs
import pytest
from programs import expect_mistake

SENTENCE = "the fox, quick and brown, jumps over the dog; "
PROMPTS = ["the fox", "jumps", "q", "the dog; the fox, quick and brown, jumps over", "ov", "dog"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
    """Shards of one sentence told over and over, a token a byte, and prompts."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "prompts.txt").write_text("\n".join(PROMPTS) + "\n\n")
    programs.prepare_bytes(folder, SENTENCE * 2000)
    return folder


def run(data, folder, *settings, command="train") -> subprocess.CompletedProcess:
    given = {"data.path": data / "shards", "run.dir": folder, "model.layers": 2, "train.sequence": 64,
             "train.micro_batch": 2, "train.steps": 6, "eval.batches": 2, "run.threads": 1, "run.log_every": 0}  # fmt: skip
    return programs.run(programs.train_command(given, *settings, command=command))


def train(data, folder, *settings) -> dict:
    return programs.summary(run(data, folder, *settings), folder)


def lines(file: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().split("\n") if line]


def texts(folder) -> list[tuple]:
    return [(s["step"], s["prompt"], s["text"], s["tokens"]) for s in lines(folder / "samples.jsonl")]


def state(folder, step=6) -> bytes:
    saved = folder / "checkpoints" / f"step-{step}"
    return (saved / "model.safetensors").read_bytes() + (saved / "optimizer.safetensors").read_bytes()


def sampling(data) -> list[str]:
    return ["sample.every=2", f"sample.prompt=@{data}/prompts.txt"]


@pytest.mark.parametrize("settings", [[], ["precision.compute=bf16", "activations.checkpoint=full"],
                                      ["placement.parameters=host", "placement.optimizer=host"],
                                      ["precision.compute=bf16", "precision.store=int8"]])  # fmt: skip
def test_training_keeps_its_bits(data, tmp_path, settings):
    plain = train(data, tmp_path / "plain", *settings)
    sampled = train(data, tmp_path / "sampled", *settings, *sampling(data))
    assert state(tmp_path / "sampled") == state(tmp_path / "plain")
    assert sampled["held_out_loss"] == plain["held_out_loss"]
    measured = ["loss", "grad_norm", "expert_load", "dropped_fraction", "peak_bytes"]
    for with_texts, without in zip(*(lines(tmp_path / name / "metrics.jsonl") for name in ["sampled", "plain"])):
        assert [with_texts[key] for key in measured] == [without[key] for key in measured]
    assert not (tmp_path / "plain/samples.jsonl").exists()


def test_every_prompt_is_continued_and_printed(data, tmp_path):
    done = run(data, tmp_path, *sampling(data))
    assert done.returncode == 0, done.stderr
    got = texts(tmp_path)
    assert [(step, prompt) for step, prompt, _, _ in got] == [(s, p) for s in [2, 4, 6] for p in PROMPTS]
    for sample in lines(tmp_path / "samples.jsonl"):
        assert 0 <= sample["tokens"] <= 64 and len(sample["text"]) <= sample["tokens"]
        assert sample["tokens_per_second"] > 0
        # 64 positions hold a prompt, what is written, and not the last token
        assert sample["tokens"] <= 64 - len(sample["prompt"]) + 1
        assert f'  {json.dumps(sample["prompt"])} -> ' in done.stdout
    assert done.stdout.count("] samples: ") == 3
    assert len({text for _, _, text, _ in got}) > len(PROMPTS)


def least_share(data, folder, *settings) -> str:
    """The setting that a refusal names as the smallest that would do."""
    done = run(data, folder / "refused", *settings, "sample.share=0.0001", command="estimate")
    return re.search(r"the smallest that would do is (sample\.share=[\d.]+)", done.stderr)[1]


def test_a_model_that_knows_its_text_writes_it(data, tmp_path):
    train(data, tmp_path, "train.steps=150", "optim.lr=3e-3", "train.micro_batch=8", "sample.every=150",
          "sample.prompt=the fox,")  # fmt: skip
    ((_, _, text, _),) = texts(tmp_path)
    assert text[:10] == " quick and"


# How many are under way at a time, and how their prompts are cut, changes the order of work alone.
@pytest.mark.parametrize("bounds", [["sample.max_sequences=1"], ["sample.max_sequences=4"],
                                    ["sample.max_batched_tokens=5"], ["sample.share"]])  # fmt: skip
def test_texts_that_wait_are_the_same(data, tmp_path, bounds):
    limit = "memory.limit=64MiB"
    if bounds == ["sample.share"]:  # of one text
        bounds = [least_share(data, tmp_path, *sampling(data), limit)]
    train(data, tmp_path / "together", *sampling(data), limit, "sample.share=1", "sample.max_sequences=6")
    train(data, tmp_path / "waiting", *sampling(data), limit, *bounds)
    assert texts(tmp_path / "waiting") == texts(tmp_path / "together")


def test_a_resumed_run_writes_the_same(data, tmp_path):
    settings = [*sampling(data), "checkpoint.every=2", "checkpoint.keep=9"]
    train(data, tmp_path / "whole", *settings)
    train(data, tmp_path / "parts", *settings)
    done = run(data, tmp_path / "parts", *settings, "--resume", tmp_path / "parts/checkpoints/step-2")
    assert done.returncode == 0, done.stderr
    assert texts(tmp_path / "parts") == texts(tmp_path / "whole")
    assert state(tmp_path / "parts") == state(tmp_path / "whole")


@pytest.mark.parametrize("settings", [["precision.compute=fp32"], ["precision.compute=bf16", "model.kv_heads=2"],
                                      ["placement.parameters=host"], ["attention.kernel=sliding_window",
                                       "attention.window=16"]])  # fmt: skip
def test_the_estimate_includes_the_share(data, tmp_path, settings):
    """So many and so long texts that they, not a step, make the peak."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join((SENTENCE * 2)[:60] for _ in range(160)))
    many = [*settings, "memory.limit=256MiB", "train.micro_batch=1", "train.sequence=128", "sample.every=6",
            f"sample.prompt=@{prompts}", "sample.share=0.15", "sample.max_sequences=1000"]  # fmt: skip
    got = train(data, tmp_path, *many)
    one = 2 * 2 * 128 * 128 * 4  # keys and values, layers, positions, width, bytes
    one //= 2 * (4 // 2) if "precision.compute=bf16" in settings else 1  # bf16, two of four heads
    at_a_time, rest = divmod(got["peak_bytes_by_kind"]["kv_cache"], one)
    assert rest == 0 and 1 < at_a_time <= 160
    # keys and values, weights and a pass of 1024 tokens: within the share, and one more text, if any is left, would
    # not be
    share, parameters = 0.15 * 256 * 2**20, got["state_bytes"]["parameters"]
    weights = parameters if "placement.parameters=host" not in settings else 0
    assert at_a_time * one + weights < share
    assert at_a_time == 160 or share < (at_a_time + 1) * one + parameters + 1024 * 16 * 2**10
    assert abs(got["peak_bytes"] / got["estimated_peak_bytes"] - 1) < 0.01
    estimate = json.loads(run(data, tmp_path, *many, "--json", command="estimate").stdout)
    assert estimate["peak_bytes"] == got["estimated_peak_bytes"]


def test_running_out_of_memory_halves_them(data, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join("the fox" for _ in range(80)))
    # the share leaves out that the optimizer's state is held too
    settings = ["sample.every=3", f"sample.prompt=@{prompts}", "sample.share=1", "sample.max_sequences=80",
                "sample.max_batched_tokens=80", "memory.limit=22MiB", "train.micro_batch=1"]  # fmt: skip
    done = run(data, tmp_path / "run", *settings)
    assert done.returncode == 0, done.stderr
    assert "reducing samples at a time (80 to 40)" in done.stdout
    assert len(texts(tmp_path / "run")) == 160
    train(data, tmp_path / "plain", "train.micro_batch=1")
    assert state(tmp_path / "run") == state(tmp_path / "plain")
    assert run(data, tmp_path / "fixed", *settings, "memory.recover=false").returncode == 3


def test_a_share_that_holds_no_text_names_one_that_does(data, tmp_path):
    settings = [*sampling(data), "memory.limit=64MiB"]
    one = 2 * 2 * 64 * 128 * 4
    enough = least_share(data, tmp_path, *settings)
    less = f"sample.share={float(enough.split('=')[1]) - 1e-4:.4f}"
    assert float(enough.split("=")[1]) * 2**26 > one
    expect_mistake(run(data, tmp_path / "run", *settings, less, command="estimate"), f"{less} of memory.limit", enough)
    for command in ["train", "estimate"]:
        expect_mistake(run(data, tmp_path / "run", *settings, "sample.share=0.001", command=command),
                       "sample.share=0.001 of memory.limit=64MiB", "train.sequence=64", enough)  # fmt: skip
    assert not (tmp_path / "run").exists()
    train(data, tmp_path / "run", *settings, enough)
    expect_mistake(run(data, tmp_path / "tiny", *settings, "memory.limit=100kB"), "no share would do")


def test_mistakes_are_one_line(data, tmp_path):
    def mistake(*settings):
        return run(data, tmp_path / "run", "sample.every=2", *settings)

    expect_mistake(mistake(), "sample.every=2 with sample.prompt=")
    expect_mistake(mistake(f"sample.prompt=@{tmp_path}/gone"), f"sample.prompt=@{tmp_path}/gone", "No such file")
    (tmp_path / "blank").write_text(" \n\n")
    expect_mistake(mistake(f"sample.prompt=@{tmp_path}/blank"), "there is no prompt in it")
    expect_mistake(mistake("sample.prompt=" + "long " * 20), "100 tokens", "64 positions")
    expect_mistake(mistake("sample.prompt=a", "model.router=expert_choice"), "model.router=expert_choice")
    expect_mistake(mistake("sample.prompt=a", "sample.share=1.5"), "sample.share")
    (data / "bare").mkdir(exist_ok=True)
    for shard in (data / "shards").glob("*.bin"):
        (data / "bare" / shard.name).write_bytes(shard.read_bytes())
    expect_mistake(mistake("sample.prompt=a", f"data.path={data}/bare"), "tokenizer.json")
    assert not (tmp_path / "run").exists()
