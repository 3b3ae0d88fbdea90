"""What techniques do to the held-out loss that a run ends at, from runs in pairs: the same seed with and without the technique."""
import dataclasses
import functools
import math
import pathlib
import statistics

import yaml

from . import figures
from .document import Heading, Picture, Table, Text
from .figures import Case, Interval, Sweep
from .format import changes, kinds_of, machine_text, provenance, signed, speed_times, times
from .plots import quality as plot
from .records import Record, ReportError

PAGE = "quality.md"
RECORDS, RATES = "quality.jsonl", "rates.jsonl"  # of bench_tradeoff, by the plans of these names
PLAN = pathlib.Path(__file__).resolve().parents[2] / "bench/tradeoff/quality.yaml"
# Half the width of a 95 % interval of a mean in standard errors: Student's t for 2 to 10 pairs.
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
TITLE = "What techniques do to the loss that a run ends at"
ABOUT = ("change: of the loss on held-out text at the end of a run, in nats a token, beside the run of the same seed without the technique: the "
         "mean over the seeds with the 95 % interval of Student's t. can show: half of that interval; a change smaller than it could be chance, "
         "and its point is grey. memory and speed: of the same runs; others may have run beside them, so that the report's speeds are the "
         "better.")


@dataclasses.dataclass(frozen=True)
class Effect:
    case: Case
    sweep: Sweep
    change: Interval  # of the held-out loss
    shows: float  # the smallest change that the seeds can show

    @property
    def is_seen(self) -> bool:
        return self.change.low > 0 or self.change.high < 0

    @property
    def word(self) -> str:
        return "the seeds can't tell" if not self.is_seen else "worse" if self.change.value > 0 else "better"


def changes_of(pairs: list[tuple[Record, Record]]) -> list[float]:
    found = [run.held_out_loss - base.held_out_loss for run, base in pairs]
    return [one for one in found if math.isfinite(one)]


def interval(values: list[float]) -> Interval:
    """The mean with its 95 % interval."""
    mean = statistics.fmean(values)
    half = STUDENT[min(len(values), max(STUDENT))] * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def effects(sweeps: list[Sweep]) -> list[Effect]:
    """Of every technique with two seeds or more, the largest change first."""
    found = []
    for sweep in sweeps:
        for case in sweep.cases:
            values = changes_of(case.pairs)
            if len(values) >= figures.LEAST_ROUNDS:
                change = interval(values)
                found.append(Effect(case, sweep, change, change.high - change.value))
    return sorted(found, key=lambda one: -one.change.value)


def about(cases: list[Case], found: list[Effect]) -> dict[str, Effect]:
    """What is known of each technique, by its name, except where the case's rows are shorter: a window that is longer than the row
    changes nothing."""
    known = {effect.case.name: effect for effect in found}
    both = [(case, known[case.name]) for case in cases if case.name in known]
    return {case.name: effect for case, effect in both if not case.any.sequence < effect.case.any.sequence}


def by_model(found: list[Effect]) -> tuple[list[Effect], list[Effect]]:
    """Those of the model that most techniques were tried on, and the others."""
    models = [effect.sweep.model for effect in found]
    main = max(models, key=models.count, default="")
    return [effect for effect in found if effect.sweep.model == main], [effect for effect in found if effect.sweep.model != main]


def row(effect: Effect) -> list[str]:
    case, change = effect.case, effect.change
    # A technique that changes no bit has the same loss for every seed, and an interval of no width.
    span = "" if change.low == change.high else f" ({signed(change.low)} to {signed(change.high)})"
    return [f"`{case.name}`", f"{signed(change.value)}{span}", f"**{effect.word}**", f"{effect.shows:.4f}", times(case.peak_ratio),
            speed_times(case), f"{len(changes_of(case.pairs))}", beside(effect), changes(case, effect.sweep)]


def told(effect: Effect) -> str:
    """In a cell."""
    return f"{signed(effect.change.value)}, **{effect.word}**" if effect.is_seen else f"**{effect.word}**"


def beside(effect: Effect) -> str:
    """What the technique is held against: the model, and how its baseline computes and attends."""
    base = effect.case.pairs[0][1]
    return ", ".join([f"`{effect.sweep.model}`", *kinds_of(base), f"{base.sequence:,.0f} tokens"])


HEADINGS = ["technique", "change", "verdict", "can show", "memory", "speed", "seeds", "beside", "settings"]


def picture(found: list[Effect]) -> Picture:
    return Picture("quality", "Memory, speed and change of the held-out loss, a point a technique",
                   "Ratios to the run without the technique. Colour: the change of the held-out loss; grey: the seeds can't tell.",
                   functools.partial(plot.quality, found))


def models(found: list[Effect]) -> str:
    return ", ".join(dict.fromkeys(f"`{effect.sweep.model}`" for effect in found))


def models_and_steps(found: list[Effect]) -> str:
    steps = {len(effect.case.runs[-1].steps) for effect in found}
    return f"{models(found)}, {', '.join(f'{count:,}' for count in sorted(steps))} steps a run"


def summary(found: list[Effect]) -> str:
    worse, better = (sum(effect.word == word for effect in found) for word in ("worse", "better"))
    return (f"Of {len(found)} techniques {worse} end at a worse loss and {better} at a better one; of {len(found) - worse - better} the seeds "
            "can't tell.")


def turned(found: list[Effect], others: list[Effect]) -> str:
    """The techniques that do the opposite on another model; "" if none does."""
    there = {effect.case.name: effect.word for effect in found}
    return " ".join(f"On `{other.sweep.model}`, `{other.case.name}` ends at a {other.word} loss instead." for other in others
                    if {other.word, there.get(other.case.name)} == {"worse", "better"})


def section(found: list[Effect], others: list[Effect], page: str) -> list:
    """Of a report: each technique in a short line. others: on another model. page: that of all; the picture only where it lies beside
    the report, since its speeds are of the machine there."""
    if not found:
        return []
    kept = [HEADINGS.index(heading) for heading in ("technique", "change", "verdict", "can show", "seeds", "beside")]
    machines = " and ".join(dict.fromkeys(machine_text(effect.sweep.machine) for effect in found))
    caption = (f"{models_and_steps(found)}. change: of the loss on held-out text at the end, in nats a token: the mean over the seeds "
               "beside runs of the same seed, with its 95 % interval.")
    said = " ".join(filter(None, [summary(found), turned(found, others)]))
    return [Heading(2, TITLE), Text(f"{said} Trained on {machines}; [{PAGE}]({page}) has more."),
            *([picture(found)] if page == PAGE else []),
            Table(caption, [HEADINGS[at] for at in kept], [[row(effect)[at] for at in kept] for effect in found], ("verdict", "beside"))]


def measured(found: list[Effect]) -> str:
    return " ".join(dict.fromkeys(provenance(one.sweep) for one in found))


def again(found: list[Effect], others: list[Effect]) -> list:
    """Techniques that were tried on another model too, beside what they do on the main one."""
    if not others:
        return []
    model, there = found[0].sweep.model, {effect.case.name: effect for effect in found}
    headings = [*HEADINGS, f"change on `{model}`"]
    rows = [[*row(effect), told(there[effect.case.name]) if effect.case.name in there else "not measured"] for effect in others]
    about = filter(None, [f"{models_and_steps(others)}, at the learning rates of `{model}`.", turned(found, others), measured(others)])
    return [Heading(2, "Again on a larger model"), Text(" ".join(about)),
            Table("", headings, rows, ("verdict", "beside", "settings"))]


def blocks(sweeps: list[Sweep]) -> list:
    found, others = by_model(effects(sweeps))
    if not found:
        raise ReportError(f"no technique in {RECORDS} has two seeds beside its baseline")
    return [Heading(1, TITLE), Text(f"{models_and_steps(found)}. {ABOUT} {measured(found)}"), picture(found),
            Table("", HEADINGS, [row(effect) for effect in found], ("verdict", "beside", "settings")),
            *again(found, others),
            Text("Made by `scripts/quality_page.py` of the records beside it; a run:"), Text(f"`{found[0].case.command}`")]


def best_rates(sweeps: list[Sweep]) -> dict[str, float]:
    """The learning rate at which each case of the plan of rates ended lowest; "baseline" for the baseline's."""
    tried: dict[str, list[tuple[float, float]]] = {}
    for case in (case for sweep in sweeps for case in sweep.cases):
        for run in case.runs:
            if math.isfinite(run.held_out_loss):
                tried.setdefault(case.name, []).append((run.held_out_loss, float(run.resolved["optim"]["lr"])))
    if any(len({rate for _, rate in found}) < 2 for found in tried.values()) or "baseline" not in tried:
        raise ReportError(f"{RATES}: each case is needed at two rates or more; bench_tradeoff --plan bench/tradeoff/rates.yaml measures three")
    return {name: min(found)[1] for name, found in tried.items()}


def planned(rates: dict[str, float]) -> str:
    """The plan of quality with these rates: the baseline's for all cases, and for update rules their own."""
    plan = yaml.safe_load(PLAN.read_text())
    for part in plan["parts"]:
        part["settings"]["optim.lr"] = rates["baseline"]
        if own := {name: rate for name, rate in rates.items() if name in part["singles"] and rate != rates["baseline"]}:
            part["rates"] = own
        else:
            part.pop("rates", None)
    return yaml.safe_dump(plan, sort_keys=False, width=130)
