"""Claims about bytes that no sweep measures: dry runs of `moelab estimate`, stored once as records, and closed formulas."""
import dataclasses
import json
import math
import pathlib
import subprocess
from collections.abc import Callable

from ..figures import Interval
from ..records import ReportError
from .findings import STATE, Technique, widened

SCHEMA = 1
GB = 1e9
# What was found, in words, and which parts of the claim hold, None where nothing here says; the part "" is all of it.
Judged = tuple[str, dict[str, bool | None]]


def gb(value: float) -> str:
    return f"{value / GB:.3g} GB"


def mb(value: float) -> str:
    return f"{value / 1e6:.3g} MB"


def within(value: float, low: float, high: float) -> bool:
    """A tenth more or less is what a guide's rounding takes."""
    return 0.9 * low <= value <= 1.1 * high


@dataclasses.dataclass(frozen=True)
class DryClaim:
    """Runs by name, as the words after `moelab estimate --json`, none where a closed formula will do; `judge` takes
    their estimates and the claim's figures. Without one they count the claim's arithmetic alone, and sweeps judge the
    rest."""

    runs: dict[str, list[str]]
    judge: Callable[[dict[str, dict], dict], Judged] | None


def of_7b(estimate: dict, kind: str) -> float:
    return estimate["state_bytes"][kind] / estimate["model"]["parameters"] * 7e9


SHARDED_FROM = {"parameters": 3, "gradients": 2, "optimizer": 1}  # stage of ZeRO


def state_7b(stage: int) -> Callable[[dict, dict], Judged]:
    """What a stage of ZeRO shards is divided by the ranks."""
    def judge(runs: dict, figures: dict) -> Judged:
        (run,) = runs.values()
        parts = {kind: of_7b(run, kind) / (figures["ranks"] if stage >= first else 1) for kind, first in SHARDED_FROM.items()}
        holds = all(within(bytes_, GB * figures[f"{kind}_gb"], GB * figures[f"{kind}_gb"]) for kind, bytes_ in parts.items())
        return ", ".join(f"{kind} {gb(bytes_)}" for kind, bytes_ in parts.items()) + " at 7e9 parameters", {"": holds}
    return judge


def fits_a_rank(runs: dict, figures: dict) -> Judged:
    ranks = runs["rank"]["ranks"]
    peak = ranks["by_stage"][figures["zero_stage"]]["peak_bytes"]
    return f"peak {gb(peak)} on each of {ranks['count']} ranks, divided by formula", {"": peak <= GB * figures["device_gb"]}


def precision_7b(runs: dict, figures: dict) -> Judged:
    held = {name: run["peak_bytes_by_kind"]["parameters"] / run["model"]["parameters"] * 7e9 for name, run in runs.items()}
    return ", ".join(f"{name} {gb(bytes_)}" for name, bytes_ in held.items()), \
        {name: within(bytes_, GB * figures[f"{name}_gb"], GB * figures[f"{name}_gb"]) for name, bytes_ in held.items()}


def attention_of(estimate: dict) -> float:
    return estimate["peak_bytes_by_kind"]["activations.attention"]


def scores(runs: dict, figures: dict) -> Judged:
    held = attention_of(runs["materialised"]) - attention_of(runs["flash"])
    layer = figures["bytes_per_head"] * figures["heads"]
    return f"{gb(held)} more than flash attention at the peak of one layer; one tensor of scores is {gb(layer)}", \
        {"": held >= 0.9 * layer}


def flash(runs: dict, figures: dict) -> Judged:
    held = attention_of(runs["flash"])
    return f"{held / 1e6:.0f} MB of attention at the peak of one layer", \
        {"": within(held, 0, 1e6 * figures["per_layer_mb"])}


def fits(name: str) -> Callable[[dict, dict], Judged]:
    def judge(runs: dict, _: dict) -> Judged:
        peak, limit = runs[name]["peak_bytes"], runs[name]["memory_limit_bytes"]
        return f"peak {peak / 2**30:.2f} GiB of {limit / 2**30:.0f} GiB", {"": peak <= limit}
    return judge


def nano(runs: dict, figures: dict) -> Judged:
    before, after = runs["textbook"]["peak_bytes"], runs["everything"]["peak_bytes"]
    low, high = figures["optimized_gb"]
    return f"{gb(before)} becomes {gb(after)}, {before / after:.1f} times less", \
        {"": after <= GB * high and before / after >= 0.9 * figures["original_gb"] / high}


def rtx_3090(runs: dict, figures: dict) -> Judged:
    low, high = figures["claimed_memory_gb"]
    peak = runs["preset"]["peak_bytes"]
    return f"peak {gb(peak)}", {"": within(peak, GB * low, GB * high)}


def state_100m(runs: dict, figures: dict) -> Judged:
    def of_100m(name: str, kind: str) -> float:
        return runs[name]["state_bytes"][kind] / runs[name]["model"]["parameters"] * 1e8
    found = {"parameters": of_100m("adamw", "parameters"), "gradients": of_100m("adamw", "gradients"),
             "adamw": of_100m("adamw", "optimizer"), "adafactor": of_100m("adafactor", "optimizer")}
    return ", ".join(f"{name} {bytes_ / 1e6:.0f} MB" for name, bytes_ in found.items()), \
        {name: within(bytes_, 1e6 * figures[f"{name}_mb"], 1e6 * figures[f"{name}_mb"]) for name, bytes_ in found.items()}


def breakdown(runs: dict, figures: dict) -> Judged:
    kinds = runs["preset"]["peak_bytes_by_kind"]
    total = runs["preset"]["peak_bytes"]
    share = {"parameters": kinds["parameters"], "gradients": kinds["gradients"],
             "optimizer": kinds["optimizer"] + kinds["master"], "attention": kinds["activations.attention"],
             "activations": kinds["activations"] - kinds["activations.attention"]}
    percent = {kind: 100 * bytes_ / total for kind, bytes_ in share.items()}
    claimed = {kind: widened(figures[f"{kind}_percent"], figures[f"{kind}_percent"]) for kind in percent}
    holds = all(claimed[kind][0] <= value <= claimed[kind][1] for kind, value in percent.items())
    return ", ".join(f"{kind} {value:.0f} %" for kind, value in percent.items()), {"": holds}


def optimizer_states(runs: dict, figures: dict) -> Judged:
    held = {name: run["state_bytes"]["optimizer"] / run["state_bytes"]["parameters"] for name, run in runs.items()}
    return ", ".join(f"{name} {ratio:.2f}" for name, ratio in held.items()) + " times the weights", \
        {name: within(ratio, figures[name], figures[name]) for name, ratio in held.items()}


def offload(runs: dict, figures: dict) -> Judged:
    """What it costs in time no dry run says."""
    def saved(held: Callable[[dict], float]) -> float:
        return 100 * (1 - held(runs["away"]) / held(runs["device"]))
    peak = saved(lambda run: run["peak_bytes"])
    state = saved(lambda run: sum(run["peak_bytes_by_kind"][kind] for kind in STATE))
    return f"saves {peak:.0f} % of the whole peak, {state:.0f} % of state", \
        {"its memory": within(peak, *figures["memory_saved_percent"]), "its time": None}


def int8_activations(runs: dict, figures: dict) -> Judged:
    before, after = (runs[name]["peak_bytes_by_kind"]["activations"] for name in ("16 bits", "int8"))
    saved, claimed = 100 * (1 - after / before), figures["memory_saved_percent"]
    return f"{gb(before)} of activations in 16 bits become {gb(after)}, {saved:.0f} % less", \
        {"": within(saved, claimed, claimed)}


def extra_percent(runs: dict) -> float:
    """FLOPs of products and of attention, which step_work counts."""
    return 100 * (runs["more"]["flops"] / runs["none"]["flops"] - 1)


def counted_text(percent: float) -> str:
    return f"{percent:.0f} % more FLOPs a step, counted"


def extra_arithmetic(runs: dict, figures: dict) -> Judged:
    low, high = widened(figures["extra_compute_percent"], figures["extra_compute_percent"])
    return counted_text(extra_percent(runs)), {"": low <= extra_percent(runs) <= high}


def counted(claim: str, runs: dict) -> Interval | None:
    """Of a claim whose other figures sweeps judge: its extra arithmetic in percent. None where it has no such runs."""
    dry = DRY_CLAIMS.get(claim)
    if dry is None or dry.judge or runs.keys() != dry.runs.keys():
        return None
    return Interval(*[extra_percent(runs)] * 3)


PARTS_OF_MOE = {"expert_parameters": "parameters.experts", "routing": "activations.routing",
                "capacity_buffers": "activations.capacity_buffers", "expert_activations": "activations.experts"}


def memory_of_moe(runs: dict, figures: dict) -> Judged:
    run = runs["capacity"]
    held = {part: run["peak_bytes_by_kind"][PARTS_OF_MOE[part]] for part in figures["parts"]}
    return ", ".join(f"{part.replace('_', ' ')} {bytes_ / 2**20:.1f} MiB" for part, bytes_ in held.items()) + \
        f" of a peak of {run['peak_bytes'] / 2**20:.1f} MiB", {"": all(held.values())}


def read_ahead(_: dict, figures: dict) -> Judged:
    """(workers x prefetch + 1) batches, as the summaries of runs find it; what it costs in time no formula says."""
    before, after = (figures["workers"] * depth + 1 for depth in figures["prefetch"])
    saved, claimed = 100 * (1 - after / before), figures["memory_saved_percent"]
    return f"{before} batches become {after}, {saved:.0f} % less", \
        {"its memory": within(saved, claimed, claimed), "its time": None}


def product(figures: dict, *names: str) -> float:
    return math.prod(figures[name] for name in names)


def formula_of_data(_: dict, figures: dict) -> Judged:
    total = product(figures, "workers", "prefetch", "batch", "sequence", "bytes")
    claimed = GB * figures["claimed_gb"]
    return f"{total:,.0f} bytes", {"": within(total, claimed, claimed)}


def formula_of_activations(runs: dict, figures: dict) -> Judged:
    """Of all blocks, and of what is held with all of them recomputed."""
    total = product(figures, "batch", "sequence", "hidden", "layers", "tensors", "bytes")
    kept, recomputed = (runs[name]["peak_bytes_by_kind"]["activations"] for name in ("kept", "recomputed"))
    return f"{mb(total)} for all {figures['layers']} layers by the formula; counted are {mb(kept)}, {mb(recomputed)} " \
        "recomputed", \
        {"its total": within(kept, *[GB * figures["total_gb"]] * 2),
         "recomputed": within(recomputed, *[GB * figures["recomputed_gb"]] * 2)}


def formula_of_scores(runs: dict, figures: dict) -> Judged:
    layer = product(figures, "batch", "heads", "sequence", "sequence", "bytes")
    held = attention_of(runs["materialised"]) - attention_of(runs["flash"])
    return f"{mb(layer)} a layer by the formula; counted are {mb(held)} more than flash attention holds", \
        {"": within(held, *[1e6 * figures["per_layer_mb"]] * 2)}


FLASH = "attention.kernel=flash"
DENSE_LAYER = ["--config", "dense-7b", "model.layers=1", "train.sequence=8192", "train.micro_batch=1"]
DENSE = ["--config", "dense-7b"]
RECOMPUTED = {"none": DENSE, "more": [*DENSE, "activations.checkpoint=full"]}
DENSE_16BIT = ["--config", "dense-7b", "precision.compute=bf16"]
# Deep enough for what is kept to outweigh what one block has under way.
DEEP_16BIT = ["--config", "moe-micro", "model.layers=48", "train.micro_batch=32", "precision.compute=bf16"]
NANO = ["--config", "moe-nano", "train.sequence=1024"]
# The example of Ava's formulas, whose width and layers are moe-100m's.
AVA_16BIT = ["--config", "moe-100m", "train.sequence=256", "train.micro_batch=12", "precision.compute=fp16"]


def state_in(home: str) -> list[str]:
    return [f"placement.{state}={home}" for state in ("parameters", "gradients", "optimizer")]


DRY_CLAIMS = {
    "vibee.breakdown_7b_fp32": DryClaim({"fp32": ["--config", "dense-7b"]}, state_7b(0)),
    "vibee.precision_7b": DryClaim({"fp32": ["--config", "dense-7b"],
                                    "bf16": DENSE_16BIT,
                                    "fp8": [*DENSE_16BIT, "precision.store=fp8"]},
                                   precision_7b),
    "vibee.attention_materialised": DryClaim({"materialised": [*DENSE_LAYER, "attention.kernel=materialised"],
                                              "flash": [*DENSE_LAYER, FLASH]}, scores),
    "vibee.attention_flash": DryClaim({"flash": [*DENSE_LAYER, FLASH, "precision.compute=bf16"]}, flash),
    "vibee.fits_7b_on_24gb": DryClaim({"plan": ["--config", "dense-7b", "precision.compute=bf16", "precision.master=none",
                                                "optim.name=adam8bit", "activations.checkpoint=full",
                                                "train.micro_batch=1", "train.accumulation=16", "memory.limit=24GiB"]},
                                      fits("plan")),
    **{f"vibee.zero_{stage}": DryClaim({"all": [*DENSE_16BIT, "precision.master=none"]}, state_7b(stage)) for stage in range(4)},
    "vibee.fits_70b_on_8x80gb": DryClaim({"rank": ["--config", "dense-70b", "--ranks", "8", "precision.compute=bf16",
                                                   "activations.checkpoint=full", "train.micro_batch=1",
                                                   "train.accumulation=8", "train.sequence=4096"]}, fits_a_rank),
    "vibee.int8_activations": DryClaim({"16 bits": DEEP_16BIT, "int8": [*DEEP_16BIT, "activations.storage=int8"]},
                                       int8_activations),
    "vibee.offload_cpu": DryClaim({"device": DENSE_16BIT, "away": [*DENSE_16BIT, *state_in("host")]}, offload),
    "vibee.offload_nvme": DryClaim({"device": DENSE_16BIT, "away": [*DENSE_16BIT, *state_in("nvme"), "placement.nvme_path=."]},
                                   offload),
    "vibee.checkpoint_half": DryClaim({"none": DENSE, "more": [*DENSE, "activations.checkpoint=ratio",
                                                               "activations.ratio=0.5"]}, None),
    "vibee.checkpoint_all": DryClaim(RECOMPUTED, None),
    "verl.gradient_checkpointing": DryClaim(RECOMPUTED, extra_arithmetic),
    "ava.data_pipeline": DryClaim({}, read_ahead),
    "ava.formula_data": DryClaim({}, formula_of_data),
    "ava.formula_data_2048": DryClaim({}, formula_of_data),
    "ava.formula_activations": DryClaim({"kept": [*AVA_16BIT, FLASH],
                                         "recomputed": [*AVA_16BIT, FLASH, "activations.checkpoint=full"]},
                                        formula_of_activations),
    "ava.formula_attention": DryClaim({"materialised": [*AVA_16BIT, "model.layers=1", "attention.kernel=materialised"],
                                       "flash": [*AVA_16BIT, "model.layers=1", FLASH]}, formula_of_scores),
    "ava.accumulation_12_16gb": DryClaim({"batch": ["--config", "moe-100m", "--preset", "gpu-rtx3090", "train.micro_batch=4",
                                                    "train.accumulation=16", "memory.limit=12GiB"]}, fits("batch")),
    "ava.accumulation_40_80gb": DryClaim({"batch": ["--config", "moe-230m", "--preset", "gpu-a100-40gb",
                                                    "train.micro_batch=16", "train.accumulation=2"]}, fits("batch")),
    "ava.optimizer_states": DryClaim({"adamw": ["--config", "moe-100m"],
                                      "adafactor": ["--config", "moe-100m", "optim.name=adafactor"],
                                      "adam8bit": ["--config", "moe-100m", "optim.name=adam8bit"]}, optimizer_states),
    "ava.gpu_rtx_3090": DryClaim({"preset": ["--config", "moe-100m", "--preset", "gpu-rtx3090"]}, rtx_3090),
    "ava.gpu_rtx_4090": DryClaim({"preset": ["--config", "moe-100m", "--preset", "gpu-rtx4090"]}, fits("preset")),
    "ava.gpu_a100_40": DryClaim({"preset": ["--config", "moe-230m", "--preset", "gpu-a100-40gb"]}, fits("preset")),
    "ava.gpu_a100_80": DryClaim({"preset": ["--config", "moe-570m", "--preset", "gpu-a100-80gb"]}, fits("preset")),
    "ava.gpu_h100_80": DryClaim({"preset": ["--config", "moe-740m", "--preset", "gpu-h100-80gb"]}, fits("preset")),
    "ava.static_100m_fp16": DryClaim({"adamw": ["--config", "moe-100m", "precision.compute=bf16", "precision.master=none"],
                                      "adafactor": ["--config", "moe-100m", "precision.compute=bf16",
                                                    "precision.master=none", "optim.name=adafactor"]}, state_100m),
    "ava.typical_breakdown": DryClaim({"preset": ["--config", "moe-100m", "--preset", "gpu-rtx3090"]}, breakdown),
    "parrot.gpu_8gb": DryClaim({"preset": [*NANO, "--preset", "gpu-8gb"]}, fits("preset")),
    "parrot.gpu_12gb": DryClaim({"preset": [*NANO, "--preset", "gpu-12gb"]}, fits("preset")),
    "parrot.gpu_16gb": DryClaim({"preset": [*NANO, "--preset", "gpu-16gb"]}, fits("preset")),
    "parrot.gpu_24gb": DryClaim({"preset": [*NANO, "--preset", "gpu-24gb"]}, fits("preset")),
    "parrot.memory_of_moe": DryClaim({"capacity": ["--config", "moe-micro", "attention.kernel=materialised",
                                                   "train.micro_batch=8"]}, memory_of_moe),
    "parrot.moe_nano": DryClaim({"textbook": [*NANO, "--preset", "gpu-8gb", "precision.compute=fp32",
                                              "activations.checkpoint=none", "train.micro_batch=16",
                                              "train.accumulation=1", "attention.kernel=materialised",
                                              "model.dispatch=onehot"],
                                 "everything": [*NANO, "--preset", "gpu-8gb"]}, nano),
}


def estimate(program: pathlib.Path, words: list[str]) -> dict:
    command = [str(program), "estimate", "--json", *words]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode not in (0, 3):
        raise ReportError(f"{' '.join(command)}: {run.stderr.strip()}")
    full = json.loads(run.stdout)
    kept = ("model", "peak_bytes", "peak_bytes_by_kind", "state_bytes", "host_bytes", "nvme_bytes", "memory_limit_bytes")
    flops = sum(amount for effort, amount in full["step_work"].items() if effort.startswith(("products", "attention")))
    ranks = {"ranks": full["ranks"]} if "ranks" in full else {}
    return {name: full[name] for name in kept} | {"flops": flops} | ranks


def settings_of(claim: str) -> str:
    """Of its dry runs, as calls of the program."""
    return "; ".join(f"`estimate {' '.join(words)}`" for words in DRY_CLAIMS[claim].runs.values())


def made_by(program: pathlib.Path) -> dict:
    """All dry runs made anew, as read() wants them from a file."""
    runs = [{"claim": claim, "run": name, "arguments": words, "estimate": estimate(program, words)}
            for claim, dry in DRY_CLAIMS.items() for name, words in dry.runs.items()]
    return {"schema": SCHEMA, "runs": runs}


def refuse_settings(program: pathlib.Path, techniques: list[Technique], path: pathlib.Path) -> None:
    """Throws ReportError for a setting of the table at `path` that the program doesn't know, or not with that value."""
    for row in techniques:
        words = [f"{key}={value}" for key, value in row.settings.items()]
        command = [str(program), "estimate", "--print-config", *words]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise ReportError(f"{path}: {row.name}: {run.stderr.strip().removeprefix('moelab: command line: ')}")


def by_claim(content: dict, path: pathlib.Path) -> dict[str, dict[str, dict]]:
    """Estimates by claim and run. Those of other settings than this program's are no evidence."""
    runs: dict[str, dict[str, dict]] = {}
    if content["schema"] != SCHEMA:
        raise ReportError(f"{path}: schema {content['schema']}, expected {SCHEMA}")
    for fields in content["runs"]:
        claim, run = fields["claim"], fields["run"]
        if claim not in DRY_CLAIMS or DRY_CLAIMS[claim].runs.get(run) != fields["arguments"]:
            raise ReportError(f"{path}: {claim}: {run} was dry-run with other settings; --program makes it anew")
        runs.setdefault(claim, {})[run] = fields["estimate"]
    return runs


def read(path: pathlib.Path) -> dict[str, dict[str, dict]]:
    try:
        return by_claim(json.loads(path.read_text()), path)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}; --program makes it") from None
    except (ValueError, KeyError, TypeError):
        raise ReportError(f"{path}: not the dry runs that claims.py --program writes") from None
