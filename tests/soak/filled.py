"""Training scripts whose cards are filled (--fill): the miniature of each is trained for some steps on the CPU. It has as many
rows as the full size would have on its card, by prediction for CUDA; every other size is smaller."""
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))
import cards_page  # noqa: E402

SCALE = "1/64"
STEPS = 6
MICRO_BATCHES = 2  # at most: gradients are as large as after more of them
SECONDS = 3000


def scripts() -> list[str]:
    return list(cards_page.presets())


def micro_batches(program: str, script: str) -> int:
    """Of a step of the script's preset."""
    done = cards_page.call(program, *cards_page.presets()[script], "--print-config")
    return int(re.search(r"^  accumulation: (\d+)", done.stdout, re.MULTILINE)[1])


def train(program: str, script: str, data: pathlib.Path, work: pathlib.Path, steps: int) -> subprocess.CompletedProcess:
    accumulation = min(micro_batches(program, script), MICRO_BATCHES)
    command = [ROOT / f"scripts/{script}.sh", "--device", "cpu", "--scale", SCALE, "--fill", f"run.dir={work}", f"data.path={data}",
               f"train.steps={steps}", f"train.accumulation={accumulation}", "optim.warmup=0", "eval.batches=0", "checkpoint.keep=0"]
    return subprocess.run([str(word) for word in command], env=os.environ | {"MOELAB_PROGRAM": program}, capture_output=True, text=True,
                          timeout=SECONDS, check=False)


def library_bytes(memory: dict) -> int:
    """At the peak: scratch inside LibTorch's products, which depends on the CPU and which no dry run sees."""
    measured, predicted = memory["peak_bytes_by_kind"], memory["estimated_peak_bytes_by_kind"]
    return measured["scratch"] - predicted["scratch"]


def failures(found: dict) -> list[str]:
    losses, wrong = found["losses"], []
    if not 0.8 <= found["filled_share"] <= 0.95:
        wrong.append(f"filled to {found['filled_share']:.0%} of the card")
    if len(losses) != found["steps"] or not all(map(math.isfinite, losses)):
        wrong.append(f"losses {losses} of {found['steps']} steps")
    elif not losses[-1] < losses[0]:
        wrong.append(f"the loss went from {losses[0]} to {losses[-1]}")
    predictable = found["peak_bytes"] - found["library_bytes"]
    if abs(predictable / found["predicted_bytes"] - 1) > 0.01:
        wrong.append(f"a peak of {predictable} bytes, and {found['predicted_bytes']} were predicted")
    return wrong


def run(program: str, script: str, data: pathlib.Path, work: pathlib.Path, steps: int = STEPS) -> tuple[dict, list[str], dict]:
    """How many steps there were, what went wrong, and what was found."""
    shutil.rmtree(work, ignore_errors=True)
    done = train(program, script, data, work, steps)
    said = re.search(r"^filled: ?(.*); predicted to need \S+ GiB, (\d+) % of", done.stderr, re.MULTILINE)
    if done.returncode != 0 or not said:
        return {}, [f"exit code {done.returncode}: {done.stderr[-2000:]}"], {}
    summary, memory = (json.loads((work / name).read_text()) for name in ("summary.json", "memory.json"))
    lines = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
    found = {"changes": said[1].split(), "filled_share": int(said[2]) / 100, "steps": steps,
             "losses": [math.nan if line["loss"] is None else line["loss"] for line in lines],
             "peak_bytes": summary["peak_bytes"], "library_bytes": library_bytes(memory), "predicted_bytes": summary["estimated_peak_bytes"],
             "limit_bytes": summary["memory_limit_bytes"]}
    return {"steps": len(lines)}, failures(found), found
