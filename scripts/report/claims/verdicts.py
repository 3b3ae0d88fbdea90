"""What all measurements of a claim say of it together, by the rule that page.py states."""
import collections
import dataclasses
import math

from ..figures import Case, Sweep
from ..format import percent
from . import lines, outcomes
from .findings import Finding, savings, step_time
from .stated import ARITHMETIC, BATCH, SAVED, SPEED, STEP_TIME, layers_of

# A figure in one word, where no other figure of the claim has the same.
SHORT = {SAVED: "memory", STEP_TIME: "time", SPEED: "speed", ARITHMETIC: "arithmetic", BATCH: "batch"}


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one case of a sweep, or a pair of dry runs, says of one claim: a finding for each of its figures. text: all
    that it measured."""

    name: str
    text: str
    findings: list[Finding]
    rounds: int = 0

    @property
    def outside(self) -> str:
        return next((finding.outside for finding in self.findings if finding.outside), "")

    @property
    def measured(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.measured]

    @property
    def decided(self) -> list[Finding]:
        return [finding for finding in self.measured if finding.outcome]


def of_case(sweep: Sweep, case: Case, findings: list[Finding]) -> Measurement:
    saved = [finding for finding in findings if finding.claim.measure == SAVED]
    said = [saved_text(saved)] if saved else []
    said += dict.fromkeys(time_text(finding, case) for finding in findings if finding.claim.measure not in (SAVED, BATCH))
    name = f"`{case.name}` on {sweep.title}"
    outside = next((f"; not counted: {one.outside}" for one in findings if one.outside), "")
    return Measurement(name, f"{name}{setting_text(case)}: {'; '.join(said)}{outside}", findings, len(case.pairs))


def beside_no_figure(sweep: Sweep, case: Case) -> str:
    """What a case measured of a claim that names no figure."""
    time = step_time(case)
    said = ["saves " + ", ".join(f"{percent(saved)} of {of}" for of, saved in savings(case).items())]
    said += [f"{STEP_TIME} {time.value:z.0f} % (one round)" if case.one_round else f"{STEP_TIME} {percent(time)}"] if time else []
    return f"`{case.name}` on {sweep.title}{setting_text(case)}: {'; '.join(said)}"


def setting_text(case: Case) -> str:
    """", 6 layers, 8 × 256 tokens": the setting of the baseline, as far as the record says."""
    base = case.pairs[0][1] if case.pairs else case.any
    layers, batch = layers_of(case), base.resolved.get("train", {}).get("micro_batch", math.nan)
    return "".join([f", {layers:.0f} layers" if layers > 0 else "",
                    f", {batch:.0f} × {base.sequence:,.0f} tokens" if batch > 0 else ""])


def time_text(finding: Finding, case: Case) -> str:
    """The measured time; for arithmetic, which is counted elsewhere, the step time."""
    what = STEP_TIME if finding.claim.measure == ARITHMETIC else finding.claim.measure
    measured = finding.measured or step_time(case)
    return f"{what} {measured.value:z.0f} % (one round)" if case.one_round else f"{what} {percent(measured)}"


def saved_text(findings: list[Finding]) -> str:
    """Savings of the memory that the claim names, then of the other kinds."""
    named = {finding.claim.of: finding.measured for finding in findings if finding.claim.of}
    every = named | savings(findings[0].case)
    return "saves " + ", ".join(f"{percent(saved)} of {of}" for of, saved in every.items())


def brief(finding: Finding) -> str:
    value, measure = finding.measured.value, finding.claim.measure
    if measure == SAVED:
        return f"{'saves' if value > -0.5 else 'adds'} {abs(value):.0f} % of {finding.claim.of or 'the peak'}"
    if measure == BATCH:
        return f"{1 + value / 100:.1f} × the batch"
    what = {STEP_TIME: "time", SPEED: "tokens/s", ARITHMETIC: "FLOPs"}[measure]
    return f"{abs(value):.0f} % {'less' if value < 0 else 'more'} {what}"


def technique_of(finding: Finding) -> str:
    """In words, behind "by"."""
    return f"`{finding.case.name}`" if finding.case else "dry runs"


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """What the measurements of a claim say of it by the rule."""

    measurements: list[Measurement]

    @property
    def inside(self) -> list[Measurement]:
        return [one for one in self.measurements if not one.outside]

    @property
    def findings(self) -> list[Finding]:
        return [finding for one in self.inside for finding in one.measured]

    @property
    def by_figure(self) -> dict[str, collections.Counter]:
        """How often each figure has which outcome, over the measurements that decide it."""
        counts: dict[str, collections.Counter] = {}
        for finding in self.findings:
            if finding.outcome:
                counts.setdefault(self.short(finding), collections.Counter())[finding.outcome] += 1
        return counts

    def short(self, finding: Finding) -> str:
        alike = {one.claim.figure for one in self.findings if one.claim.measure == finding.claim.measure}
        return SHORT[finding.claim.measure] if len(alike) == 1 else finding.claim.figure

    @property
    def undecided(self) -> dict[str, str]:
        """{figure: why} of the figures that were measured and that nothing decides."""
        decided = {finding.claim.figure for finding in self.findings if finding.outcome}
        why: dict[str, dict[str, None]] = {}
        for finding in self.findings:
            if finding.claim.figure not in decided:
                why.setdefault(finding.claim.figure, {})[finding.undecided] = None
        return {figure: ", ".join(reasons) for figure, reasons in why.items()}

    @property
    def best(self) -> Measurement | None:
        """The measurement that decides most figures, in most rounds."""
        deciding = [one for one in self.inside if one.decided]
        return max(deciding, key=lambda one: (len(one.decided), one.rounds), default=None)

    def of_figure(self, figure: str) -> str:
        """What was found of one figure where it is decided, else where it is known best, of each technique; "" where nothing was."""
        known = [(one, finding) for one in self.inside for finding in one.measured if finding.claim.figure == figure]
        best = {}
        for name in dict.fromkeys(technique_of(finding) for _, finding in known):
            own = [pair for pair in known if technique_of(pair[1]) == name]
            _, best[name] = max(own, key=lambda pair: (pair[1].outcome is not None, pair[0] is self.best, pair[0].rounds))
        texts = {name: brief(finding) + (f" ({finding.undecided})" if finding.undecided else "") for name, finding in best.items()}
        return ", ".join(f"{text} by {name}" for name, text in texts.items()) if len(texts) > 1 else "".join(texts.values())

    @property
    def tally(self) -> str:
        """"memory: overstated in 2 cases, right in 1 case; time: right": "" where one word says it of all."""
        counts = self.by_figure
        if len(set().union(*counts.values())) < 2:
            return ""
        return "; ".join(f"{figure}: {tally(count)}" for figure, count in counts.items())

    @property
    def examples(self) -> dict[tuple[str, str], tuple[Measurement, Finding]]:
        """By outcome and figure, from the measurement that decides most."""
        found: dict[tuple[str, str], tuple[Measurement, Finding]] = {}
        for one in sorted(self.inside, key=lambda one: (one is self.best, one.rounds), reverse=True):
            for finding in one.decided:
                found.setdefault((finding.outcome, finding.claim.figure), (one, finding))
        return found

    def example(self, finding: Finding) -> str:
        """In a few words; beside what is claimed where another figure of the claim is of the same."""
        alone = self.short(finding) in SHORT.values()
        return brief(finding) if alone else f"{brief(finding).removesuffix(' of the peak')} against {finding.claim.percent}"

    def line(self, untested: list[str]) -> str:
        """An example of each outcome of each figure and what it is of, and the figures that are untested; of too much, without what it is
        of, then one example of each outcome, without how many there are."""
        found = self.examples
        texts = lines.grouped([*((outcome, self.example(finding)) for (outcome, _), (_, finding) in found.items()),
                               *((outcomes.UNTESTED, figure) for figure in untested)])
        names = {one.name for one, _ in found.values()}
        whole = lines.all_of_each(texts) if len(texts) > 1 else ", ".join(*texts.values())
        by = [f"{whole}; by {name}" if len(texts) > 1 else f"{whole} ({name})" for name in names if len(names) == 1]
        return lines.shortest([*by, *self.of_each(untested), whole, lines.first_of_each(texts),
                               lines.all_of_each({word: said[:1] for word, said in texts.items()})])

    def of_each(self, untested: list[str]) -> list[str]:
        """The line with the technique of each example, where they are of several."""
        said: dict[tuple[str, str], list[str]] = {}
        for (outcome, _), (_, finding) in self.examples.items():
            said.setdefault((outcome, technique_of(finding)), []).append(self.example(finding))
        texts = [(outcome, f"{', '.join(found)} by {technique}") for (outcome, technique), found in said.items()]
        several = len({technique for _, technique in said}) > 1
        return [lines.all_of_each(lines.grouped([*texts, *((outcomes.UNTESTED, figure) for figure in untested)]))] if several else []

    @property
    def limit(self) -> list[str]:
        """Names the cases that fail where the claim itself says that it does not hold."""
        below = [one for one in self.measurements if one.measured and one.measured[0].case
                 and one.measured[0].claim.condition.below(one.measured[0].case)]
        names = [one.name for one in below
                 if any(outcomes.of_interval(finding.claim.low, finding.claim.high, finding.measured, True)
                        in (outcomes.OVERSTATED, outcomes.UNDERSTATED) for finding in one.measured)]
        return [f"{below[0].outside} it does not hold, as it says: {', '.join(names)}"] if names else []


def tally(counts: collections.Counter) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{word} in {count} case{'s' if count > 1 else ''}" for word, count in counts.most_common())
