#!/usr/bin/env python3
"""What the tests would notice: every barrier and fence of the kernels, and every wait of the copies, is left out once.

Each of these mutants is compiled and linked with the objects of a build, and the build's tests of the emulated GPU
(tests/emulator) run on it until one fails; for copies those of the CPU, too, where ranks are. A mutant that no test fails on
survives; scripts/kernel_mutants.yaml says why it may. Exit code 1: one survives that has no reason there, or one with a reason is noticed.

examples: scripts/kernel_mutants.py --build build/dev --store results/kernel-mutants.jsonl
          scripts/kernel_mutants.py --build build/dev --only adamw_compact
          scripts/kernel_mutants.py --page results/kernel-mutants.jsonl
"""
import argparse
import concurrent.futures
import copy
import fnmatch
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from typing import NamedTuple

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "bench/peers"), str(ROOT / "tests")]
from ctest_tests import environment_of, tests_of  # noqa: E402
from peers import commit_of_sources, write_record  # noqa: E402

KERNEL_STATEMENT = re.compile(r"__syncthreads\(\);|__syncwarp\(\);|__threadfence\(\);|wait_for_(?:copies|products)<[^;()]*>\(\);"
                              r"|(?:show_copies|give_sums|close_copies|close_products)\(\);")
# Calls that order copies and other work, or keep memory for them, and the CUDA calls that these are made of.
COPY_STATEMENT = re.compile(
    r"(?<![\w:~])(?:[\w.>()-]+(?:\.|->))?(?:follow|wait|join|keep|synchronize|finish|arrive|let_go|hold|order|block|recordStream)\([^;{}]*\);"
    r"|(?<![\w:~])c10::cuda::CUDACachingAllocator::recordStream\([^;{}]*\);|cudaStreamSynchronize\([^;{}]*\);"
    r"|\w+\.fetching\.reset\(\);")  # a future whose end waits
COPY_SOURCES = ("kernels/memory/copy_stream_cuda.cpp", "train/activations/fetch_ahead.cpp", "train/activations/host_store.cpp",
                "train/activations/nvme_store.cpp", "train/placement/gather_weights.cpp", "train/placement/offload_buffer.cpp",
                "train/optim/host_copy.cpp", "train/step/step_graph_cuda.cpp")
SECONDS = 900  # a test that hangs has noticed


class Mutant(NamedTuple):
    file: str
    line: int
    text: str  # the statement that is left out
    begin: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.text}"

    def source(self) -> str:
        text = (ROOT / self.file).read_text(encoding="utf-8")
        return text[:self.begin] + ";" + text[self.end:]


def without_comments(text: str) -> str:
    """The text with as many spaces in the place of its comments."""
    return re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), text)


def mutants_of(file: str, statement: re.Pattern) -> list[Mutant]:
    text = without_comments((ROOT / file).read_text(encoding="utf-8"))
    return [Mutant(file, text.count("\n", 0, found.start()) + 1, " ".join(found[0].split()), found.start(), found.end())
            for found in statement.finditer(text) if is_statement(text, found.start())]


def is_statement(text: str, begin: int) -> bool:
    """Whether a call stands alone: not behind `=`, `return`, `,` or a type, as a declaration or a value does."""
    before = text[:begin].rstrip()
    return before == "" or before[-1] in ";{})" or re.search(r"\belse$", before) is not None


class Build:
    """A build folder: how its objects are compiled, its programs linked, its tests run."""

    scratch: pathlib.Path  # where a mutant's files go

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.entries = json.loads((folder / "compile_commands.json").read_text())
        self.tests = tests_of(folder)
        self.emulated = next(pathlib.Path(entry["file"]).parents[2] for entry in self.entries
                             if entry["file"].endswith("moelab_emulated_kernels/kernels/moe/router.cpp"))

    def compile(self, source: str, to: str, *options: str) -> tuple[str, str]:
        """Compiles `to` as the build does `source`: the object that it stands for, and the new one."""
        entry = next(entry for entry in self.entries if entry["file"] == source)
        words = shlex.split(entry["command"])
        words[words.index("-c") + 1] = to
        old, new = words[words.index("-o") + 1], f"{self.scratch}/{pathlib.Path(source).name}.o"
        words[words.index("-o") + 1] = new
        words[1:1] = options
        # what a mutant no longer uses is no error
        done = subprocess.run([*words, "-w", "-Wno-error"], cwd=entry["directory"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"kernel_mutants: a mutant of {source} does not compile: {done.stderr}")
        return old, new

    def link(self, program: str, objects: list[tuple[str, str]]) -> str:
        said = subprocess.run(["ninja", "-C", self.folder, "-t", "commands", program], capture_output=True, text=True, check=True).stdout
        command, out = said.splitlines()[-1].replace("/./", "/"), f"{self.scratch}/{program}"
        for old, new in objects:
            # in front of a library, it takes the place of the library's
            command = command.replace(f" {old} ", f" {new} ") if f" {old} " in command else command.replace(" -o ", f" {new} -o ", 1)
        command = re.sub(r" -o \S+", f" -o {out}", command, count=1)
        subprocess.run(command, shell=True, cwd=self.folder, check=True, capture_output=True, text=True)
        return out

    def run(self, test: str, program: str, folders: list[str] | None = None, one_seed: bool = False) -> str | None:
        """What the test says when it fails, None if it passes. `folders`: of its cases, only those of these operators."""
        command = [program, *self.tests[test]["command"][1:], "--gtest_fail_fast"]
        if one_seed:
            command = [word for word in command if not word.startswith("--gtest_repeat=")]
        if folders is not None:
            command = [cases_of(folders, word) if word.startswith("--gtest_filter=") else word for word in command]
        try:
            done = subprocess.run(command, cwd=self.folder, env=environment_of(self.tests[test]), capture_output=True, text=True, check=False,
                                  timeout=SECONDS, errors="replace")
        except subprocess.TimeoutExpired:
            return "it hangs"
        return None if done.returncode == 0 else what_failed(done.returncode, done.stdout + done.stderr)


def what_failed(code: int, said: str) -> str:
    if (race := re.search(r"emulator: race in (\w+) memory", said)) is not None:
        return f"a race in {race[1]} memory"
    if re.search(r"emulator: \d+ threads of a block wait", said):
        return "threads wait for ever"
    failed = re.search(r"\[  FAILED  \] ([\w./]+)", said)
    return failed[1] if failed else f"it crashes (exit code {code})"


def includes(source: pathlib.Path) -> set[str]:
    """The headers for device code that the source has, directly or not."""
    found = set(re.findall(r'#include "(kernels/[\w/]+\.cuh)"', source.read_text(encoding="utf-8")))
    return found.union(*(includes(ROOT / header) for header in found))


def cases_of(folders: list[str], chosen: str) -> str:
    """The part of `--gtest_filter=` whose suites are tests of these folders of operators."""
    sources = "".join(path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / "tests" / folder).glob("*.cpp"))
    suites = re.findall(r"^TEST(?:_P|_F)?\((\w+),", sources, re.M)
    wanted, minus, left_out = chosen.removeprefix("--gtest_filter=").partition("-")
    own = [pattern for pattern in wanted.split(":") if fnmatch.filter(suites, pattern.partition(".")[0])]
    return f"--gtest_filter={':'.join(own)}{minus}{left_out}"


def try_kernel(build: Build, mutant: Mutant) -> str | None:
    folder = build.scratch / "translated"
    users = [source for source in sorted(ROOT.glob("kernels/*/*.cu"))
             if mutant.file in (str(source.relative_to(ROOT)), *includes(source))]
    changed = build.scratch / "changed"
    changed.write_text(mutant.source(), encoding="utf-8")
    objects = []
    for source in {ROOT / mutant.file, *users}:
        path = source.relative_to(ROOT)
        to = folder / (path.with_suffix(".cpp") if path.suffix == ".cu" else path)
        to.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, ROOT / "tests/emulator/translate.py", changed if str(path) == mutant.file else source, to], check=True)
    for source in users:
        path = source.relative_to(ROOT).with_suffix(".cpp")
        objects.append(build.compile(str(build.emulated / path), str(folder / path), f"-I{folder}"))
    for path in folder.rglob("*.*"):
        path.unlink()
    program = build.link("test_kernels_emulated", objects)
    return build.run("test_races_emulated", program, sorted({str(source.parent.relative_to(ROOT)) for source in users}))


def try_copy(build: Build, mutant: Mutant) -> str | None:
    changed = build.scratch / "changed.cpp"
    changed.write_text(mutant.source(), encoding="utf-8")
    made = build.compile(str(ROOT / mutant.file), str(changed))
    prefix = "test_streams_emulated_"
    tests = [name for name in build.tests if name.startswith(prefix)]
    own = [name for name in tests if name.removeprefix(prefix) in mutant.file]
    on_the_cpu = [name for name in (f"test_{pathlib.Path(mutant.file).parent.name}", "test_step") if name in build.tests]
    for test in dict.fromkeys([*own, *tests, *on_the_cpu]):
        program = pathlib.Path(build.tests[test]["command"][0]).name
        # with all their seeds only those of the file's own folder: captured steps take minutes
        if (failed := build.run(test, build.link(program, [made]), one_seed=bool(own) and test not in own)) is not None:
            return failed
    return None


def noticed_by(build: Build, mutant: Mutant) -> str | None:
    own = copy.copy(build)
    with tempfile.TemporaryDirectory() as scratch:
        own.scratch = pathlib.Path(scratch)
        return (try_kernel if mutant.file.endswith((".cu", ".cuh")) else try_copy)(own, mutant)


def reasons() -> dict[str, str]:
    return {f"{entry['file']} {entry['statement']} {entry.get('nth', 1)}": entry["why"]
            for entry in yaml.safe_load((ROOT / "scripts/kernel_mutants.yaml").read_text(encoding="utf-8"))}


def all_mutants() -> dict[str, Mutant]:
    """By file, statement and which of the file's statements of these words it is."""
    kernels = [mutant for path in sorted([*ROOT.glob("kernels/*/*.cu"), *ROOT.glob("kernels/*/*.cuh")])
               for mutant in mutants_of(str(path.relative_to(ROOT)), KERNEL_STATEMENT)]
    copies = [mutant for file in COPY_SOURCES for mutant in mutants_of(file, COPY_STATEMENT)]
    seen, found = {}, {}
    for mutant in [*kernels, *copies]:
        key = f"{mutant.file} {mutant.text}"
        seen[key] = seen.get(key, 0) + 1
        found[f"{key} {seen[key]}"] = mutant
    return found


def page(records: list[dict]) -> str:
    """The last run of each mutant that the sources still have, as a page."""
    there = all_mutants()
    last = {record["mutant"]: record for record in records if record["mutant"] in there}.values()
    survivors = [record for record in last if record["noticed_by"] is None]
    commands = dict.fromkeys(shlex.join(["scripts/kernel_mutants.py", *record["command"][1:]]) for record in last)
    commits = sorted({record["commit"] for record in last})
    lines = ["# What the emulated GPU notices", "",
             f"Barriers and fences order memory, waits order streams. Each mutant is the code without one of them. Of {len(last)} "
             f"mutants the tests notice {len(last) - len(survivors)}. Commit {', '.join(commits)}; made by", "",
             "```", *commands, "```", "",
             "| file | what is left out | noticed by |", "| --- | --- | --- |"]
    for record in last:
        noticed = record["noticed_by"] or f"nothing: {reasons().get(record['mutant'], 'no reason is known')}"
        lines.append(f"| {record['file']}:{record['line']} | `{record['statement']}` | {noticed} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/dev",
                        help="a build folder with tests, its sources compiled one by one; default: build/dev")
    parser.add_argument("--only", default="", help="mutants whose file, line and statement have this in them")
    parser.add_argument("--store", type=pathlib.Path, help="file that records are added to; the .md beside it is made from it")
    parser.add_argument("--page", type=pathlib.Path, help="make the .md beside these records anew, and run nothing")
    arguments = parser.parse_args()
    if arguments.page:
        write_page(arguments.page)
        return
    known, wrong = reasons(), []
    build, sources = Build(arguments.build.resolve()), commit_of_sources(ROOT)
    tried = [(mutant, name) for name, mutant in all_mutants().items() if arguments.only in mutant.name]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = pool.map(lambda one: noticed_by(build, one[0]), tried)
        for (mutant, name), noticed in zip(tried, results):
            if (noticed is None) != (name in known):
                wrong.append(mutant.name)
            print(f"{mutant.name} {'survives' if noticed is None else 'is noticed: ' + noticed}", flush=True)
            if arguments.store:
                write_record(arguments.store, "kernel_mutant", sources,
                             {"mutant": name, "file": mutant.file, "line": mutant.line, "statement": mutant.text,
                              "noticed_by": noticed})
    if arguments.store:
        write_page(arguments.store)
    for name in wrong:
        print(f"kernel_mutants: {name}: it survives and scripts/kernel_mutants.yaml has no reason, or the other way round", file=sys.stderr)
    sys.exit(bool(wrong))


def write_page(store: pathlib.Path) -> None:
    records = [json.loads(line) for line in store.read_text(encoding="utf-8").splitlines()]
    store.with_suffix(".md").write_text(page(records), encoding="utf-8")


if __name__ == "__main__":
    main()
