"""reliability.md: what soaks have tried and found, summed over their records."""
import re
import statistics

import store

MEETINGS = ("before the first save", "between saves", "in a save")
GOALS = {"kills": 10_000, "steps": 10_000, "long": 30_000, "readers": 100_000}
MANY_INPUTS, INPUTS = 50_000_000, 5_000_000  # of each target of the fuzzer
FUZZED_MOST = ("safetensors", "shard", "manifest")
SANITIZERS = {"asan": "ASan and UBSan", "tsan": "ThreadSanitizer"}
NOT_UNDER_TSAN = "TokenExchange.ThreadsChangeNoBitInBf16"  # a team of OpenMP threads, in a library that is not instrumented


def table(header: list[str], rows: list[list]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in line) + " |" for line in lines)


def by_cell(records: list[dict]) -> dict[str, list[dict]]:
    cells: dict[str, list[dict]] = {}
    for record in records:
        cells.setdefault(record["cell"], []).append(record)
    return cells


def kills_text(records: list[dict]) -> str:
    total = store.sums(records)
    wrong = sum(len(record["failures"]) for record in records)
    rows = []
    for cell, own in by_cell(records).items():
        sums = store.sums(own)
        rows.append([f"`{cell}`", sums["kills"], *(sums[where] for where in MEETINGS), sums["stops"], sums["chains"],
                     sum(len(record["failures"]) for record in own)])
    several = store.sums([record for record in records if record.get("ranks", 1) > 1])
    return f"""## Kills

A training is killed by SIGKILL at random moments, and each resumption is the next victim; one disturbance in ten is a
SIGTERM, after which the training must save and end within 5 s and a micro-batch. At the end of each chain, every step's
numbers and the last checkpoint's tensors are compared with those of a training that nobody disturbed.

**{total["kills"]:,} kills of {GOALS["kills"]:,} that are the goal ({total["in a save"]:,} of them left a save half done,
{several["kills"]:,} were of several ranks), and {total["stops"]:,} stops, in {total["chains"]:,} chains; {wrong or "nothing"} wrong.**

{table(["technique", "kills", *MEETINGS, "stops", "chains", "wrong"], rows)}
"""


def of_one_commit(records: list[dict]) -> list[dict]:
    """Those of the commit with which most calls failed: each program has calls of its own."""
    own = [[record for record in records if record["commit"] == commit] for commit in dict.fromkeys(record["commit"] for record in records)]
    return max(own, key=lambda one: store.sums(one)["faults"])


def disks_text(records: list[dict]) -> str:
    rows = []
    for cell, own in by_cell(records).items():
        counted = of_one_commit(own) if any("calls" in record for record in own) else own
        calls = max(record.get("calls", 0) for record in counted)
        rows.append([cell, calls or "", store.sums(counted)["faults"], store.sums(own)["refused"] or "",
                     sum(len(record["failures"]) for record in own)])
    return f"""## Disks

Each call on a file below a training's checkpoints fails, once in each of as many trainings: trainings that save, and trainings
that go on from a checkpoint ("resumed"). Or the checkpoints' disk is full, takes no writes or loses its folder while the
training goes on. The training must succeed or name the mistake in one line, with exit code 2. The next must go on from the last
checkpoint that had its name, which is named again if it was set aside because it could not be read, and end with the bits of a
training that nobody disturbed. The goal is every call that can fail so, of one commit of the program. Refused: the machine did
not permit to mount the small disk.

{table(["fault", "calls that can fail so", "faults", "refused", "wrong"], rows)}
"""


def goal_of_inputs(target: str) -> int:
    return MANY_INPUTS if target in FUZZED_MOST else INPUTS


def finding(record: dict, failure: str) -> str:
    said = re.search(r"runtime error: .*", failure) or re.search(r"SUMMARY: \w+: .*", failure)
    return f"- `{record['cell']}`, commit {record['commit']}: {said[0] if said else failure.splitlines()[0][:300]}"


def inputs_text(records: list[dict]) -> str:
    found = [finding(record, failure) for record in records for failure in record["failures"]]
    kept = "What was wrong:\n\n" + "\n".join(found) + "\n"
    rows = [[f"`{cell}`", store.sums(own)["inputs"], goal_of_inputs(cell),
             sum(len(record["failures"]) for record in own)] for cell, own in by_cell(records).items()]
    return f"""## Inputs

Readers of files that others may have made, fuzzed by libFuzzer under ASan and UBSan (`scripts/fuzz.sh`). An input is wrong that
crashes a reader, takes it a second or fills 2 GiB.

{table(["reader", "inputs", "goal", "wrong"], rows)}
""" + ("\n" + kept if found else "")


def memory_text(records: list[dict]) -> str:
    total = store.sums(records)
    wrong = sum(len(record["failures"]) for record in records)
    return f"""## Memory

moe-pico with a budget that is drawn anew every few steps, from what the smallest micro-batch needs to more than the largest
does; then budgets with room, until the micro-batch has grown back. At every step the ledger equals the sum of the
allocator's blocks, which never pass the budget. Loss and gradient norm of every step, and the last weights and optimizer
state, have the bits of a training that is given the same micro-batches and no budget.

**{total["steps"]:,} steps of {GOALS["steps"]:,} that are the goal, {total["changes"]:,} changes of the micro-batch and
{total["refusals"]:,} steps that were refused memory and repeated, in {len(records):,} trainings; {wrong or "nothing"} wrong.**
"""


def readers_text(records: list[dict]) -> str:
    rows = [[cell, store.sums(own)["inputs"], sum(len(record["failures"]) for record in own)] for cell, own in by_cell(records).items()]
    return f"""## Readers of the Python scripts

Valid files in which a field or some bytes were changed. Each must be read, or refused by the reader's own error, within a
second of CPU time. {store.sums(records)["inputs"]:,} inputs of {GOALS["readers"]:,} that are the goal.

{table(["file of", "inputs", "wrong"], rows)}
"""


def seeds_table(records: list[dict]) -> str:
    rows = [[cell, store.sums(own)["seeds"], sum(len(record["failures"]) for record in own)] for cell, own in by_cell(records).items()]
    return table(["tests of", "seeds", "wrong"], rows)


def streams_text(records: list[dict]) -> str:
    return f"""## Streams

Copies, placement and captured steps on the emulated GPU. All work comes as late as an event or a wait permits, or earlier,
drawn by a seed; results are compared bit for bit with those of a run without copies or without a graph.

{seeds_table(records)}
"""


def races_text(records: list[dict]) -> str:
    return f"""## Races

Every kernel on the emulated GPU, which looks for accesses that no barrier or fence orders. A seed draws the order of blocks
and threads.

{seeds_table(records)}
"""


def long_text(records: list[dict]) -> str:
    def mib(size: int) -> str:
        return f"{size / 2**20:.1f} MiB"

    rows = []
    for record in records:
        found = record["found"]
        begin, end = found["at_a_tenth"], found["at_nine_tenths"]
        changes = [f"{mib(begin['resident_bytes'])} → {mib(end['resident_bytes'])}",
                   *(f"{begin[key]} → {end[key]}" for key in ("handles", "allocated_bytes"))]
        low, _, high = statistics.quantiles(found["cost_ratios"], n=4, method="inclusive")
        turns = f"{found['cost_ratio']:.3f}; half of {len(found['cost_ratios'])} between {low:.2f} and {high:.2f}"
        rows.append([found["steps"], *changes, turns, "; ".join(record["failures"]) or "nothing"])
    return f"""## Long training

moe-pico, from a tenth to nine tenths of its steps, of which {GOALS["long"]:,} are the goal; then the CPU time of its steps over
those of a fresh training, taken in turns: their median, and between what half of them lie. Ten turns of many steps, as at
first, are too few on a machine whose speed changes from turn to turn.

{table(["steps", "resident memory", "file handles", "allocated bytes", "late over fresh", "wrong"], rows)}
"""


def filled_text(records: list[dict]) -> str:
    rows = []
    for cell, own in by_cell(records).items():
        found = own[-1]["found"]
        wrong = sum(len(record["failures"]) for record in own)
        if not found:
            rows.append([f"`{cell}.sh`", *[""] * 6, wrong])
            continue
        changes = "<br>".join(f"`{change}`" for change in found["changes"])
        losses, peak = found["losses"], found["peak_bytes"]
        measured = f"{peak / 2**20:.2f} MiB ({peak / found['predicted_bytes'] - 1:+.2%})"
        rows.append([f"`{cell}.sh`", changes, f"{found['filled_share']:.0%}", found["steps"], f"{losses[0]:.3f} → {losses[-1]:.3f}",
                     f"{found['predicted_bytes'] / 2**20:.2f} MiB", measured, wrong])
    return f"""## Filled cards

The training scripts with `--fill`: rows and sequences that fill the card by prediction for CUDA, and their miniatures at 1/64
trained on the CPU. The loss must stay finite and fall, and the peak be the predicted one within 1 %, beside scratch inside LibTorch's products.

{table(["script", "filled by", "of its card", "steps", "loss", "predicted peak", "measured peak", "wrong"], rows)}
"""


def not_run(records: list[dict], sanitizer: str) -> str:
    """The test programs that no run under the sanitizer has tried."""
    own = [record for record in records if record["sanitizer"] == sanitizer]
    tried = {record["cell"] for record in own}
    left = [f"`{name}`" for name in (own[-1]["programs"] if own else []) if name not in tried]
    return f"Not run under {SANITIZERS[sanitizer]}: {', '.join(left)}." if left else ""


def sanitizers_text(records: list[dict]) -> str:
    latest = {(record["sanitizer"], record["cell"]): record for record in records}
    rows = [[SANITIZERS[sanitizer], f"`{cell}`", record["counts"].get("tests", 0),
             " ".join("; ".join(record["failures"]).split()) or "nothing", record["commit"]]
            for (sanitizer, cell), record in latest.items()]
    left = "\n".join(line for sanitizer in SANITIZERS if (line := not_run(records, sanitizer)))
    return f"""## Sanitizers

Test programs built with sanitizers and run by `scripts/sanitize.sh`; the last run of each counts. LibTorch is not instrumented:
what goes wrong inside it is not seen, nor, under ThreadSanitizer, what only its code orders or accesses. GCC's OpenMP
library is not instrumented either: to ThreadSanitizer all that it hands to a team of threads looks unordered. So the one test that
makes a team is left out there, `{NOT_UNDER_TSAN}`.

{table(["sanitizer", "test program", "tests", "found", "commit"], rows)}

{left}
"""


def beside_goals(records: list[dict]) -> str:
    """What was counted of each part that has a goal, also where that is nothing."""
    def counted(part: str, count: str) -> int:
        return store.sums([record for record in records if record["part"] == part])[count]

    return table(["counted", "so far", "goal"], [
        ["kills", counted("kills", "kills"), GOALS["kills"]],
        ["calls on files that failed", counted("disks", "faults"), "every call"],
        ["inputs of the fuzzer", counted("inputs", "inputs"), f"{MANY_INPUTS:,} or {INPUTS:,} of each reader"],
        ["inputs of the Python readers", counted("readers", "inputs"), GOALS["readers"]],
        ["steps with drawn budgets", counted("memory", "steps"), GOALS["steps"]],
        ["steps of long trainings", counted("long", "steps"), GOALS["long"]],
        ["tests under sanitizers", counted("sanitizers", "tests"), "every test program"]])


def text(records: list[dict]) -> str:
    parts = {"kills": kills_text, "disks": disks_text, "inputs": inputs_text, "memory": memory_text,
             "readers": readers_text, "long": long_text, "streams": streams_text, "races": races_text, "filled": filled_text,
             "sanitizers": sanitizers_text}
    commits = list(dict.fromkeys(record["commit"] for record in records))
    machines = list(dict.fromkeys(record["machine"] for record in records))
    sections = [write(own) for part, write in parts.items() if (own := [record for record in records if record["part"] == part])]
    if not records:
        return "# Reliability\n\nNo records.\n"
    first, last = (records[k]["date"][:10] for k in (0, -1))
    return (f"# Reliability\n\nMade by `scripts/soak.sh` from {len(records):,} records, {first} to {last}; "
            f"commits {', '.join(commits)}; {'; '.join(machines)}.\n\n{beside_goals(records)}\n\n" + "\n".join(sections))
