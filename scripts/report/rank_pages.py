"""What the report says of cases on several ranks: the time of all together, and what one of them holds and sends."""
import math

from .byte_units import human_bytes
from .document import Heading, Table
from .figures import Case, Sweep
from .format import failure_word, loss_change, predicted, provenance, rounds_of, times
from .sweep_parts import RANKS, of_families

HEADINGS = ["case", "ranks", "link", "tokens/s", "speed", "peak of a rank", "predicted", "memory", "sent in a step", "hidden", "loss",
            "rounds"]


def hidden_share(case: Case) -> str:
    shares = [run.hidden for run in case.runs if not math.isnan(run.hidden)]
    return f"{sorted(shares)[len(shares) // 2]:.0%}" if shares else "–"


def row(case: Case) -> list[str]:
    ranks, link, rounds = str(case.any.ranks), case.any.link or "–", rounds_of(case)
    if not case.runs:
        reason = f": {case.failures[-1].message}" if case.failures[-1].status == "skipped" else ""
        return [case.name, ranks, link, f"**{failure_word(case)}**{reason}", *[""] * (len(HEADINGS) - 5), rounds]
    sent = case.any.sent
    return [case.name, ranks, link, f"{case.speed.value:,.0f}", times(case.speed_ratio), human_bytes(case.peak.value), predicted(case),
            times(case.peak_ratio), human_bytes(sent) if sent else "–", hidden_share(case) if sent else "–", loss_change(case), rounds]


def table(sweep: Sweep) -> Table:
    caption = ("speed and memory: against one rank on the same cores that takes the micro-batches of all, in the same round, with the "
               "intervals of the other tables. peak, predicted: of the fullest rank; sent, hidden: of rank 0, whose exchanges passed "
               "unnoticed in that share of their time. loss: `same bits` where every loss and gradient norm is the one rank's. "
               f"{provenance(sweep)}")
    return Table(caption, HEADINGS, [row(case) for case in of_families(sweep, RANKS).cases], ("link",))


def blocks(sweeps: list[Sweep]) -> list:
    found = [sweep for sweep in sweeps if of_families(sweep, RANKS).cases]
    return [Heading(2, "On several ranks"),
            *(block for sweep in found for block in (Heading(3, sweep.title), table(sweep)))] if found else []
