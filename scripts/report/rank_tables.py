"""What the programs in bench/ranks/ and the harness recorded, as blocks of a document: layouts of ranks over links of different
rates, and what a rank holds."""
import statistics

from . import figures
from .claims import dry_runs
from .document import Heading, Picture, Table, Text
from .peer_tables import read, short_commit, source
from .plots.ranks import draw
from .records import files_of, read_records
from .sweep_parts import RANKS, of_families, zero_stage

MB = 1e6
ALL_STAGES = "ava.zero_1"  # the dry runs of this claim have every stage of the measured model
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


def held(sweeps, dry):
    """What one rank and the fullest of several hold: {"model", "settings", "measured", "predicted"}, bytes by number of ranks and
    stage of ZeRO; {} without such cases."""
    measured, worst, model = {}, 0, ""
    for sweep in sweeps:
        for case in of_families(sweep, RANKS).cases:
            zero, whole = zero_stage(case), sweep.case(case.baseline)
            if zero is None or not case.runs or not whole.runs:
                continue
            model = f"{sweep.model}, {whole.any.resolved['train']['micro_batch']} x {whole.any.sequence:.0f} tokens a micro-batch"
            for place, run in (((1, 0), whole.any), ((case.any.ranks, zero), case.any)):
                measured.setdefault(place, {"peak": run.peak, "state": run.state / run.parameters})
                worst = max(worst, abs(run.peak - run.predicted_peak))
    predicted = {(run["ranks"]["count"], stage["zero"]): stage["peak_bytes"] for run in dry.get(ALL_STAGES, {}).values()
                 for stage in run["ranks"]["by_stage"] if (run["ranks"]["count"], 0) not in measured}
    return {"model": model, "measured": measured, "predicted": predicted, "worst": worst} if measured else {}


def held_blocks(found):
    """A row for each number of ranks: the fullest rank's peak under each stage, and its bytes of state a parameter."""
    def cell(place):
        one = found["measured"].get(place)
        return f"{one['peak'] / MB:,.1f} ({one['state']:.2f})" if one else ""

    counts = sorted({ranks for ranks, _ in found["measured"]})
    rows = [[f"{ranks}", *(cell((ranks, zero)) for zero in range(4))] for ranks in counts]
    rows += [[f"{ranks}, predicted", *(f"{found['predicted'][ranks, zero] / MB:,.1f}" for zero in range(4))]
             for ranks in sorted({ranks for ranks, _ in found["predicted"]})]
    about = (f"{found['model']}: peak of the fullest rank in MB, and in brackets the bytes of weights, masters, gradients and optimizer "
             f"state a parameter. Each rank takes micro-batches of one size. The dry run missed no measured peak by more than "
             f"{found['worst']:.0f} bytes. Gradients of several micro-batches are summed in fp32, and ZeRO-1 divides them too. Speeds and the "
             "commands: [report.md](report.md). What guides claim of ZeRO: [claims.md](claims.md).")
    return [Heading(2, "What a rank holds"), Table("", ["ranks", *(f"parallel.zero={zero}" for zero in range(4))], rows), Text(about)]


def error(row):
    """The share by which the planner takes a step for too long."""
    return row["predicted_ms"]["total"] / row["step_ms"] - 1


def step_times(record):
    """A row for each layout, with what was measured and predicted over each link."""
    by_place = {(row["layout"], row["link"]): row for row in record["rows"]}
    layouts, links = (list(dict.fromkeys(place[i] for place in by_place)) for i in (0, 1))

    def cell(row):
        return f"{row['step_ms']:,.0f} / {row['predicted_ms']['total']:,.0f} ({error(row):+.0%}, ± {row['spread'] / 2:.0%})"

    rows = [[layout, f"{by_place[layout, links[0]]['sent_bytes'] / MB:,.0f}", *(cell(by_place[layout, link]) for link in links)]
            for layout in layouts]
    calm = [row for row in record["rows"] if row["spread"] <= 0.1]

    def said(these):
        sizes = [abs(error(row)) for row in these]
        return f"{statistics.median(sizes):.1%} in the median and {max(sizes):.1%} at worst of {len(these)} cases"

    about = (f"{record['model']} ({' '.join(record['settings'])}) on {record['ranks']} ranks of one thread each. Milliseconds of a step: "
             f"measured / predicted by `moelab plan --ranks {record['ranks']} --link … --device {record['device']}`, and in brackets the "
             "prediction's error and half the distance between the quartiles of the measured steps. "
             f"The error is {said(record['rows'])}" + (f"; {said(calm)} whose quartiles are at most 10 % apart" if calm else "") + ".")
    if record["fitted"]:
        others = [row for row in record["rows"] if row["link"] != "unlimited"]
        about += (f" What {record['device']} computes was fitted to the steps over the unlimited link, beyond the time of their messages, but "
                  f"not to steps in backward; nothing was fitted to the other links, where the error is {said(others)}.")
    return [Heading(2, "How long a step takes, and what the planner thinks"),
            Table("", ["layout", "sent, MB", *links], rows), Text(about)]


def waiting(record):
    """A row for each schedule of a pipeline: how long its stages waited, and how long a simulation has them wait."""
    def row(one):
        schedule = "1f1b" if one["chunks"] == 1 else f"interleaved, {one['chunks']} chunks"
        return [schedule, f"{one['message_ms']:.2f}", f"{one['measured']:.1%}", f"{one['simulated']:.1%}",
                f"{100 * (one['measured'] - one['simulated']):+.1f}"]

    about = (f"{record['model']} ({' '.join(record['settings'])}) on {record['stages']} stages of one thread each, "
             f"{record['micro_batches']} micro-batches a step. The share of the step in which a stage waits for others, in the mean over "
             "the stages; the simulation plays the schedule with the measured times of each stage's passes and of a message as long as "
             f"theirs that is sent alone. Medians of {len(record['rows'][0]['runs'])} rounds that take turns.")
    return [Heading(2, "How long the stages of a pipeline wait"),
            Table("", ["schedule", "a message, ms", "measured", "simulated", "difference, points"], [row(one) for one in record["rows"]]),
            Text(about)]


def picture(found, ranks):
    return Picture("ranks", "Peak memory of a rank and speed against the number of ranks, for each stage of ZeRO",
                   "What the fullest rank holds, and tokens a second beside one rank of one thread; each rank takes the rows of one "
                   "rank. Filled: measured; hollow: dry runs.", lambda theme: draw(theme, found, ranks))


def blocks_of(file):
    """Of the records in the file, and of the sweeps and dry runs in its folder."""
    folder = file.parent
    sweeps = figures.sweeps(read_records([folder])[0]) if files_of(folder) else []
    stored = folder / "dry_runs.json"
    return report(read(file), sweeps, dry_runs.read(stored) if stored.exists() else {})


def report(records, sweeps, dry):
    """Blocks of the latest record of each kind, and of the sweeps' cases on several ranks."""
    latest = {record["kind"]: record for record in records}
    found = held(sweeps, dry)
    blocks = [Heading(1, "Ranks: what they hold, and how fast they are")]
    if found and "ranks" in latest:
        blocks.append(picture(found, latest["ranks"]))
    if "ranks" in latest:
        blocks += [Heading(2, "Steps and exchanges over each link"), *layouts(latest["ranks"]), *exchanges(latest["ranks"]),
                   Text(source(latest["ranks"]))]
    if found:
        blocks += held_blocks(found)
    if "predicted_steps" in latest:
        blocks += [*step_times(latest["predicted_steps"]), Text(source(latest["predicted_steps"]))]
    if "bubble" in latest:
        blocks += [*waiting(latest["bubble"]), Text(source(latest["bubble"]))]
    if "one_rank" in latest:
        blocks += [one_rank(latest["one_rank"]), Text(source(latest["one_rank"]))]
    return blocks
