"""Rows of claims.md for tests: of claims with dry runs, and of claims with the records of sweeps."""
import pathlib
import sys

from report_calls import sweeps_of
import sweep_records as made
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from report.claims import judge as judging, page, stated as statements  # noqa: E402

ALL = {entry["id"]: entry for entry in yaml.safe_load(page.CLAIMS.read_text())["claims"]}


def rows_of(entries: list[dict], dry: dict[str, dict]) -> list[judging.Row]:
    """`dry`: the dry runs of each claim."""
    judge = judging.Judge([], [], [], dry)
    return [judge.row(entry) for entry in entries]


def row_of(claim: str, runs: dict) -> judging.Row:
    (row,) = rows_of([ALL[claim]], {claim: runs})
    return row


def run_of(peak: float, activations: float, flops: float) -> dict:
    return {"peak_bytes": peak, "peak_bytes_by_kind": {"activations": activations}, "flops": flops}


def swept(tmp_path: pathlib.Path, rows: list[dict], stated: dict, *names: str) -> judging.Row:
    """The verdict on a claim with these figures about techniques of these names."""
    entry = {"id": "a.b", "text": "t", "figures": stated}
    techniques = [statements.Technique(name, [], ["a.b"]) for name in names]
    return judging.Judge(sweeps_of(tmp_path, rows), techniques, statements.claims_of(entry, "A"), {}).row(entry)


def twice(*arguments, **changes) -> list[dict]:
    """The record of two rounds alike."""
    return [made.record(*arguments, round=number, **changes) for number in (1, 2)]
