"""What bench/peers recorded, as blocks of a document: training steps beside PyTorch models, MoE layers beside other
people's, layers and steps with more experts, and where the time of a step goes."""
import itertools
import json
import pathlib
import re
import shlex
import statistics

from .document import Fold, Heading, Table, Text
from .step_figures import product_ratios, ratios

SHAPE = "{dtype} {T}, {d}, {F}, {E}, {k}"


def read(file: pathlib.Path) -> list[dict]:
    """The records of a file of JSON lines. Throws OSError and ValueError."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def section(heads, rows, texts):
    """A table and the texts below it."""
    return [Table("", heads, rows), *map(Text, texts)]


def short_commit(commit):
    """Ten digits, and whether the tree had changes."""
    digits, _, modified = commit.partition(", ")
    return f"{digits[:10]} ({modified})" if modified else digits[:10]


def source(record):
    """Where a record comes from; of a file outside the project its name alone."""
    where = f"{record['machine']}; commit {short_commit(record['commit'])}, {record['date'][:10]}"
    words = [pathlib.Path(word).name if word.startswith("/") else word for word in record["command"]]
    return f"{where}: `{shlex.join(words)}`"


def of_kind(records, kind):
    return [record for record in records if record["kind"] == kind and record["status"] == "ok"]


def by_source(records):
    """Those of one command on one commit and machine, together."""
    return [list(group) for _, group in itertools.groupby(records, source)]


def spread(values):
    """The median with the lowest and the highest; one value alone has no range."""
    range_of = f"({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else "(one round)"
    return f"{statistics.median(values):.2f} × {range_of}"


def mebibytes(count):
    return f"{count / 2**20:,.0f} MiB"


def mixtral_step(record):
    """Medians over all steps of all rounds but the first ones of each; ratios are of medians of the same round. Older
    records have no peak after warm-up and no compiled opponents."""
    best, has_steady = record["best_peer"], any("steady_rss" in row for row in record["table"].values())

    def row(side, found):
        cells = [side, f"{found['tokens_per_second']:,.0f}", f"{found['slowest']:,.0f} to {found['fastest']:,.0f}",
                 "" if side == best else spread(ratios(record["runs"], side, best))]
        if has_steady:
            compiled = "compiled" in side or "max-autotune" in side
            cells += [str(found["rounds"]), f"{found['compile_seconds']:.0f}" if compiled else "",
                      mebibytes(found["steady_rss"])]
        return cells + [mebibytes(found["peak_rss"])]

    rows = [row(*item) for item in sorted(record["table"].items(), key=lambda item: -item[1]["tokens_per_second"])]
    heads = ["training step of moe-micro", "tokens/s", "slowest to fastest", f"beside {best}",
             *(["rounds", "compile, s", "peak after warm-up", "peak of the process"] if has_steady
               else ["peak resident"])]
    notes = step_notes(record) if has_steady else [step_pair(record, "peak")]
    return section(heads, rows, [*notes, source(record)])


def step_pair(record, peak, pair=None):
    """One of our sides beside the fastest opponent; without `pair` the record's own."""
    pair = pair or record
    best, ours = pair["best_peer"], pair.get("ours", "moelab bf16")
    return (f"{ours} has {spread(ratios(record['runs'], ours, best))} the tokens/s of {best}, the fastest opponent, "
            f"and {pair['memory']:.2f} × its {peak}: the median of {len(record['runs'][best])} rounds, each side "
            "beside that opponent in the same round, and the slowest and fastest round.")


def step_notes(record):
    """What else there is to say of a step: each precision alone, who is left out, our fp32 product."""
    notes = [step_pair(record, "peak after warm-up")]
    of_each = {precision: step_pair(record, "peak after warm-up", pair) for precision, pair in record["by_precision"].items()}
    notes += [f"In {precision} only: {text}" for precision, text in of_each.items() if text not in notes]
    notes.append("The fastest opponents of the first round went on to the others. compile: how much longer warm-up "
                 "took than as many later steps, with an empty cache. The peak after warm-up leaves out what compiling "
                 "took.")
    if record["skipped"]:
        notes.append("Left out:\n" + "\n".join(f"- {side}: {why}" for side, why in record["skipped"].items()))
    products = product_ratios(record["products"])
    notes.append(f"At the experts' shapes our fp32 matrix product runs at {spread(products)} the rate of LibTorch's.")
    return notes


def sides_of(records):
    """The opponents."""
    return sorted({side for record in records for side in record["median"] if side != "moelab"})


def moe_layers(records):
    """Milliseconds forward and backward, and how many times as long as moelab the others take."""
    sides = sides_of(records)

    def row(record):
        ours = record["median"]["moelab"]
        times = [f"{record['median'][s]:,.0f} ({record['median'][s] / ours:.2f} ×)" if s in record["median"] else "–"
                 for s in sides]
        return [SHAPE.format(**record), f"{ours:,.0f}", *times,
                f"{record['gflops']['moelab'] / record['gemm_gflops']:.0%}"]

    heads = ["MoE layer: T, d, F, E, k", "moelab, ms", *(f"{side}, ms" for side in sides), "rate beside a product's"]
    return section(heads, [row(record) for record in records], [source(records[0])])


def layer_sweep(records):
    """How the time of a layer grows with its experts: each side beside its own time with the fewest experts, under the
    same load."""
    sides = sides_of(records)

    def grown(record, side):
        least = next(r for r in records if r["load"] == record["load"])
        if side not in record["median"]:
            return ["–", ""]
        growth = f"{record['median'][side] / least['median'][side] - 1:+.0%}" if side in least["median"] else ""
        return [f"{record['median'][side]:,.0f}", "" if record is least else growth]

    def cell(record, side):
        time, growth = grown(record, side)
        return f"{time} ({growth})" if growth else time

    def row(record):
        load = "" if record["load"] == "even" else f", {record['load']}"
        return [SHAPE.format(**record) + load, *grown(record, "moelab"), f"{record['spread']['moelab']:.0%}",
                *(cell(record, side) for side in sides)]

    fewest = min(record["E"] for record in records)
    heads = ["MoE layer alone: T, d, F, E, k", "moelab, ms", f"beside E = {fewest}", "spread",
             *(f"{side}, ms" for side in sides)]
    about = ("Equal work a token, forward and backward of the layer; the update of its weights is not in it. spread: "
             "from the fastest tenth of all times to the slowest, beside their median.")
    return section(heads, [row(record) for record in records], [about, source(records[0])])


def expert_sweep(record):
    """How the time of a training step grows with its experts."""
    def row(experts, found, first):
        grown = f"{found['growth']:+.0%} ({found['least']:+.0%} to {found['most']:+.0%})"
        return [experts, f"{found['parameters'] / 1e6:,.0f}M", f"{found['step_ms']:,.0f}", "" if first else grown,
                f"{found['peak_rss'] / 2**20:,.0f} MiB"]

    shape = record["settings"]
    fewest = next(iter(record["table"]))
    rows = [row(experts, found, experts == fewest) for experts, found in record["table"].items()]
    heads = ["training step: E", "parameters", "step, ms", f"beside E = {fewest}", "peak resident"]
    about = (f"Equal work a token: {shape['train.micro_batch']} × {shape['train.sequence']} tokens in "
             f"{record['precision']}, {shape['model.layers']} layers, d {shape['model.d_model']}, "
             f"F {shape['model.d_expert']}, k {shape['model.experts_per_token']}. The whole step: all weights are "
             "read, all gradients written and all weights updated, and these grow with E. Medians over the rounds, each E "
             "beside the fewest experts in the same round, and the lowest and highest round.")
    return section(heads, rows, [about, source(record)])


def step_profiles(records):
    """One column a record, those of a precision side by side."""
    columns = sorted(records, key=lambda record: record["precision"])  # stable: as they were measured
    heads = ["share of cores × time in a training step of moe-micro",
             *(f"{record['label']} {record['precision']}".strip() for record in columns)]
    rows = [[group, *(f"{record['groups'][group]:.1%}" for record in columns)] for group in columns[0]["groups"]]
    rows += [[name, *(shown(record) for record in columns)] for name, shown in {
        "step, ms": lambda r: f"{r['step_ms']:,.0f}",
        "GFLOP of a step": lambda r: f"{r['gflop']:,.0f}",
        "LibTorch's product, GFLOP/s": lambda r: f"{r['gemm_gflops']:,.0f}",
        "whole step beside it": lambda r: f"{r['step_of_gemm']:.0%}",
        "products beside it": lambda r: f"{r['products_of_gemm']:.0%}"}.items()]
    about = ("By samples of all threads; what a compiler inlines counts for its caller, and a library's product with "
             "the laying out of its operands. FLOPs are the model's own arithmetic, not what attention's backward "
             "computes again: the products' rate is at least that. LibTorch's product is one of 1024 × 1024 matrices "
             "of the same type on all cores, at the end of the same process. Where it is slow, a share says more of it "
             "than of us: on AMD's CPUs its fp32 product is MKL's without AVX-512, so that ours come to more than 100 "
             "%; that of bf16 is oneDNN's with the CPU's own instructions.")
    sources = [f"{one['label']}: {source(one)}" if one["label"] else source(one) for one in records]
    return section(heads, rows, [about, *dict.fromkeys(sources)])


ABOUT = ("moelab beside other people's code on the same weights, tokens and machine, in turns; what all sides compute is compared before "
         "anything is timed. A ratio of tokens/s above 1 × means that moelab is faster; a ratio of times above 1 ×, that it is slower.")


def part(title, tables):
    """The first of these tables, the others folded; nothing without any."""
    latest, *earlier = tables or [[]]
    older = [Fold(f"Measured before: {len(earlier)}", list(itertools.chain(*earlier)))] if earlier else []
    return [Heading(2, title), *latest, *older] if tables else []


def steps_by_machine(records):
    """Training steps of each machine, kept to a class of CPU or not, in the precision of the fastest opponent: the latest first."""
    found = {}
    for record in reversed(of_kind(records, "mixtral_step")):
        machine = re.sub(r" \(.*?\)(?=,)|, torch.*", "", record["machine"])
        found.setdefault((machine, record["best_peer"].split()[-1]), []).append(mixtral_step(record))
    return [part(f"A training step: {machine}, {precision}", tables) for (machine, precision), tables in found.items()]


def report(records):
    """All tables: of each kind of record the latest, and folded those before it."""
    profiles = of_kind(records, "step_profile")
    parts = [*steps_by_machine(records),
             part("One MoE layer", list(map(moe_layers, reversed(by_source(of_kind(records, "moe_layer")))))),
             part("A layer with more experts", list(map(layer_sweep, reversed(by_source(of_kind(records, "moe_layer_sweep")))))),
             part("A training step with more experts", list(map(expert_sweep, reversed(of_kind(records, "expert_sweep"))))),
             part("Where the time of a step goes", [step_profiles(profiles)] if profiles else [])]
    return [Heading(1, "Beside other people's code"), Text(ABOUT), *itertools.chain(*parts)]
