"""What the report says of cases on several ranks: the time of all together, and what one of them holds and sends."""
import math

from .byte_units import human_bytes
from .document import Fold, Heading, Table, Text
from .figures import Case, Sweep
from .format import failure_word, loss_change, predicted, provenance, rounds_of, speed_times, times
from .sweep_parts import RANKS, of_families

HEADINGS = ["case", "memory", "speed", "tokens/s", "ranks", "peak of a rank", "predicted", "sent in a step", "hidden", "loss", "rounds"]
ABOUT = ("speed and memory: against one rank on the same cores that takes the micro-batches of all, in the same round. Of more ranks than "
         "cores the bytes count, the time does not.")
COLUMNS = ("Intervals hold 95 %, as in the other tables. The peak, measured and predicted, is that of the rank that holds most. Rank 0 sends "
           "so many bytes in a step; hidden is the share of its exchanges' time in which it went on computing. The loss has the `same "
           "bits` if every loss and gradient norm is the one rank's.")


def hidden_share(case: Case) -> str:
    shares = [run.hidden for run in case.runs if not math.isnan(run.hidden)]
    return f"{sorted(shares)[len(shares) // 2]:.0%}" if shares else "–"


def row(case: Case) -> list[str]:
    ranks, rounds = str(case.any.ranks), rounds_of(case)
    if not case.runs:
        reason = f": {case.failures[-1].message}" if case.failures[-1].status == "skipped" else ""
        return [case.name, f"**{failure_word(case)}**{reason}", "", "", ranks, *[""] * (len(HEADINGS) - 6), rounds]
    sent = case.any.sent
    return [case.name, times(case.peak_ratio), speed_times(case), f"{case.speed.value:,.0f}", ranks, human_bytes(case.peak.value),
            predicted(case), human_bytes(sent) if sent else "–", hidden_share(case) if sent else "–", loss_change(case), rounds]


def table(sweep: Sweep) -> Table:
    return Table(provenance(sweep), HEADINGS, [row(case) for case in of_families(sweep, RANKS).cases])


def blocks(sweeps: list[Sweep]) -> list:
    found = [sweep for sweep in sweeps if of_families(sweep, RANKS).cases]
    return [Heading(2, "On several ranks"), Text(ABOUT), Fold("What the columns mean", [Text(COLUMNS)]),
            *(block for sweep in found for block in (Heading(3, sweep.title), table(sweep)))] if found else []
