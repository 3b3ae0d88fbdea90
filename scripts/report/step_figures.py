"""Medians, ratios and memory from the runs that hf_mixtral.py records."""
import statistics

BATCH, SEQUENCE, VOCAB = 8, 256, 256
WARM_UP = 3  # steps of each process that do not count
PRECISIONS = ("fp32", "bf16")


def ours(side):
    return side.startswith("moelab")


def rates(run):
    """Tokens/s of the steps that count."""
    return [BATCH * SEQUENCE / ms * 1e3 for ms in run["milliseconds"][WARM_UP:]]


def by_round(runs):
    """For each side, the median tokens/s of each round."""
    return {side: [statistics.median(rates(run)) for run in rounds] for side, rounds in runs.items()}


def ratios(runs, side, other):
    """The tokens/s of a side divided by those of another, for each round that both ran in."""
    found = by_round(runs)
    return [one / two for one, two in zip(found[side], found[other])]


def compile_seconds(run):
    """Seconds that the warm-up steps took longer than as many later steps."""
    steady = statistics.median(run["milliseconds"][WARM_UP:])
    return max(0, sum(run["milliseconds"][:WARM_UP]) - WARM_UP * steady) / 1e3


def fastest(runs, sides):
    """The side with the highest median tokens/s among those with the most rounds; None without sides."""
    most = max((len(runs[side]) for side in sides), default=0)
    rate = {side: statistics.median(found) for side, found in by_round(runs).items()
            if side in sides and len(runs[side]) == most}
    return max(rate, key=rate.get, default=None)


def fastest_pair(runs, precisions):
    """Our fastest side and the fastest opponent, of those that run in one of these precisions."""
    sides = [side for side in runs if side.endswith(tuple(precisions))]
    return fastest(runs, list(filter(ours, sides))), fastest(runs, [side for side in sides if not ours(side)])


def row(rounds):
    """What a table says of one side: tokens/s of all steps that count, peak resident bytes, and seconds of compiling
    in the first round, whose cache is empty."""
    found = [rate for run in rounds for rate in rates(run)]
    return {"tokens_per_second": statistics.median(found), "slowest": min(found), "fastest": max(found),
            "rounds": len(rounds), "peak_rss": max(run["rss"] for run in rounds),
            "steady_rss": statistics.median(run["steady_rss"] for run in rounds),
            "compile_seconds": compile_seconds(rounds[0])}


def pair_figures(runs, side, peer):
    """Speed and memory of one of our sides beside an opponent; speed is the median of the rounds' ratios."""
    memory = row(runs[side])["steady_rss"] / row(runs[peer])["steady_rss"]
    return {"ours": side, "best_peer": peer, "speed": statistics.median(ratios(runs, side, peer)), "memory": memory}


def figures(runs):
    """A record's table, the fastest of ours beside the fastest opponent, and the same within each precision."""
    pairs = {precision: fastest_pair(runs, [precision]) for precision in PRECISIONS}
    return {"table": {side: row(rounds) for side, rounds in runs.items()},
            **pair_figures(runs, *fastest_pair(runs, PRECISIONS)),
            "by_precision": {precision: pair_figures(runs, *pair) for precision, pair in pairs.items()
                             if None not in pair}}


def product_ratios(products):
    """r of each round: how many times LibTorch's rate our fp32 product has over all products of the experts."""
    def seconds(found, side):
        return sum(statistics.median(times[side]) for times in found.values())

    return [seconds(found, "library") / seconds(found, "moelab") for found in products]
