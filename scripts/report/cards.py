"""The three cards that a report opens with, and its contents."""
import itertools
import math
import re

from . import quality
from .byte_units import human_bytes
from .claims import page as claims
from .claims.stated import Technique
from .document import Fold, Heading, Items, Table, Text, slug
from .figures import LEAST_ROUNDS, Case, Sweep, measured
from .format import loss_change, rounds_of, speed_times, times
from .sidecars import CardPlan, Fit, Fits, Sidecars
from .sweep_parts import of_families


def contents(blocks: list) -> Items:
    """A link to each part."""
    return Items([f"[{block.text}](#{slug(block.text)})" for block in blocks if isinstance(block, Heading) and block.level == 2])


# Your card.

BEST = ("The fastest way to train that is known for each card: measured on it where a sweep did, else what `moelab plan` predicts. Other "
        "models and settings: `moelab plan --preset gpu-8gb`.")
STACK = "What this stack of techniques allows on each card, by dry runs for CUDA."
COLUMNS = ("needs: what CUDA's allocator is predicted to need, with its share of the card, or the measured peak. known by: where the speed "
           "comes from. peak: of tensors with the settings above, with its share of the card. largest batch: train.micro_batch.")
NOT_MEASURED = "not measured"

VARIANTS = {"ti", "super", "laptop", "max"}  # a card's name with one of these after it is another card's


def words_of(name: str) -> list[str]:
    """Lower case; a size is one word: "80 GB" is 80gb."""
    return re.findall(r"[a-z0-9]+", re.sub(r"(\d+) *gb\b", r" \1gb ", name.lower()))


def is_card(gpu: str | None, card: str) -> bool:
    """Whether the GPU that CUDA names, such as "NVIDIA H100 80GB HBM3", is the card that presets name "H100 80 GB"."""
    found, wanted = words_of(gpu or ""), words_of(card)
    return bool(wanted) and set(wanted) <= set(found) and not VARIANTS & (set(found) - set(wanted))


def measured_on(card: str, model: str, sweeps: list[Sweep]) -> list[Case]:
    """The cases of this model that a sweep on this card has measured in more than one round."""
    return [case for sweep in sweeps if is_card(sweep.machine.get("gpu"), card) and sweep.model == model
            for case in measured(sweep) if len(case.runs) >= LEAST_ROUNDS]


def best_row(plan: CardPlan, sweeps: list[Sweep]) -> list[str]:
    fitting = [case for case in measured_on(plan.card, plan.model, sweeps) if case.peak.value <= plan.limit]
    best = max(fitting, key=lambda case: case.speed.value, default=None)
    needs, speed, known, command = ((best.peak.value, best.speed.value, "measured", best.command) if best else
                                    (plan.needed, plan.speed, plan.times, plan.command))
    return [plan.card, human_bytes(plan.limit), f"`{plan.model}`", f"{human_bytes(needs)} ({needs / plan.limit:.0%})", f"{speed:,.0f}",
            known, f"`{command}`"]


def chosen(fits: list[Fits]) -> list[Fit]:
    """For each card and model the stack that allows the largest batch."""
    best: dict[tuple, Fit] = {}
    for fit in (fit for one in fits for fit in one.rows):
        known = best.get((fit.model, fit.card, fit.limit))
        if known is None or fit.largest_batch > known.largest_batch:
            best[fit.model, fit.card, fit.limit] = fit
    return sorted(best.values(), key=lambda fit: (fit.model, fit.limit))


def tokens_text(fit: Fit, sweeps: list[Sweep]) -> str:
    """Tokens a second of this model on this card, where a sweep measured them."""
    runs = [case for case in measured_on(fit.card, fit.model, sweeps) if case.name == fit.stack]
    return f"{runs[0].speed.value:,.0f}" if runs else NOT_MEASURED


def card_row(fit: Fit, sweeps: list[Sweep]) -> list[str]:
    peak = "–" if math.isnan(fit.peak) else f"{human_bytes(fit.peak)} ({fit.peak / fit.limit:.0%})"
    return [fit.card, human_bytes(fit.limit), peak, f"{fit.largest_batch:,.0f}", tokens_text(fit, sweeps)]


def stack_table(fits: list[Fit], sweeps: list[Sweep]) -> Table:
    """Without a column of speeds where none was measured."""
    headings, rows = ["card", "memory", "peak", "largest batch", "tokens/s"], [card_row(fit, sweeps) for fit in fits]
    if all(row[-1] == NOT_MEASURED for row in rows):
        return Table(f"{STACK} Its speed was measured on none of them.", headings[:-1], [row[:-1] for row in rows])
    return Table(STACK, headings, rows)


def your_card(beside: Sidecars, techniques: list[Technique], sweeps: list[Sweep]) -> list:
    """The best that is known for each card; then a table for each stack that allows the largest batch on some cards."""
    settings = {row.name: row.settings for row in techniques}
    blocks = []
    if beside.card_plans:
        blocks.append(Table(BEST, ["card", "memory", "model", "needs", "tokens/s", "known by", "to copy"],
                            [best_row(plan, sweeps) for plan in sorted(beside.card_plans, key=lambda plan: plan.limit)],
                            wordy=("model", "known by", "to copy")))
    for (stack, model), group in itertools.groupby(chosen(beside.fits), lambda fit: (fit.stack, fit.model)):
        copied = " ".join(f"{key}={value}" for key, value in settings.get(stack, {}).items())
        command = " ".join(filter(None, ["moelab train --config", model, copied, "data.path=FOLDER"]))
        blocks += [Text(f"`{stack}`, to copy: `{command}`"),
                   stack_table(list(group), sweeps)]
    return [Heading(2, "Your card"), *blocks, Fold("What the columns mean", [Text(COLUMNS)])] if blocks else []


# What each technique costs.


def cost_row(case: Case, losses: dict[str, str]) -> list[str]:
    return [f"`{case.name}`", times(case.peak_ratio), speed_times(case), loss_change(case),
            *([losses.get(case.name, NOT_MEASURED)] if losses else []), rounds_of(case)]


def costs(sweeps: list[Sweep], effects: list[quality.Effect]) -> list:
    """Of the sweep with the most rounds, every technique alone."""
    singles = [of_families(sweep, "single") for sweep in sweeps]
    known = [sweep for sweep in singles if any(case.pairs for case in sweep.cases)]
    if not known:
        return []
    best = max(known, key=lambda sweep: sum(len(case.pairs) for case in sweep.cases))
    rows = sorted((case for case in best.cases if case.pairs), key=lambda case: case.peak_ratio.value)
    shown = {case.name for case in rows}
    losses = {effect.case.name: quality.told(effect) for effect in effects if effect.case.name in shown}
    caption = (f"{best.title}: memory and speed beside the baseline of the same round, the smallest first, with 95 % intervals. change: of "
               f"the loss after a few steps.{' final loss: of long runs, below.' if losses else ''}")
    return [Heading(2, "What each technique costs"),
            Table(caption, ["technique", "memory", "speed", "change", *(["final loss"] if losses else []), "rounds"],
                  [cost_row(case, losses) for case in rows])]


# The claims.


def claims_card(judged: claims.Judged | None, linked: bool) -> list:
    """The claims of the guides with their verdicts, where they are judged here. linked: that page lies beside."""
    if judged is None:
        return []
    where = f"[{claims.CLAIMS_PAGE}]({claims.CLAIMS_PAGE})" if linked else f"`{claims.CLAIMS_PAGE}`, which `scripts/claims.py` makes,"
    return [Heading(2, "What guides claim"), Text(f"{claims.summary(judged.rows)} {where} has each in a line, with its evidence."),
            Fold("The claims, a line each", [*(Text(one) for one in claims.RULE), claims.by_technique(judged.rows, judged.techniques),
                                             *claims.tables(judged.rows, judged.guides, 3)], elsewhere=True)]
