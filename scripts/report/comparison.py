"""Training runs side by side: memory, speed and loss, whether one is faster, and the settings in which they differ."""
import dataclasses

from . import document, figures, runs
from .byte_units import human_bytes
from .format import machine_text

MARGIN = 0.02  # ratios this near to 1 count as the same speed
ENOUGH = 3  # rounds that show how runs differ
RUN_SPREAD = 0.05  # by how much runs may differ where there are fewer rounds


@dataclasses.dataclass(frozen=True)
class Outcome:
    verdict: str
    speed: figures.Interval  # ratio of tokens/s
    rounds: int  # behind the interval
    paired: bool


def verdict(speed: figures.Interval, rounds: int) -> str:
    if rounds < figures.LEAST_ROUNDS:
        return "UNSURE"
    spread = RUN_SPREAD if rounds < ENOUGH else 0
    low, high = speed.low * (1 - spread), speed.high * (1 + spread)
    if 1 - MARGIN <= low and high <= 1 + MARGIN:
        return "SAME"
    if low > 1 + MARGIN:
        return "FASTER"
    return "SLOWER" if high < 1 - MARGIN else "UNSURE"


def compare(one: runs.RunSet, other: runs.RunSet) -> Outcome:
    """`other` held against `one`."""
    pairs = figures.paired(other.runs, one.runs) if one.store and one.store == other.store else []
    if pairs:
        speed = figures.ratio_of_rates([(run.rates, base.rates) for run, base in pairs])
        return Outcome(verdict(speed, len(pairs)), speed, len(pairs), True)
    rates = [[run.rates for run in one_set.runs] for one_set in (other, one)]
    medians = [one_set.case.speed.value for one_set in (other, one)]
    draws = [figures.drawn_rates(each, figures.SEED + index) for index, each in enumerate(rates)]
    speed = figures.interval_of(medians[0] / medians[1], draws[0] / draws[1])
    rounds = min(map(len, rates))
    return Outcome(verdict(speed, rounds), speed, rounds, False)


def ratio_text(outcome: Outcome) -> str:
    speed = outcome.speed
    if outcome.rounds < figures.LEAST_ROUNDS:
        return f"{speed.value:.3f} × (one round)"
    return f"{speed.value:.3f} × ({speed.low:.3f}–{speed.high:.3f})"


def row(one_set: runs.RunSet, outcome: Outcome | None, peak: float) -> list[str]:
    case = one_set.case
    said = [outcome.verdict, ratio_text(outcome)] if outcome else ["", ""]
    more = f" ({case.peak.value / peak:.3f} ×)" if outcome else ""
    return [one_set.name, *said, f"{case.speed.value:,.0f}", f"{case.step_ms.value:,.1f} ms",
            human_bytes(case.peak.value) + more, f"{case.loss:.4f}", str(len(one_set.runs))]


def notes_on(one: runs.RunSet, other: runs.RunSet, outcome: Outcome) -> list[str]:
    a, b = one.runs[-1], other.runs[-1]
    notes = []
    if a.machine != b.machine:
        notes.append(f"{other.name} ran on another machine: {machine_text(b.machine)}, not {machine_text(a.machine)}")
    if a.commit != b.commit:
        notes.append(f"{other.name} is of commit {b.commit}, not {a.commit}")
    if a.model != b.model:
        notes.append(f"{other.name} is of {b.model}, not {a.model}")
    if a.tokens != b.tokens:
        notes.append(f"{other.name} saw {b.tokens:,.0f} tokens, not {a.tokens:,.0f}: losses don't compare")
    if outcome.rounds < figures.LEAST_ROUNDS:
        notes.append(f"{other.name}: one round alone, which cannot know how rounds differ; more would tell which is "
                     "faster")
    elif outcome.rounds < ENOUGH:
        notes.append(f"{other.name}: {outcome.rounds} rounds alone, so the interval was widened by {RUN_SPREAD:.0%} "
                     "for the verdict")
    if not outcome.paired:
        notes.append(f"{other.name}: rounds don't pair; a machine that grew slower in between would show as a "
                     "difference")
    return notes


def text(chosen: list[runs.RunSet]) -> str:
    first, *others = chosen
    outcomes = [compare(first, other) for other in others]
    peak = first.case.peak.value
    headings = ["run", "verdict", "speed", "tokens/s", "step", "peak", "last loss", "rounds"]
    table = document.Table("", headings, [row(one_set, outcome, peak)
                                          for one_set, outcome in zip(chosen, [None, *outcomes])], ("verdict",))
    parts = [document.table_plain(table)]
    differ = runs.settings_that_differ(chosen)
    names = [one_set.name for one_set in chosen]
    parts.append(document.table_plain(document.Table("", ["settings that differ", *names],
                                                     [[key, *values] for key, values in differ.items()], tuple(names)))
                 if differ else "No setting differs.")
    notes = [note for one_set in chosen for note in one_set.notes]
    notes += [note for other, outcome in zip(others, outcomes) for note in notes_on(first, other, outcome)]
    return "\n\n".join([*parts, "\n".join(notes)] if notes else parts)
