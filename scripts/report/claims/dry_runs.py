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
from . import dry_judges
from .stated import Technique

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class DryClaim:
    """An entry of dry_runs.yaml. runs: the words after `moelab estimate --json`, by name; judge: see dry_judges.py."""

    runs: dict[str, list[str]]
    judge: Callable[[dict[str, dict], dict], dry_judges.Judged] | None


def dry_claim(runs: dict[str, str] | None = None, judge: str = "", **more) -> DryClaim:
    words = {name: text.split() for name, text in (runs or {}).items()}
    return DryClaim(words, functools.partial(getattr(dry_judges, judge), **more) if judge else None)


DRY_CLAIMS = {claim: dry_claim(**entry) for claim, entry in
              yaml.safe_load((pathlib.Path(__file__).parent / "dry_runs.yaml").read_text()).items()}


def counted(claim: str, runs: dict) -> Interval | None:
    """The extra arithmetic of a claim in percent, where sweeps judge its other figures; None without such runs."""
    dry = DRY_CLAIMS.get(claim)
    if dry is None or dry.judge or runs.keys() != dry.runs.keys():
        return None
    return Interval(*[dry_judges.extra_percent(runs)] * 3)


def estimate(program: pathlib.Path, words: list[str]) -> dict:
    command = [str(program), "estimate", "--json", *words]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode not in (0, 3):
        raise ReportError(f"{' '.join(command)}: {run.stderr.strip()}")
    full = json.loads(run.stdout)
    kept = ("model", "gpu", "peak_bytes", "on_card_bytes", "peak_bytes_by_kind", "state_bytes", "host_bytes", "nvme_bytes",
            "sent_bytes", "memory_limit_bytes", "fits")
    flops = sum(amount for term, amount in full["step_work"].items() if term.startswith(("products", "attention")))
    ranks = {"ranks": full["ranks"]} if "ranks" in full else {}
    return {name: full[name] for name in kept} | {"flops": flops} | ranks


def settings_of(claim: str) -> str:
    """The dry runs of a claim as calls of the program."""
    return "; ".join(f"`estimate {' '.join(words)}`" for words in DRY_CLAIMS[claim].runs.values())


def made_by(program: pathlib.Path) -> dict:
    """All dry runs made anew, as read() wants them from a file. What several claims are held against is run once."""
    wanted = dict.fromkeys(tuple(words) for dry in DRY_CLAIMS.values() for words in dry.runs.values())
    made = {words: estimate(program, list(words)) for words in wanted}
    runs = [{"claim": claim, "run": name, "arguments": words, "estimate": made[tuple(words)]}
            for claim, dry in DRY_CLAIMS.items() for name, words in dry.runs.items()]
    return {"schema": SCHEMA, "runs": runs}


def refuse_settings(program: pathlib.Path, techniques: list[Technique], path: pathlib.Path) -> None:
    """Throws ReportError for a setting of the table at `path` that the program doesn't know, or not with that value."""
    for row in techniques:
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
