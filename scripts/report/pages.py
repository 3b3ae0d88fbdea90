"""What the report says of a sweep, as blocks of a document."""
import functools
import pathlib
import re
import statistics

from . import built, cards, quality, rank_pages, sweep_part_pages, sweep_parts
from .byte_units import human_bytes
from .claims import page as claims
from .claims.findings import Finding
from .claims.stated import Technique
from .document import Commands, Fold, Heading, Items, Picture, Table, Text, pictures, plain, table_plain
from .figures import RESAMPLES, SEED, Case, Sweep, beside_roots, comparable, measured, on_front, placed
from .format import (CHANGE_WORDS, case_point, changes, failure_word, kinds_of, loss_change, machine_text, percent, predicted, provenance,
                    rounds_of, speed_times, spread, times)
from .plots import pareto, run_curves
from .plots.images import png
from .records import WARM_UP
from .rendering import to_html, to_markdown
from .sidecars import Sidecars
from .working import each, working

TITLE = "What memory techniques cost"
AT = "When this page was made, the last commit to what is built was "


def case_row(case: Case, front: list[Case]) -> list[str]:
    rounds = rounds_of(case)
    if not case.runs:
        return [case.name, f"**failed**: {failure_word(case)}", "", "", "", "", "", rounds, "", "", "", ""]
    number = f"{front.index(case) + 1}" if case in front else ""
    return [case.name, times(case.peak_ratio), speed_times(case), f"{case.speed.value:,.0f}", human_bytes(case.peak.value),
            loss_change(case), number, rounds, spread(case.speed, len(case.runs)), predicted(case),
            f"{case.step_ms.value:,.0f} ms", f"{case.loss:.3f}"]


def case_table(sweep: Sweep) -> Table:
    """The cases beside the baseline: all single techniques, and what else is on the front."""
    headings = ["case", "memory", "speed", "tokens/s", "peak", "change", "front", "rounds", "spread", "predicted", "step",
                "loss"]
    front = on_front(sweep)
    shown = [case for case in sweep.cases if case.family == "single" or case in front]
    repeated = any(case.baseline and not case.one_round for case in placed(sweep))
    caption = (f"{'Medians over the rounds. ' if repeated else ''}memory and speed: ratios to the baseline of the same round"
               f"{', with 95 % intervals' if repeated else ', the only one'}.")
    if len({run.sweep for case in sweep.cases for run in case.runs}) > 1:
        caption += " Parts of the sweep ran at different times: compare ratios, not tokens/s."
    return Table(caption, headings, [case_row(case, front) for case in shown])


def columns(sweep: Sweep) -> Fold:
    return Fold("What the columns and colours mean", [Text(
        "memory: its interval is from the smallest to the largest round, and left out where all agree. peak: bytes held at most; "
        "predicted: by a dry run, and how much more was measured; step: its time. loss: nats a token after the last step "
        f"{steps_text(sweep)}; change: how much higher than the baseline's. {CHANGE_WORDS} front: its number from small to large, by memory "
        "and speed, where nothing is surely both smaller and faster, of the baseline and what is smaller or surely faster than it. What ran in "
        "a single round has no interval. Hollow in the picture, and without a place on the front: a single round, or steps that read other "
        "tokens than the baseline's.")])


def wait_blocks(sweep: Sweep) -> list:
    """How long the steps of each case waited for what is off the device; nothing where none did."""
    def share(case: Case, home: str) -> str:
        shares = [run.waited[home] for run in case.runs if home in run.waited]
        return f"{statistics.median(shares):.1%} ({min(shares):.1%}–{max(shares):.1%})" if shares else "–"
    rows = [[case.name, share(case, "host"), share(case, "nvme"), f"{len(case.runs)}"] for case in measured(sweep)
            if any(run.waited for run in case.runs)]
    return [Table("Steps that wait: the share of their time in which they stood still until weights, state or saved tensors had come from "
                  "host memory or a file, or gone there; the lowest and the highest round in brackets.",
                  ["case", "for host memory", "for a file", "rounds"], rows)] if rows else []


def steps_text(sweep: Sweep) -> str:
    """After how many steps and tokens the losses are taken."""
    steps = {len(case.runs[-1].steps) for case in measured(sweep)}
    tokens = {case.runs[-1].tokens for case in measured(sweep)}
    return f"(step {max(steps)}, {max(tokens):,.0f} tokens, which says nothing of a long run)" if steps else ""


def names(cases: list[Case]) -> str:
    return ", ".join(f"`{case.name}`" for case in cases)


def answer(what: str, case: Case) -> str:
    figures = f"{case.speed.value:,.0f} tokens/s in {human_bytes(case.peak.value)}{', in a single round' if case.one_round else ''}"
    if not case.baseline:
        return f"{what}: `{case.name}`, {figures}."
    peak, speed = case.place
    return f"{what}: `{case.name}`, {speed.value:.2f} × the speed in {peak.value:.2f} × the peak of `{case.baseline}` ({figures})."


def fastest(cases: list[Case]) -> str:
    """Of cases whose speed can be ranked."""
    best = max(cases, key=lambda case: case.place[1].value)
    speed = best.place[1]
    spans = f" Its interval, {speed.low:.2f} to {speed.high:.2f}, spans 1: it may be no faster than the baseline."
    return answer("Fastest", best) + (spans if best.baseline and speed.low <= 1 <= speed.high else "")


def short_answers(sweep: Sweep) -> list[str]:
    """sweep: its cases beside one baseline (see beside_roots), as in all that compares them with each other."""
    if not measured(sweep):
        return ["No case of this sweep finished."]
    cases, sure = placed(sweep), comparable(sweep)
    answers = []
    if any(case.baseline for case in sure):
        answers.append(fastest(sure))
    if cases:
        answers.append(answer("Smallest", min(cases, key=lambda case: (case.place[0].value, -case.place[1].value))))
    numbered = ", ".join(f"{number} `{case.name}`" for number, case in enumerate(on_front(sweep), 1))
    if numbered:
        answers.append(f"On the front, from small to large: {numbered}. Nothing is surely both smaller and faster.")
    others = [case for case in cases if not case.reads_alike]
    if others:
        answers.append(f"Not ranked by speed, for their steps read other tokens than the baseline's: {names(others)}.")
    once = sum(case.one_round for case in cases)
    if once:
        answers.append(f"{once} of {len(measured(sweep))} cases ran in a single round: their bytes are exact, their speed is uncertain.")
    losers = [case for case in sure if case.baseline and case.speed_ratio.high < 1 and case.peak_ratio.low >= 1]
    failed = [case for case in sweep.cases if case.failures]
    if losers:
        answers.append(f"Slower than the baseline and no smaller: {names(losers)}.")
    if failed:
        answers.append(f"With runs that didn't finish: {names(failed)}.")
    return answers


def pareto_caption(sweep: Sweep, effects: dict[str, quality.Effect]) -> str:
    """Of what is drawn."""
    cases = placed(sweep)
    repeated = any(case.baseline and not case.one_round for case in cases)
    said = f"A point a case beside its baseline{', with its 95 % interval' if repeated else ''}."
    if hollow := pareto.hollow_words(cases):
        said += f" Hollow: {hollow}."
    if on_front(sweep):
        said += " Along the line nothing is surely smaller and faster."
    if pareto.coloured(cases, effects):
        said += " Colour: change of long runs' loss; grey: the seeds can't tell, or unmeasured."
    return said


def pareto_picture(sweep: Sweep, effects: dict[str, quality.Effect], prefix: str) -> Picture:
    return Picture(f"{prefix}pareto", "Peak memory against speed, both beside the baseline, one point a case", pareto_caption(sweep, effects),
                   functools.partial(pareto.pareto, sweep, effects), [case_point(case, sweep) for case in placed(sweep)])


def memory_blocks(sweep: Sweep, prefix: str) -> list:
    """Nothing if no run counted its memory by kind, as on a GPU."""
    singles = sweep_parts.of_families(sweep, "single")
    if not run_curves.with_memory(singles):
        return []
    caption = "What was held at the moment each phase of the last step peaked, by what it was held for."
    return [Heading(3, "Where the memory goes"), Fold("Memory by kind, a panel a case", [
            Picture(f"{prefix}memory", "Memory by kind in each phase of a step, one panel a case", caption,
                    functools.partial(run_curves.memory, singles))])]


def loss_blocks(sweep: Sweep, prefix: str) -> list:
    """Nothing without a single technique beside the baseline."""
    singles = sweep_parts.of_families(sweep, "single")
    chosen, cases = run_curves.with_curves(singles), measured(singles)
    if not any(case.baseline for case in chosen):
        return []
    some = f" Drawn are those that end farthest from it, {len(chosen)} of {len(cases)}."
    caption = ("Median over the rounds. A technique that only moves memory about lies on its baseline: a line at 0 "
               f"below.{some if len(chosen) < len(cases) else ''}")
    return [Heading(3, "What it does to the loss"),
            Picture(f"{prefix}loss", "Loss over the tokens trained on, and its distance from the baseline", caption,
                    functools.partial(run_curves.loss, singles))]


def finding_row(finding: Finding, before: Finding | None) -> list[str]:
    """A row; the words of the claim stand in the first row of each claim alone."""
    claim = finding.claim
    said = f"{claim.guide.partition(',')[0]}: {claim.text}"
    if claim.arithmetic:
        said += f" (But by its own figures: {claim.arithmetic}.)"
    repeated = before is not None and before.claim.id == claim.id
    of = f" of {claim.of}" if claim.of else ""
    measured = f"{claim.measure} {percent(finding.measured)}" if finding.measured else "–"
    measured += f" (not counted: {finding.outside})" if finding.outside else ""
    return ["" if repeated else said, finding.case.name, claim.figure + of, measured]


def claim_blocks(findings: list[Finding]) -> list:
    """Figures side by side, for records without the dry runs that verdicts rest on as well."""
    about = [finding for finding in findings if finding.case]
    blocks = [Heading(3, "Claimed beside measured")]
    if about:
        rows = [finding_row(finding, before) for finding, before in zip(about, [None, *about])]
        table = Table("What guides say of these techniques, and what this sweep measured against the baseline.",
                      ["claim", "case", "claimed", "measured"], rows, ("case", "claimed", "measured"))
        blocks.append(Fold(f"{len({finding.claim.id for finding in about})} claims", [table]))
    said = {finding.claim.id for finding in about}
    silent = dict.fromkeys(f"`{finding.claim.id}`" for finding in findings if finding.claim.id not in said)
    if silent:
        blocks.append(Text(f"No case of this sweep measures {', '.join(silent)}."))
    return blocks


def settings_blocks(sweep: Sweep) -> list:
    rows = [[case.name, case.baseline or "(a baseline)", changes(case, sweep) or "–"] for case in sweep.cases]
    return [Heading(3, "The cases"), Fold("Settings and commands of every case", [
            Table("Settings in which each case differs from what it is held against.",
                  ["case", "against", "settings"], rows, ("against", "settings")),
            Text(f"The commands of the last round, at commit `{sweep.commit}` on {machine_text(sweep.machine)}:"),
            Commands([f"# {case.name}\n{case.command}" for case in sweep.cases])])]


def baselines_text(sweep: Sweep) -> str:
    """What the baselines of a sweep (see beside_roots) compute with and hold, as "Baseline: fp32, onehot, materialised, 8 × 256 tokens."."""
    def told(case: Case) -> str:
        batch = case.any.resolved.get("train", {}).get("micro_batch")
        return ", ".join([*kinds_of(case.any), *([f"{batch} × {case.any.sequence:,.0f} tokens"] if batch else [])])
    said = dict.fromkeys(told(case) for case in measured(sweep) if not case.baseline)
    return f"Baseline: {'; or '.join(said)}." if any(said) else ""


def sweep_blocks(sweep: Sweep, prefix: str, findings: list[Finding], beside: Sidecars, judged: bool, machines: int) -> list:
    """machines: in the report; a heading names its own only beside others."""
    title = sweep.title if machines == 1 else f"{sweep.title} on {machine_text(sweep.machine)}"
    whole, effects = beside_roots(sweep), quality.about(sweep.cases, beside.effects)
    return [Heading(2, title), Text(f"{provenance(sweep)} {baselines_text(whole)}".strip()),
            Items(short_answers(whole)), pareto_picture(whole, effects, prefix), case_table(whole), columns(whole), *wait_blocks(sweep),
            *sweep_part_pages.failure_blocks([sweep]),
            *sweep_part_pages.ladder_blocks(sweep, prefix), *sweep_part_pages.leave_one_out_blocks(sweep),
            *sweep_part_pages.pair_blocks(sweep, beside.predictions_of(sweep), prefix),
            *memory_blocks(sweep, prefix), *loss_blocks(sweep, prefix), *([] if judged else claim_blocks(findings)),
            *settings_blocks(sweep), *([Heading(3, "Notes"), Items(sweep.notes)] if sweep.notes else [])]


def method_blocks(commits: list[str], at: str, notes: list[str]) -> list:
    """commits: of the programs that made the records. at: the last commit to what is built when this page is made, "" if not known."""
    since = [f"Of commit `{commit}`: {built.changed(commit, at)}." for commit in commits]
    return [Heading(2, "How it was measured"),
            Text(f"Each run is a process of its own, and the cases of a round run one after the other beside"
                 f" their baseline. Left out as warm-up: {WARM_UP}. A run's speed is the median of its "
                 f"steps' tokens a second; its peak is counted by the allocator, to the byte. A ratio pairs "
                 f"a run with the baseline of its round; the median over the rounds is given with a 95 % "
                 f"percentile bootstrap interval ({RESAMPLES:,} draws of rounds and of steps within them, "
                 f"seed {SEED}). With few rounds such an interval is too narrow: the range of 3 rounds contains "
                 f"the true median 75 % of the time, the range of 5 rounds 94 %. A single round shows only how its own "
                 f"steps differ, so it gets no interval. spread is (fastest − slowest round) / median: a difference "
                 f"smaller than that says little. No run is left out for being slow or for its loss, and failed runs are listed."),
            Text(f"{AT}{f'`{at}`' if at else 'not known'}. Its records:"), Items(since), *([Items(notes)] if notes else [])]


def made_at(markdown: str) -> str:
    """The commit that a report was made at, as it says itself; "" where it says none."""
    found = re.search(rf"^{AT}`(\w+)`", markdown, re.MULTILINE)
    return found[1] if found else ""


def report_blocks(parts: list[tuple[Sweep, str, list[Finding]]], sweeps: list[Sweep], beside: Sidecars,
                  judged: claims.Judged | None, links: cards.Links, techniques: list[Technique], notes: list[str], at: str) -> list:
    """parts: those cases of a sweep that can be compared, the prefix of its pictures' names, and its findings. at: see
    method_blocks."""
    comparable_parts = [sweep for sweep, *_ in parts]
    machines = len({machine_text(sweep.machine) for sweep in comparable_parts})
    front = [*cards.your_card(beside, techniques, sweeps, links), *cards.costs(comparable_parts, beside.effects, techniques, links),
             *cards.claims_card(judged, links)]
    rest = [*(block for part in parts for block in sweep_blocks(*part, beside, judged is not None, machines)),
            *quality.section(beside.effects, beside.effects_again, beside.effects_page), *rank_pages.blocks(sweeps),
            *sweep_part_pages.crossover_blocks(sweeps), *sweep_part_pages.fit_blocks(sweeps, beside.fits),
            *sweep_part_pages.check_blocks(beside.checks), *sweep_part_pages.estimate_blocks(beside.draws),
            *method_blocks(list(dict.fromkeys(sweep.commit for sweep in sweeps)), at, notes)]
    return [Heading(1, TITLE), cards.contents([*front, *rest]), *front, *rest]


def spoken(sweep: Sweep) -> str:
    """The table of cases and the short answers, for a terminal."""
    whole = beside_roots(sweep)
    return "\n".join([table_plain(case_table(whole)), "", *map(plain, short_answers(whole))])


def write(folder: pathlib.Path, blocks: list) -> None:
    """report.html, report.md and the PNGs. All of it is made before any of it is written."""
    working("report: drawing the page")
    html, markdown = to_html(TITLE, blocks), to_markdown(blocks)
    images = {block.file: png(block.drawing) for block in each("report: drawing picture", pictures(blocks))}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in images.items():
        (folder / name).write_bytes(content)
    (folder / "report.md").write_text(markdown)
    (folder / "report.html").write_text(html)
