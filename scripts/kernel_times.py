#!/usr/bin/env python3
"""How long an MoE layer's forward and backward should take on a GPU: arithmetic, never measured.

A product takes its number of operations, divided by a share of the GPU's peak. Any other kernel takes its bytes, divided by a
share of the memory's rate. Its bytes are the least that the operator can move, times the ratio that the emulated GPU counted
(results/kernel-traffic.jsonl). Datasheet rates and shares are in kernel_times.yaml.

example: scripts/kernel_times.py results/kernel-times.md
"""
import argparse
import dataclasses
import json
import pathlib

import yaml
from gpu_goals import SHAPE

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAFFIC = ROOT / "results/kernel-traffic.jsonl"
DATA = yaml.safe_load((ROOT / "scripts/kernel_times.yaml").read_text(encoding="utf-8"))
UNITS = {"bytes": "bytes", "bf16": "operations in bf16"}


@dataclasses.dataclass(frozen=True)
class Stage:
    """Work of the layer. `planned`: what would be left with the paths that the page names; None: the same. `spared_by`: variants of
    the products that do without it, or do it on the way."""
    name: str
    kind: str  # of UNITS
    work: str  # in the terms of SHAPE, and R = T k rows
    operator: str | None = None  # of the counted traffic
    planned: str | None = None
    spared_by: tuple[str, ...] = ()

    def today(self, gpu: dict) -> str:
        """The work that a GPU has."""
        return "0" if gpu["products"] in self.spared_by else self.work


STAGES = [
    Stage("router, products of three bf16 parts", "bf16", "3*6*T*d*E"),
    Stage("router, x read twice and its gradient written", "bytes", "3*2*T*d"),
    Stage("router, parts split and added", "bytes", "118*T*E"),
    Stage("router, choices", "bytes", "4*T*E + 8*T*k", "router_forward"),
    Stage("router, gradient of logits", "bytes", "8*T*E + 8*T*k", "router_backward"),
    Stage("routes grouped by expert", "bytes", "8*R", "dropless_routes"),
    Stage("routes in the order of rows, twice", "bytes", "2*8*R", "invert_routes"),
    Stage("rows gathered: x, its gradient's, x again", "bytes", "3*2*(R*d + R*d)", "gather_rows", planned="0",
          spared_by=("gathered", "hopper")),
    Stage("up and gate projection", "bf16", "4*R*d*F"),
    Stage("SwiGLU", "bytes", "2*(2*R*F + R*F)", "swiglu", planned="0", spared_by=("hopper",)),
    Stage("down projection", "bf16", "2*R*d*F"),
    Stage("rows combined", "bytes", "2*(R*d + T*d) + 8*R", "combine_rows"),
    Stage("gradient of the activation", "bf16", "2*R*d*F"),
    Stage("SwiGLU, backward", "bytes", "2*(4*R*F + 2*R*F)", "swiglu_backward", planned="0"),
    Stage("gradient of the down projection", "bf16", "2*R*d*F"),
    Stage("gradient of the up and gate projection", "bf16", "4*R*d*F"),
    Stage("gradient of the rows", "bf16", "4*R*d*F"),
    Stage("gradients of rows combined", "bytes", "2*(R*d + T*d) + 4*R", "combine_rows"),
    Stage("gradients of x added", "bytes", "2*3*T*d"),
]  # fmt: skip


def shape() -> dict[str, int]:
    return SHAPE | {"R": SHAPE["T"] * SHAPE["k"]}


def amount(formula: str) -> int:
    """A formula of a stage with the shape's numbers."""
    return eval(formula, {"__builtins__": {}}, shape())


def milliseconds(stage: Stage, formula: str, gpu: dict, counted: dict[str, dict]) -> float:
    """`counted`: the operators' traffic beside their least."""
    more = counted[stage.operator]["memory"] if stage.operator else 1
    rate = {"bytes": gpu["terabytes_a_second"] * gpu["share_of_memory"], "bf16": gpu["bf16_teraflops"] * gpu["share_of_products"]}[stage.kind]
    return amount(formula) * more / (rate * 1e12) * 1e3


def times(gpu: dict, counted: dict[str, dict]) -> list[tuple[float, float]]:
    """Of each stage, in milliseconds: as it is, and as planned."""
    return [(milliseconds(stage, stage.today(gpu), gpu, counted),
             milliseconds(stage, stage.work if stage.planned is None else stage.planned, gpu, counted)) for stage in STAGES]


def page(counted: dict[str, dict]) -> str:
    found = {name: times(gpu, counted) for name, gpu in DATA["gpus"].items()}
    operations = sum(amount(stage.work) for stage in STAGES if stage.kind == "bf16" and "F" in stage.work)  # the experts'
    commits = ", ".join(sorted({one["commit"] for one in counted.values()}))
    axes = ", ".join(f"{axis} = {value:,}" for axis, value in shape().items())

    def of(products: str) -> str:
        return " and ".join(name for name, gpu in DATA["gpus"].items() if gpu["products"] == products)

    lines = ["# How long an MoE layer should take on a GPU", "",
             "**Predicted.** An H200 took 19.3 ms, with LibTorch's products instead of ours ([page](nvidia-h200/page.md)). Forward "
             f"and backward of one layer in bf16, without dropped tokens, at {axes} (T tokens, d "
             "width, F width of an expert, E experts, k experts a token, R rows). A product takes its number of operations, divided by a "
             "share of the GPU's peak. Every other kernel takes its bytes, divided by a share of the memory's rate. Its bytes are the least "
             "that the operator can move, times the ratio that the emulated GPU counted ([kernel-traffic.md](kernel-traffic.md)). "
             "Launches, waits, and instructions that are slower than memory are not in it. Made by "
             f"`scripts/kernel_times.py results/kernel-times.md` from counts of commit {commits}.", "",
             f"The experts' products are taken to be our own kernels, which take rows from where they lie: `gathered` on {of('gathered')}, "
             f"`hopper`, which computes SwiGLU beside the up-projection, on {of('hopper')}. On the H200 "
             "`hopper` was right, and at 256 rows an expert slower than LibTorch's product. A GPU uses them only "
             "if it finds them right and fastest; otherwise it copies rows in the experts' order for LibTorch's products. "
             "Planned, and not written yet: SwiGLU's gradient inside the product before it, and both on other GPUs than Hopper.", "",
             "| GPU | today | TFLOP/s | as planned | TFLOP/s |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, stages in found.items():
        cells = [f"{total:.1f} ms | {operations / total / 1e9:.0f}" for total in map(sum, zip(*stages))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "## Milliseconds of each stage today", "",
              f"| stage | work | counted | {' | '.join(found)} |", f"| --- | --- | ---: | {' | '.join('---:' for _ in found)} |"]
    for k, stage in enumerate(STAGES):
        if amount(stage.work):
            more = f"{counted[stage.operator]['memory']:.2f}" if stage.operator else "–"
            lines.append(f"| {stage.name} | {stage.work.replace('*', ' ')} {UNITS[stage.kind]} | {more} | "
                         f"{' | '.join(f'{stages[k][0]:.2f}' for stages in found.values())} |")
    lines += ["", "## The rates", "",
              "| GPU | memory, TB/s | share reached | bf16, TFLOP/s | share reached |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, gpu in DATA["gpus"].items():
        lines.append(f"| {name} | {gpu['terabytes_a_second']} | {gpu['share_of_memory']} | {gpu['bf16_teraflops']} | "
                     f"{gpu['share_of_products']} |")
    return "\n".join([*lines, "", DATA["about"].strip()]) + "\n"


def counts() -> dict[str, dict]:
    """The last record of each operator."""
    records = map(json.loads, TRAFFIC.read_text(encoding="utf-8").splitlines())
    return {record["operator"]: record for record in records}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=pathlib.Path, help="the .md file to write")
    parser.parse_args().page.write_text(page(counts()), encoding="utf-8")


if __name__ == "__main__":
    main()
