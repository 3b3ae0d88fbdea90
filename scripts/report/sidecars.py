"""What may lie beside the records of a sweep: dry runs of its cases, what fits on which card, how far the estimator was
off, the planner's checks, and what techniques do to the loss that long runs end at."""
import dataclasses
import json
import math
import pathlib

from . import figures, planner_checks, quality
from .records import ESTIMATES, PLANS, WRONG_FIELDS, ReportError, near, number, read_file, read_text

SCHEMA = 1
PREDICTIONS = "predictions.json"
FITS = "fits.json"
CARD_PLANS = "card_plans.json"
COLOURS = ("green", "amber", "red")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The dry run of one case, in bytes; refused: why its settings cannot be combined, "" where they can."""

    refused: str
    peak: float


@dataclasses.dataclass(frozen=True)
class Predictions:
    model: str
    commit: str
    cases: dict[frozenset, Prediction]  # by the single techniques in them

    def peak(self, *techniques: str) -> float:
        case = self.cases.get(frozenset(techniques))
        return case.peak if case else math.nan


@dataclasses.dataclass(frozen=True)
class Fit:
    """What fits on a card of `limit` bytes. taken: of the card by `model`, of which `status` speaks; NaN
    in older records."""

    card: str
    limit: float
    stack: str
    largest_model: str  # of those that have a name; "" for none
    largest_layers: float  # of `model`
    largest_batch: float  # of `model`
    model: str
    status: str  # one of COLOURS
    taken: float


@dataclasses.dataclass(frozen=True)
class Fits:
    commit: str
    command: str
    rows: list[Fit]


@dataclasses.dataclass(frozen=True)
class CardPlan:
    """The fastest combination that fits a card, by `moelab plan`. sequence: tokens of each row of a micro-batch; needed: bytes of
    `limit`; times: what its speed follows from."""

    card: str
    limit: float
    model: str
    micro_batch: int
    sequence: int
    needed: float
    speed: float  # tokens/s
    times: str
    command: str


@dataclasses.dataclass(frozen=True)
class Draw:
    """One configuration, predicted and measured; bytes. error: of the measured tensors against the predicted."""

    settings: list[str]
    predicted: float
    measured: float
    scratch: float
    error: float
    state_exact: bool
    commit: str


@dataclasses.dataclass(frozen=True)
class Sidecars:
    predictions: list[Predictions]
    fits: list[Fits]
    card_plans: list[CardPlan]
    draws: list[Draw]
    checks: list[planner_checks.Check]
    effects: list[quality.Effect]
    effects_again: list[quality.Effect]  # on another model
    effects_page: str  # that tells of them in full; "" where there are none

    def predictions_of(self, sweep: figures.Sweep) -> Predictions | None:
        """Those of the model in the setting of this sweep: its baseline takes what the one of theirs does, to a percent."""
        peaks = [case.peak.value for case in sweep.cases if not case.baseline and case.peak]
        return next((one for one in self.predictions if one.model == sweep.model
                     and any(math.isclose(peak, one.peak(), rel_tol=0.01) for peak in peaks)), None)


def parsed(where: str, text: str, made_by: str, parse):
    """What `parse` makes of the JSON, or a ReportError that names the place and what writes such files."""
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            found = content.get("schema") if isinstance(content, dict) else None
            raise ReportError(f"{where}: schema {found}; this report reads schema {SCHEMA}, as {made_by} writes it")
        return parse(content)
    except WRONG_FIELDS as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ReportError(f"{where}: damaged, or not written by {made_by}: {what}") from None


def parse_predictions(content: dict) -> Predictions:
    cases = {}
    for fields in content["cases"]:
        refused = "" if fields["status"] == "ok" else str(fields["reason"])
        cases[frozenset(fields["techniques"])] = Prediction(refused, number(fields["peak"] if not refused else None))
    return Predictions(content["model"], content["commit"], cases)


def parse_fit(fields: dict) -> Fit:
    if fields["status"] not in COLOURS:
        raise ValueError(f"status {fields['status']}: {', '.join(COLOURS)} are known")
    return Fit(fields["card"], number(fields["limit"]), fields["stack"], fields["largest_model"] or "",
               number(fields["largest_layers"]), number(fields["largest_batch"]), fields["model"], fields["status"],
               number(fields.get("on_card")))


def parse_fits(content: dict) -> Fits:
    return Fits(content["commit"], content["command"], [parse_fit(fields) for fields in content["rows"]])


def parse_card_plans(content: dict) -> list[CardPlan]:
    return [CardPlan(fields["card"], number(fields["limit"]), fields["model"], fields["micro_batch"], fields["sequence"],
                     number(fields["needed"]), number(fields["tokens_per_second"]), fields["times"], fields["command"])
            for fields in content["rows"]]


def parse_draw(content: dict) -> Draw:
    return Draw(list(content["settings"]), number(content["predicted_bytes"]), number(content["measured_bytes"]),
                number(content["scratch_bytes"]), number(content["error"]),
                content["state_predicted"] == content["state_measured"], content["commit"])


def read_draws(path: pathlib.Path) -> list[Draw]:
    """check_estimates.py appends whole lines; what an interruption left of the last one is no draw."""
    whole, _, _ = read_text(path).rpartition("\n")
    return [parsed(f"{path}:{index}", line, "check_estimates.py", parse_draw)
            for index, line in enumerate(whole.split("\n"), 1) if line.strip()]


def read_checks(path: pathlib.Path) -> list[planner_checks.Check]:
    """check_plan.py gives a file its name once it is whole."""
    runs = [parsed(f"{path}:{index}", line, "check_plan.py", planner_checks.parse_run)
            for index, line in enumerate(read_text(path).split("\n"), 1) if line.strip()]
    try:
        return planner_checks.checks(runs)
    except (KeyError, IndexError, ValueError):
        raise ReportError(f"{path}: a budget without the plan's choice, or with nothing drawn beside it in a round; "
                          "check_plan.py writes both") from None


def read_effects(folders: list[pathlib.Path]) -> tuple[list[quality.Effect], list[quality.Effect], str]:
    """Of these folders, or where none has any of one near, since a loss depends little on the machine; and the page of them, as seen
    from these folders."""
    others = [other for folder in folders for other in near(folder, quality.RECORDS)]
    own = [folder for folder in folders if (folder / quality.RECORDS).exists()]
    sweeps = [sweep for folder in own or others[:1] for sweep in figures.sweeps(read_file(folder / quality.RECORDS)[0])]
    return *quality.by_model(quality.effects(sweeps)), quality.PAGE if own else f"../{others[0].name}/{quality.PAGE}" if others else ""


def read_beside(paths: list[pathlib.Path]) -> Sidecars:
    """Of all files that lie in the folders, or beside the files."""
    predictions, fits, card_plans, draws, checks = [], [], [], [], []
    folders = list(dict.fromkeys(path if path.is_dir() else path.parent for path in paths))
    for folder in folders:
        if (path := folder / PREDICTIONS).exists():
            predictions.append(parsed(str(path), read_text(path), "bench_tradeoff", parse_predictions))
        if (path := folder / FITS).exists():
            fits.append(parsed(str(path), read_text(path), "bench_tradeoff", parse_fits))
        if (path := folder / CARD_PLANS).exists():
            card_plans += parsed(str(path), read_text(path), "card_plans.py", parse_card_plans)
        if (path := folder / ESTIMATES).exists():
            draws += read_draws(path)
        if (path := folder / PLANS).exists():
            checks += read_checks(path)
    return Sidecars(predictions, fits, card_plans, draws, checks, *read_effects(folders))
