"""What cases of sweeps say of claims that name no figure of an effect: functions that cases.yaml names as `judge`. Each takes what is
seen of the claim's techniques, and what else stands beside `judge` in that file. No parts: nothing was seen."""
import dataclasses
import functools
import itertools
import math
import operator
import pathlib
from collections.abc import Callable

import yaml

from .. import figures, sweep_parts
from ..format import percent
from ..records import Record
from .dry_judges import Judged, gb, share
from .findings import measured_saving, step_time
from .outcomes import OVERSTATED, RIGHT, Outcome, Part, of_whether, part_of
from .stated import MEMORY_OF

CASES = yaml.safe_load((pathlib.Path(__file__).parent / "cases.yaml").read_text())


def judge_of(claim: str) -> Callable[["Seen"], Judged] | None:
    named = dict(CASES.get(claim, {}))
    judge = named.pop("judge", None)
    return judge and functools.partial(globals()[judge], **named)


@dataclasses.dataclass(frozen=True)
class Seen:
    """The claim's figures; the sweeps; and their cases that add a technique of the claim to a baseline."""

    figures: dict
    sweeps: list[figures.Sweep]
    cases: list[tuple[figures.Sweep, figures.Case]]


def ranged(values: list[figures.Interval]) -> str:
    """"43 to 68 %" over several cases, of one alone with its interval."""
    low, *_, high = sorted([one.value for one in values] * 2)
    return percent(values[0]) if len(values) == 1 else share(low) if share(low) == share(high) else f"{low:z.0f} to {high:z.0f} %"


def longer_by(values: list[figures.Interval]) -> str:
    """"7 to 17 % more time", "5 % less to 6 % more time", "9 % (7 to 11) less time"."""
    low, high = (round(end(one.value for one in values)) for end in (min, max))
    if low < 0 < high:
        return f"{-low} % less to {high} % more time"
    return f"{ranged([one.through(operator.neg) for one in values])} less time" if low < 0 else f"{ranged(values)} more time"


def at(sweep: figures.Sweep, case: figures.Case) -> str:
    return f"`{case.name}` on {sweep.title}"


def beyond(measured: figures.Interval) -> Outcome:
    """Whether it is certainly above 0; OVERSTATED where it certainly isn't, None where nobody knows."""
    return RIGHT if measured.low > 0 else OVERSTATED if measured.high <= 0 else None


def together(name: str, of_cases: dict[str, Part], text: str) -> dict[str, Part]:
    """One part where all cases say the same, else a part for each case."""
    outcomes = {part.outcome for part in of_cases.values()}
    return {name: Part(*outcomes, text)} if len(outcomes) == 1 else {f"{name} by {case}": part for case, part in of_cases.items()}


def lowers(seen: Seen, of: str = "", for_time: bool = False) -> Judged:
    """Whether the technique saves memory in every case, of this kind or of the whole peak. for_time: and takes longer, beyond the interval,
    in every case of several rounds."""
    kinds = MEMORY_OF[of] if of else ()
    saved = {at(*one): saving for one in seen.cases if (saving := measured_saving(one[1], kinds))}  # none: as on a GPU, no kinds are known
    if not saved:
        return "", {}
    memory = f"saves {ranged(list(saved.values()))} of {of or 'the peak'}"
    parts = together("memory", {case: Part(beyond(one), f"saves {percent(one)}") for case, one in saved.items()}, memory)
    if not for_time:
        return memory, parts
    longer = {at(*one): step_time(one[1]) for one in seen.cases if not one[1].one_round}
    if not longer:
        return memory, parts | {"time": Part(None, "one round alone")}
    time = longer_by(list(longer.values()))
    each = {case: Part(beyond(one), longer_by([one])) for case, one in longer.items()}
    return f"{memory}, {time}", parts | together("time", each, time)


def even_batches(seen: Seen) -> Judged:
    """Whether every step trains on as many tokens, and all places of a row are filled, in the cases that pack as many tokens as the claim
    names. Where the baseline's steps are as even and as full, nothing was there to even out."""
    parts, found, (least, most), was_uneven = {}, [], seen.figures["tokens_per_device"], False
    for sweep, case in seen.cases:
        run, base = case.pairs[0]
        if not least <= run.resolved["train"]["tokens_per_device"] <= most:
            continue
        tokens = run.step_tokens
        sizes = f"{tokens.min():,.0f}" + (f" to {tokens.max():,.0f}" if len(set(tokens)) > 1 else "")
        found.append(f"steps of {sizes} tokens, {share(100 * run.fill_rate)} of the places filled")
        parts[at(sweep, case)] = Part(of_whether(len(set(tokens)) == 1 and run.fill_rate >= 0.9), found[-1])
        was_uneven = was_uneven or len(set(base.step_tokens)) > 1 or base.fill_rate < 1
    if not parts:
        return "", {"its size": Part(None, f"no case packs {least:,} to {most:,} tokens")} if seen.cases else {}
    as_even = Part(None, "the baseline's are as even and as full", runs_decide=False)
    return "; ".join(found), parts | ({} if was_uneven else {"uneven batches": as_even})


def follows_memory(seen: Seen) -> Judged:
    """Whether the micro-batch grew where the limit has room: the peak is above the fixed batch's, and below the share of the limit up to
    which it may grow. It followed the memory if no larger batch would have fitted: a doubling takes twice what the last one took."""
    parts, found, short = {}, [], False
    for sweep, case in seen.cases:
        run, base = case.pairs[0]
        target = run.resolved["memory"]["dynamic_batch.target"] * run.limit
        found.append(f"a peak of {gb(run.peak)} after {gb(base.peak)}, where {gb(target)} may be taken")
        parts[f"growth by {at(sweep, case)}"] = Part(of_whether(base.peak < run.peak <= target), gb(run.peak))
        short = short or run.peak <= target < run.peak + 2 * (run.peak - base.peak)
    if parts:
        parts["its end"] = Part(RIGHT if short else None, "" if short else "in no case did the limit end its growth")
    return "; ".join(found), parts


def batches_held(seen: Seen) -> Judged:
    """Whether batches read ahead take as much each on the host, however many; and the time where the baseline reads as many ahead as the
    claim starts from."""
    found, odd, time = [], [], Part(None, "no case starts from so many batches read ahead")
    for _, case in seen.cases:
        run, base = case.pairs[0]
        held, before = run.host_bytes, base.host_bytes
        found.append(f"{batches(run)} batches held {held:,.0f} bytes, {batches(base)} held {before:,.0f}")
        odd += found[-1:] if held * batches(base) != before * batches(run) else []
        if batches(base) == seen.figures["workers"] * seen.figures["prefetch"][0] + 1 and not case.one_round:
            claimed, longer = seen.figures["slowdown_percent"], step_time(case)
            time = part_of(claimed, longer, False, longer_by([longer]))
            found.append(time.found)
    return "; ".join(found), {"host memory, as much a batch": Part(of_whether(not odd), (odd or found)[0]), "time": time} if found else {}


def batches(run: Record) -> int:
    """Those that workers read ahead, and the one in use."""
    return run.resolved["data"]["workers"] * run.resolved["data"]["prefetch"] + 1


def smaller_process(seen: Seen) -> Judged:
    """Whether the process is smaller at its largest under another allocator, by a hundredth."""
    parts, found = {}, []
    for sweep, case in seen.cases:
        saved = figures.range_over([100 * (1 - run.resident / base.resident) for run, base in case.pairs])
        if math.isnan(saved.value):
            parts[at(sweep, case)] = Part(None, "the record holds no size of the process")
            continue
        found.append(f"`{case.name}` saves {percent(saved)} of the process")
        parts[at(sweep, case)] = Part(beyond(saved.through(lambda percents: percents - 1)), f"saves {percent(saved)}")
    return "; ".join(found), parts


@dataclasses.dataclass(frozen=True)
class Rung:
    """A step of a ladder beside the rung below. saved: percent of the peak below; longer: percent of the time below."""

    name: str
    saved: float
    longer: figures.Interval

    @property
    def free(self) -> bool:
        return self.longer.low <= 0

    @property
    def text(self) -> str:
        return f"saves {share(self.saved)}, time {percent(self.longer)}"


def rungs_of(sweep: figures.Sweep) -> list[Rung]:
    """The steps of the guide that are on the sweep's ladder in several rounds."""
    steps = {step.get("technique", step.get("of_ranks")): name for name, step in sweep_parts.PRIORITY.items()}
    ladder = sweep_parts.ladder(sweep)
    root = sweep.case(ladder[0].baseline) if ladder else None
    rungs = []
    for below, case in itertools.pairwise([root, *ladder] if root else []):
        (name,) = set(case.techniques) - set(below.techniques)
        pairs = figures.paired(case.runs, below.runs)
        if name in steps and len(pairs) >= figures.LEAST_ROUNDS:
            longer = figures.ratio_of_rates([(run.rates, base.rates) for run, base in pairs]).through(lambda rate: 100 * (1 / rate - 1))
            rungs.append(Rung(steps[name], 100 * (1 - case.peak.value / below.peak.value), longer))
    return rungs


def too_early(first: Rung, later: Rung) -> bool:
    """Whether the later step should certainly have come first: it saves for nothing where the first costs time, or more for its time, be it
    the most that its interval has."""
    if first.free or later.saved <= 0:
        return False
    return later.longer.high <= 0 or first.saved / first.longer.low < later.saved / later.longer.high


def place(step: str) -> str:
    return f"{step.replace('_', ' ')} in its place"


def in_order(seen: Seen) -> Judged:
    """Of a ladder in the guide's order: what costs no time comes before what does, and of the rest what saves more memory for its time comes
    first. A step that no ladder has in two rounds is not decided."""
    ladders = [rungs for sweep in seen.sweeps if (rungs := rungs_of(sweep))]
    if not ladders:
        return "", {"the times of its steps": Part(None, "no ladder in the guide's order has two rounds")}
    rungs = max(ladders, key=len)
    parts = {place(first.name): Part(of_whether(not any(too_early(first, later) for later in rungs[index + 1:])), first.text)
             for index, first in enumerate(rungs)}
    missing = sweep_parts.PRIORITY.keys() - {rung.name for rung in rungs}
    found = "; ".join(f"{rung.name.replace('_', ' ')} {rung.text}" for rung in rungs)
    return found, parts | {place(name): Part(None, "no ladder has it in two rounds")
                           for name in sweep_parts.PRIORITY if name in missing}
