#!/usr/bin/env python3
"""Tables of what bench/peers recorded, as Markdown: training steps beside transformers' Mixtral, MoE layers beside
other people's.

example: bench/peers/table.py results/epyc-2-cores/peers.jsonl > results/epyc-2-cores/peers.md
"""
import argparse
import json
import shlex
from pathlib import Path


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "| :-- |" + " --: |" * (len(heads) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def source(record):
    return f"{record['machine']}; commit {record['commit'][:10]}, {record['date'][:10]}: `{shlex.join(record['command'])}`"


def mixtral_step(record):
    """Medians over all steps of all rounds but the first ones of each."""
    best = record["best_peer"]

    def row(side, found):
        speed = found["tokens_per_second"] / record["table"][best]["tokens_per_second"]
        return [side, f"{found['tokens_per_second']:,.0f}", f"{found['slowest']:,.0f} to {found['fastest']:,.0f}",
                f"{speed:.2f} ×", f"{found['peak_rss'] / 2**20:,.0f} MiB"]

    rows = [row(*item) for item in sorted(record["table"].items(), key=lambda item: -item[1]["tokens_per_second"])]
    heads = ["training step of moe-micro", "tokens/s", "slowest to fastest", f"beside {best}", "peak resident"]
    return f"{table(heads, rows)}\n\n{source(record)}"


def moe_layers(records):
    """Milliseconds forward and backward, and how many times as long as moelab the others take."""
    sides = sorted({side for record in records for side in record["median"] if side != "moelab"})

    def row(record):
        ours = record["median"]["moelab"]
        times = [f"{record['median'][s]:,.0f} ({record['median'][s] / ours:.2f} ×)" if s in record["median"] else "–"
                 for s in sides]
        return ["{dtype} {T}, {d}, {F}, {E}, {k}".format(**record), f"{ours:,.0f}", *times,
                f"{record['gflops']['moelab'] / record['gemm_gflops']:.0%}"]

    heads = ["MoE layer: T, d, F, E, k", "moelab, ms", *(f"{side}, ms" for side in sides), "rate beside a product's"]
    return f"{table(heads, [row(record) for record in records])}\n\n{source(records[0])}"


def report(records):
    layers = [r for r in records if r["kind"] == "moe_layer" and r["status"] == "ok"]
    parts = [mixtral_step(r) for r in records if r["kind"] == "mixtral_step"]
    return "\n\n".join(parts + ([moe_layers(layers)] if layers else [])) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="JSON lines, as --out of hf_mixtral.py and hf_moe_layer.py appends")
    args = parser.parse_args()
    try:
        records = [json.loads(line) for line in args.records.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        parser.error(f"{args.records}: {error}")
    print(report(records), end="")


if __name__ == "__main__":
    main()
