"""wandb_run.py, by Weights & Biases' own package, offline: what it writes is read back with that package."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import time

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/wandb_run.py"


def line(step: int) -> str:
    return json.dumps({"step": step, "loss": 5 - step / 8, "held_out_loss": None if step < 3 else 4.5,
                       "expert_load": {"max_over_mean": 1.25}, "tokens_per_second": 1000.0 + step}) + "\n"  # fmt: skip


def start(run: pathlib.Path) -> subprocess.Popen:
    environment = os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    return subprocess.Popen([sys.executable, SCRIPT, run], env=environment, stderr=subprocess.PIPE, text=True)


def messages(file: pathlib.Path):
    """The records of a .wandb file: a header of 7 bytes, then LevelDB's log format
    (https://github.com/google/leveldb/blob/main/doc/log_format.md)."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the end of a block is padding
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7: at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            yield whole
            whole = b""


def records(run: pathlib.Path) -> tuple[list[dict], dict, dict]:
    """History, configuration and summary in the file that `wandb sync` would send."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    history, config, summary = [], {}, {}
    for message in messages(file):
        record = Record.FromString(message)
        if record.HasField("history"):
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            history.append(values)
        if record.HasField("run"):
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        for item in record.summary.update:
            summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return history, config, summary


def test_lines_are_sent_while_the_run_goes_on_until_it_ends(tmp_path):
    pytest.importorskip("wandb", reason="requirements-test.txt has it")
    (tmp_path / "config.yaml").write_text("train: {steps: 4}\nmodel: {preset: moe-pico}\n")
    with open(tmp_path / "metrics.jsonl", "w") as metrics:
        metrics.write(line(1) + line(2) + line(3)[:20])  # the last is being written
        metrics.flush()
        process = start(tmp_path)
        until = time.monotonic() + 60
        while not list(tmp_path.glob("wandb/offline-run-*")) and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1)
        metrics.write(line(3)[20:] + line(4))
    (tmp_path / "samples.jsonl").write_text(json.dumps({"step": 4, "prompt": "def ", "text": "main("}) + "\n")
    assert process.poll() is None, process.stderr.read()
    (tmp_path / "summary.json").write_text(json.dumps({"status": "ok", "final_loss": 4.5, "settings": {"x": 1}}))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    history, config, summary = records(tmp_path)
    steps = [{key: one[key] for key in ("_step", "loss", "expert_load/max_over_mean", "held_out_loss") if key in one}
             for one in history if "loss" in one]  # fmt: skip
    assert steps == [{"_step": step, "loss": 5 - step / 8, "expert_load/max_over_mean": 1.25} |
                     ({"held_out_loss": 4.5} if step > 2 else {}) for step in (1, 2, 3, 4)]  # fmt: skip
    assert config["model"] == {"preset": "moe-pico"} and config["train"] == {"steps": 4}
    assert (summary["status"], summary["final_loss"]) == ("ok", 4.5) and "settings/x" not in summary
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/samples*.json")
    assert json.loads(table.read_text())["data"] == [[4, "def ", "main("]]


def test_a_folder_without_a_run_is_named(tmp_path):
    process = start(tmp_path)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and said.startswith("wandb_run: ") and "no config.yaml there" in said, said
