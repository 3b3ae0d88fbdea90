"""What dry runs and closed formulas say of claims: functions that dry_runs.yaml names as `judge`. Each takes the
estimates by the names of the runs, the figures of the claim, and what else stands beside `judge` in that file."""
import json
import math
import pathlib
from collections.abc import Callable

from .findings import STATE
from .outcomes import OVERSTATED, RIGHT, Part, of_need, of_percent, of_size, of_whether, sized

ROOT = pathlib.Path(__file__).resolve().parents[3]
# What the planner reckons with, by datasheet.
DEVICES = json.loads((ROOT / "train/predict/devices.json").read_text())["devices"].values()

GB, MB = 1e9, 1e6
# What was found, in words, and each part of the claim. The part "" is the whole.
Judged = tuple[str, dict[str, Part]]


def gb(value: float) -> str:
    return f"{value / GB:.3g} GB"


def gib(value: float) -> str:
    return f"{value / 2**30:.3g} GiB"


def named_as(limit: float) -> Callable[[float], str]:
    """Writes a limit, and what is held against it, as cards are named: in whole GiB; other limits in GB."""
    return gib if limit % 2**30 == 0 else gb


def mb(value: float) -> str:
    return f"{value / MB:.3g} MB"


def share(percent: float) -> str:
    return f"{percent:z.0f} %"


def whole(outcome: str | None) -> dict[str, Part]:
    return {"": Part(outcome)}


def size_needed(value: float, text: str, low: float, high: float | None = None) -> Part:
    """Of a size that a technique is said to need."""
    return sized(of_need(value, low, high), value, low, text)


def plain_size(value: float, text: str, low: float, high: float | None = None) -> Part:
    """Of a size that promises nothing."""
    return sized(of_size(value, low, high), value, low, text)


def of_7b(estimate: dict, kind: str) -> float:
    return estimate["state_bytes"][kind] / estimate["model"]["parameters"] * 7e9


KINDS = ("parameters", "gradients", "optimizer")  # of state, as estimates and claims name them


def state_7b(runs: dict, figures: dict, promises: bool = True) -> Judged:
    """State of 7e9 parameters on the rank that is run. promises: whether the claim is of what a technique leaves, not of the reference."""
    (run,) = runs.values()
    held = {kind: of_7b(run, kind) for kind in KINDS}
    held["total"] = sum(held.values())
    claimed = figures | {"total_gb": figures.get("total_gb", figures.get("total_without_activations_gb"))}
    return ", ".join(f"{kind} {gb(bytes_)}" for kind, bytes_ in held.items()) + " at 7B parameters", \
        {kind: (size_needed if promises else plain_size)(bytes_, gb(bytes_), GB * claimed[f"{kind}_gb"]) for kind, bytes_ in held.items()}


def card_of(run: dict) -> str:
    return f"{run['gpu']['name']} (compute capability {run['gpu']['compute_capability']})"


def fits_each_rank(runs: dict, figures: dict, device_gb: float = 0) -> Judged:
    """Whether the fullest rank of each run fits its card."""
    card = GB * figures.get("device_gb", device_gb)
    found = [f"{gb(run['on_card_bytes'])} with {name}" + (f" ({gb(run['host_bytes'])} on the host)" if run["host_bytes"] > GB else "")
             for name, run in runs.items()]
    parts = {name: Part(of_whether(run["on_card_bytes"] <= card), gb(run["on_card_bytes"])) for name, run in runs.items()}
    (name,) = {card_of(run) for run in runs.values()}
    return f"the fullest of {figures['devices']} ranks takes {', '.join(found)} on {name}; a card has {gb(card)}", parts


def zero_saves(runs: dict, figures: dict, stage: int) -> Judged:
    """What this stage of ZeRO leaves to other ranks: of all of the state, which the claim is held against, and of the peak. Its time is
    measured."""
    def shares(run: dict) -> tuple[float, float]:
        stages = run["ranks"]["by_stage"]
        undivided, own = stages[0], stages[stage]
        state = 1 - sum(own[kind] for kind in KINDS) / sum(undivided[kind] for kind in KINDS)
        return 100 * state, 100 * (1 - own["peak_bytes"] / undivided["peak_bytes"])
    saved = {name: shares(run) for name, run in runs.items()}
    return "saves " + ", ".join(f"{state:.0f} % of state ({peak:.0f} % of the peak) on {name}" for name, (state, peak) in saved.items()), \
        {f"on {name}": Part(of_percent(state, figures["memory_saved_percent"]), share(state)) for name, (state, _) in saved.items()}


def gathers_once(runs: dict, _: dict) -> Judged:
    """Kept weights travel as often as ZeRO-2's, once a step."""
    sent = {name: run["sent_bytes"] for name, run in runs.items()}
    return ", ".join(f"{name} sends {mb(bytes_)}" for name, bytes_ in sent.items()) + " a step", \
        whole(of_whether(of_need(sent["kept"], sent["ZeRO-2"]) == RIGHT and sent["kept"] < 0.9 * sent["resharded"]))


def precision_7b(runs: dict, figures: dict) -> Judged:
    held = {name: run["peak_bytes_by_kind"]["parameters"] / run["model"]["parameters"] * 7e9
            for name, run in runs.items()}
    return ", ".join(f"{name} {gb(bytes_)}" for name, bytes_ in held.items()), \
        {name: size_needed(bytes_, gb(bytes_), GB * figures[f"{name}_gb"]) for name, bytes_ in held.items()}


def attention_of(estimate: dict) -> float:
    return estimate["peak_bytes_by_kind"]["activations.attention"]


def scores(runs: dict, figures: dict) -> Judged:
    held = attention_of(runs["materialised"]) - attention_of(runs["flash"])
    layer = figures["bytes_per_head"] * figures["heads"]
    return f"{gb(held)} more than flash attention at the peak of one layer; one tensor of scores is {gb(layer)}", \
        {"": Part(of_whether(held >= 0.9 * layer), gb(held))}


def flash(runs: dict, figures: dict) -> Judged:
    held = attention_of(runs["flash"])
    return f"{held / 1e6:.0f} MB of attention at the peak of one layer: queries, keys, values and the result", \
        {"": size_needed(held, mb(held), MB * figures["per_layer_mb"])}


def fits(runs: dict, _: dict) -> Judged:
    """Whether each run fits its card; a single one is the whole claim."""
    def taken(run: dict) -> str:
        peak, on_card, limit = (run[name] for name in ("peak_bytes", "on_card_bytes", "memory_limit_bytes"))
        host = f", {gb(run['host_bytes'])} on the host" if run["host_bytes"] > GB else ""
        card = f"the memory of {card_of(run)}" if run["gpu"] else f"its limit of {named_as(limit)(limit)}"
        return f"{gb(on_card)} taken, {share(100 * on_card / limit)} of {card}, of tensors {gb(peak)}{host}"
    if len(runs) == 1:
        (run,) = runs.values()
        return taken(run), {"": Part(of_whether(run["fits"]), gb(run["on_card_bytes"]))}
    return "; ".join(f"{name}: {taken(run)}" for name, run in runs.items()), \
        {name: Part(of_whether(run["fits"]), gb(run["on_card_bytes"])) for name, run in runs.items()}


def nano(runs: dict, figures: dict) -> Judged:
    before, after = (runs[name]["on_card_bytes"] for name in ("textbook", "everything"))
    low, high = figures["optimized_gb"]
    return f"{gb(before)} becomes {gb(after)} on {card_of(runs['everything'])}, {before / after:.1f} times less", \
        {"before": plain_size(before, gb(before), GB * figures["original_gb"]), "after": size_needed(after, gb(after), GB * low, GB * high)}


def rtx_3090(runs: dict, figures: dict) -> Judged:
    """A speed that needs more FLOPs a second than the planner reckons with for the card is overstated; what needs fewer can't be judged
    without the card."""
    (low, high), run = figures["claimed_memory_gb"], runs["preset"]
    taken = run["on_card_bytes"]
    needed = figures["claimed_tokens_per_second"] * run["flops"] / product(figures, "batch", "sequence", "accumulation")
    rate = 1e9 / next(device for device in DEVICES if device.get("card") == run["gpu"]["name"])["nanoseconds"]["products_fp16"]
    speed = f"{figures['claimed_tokens_per_second']} tokens/s need {100 * needed / rate:.1f} % of the card's {rate / 1e12:.0f} TFLOP/s"
    return f"{gb(taken)} taken on {card_of(run)}; {speed}", \
        {"memory": plain_size(taken, gb(taken), GB * low, GB * high),
         "tokens/s": Part(OVERSTATED if needed > rate else None, f"{speed}; no such card was there to measure it")}


def state_100m(runs: dict, figures: dict) -> Judged:
    def of_100m(name: str, kind: str) -> float:
        return runs[name]["state_bytes"][kind] / runs[name]["model"]["parameters"] * 1e8
    found = {"parameters": of_100m("adamw", "parameters"), "gradients": of_100m("adamw", "gradients"),
             "adamw": of_100m("adamw", "optimizer"), "adafactor": of_100m("adafactor", "optimizer")}
    names = {name: OPTIMIZERS.get(name, name) for name in found}
    return ", ".join(f"{names[name]} {mb(bytes_)}" for name, bytes_ in found.items()), \
        {names[name]: size_needed(bytes_, mb(bytes_), MB * figures[f"{name}_mb"]) for name, bytes_ in found.items()}


def breakdown(runs: dict, figures: dict) -> Judged:
    """Shares of the peak, which promise nothing: a share that is smaller than claimed is overstated."""
    kinds = runs["preset"]["peak_bytes_by_kind"]
    total = runs["preset"]["peak_bytes"]
    held = {"parameters": kinds["parameters"], "gradients": kinds["gradients"],
             "optimizer": kinds["optimizer"] + kinds["master"], "attention": kinds["activations.attention"],
             "activations": kinds["activations"] - kinds["activations.attention"]}
    held["overhead"] = total - sum(held.values())
    percent = {kind: 100 * bytes_ / total for kind, bytes_ in held.items()}
    return ", ".join(f"{kind} {value:.0f} %" for kind, value in percent.items()), \
        {kind: sized(of_percent(value, claimed), value, claimed, share(value))
         for kind, value in percent.items() for claimed in [figures[f"{kind}_percent"]]}


# What optimizers are called, by the names of runs and figures.
OPTIMIZERS = {"adamw": "AdamW", "adafactor": "Adafactor", "adam8bit": "8-bit Adam"}


def optimizer_states(runs: dict, figures: dict) -> Judged:
    held = {name: run["state_bytes"]["optimizer"] / run["state_bytes"]["parameters"] for name, run in runs.items()}
    return ", ".join(f"{OPTIMIZERS[name]} {ratio:.2f}" for name, ratio in held.items()) + " times the weights", \
        {OPTIMIZERS[name]: size_needed(ratio, f"{ratio:.2f}", figures[name]) for name, ratio in held.items()}


NO_BUS = "a GPU alone can say, where the copies cross a bus"


def offload(runs: dict, figures: dict) -> Judged:
    """The memory that moving state away saves. Dry runs do not know what it costs in time."""
    def saved(held: Callable[[dict], float]) -> float:
        return 100 * (1 - held(runs["away"]) / held(runs["device"]))
    peak, claimed = saved(lambda run: run["peak_bytes"]), figures["memory_saved_percent"]
    state = saved(lambda run: sum(run["peak_bytes_by_kind"][kind] for kind in STATE))
    return f"saves {peak:.0f} % of the whole peak, {state:.0f} % of state", \
        {"memory": Part(of_percent(peak, *(claimed if isinstance(claimed, list) else [claimed])), share(peak)), "time": Part(None, NO_BUS)}


def int8_activations(runs: dict, figures: dict) -> Judged:
    before, after = (runs[name]["peak_bytes_by_kind"]["activations"] for name in ("16 bits", "int8"))
    saved = 100 * (1 - after / before)
    return f"{gb(before)} of activations in 16 bits become {gb(after)}, {saved:.0f} % less", \
        {"": Part(of_percent(saved, figures["memory_saved_percent"]), share(saved))}


def extra_percent(runs: dict) -> float:
    """How many percent more FLOPs of products and attention the run `more` has than the run `none`."""
    return 100 * (runs["more"]["flops"] / runs["none"]["flops"] - 1)


def counted_text(percent: float) -> str:
    return f"{percent:.0f} % more FLOPs a step, counted"


def extra_arithmetic(runs: dict, figures: dict) -> Judged:
    extra = extra_percent(runs)
    return counted_text(extra), \
        {"": Part(of_percent(extra, figures["extra_compute_percent"], more_is_better=False), f"{share(extra)} more FLOPs")}


PARTS_OF_MOE = {"expert_parameters": "parameters.experts", "routing": "activations.routing",
                "capacity_buffers": "activations.capacity_buffers", "expert_activations": "activations.experts"}


def memory_of_moe(runs: dict, figures: dict) -> Judged:
    run = runs["capacity"]
    held = {part: run["peak_bytes_by_kind"][PARTS_OF_MOE[part]] for part in figures["parts"]}
    return ", ".join(f"{part.replace('_', ' ')} {mb(bytes_)}" for part, bytes_ in held.items()) + \
        f" of a peak of {mb(run['peak_bytes'])}", whole(of_whether(all(held.values())))


def read_ahead(_: dict, figures: dict) -> Judged:
    """(workers x prefetch + 1) batches are held, as runs show. No formula says what fewer cost in time."""
    before, after = (figures["workers"] * depth + 1 for depth in figures["prefetch"])
    saved = 100 * (1 - after / before)
    return f"{before} batches become {after}, {saved:.0f} % less", \
        {"memory": Part(of_percent(saved, figures["memory_saved_percent"]), share(saved)), "time": Part(None)}


def divides_state(runs: dict, _: dict) -> Judged:
    """Whether N ranks that share each matrix, or the layers, hold an Nth of the state each."""
    all_of_it = sum(runs["one rank"]["state_bytes"].values())
    shares = {name: sum(run["state_bytes"].values()) / all_of_it for name, run in runs.items() if name != "one rank"}
    return ", ".join(f"{name} hold {share(100 * held)} of the state each" for name, held in shares.items()), \
        {name: size_needed(held, f"saves {share(100 * (1 - held))} of the state on each of {name}", 1 / int(name.split()[0]))
         for name, held in shares.items()}


def preset_of_ranks(runs: dict, _: dict, lacks: str = "") -> Judged:
    """Whether a preset of several ranks does something for a run: the fullest rank fits a limit, holds less than one rank alone
    would, and sends. lacks: what the claim's preset has and ours has not."""
    ranks, alone = runs["ranks"], runs["one rank"]
    peak, undivided, limit = ranks["peak_bytes"], alone["peak_bytes"], ranks["memory_limit_bytes"]
    size = named_as(limit)
    found = f"the fullest rank takes {size(peak)} of {size(limit)}, {share(100 * peak / undivided)} of one rank's " \
        f"{size(undivided)}, and sends {size(ranks['sent_bytes'])} a step"
    works = ranks["fits"] and peak < undivided and ranks["sent_bytes"] > 0
    parts = {"its settings": Part(of_whether(works), f"{size(peak)} of {size(limit)}")}
    return found, parts | ({lacks: Part(None, "our preset has none")} if works and lacks else {})


def product(figures: dict, *names: str) -> float:
    return math.prod(figures[name] for name in names)


def formula_of_data(_: dict, figures: dict) -> Judged:
    """What batches read ahead take, as read_ahead() counts them."""
    batches = figures["workers"] * figures["prefetch"] + 1
    total = batches * product(figures, "batch", "sequence", "bytes")
    return f"{batches} batches take {total:,.0f} bytes", {"in all": plain_size(total, mb(total), GB * figures["claimed_gb"])}


def formula_of_activations(runs: dict, figures: dict) -> Judged:
    """Activations of all blocks by the guide's formula, beside those counted when blocks are kept and recomputed."""
    total = product(figures, "batch", "sequence", "hidden", "layers", "tensors", "bytes")
    kept, recomputed = (runs[name]["peak_bytes_by_kind"]["activations"] for name in ("kept", "recomputed"))
    return f"{mb(total)} for all {figures['layers']} layers by the formula; counted are {mb(kept)}, {mb(recomputed)} " \
        "recomputed", \
        {"in all": plain_size(kept, mb(kept), GB * figures["total_gb"]),
         "recomputed": plain_size(recomputed, mb(recomputed), GB * figures["recomputed_gb"])}


def formula_of_scores(runs: dict, figures: dict) -> Judged:
    layer = product(figures, "batch", "heads", "sequence", "sequence", "bytes")
    held = attention_of(runs["materialised"]) - attention_of(runs["flash"])
    return f"{mb(layer)} a layer by the formula; counted are {mb(held)} more than flash attention holds", \
        {"a layer": plain_size(held, mb(held), MB * figures["per_layer_mb"])}


def formula_of_flash(runs: dict, figures: dict) -> Judged:
    layer = product(figures, "batch", "sequence", "hidden", "bytes")
    held, scores_too = (attention_of(runs[name]) for name in ("flash", "materialised"))
    saved = 100 * (1 - held / scores_too)
    return f"{mb(layer)} a layer by the formula; counted are {mb(held)}, {share(saved)} less than with stored scores", \
        {"a layer": plain_size(held, mb(held), MB * figures["per_layer_mb"]),
         "memory": Part(of_percent(saved, figures["memory_saved_percent"]), share(saved))}
