"""Disturbs moelab for as long as it is given, counts what was tried, and writes down what went wrong. scripts/soak.sh starts it.

Work is done in pieces: first the cells that have been counted least with this program, of inputs with all. What an interruption cuts off is not
counted, the next call goes on. Exit code 1: something went wrong, in this call or in an earlier one on the same commit."""
import argparse
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import budgets  # noqa: E402
import disks  # noqa: E402
import emulated  # noqa: E402
import filled  # noqa: E402
import kills  # noqa: E402
import long_run  # noqa: E402
import page  # noqa: E402
import readers  # noqa: E402
import store  # noqa: E402
from peers import commit_of  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ("kills", "disks", "inputs", "memory", "readers", "long", "streams", "races", "filled")
KILLS_IN_A_PIECE = 50
FAULTS_IN_A_PIECE = 10
FUZZ_SECONDS = 900  # after one to three minutes of building
FUZZ_TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in (ROOT / "tests/fuzz").glob("fuzz_*.cpp"))
LONG_STEPS = 30_000


def text_shards(folder: pathlib.Path) -> pathlib.Path:
    """Shards of real text: the sources of Python's standard library, which are on every machine that runs this."""
    shards = folder / "shards"
    if not shards.exists():
        texts = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))[:40]
        command = [sys.executable, ROOT / "scripts/prepare_data.py", "--bytes", "--out", shards, *texts]
        subprocess.run(command, check=True, capture_output=True)
    return shards


def fuzzed(printed: str, code: int) -> tuple[dict, int, list[str]]:
    """How many inputs libFuzzer tried, whole seconds that the slowest took, and what was wrong."""
    tried, slowest = (re.search(rf"stat::{name}:\s*(\d+)", printed) for name in ("number_of_executed_units", "slowest_unit_time_sec"))
    failures = [] if code == 0 else [f"exit code {code}: {printed[-2000:]}"]
    seconds = int(slowest[1]) if slowest else 0
    if seconds >= 1:
        failures.append(f"an input took {seconds} s")
    return {"inputs": int(tried[1])} if tried else {}, seconds, failures


class Soak:
    def __init__(self, arguments: argparse.Namespace, work: pathlib.Path):
        self.program, self.seed, self.work = str(arguments.program.resolve()), arguments.seed, work
        self.commit = commit_of(self.program)
        self.store = store.Store(arguments.store, self.commit)
        self.data = text_shards(work)
        self.long_steps = arguments.long_steps
        self.cells = kills.cells(self.program)
        self.only = arguments.cell
        self.until = time.monotonic() + 60 * arguments.minutes

    def least(self, part: str, cells, count: str = "", goal=lambda cell: 1, of_all_commits: bool = False) -> str:
        """The cell that was counted least with this program's commit, or with all, as a share of its goal; without a count, the
        one that had the fewest pieces."""
        done = {cell: 0 for cell in cells if not self.only or cell in self.only}
        if not done:
            sys.exit(f"soak: {part} has no cell {' or '.join(self.only)}; there are {', '.join(cells)}")
        for record in store.records(self.store.path):
            if record["part"] == part and record["cell"] in done and (of_all_commits or record["commit"] == self.commit):
                done[record["cell"]] += max(record["counts"].get(count, 0), 1)
        return min(done, key=lambda cell: done[cell] / goal(cell))

    def done(self, part: str, cell: str, count: str) -> int:
        """How much of it was counted with this program's commit."""
        return sum(record["counts"].get(count, 0) for record in store.records(self.store.path)
                   if (record["part"], record["commit"], record["cell"]) == (part, self.commit, cell))

    def report(self, part: str, cell: str, counts: dict, failures: list[str], **more) -> None:
        self.store.add(part, cell, counts, failures, **more)
        said = ", ".join(f"{number} {what}" for what, number in counts.items())
        print(f"{part} {cell}: {said or 'nothing counted'}" + "".join(f"\n  WRONG: {text}" for text in failures), flush=True)

    def kills(self) -> None:
        # a kill of two ranks takes five times as long
        cell = self.least("kills", self.cells, "kills", lambda cell: 1 / self.cells[cell]["ranks"])
        self.seed += 1
        counts, failures = kills.run_chain(self.program, self.data, self.work / "chain", self.cells[cell], KILLS_IN_A_PIECE, self.seed)
        self.report("kills", cell, counts, failures, seed=self.seed, ranks=self.cells[cell]["ranks"])

    @functools.cached_property
    def undisturbed(self) -> disks.Undisturbed:
        return disks.Undisturbed(self.program, self.data, self.work / "disks")

    def disks(self) -> None:
        left = [*disks.EVENTS, *(cell for cell in disks.CELLS if self.calls_left(cell))]
        cell = self.least("disks", left)
        if cell in disks.EVENTS:
            self.report("disks", cell, *disks.fail_disk(self.undisturbed, cell))
            return
        counts, failures = disks.fail_calls(self.undisturbed, cell, self.done("disks", cell, "faults"), FAULTS_IN_A_PIECE)
        self.report("disks", cell, counts, failures, calls=len(self.undisturbed.numbers(cell)))

    def calls_left(self, cell: str) -> int:
        """Calls that have not yet failed so."""
        return len(self.undisturbed.numbers(cell)) - self.done("disks", cell, "faults")

    def inputs(self) -> None:
        target = self.least("inputs", FUZZ_TARGETS, "inputs", page.goal_of_inputs, of_all_commits=True)
        seconds = max(1, min(FUZZ_SECONDS, int(self.until - time.monotonic())))
        done = subprocess.run([ROOT / "scripts/fuzz.sh", str(seconds), target], capture_output=True, text=True)
        counts, slowest, failures = fuzzed(done.stdout + done.stderr, done.returncode)
        self.report("inputs", target, counts, failures, slowest_seconds=slowest)

    def memory(self) -> None:
        self.seed += 1
        counts, failures = budgets.run(pathlib.Path(self.program).parents[1], self.seed)
        self.report("memory", "moe-pico", counts, failures, seed=self.seed)

    def readers(self) -> None:
        cell = self.least("readers", readers.READERS, "inputs")
        self.seed += 1
        self.report("readers", cell, *readers.run(cell, self.seed), seed=self.seed)

    def further_seeds(self, part: str) -> None:
        tests = emulated.tests_of(pathlib.Path(self.program).parents[1], part)
        if not tests:
            sys.exit(f"soak: {self.program}: a build without CUDA has no tests of {part}; configure it with -DMOELAB_CUDA=ON")
        cell = self.least(part, tests, "seeds")
        first = emulated.first_seed(tests[cell]) + self.done(part, cell, "seeds")
        counts, failures = emulated.run(tests[cell], first, emulated.ROUNDS[part])
        self.report(part, cell, counts, failures)

    def streams(self) -> None:
        self.further_seeds("streams")

    def races(self) -> None:
        self.further_seeds("races")

    def filled(self) -> None:
        script = self.least("filled", filled.scripts(), "steps")
        counts, failures, found = filled.run(self.program, script, self.data, self.work / "filled")
        self.report("filled", script, counts, failures, found=found)

    def long(self) -> None:
        found = long_run.run(self.program, self.data, self.work / "long", self.long_steps)
        self.report("long", "moe-pico", {"steps": self.long_steps}, long_run.failures(found), found=found)

    def run(self, parts: list[str]) -> None:
        """The parts in turn until the time is over; a long training once, whatever it takes."""
        if "long" in parts:
            self.long()
        others = [part for part in parts if part != "long"]
        while others and time.monotonic() < self.until:
            for part in others:
                if time.monotonic() < self.until:
                    getattr(self, part)()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="example: scripts/soak.sh --minutes 30 --part kills --store results/soak.jsonl")
    parser.add_argument("--minutes", type=float, required=True, help="how long; the piece that is under way is finished")
    parser.add_argument("--part", action="append", choices=PARTS,
                        help="default: all but long, streams, races and filled; may be given several times")
    parser.add_argument("--cell", action="append",
                        help="only this cell of the part: of kills a row of `moelab techniques`, of filled a script; may be given several times")
    parser.add_argument("--long-steps", type=int, default=LONG_STEPS, help="steps of the part `long`, default: %(default)s")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/ci/bin/moelab", help="default: build/ci/bin/moelab")
    parser.add_argument("--store", type=pathlib.Path, default=ROOT / "build/soak/soak.jsonl",
                        help="file that counts are added to; reliability.md beside it is made from it; default: build/soak/soak.jsonl")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random moments; default: the time")
    arguments = parser.parse_args()
    if not arguments.program.exists():
        parser.error(f"{arguments.program} does not exist: cmake --preset ci && cmake --build --preset ci, or name another by --program")
    with tempfile.TemporaryDirectory(prefix="moelab-soak-") as folder:
        soak = Soak(arguments, pathlib.Path(folder))
        try:
            soak.run(arguments.part or ["kills", "disks", "inputs", "memory", "readers"])
        except KeyboardInterrupt:
            print("interrupted; what was finished is counted", file=sys.stderr)
    records = store.records(arguments.store)
    arguments.store.with_name("reliability.md").write_text(page.text(records))
    return 1 if any(record["failures"] for record in records if record["commit"] == soak.commit) else 0


if __name__ == "__main__":
    sys.exit(main())
