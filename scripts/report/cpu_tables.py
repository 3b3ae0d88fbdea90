"""What bench/cpu_classes.py and bench/busy_machine.py recorded, as blocks of a document: moelab on each class of CPU that
a machine can play, beside the fastest PyTorch model there, and on a busy machine."""
import re
import statistics

from .cpu_classes import cpu_classes
from .document import Heading, Table, Text
from .peer_tables import source
from .step_figures import product_ratios


def class_of(record):
    """The class of CPU that a record of bench/peers was measured on: its machine names it, or where it was kept to a
    lesser one, the limit of oneDNN."""
    limit = re.search(r"ONEDNN_MAX_CPU_ISA=(\w+)", record["machine"])
    own = re.search(r"class ([\w-]+)", record["machine"])
    if limit:
        return next((one.name for one in cpu_classes().values() if one.limits.get("ONEDNN_MAX_CPU_ISA") == limit[1]), None)
    return next((one.name for one in cpu_classes().values() if own and one.title == own[1]), None)


def latest(records, kind):
    return next((record for record in reversed(records) if record["kind"] == kind), None)


def peer_cells(record):
    """Our fastest precision beside the fastest opponent, memory after warm-up, and our fp32 product's rate."""
    if record is None:
        return ["", "", "", ""]
    return [f"{record['ours']} {record['speed']:.2f} ×", record["best_peer"], f"{record['memory']:.2f} ×",
            f"{statistics.median(product_ratios(record['products'])):.2f}"]


def classes(record, peers):
    """One row for each class."""
    of_class = {class_of(one): one for one in peers if one["kind"] == "mixtral_step"}

    def row(name, outcome):
        rates = record["tokens_per_second"].get(name, {})
        return [cpu_classes()[name].title, outcome, *(f"{rates[p]:,.0f}" if p in rates else "" for p in ("fp32", "bf16", "fp16")),
                *peer_cells(of_class.get(name))]

    heads = ["class", "tests of the kernels", "fp32, tokens/s", "bf16, tokens/s", "fp16, tokens/s",
             "beside the fastest opponent", "opponent", "memory", "r"]
    about = ("Kernels, tests and program are built for each class with warnings as errors, and LibTorch, oneDNN and "
             "MKL are kept to it. Speed is of training moe-micro: medians over rounds that take turns. Opponents: "
             "transformers' Mixtral and a hand-written PyTorch model, plain and compiled; memory is the peak after "
             "warm-up; r is the rate of our fp32 product over LibTorch's (peers.md).")
    return [Table("", heads, [row(*item) for item in record["tests"].items()], ("tests of the kernels", "opponent")), Text(about),
            Text(source(record))]


def busy(records):
    """One row for each model: tokens/s alone and beside busy processes."""
    def row(record):
        rates, ratios = record["tokens_per_second"], record["ratios"]
        return [record["model"], *(f"{rates[name]:,.0f}" for name in ("alone", "busy", "busy, spinning")),
                *(f"{ratios[name]:.2f} ×" for name in ("busy beside alone", "busy beside spinning", "alone beside spinning"))]

    heads = ["model", "alone, tokens/s", "one busy process a core", "the same, libgomp's own waits", "busy beside alone",
             "busy beside libgomp's waits", "alone beside libgomp's waits"]
    rounds, pairs = (len(records[0]["runs"][name]) for name in ("alone", "pairs"))
    about = (f"Medians of {rounds} rounds that take turns; the last column is the median of {pairs} pairs. libgomp's own "
             "waits spin 300,000 times before a thread sleeps.")
    return [Table("", heads, [row(record) for record in records]), Text(about), *map(Text, map(source, records))]


def report(records, peers):
    """Blocks of the latest record of all classes, and of the latest of each model on a busy machine."""
    of_classes = latest(records, "cpu_classes")
    models = {record["model"]: record for record in records if record["kind"] == "busy_machine"}
    return [Heading(1, "Classes of CPU, and a busy machine"),
            *([Heading(2, "Each class of CPU"), *classes(of_classes, peers)] if of_classes else []),
            *([Heading(2, "Beside busy processes"), *busy(list(models.values()))] if models else [])]
