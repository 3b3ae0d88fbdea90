"""From records to figures: medians and spread over rounds, ratios against the baseline, the Pareto front."""
import dataclasses
import itertools
import math
import pathlib
import re
import statistics

import numpy as np

from .records import Record

RESAMPLES = 4000
LEAST_ROUNDS = 2  # the fewest that show how rounds differ; the steps of one round can't
SEED = 20240229


@dataclasses.dataclass(frozen=True)
class Interval:
    """A figure and the range it is known to within."""

    value: float
    low: float
    high: float

    def through(self, falling_or_rising) -> "Interval":
        """The interval of a monotonic function of the figure."""
        ends = sorted((falling_or_rising(self.low), falling_or_rising(self.high)))
        return Interval(falling_or_rising(self.value), *ends)


@dataclasses.dataclass
class Case:
    """The figures of one case over its rounds. NaN or None: no finished run says it."""

    name: str
    runs: list[Record]
    failures: list[Record]
    baseline: str  # "" for a baseline
    speed: Interval | None = None  # tokens/s: median, slowest and fastest round
    step_ms: Interval | None = None  # milliseconds a step after the warm-up
    peak: Interval | None = None  # bytes: median, smallest and largest round
    predicted: Interval | None = None  # bytes, by the dry run before the first step
    speed_ratio: Interval | None = None  # of tokens/s to the baseline's; 95 % bootstrap interval
    peak_ratio: Interval | None = None  # of peaks; smallest and largest round
    pairs: list[tuple[Record, Record]] = dataclasses.field(default_factory=list)
    loss: float = math.nan
    loss_change: float = math.nan  # against the baseline's, paired by round
    same_bits: bool = False  # every loss and gradient norm is the baseline's
    beside_root: "Case | None" = None  # the same runs held against the baseline of its baseline, where that has one

    @property
    def any(self) -> Record:
        return (self.runs or self.failures)[-1]

    @property
    def techniques(self) -> tuple[str, ...]:
        return self.any.techniques

    @property
    def family(self) -> str:
        return self.any.family

    @property
    def one_round(self) -> bool:
        """Whether its ratios of speed come from one round; of a baseline, whether it ran in one."""
        return len(self.pairs if self.baseline else self.runs) < LEAST_ROUNDS

    @property
    def place(self) -> tuple[Interval, Interval] | None:
        """Peak and speed beside the baseline of the same rounds, whose own are 1; None where no round has both."""
        if not self.baseline:
            return Interval(1, 1, 1), Interval(1, 1, 1)
        return (self.peak_ratio, self.speed_ratio) if self.pairs else None

    @property
    def reads_alike(self) -> bool:
        """Whether its steps train on its baseline's tokens."""
        return all(reads(run) == reads(base) for run, base in self.pairs)

    @property
    def ranked(self) -> bool:
        """Whether its speed can be ranked: not one of a single round, which is not known well enough, nor one of other tokens."""
        return not self.one_round and self.reads_alike

    @property
    def noisy(self) -> bool:
        return any(run.noisy for run in self.runs)

    @property
    def command(self) -> str:
        """Repeats its last run by hand, without the run.dir of the sweep, which is gone."""
        return re.sub(r" run\.dir=\S+", "", self.any.command)


@dataclasses.dataclass
class Sweep:
    """The cases of one model in one part of a plan, on one machine at one commit: only these are compared with each
    other."""

    model: str
    machine: dict
    commit: str
    dirty: bool
    cases: list[Case]
    notes: list[str]
    part: str = ""  # its name in the plan

    @property
    def title(self) -> str:
        model = pathlib.PurePath(self.model).stem  # for a file of settings: its name without folder and suffix
        return f"{model} ({self.part})" if self.part else model

    def case(self, name: str) -> Case | None:
        return next((case for case in self.cases if case.name == name), None)


def range_over(values: list[float]) -> Interval | None:
    return Interval(statistics.median(values), min(values), max(values)) if values else None


def resampled_medians(values: np.ndarray, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Medians of samples drawn from values with replacement, of as many each. The samples themselves need not be drawn: the
    places of a sample's middle among the values are those of the middle of so many uniform draws, which are beta-distributed."""
    ordered, count = np.sort(values), len(values)
    middle = count // 2  # draws below the upper one of the middle
    upper = generator.beta(middle + 1, count - middle, size=shape)
    lower = upper if count % 2 else upper * generator.beta(middle, 1, size=shape)
    at_upper, at_lower = (np.minimum((draws * count).astype(int), count - 1) for draws in (upper, lower))
    return (ordered[at_upper] + ordered[at_lower]) / 2


def median_of_rounds(drawn: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(RESAMPLES) medians of as many rounds as there are, drawn with replacement. drawn is (rounds, rounds, RESAMPLES):
    of each round as many draws as there are rounds to draw."""
    picks = generator.integers(len(drawn), size=(1, *drawn.shape[1:]))
    return np.median(np.take_along_axis(drawn, picks, axis=0)[0], axis=0)


def drawn_ratios(pairs: list[tuple[np.ndarray, np.ndarray]], seed: int = SEED) -> np.ndarray:
    """RESAMPLES bootstrap draws of the median over rounds of (median rate of the case / median rate of its baseline):
    rounds are drawn with replacement, and in each the steps of both runs."""
    generator = np.random.default_rng(seed)
    shape = len(pairs), RESAMPLES
    drawn = np.stack([resampled_medians(case, shape, generator) / resampled_medians(base, shape, generator)
                      for case, base in pairs])
    return median_of_rounds(drawn, generator)


def drawn_rates(runs: list[np.ndarray], seed: int) -> np.ndarray:
    """RESAMPLES bootstrap draws of the median over rounds of one case's median rate."""
    generator = np.random.default_rng(seed)
    drawn = np.stack([resampled_medians(rates, (len(runs), RESAMPLES), generator) for rates in runs])
    return median_of_rounds(drawn, generator)


def interval_of(value: float, draws: np.ndarray) -> Interval:
    """The value with the 95 % percentile interval of its draws."""
    low, high = np.percentile(draws, [2.5, 97.5])
    return Interval(value, float(low), float(high))


def ratio_of_rates(pairs: list[tuple[np.ndarray, np.ndarray]]) -> Interval:
    """The median over rounds of (median rate of the case / median rate of its baseline). With fewer than LEAST_ROUNDS
    pairs the interval is of their steps alone, which is no ground for a verdict."""
    value = float(np.median([np.median(case) / np.median(base) for case, base in pairs]))
    return interval_of(value, drawn_ratios(pairs))


def last_loss(run: Record) -> float:
    return run.steps[-1, 2] if len(run.steps) else math.nan


def trained_alike(run: Record, base: Record) -> bool:
    """Whether two runs computed the same at every step, as far as losses and gradient norms tell."""
    norms = run.gradient_norms
    return (len(norms) == len(run.steps) and np.array_equal(norms, base.gradient_norms)
            and np.array_equal(run.steps[:, 2], base.steps[:, 2]))


def paired(runs: list[Record], baselines: list[Record]) -> list[tuple[Record, Record]]:
    """Each run with the baseline of its round; runs without one that saw as many tokens are left out, but for packed ones: what of a
    row no sequence fills is not trained on, so they may see fewer."""
    bases = {base.round: base for base in baselines}
    return [(run, bases[run.round]) for run in runs
            if run.round in bases and (run.tokens == bases[run.round].tokens or "train.tokens_per_device" in run.settings)]


def summarise(case: Case) -> None:
    case.speed = range_over([float(np.median(run.rates)) for run in case.runs])
    case.step_ms = range_over([float(np.median(run.timed_ms)) for run in case.runs])
    case.peak = range_over([run.peak for run in case.runs])
    case.predicted = range_over([run.predicted_peak for run in case.runs])
    case.loss = statistics.median(map(last_loss, case.runs)) if case.runs else math.nan


def reads(record: Record) -> list[str | None]:
    """What decides which tokens a step trains on, beside the number of rows: losses after other tokens can't be compared."""
    return [record.settings.get(key) for key in ("data.path", "train.sequence", "train.tokens_per_device")]


def compare(case: Case, baseline: Case) -> None:
    case.pairs = paired(case.runs, baseline.runs)
    if case.pairs:
        case.speed_ratio = ratio_of_rates([(run.rates, base.rates) for run, base in case.pairs])
        case.peak_ratio = range_over([run.peak / base.peak for run, base in case.pairs])
        case.same_bits = all(trained_alike(run, base) for run, base in case.pairs)
        if case.reads_alike:
            case.loss_change = statistics.median(last_loss(run) - last_loss(base) for run, base in case.pairs)


def newest(records: list[Record]) -> list[Record]:
    """Of a case that was measured with other settings before, the runs with those of its newest record; and of a run
    that was repeated, the last."""
    ordered = sorted(records, key=lambda record: record.started)
    of_round = {record.round: record for record in ordered if record.settings_hash == ordered[-1].settings_hash}
    return [of_round[number] for number in sorted(of_round)]


def finished(record: Record) -> bool:
    return record.status == "ok" and len(record.steps) > 0


def case_of(name: str, records: list[Record]) -> Case:
    case = Case(name, [record for record in records if finished(record)],
                [record for record in records if not finished(record)], "")
    case.baseline = "" if case.any.is_baseline else case.any.against
    return case


def sweep_of(records: list[Record]) -> Sweep:
    first, notes, cases = records[0], [], []
    for name in dict.fromkeys(record.case for record in records):
        own = [record for record in records if record.case == name]
        kept = newest(own)
        if len(kept) < len(own):
            notes.append(f"{name}: {len(own) - len(kept)} earlier run(s) left out: repeated, or with other settings")
        cases.append(case_of(name, kept))
    sweep = Sweep(first.model, first.machine, first.commit, first.dirty, cases, notes, first.sweep)
    for case in cases:
        summarise(case)
        baseline = sweep.case(case.baseline)
        if baseline:
            compare(case, baseline)
        if case.baseline and not case.pairs and case.runs:
            notes.append(f"{case.name}: no ratios, for its baseline, {case.baseline}, finished in no round of its own "
                         "after as many tokens")
        root = root_of(sweep, case)
        if root and root.name not in (case.name, case.baseline):
            case.beside_root = dataclasses.replace(case, baseline=root.name, pairs=[], speed_ratio=None, peak_ratio=None,
                                                   loss_change=math.nan, same_bits=False)
            compare(case.beside_root, root)
    return sweep


def root_of(sweep: Sweep, case: Case) -> Case | None:
    """The baseline of its baseline and so on, up to one that is held against nothing."""
    for _ in sweep.cases:
        if case is None or not case.baseline:
            return case
        case = sweep.case(case.baseline)
    return None


def beside_roots(sweep: Sweep) -> Sweep:
    """All cases against the baseline that has none itself."""
    return dataclasses.replace(sweep, cases=[case.beside_root or case for case in sweep.cases])


def sweeps(records: list[Record]) -> list[Sweep]:
    """In the order of their first records."""
    groups: dict[tuple, list[Record]] = {}
    for record in records:
        machine = tuple(sorted((key, str(value)) for key, value in record.machine.items()))
        groups.setdefault((record.model, record.sweep, machine, record.commit, record.dirty), []).append(record)
    return [sweep_of(group) for group in groups.values()]


def pareto_front(points: list[tuple[float, float]]) -> list[int]:
    """Indices of the points (memory, speed) that no other point beats, i.e. is at least as good in both and better
    in one; in order of memory."""
    front, fastest = [], -math.inf
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        memory, speed = points[index]
        ties = bool(front) and points[front[-1]] == (memory, speed)
        if speed > fastest or ties:
            front.append(index)
            fastest = speed
    return front


def measured(sweep: Sweep) -> list[Case]:
    return [case for case in sweep.cases if case.runs]


def placed(sweep: Sweep) -> list[Case]:
    """Those that finished in a round of their baseline."""
    return [case for case in measured(sweep) if case.place]


def comparable(sweep: Sweep) -> list[Case]:
    """Those whose speeds can be ranked."""
    return [case for case in placed(sweep) if case.ranked]


def on_front(sweep: Sweep) -> list[Case]:
    """From small to large, by the ratios to the baseline of the same rounds (see beside_roots), of baselines and of what is smaller or
    certainly faster than they are. A baseline beside nothing is no front."""
    cases = comparable(sweep)
    if not any(case.baseline for case in cases):
        return []
    cases = [case for case in cases if not case.baseline or case.place[0].high < 1 or case.place[1].low > 1]
    return [cases[i] for i in pareto_front([tuple(ratio.value for ratio in case.place) for case in cases])]


def flat(settings: dict, prefix: str = "") -> dict[str, str]:
    """{"a": {"b": 1}} as {"a.b": "1"}."""
    items = [flat(value, f"{prefix}{key}.").items() if isinstance(value, dict) else [(prefix + key, str(value))]
             for key, value in settings.items()]
    return dict(itertools.chain.from_iterable(items))
