"""The three cards that a report opens with, and its contents."""
import dataclasses
import itertools
import math
import pathlib
import re

from . import quality
from .byte_units import human_bytes
from .claims import page as claims
from .claims.stated import Technique
from .document import Commands, Fold, Heading, Items, Table, Text, slug
from .figures import LEAST_ROUNDS, Case, Sweep, flat, measured
from .format import CHANGE_WORDS, loss_change, machine_text, rounds_of, speed_times, times
from .sidecars import CardPlan, Fit, Fits, Sidecars
from .sweep_part_pages import TAKEN
from .sweep_parts import of_families


@dataclasses.dataclass(frozen=True)
class Links:
    """What a report links to. "": it is not there."""

    claims: bool  # the page of claims lies beside it
    techniques: str  # docs/techniques.md
    cards: str  # the card "Your card" of a report beside it


def contents(blocks: list) -> Items:
    """A link to each part."""
    return Items([f"[{block.text}](#{slug(block.text)})" for block in blocks if isinstance(block, Heading) and block.level == 2])


# Your card.

PROGRAM = "build/quick/bin/moelab"  # as the quick start builds it
BEST = (f"The fastest way to train that is known for each card: measured by a sweep of this model on it, else predicted, as by `{PROGRAM} "
        "plan --preset gpu-8gb --model moe-nano`.")
STACK = "What this stack of techniques allows on each card, by dry runs for CUDA."
COLUMNS = (f"Memory, with its share of the card: taken: {TAKEN}; reserved: the same without CUDA's context, or the measured peak of tensors. "
           "tokens/s of another model, or of longer rows, are other work; a row's command says how long. known by: where the speed comes "
           "from. largest batch: train.micro_batch.")
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


def fastest(plan: CardPlan, sweeps: list[Sweep]) -> Case | None:
    """The fastest measured case that fits the card."""
    fitting = [case for case in measured_on(plan.card, plan.model, sweeps) if case.peak.value <= plan.limit]
    return max(fitting, key=lambda case: case.speed.value, default=None)


def best_row(plan: CardPlan, best: Case | None) -> list[str]:
    needs, speed, known = (best.peak.value, best.speed.value, "measured") if best else (plan.needed, plan.speed, plan.times)
    return [plan.card, human_bytes(plan.limit), f"`{plan.model}`", f"{human_bytes(needs)} ({needs / plan.limit:.0%})", f"{speed:,.0f}", known]


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
    taken = "–" if math.isnan(fit.taken) else f"{human_bytes(fit.taken)} ({fit.taken / fit.limit:.0%})"
    return [fit.card, human_bytes(fit.limit), taken, f"{fit.largest_batch:,.0f}", tokens_text(fit, sweeps)]


def stack_table(fits: list[Fit], sweeps: list[Sweep]) -> Table:
    """Without a column of speeds where none was measured."""
    headings, rows = ["card", "memory", "taken", "largest batch", "tokens/s"], [card_row(fit, sweeps) for fit in fits]
    if all(row[-1] == NOT_MEASURED for row in rows):
        return Table(f"{STACK} Its speed was measured on none of them.", headings[:-1], [row[:-1] for row in rows])
    return Table(STACK, headings, rows)


def plan_blocks(plans: list[CardPlan], sweeps: list[Sweep]) -> list:
    """The best that is known for each card, and its commands, which are too long for a row on a phone."""
    known = [(plan, fastest(plan, sweeps)) for plan in sorted(plans, key=lambda plan: plan.limit)]
    headings = ["card", "memory", "model", "reserved", "tokens/s", "known by"]
    rows, caption = [best_row(*one) for one in known], BEST
    if len(how := {row[-1] for row in rows}) == 1:
        headings, rows, caption = headings[:-1], [row[:-1] for row in rows], f"{BEST} Each speed here: {how.pop()}."
    return [Table(caption, headings, rows, wordy=("model", "known by")),
            Commands([command_of(*one) for one in known], "The command of each row, to copy")]


def command_of(plan: CardPlan, best: Case | None) -> str:
    """With what it trains; a plan's is of the program that the quick start builds."""
    if best:
        return f"# {plan.card}, {plan.model}\n{best.command}"
    return (f"# {plan.card}, {plan.model}, micro-batches of {plan.micro_batch} × {plan.sequence:,} tokens\n"
            f"{PROGRAM} {plan.command.removeprefix('moelab ')}")


def your_card(beside: Sidecars, techniques: list[Technique], sweeps: list[Sweep], links: Links) -> list:
    """The best that is known for each card; then a table for each stack that allows the largest batch on some cards."""
    settings = {row.name: row.settings for row in techniques}
    blocks = plan_blocks(beside.card_plans, sweeps) if beside.card_plans else []
    for (stack, model), group in itertools.groupby(chosen(beside.fits), lambda fit: (fit.stack, fit.model)):
        copied = " ".join(f"{key}={value}" for key, value in settings.get(stack, {}).items())
        command = " ".join(filter(None, [f"{PROGRAM} train --config", model, copied, "data.path=FOLDER"]))
        blocks += [Text(f"`{stack}`, to copy: `{command}`"),
                   stack_table(list(group), sweeps)]
    if blocks:
        return [Heading(2, "Your card"), *blocks, Fold("What the columns mean", [Text(COLUMNS)])]
    where = f"What fits each GPU, and the fastest way to train that is known for it: [the report that has it]({links.cards})."
    return [Heading(2, "Your card"), Text(where)] if links.cards else []


# What each technique costs.

KEYS = ("model", "precision.compute", "attention.kernel", "model.dispatch", "train.micro_batch", "train.sequence")  # that tell baselines apart


def baseline_of(case: Case) -> dict[str, str]:
    """The settings of what it is held against, and the model."""
    base = case.pairs[0][1]
    return {"model": base.model, **flat(base.settings)}


def beside_text(case: Case, usual: dict[str, str]) -> str:
    """In what the baseline of a case differs from the usual one."""
    own = baseline_of(case)
    return " ".join(f"`{key}={value}`" for key, value in own.items() if usual.get(key) != value) or "the usual"


def most_measured(sweeps: list[Sweep]) -> list[Case]:
    """Each technique alone, of the sweep in which it ran most, of two alike the first; the smallest first."""
    singles = [case for sweep in sweeps for case in of_families(sweep, "single").cases if case.pairs]
    best = {case.name: case for case in sorted(reversed(singles), key=lambda case: len(case.pairs))}
    return sorted(best.values(), key=lambda case: case.peak_ratio.value)


def usual_baseline(cases: list[Case]) -> dict[str, str]:
    """That of most cases."""
    texts = [str(baseline_of(case)) for case in cases]
    return baseline_of(max(cases, key=lambda case: texts.count(str(baseline_of(case)))))


def what_it_is(technique: Technique, techniques: list[Technique]) -> str:
    """Its title, and the others that a single one needs."""
    if technique.parts:
        return technique.title
    needs = [f"`{one.name}`" for one in techniques if one.settings and one.settings.items() < technique.settings.items()]
    return f"{technique.title} (with {', '.join(needs)})" if needs else technique.title


def cost_columns(cases: list[Case], effects: list[quality.Effect], techniques: list[Technique]) -> dict[str, list[str]]:
    """Those that are known of a technique at least, by heading."""
    titles = {one.name: what_it_is(one, techniques) for one in techniques}
    losses = {name: quality.told(effect) for name, effect in quality.about(cases, effects).items()}
    usual = usual_baseline(cases)
    columns = {"technique": [f"`{case.name}`" for case in cases], "memory": [times(case.peak_ratio) for case in cases],
               "speed": list(map(speed_times, cases)), "change": list(map(loss_change, cases)),
               "final loss": [losses.get(case.name, NOT_MEASURED) for case in cases], "rounds": list(map(rounds_of, cases)),
               "baseline": [beside_text(case, usual) for case in cases], "what it is": [titles.get(case.name, "") for case in cases]}
    empty = {"final loss": NOT_MEASURED, "baseline": "the usual", "what it is": ""}
    return {heading: cells for heading, cells in columns.items() if set(cells) != {empty.get(heading)}}


def costs(sweeps: list[Sweep], effects: list[quality.Effect], techniques: list[Technique], links: Links) -> list:
    """Of all sweeps, every technique alone."""
    cases = most_measured(sweeps)
    if not cases:
        return []
    columns = cost_columns(cases, effects, techniques)
    usual = usual_baseline(cases)
    models = ", ".join(dict.fromkeys(f"`{pathlib.PurePath(case.any.model).stem}`" for case in cases))
    caption = f"{models}: memory and speed beside the baseline of the same round, the smallest first, with 95 % intervals."
    machines = {machine_text(sweep.machine): sweep.machine for sweep in sweeps}
    named = " ".join(f"`{key}={usual[key]}`" for key in KEYS if key in usual)
    words = [f"Speeds are of {' and '.join(machines)}" + ("." if any(one.get("gpu") for one in machines.values()) else
                                                          "; a GPU's ratios are others, above all for what is moved off the device."),
             f"change: of the loss after a few steps, in nats a token; {CHANGE_WORDS}",
             *([f"final loss: of long runs of {quality.models(effects)}, [below](#{slug(quality.TITLE)})."] if "final loss" in columns else []),
             *([f"baseline: in what the row's differs from the usual, {named}."] if "baseline" in columns else []),
             *([f"[What each technique does and trades]({links.techniques})."] if links.techniques else [])]
    return [Heading(2, "What each technique costs"),
            Table(caption, list(columns), [list(row) for row in zip(*columns.values())], ("baseline", "what it is")), Text(" ".join(words))]


# The claims.


def claims_card(judged: claims.Judged | None, links: Links) -> list:
    """The claims of the guides with their verdicts, where they are judged here."""
    if judged is None:
        return []
    where = f"[{claims.CLAIMS_PAGE}]({claims.CLAIMS_PAGE})" if links.claims else f"`{claims.CLAIMS_PAGE}`, which `scripts/claims.py` makes,"
    return [Heading(2, "What guides claim"), Text(f"{claims.summary(judged.rows)} {where} has each in a line, with its evidence."),
            Fold("The claims, a line each", [*(Text(one) for one in claims.RULE), claims.by_technique(judged.rows, judged.techniques),
                                             *claims.tables(judged.rows, judged.guides, 3)], elsewhere=True)]
