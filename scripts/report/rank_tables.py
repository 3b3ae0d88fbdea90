"""What bench/ranks/ranks.py recorded, as blocks of a document: layouts of ranks over links of different rates."""
import statistics

from .document import Table, Text
from .peer_tables import source

MB = 1e6


def layouts(record):
    """One row for each layout over each link."""
    def row(one):
        return [f"parallel.zero={one['zero']}", one["link"], f"{one['step_ms']:,.0f}", f"{100 * one['efficiency']:.0f} %",
                f"{one['exchange_ms']:,.0f}", f"{100 * one['hidden']:.0f} %",
                f"{one['sent_bytes'] / MB:,.1f}", f"{one['peak_bytes'] / MB:,.1f}", f"{one['estimated_peak_bytes'] / MB:,.1f}"]

    heads = ["layout", "link", "step, ms", "efficiency", "exchange alone, ms", "hidden", "sent, MB", "peak, MB", "estimate, MB"]
    about = (f"{record['model']} ({' '.join(record['settings'])}) on {record['ranks']} ranks of one thread, each with the rows of a "
             f"step of one rank, which takes {record['alone_ms']:,.0f} ms alone with one thread; efficiency is that over the step. "
             "A link's rate is each direction's. Hidden: of the shorter of computation (one rank's step) and exchange, the share "
             f"that passed while the other did. Sent in a step, peak and its estimate: of rank 0. Medians of {record['rounds']} "
             "rounds that take turns.")
    return [Table("", heads, [row(one) for one in record["layouts"]], ("link",)), Text(about)]


def exchanges(record):
    """One row for each link: a gradient's way onto its owners, ours and Gloo's."""
    def row(link, runs):
        ours, gloo = ([run[name] for run in runs] for name in ("ordered", "gloo"))
        ratio = statistics.median(b / a for a, b in zip(ours, gloo))
        return [link, f"{statistics.median(ours):,.0f}", f"{statistics.median(gloo):,.0f}", f"{ratio:.2f} ×"]

    heads = ["link", "in rank order, ms", "Gloo's reduce-scatter, ms", "Gloo's time over ours"]
    about = ("All gradients of the model in bf16, reduced onto the ranks' halves in one call: ours onto an fp32 sum in the order "
             "of ranks, Gloo's in bf16.")
    return [Table("", heads, [row(*item) for item in record["exchanges"].items()]), Text(about)]


def one_rank(record):
    """What ranks cost a run that has only one."""
    old, new = record["cpu_seconds"]
    ratios = [after / before for before, after in record["pairs"]]
    return Text(f"One rank ({' '.join(record['settings'])}) takes {new:.2f} CPU seconds a step; the program before ranks (commit "
                f"{record['old_commit'][:10]}) took {old:.2f}. Median ratio of {len(ratios)} pairs that take turns: "
                f"{record['ratio']:.3f} ({min(ratios):.3f} to {max(ratios):.3f}).")


def report(records):
    """Blocks of the latest record of each kind."""
    latest = {record["kind"]: record for record in records}
    blocks = []
    if "ranks" in latest:
        blocks += [*layouts(latest["ranks"]), *exchanges(latest["ranks"]), Text(source(latest["ranks"]))]
    if "one_rank" in latest:
        blocks += [one_rank(latest["one_rank"]), Text(source(latest["one_rank"]))]
    return blocks
