"""What a run prints: in colours on a terminal, without on a pipe or where NO_COLOR is set."""

import os
import re
import shlex

import programs

CODE = re.compile(r"\x1b\[[0-9;]*m")


def printed(shards, run, terminal: bool, **environment) -> list[str]:
    settings = {
        "data.path": shards, "run.dir": run, "model.vocab": 256, "model.layers": 2, "train.sequence": 32,
        "train.micro_batch": 2, "train.steps": 2, "checkpoint.every": 1, "eval.batches": 1, "run.threads": 1,
        "monitor.every": 1,
    }  # fmt: skip
    command = [str(word) for word in programs.train_command(settings, "--device", "cpu")]
    if terminal:
        command = ["script", "-qec", shlex.join(command), "/dev/null"]
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    done = programs.run(command, env=kept | {"TERM": "xterm"} | environment)
    assert done.returncode == 0, done
    return done.stdout.replace("\r", "").splitlines()


def test_colours_are_for_terminals(tmp_path):
    shards = programs.prepare_bytes(tmp_path, "some text\n" * 3000)
    shown = printed(shards, tmp_path / "terminal", True)
    assert any(line.startswith("\x1b[1m[Step 2/2]\x1b[0m 100%") for line in shown), shown
    assert any(line.endswith("Status: \x1b[32mnormal\x1b[0m") for line in shown), shown
    for folder, terminal, environment in (("pipe", False, {}), ("no_color", True, {"NO_COLOR": "1"}),
                                          ("dumb", True, {"TERM": "dumb"})):  # fmt: skip
        plain = printed(shards, tmp_path / folder, terminal, **environment)
        assert not any(CODE.search(line) for line in plain), plain
        assert len(plain) == len(shown)


def test_lines_about_a_step_begin_with_it(tmp_path):
    shards = programs.prepare_bytes(tmp_path, "some text\n" * 3000)
    lines = printed(shards, tmp_path / "run", False)
    of_steps = [re.sub(r"[\d.]+", "0", line) for line in lines if line.startswith("[Step ")]
    kinds = ["loss 0, 0 bits a byte ", "Memory: ", "saved step-0", "held-out loss 0 nats a token, 0 bits a byte (0 batch)"]
    for kind in kinds:
        assert any(kind in line for line in of_steps), (kind, lines)
    assert any("% of the GEMM rate" in line for line in lines)
    assert [line for line in lines if line.endswith("saved step-1") or line.endswith("saved step-2")] == [
        "[Step 1] saved step-1", "[Step 2] saved step-2"]  # fmt: skip
    assert re.match(r"2 steps, 128 tokens in \d+ s", lines[-1]), lines[-1]
