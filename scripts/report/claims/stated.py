"""What guides claim, and the table of techniques, as their files state them. Misspelt names are refused."""
import dataclasses
import json
import math
import pathlib

import yaml

from ..figures import Case
from ..records import ReportError

SCHEMA = 1
SPEED, STEP_TIME, ARITHMETIC, SAVED = "added tokens/s", "added step time", "added arithmetic", "memory saved"
BATCH = "larger batch"
COUNTED = (ARITHMETIC, BATCH)  # by dry runs: no record of a sweep says them
COSTS = (STEP_TIME, ARITHMETIC)
# The figures of a claim that sweeps or pairs of dry runs judge: what is measured, and the figure in percent.
FIGURES = {
    "memory_saved_percent": (SAVED, lambda percent: percent),
    "reduction_factor": (SAVED, lambda times: 100 * (1 - 1 / times)),
    "slowdown_percent": (STEP_TIME, lambda percent: percent),
    "slowdown_factor": (STEP_TIME, lambda times: 100 * (times - 1)),
    "extra_compute_percent": (ARITHMETIC, lambda percent: percent),
    "speed_percent": (SPEED, lambda percent: percent),
    "speedup_factor": (SPEED, lambda times: 100 * (times - 1)),
    "batch_factor": (BATCH, lambda times: 100 * (times - 1)),  # in the peak that the run without it has
}
# The kinds of memory behind what a claim names as `of`.
MEMORY_OF = {
    "activation memory": ("activations",),
    "attention memory": ("activations.attention",),
    "weights and activations": ("parameters", "master", "activations"),
}
NAMES = yaml.safe_load((pathlib.Path(__file__).parent / "names.yaml").read_text())
CONDITIONS, UNJUDGED = NAMES["conditions"], NAMES["unjudged"]
KNOWN_FIGURES = {"of", *FIGURES, *CONDITIONS, *UNJUDGED, *NAMES["ratios"], *NAMES["stated"]}
KNOWN_MEMORY = {"", *MEMORY_OF, *NAMES["other_memory"]}
SIXTEEN_BITS = ("fp16", "bf16")
UNITS = {"_percent": " %", "_gb": " GB", "_mb": " MB"}
# Figures in words, by name; a second text is for values below 0, without their sign. percent: what a factor is in percent.
WORDS = {
    "memory_saved_percent": ["saves {}"], "reduction_factor": ["{} × less ({percent} %)"],
    "slowdown_percent": ["{} more time", "{} less time"], "slowdown_factor": ["{} × the time ({percent} % more)"],
    "speed_percent": ["{} more tokens/s", "{} fewer tokens/s"], "speedup_factor": ["{} × the speed ({percent} % more)"],
    "extra_compute_percent": ["{} more FLOPs"], "batch_factor": ["{} × the batch"], "claimed_tokens_per_second": ["{} tokens/s"],
    "bytes_per_parameter": ["{} bytes a parameter"], "adamw": ["AdamW {} × the weights"], "adafactor": ["Adafactor {} ×"],
    "adam8bit": ["8-bit Adam {} ×"], "adamw_mb": ["AdamW {}"], "adafactor_mb": ["Adafactor {}"],
    "gpu_gb": ["fits {}"], "memory_gb": ["fits {}"], "claimed_gb": ["takes {}"], "claimed_memory_gb": ["takes {}"],
    "original_gb": ["{} before"], "optimized_gb": ["{} after"], "used_gb": ["{} used"], "limit_gb": ["of {}"],
    "per_layer_gb": ["{} a layer"], "per_layer_mb": ["{} a layer"], "total_gb": ["{} in all"], "recomputed_gb": ["{} recomputed"],
    "total_without_activations_gb": ["{} in all"],
    "from_parameters": ["from {} parameters on"], "not_below_parameters": ["not below {} parameters"], "from_sequence": ["from {} tokens on"],
}


@dataclasses.dataclass(frozen=True)
class Condition:
    """Where a claim says that it holds: from either of two sizes on. 0 or "" where it names no such bound."""

    from_parameters: float = 0
    from_sequence: float = 0
    not_below_parameters: float = 0
    every: int = 0  # N of "every Nth block"; where it does not divide the layers, another share of them is taken
    last_block: int = 0  # the highest number in a list of blocks, counted from 0
    against: str = ""  # the precision that the baseline must have, as far as its bytes go

    def below(self, case: Case) -> bool:
        """Whether the case is where the claim says that it doesn't hold."""
        return case.any.parameters < self.not_below_parameters

    def excludes(self, case: Case) -> str:
        """Why the case says nothing of the claim; "" where it does."""
        if self.below(case):
            return f"below {shown(self.not_below_parameters)} parameters"
        starts = [one for one in ((self.from_parameters, case.any.parameters, "parameters"),
                                  (self.from_sequence, case.any.sequence, "tokens")) if one[0]]
        if starts and not any(size >= bound for bound, size, _ in starts):
            return "not from " + " or ".join(f"{shown(bound)} {unit}" for bound, _, unit in starts) + " on"
        if (self.every and layers_of(case) % self.every > 0) or layers_of(case) <= self.last_block:
            return f"{layers_of(case):.0f} layers, of which another share is taken"
        base = case.pairs[0][1].resolved.get("precision", {}).get("compute", "another precision") if case.pairs else ""
        return f"against {base}" if self.against and base not in SIXTEEN_BITS else ""


@dataclasses.dataclass(frozen=True)
class Claim:
    """One figure of one claim of a guide, in percent; `of` names the memory it is about, "" the whole peak."""

    id: str
    guide: str
    text: str
    figure: str  # in the guide's terms, as text
    measure: str  # one of those in FIGURES
    low: float
    high: float
    of: str
    arithmetic: str
    condition: Condition = Condition()

    @property
    def more_is_better(self) -> bool:
        return self.measure not in COSTS

    @property
    def percent(self) -> str:
        return f"{self.low:.0f} %" if self.low == self.high else f"{self.low:.0f}–{self.high:.0f} %"


@dataclasses.dataclass(frozen=True)
class Guides:
    """A file of claims. titles: by the part of an id before its dot; claims: the figures that a sweep can judge, in the
    order of the file."""

    titles: dict[str, str]
    entries: list[dict]
    claims: list[Claim]


@dataclasses.dataclass(frozen=True)
class Technique:
    """parts: what it puts together, empty for a single one; claims: the ids of what is said of it; settings: its own,
    by their full names; ranks: that train together; title: what it is."""

    name: str
    parts: list[str]
    claims: list[str]
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    ranks: int = 1
    title: str = ""


def layers_of(case: Case) -> float:
    """Layers of the model; NaN where the record doesn't say."""
    return case.any.resolved.get("model", {}).get("layers", math.nan)


def require_known(names, known, of: str) -> None:
    """Raises ValueError naming those of `of` that are not known."""
    if unknown := sorted(str(name) for name in names if name not in known):
        raise ValueError(f"{of} has the unknown {', '.join(unknown)}")


def shown(value: object) -> str:
    """[2, 3] as "2 to 3", 5e8 as "500M"."""
    if isinstance(value, list):
        is_range = len(value) == 2 and all(isinstance(end, (int, float)) for end in value) and value[0] < value[1]
        return (" to " if is_range else ", ").join(map(shown, value))
    if isinstance(value, float):
        return f"{value / 1e9:g}B" if value >= 1e9 else f"{value / 1e6:g}M" if value >= 1e6 else f"{value:g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def unit_of(name: str) -> str:
    """The ending of a figure's name that says its unit."""
    return next((end for end in UNITS if name.endswith(end)), "")


def value_text(name: str, value: object) -> str:
    """("memory_saved_percent", [60, 80]) as "60 to 80 %"."""
    return f"{shown(value)}{UNITS.get(unit_of(name), '')}"


def in_percent(name: str, value: object) -> list[float]:
    """The ends of one of the FIGURES in percent."""
    return [FIGURES[name][1](number_of(end, name)) for end in (value if isinstance(value, list) else [value])]


def figure_text(name: str, value: object) -> str:
    """("memory_saved_percent", [60, 80]) as "saves 60 to 80 %", ("reduction_factor", 2) as "2 × less (50 %)"."""
    more, *less = WORDS.get(name, [name.removesuffix(unit_of(name)).replace("_", " ") + " {}"])
    if less and isinstance(value, (int, float)) and value < 0:
        more, value = less[0], -value
    percent = shown([round(end) for end in in_percent(name, value)]) if "{percent}" in more else ""
    return more.format(value_text(name, value), percent=percent)


def is_figure(name: str) -> bool:
    """Whether the claim says what comes out. The rest are settings, and where it holds, which its sentence says."""
    return name in {"not_below_parameters", *FIGURES, *UNJUDGED, *NAMES["ratios"]} or (name.endswith(tuple(UNITS)) and name != "device_gb")


def condition_of(stated: dict) -> Condition:
    """`against` is of bytes alone, so that any 16 bits will do for one kind of them."""
    blocks = stated.get("layers")
    condition = Condition(**{name: stated[name] for name in CONDITIONS if name in stated},
                          last_block=max(blocks) if isinstance(blocks, list) else 0)
    if condition.against not in ("", *SIXTEEN_BITS):
        raise ValueError(f"against {condition.against}; one of {', '.join(SIXTEEN_BITS)} is known")
    if not all(isinstance(bound, (int, float)) for name, bound in vars(condition).items() if name != "against"):
        raise ValueError("a condition is a number")
    return condition


def number_of(value: object, name: str) -> float:
    if not isinstance(value, (int, float)):
        raise ValueError(f"{name} is not a number: {value}")
    return value


def claims_of(entry: dict, guide: str) -> list[Claim]:
    require_known(entry, NAMES["claim_keys"], entry["id"])
    stated, claims = entry.get("figures", {}), []
    require_known(stated, KNOWN_FIGURES, f"{entry['id']}: figures")
    require_known([stated.get("of", "")], KNOWN_MEMORY, f"{entry['id']}: of")
    if not isinstance(entry["text"], str):
        raise ValueError(f"{entry['id']} has no text")
    for name, value in stated.items():
        if name in FIGURES:
            measure, ends = FIGURES[name][0], in_percent(name, value)
            of = stated.get("of", "") if measure == SAVED else ""
            claims.append(Claim(entry["id"], guide, entry["text"], figure_text(name, value), measure, min(ends),
                                max(ends), of, entry.get("arithmetic", ""), condition_of(stated)))
    return claims


def guides_of(content: dict) -> Guides:
    require_known(content, NAMES["file_keys"], "the file")
    ids = [entry["id"] for entry in content["claims"]]
    if twice := sorted({id for id in ids if ids.count(id) > 1}):
        raise ValueError(f"given twice: {', '.join(twice)}")
    titles = content["guides"]
    claims = [claim for entry in content["claims"] for claim in claims_of(entry, titles[entry["id"].partition(".")[0]])]
    return Guides(titles, content["claims"], claims)


def read_guides(path: pathlib.Path) -> Guides:
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}; --claims names the file of claims") from None
    except yaml.YAMLError as error:
        raise ReportError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ReportError(f"{path}: claims of schema {SCHEMA} are expected ('schema: {SCHEMA}' at the top)")
    try:
        return guides_of(content)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ReportError(f"{path}: a claim has an id of a known guide, a text, figures and arithmetic: "
                          f"{error}") from None


def technique_of(row: dict) -> Technique:
    require_known(row, NAMES["technique_keys"], row["name"])
    return Technique(row["name"], row["parts"], [claim["id"] for claim in row["claims"]], dict(row.get("settings", {})),
                     row.get("ranks", 1), row.get("title", ""))


def techniques_of(content: dict) -> list[Technique]:
    require_known(content, NAMES["table_keys"], "the file")
    rows = [technique_of(row) for row in content["techniques"]]
    names = {row.name for row in rows}
    for row in rows:
        require_known(row.parts, names, f"{row.name}: parts")
    return rows


def read_techniques(path: pathlib.Path) -> list[Technique]:
    """Reads what `moelab techniques --json` printed."""
    try:
        content = json.loads(path.read_text())
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, expected {SCHEMA}")
        return techniques_of(content)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}; 'moelab techniques --json' prints it") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"{path}: not the table that 'moelab techniques --json' prints: {error}") from None
