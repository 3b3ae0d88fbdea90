"""What the report says of a sweep, as blocks of a document."""
import math
import pathlib

from byte_units import human_bytes

from . import plots
from .claims import RULE, Finding, direction
from .document import Commands, Heading, Items, Picture, Table, Text, plain, table_plain
from .figures import RESAMPLES, SEED, Case, Interval, Sweep, flat, measured, on_front
from .records import WARM_UP

TITLE = "What memory techniques cost"
FAILURES = {"oom": "out of memory", "timeout": "timed out", "crash": "crashed"}


def machine_text(machine: dict) -> str:
    parts = [str(machine.get("gpu") or machine.get("cpu") or "an unnamed machine")]
    if machine.get("cores"):
        parts.append(f"{machine['cores']} cores")
    if machine.get("memory_bytes"):
        parts.append(f"{human_bytes(machine['memory_bytes'])} of memory")
    return ", ".join(parts)


def provenance(sweep: Sweep) -> str:
    dirty = " with local changes" if sweep.dirty else ""
    return f"Measured on {machine_text(sweep.machine)}, at commit `{sweep.commit}`{dirty}."


def spread(interval: Interval, rounds: int) -> str:
    """One round has none."""
    return "–" if rounds < 2 else f"{(interval.high - interval.low) / interval.value:.0%}"


def times(interval: Interval | None) -> str:
    """A ratio with its interval; an exact one alone."""
    if interval is None:
        return "–"
    shown = f"{interval.value:.2f} ×"
    low, high = f"{interval.low:.2f}", f"{interval.high:.2f}"
    return shown if low == high else f"{shown} ({low}–{high})"


def predicted(case: Case) -> str:
    """What the dry run said, and by how much the run took more."""
    if case.predicted is None or math.isnan(case.predicted.value):
        return "–"
    return f"{human_bytes(case.predicted.value)} ({case.peak.value / case.predicted.value - 1:+.1%})"


def loss_change(case: Case) -> str:
    """0 alone: to that loss's digits; a gradient norm differs."""
    return "same bits" if case.same_bits else signed(case.loss_change)


def signed(value: float) -> str:
    if math.isnan(value) or value == 0:
        return "–" if value else "0"
    return f"{value:+.4f}" if abs(value) >= 5e-5 else f"{value:+.0e}"


def percent(interval: Interval) -> str:
    low, value, high = (f"{end:.0f}" for end in (interval.low, interval.value, interval.high))
    return f"{value} %" if low == high else f"{value} % ({low} to {high})"


def failure_word(case: Case) -> str:
    status = case.failures[-1].status
    return FAILURES.get(status, "failed")


def case_row(case: Case, front: list[Case]) -> list[str]:
    rounds = f"{len(case.runs)}"
    if case.failures:
        rounds += f" of {len(case.runs) + len(case.failures)}"
    if not case.runs:
        return [case.name, f"**failed**: {failure_word(case)}", "", "", "", "", "", "", "", "", "", rounds]
    return [case.name, f"{case.speed.value:,.0f}", spread(case.speed, len(case.runs)), human_bytes(case.peak.value),
            predicted(case), f"{case.step_ms.value:,.0f} ms", times(case.speed_ratio), times(case.peak_ratio), f"{case.loss:.3f}", loss_change(case),
            "yes" if case in front else "", rounds]


def case_table(sweep: Sweep) -> Table:
    headings = ["case", "tokens/s", "spread", "peak memory", "predicted", "step", "speed", "memory", "last loss", "its change",
                "on the front", "rounds"]
    front = on_front(sweep)
    return Table("Medians over the rounds. predicted: by a dry run, and how much more was measured; step: its "
                 "time. speed and memory: against the baseline of the same round, with 95 % "
                 "intervals (memory: smallest to largest round; alone where all agree). loss: nats a token after the "
                 "last step, and how much higher than the baseline's; same bits: every loss and gradient norm of "
                 f"the run is the baseline's. {provenance(sweep)}", headings,
                 [case_row(case, front) for case in sweep.cases])


def names(cases: list[Case]) -> str:
    return ", ".join(f"`{case.name}`" for case in cases)


def short_answers(sweep: Sweep) -> list[str]:
    cases = measured(sweep)
    if not cases:
        return ["No case of this sweep finished."]
    fastest = max(cases, key=lambda case: case.speed.value)
    smallest = min(cases, key=lambda case: case.peak.value)
    answers = [f"{what}: `{case.name}`, {case.speed.value:,.0f} tokens/s in {human_bytes(case.peak.value)}."
               for what, case in (("Fastest", fastest), ("Smallest", smallest))]
    answers.append(f"On the front, from small to large: {names(on_front(sweep))}. Nothing is both smaller and faster.")
    losers = [case for case in cases
              if case.speed_ratio and case.speed_ratio.high < 1 and case.peak_ratio.low >= 1]
    failed = [case for case in sweep.cases if case.failures]
    if losers:
        answers.append(f"Slower than the baseline and no smaller: {names(losers)}.")
    if failed:
        answers.append(f"With runs that didn't finish: {names(failed)}.")
    return answers


CAPTIONS = {
    "pareto": ("Peak memory against tokens a second, one point a case",
               "Each point is a case: its median, with bars from its lowest to its highest round. Along the line, no "
               "other case is both smaller and faster."),
    "memory": ("Memory by kind in each phase of a step, one panel a case",
               "What was held at the moment each phase of the last step peaked, by what it was held for."),
    "loss": ("Loss over the tokens trained on, and its distance from the baseline",
             "Median over the rounds. A technique that only moves memory about lies on its baseline: a line at 0 "
             "below."),
}


def picture(name: str, prefix: str, sweep: Sweep) -> Picture:
    alternative, caption = CAPTIONS[name]
    light, dark = (plots.draw(plots.PICTURES[name], sweep, dress) for dress in (plots.LIGHT, plots.DARK))
    return Picture(f"{prefix}{name}.png", alternative, f"{caption} {provenance(sweep)}", light, dark)


def verdict_text(finding: Finding) -> str:
    if not finding.measured:
        return finding.verdict
    how = direction(finding.claim, finding.measured)
    return f"**{finding.verdict}**" + (f" ({how})" if how and finding.verdict != "confirmed" else "")


def finding_row(finding: Finding, before: Finding | None) -> list[str]:
    """What is claimed in words only where the row before doesn't say it."""
    claim = finding.claim
    said = f"{claim.guide.partition(',')[0]}: {claim.text}"
    if claim.arithmetic:
        said += f" (But by its own figures: {claim.arithmetic}.)"
    repeated = before is not None and before.claim.id == claim.id
    of = f" of {claim.of}" if claim.of else ""
    return ["" if repeated else said, finding.case.name, claim.figure + of,
            f"{claim.measure} {percent(finding.measured)}" if finding.measured else "–", verdict_text(finding)]


def claim_blocks(findings: list[Finding]) -> list:
    about = [finding for finding in findings if finding.case]
    blocks = [Heading(3, "Claimed beside measured")]
    if about:
        headings = ["claim", "case", "claimed", "measured", "verdict"]
        rows = [finding_row(finding, before) for finding, before in zip(about, [None, *about])]
        blocks.append(Table("What guides say of these techniques, and what this sweep measured against the baseline.",
                            headings, rows, ("case", "claimed", "measured", "verdict")))
    blocks.append(Text("The rule. " + RULE))
    silent = dict.fromkeys(f"`{finding.claim.id}`" for finding in findings if not finding.case)
    if silent:
        blocks.append(Text(f"**not measured**, for want of a case in this sweep: {', '.join(silent)}."))
    return blocks


def failure_blocks(sweep: Sweep) -> list:
    rounds: dict[tuple, list[str]] = {}
    for case in sweep.cases:
        for run in case.failures:
            rounds.setdefault((case.name, run.status, run.message), []).append(str(run.round))
    if not rounds:
        return []
    rows = [[name, status, ", ".join(numbers), message] for (name, status, message), numbers in rounds.items()]
    return [Heading(3, "Runs that didn't finish"),
            Table("Running out of memory is a result too.", ["case", "status", "rounds", "message"], rows,
                  ("status", "rounds", "message"))]


def changes(case: Case, sweep: Sweep) -> str:
    """The settings in which a case differs from its baseline; a baseline's own."""
    own, baseline = flat(case.any.settings), sweep.case(case.baseline)
    others = flat(baseline.any.settings) if baseline else {}
    return " ".join(f"`{key}={value}`" for key, value in own.items() if others.get(key) != value)


def settings_blocks(sweep: Sweep) -> list:
    rows = [[case.name, case.baseline or "(a baseline)", changes(case, sweep) or "–"] for case in sweep.cases]
    return [Heading(3, "The cases"),
            Table("Settings in which each case differs from what it is held against.",
                  ["case", "against", "settings"], rows, ("against", "settings")),
            Text(f"The commands of the last round, at commit `{sweep.commit}` on {machine_text(sweep.machine)}:"),
            Commands([f"# {case.name}\n{case.any.command}" for case in sweep.cases])]


def sweep_blocks(sweep: Sweep, prefix: str, findings: list[Finding]) -> list:
    pictures = {name: picture(name, prefix, sweep) for name in plots.PICTURES}
    return [Heading(2, f"{sweep.model} on {machine_text(sweep.machine)}"),
            Items(short_answers(sweep)), pictures["pareto"],
            case_table(sweep), *failure_blocks(sweep), Heading(3, "Where the memory goes"), pictures["memory"],
            Heading(3, "What it does to the loss"), pictures["loss"], *claim_blocks(findings), *settings_blocks(sweep),
            *([Heading(3, "Notes"), Items(sweep.notes)] if sweep.notes else [])]


def method_blocks(notes: list[str]) -> list:
    return [Heading(2, "How it was measured"),
            Text(f"Each run is a process of its own, and the cases of a round run one after the other beside"
                 f" their baseline. Left out as warm-up: {WARM_UP}. A run's speed is the median of its "
                 f"steps' tokens a second; its peak is counted by the allocator, to the byte. A ratio pairs "
                 f"a run with the baseline of its round; the median over the rounds is given with a 95 % "
                 f"percentile bootstrap interval ({RESAMPLES:,} draws of rounds and of steps within them, "
                 f"seed {SEED}). Of few rounds such an interval spans hardly more than what was seen: the "
                 f"range of 3 holds the true median 75 % of the time, of 5 94 %; of one round it knows the "
                 f"steps alone. spread is (fastest − slowest round) / median: a difference smaller than that"
                 f" says little. Losses and failures stay in."),
            *([Items(notes)] if notes else [])]


def report_blocks(parts: list[tuple[Sweep, str, list[Finding]]], notes: list[str]) -> list:
    """parts: a sweep, the prefix of its pictures' names, and its findings."""
    return [Heading(1, TITLE), *(block for part in parts for block in sweep_blocks(*part)), *method_blocks(notes)]


def spoken(sweep: Sweep) -> str:
    """What matters most, for a terminal."""
    return "\n".join([table_plain(case_table(sweep)), "", *map(plain, short_answers(sweep))])


def write(folder: pathlib.Path, html: str, markdown: str, blocks: list) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for block in blocks:
        if isinstance(block, Picture):
            (folder / block.file).write_bytes(block.light)
    (folder / "report.md").write_text(markdown)
    (folder / "report.html").write_text(html)
