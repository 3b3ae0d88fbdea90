"""Dry runs that claims about bytes are held against: `moelab estimate`, stored once as records."""
import dataclasses
import functools
import json
import pathlib
import subprocess
from collections.abc import Callable

import yaml

from ..figures import Interval
from ..records import ReportError
from ..working import each
from . import advice_judges, dry_judges, findings
from .dry_judges import ROOT
from .findings import Finding
from .stated import ARITHMETIC, BATCH, MEMORY_OF, SAVED, Claim, Technique
from .verdicts import Measurement, brief

SCHEMA = 1
JUDGES = vars(dry_judges) | vars(advice_judges)
WIDER = 4  # times the batch of the run `more`


@dataclasses.dataclass(frozen=True)
class DryClaim:
    """An entry of dry_runs.yaml. runs: the words after `moelab estimate --json`, by name; judge: see dry_judges.py
    and advice_judges.py."""

    runs: dict[str, list[str]]
    judge: Callable[[dict[str, dict], dict], dry_judges.Judged] | None


def dry_claim(runs: dict[str, str] | None = None, judge: str = "", **more) -> DryClaim:
    words = {name: text.split() for name, text in (runs or {}).items()}
    return DryClaim(words, functools.partial(JUDGES[judge], **more) if judge else None)


DRY_CLAIMS = {claim: dry_claim(**entry) for claim, entry in
              yaml.safe_load((pathlib.Path(__file__).parent / "dry_runs.yaml").read_text()).items()}


def saved(runs: dict, of: str) -> float:
    """Percent of this memory, the whole peak if it has no name, that the run `more` saves of the run `none`."""
    def held(run: dict) -> float:
        return sum(run["peak_bytes_by_kind"][kind] for kind in MEMORY_OF[of]) if of else run["peak_bytes"]
    return 100 * (1 - held(runs["more"]) / held(runs["none"]))


def larger_batch(runs: dict) -> float:
    """Percent that the batch of the run `more` can grow until it has the peak of the run `none`. The run `wider` has WIDER
    times its batch, and peaks grow evenly."""
    none, more, wider = (runs[name]["peak_bytes"] for name in ("none", "more", "wider"))
    return 100 * (WIDER - 1) * (none - more) / (wider - more)


def counted(claim: Claim, runs: dict) -> Finding | None:
    """What the pair of runs `none` and `more` says of the figure; None without such runs, or where it says nothing."""
    dry = DRY_CLAIMS.get(claim.id)
    if dry is None or dry.judge or runs.keys() != dry.runs.keys():
        return None
    least = claim.condition.not_below_parameters
    if least and runs["none"]["model"]["parameters"] < least:
        return None
    if claim.measure == SAVED and claim.of in ("", *MEMORY_OF):
        value = saved(runs, claim.of)
    elif claim.measure == ARITHMETIC:
        value = dry_judges.extra_percent(runs)
    elif claim.measure == BATCH and "wider" in runs:
        value = larger_batch(runs)
    else:
        return None
    return findings.found(claim, None, Interval(value, value, value))


def measurement(claims: list[Claim], runs: dict) -> Measurement | None:
    """What the dry runs of a claim say of its figures."""
    found = [finding for claim in claims if (finding := counted(claim, runs))]
    if not found:
        return None
    said = ", ".join(dict.fromkeys(map(brief, found)))
    return Measurement(f"dry run of {shared_words(found[0].claim.id)}", f"{said} ({how_found(found[0].claim.id)})", found)


def shared_words(claim: str) -> str:
    """What the runs `none` and `more` have in common: the model and its sizes."""
    none, more = (DRY_CLAIMS[claim].runs[name] for name in ("none", "more"))
    return "`" + " ".join(word for word in none if word in more and not word.startswith("--")) + "`"


def estimate(program: pathlib.Path, words: list[str]) -> dict:
    command = [str(program.resolve()), "estimate", "--json", *words]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)  # files in the words are relative to it
    if run.returncode not in (0, 3):
        raise ReportError(f"{' '.join(command)}: {run.stderr.strip()}")
    full = json.loads(run.stdout)
    kept = ("model", "gpu", "peak_bytes", "on_card_bytes", "peak_bytes_by_kind", "state_bytes", "host_bytes", "nvme_bytes",
            "sent_bytes", "memory_limit_bytes", "fits")
    # Of ranks that share matrices or layers the program states no work of a step.
    flops = sum(amount for term, amount in (full["step_work"] or {}).items() if term.startswith(("products", "attention")))
    ranks = {"ranks": full["ranks"]} if "ranks" in full else {}
    return {name: full[name] for name in kept} | {"flops": flops} | ranks


def how_found(claim: str) -> str:
    """The dry runs of a claim as calls of the program."""
    calls = "; ".join(f"`estimate {' '.join(words)}`" for words in DRY_CLAIMS[claim].runs.values())
    return f"dry run: {calls}" if calls else "by tests" if DRY_CLAIMS[claim].judge.func is advice_judges.held_by_tests else "by formula"


def made_by(program: pathlib.Path) -> dict:
    """All dry runs made anew, as read() wants them from a file. What several claims are held against is run once."""
    wanted = dict.fromkeys(tuple(words) for dry in DRY_CLAIMS.values() for words in dry.runs.values())
    made = {words: estimate(program, list(words)) for words in each("claims: dry run", list(wanted))}
    runs = [{"claim": claim, "run": name, "arguments": words, "estimate": made[tuple(words)]}
            for claim, dry in DRY_CLAIMS.items() for name, words in dry.runs.items()]
    return {"schema": SCHEMA, "runs": runs}


def refuse_settings(program: pathlib.Path, techniques: list[Technique], path: pathlib.Path) -> None:
    """Throws ReportError for a setting of the table at `path` that the program doesn't know, or not with that value."""
    for row in each("claims: asking the program about technique", techniques):
        words = [f"{key}={value}" for key, value in row.settings.items()]
        command = [str(program), "estimate", "--print-config", *words]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise ReportError(f"{path}: {row.name}: {run.stderr.strip().removeprefix('moelab: command line: ')}")


def by_claim(content: dict, path: pathlib.Path) -> dict[str, dict[str, dict]]:
    """Estimates by claim and run. Estimates of other settings than those in dry_runs.yaml are refused."""
    runs: dict[str, dict[str, dict]] = {}
    if content["schema"] != SCHEMA:
        raise ReportError(f"{path}: schema {content['schema']}, expected {SCHEMA}")
    for fields in content["runs"]:
        claim, run = fields["claim"], fields["run"]
        if claim not in DRY_CLAIMS or DRY_CLAIMS[claim].runs.get(run) != fields["arguments"]:
            raise ReportError(f"{path}: {claim}: {run} was dry-run with other settings; --program makes it anew")
        runs.setdefault(claim, {})[run] = fields["estimate"]
    return runs


def read(path: pathlib.Path) -> dict[str, dict[str, dict]]:
    try:
        return by_claim(json.loads(path.read_text()), path)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}; --program makes it") from None
    except (ValueError, KeyError, TypeError):
        raise ReportError(f"{path}: not the dry runs that claims.py --program writes") from None
