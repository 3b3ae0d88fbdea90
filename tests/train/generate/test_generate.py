"""`moelab generate` with checkpoints that the built program trained here, of bytes and of BPE tokens."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import programs
import pytest
from programs import ROOT

PROGRAM = os.path.abspath(programs.moelab())
SENTENCE = "the fox – quick and brown – jumps over the dög; "
STATISTICS = re.compile(
    r"(\d+) tokens \((.*?)\)(?:, ([\d.]+) tokens/s after the first)?; prompt of (\d+) tokens in [\d.]+ s; "
    r"KV cache (.+) = 2 x (\d+) layers x (\d+) positions x (\d+) heads x (\d+) x (\d+) bytes")


def train(folder: pathlib.Path, tokenizer: list[str], *settings: str) -> pathlib.Path:
    """A run on one sentence, told over and over, until it knows it."""
    text = folder / "text.txt"
    text.write_text(SENTENCE * 4000)
    subprocess.run([sys.executable, ROOT / "scripts/prepare_data.py", *tokenizer, "--out", folder / "data", text],
                   check=True, capture_output=True)
    run = folder / "run"
    subprocess.run([PROGRAM, "train", "--config", "moe-pico", f"data.path={folder}/data", f"run.dir={run}",
                    "model.layers=2", "train.sequence=128", "optim.lr=3e-3", "eval.batches=0", *settings],
                   check=True, capture_output=True)
    shutil.rmtree(folder / "data")  # a checkpoint folder is all that generating needs
    return run


@pytest.fixture(scope="session")
def bytes_run(tmp_path_factory) -> pathlib.Path:
    return train(tmp_path_factory.mktemp("bytes"), ["--bytes"], "train.steps=60")


@pytest.fixture(scope="session")
def bpe_run(tmp_path_factory) -> pathlib.Path:
    return train(tmp_path_factory.mktemp("bpe"), ["--train-bpe", "280"], "model.vocab=288", "train.steps=60",
                 "precision.compute=bf16", "model.kv_heads=2")


def call(*arguments, cwd=None) -> subprocess.CompletedProcess:
    return subprocess.run([PROGRAM, "generate", *map(str, arguments)], capture_output=True, timeout=300, cwd=cwd)


def write(*arguments) -> str:
    done = call(*arguments)
    assert done.returncode == 0, done
    return done.stdout.decode()


def mistake(*arguments) -> str:
    """Exit code 2, one line on stderr, nothing on stdout."""
    done = call(*arguments)
    assert (done.returncode, done.stdout) == (2, b""), done
    message = done.stderr.decode()
    assert message.startswith("moelab: ") and message.count("\n") == 1, message
    return message


@pytest.mark.parametrize("kind", ["bytes_run", "bpe_run"])
def test_a_learned_sentence_goes_on(kind, request):
    run = request.getfixturevalue(kind)
    prompt = SENTENCE[:10]
    done = call("--from", run, "--prompt", prompt, "--temperature", 0, "--max-tokens", 60)
    assert done.returncode == 0, done
    text = done.stdout.decode()
    assert text.startswith(prompt) and text.endswith("\n")
    whole = text.removesuffix("\n").removesuffix("�")  # the last token may break off within a character
    assert (SENTENCE * 10).startswith(whole), text
    assert len(whole) > 60


def test_statistics_count_what_was_written(bytes_run):
    done = call("--from", bytes_run, "--prompt", "the fox", "--max-tokens", 20, "--temperature", 0)
    found = STATISTICS.fullmatch(done.stderr.decode().strip())
    assert found, done.stderr
    tokens, ending, speed, prompt, size, *factors = found.groups()
    assert (tokens, ending, prompt) == ("20", "--max-tokens 20", "7")
    assert float(speed) > 0
    assert [int(factor) for factor in factors] == [2, 26, 4, 32, 4]
    assert size == f"{2 * 2 * 26 * 4 * 32 * 4 / 1024:.1f} KiB"
    assert len(done.stdout.decode().removesuffix("\n").removesuffix("�").encode()) in range(26, 28)


def test_a_run_its_checkpoints_and_a_copy_of_one_say_the_same(bytes_run, tmp_path):
    checkpoint, = (bytes_run / "checkpoints").glob("step-*")
    shutil.copytree(checkpoint, tmp_path / "kept")
    options = ["--prompt", "the", "--temperature", 0, "--max-tokens", 30]
    texts = [write("--from", folder, *options)
             for folder in (bytes_run, bytes_run / "checkpoints", checkpoint, tmp_path / "kept")]
    assert len(set(texts)) == 1


def test_seeds_and_samples(bpe_run):
    def hot(*more):
        return write("--from", bpe_run, "--prompt", "the", "--temperature", 3, "--max-tokens", 25, *more)

    assert hot("--seed", 4) == hot("--seed", 4)
    assert hot("--seed", 4) != hot("--seed", 5)
    several = hot("--seed", 4, "--samples", 3)
    parts = re.split(r"--- sample (\d) of 3\n", several)
    assert parts[0] == "" and parts[1::2] == ["1", "2", "3"]
    assert parts[2] == hot("--seed", 4)
    assert len(set(parts[2::2])) == 3
    greedy = write("--from", bpe_run, "--prompt", "the", "--temperature", 0)
    assert write("--from", bpe_run, "--prompt", "the", "--temperature", 3, "--top-k", 1) == greedy
    assert write("--from", bpe_run, "--prompt", "the", "--temperature", 3, "--top-p", 1e-9) == greedy


def test_prompt_files_are_taken_as_they_are(bytes_run, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes("the fox – ".encode() + b"\n")
    options = ["--temperature", 0, "--max-tokens", 8]
    assert write("--from", bytes_run, "--prompt-file", file, *options) == write(
        "--from", bytes_run, "--prompt", "the fox – \n", *options)


def test_settings_of_the_checkpoint_can_be_changed(bpe_run):
    options = ["--from", bpe_run, "--prompt", SENTENCE[:10], "--temperature", 0, "--max-tokens", 30]
    done = call(*options, "precision.compute=fp32", "run.threads=1")
    assert b" x 4 bytes" in done.stderr and b" x 2 bytes" in call(*options).stderr
    assert (SENTENCE * 4).startswith(done.stdout.decode().removesuffix("\n").removesuffix("�"))
    assert "blocks.2." in mistake(*options, "model.layers=3")


def test_text_ends_at_the_length_that_was_trained(bytes_run):
    done = call("--from", bytes_run, "--prompt", "the", "--max-tokens", 1000)
    assert b"126 tokens (train.sequence=128 reached)" in done.stderr, done.stderr
    longer = call("--from", bytes_run, "--prompt", "the", "--max-tokens", 200, "train.sequence=300")
    assert b"200 tokens (--max-tokens 200)" in longer.stderr, longer.stderr
    full = call("--from", bytes_run, "--prompt", "x" * 128)
    assert b"1 tokens (train.sequence=128 reached); prompt of 128 tokens" in full.stderr, full.stderr
    assert "the prompt has 129 tokens" in mistake("--from", bytes_run, "--prompt", "x" * 129)


def test_text_comes_as_it_is_written(bytes_run):
    """Text is there to read while the program still writes: a million tokens take far longer than this test."""
    command = [PROGRAM, "generate", "--from", bytes_run, "--prompt", "the", "--max-tokens", "1000000",
               "train.sequence=1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert len(process.stdout.read(20)) == 20
            assert process.poll() is None
        finally:
            process.kill()


def test_mistakes(bytes_run, tmp_path):
    source = ["--from", bytes_run]
    assert "--from is required" in mistake("--prompt", "a")
    assert "the prompt is empty; give --prompt TEXT or --prompt-file FILE" in mistake(*source)
    assert "the prompt is empty" in mistake(*source, "--prompt", "")
    assert "--prompt" in mistake(*source, "--prompt", "a", "--prompt-file", "b")
    assert "cannot read nowhere.txt" in mistake(*source, "--prompt-file", "nowhere.txt")
    assert f"{tmp_path}: no checkpoint there" in mistake("--from", tmp_path, "--prompt", "a")
    assert "no checkpoint there" in mistake("--from", tmp_path / "nowhere", "--prompt", "a")
    assert "no checkpoint there" in mistake("--from", bytes_run / "config.yaml", "--prompt", "a")
    assert "did you mean --top-k?" in mistake(*source, "--top-j", 4, "--prompt", "a")
    assert "top-p: expected a probability" in mistake(*source, "--prompt", "a", "--top-p", 0)
    assert "temperature: expected" in mistake(*source, "--prompt", "a", "--temperature", -1)
    assert "--max-tokens" in mistake(*source, "--prompt", "a", "--max-tokens", 0)
    assert "--seed" in mistake(*source, "--prompt", "a", "--seed", "x")
    assert "did you mean run.threads?" in mistake(*source, "--prompt", "a", "run.thread=1")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([PROGRAM, "generate", *source, "--prompt", "a"], stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (2, b"moelab: cannot write to standard output\n")


def test_damage_and_what_is_missing(bytes_run, tmp_path):
    checkpoint, = (bytes_run / "checkpoints").glob("step-*")
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    data = bytearray((broken / "tokenizer.json").read_bytes())
    data[50] ^= 1
    (broken / "tokenizer.json").write_bytes(data)
    assert "tokenizer.json: damaged" in mistake("--from", broken, "--prompt", "a")


def test_help():
    done = call("--help", "all")
    assert (done.returncode, done.stderr) == (0, b"")
    for text in ["Example: moelab generate --from", "--prompt-file", "--max-tokens", "--temperature", "--top-k",
                 "--top-p", "--seed", "--samples", "train.sequence="]:
        assert text in done.stdout.decode(), text


LINES = ["the fox", "jumps over", "the fox jumps over " * 5, "quick and"]
BRIEFLY = ["--temperature", 0, "--max-tokens", 12]


def chat(run, said: str, *arguments) -> str:
    done = subprocess.run([PROGRAM, "chat", "--from", run, *map(str, arguments)], input=said.encode(), capture_output=True,
                          timeout=300)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout.decode()


def test_an_answer_is_what_the_model_writes_after_all_that_was_said(bytes_run):
    """As `generate` writes after the same text; what no longer fits is forgotten from the beginning."""
    told, said, expected, prompt = "", b"", b"", bytes_run.parent / "said"
    for line in LINES:
        said = (said + line.encode() + b"\n")[-(128 - 12):]
        prompt.write_bytes(said)
        answer = call("--from", bytes_run, "--prompt-file", prompt, *BRIEFLY).stdout.removeprefix(said)
        if "\ufffd" in answer.decode():  # a character was cut off: these are not the bytes that the model wrote
            break
        told, expected, said = told + line + "\n", expected + answer, said + answer
    assert told.count("\n") >= 2 and chat(bytes_run, told, *BRIEFLY).encode() == expected
    assert chat(bytes_run, "", *BRIEFLY) == ""


def test_a_dialogue_on_a_terminal_asks_for_each_line(bytes_run):
    command = [PROGRAM, "chat", "--from", str(bytes_run), "--temperature", "0", "--max-tokens", "5"]
    done = subprocess.run(["script", "-qec", shlex.join(command), "/dev/null"], input=b"the fox\n\x04", capture_output=True,
                          timeout=300)  # fmt: skip
    shown = done.stdout.decode()
    assert done.returncode == 0 and "each line is answered; Ctrl-D ends" in shown and shown.count("> ") == 2, shown
