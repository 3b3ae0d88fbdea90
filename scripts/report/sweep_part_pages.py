"""What the report says of the parts of a full sweep; a part without records is left out."""
import fractions
import functools
import itertools
import math
import statistics

from . import sweep_parts
from .byte_units import human_bytes
from .document import Commands, Fold, Heading, Items, Picture, Point, Table, Text
from .figures import Case, Interval, Sweep
from .format import failure_word, loss_change, provenance, rounds_of, signed_bytes, speed_times, times
from .planner_checks import ALLOWED, Check
from .plots import crossovers, estimates, ladder, pairs
from .sidecars import Draw, Fits, Predictions

WORST = 10
TAKEN = "what CUDA's caching allocator reserves, with cuBLAS's workspaces and CUDA's context"
FITS = {"green": "fits", "amber": "fits tightly", "red": "too large"}  # by the status in a record


def failed_row(case: Case, width: int) -> list[str]:
    return [case.name, f"**failed**: {failure_word(case)}", *[""] * (width - 2)]


def failure_blocks(sweeps: list[Sweep]) -> list:
    rounds: dict[tuple, list[str]] = {}
    for sweep in sweeps:
        for case in sweep.cases:
            for run in case.failures:
                where = f"{case.name}, {sweep.part}" if sweep.part else case.name
                rounds.setdefault((where, run.status, run.message), []).append(str(run.round))
    if not rounds:
        return []
    rows = [[name, status, ", ".join(numbers), message] for (name, status, message), numbers in rounds.items()]
    return [Heading(3, "Runs that didn't finish"),
            Table("Running out of memory is a result too.", ["case", "status", "rounds", "message"], rows,
                  ("status", "rounds", "message"))]


# The ladder, and what is lost by leaving one out.


def ladder_row(case: Case, below: Case | None) -> list[str]:
    adds = " ".join(f"`{name}`" for name in case.techniques if below is None or name not in below.techniques)
    if not case.runs:
        return failed_row(case, 7)
    return [case.name, times(case.peak_ratio), speed_times(case), human_bytes(case.peak.value), f"{case.speed.value:,.0f}",
            loss_change(case), adds or "–"]


def missing_rows(case: Case, below: Case | None, on_ladder: set[str]) -> list[list[str]]:
    """Rows for the guide's steps right below this rung that have no rung."""
    return [["–", "", "", "", "", "", f"`{name}`: {reason}"] for name, reason in sweep_parts.without_rung(case, below, on_ladder)]


def ladder_blocks(sweep: Sweep, prefix: str) -> list:
    rungs = sweep_parts.ladder(sweep)
    if not rungs:
        return []
    ground = sweep.case(rungs[0].baseline)
    steps = [case for case in (ground, *rungs) if case]
    on_ladder = {technique for case in rungs for technique in case.techniques}
    rows = [row for case, below in zip(rungs, [ground, *rungs])
            for row in (*missing_rows(case, below, on_ladder), ladder_row(case, below))]
    table = Table("Each rung keeps what the ones below it have. memory, speed, loss: against "
                  f"{', '.join(dict.fromkeys(f'`{case.baseline}`' for case in rungs))}, as in the table of the cases.",
                  ["rung", "memory", "speed", "peak memory", "tokens/s", "loss", "adds, or why there is no rung"],
                  rows, ("adds, or why there is no rung",))
    finished = [case for case in steps if case.runs]
    picture = Picture(f"{prefix}ladder", "Peak memory and tokens a second on each rung of the ladder",
                      "One technique after the other. Steps of a guide's order (claim `ava.priority`) that have no "
                      "rung here are in the table below, with the reason.",
                      functools.partial(ladder.ladder, finished))
    return [Heading(3, "The ladder"), *([picture] if len(finished) > 1 else []), table]


def leave_one_out_row(case: Case) -> list[str]:
    if not case.runs:
        return failed_row(case, 6)
    return [case.name, times(case.peak_ratio), speed_times(case), signed_bytes(-sweep_parts.saved(case)),
            loss_change(case), rounds_of(case)]


def leave_one_out_blocks(sweep: Sweep) -> list:
    cases = sweep_parts.of_families(sweep, "leave_one_out").cases
    if not cases:
        return []
    ordered = sorted(cases, key=lambda case: sweep_parts.saved(case) if case.pairs else math.inf)
    whole = ", ".join(dict.fromkeys(f"`{case.baseline}`" for case in cases))
    return [Heading(3, "Leaving one out"),
            Table(f"What changes when one technique is taken from {whole}, first those that it needs most. more at the "
                  "peak: bytes; memory, speed, loss: against it, as in the table of the cases.",
                  ["case", "memory", "speed", "more at the peak", "loss", "rounds"],
                  [leave_one_out_row(case) for case in ordered])]


# Pairs.


def log_time_text(interval: Interval | None, one_round: bool) -> str:
    if interval is None:
        return "not measured"
    if one_round:
        return f"{100 * interval.value:+z.1f} % (one round)"
    low, value, high = (100 * end for end in (interval.low, interval.value, interval.high))
    return f"{value:+z.1f} % ({low:+z.1f} to {high:+z.1f})"


def pair_point(pair: sweep_parts.Pair) -> Point:
    title = " + ".join(pair.names)
    if pair.refused:
        return Point(title, [f"Cannot be combined: {pair.refused}"])
    how = "by dry run" if pair.predicted else "measured"
    facts = ["peak memory: not known" if math.isnan(pair.memory) else
             f"peak memory: saves {signed_bytes(pair.memory)} more than the product of each would ({how})",
             f"step time, beyond the product of each: {log_time_text(pair.log_time, bool(pair.case and pair.case.one_round))}"]
    return Point(title, facts, pair.case.command if pair.case else "")


def pair_row(pair: sweep_parts.Pair) -> list[str]:
    case = pair.case
    return [" + ".join(f"`{name}`" for name in pair.names), signed_bytes(sweep_parts.saved(case)),
            signed_bytes(pair.memory), speed_times(case), log_time_text(pair.log_time, case.one_round), rounds_of(case)]


def pair_blocks(sweep: Sweep, predictions: Predictions | None, prefix: str) -> list:
    found = sweep_parts.pairs(sweep, predictions)
    if not found:
        return []
    order = sweep_parts.singles(sweep, predictions)
    names = [name for name in order if any(name in pair.names for pair in found)]
    measured = [pair for pair in found if pair.case and pair.case.pairs]
    refused = sum(bool(pair.refused) for pair in found)
    kinds = {"measured": len(measured), "only dry-run (their time is unmeasured)": len(found) - len(measured) - refused,
             "that cannot be combined": refused}
    counts = f"{len(found)} pairs: {', '.join(f'{count} {kind}' for kind, count in kinds.items() if count)}."
    caption = ("Two techniques together, beside the product of what each leaves alone. Grey: as two that save the same bytes must. Dot: "
               "not measured. x: cannot be combined. Blank: as the product.")
    details = ("Below the diagonal: bytes at the peak, in percent of the baseline's; red: how far they are above the smaller one alone, where "
               f"that is more than {pairs.HARM} %. Above it: the logarithm of the step time, about its "
               "percent. Two that halve the peak are expected to leave a quarter. Peaks are measured where all four are, else of dry runs. "
               "Outlined: the time of a single round, which decides nothing.")
    blocks = [Picture(f"{prefix}pairs", "Interaction of every pair of techniques, in memory and in step time", caption,
                      functools.partial(pairs.pair_map, found, names), [pair_point(pair) for pair in found],
                      large=True), Fold("What a cell shows", [Text(details)])]
    if measured:
        ordered = sorted(measured, key=lambda pair: -sweep_parts.saved(pair.case))
        blocks.append(Table("Each measured pair beside the baseline: the memory that it saves at the peak, and its speed. The two columns "
                            "beyond say by how much it saves more, and takes longer (as a logarithm), than its techniques alone let expect.",
                            ["pair", "saves", "beyond", "speed", "time beyond", "rounds"],
                            [pair_row(pair) for pair in ordered]))
    return [Heading(3, "Two techniques together"), Text(counts), Fold("The map of pairs, and those that were measured", blocks)]


# Crossovers.


def where(crossing: sweep_parts.Crossing, holds) -> str:
    """The sizes of more than one round at which holds(case) is true, as "at 1, 2 and from 8 on", "at 16" for the last
    alone, or "nowhere"."""
    points = [(x, case) for x, case in crossing.points if not case.one_round]
    first = sweep_parts.from_on(points, holds)
    if points and first == points[-1][0]:
        first = None
    alone = [crossovers.amount(x) for x, case in points if holds(case) and (first is None or x < first)]
    said = ([f"at {', '.join(alone)}"] if alone else []) + ([f"from {crossovers.amount(first)} on"] if first else [])
    return " and ".join(said) or "nowhere"


def speed_text(crossing: sweep_parts.Crossing) -> str:
    """Where the technique is faster, slower or undecided, by intervals of several rounds."""
    said = [f"faster {where(crossing, lambda case: case.speed_ratio.low > 1)}",
            f"slower {where(crossing, lambda case: case.speed_ratio.high < 1)}"]
    spans = [crossovers.amount(x) for x, case in crossing.points
             if not case.one_round and case.speed_ratio.low <= 1 <= case.speed_ratio.high]
    once = [crossovers.amount(x) for x, case in crossing.points if case.one_round]
    return "; ".join([*said, *([f"undecided at {', '.join(spans)}, where the interval spans 1"] if spans else []),
                      *([f"undecided at {', '.join(once)}, with a single round"] if once else [])])


def bargain(x: float, case: Case) -> str:
    """The memory saved and the time it costs."""
    time = 100 * (1 / case.speed_ratio.value - 1)
    return (f"{100 * (1 - case.peak_ratio.value):z.0f} % of the peak for {abs(time):.0f} % {'more' if time > 0 else 'less'} time "
            f"at {crossovers.amount(x)}")


def crossing_text(crossing: sweep_parts.Crossing) -> str:
    bargains = ", ".join(bargain(x, case) for x, case in crossing.points)
    pays = where(crossing, lambda case: sweep_parts.memory_time(case).high < 1)
    return (f"`{crossing.label}`: {speed_text(crossing)}. It saves {bargains}: memory × time is less than without it "
            f"{pays}.")


def crossover_rows(crossings: list[sweep_parts.Crossing]) -> list[list[str]]:
    return [[f"{crossing.label} at {crossovers.amount(x)}", times(case.peak_ratio), speed_times(case),
             f"{sweep_parts.memory_time(case).value:.2f} × (one round)" if case.one_round else times(sweep_parts.memory_time(case)),
             rounds_of(case), case.any.model]
            for crossing in crossings for x, case in crossing.points]


def crossover_blocks(sweeps: list[Sweep]) -> list:
    found = sorted(sweep_parts.crossings(sweeps), key=lambda crossing: crossing.axis)
    blocks = []
    for axis, group in itertools.groupby(found, key=lambda crossing: crossing.axis):
        crossings = list(group)
        caption = ("Each point is held against the same run without the technique, with its 95 % interval; hollow: a single round. Faster, "
                   "slower, less: the interval excludes 1. memory × time: the peak times a step's time.")
        blocks += [Heading(3, crossovers.HEADINGS[axis]), Items([crossing_text(crossing) for crossing in crossings]),
                   Picture(f"crossovers-{axis}", f"Speed and peak memory of techniques by {axis}", caption,
                           functools.partial(crossovers.crossovers, crossings)),
                   Table("The same in figures.",
                         [f"technique by {axis}", "memory", "speed", "memory × time", "rounds", "model"],
                         crossover_rows(crossings), ("model",))]
    parts = [sweep for sweep in sweeps if sweep_parts.of_families(sweep, "crossover").cases]
    blocks += failure_blocks(parts)
    return [Heading(2, "Where techniques begin to pay"), Text(provenance(parts[0])), *blocks] if blocks else []


# What fits.


def fit_row(fit) -> list[str]:
    return [fit.card, human_bytes(fit.limit), fit.stack, f"**{FITS[fit.status]}**", fit.model,
            "–" if math.isnan(fit.taken) else human_bytes(fit.taken), fit.largest_model or "none",
            f"{fit.largest_layers:,.0f}", f"{fit.largest_batch:,.0f}"]


def fit_run_row(case: Case) -> list[str]:
    if not case.runs:
        return failed_row(case, 9)
    scale = fractions.Fraction(case.any.settings.get("run.scale", "1")).limit_denominator(1024)
    limit, peak = case.runs[-1].limit, case.peak.value
    limit_text, share = (human_bytes(limit), f" ({peak / limit:.0%})") if limit > 0 else ("–", "")
    return [case.name, times(case.peak_ratio), speed_times(case), case.any.model, f"{scale}", limit_text, human_bytes(peak) + share,
            f"{case.speed.value:,.0f}", rounds_of(case)]


def fit_runs(sweeps: list[Sweep]) -> list:
    of_cards = [of for sweep in sweeps if (of := sweep_parts.of_families(sweep, "fit")).cases]
    if not of_cards:
        return []
    rows = [fit_run_row(case) for sweep in of_cards for case in sweep_parts.presets(sweep)]
    commands = [f"# {case.name}\n{case.command}" for sweep in of_cards for case in sweep.cases]
    return [Heading(3, "Presets, trained within their limits"),
            Table("scale: of the preset's model and memory (`--scale`). limit: at that scale; more ends out of memory. memory and speed: "
                  "ratios to the preset's baseline, the same model without its techniques, in the same round.",
                  ["preset", "memory", "speed", "model", "scale", "limit", "peak", "tokens/s", "rounds"], rows, ("model",)),
            Fold("Where and how", [Text(provenance(of_cards[0])), Commands(commands)]), *failure_blocks(of_cards)]


def fit_blocks(sweeps: list[Sweep], fits: list[Fits]) -> list:
    blocks = [Table("By bisection over dry runs. fits: the model's tensors stay within memory.target, tightly: within memory.critical, and what "
                    f"is taken within the card. Found by `{one.command}` at commit `{one.commit}`.",
                    ["GPU", "memory", "techniques", "fits", "model", "taken", "largest model", "most layers",
                     "largest batch"],
                    [fit_row(fit) for fit in one.rows], ("techniques", "fits", "model", "largest model"))
              for one in fits]
    if fits:
        blocks.append(Fold("What the columns mean", [Text(f"too large: neither. taken: {TAKEN}. largest model: of those that have a name. "
                                                          "most layers, largest batch: of the model beside.")]))
    blocks += fit_runs(sweeps)
    return [Heading(2, "What fits"), *blocks] if blocks else []


# The planner.


def check_row(check: Check, is_predicted: bool) -> list[str]:
    predicted = ["–" if math.isnan(check.choice.predicted) else f"{check.choice.predicted:,.0f}"] if is_predicted else []
    return [check.choice.budget, check.choice.techniques or "not recorded", human_bytes(check.choice.peak),
            f"{check.speed:,.0f}", *predicted, check.fastest, f"{check.fastest_speed:,.0f}", times(check.ratio),
            f"{check.rounds}", f"**{check.verdict}**"]


def check_blocks(checks: list[Check]) -> list:
    if not checks:
        return []
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(check.choice.commit for check in checks))
    drawn = " or ".join(dict.fromkeys(f"{check.drawn}" for check in checks))
    is_predicted = not all(math.isnan(check.choice.predicted) for check in checks)
    caption = (f"What `moelab plan` chose for each budget, beside others that fit, drawn at random ({drawn} for each budget), all "
               f"trained in turns. The choice holds if its ratio is at least {ALLOWED} or the interval reaches 1.")
    details = (f"{'predicted: the tokens/s of the plan, where recorded. ' if is_predicted else ''}ratio: speed of the choice to that of the "
               f"fastest drawn, with its 95 % interval. Measured by `scripts/check_plan.py` at commit {commits}.")
    headings = ["budget", "choice", "peak", "tokens/s", *(["predicted"] if is_predicted else []), "fastest drawn", "its tokens/s",
                "ratio", "rounds", "verdict"]
    return [Heading(2, "What the planner chooses"),
            Table(caption, headings, [check_row(check, is_predicted) for check in checks], ("choice", "fastest drawn", "verdict")),
            Fold("What the columns mean", [Text(details)])]


# The estimator.


def draw_facts(draw: Draw) -> list[str]:
    return [f"predicted {human_bytes(draw.predicted)}, measured {human_bytes(draw.measured)}: {draw.error:+.3%}",
            f"scratch of libraries {human_bytes(draw.scratch)}; state {'exact' if draw.state_exact else 'differs'}"]


def estimate_blocks(draws: list[Draw]) -> list:
    if not draws:
        return []
    errors = [abs(draw.error) for draw in draws]
    differ = sum(not draw.state_exact for draw in draws)
    answers = [f"{len(draws)} drawn configurations: tensors at the peak off by {statistics.median(errors):.3%} "
               f"(median) and {max(errors):.3%} (worst).",
               f"Bytes of the state {'are exact in all' if not differ else f'differ in {differ}'}.",
               "Scratch of libraries, which no dry run sees: at most "
               f"{human_bytes(max(draw.scratch for draw in draws))}."]
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(draw.commit for draw in draws))
    worst = sorted(draws, key=lambda draw: -abs(draw.error))[:WORST]
    rows = [[f"{draw.error:+.3%}", human_bytes(draw.predicted), human_bytes(draw.measured), human_bytes(draw.scratch),
             " ".join(f"`{setting}`" for setting in draw.settings)] for draw in worst]
    return [Heading(2, "Predicted against measured"), Items(answers),
            Picture("estimates", "Error of the predicted peak, one point a configuration",
                    "Dotted: 0.5 %, which the median should stay within; dashed: 2 %, which all should. Measured by "
                    f"`scripts/check_estimates.py` at commit {commits}.", functools.partial(estimates.estimates, draws),
                    [Point(f"configuration {number}", [*draw_facts(draw), " ".join(f"`{s}`" for s in draw.settings)])
                     for number, draw in enumerate(draws, 1)]),
            Table(f"The {len(worst)} worst.", ["error", "predicted", "measured", "scratch", "settings"], rows,
                  ("settings",))]
