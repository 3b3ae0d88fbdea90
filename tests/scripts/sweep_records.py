"""Records as bench_tradeoff writes them, made up so that what a report says of them can be worked out by hand."""
import json
import pathlib

MIB = 2**20
TOKENS = 2048  # a step
CASES = {  # name: (techniques, milliseconds a step, MiB of activations, MiB of other kinds, change of the loss)
    "baseline": ([], 1000, 800, 400, 0.0),
    "flash_attention": (["flash_attention"], 800, 500, 400, 0.0),
    "capacity": (["capacity"], 820, 600, 400, 0.05),
    "dropless": (["dropless"], 830, 520, 400, 0.0),
    "bf16": (["bf16"], 700, 450, 520, 0.01),
    "recompute_full": (["recompute_full"], 1300, 200, 400, 0.0),
    "recompute_half": (["recompute_half"], 1160, 500, 400, 0.0),
    "recompute_every_4": (["recompute_every_4"], 1090, 640, 400, 0.0),
    "accumulation": (["accumulation"], 1120, 260, 410, 0.0),
    "recommended": (["flash_attention", "capacity", "bf16", "recompute_full", "accumulation"], 520, 90, 530, 0.06),
}


def in_bytes(mib: float) -> int:
    return round(mib * MIB)


def steps(milliseconds: float, count: int = 9, loss_change: float = 0.0, jitter: float = 0.0) -> list[list[float]]:
    """The first three, the warm-up, take ten times as long."""
    return [[step, step * TOKENS, 5.5 / step**0.3 + loss_change,
             milliseconds * (10 if step <= 3 else 1 + jitter * (step % 3 - 1))] for step in range(1, count + 1)]


def memory(activations: float, rest: float) -> dict:
    """Bytes by phase and kind, of so many MiB at the highest."""
    fixed = {"parameters": rest * 0.3, "optimizer": rest * 0.5, "gradients": 0.0, "scratch": 0.0}
    backward = {**fixed, "gradients": rest * 0.2, "activations": activations, "activations.attention": activations / 4}
    phases = {"forward": {**fixed, "activations": activations * 0.9, "activations.attention": activations / 5},
              "backward": backward, "step": {**fixed, "gradients": rest * 0.2}}
    return {phase: {kind: in_bytes(mib) for kind, mib in kinds.items()} for phase, kinds in phases.items()}


def record(case: str = "baseline", round: int = 1, milliseconds: float = 1000, activations: float = 800,
           rest: float = 400, loss_change: float = 0.0, jitter: float = 0.0, **changes) -> dict:
    return {
        "schema": 1, "case": case, "techniques": [] if case == "baseline" else [case], "against": "baseline",
        "model": "moe-micro", "round": round, "position": 0, "settings": {"precision.compute": "fp32"},
        "settings_hash": f"hash of {case}", "command": f"moelab train --config moe-micro run.name={case}",
        "commit": "abc123", "dirty": False, "machine": {"cpu": "a CPU", "cores": 2, "gpu": None, "torch": "2.11.0"},
        "started": f"2026-01-01T00:00:{round:02}Z", "wall_seconds": 12.5, "exit_code": 0, "status": "ok", "message": "",
        "summary": {"peak_bytes": in_bytes(activations + rest),
                    "estimated_peak_bytes": in_bytes(activations + rest) * 0.992, "held_out_loss": None},
        "steps": steps(milliseconds, loss_change=loss_change, jitter=jitter), "memory": memory(activations, rest),
        **changes}


def failed(case: str, round: int = 1, status: str = "oom", message: str = "asked for 3 GiB", **changes) -> dict:
    return record(case, round, status=status, message=message, steps=[], memory={}, exit_code=3,
                  **{"summary": {}, **changes})


def sweep(rounds: int = 3) -> list[dict]:
    """Every case of CASES, a little slower from round to round; one that runs out of memory."""
    out = []
    for number in range(1, rounds + 1):
        for position, (name, (techniques, ms, activations, rest, change)) in enumerate(CASES.items()):
            slower = 1 + 0.03 * (number - 1) + 0.004 * ((position * 7 + number * 3) % 5)
            out.append(record(name, number, ms * slower, activations, rest, change, jitter=0.03, techniques=techniques,
                              position=position, settings={"technique": name}))
        out.append(failed("big_batch", number, position=len(CASES), techniques=["big_batch"]))
    return out


def write(path: pathlib.Path, records: list[dict], torn: str = "") -> pathlib.Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records) + torn)
    return path
