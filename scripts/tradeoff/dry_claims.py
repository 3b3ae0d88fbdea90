"""Claims about bytes that no sweep measures: dry runs of `moelab estimate`, stored once as records."""
import dataclasses
import json
import pathlib
import subprocess
from collections.abc import Callable

from .records import ReportError

SCHEMA = 1
GB = 1e9


def gb(value: float) -> str:
    return f"{value / GB:.3g} GB"


def within(value: float, low: float, high: float) -> bool:
    """A tenth more or less is what a guide's rounding takes."""
    return 0.9 * low <= value <= 1.1 * high


@dataclasses.dataclass(frozen=True)
class DryClaim:
    """Runs by name, as the words after `moelab estimate --json`; `judge` makes of their estimates what was found, in
    words, and whether the claim holds."""

    runs: dict[str, list[str]]
    judge: Callable[[dict[str, dict], dict], tuple[str, bool]]


def of_7b(estimate: dict, kind: str) -> float:
    return estimate["state_bytes"][kind] / estimate["model"]["parameters"] * 7e9


def breakdown_7b(runs: dict, figures: dict) -> tuple[str, bool]:
    parts = {kind: of_7b(runs["fp32"], kind) for kind in ("parameters", "gradients", "optimizer")}
    holds = all(within(bytes_, GB * figures[f"{kind}_gb"], GB * figures[f"{kind}_gb"]) for kind, bytes_ in parts.items())
    return ", ".join(f"{kind} {gb(bytes_)}" for kind, bytes_ in parts.items()) + " at 7e9 parameters", holds


def precision_7b(runs: dict, figures: dict) -> tuple[str, bool]:
    held = {name: run["peak_bytes_by_kind"]["parameters"] / run["model"]["parameters"] * 7e9 for name, run in runs.items()}
    holds = all(within(held[name], GB * figures[f"{name}_gb"], GB * figures[f"{name}_gb"]) for name in held)
    return ", ".join(f"{name} {gb(bytes_)}" for name, bytes_ in held.items()), holds


def attention_of(estimate: dict) -> float:
    return estimate["peak_bytes_by_kind"]["activations.attention"]


def scores(runs: dict, figures: dict) -> tuple[str, bool]:
    held = attention_of(runs["materialised"]) - attention_of(runs["flash"])
    layer = figures["bytes_per_head"] * figures["heads"]
    return f"{gb(held)} more than flash attention at the peak of one layer; one tensor of scores is {gb(layer)}", \
        held >= 0.9 * layer


def flash(runs: dict, figures: dict) -> tuple[str, bool]:
    held = attention_of(runs["flash"])
    return f"{held / 1e6:.0f} MB of attention at the peak of one layer", \
        within(held, 0, 1e6 * figures["per_layer_mb"])


def fits(name: str) -> Callable[[dict, dict], tuple[str, bool]]:
    def judge(runs: dict, _: dict) -> tuple[str, bool]:
        peak, limit = runs[name]["peak_bytes"], runs[name]["memory_limit_bytes"]
        return f"peak {peak / 2**30:.2f} GiB of {limit / 2**30:.0f} GiB", peak <= limit
    return judge


def nano(runs: dict, figures: dict) -> tuple[str, bool]:
    before, after = runs["textbook"]["peak_bytes"], runs["everything"]["peak_bytes"]
    low, high = figures["optimized_gb"]
    return f"{gb(before)} becomes {gb(after)}, {before / after:.1f} times less", \
        after <= GB * high and before / after >= 0.9 * figures["original_gb"] / high


def rtx_3090(runs: dict, figures: dict) -> tuple[str, bool]:
    low, high = figures["claimed_memory_gb"]
    peak = runs["preset"]["peak_bytes"]
    return f"peak {gb(peak)}", within(peak, GB * low, GB * high)


def state_100m(runs: dict, figures: dict) -> tuple[str, bool]:
    def of_100m(name: str, kind: str) -> float:
        return runs[name]["state_bytes"][kind] / runs[name]["model"]["parameters"] * 1e8
    found = {"parameters_mb": of_100m("adamw", "parameters"), "gradients_mb": of_100m("adamw", "gradients"),
             "adamw_mb": of_100m("adamw", "optimizer"), "adafactor_mb": of_100m("adafactor", "optimizer")}
    holds = all(within(bytes_, 1e6 * figures[name], 1e6 * figures[name]) for name, bytes_ in found.items())
    return ", ".join(f"{name.removesuffix('_mb')} {bytes_ / 1e6:.0f} MB" for name, bytes_ in found.items()), holds


def breakdown(runs: dict, figures: dict) -> tuple[str, bool]:
    kinds = runs["preset"]["peak_bytes_by_kind"]
    total = runs["preset"]["peak_bytes"]
    share = {"parameters": kinds["parameters"], "gradients": kinds["gradients"],
             "optimizer": kinds["optimizer"] + kinds["master"], "attention": kinds["activations.attention"],
             "activations": kinds["activations"] - kinds["activations.attention"]}
    percent = {kind: 100 * bytes_ / total for kind, bytes_ in share.items()}
    holds = all(abs(value - figures[f"{kind}_percent"]) <= 5 for kind, value in percent.items())
    return ", ".join(f"{kind} {value:.0f} %" for kind, value in percent.items()), holds


FLASH = "attention.kernel=flash"
DENSE_LAYER = ["--config", "dense-7b", "model.layers=1", "train.sequence=8192", "train.micro_batch=1"]
NANO = ["--config", "moe-nano", "train.sequence=1024"]
DRY_CLAIMS = {
    "vibee.breakdown_7b_fp32": DryClaim({"fp32": ["--config", "dense-7b"]}, breakdown_7b),
    "vibee.precision_7b": DryClaim({"fp32": ["--config", "dense-7b"],
                                    "bf16": ["--config", "dense-7b", "precision.compute=bf16"],
                                    "fp8": ["--config", "dense-7b", "precision.compute=bf16", "precision.store=fp8"]},
                                   precision_7b),
    "vibee.attention_materialised": DryClaim({"materialised": [*DENSE_LAYER, "attention.kernel=materialised"],
                                              "flash": [*DENSE_LAYER, FLASH]}, scores),
    "vibee.attention_flash": DryClaim({"flash": [*DENSE_LAYER, FLASH, "precision.compute=bf16"]}, flash),
    "vibee.fits_7b_on_24gb": DryClaim({"plan": ["--config", "dense-7b", "precision.compute=bf16", "precision.master=none",
                                                "optim.name=adam8bit", "activations.checkpoint=full",
                                                "train.micro_batch=1", "train.accumulation=16", "memory.limit=24GiB"]},
                                      fits("plan")),
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
    return {name: full[name] for name in kept}


def record(program: pathlib.Path, path: pathlib.Path) -> None:
    """Makes all dry runs and writes them anew."""
    runs = [{"claim": claim, "run": name, "arguments": words, "estimate": estimate(program, words)}
            for claim, dry in DRY_CLAIMS.items() for name, words in dry.runs.items()]
    path.write_text(json.dumps({"schema": SCHEMA, "runs": runs}, indent=1) + "\n")


def read(path: pathlib.Path) -> dict[str, dict[str, dict]]:
    """Estimates by claim and run."""
    runs: dict[str, dict[str, dict]] = {}
    try:
        content = json.loads(path.read_text())
        if content["schema"] != SCHEMA:
            raise ReportError(f"{path}: schema {content['schema']}, expected {SCHEMA}")
        for fields in content["runs"]:
            runs.setdefault(fields["claim"], {})[fields["run"]] = fields["estimate"]
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}; --program makes it") from None
    except (ValueError, KeyError, TypeError):
        raise ReportError(f"{path}: not the dry runs that claims.py --program writes") from None
    return runs
