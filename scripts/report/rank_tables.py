"""What bench/ranks/ranks.py recorded, as blocks of a document: layouts of ranks over links of different rates."""
import statistics

from .document import Table, Text
from .peer_tables import short_commit, source

MB = 1e6
WORTH_HIDING = 0.1  # of a step: what takes less is within the spread of a step's time


def hidden_of_link(one, unlimited):
    """Of the time that the link takes for the exchange alone beyond the unlimited one's, the share that is not in the step."""
    return 1 - (one["step_ms"] - unlimited["step_ms"]) / (one["exchange_ms"] - unlimited["exchange_ms"])


def layouts(record):
    """One row for each layout over each link."""
    unlimited = {one["zero"]: one for one in record["layouts"] if one["link"] == "unlimited"}

    def row(one):
        beside = unlimited.get(one["zero"], one)
        worth = one["exchange_ms"] >= WORTH_HIDING * one["step_ms"]
        hidden = f"{100 * one['hidden']:.0f} %" if worth else ""
        of_link = f"{100 * hidden_of_link(one, beside):.0f} %" if worth and one is not beside else ""
        return [f"parallel.zero={one['zero']}", one["link"], f"{one['step_ms']:,.0f}", f"{100 * one['efficiency']:.0f} %",
                f"{one['exchange_ms']:,.0f}", hidden, of_link,
                f"{one['sent_bytes'] / MB:,.1f}", f"{one['peak_bytes'] / MB:,.1f}", f"{one['estimated_peak_bytes'] / MB:,.1f}"]

    heads = ["layout", "link", "step, ms", "efficiency", "exchange alone, ms", "hidden", "of the link's time", "sent, MB",
             "peak, MB", "estimate, MB"]
    about = (f"{record['model']} ({' '.join(record['settings'])}) on {record['ranks']} ranks of one thread, each with the rows of a "
             f"step of one rank, which takes {record['alone_ms']:,.0f} ms alone with one thread; efficiency is that over the step. "
             "A link's rate is each direction's. Sent in a step, peak and its estimate: of rank 0. Medians of "
             f"{record['rounds']} rounds that take turns.")
    hiding = ("Hidden: of the shorter of computation (one rank's step) and exchange, the share that passed while the other did. The "
              "ranks and the copies of their messages share the machine's cores, so that a step takes longer even over an unlimited "
              "link, which nothing can hide. Of the link's time: of what the exchange alone takes longer than over the unlimited link, "
              "the share by which the step did not grow. Both stand where the exchange alone takes a tenth of a step or more.")
    return [Table("", heads, [row(one) for one in record["layouts"]], ("link",)), Text(about), Text(hiding)]


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
                f"{short_commit(record['old_commit'])}) took {old:.2f}. Median ratio of {len(ratios)} pairs that take turns: "
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
