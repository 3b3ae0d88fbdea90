"""scripts/check_ranks.py, with a program whose numbers are known, and with ours."""
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from programs import ROOT, moelab, prepare_bytes  # noqa: E402

# Two steps. Of several ranks, the first writes; a stage of ZeRO has the loss of one rank, plus what WRONG says of it.
FAKE = '''#!{python}
import json, os, pathlib, sys
given = dict(word.split("=", 1) for word in sys.argv if "=" in word)
ranks, zero = int(os.environ.get("WORLD_SIZE", 1)), int(given.get("parallel.zero", 0))
assert ranks * int(given["train.accumulation"]) == 3
if os.environ.get("RANK", "0") == "0":
    folder = pathlib.Path(given["run.dir"])
    folder.mkdir()
    wrong = {wrong} if ranks > 1 else {{}}
    lines = [{{"loss": 5 - step, "grad_norm": 1, "step_ms": os.getpid()}} for step in range(2)]
    lines[1] |= wrong.get(zero, {{}})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
sys.exit({code})
'''


def check(tmp_path, device: str, wrong: dict, code: int = 0) -> subprocess.CompletedProcess:
    program = tmp_path / "moelab"
    program.write_text(FAKE.format(python=sys.executable, wrong=wrong, code=code))
    program.chmod(0o755)
    return subprocess.run([sys.executable, ROOT / "scripts/check_ranks.py", "--program", program, "--data", tmp_path, "--device", device,
                           "--ranks", "3"], capture_output=True, text=True, check=False)


def test_the_same_numbers_pass(tmp_path):
    done = check(tmp_path, "cpu", {})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"3 ranks, ZeRO-{zero}: the numbers of one" for zero in range(4)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_another_loss_fails(tmp_path, device):
    done = check(tmp_path, device, {1: {"loss": 4.000001}})
    assert done.returncode == 1
    assert "ZeRO-1: step 2:\n" in done.stdout and '"loss": 4.000001' in done.stdout, done.stdout
    assert done.stdout.count("the numbers of one") == 3


@pytest.mark.parametrize("device, zero, code", [("cpu", 1, 1), ("cuda", 1, 0), ("cuda", 0, 1)])
def test_on_gpus_the_norm_of_divided_gradients_may_differ(tmp_path, device, zero, code):
    assert check(tmp_path, device, {zero: {"grad_norm": 1.0000001}}).returncode == code


def test_a_run_that_fails_is_named(tmp_path):
    done = check(tmp_path, "cpu", {}, code=3)
    assert done.returncode == 1 and done.stderr.startswith("1 rank: exit 3"), done.stderr


def test_our_ranks_pass(tmp_path):
    # One rank has two threads here, and the others one each: on some Intel CPUs the bits of MKL's products depend on that, but for
    # its strict mode.
    strict = {"MKL_CBWR": "AVX2,STRICT"} if "GenuineIntel" in pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii") else {}
    data = prepare_bytes(tmp_path, "ranks have the numbers of one " * 2000)
    done = subprocess.run([sys.executable, ROOT / "scripts/check_ranks.py", "--program", moelab(), "--data", data, "--device", "cpu",
                           "--model", "moe-pico", "--steps", "3"], capture_output=True, text=True, check=False, timeout=300,
                          env=os.environ | strict)
    assert done.returncode == 0 and done.stdout.count("the numbers of one") == 4, done.stdout + done.stderr
