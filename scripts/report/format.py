"""Figures of a sweep as text."""
import math

from .byte_units import human_bytes
from .document import Point
from .figures import Case, Interval, Sweep, flat
from .records import Record

FAILURES = {"oom": "out of memory", "timeout": "timed out", "crash": "crashed", "skipped": "skipped"}
CHANGE_WORDS = ("same bits: every loss and gradient norm is the baseline's; 0: the loss is; <0.0001: less than that, up or down; –: "
                "none, as of a baseline or of steps that read other tokens. noisy: the rounds differ much, even when repeated.")


def machine_text(machine: dict) -> str:
    parts = [str(machine.get("gpu") or machine.get("cpu") or "an unnamed machine")]
    if machine.get("class") and not machine.get("gpu"):
        parts.append(machine["class"])
    if machine.get("cores"):
        parts.append(f"{machine['cores']} cores")
    if machine.get("memory_bytes"):
        parts.append(f"{human_bytes(machine['memory_bytes'])} of memory")
    return ", ".join(parts)


def kinds_of(run: Record) -> list[str]:
    """What it computes in, and how it dispatches and attends, as far as the record says."""
    settings = flat(run.resolved)
    return [settings[key] for key in ("precision.compute", "model.dispatch", "attention.kernel") if key in settings]


def provenance(sweep: Sweep) -> str:
    dirty = " with local changes" if sweep.dirty else ""
    return f"Measured on {machine_text(sweep.machine)}, at commit `{sweep.commit}`{dirty}."


def spread(interval: Interval, rounds: int) -> str:
    """(fastest - slowest round) / median; a dash for one round."""
    return "–" if rounds < 2 else f"{(interval.high - interval.low) / interval.value:.0%}"


def times(interval: Interval | None) -> str:
    """A ratio and its interval; the ratio alone where the interval has no width. An interval that excludes 1 has one more decimal
    where it would seem to end at 1."""
    if interval is None:
        return "–"
    ends = interval.low, interval.high
    digits = 3 if ends[0] < ends[1] and not ends[0] <= 1 <= ends[1] and "1.00" in [f"{end:.2f}" for end in ends] else 2
    value, low, high = (f"{ratio:.{digits}f}" for ratio in (interval.value, *ends))
    return f"{value} ×" if low == high else f"{value} × ({low}–{high})"


def speed_times(case: Case) -> str:
    """The ratio of speeds with its interval, of which one round knows none."""
    if case.speed_ratio and case.one_round:
        return f"{case.speed_ratio.value:.2f} × (one round)"
    return times(case.speed_ratio)


def predicted(case: Case) -> str:
    """The peak by dry run, and by how much the measured peak is higher."""
    if case.predicted is None or math.isnan(case.predicted.value):
        return "–"
    return f"{human_bytes(case.predicted.value)} ({case.peak.value / case.predicted.value - 1:+.1%})"


def loss_change(case: Case) -> str:
    """Against the baseline. "same bits": losses and gradient norms are equal; "0": the losses are."""
    if case.same_bits:
        return "same bits"
    return "<0.0001" if 0 < abs(case.loss_change) < 0.00005 else signed(case.loss_change)


def signed(value: float) -> str:
    if math.isnan(value) or value == 0:
        return "–" if value else "0"
    return f"{value:+.4f}"


def percent(interval: Interval) -> str:
    low, value, high = (f"{end:z.0f}" for end in (interval.low, interval.value, interval.high))
    return f"{value} %" if low == high else f"{value} % ({low} to {high})"


def failure_word(case: Case) -> str:
    status = case.failures[-1].status
    return FAILURES.get(status, "failed")


def rounds_of(case: Case) -> str:
    rounds = f"{len(case.runs)}"
    if case.failures:
        rounds += f" of {len(case.runs) + len(case.failures)}"
    return rounds + (", noisy" if case.noisy else "")


def signed_bytes(count: float) -> str:
    return "–" if math.isnan(count) else f"{'-' if count < 0 else '+'}{human_bytes(abs(count))}"


def changes(case: Case, sweep: Sweep) -> str:
    """The settings in which a case differs from its baseline; all settings of a baseline."""
    own, baseline = flat(case.any.settings), sweep.case(case.baseline)
    others = flat(baseline.any.settings) if baseline else {}
    return " ".join(f"`{key}={value}`" for key, value in own.items() if others.get(key) != value)


def case_point(case: Case, sweep: Sweep) -> Point:
    """What is known of a case that finished."""
    against = f"`{case.baseline}`"
    speed = f"{case.speed.value:,.0f} tokens/s, {case.step_ms.value:,.0f} ms a step"
    peak = f"peak {human_bytes(case.peak.value)}; by dry run {predicted(case)}"
    loss = f"last loss {case.loss:.3f}"
    if case.pairs:
        speed += f": {speed_times(case)} the speed of {against}"
        peak += f"; {times(case.peak_ratio)} the peak of {against}"
        loss += f": {loss_change(case)} against {against}"
    settings = changes(case, sweep) or "those of its baseline"
    return Point(case.name, [speed, peak, loss, f"{rounds_of(case)} rounds; settings: {settings}"], case.command)
