"""What dry runs say of advice, of settings and of orders, whose claims name no figure of an effect: functions that dry_runs.yaml
names as `judge`, as those of dry_judges.py are."""
import itertools

from .dry_judges import ROOT, Judged, gb, named_as, share
from .outcomes import Part, of_whether

LEAST = 1  # percent of the memory before: a step that saves less does nothing for a run out of memory


def steps_down(runs: dict, _: dict, largest_first: bool = False, lacks: dict[str, str] | None = None) -> Judged:
    """Each run is the one before with a step of the advice more. A step helps if it saves LEAST percent of the memory before.
    largest_first: the claim is of an order in which each step saves no more than the one before. lacks: what of the claim these runs
    do not say, each with the reason."""
    taken = {name.replace("_", " "): run["peak_bytes"] for name, run in runs.items()}
    saved = {name: 100 * (1 - after / before) for (_, before), (name, after) in itertools.pairwise(taken.items())}
    parts = {name: Part(of_whether(percent >= LEAST), f"{percent:.2g} % less") for name, percent in saved.items()}
    if largest_first:
        parts["the order"] = Part(of_whether(list(saved.values()) == sorted(saved.values(), reverse=True)))
    parts |= {name: Part(None, why) for name, why in (lacks or {}).items()}
    before, *_, after = taken.values()
    return f"{gb(before)} become {gb(after)}: " + ", ".join(f"{name} {percent:.2g} % less" for name, percent in saved.items()), parts


def remedies(runs: dict, _: dict) -> Judged:
    """The first run is what is said to run out of memory; each other run is it with one of the remedies."""
    (cause, *_), limit = runs, next(iter(runs.values()))["memory_limit_bytes"]
    found = {name: named_as(limit)(run["on_card_bytes"]) for name, run in runs.items()}
    return f"of {named_as(limit)(limit)}: " + ", ".join(f"{name} {taken}" for name, taken in found.items()), \
        {name: Part(of_whether(run["fits"] == (name != cause)), found[name]) for name, run in runs.items()}


def rows_within(runs: dict, percent: float) -> int:
    """The largest batch within this share of the card: the runs are of `N rows`, and one row more than the largest is too much."""
    within = {int(name.split()[0]): 100 * run["on_card_bytes"] <= percent * run["memory_limit_bytes"] for name, run in runs.items()}
    largest = max(rows for rows, fits in within.items() if fits)
    if within.get(largest + 1, True):
        raise KeyError(f"{largest + 1} rows")
    return largest


def used(runs: dict, rows: int) -> float:
    """Percent of the card."""
    run = runs[f"{rows} rows"]
    return 100 * run["on_card_bytes"] / run["memory_limit_bytes"]


def higher_target(runs: dict, figures: dict) -> Judged:
    """How many more rows a step takes if more of the card may be used."""
    before, after = (rows_within(runs, 100 * figures[name]) for name in ("before", "target"))
    text = f"{after} rows at {share(used(runs, after))} of the card instead of {before} at {share(used(runs, before))}"
    return f"{text}, {share(100 * (after / before - 1))} more", {"its batch": Part(of_whether(after > before), f"{after} rows")}


def beside(percent: float, *bounds: float) -> str:
    """With the decimals that show on which side of the bounds it is, one at least."""
    decimals = next((count for count in range(1, 7) if all(round(percent, count) != bound for bound in bounds)), 1)
    return f"{percent:.{decimals}f} %"


def thresholds(runs: dict, figures: dict, least: float = 0, most: float = 100) -> Judged:
    """What the largest batch at the target leaves idle, and whether a row more is noticed before it is critical. least, most: the
    percent of the card that such thresholds are said to use."""
    target, warning = (round(100 * figures[name], 6) for name in ("target", "warning"))
    rows = rows_within(runs, target)
    taken, more = used(runs, rows), used(runs, rows + 1)
    found, next_found = beside(taken, target), beside(more, target, warning)
    side = "below" if more < warning else "past"
    return f"{rows} rows take {found} of the card; a row more {next_found}, {side} the warning at {warning:.0f} %", \
        {"its batch": Part(of_whether(least <= taken <= most), found), "a row more": Part(of_whether(more < warning), next_found)}


def within_share(runs: dict, figures: dict) -> Judged:
    """Whether generation, all that a run holds at its peak but the optimizer's state, stays in its share of the limit, and takes more
    texts in a larger one. What graphs of decoding hold is in no dry run."""
    held = {part: run["peak_bytes"] - run["peak_bytes_by_kind"]["optimizer"]
            for part, run in zip(figures["share"], runs.values(), strict=True)}
    limit = next(iter(runs.values()))["memory_limit_bytes"]
    rising, size = list(held.values()) == sorted(set(held.values())), named_as(limit)
    found = {part: f"{size(bytes_)} of {size(part * limit)}" for part, bytes_ in held.items()}
    return "generation takes " + ", ".join(found.values()), \
        {**{f"share {part}": Part(of_whether(bytes_ <= part * limit and rising), found[part]) for part, bytes_ in held.items()},
         "memory without CUDA graphs": Part(None, "nothing here counts what graphs of decoding hold", runs_decide=False)}


def reference(runs: dict, _: dict) -> Judged:
    """That the reference is the run that it is held against: the same bytes on the device, none elsewhere, the same arithmetic."""
    default, named = runs.values()
    same = {"memory": named["peak_bytes"] == default["peak_bytes"] and named["nvme_bytes"] == 0,
            "time": named["flops"] == default["flops"] and named["host_bytes"] == default["host_bytes"]}
    return f"{gb(named['peak_bytes'])} and {named['flops'] / 1e12:.3g} TFLOP a step, as the run that others are held against", \
        {name: Part(of_whether(holds), "0 %" if holds else "differs") for name, holds in same.items()}


def profile(runs: dict, _: dict, on_host: bool, fits_alone: bool, lacks: dict[str, str] | None = None) -> Judged:
    """Whether a profile for one device does what it is for. on_host: whether it moves state to the host; fits_alone: whether the same
    model fits without it. lacks: what the claim's profile has and ours has not, each with the reason."""
    ours, plain = runs["with it"], runs["without it"]
    moved = ours["host_bytes"] > ours["state_bytes"]["optimizer"]
    size = named_as(ours["memory_limit_bytes"])
    host = f"{size(ours['host_bytes'])} on the host" if moved else "no state on the host"
    taken, limit, without = (size(value) for value in (ours["on_card_bytes"], ours["memory_limit_bytes"], plain["on_card_bytes"]))
    return f"{taken} of {limit} with it, {without} without; {host}", \
        {"memory": Part(of_whether(ours["fits"] and plain["fits"] == fits_alone and ours["on_card_bytes"] < plain["on_card_bytes"]), taken),
         "what it offloads": Part(of_whether(moved == on_host), host),
         **{name: Part(None, why) for name, why in (lacks or {}).items()}}


def dashboard(_: dict, figures: dict, levels: dict[str, float]) -> Judged:
    """Whether the shown share is that of the shown bytes, and the status the highest level that it reaches."""
    percent = 100 * figures["used_gb"] / figures["limit_gb"]
    status = max((level for level in levels if percent >= 100 * levels[level]), key=levels.get, default="normal")
    return f"{figures['used_gb']} of {figures['limit_gb']} GB are {percent:.0f} %, which is {status}", \
        {"percent": Part(of_whether(round(percent) == figures["percent"]), f"{percent:.0f} %"),
         "status": Part(of_whether(status == figures["status"]), status)}


def held_by_tests(_: dict, __: dict, tests: dict[str, dict[str, str]]) -> Judged:
    """Of what a program does, which no record says: whether the program has the tests that hold it. tests: by file, what each holds."""
    parts = {what: Part(of_whether(f"TEST({name})" in (text := (ROOT / file).read_text()) or f"TEST_F({name})" in text), name.replace(", ", "."))
             for file, named in tests.items() for what, name in named.items()}
    return "tests hold " + ", ".join(f"{what} (`{part.found}`)" for what, part in parts.items()), parts
