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
    "guides_stack": (["flash_attention", "capacity", "bf16", "recompute_full", "accumulation"], 520, 90, 530, 0.06),
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


# A whole plan: parts with baselines of their own, and what bench_tradeoff and check_estimates.py write beside.

STACK = ("flash_attention", "bf16", "recompute_full")


def in_part(part: str, family: str, case: str, milliseconds: float, activations: float, techniques: list[str],
            sequence: int = 256, parameters: int = 32_000_000, **changes) -> list[dict]:
    """Its runs in two rounds, the second a tenth slower like all of that round."""
    runs = [record(case, number, milliseconds * (1 + 0.1 * (number - 1)), activations, family=family, sweep=part,
                   techniques=techniques, settings={"technique": case, "train.sequence": sequence}, **changes)
            for number in (1, 2)]
    for run in runs:
        run["summary"] |= {"model": {"parameters": parameters}, "settings": {"train": {"sequence": sequence}},
                           "memory_limit_bytes": in_bytes(activations + 400) * 2}
    return runs


def core() -> list[dict]:
    out = in_part("core", "single", "baseline", 1000, 800, [])
    for name, ms, activations in (("flash_attention", 800, 600), ("bf16", 500, 500), ("recompute_full", 1250, 200)):
        out += in_part("core", "single", name, ms, activations, [name])
    out += in_part("core", "single", "guides_stack", 550, 100, list(STACK))
    for index, name in enumerate(STACK):
        rest = [other for other in STACK if other != name]
        out += in_part("core", "leave_one_out", f"guides_stack without {name}", 600 + 100 * index, 150 + 50 * index, rest,
                       against="guides_stack")
        out += in_part("core", "ladder", f"ladder {index + 1}: {'+ ' if index else ''}{name}", 800 - 100 * index,
                       600 - 200 * index, list(STACK[:index + 1]))
    return out


def plan() -> list[dict]:
    """core; one pair, which saves 150 MiB less than the sum of its parts and takes 1.5 times the product of their times;
    flash attention by sequence, even at 1024 tokens; recomputation by size of model; presets of cards, one beside its baseline."""
    out = core() + in_part("pairs", "single", "baseline", 1000, 800, [])
    out += in_part("pairs", "pair", "flash_attention + bf16", 600, 450, ["flash_attention", "bf16"])
    for sequence, ratio in ((512, 2), (1024, 1), (2048, 0.5)):
        part = f"attention over {sequence} tokens"
        out += in_part(part, "single", "baseline", 1000, 800, [], sequence)
        out += in_part(part, "crossover", "flash_attention", 1000 * ratio, 400, ["flash_attention"], sequence)
    for model, parameters, ratio in (("moe-pico", 10**6, 1.5), ("moe-nano", 4 * 10**8, 1.2)):
        part = f"recomputation of {model}"
        out += in_part(part, "single", "baseline", 1000, 800, [], parameters=parameters, model=model)
        out += in_part(part, "crossover", "recompute_full", 1000 * ratio, 200, ["recompute_full"], parameters=parameters,
                       model=model)
    out += in_part("presets", "fit", "gpu-8gb's baseline", 1400, 800, [], against=None, model="moe-nano")
    out += in_part("presets", "fit", "gpu-8gb", 700, 300, [], against="gpu-8gb's baseline", model="moe-nano")
    out += in_part("presets", "fit", "gpu-16gb", 350, 100, [], against=None, model="moe-nano")  # as older plans had it
    out.append(failed("gpu-12gb", family="fit", sweep="presets", techniques=[], against=None, model="moe-nano"))
    return out


def prediction(techniques: list[str], peak: float) -> dict:
    return {"techniques": techniques, "status": "ok", "peak": in_bytes(peak), "activations": 0, "host": 0, "nvme": 0}


def predictions() -> dict:
    """Flash attention and recomputation together save 100 MiB less than the sum of what each saves."""
    cases = [prediction([], 1200), prediction(["flash_attention"], 1000), prediction(["bf16"], 900),
             prediction(["recompute_full"], 600), prediction(["flash_attention", "bf16"], 850),
             prediction(["flash_attention", "recompute_full"], 500),
             {"techniques": ["bf16", "recompute_full"], "status": "refused", "reason": "both set precision <x>"}]
    return {"schema": 1, "command": "moelab techniques --pairs --json", "commit": "abc123", "machine": {},
            "model": "moe-micro", "cases": cases}


def fits() -> dict:
    rows = [{"size": "8GB", "card": "RTX 4060", "limit": 8 * 2**30, "stack": stack, "largest_model": largest, "largest_layers": layers,
             "of_model": "moe-nano", "largest_batch": 4, "model": "moe-nano", "status": status, "peak": peak * 2**30,
             "on_card": (peak + 1) * 2**30}
            for stack, largest, layers, status, peak in (("baseline", None, 0, "red", 12), ("small", "moe-pico", 9, "amber", 7.4),
                                                         ("guides_stack", "moe-nano", 20, "green", 5))]
    return {"schema": 1, "command": "moelab fits --json", "commit": "abc123", "machine": {}, "rows": rows}


def card_plans() -> dict:
    """A card that no sweep was measured on, and the one of on_a_card()."""
    rows = [{"card": card, "limit": limit * 2**30, "model": "moe-micro", "preset": "gpu", "micro_batch": 16, "sequence": 512,
             "needed": 4 * 2**30, "tokens_per_second": 14540.4,
             "times": "a guess from the datasheet", "techniques": ["bf16"], "command": f"moelab train --preset {limit}"}
            for card, limit in (("RTX 4060", 8), ("H100 80 GB", 80))]
    return {"schema": 1, "command": "scripts/card_plans.py", "version": "moelab", "rows": rows}


def estimates(count: int = 30) -> list[dict]:
    """Errors of 0, 0.01, 0.02 … percent, on one side and the other."""
    return [{"schema": 1, "settings": [f"model.layers={index}", "precision.compute=bf16"], "commit": "abc123", "machine": {},
             "predicted_bytes": MIB * (index + 1), "measured_bytes": MIB * (index + 1), "scratch_bytes": 1024 * index,
             "error": 1e-4 * index * (-1)**index, "state_predicted": {"optimizer": 8}, "state_measured": {"optimizer": 8},
             "host_bytes": [0, 0], "nvme_bytes": [0, 0]} for index in range(count)]


def plans() -> list[dict]:
    """Two budgets, two rounds: the choice makes 2000 and 500 tokens/s, what is drawn 1000 and 900."""
    def runs(budget: str, case: str, rate: float, **changes) -> list[dict]:
        return [{"schema": 1, "budget": budget, "case": case, "round": number, "command": [], "rates": [rate] * 4,
                 "peak_bytes": in_bytes(200), "commit": "abc123", "machine": {}, **changes} for number in (0, 1)]
    out = runs("300MiB", "the plan's choice", 2000, techniques=["bf16", "adam8bit"], settings={},
               predicted=1900)
    out += runs("300MiB", "bf16", 1000) + runs("300MiB", "fp16", 900)
    out += runs("400MiB", "the plan's choice", 500) + runs("400MiB", "bf16", 1000)
    return out


def write_plan(folder: pathlib.Path) -> pathlib.Path:
    """A folder as results/<machine>/ is."""
    write(folder / "records.jsonl", plan())
    write(folder / "estimates.jsonl", estimates())
    write(folder / "plans.jsonl", plans())
    (folder / "predictions.json").write_text(json.dumps(predictions()))
    (folder / "fits.json").write_text(json.dumps(fits()))
    (folder / "card_plans.json").write_text(json.dumps(card_plans()))
    return folder
