"""What the programs in bench/ranks/ recorded, as blocks of a document: layouts of ranks over links of different rates, what a
rank holds, and what guides claim of it."""
import statistics

from .claims.page import CLAIMS
from .claims.stated import read_guides
from .document import Heading, Picture, Table, Text
from .peer_tables import short_commit, source
from .plots.ranks import draw

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


def state(one):
    return sum(one["state_bytes"].values())


def places(record):
    """What was measured, by number of ranks and stage."""
    return {(one["ranks"], one["zero"]): one for one in record["measured"]}


def held(record):
    """A row for each number of ranks: the fullest rank's peak under each stage, and its bytes of state a parameter."""
    by_place = places(record)
    whole = by_place[1, 0]

    def cell(ranks, zero):
        one = by_place.get((ranks, zero), whole)
        return f"{one['peak_bytes'] / MB:,.1f} ({state(one) / whole['parameters']:.2f})"

    rows = [[f"{ranks}", *(cell(ranks, zero) for zero in range(4))] for ranks in sorted({ranks for ranks, _ in by_place})]
    predicted = {(one["ranks"], one["zero"]): one["peak_bytes"] for one in record["predicted"]}
    rows += [[f"{ranks}, predicted", *(f"{predicted[ranks, zero] / MB:,.1f}" for zero in range(4))]
             for ranks in sorted({ranks for ranks, _ in predicted})]
    worst = max(abs(one["peak_bytes"] - one["estimated_peak_bytes"]) for one in record["measured"])
    about = (f"{record['model']} ({' '.join(record['settings'])}): peak of the fullest rank in MB, and in brackets the bytes of weights, "
             f"masters, gradients and optimizer state a parameter. Each rank takes the same micro-batch. The dry run missed no peak by "
             f"more than {worst} bytes. Gradients of several micro-batches are summed in fp32, and ZeRO-1 divides them too.")
    return [Table("", ["ranks", *(f"parallel.zero={zero}" for zero in range(4))], rows), Text(about)]


KINDS = ("parameters", "gradients", "optimizer")  # of state, as records and claims name them


def claimed_of_zero(guide):
    """The figures of a guide's claims of ZeRO, by stage."""
    prefix = f"{guide}.zero_"
    return {int(entry["id"].removeprefix(prefix)): entry["figures"] for entry in read_guides(CLAIMS).entries
            if entry["id"].startswith(prefix)}


def same(one, other):
    return abs(one - other) <= 0.005 * other


def vibee(record):
    """The guide's table for 7B parameters, beside dry runs with the state that it counts."""
    scale = 7e9 / record["guide_7b"]["parameters"] / 1e9
    guide, rows = claimed_of_zero("vibee"), []
    for stage in record["guide_7b"]["by_stage"]:
        claimed = [guide[stage["zero"]][f"{kind}_gb"] for kind in KINDS]
        ours = [scale * stage[kind] for kind in KINDS]
        differ = [f"{name} {one:.3g} GB" for name, one, other in zip(("weights", *KINDS[1:]), ours, claimed)
                  if not same(one, other)]
        verdict = "**as claimed**" if not differ else f"**but for** {' and '.join(differ)}"
        rows.append([f"vibee.zero_{stage['zero']}", *(f"{a:.4g} / {b:.4g}" for a, b in zip(ours, claimed)),
                     f"{sum(ours):.4g} / {sum(claimed):.4g}", verdict])
    about = (f"VIBEE's 7B parameters on 8 ranks, GB a rank: by a dry run / claimed. `moelab estimate {' '.join(record['guide_7b']['command'])} "
             "--ranks 8`, scaled to 7e9 parameters: 4 bytes of optimizer state a parameter are what the guide counts. Its gradients stay in "
             "bf16; ours of several ranks are summed in fp32, and divided from ZeRO-1 on.")
    return [Table("", ["claim", "weights", "gradients", "optimizer", "together", "verdict"], rows, ("verdict",)), Text(about)]


def saved(record, ranks, zero):
    """Percent of the state of one rank, and of its peak, that ZeRO leaves to others."""
    by_place = places(record)
    one, whole = by_place[ranks, zero], by_place[ranks, 0]
    return 100 * (1 - state(one) / state(whole)), 100 * (1 - one["peak_bytes"] / whole["peak_bytes"])


def speed_changes(record, zero):
    """Percent of tokens a second gained (lost: below 0) beside ZeRO-0 over the same link; ZeRO-1 is ZeRO-2 here."""
    step = {(one["zero"], one["link"]): one["step_ms"] for one in record["layouts"]}
    return {link: 100 * (step[0, link] / step[max(2, zero), link] - 1) for _, link in step if (0, link) in step}


def ava(record, ranks):
    """The guide's savings and costs, beside what a few ranks did."""
    counts = sorted({one["ranks"] for one in record["measured"]} - {1})
    rows = []
    for zero, figures in claimed_of_zero("ava").items():
        claimed, cost = figures["memory_saved_percent"], figures["speed_percent"]
        shares = {count: saved(record, count, zero) for count in counts}
        changes = speed_changes(ranks, zero)
        enough = [f"{count}" for count in counts if shares[count][0] >= claimed - 0.5]
        holds = [link for link, change in changes.items() if change >= cost - 1]
        verdict = (f"**saves that** of the state on {' and '.join(enough)} ranks" if enough else "**saves less**") + ", " + (
            f"**costs no more** over {', '.join(holds)}" if holds else "**costs more** over each link")
        rows.append([f"ava.zero_{zero}", f"{claimed} %", *(f"{shares[count][0]:.0f} % ({shares[count][1]:.0f} %)" for count in counts),
                     f"{cost} %", *(f"{round(change):+d} %" for change in changes.values()), verdict])
    heads = ["claim", "saves", *(f"on {count} ranks" for count in counts), "speed", *(f"over {link}" for link in speed_changes(ranks, 1)),
             "verdict"]
    about = ("Ava names neither a number of ranks nor of what a share is saved: measured of the state, and in brackets of the peak, beside "
             f"ZeRO-0 with as many ranks. Speed: tokens a second beside ZeRO-0, on {ranks['ranks']} ranks over the links of the first table, "
             "in one session; within 1 % counts as equal.")
    return [Table("", heads, rows, ("verdict",)), Text(about)]


def fitting(record):
    """Models on the cards that guides name."""
    def row(one):
        peak = one["peak_bytes"] / 1e9
        verdict = "**fits**" if peak <= one["device_gb"] else "**does not fit**"
        host = f"{one['host_bytes'] / 1e9:,.0f}" if one["host_bytes"] > 1e9 else "–"
        return [one["claim"], f"`{' '.join(one['settings'])}`", f"{one['ranks']} of {one['device_gb']} GB", f"{peak:,.1f}", host, verdict]

    heads = ["claim", "settings", "cards", "peak, GB", "host, GB", "verdict"]
    return [Table("", heads, [row(one) for one in record["fits"]], ("settings", "cards", "verdict")),
            Text("By a dry run of the fullest rank; one sequence a rank, of the model's own length. Tensor and pipeline ranks, which "
                 "vibee.fits_405b_on_128_h100 takes besides, are not built: data-parallel ranks alone.")]


def picture(stages, ranks):
    return Picture("ranks", "Peak memory of a rank and speed against the number of ranks, for each stage of ZeRO",
                   f"{stages['model']}: what the fullest rank holds, and tokens a second beside one rank of one thread; each rank takes "
                   f"the rows of one rank. Filled: measured; hollow: dry runs.", lambda theme: draw(theme, stages, ranks))


def report(records):
    """Blocks of the latest record of each kind."""
    latest = {record["kind"]: record for record in records}
    blocks = []
    if "stages" in latest and "ranks" in latest:
        blocks.append(picture(latest["stages"], latest["ranks"]))
    if "ranks" in latest:
        blocks += [*layouts(latest["ranks"]), *exchanges(latest["ranks"]), Text(source(latest["ranks"]))]
    if "stages" in latest:
        blocks += [Heading(2, "What a rank holds, and what guides claim of it"), *held(latest["stages"]), *vibee(latest["stages"]),
                   *(ava(latest["stages"], latest["ranks"]) if "ranks" in latest else []), *fitting(latest["stages"]),
                   Text(source(latest["stages"]))]
    if "one_rank" in latest:
        blocks += [one_rank(latest["one_rank"]), Text(source(latest["one_rank"]))]
    return blocks
