"""Builds test programs with sanitizers, runs them one by one, and adds to a store how many tests ran and what was found.
scripts/sanitize.sh starts it. asan: AddressSanitizer and UBSan; by default every test program but those of the emulated GPU.
tsan: ThreadSanitizer; by default the programs in which threads of ours work. Exit code 1: something was found."""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

import page
import store

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import ctest_tests  # noqa: E402
from peers import commit_of_sources  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 7200  # of one program: test_step took half of that on one core of a slow machine
# File queues and workers, data readers, the checkpoint writer, offloaded tensors and state, ranks as threads.
WITH_THREADS = ("test_io", "test_data", "test_checkpoint", "test_activations", "test_placement", "test_optim", "test_parallel", "test_moe")
# Without detect_stack_use_after_return: GCC's fake stack is not aligned to 64 bytes, at which code for AVX-512 stores there crash.
OPTIONS = {
    "asan": {"ASAN_OPTIONS": "detect_stack_use_after_return=0:strict_string_checks=1", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"},
    "tsan": {"TSAN_OPTIONS": f"suppressions={ROOT}/tests/tooling/tsan.supp:ignore_noninstrumented_modules=1:print_suppressions=0"},
}
FOUND = re.compile(r"ERROR: \w+Sanitizer: .*|WARNING: ThreadSanitizer: .*|\S+: runtime error: .*")
FAILED = re.compile(r"^\[  FAILED  \] [\w/]+\.[\w/]+", re.MULTILINE)


def programs() -> list[str]:
    """All test programs of C++ but those of the emulated GPU, which a build without CUDA does not have."""
    lists = (path.read_text() for path in sorted((ROOT / "tests").rglob("CMakeLists.txt")))
    return [name for text in lists for name in re.findall(r"^moelab_test\((\w+)", text, re.MULTILINE)]


def build(sanitizer: str, tests: list[str], jobs: int) -> pathlib.Path:
    folder = ROOT / "build" / sanitizer
    for command in (["cmake", "--preset", sanitizer], ["cmake", "--build", folder, "-j", str(jobs), "--target", *tests]):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{done.stdout[-4000:]}\nmoelab: {command[0]} {command[1]} failed")
    return folder


def judge(printed: str, code: int) -> tuple[dict, list[str]]:
    """How many tests a program says that it ran, and what was wrong."""
    ran = re.search(r"^\[==========\] (\d+) tests? from .* ran", printed, re.MULTILINE)
    failures = sorted({*FOUND.findall(printed), *FAILED.findall(printed)})
    if not failures and (code != 0 or not ran):
        failures = [f"exit code {code}: {printed[-2000:]}"]
    return {"tests": int(ran[1])} if ran else {}, failures


def run(test: dict, sanitizer: str, log: pathlib.Path) -> tuple[dict, list[str]]:
    """Reports go to files of their own, because a test that captures stderr would hide them."""
    reports = log.with_suffix(".reports")
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    to_files = {name: f"{options}:log_path={reports}/of" for name, options in OPTIONS[sanitizer].items()}
    environment = ctest_tests.environment_of(test) | to_files
    if sanitizer == "tsan":
        environment["GTEST_FILTER"] = f"-{page.NOT_UNDER_TSAN}"
    with log.open("w") as output:
        try:
            code = subprocess.run(test["command"], env=environment, stdout=output, stderr=output, timeout=SECONDS, check=False).returncode
        except subprocess.TimeoutExpired:
            return {}, [f"not done after {SECONDS} s"]
    printed = "".join(path.read_text(errors="replace") for path in (log, *sorted(reports.iterdir())))
    return judge(printed.replace(f"{ROOT}/", ""), code)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/sanitize.sh", description=__doc__,
                                     epilog="example: scripts/sanitize.sh tsan test_io test_data")
    parser.add_argument("sanitizer", choices=OPTIONS)
    parser.add_argument("tests", nargs="*", metavar="TEST", help="a test program, e.g. test_io")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the compiler at a time; default: as many as there are cores")
    parser.add_argument("--store", type=pathlib.Path, default=ROOT / "build/soak/soak.jsonl",
                        help="file that counts are added to; reliability.md beside it is made from it; default: build/soak/soak.jsonl")
    arguments = parser.parse_intermixed_args()
    known, sanitizer = programs(), arguments.sanitizer
    chosen = arguments.tests or (known if sanitizer == "asan" else list(WITH_THREADS))
    if unknown := sorted(set(chosen) - set(known)):
        parser.error(f"no test program {', '.join(unknown)}; there are {', '.join(known)}")
    folder = build(sanitizer, chosen, arguments.jobs)
    tests = ctest_tests.tests_of(folder)
    kept = store.Store(arguments.store, commit_of_sources(ROOT))
    wrong = 0
    for name in chosen:
        log = folder / f"{name}.log"
        counts, failures = run(tests[name], sanitizer, log)
        wrong += len(failures)
        kept.add("sanitizers", name, counts, failures, sanitizer=sanitizer, programs=known)
        print(f"{sanitizer} {name}: {counts.get('tests', 0)} tests" + "".join(f"\n  WRONG: {text}; {log}" for text in failures), flush=True)
    arguments.store.with_name("reliability.md").write_text(page.text(store.records(arguments.store)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
