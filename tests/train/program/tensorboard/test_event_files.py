"""A run's event files, read by TensorBoard's own package, hold what metrics.jsonl holds."""

import json
import pathlib
import struct
import subprocess

import numpy as np
import programs
import pytest
from programs import limited_files, metrics
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.util import tensor_util

TAGS = {
    "loss/train": ["loss"],
    "loss/heldout": ["held_out_loss"],
    "loss/balance": ["balance_loss"],
    "loss/z": ["z_loss"],
    "experts/load_max_over_mean": ["expert_load", "max_over_mean"],
    "experts/load_entropy": ["expert_load", "entropy"],
    "experts/dropped_fraction": ["dropped_fraction"],
    "data/fill_rate": ["fill_rate"],
    "optim/lr": ["lr"],
    "optim/grad_norm": ["grad_norm"],
    "optim/loss_scale": ["loss_scale"],
    "speed/tokens_per_second": ["tokens_per_second"],
    "speed/step_ms": ["step_ms"],
    "speed/waited_ms_for_host": ["waited_ms", "host"],
    "speed/waited_ms_for_nvme": ["waited_ms", "nvme"],
    "speed/micro_batch": ["micro_batch"],
    "memory/allocated": ["allocated_bytes"],
    "memory/reserved": ["reserved_bytes"],
    "memory/peak": ["peak_bytes"],
}


@pytest.fixture(scope="session")
def shards(make_shards) -> pathlib.Path:
    return make_shards(16000, 4000)


def train(shards: pathlib.Path, run: pathlib.Path, *arguments, **how) -> subprocess.CompletedProcess:
    settings = {
        "data.path": shards, "run.dir": run, "model.vocab": 256, "train.sequence": 32, "train.micro_batch": 2,
        "eval.every": 2, "eval.batches": 1, "checkpoint.every": 3, "run.threads": 1,
    }  # fmt: skip
    return programs.run(programs.train_command(settings, *arguments), **how)


def expected(run: pathlib.Path) -> dict[str, list[tuple[int, np.float32]]]:
    """(step, value) of each tag by what metrics.jsonl says."""
    series = {}
    for line in metrics(run):
        values = {}
        for tag, keys in TAGS.items():
            value = line
            for key in keys:
                value = value[key]
            values[tag] = value
        for kind, count in line["peak_bytes_by_kind"].items():
            values[f"memory/peak_by_kind/{kind}"] = count
        for tag, value in values.items():
            if value is not None:
                series.setdefault(tag, []).append((line["step"], np.float32(value)))
    return series


def read_back(path: pathlib.Path) -> dict[str, list[tuple[int, np.float32]]]:
    accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(e.step, np.float32(e.value)) for e in accumulator.Scalars(tag)] for tag in tags}


def test_every_scalar_is_there_and_nothing_else(shards, tmp_path):
    done = train(shards, tmp_path, "train.steps=7")
    assert done.returncode == 0, done.stderr
    series = read_back(tmp_path)
    assert series == expected(tmp_path)
    assert [step for step, _ in series["loss/train"]] == list(range(1, 8))
    assert [step for step, _ in series["loss/heldout"]] == [2, 4, 6]
    assert len(series.keys() & {"memory/peak_by_kind/parameters", "memory/peak_by_kind/optimizer"}) == 2


def test_samples_are_there_as_text(tmp_path):
    """As the lines of samples.jsonl, each in a block of code."""
    text = programs.prepare_bytes(tmp_path, "some text\n" * 3000)
    done = train(text, tmp_path / "run", "train.steps=4", "sample.every=2", "sample.prompt=some")
    assert done.returncode == 0, done.stderr
    accumulator = EventAccumulator(str(tmp_path / "run"), size_guidance={"tensors": 0})
    accumulator.Reload()
    assert accumulator.SummaryMetadata("samples/1").plugin_data.plugin_name == "text"
    shown = [(event.step, tensor_util.make_ndarray(event.tensor_proto)[0].decode()) for event in accumulator.Tensors("samples/1")]
    lines = [json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()]
    assert [step for step, _ in shown] == [2, 4]
    for (_, block), line in zip(shown, lines):
        assert all(row.startswith("    ") for row in block.split("\n"))
        assert "\n".join(row[4:] for row in block.split("\n")) == line["prompt"] + line["text"]
    assert read_back(tmp_path / "run") == expected(tmp_path / "run")


def test_wall_times_rise_and_are_now(shards, tmp_path):
    assert train(shards, tmp_path, "train.steps=3").returncode == 0
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    times = [event.wall_time for event in accumulator.Scalars("loss/train")]
    written = (tmp_path / "metrics.jsonl").stat().st_mtime
    assert times == sorted(times) and written - 60 < times[0] and times[-1] < written + 1


def test_a_resumed_run_repeats_no_step(shards, tmp_path):
    """Saved after step 3, went on to 5, resumed from 3: steps 4 and 5 are those of the second run alone."""
    assert train(shards, tmp_path, "train.steps=5", "checkpoint.keep=9").returncode == 0
    before = metrics(tmp_path)
    done = train(shards, tmp_path, "train.steps=8", "--resume", str(tmp_path / "checkpoints/step-3"))
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("events.*"))) == 2
    series = read_back(tmp_path)
    assert series == expected(tmp_path)
    assert [step for step, _ in series["speed/step_ms"]] == list(range(1, 9))
    assert metrics(tmp_path)[3]["step_ms"] != before[3]["step_ms"]


def test_a_run_that_starts_anew_replaces_the_files(shards, tmp_path):
    resumed = ["train.steps=7", "--resume", "latest"]
    for arguments, files in ((["train.steps=5"], 1), (resumed, 2), (["train.steps=3", "--overwrite"], 1)):
        assert train(shards, tmp_path, *arguments).returncode == 0
        assert len(list(tmp_path.glob("events.*"))) == files
    assert [step for step, _ in read_back(tmp_path)["loss/train"]] == [1, 2, 3]


def test_a_file_cut_anywhere_is_read_up_to_there(shards, tmp_path):
    """As a crash leaves it: whole records stay, and a record that lost bytes is not taken for one."""
    assert train(shards, tmp_path, "train.steps=2").returncode == 0
    (file,) = tmp_path.glob("events.*")
    content, ends, position = file.read_bytes(), [], 0
    while position < len(content):
        position += 16 + struct.unpack_from("<Q", content, position)[0]
        ends.append(position)
    assert position == len(content)
    for size in range(0, len(content), 7):
        file.write_bytes(content[:size])
        assert len(list(RawEventFileLoader(str(file)).Load())) == sum(end <= size for end in ends)


def test_a_full_disk_costs_the_event_file_and_not_the_steps(shards, tmp_path):
    """What cannot be written is left out; what is there stays readable."""
    limit = 26000  # bytes a file; of those written step by step the event file alone passes it
    done = train(shards, tmp_path, "train.steps=30", "checkpoint.keep=0", "eval.every=0", **limited_files(limit))
    assert "[Step 30/30]" in done.stdout, done
    series = read_back(tmp_path)
    steps = [step for step, _ in series["loss/train"]]
    assert steps == list(range(1, len(steps) + 1)) and 2 < len(steps) < 30
    for tag, found in series.items():
        assert found == expected_prefix(tmp_path, tag, len(found)), tag


def expected_prefix(run: pathlib.Path, tag: str, count: int) -> list:
    """The first `count` pairs; metrics.jsonl itself may end in a line that was cut."""
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text[: text.rindex("\n") + 1])
    return expected(run)[tag][:count]
