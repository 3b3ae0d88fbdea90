"""The three cards that a report opens with, and its contents."""
import itertools
import math

from .byte_units import human_bytes
from .claims import page as claims
from .claims.stated import Technique
from .document import Fold, Heading, Items, Table, Text, slug
from .figures import LEAST_ROUNDS, Case, Sweep, measured
from .format import loss_change, rounds_of, speed_times, times
from .sidecars import Fit, Fits
from .sweep_parts import of_families


def contents(blocks: list) -> Items:
    """A link to each part."""
    return Items([f"[{block.text}](#{slug(block.text)})" for block in blocks if isinstance(block, Heading) and block.level == 2])


# Your card.

CARDS = ("Of the stacks of techniques that were tried, the one that takes the largest batch. peak: of tensors with the settings "
         "above, by a dry run for CUDA, with its share of the card. largest batch: train.micro_batch, by such dry runs. tokens/s: on that "
         "card, where it was measured. `moelab plan --preset gpu-8gb` looks for the fastest settings of a card.")


def chosen(fits: list[Fits]) -> list[Fit]:
    """For each card the stack that takes the largest batch."""
    best: dict[tuple, Fit] = {}
    for fit in (fit for one in fits for fit in one.rows):
        known = best.get((fit.card, fit.limit))
        if known is None or fit.largest_batch > known.largest_batch:
            best[fit.card, fit.limit] = fit
    return sorted(best.values(), key=lambda fit: fit.limit)


def tokens_text(fit: Fit, sweeps: list[Sweep]) -> str:
    """Tokens a second of this model on this card, where a sweep measured them."""
    runs = [case for sweep in sweeps if sweep.machine.get("gpu") == fit.card and sweep.model == fit.model
            for case in measured(sweep) if case.name == fit.stack and len(case.runs) >= LEAST_ROUNDS]
    return f"{runs[0].speed.value:,.0f}" if runs else "not measured"


def card_row(fit: Fit, sweeps: list[Sweep]) -> list[str]:
    peak = "–" if math.isnan(fit.peak) else f"{human_bytes(fit.peak)} ({fit.peak / fit.limit:.0%})"
    return [fit.card, human_bytes(fit.limit), peak, f"{fit.largest_batch:,.0f}", tokens_text(fit, sweeps)]


def your_card(fits: list[Fits], techniques: list[Technique], sweeps: list[Sweep]) -> list:
    """A table for each stack that is the best of some cards."""
    settings = {row.name: row.settings for row in techniques}
    blocks = []
    for (stack, model), group in itertools.groupby(chosen(fits), lambda fit: (fit.stack, fit.model)):
        copied = " ".join(f"{key}={value}" for key, value in settings.get(stack, {}).items())
        blocks += [Text(f"`{stack}`, to copy: `{' '.join(filter(None, ['moelab train --config', model, copied]))}`"),
                   Table(CARDS, ["card", "memory", "peak", "largest batch", "tokens/s"],
                         [card_row(fit, sweeps) for fit in group])]
    return [Heading(2, "Your card"), *blocks] if blocks else []


# What each technique costs.


def cost_row(case: Case) -> list[str]:
    return [f"`{case.name}`", times(case.peak_ratio), speed_times(case), loss_change(case), rounds_of(case)]


def costs(sweeps: list[Sweep]) -> list:
    """Of the sweep with the most rounds, every technique alone."""
    singles = [of_families(sweep, "single") for sweep in sweeps]
    known = [sweep for sweep in singles if any(case.pairs for case in sweep.cases)]
    if not known:
        return []
    best = max(known, key=lambda sweep: sum(len(case.pairs) for case in sweep.cases))
    rows = sorted((case for case in best.cases if case.pairs), key=lambda case: case.peak_ratio.value)
    caption = (f"{best.title}: peak memory and speed against the baseline of the same round, the smallest first, with 95 % intervals of "
               "speeds of several rounds. change: of the loss after a few steps, which says nothing of a long run.")
    return [Heading(2, "What each technique costs"),
            Table(caption, ["technique", "memory", "speed", "change", "rounds"], [cost_row(case) for case in rows])]


# The claims.


def claims_card(judged: claims.Judged | None, linked: bool) -> list:
    """The claims of the guides with their verdicts, where they are judged here. linked: that page lies beside."""
    if judged is None:
        return []
    where = f"[{claims.CLAIMS_PAGE}]({claims.CLAIMS_PAGE})" if linked else f"`{claims.CLAIMS_PAGE}`, which `scripts/claims.py` makes,"
    return [Heading(2, "What guides claim"), Text(f"{claims.summary(judged.rows)} {where} has each in a line, with its evidence."),
            Fold("The claims, a line each", [*(Text(one) for one in claims.RULE), claims.by_technique(judged.rows, judged.techniques),
                                             *claims.tables(judged.rows, judged.guides, 3)], elsewhere=True)]
