"""What all cases that measure a claim say of it together, by the rule that templates/claims.md states."""
import dataclasses
import math

from ..figures import Case, Sweep
from ..format import percent
from .findings import Finding, direction, savings, step_time, widened
from .stated import ARITHMETIC, SAVED, STEP_TIME, layers_of


def overlaps(finding: Finding) -> bool:
    """Whether the measured interval reaches into what is claimed, so that it can't be said to fail."""
    low, high = widened(finding.claim.low, finding.claim.high)
    return finding.measured.low <= high and low <= finding.measured.high


def stands(finding: Finding) -> str:
    """By the rule: "holds", "fails" or "undecided"."""
    if finding.verdict == "confirmed":
        return "holds"
    return "undecided" if finding.verdict == "one round" or overlaps(finding) else "fails"


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one case of a sweep says of one claim: a finding for each of its figures, those that are counted by dry runs
    with no measured interval."""

    sweep: Sweep
    case: Case
    findings: list[Finding] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.case.name} on {self.sweep.title}"

    @property
    def outside(self) -> str:
        return next((finding.outside for finding in self.findings if finding.outside), "")

    @property
    def below(self) -> bool:
        """Whether it is where the claim says that it doesn't hold."""
        return self.findings[0].claim.condition.below(self.case)

    @property
    def measured(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.measured]

    @property
    def text(self) -> str:
        saved = [finding for finding in self.findings if finding.claim.measure == SAVED]
        said = [saved_text(saved)] if saved else []
        said += dict.fromkeys(time_text(finding, self.case) for finding in self.findings
                              if finding.claim.measure != SAVED)
        where = f", outside of the claim ({self.outside})" if self.outside else ""
        return f"{self.name}{setting_text(self.case)}{where}: {'; '.join(said)}"


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


def by_figure(findings: list[tuple[str, Finding]]) -> str:
    """[(case, finding)] as "memory saved 50 % in CASE, CASE; …"."""
    cases: dict[str, list[str]] = {}
    for name, finding in findings:
        cases.setdefault(finding.claim.figure, []).append(name)
    return "; ".join(f"{figure} in {', '.join(names)}" for figure, names in cases.items())


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """What the cases that measure a claim say of it by the rule. counted: findings on figures that all cases have in
    common."""

    cases: list[Measurement]
    counted: list[Finding]

    def decided(self, one: Measurement) -> dict[str, bool]:
        """{figure: whether it holds}."""
        return {finding.claim.figure: stands(finding) == "holds" for finding in [*one.measured, *self.counted]
                if stands(finding) != "undecided"}

    @property
    def inside(self) -> list[Measurement]:
        return [one for one in self.cases if not one.outside]

    @property
    def judged(self) -> set[str]:
        counted = {finding.claim.figure for finding in self.counted}
        return counted.union(*(self.decided(one) for one in self.inside))

    @property
    def good(self) -> list[Measurement]:
        """The cases in which every figure holds that some case decides."""
        return [one for one in self.inside
                if self.decided(one).keys() == self.judged and all(self.decided(one).values())]

    @property
    def fails(self) -> bool:
        return any(stands(finding) == "fails" for finding in self.counted) or \
            any(not all(self.decided(one).values()) for one in self.inside)

    @property
    def limit(self) -> list[str]:
        """Names the cases that fail where the claim itself says that it does not hold."""
        names = [one.name for one in self.cases
                 if one.below and any(stands(finding) == "fails" for finding in one.measured)]
        bound = next((one.outside for one in self.cases if one.below), "")
        return [f"{bound} it does not, as it says: {', '.join(names)}"] if names else []

    @property
    def undecided(self) -> list[str]:
        """The figures that no case decides, each with the reason."""
        why: dict[str, dict[str, None]] = {}
        for finding in (finding for one in self.inside for finding in one.measured):
            if finding.claim.figure not in self.judged:
                reason = "one round alone" if finding.verdict == "one round" else "the interval is too wide"
                why.setdefault(finding.claim.figure, {})[reason] = None
        return [f"{figure} is not decided here: {', '.join(reasons)}" for figure, reasons in why.items()]

    @property
    def held(self) -> str:
        findings = [(one.name, finding) for one in self.inside for finding in one.measured]
        findings += [("dry runs", finding) for finding in self.counted]
        return by_figure([(name, finding) for name, finding in findings if stands(finding) == "holds"])

    @property
    def what_holds(self) -> str:
        """What holds of a claim that no case confirms in all of its figures."""
        findings = [finding for one in self.inside for finding in one.measured]
        other = dict.fromkeys(f"{f.claim.figure} ({direction(f.claim, f.measured) or 'wide interval'})"
                              for f in findings if f.verdict == "partly")
        return "; ".join([*([f"holds alone: {self.held}"] if self.held else []),
                          *([f"in another size: {', '.join(other)}"] if other else [])])
