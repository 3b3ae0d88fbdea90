"""scripts/test_cpu_classes.sh, and scripts/test.sh which calls it, in a made-up tree: a made-up /proc/cpuinfo, and a
cmake that "builds" a script for a test program. Every program called writes a line into the file calls."""
import os
import pathlib
import shutil
import subprocess

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"

# Flags in /proc/cpuinfo of real CPUs, without those that no class asks for.
HASWELL = "fpu sse2 fma movbe avx f16c abm bmi1 avx2 bmi2"
SKYLAKE = HASWELL + " avx512f avx512dq avx512cd avx512bw avx512vl"
ZEN4 = SKYLAKE + " avx512ifma avx512_bf16 avx512vbmi avx512_vnni"
SAPPHIRE_RAPIDS = ZEN4 + " amx_bf16 avx512_fp16 amx_tile amx_int8"

CMAKE = r"""#!/bin/bash
echo "cmake $*" >>calls
[[ $3 == -B ]] || exit "${BUILD:-0}"
mkdir -p "$4/tests/kernels"
cat >"$4/tests/kernels/test_kernels" <<'PROGRAM'
#!/bin/bash
echo "tests ISA=$ATEN_CPU_CAPABILITY,$ONEDNN_MAX_CPU_ISA,$MKL_ENABLE_INSTRUCTIONS,$MKL_CBWR THREADS=$OMP_NUM_THREADS $2" >>calls
echo '[  PASSED  ] 20 tests.'
exit "${TESTS:-0}"
PROGRAM
chmod +x "$4/tests/kernels/test_kernels"
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(FLAGS, ARGUMENT…, script=NAME, vendor=NAME): the finished script on a CPU with these flags and one core."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "bin").mkdir()
    for name in ("lib.sh", "test_cpu_classes.sh", "test.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    (tmp_path / "CMakePresets.json").write_text("{}")
    text = (SCRIPTS / "cpu_classes.sh").read_text()
    assert "/proc/cpuinfo" in text
    (tmp_path / "scripts/cpu_classes.sh").write_text(text.replace(" /proc/cpuinfo", f" {tmp_path}/cpuinfo"))
    programs = {"bin/cmake": CMAKE, "bin/nproc": "#!/bin/sh\necho 1\n",
                "bin/ctest": '#!/bin/sh\necho "ctest $* $MKL_CBWR" >>calls\nexit 3\n',
                "scripts/setup.sh": "#!/bin/sh\necho setup >>calls\n"}
    for path, program in programs.items():
        (tmp_path / path).write_text(program)
        (tmp_path / path).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    def start(flags: str, *arguments: str, script: str = "test_cpu_classes.sh",
              vendor: str = "AuthenticAMD") -> subprocess.CompletedProcess:
        (tmp_path / "cpuinfo").write_text("\n".join(f"processor\t: {i}\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n" for i in (0, 1)))
        done = subprocess.run([tmp_path / "scripts" / script, *arguments], capture_output=True, text=True, timeout=60)
        calls = tmp_path / "calls"
        done.calls = calls.read_text().splitlines() if calls.exists() else []
        done.rows = {line.split()[0]: line.split(None, 2)[1:] for line in done.stdout.splitlines() if line[:3] in
                     ("avx", "amx")}
        return done
    return start


@pytest.mark.parametrize("flags, played", [
    ("fpu sse2 avx", []),
    (HASWELL.replace(" avx2", ""), []),
    (HASWELL, ["avx2"]),
    (SKYLAKE, ["avx2", "avx512"]),
    (ZEN4, ["avx2", "avx512", "avx512_bf16"]),
    (ZEN4 + " amx_tile", ["avx2", "avx512", "avx512_bf16"]),
    (SAPPHIRE_RAPIDS, ["avx2", "avx512", "avx512_bf16", "amx"]),
])
def test_a_cpu_plays_the_classes_whose_instructions_it_has(run, flags, played):
    done = run(flags)
    assert done.returncode == 0, done
    assert list(done.rows) == ["avx2", "avx512", "avx512_bf16", "amx"]
    for name, (seconds, tests) in done.rows.items():
        if name in played:
            assert seconds.isdigit() and tests == "20 passed"
        else:
            assert (seconds, tests.split(":")[0]) == ("-", "skipped")


def test_a_skipped_class_names_what_the_cpu_lacks(run):
    assert run(ZEN4, "amx").rows == {"amx": ["-", "skipped: this CPU lacks avx512_fp16 amx_tile amx_int8 amx_bf16"]}


@pytest.mark.parametrize("name, march, libraries", [
    ("avx2", "x86-64-v3", "avx2,AVX2,AVX2,AVX2,STRICT"),
    ("avx512", "x86-64-v4", "avx512,AVX512_CORE,AVX512,"),
    ("avx512_bf16", "x86-64-v4;-mavx512bf16", "avx512,AVX512_CORE_BF16,AVX512_E3,"),
    ("amx", "sapphirerapids", ",,,"),
])
def test_compiler_and_libraries_are_kept_to_the_class(run, monkeypatch, name, march, libraries):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")  # left over from something else
    configured, built, tested = run(SAPPHIRE_RAPIDS, name).calls
    assert configured == f"cmake --preset ci -B build/class-{name} -DMOELAB_CUDA=OFF -DMOELAB_MARCH={march}"
    assert built == f"cmake --build build/class-{name} --target test_kernels -j 1"
    without = "*" if name == "amx" else "-Fp8.ProductsAreThoseOfRoundedFactors"
    assert tested == f"tests ISA={libraries} THREADS=1 --gtest_filter={without}"


def test_a_failing_test_or_build_fails_the_script_after_the_other_classes(run, monkeypatch):
    monkeypatch.setenv("TESTS", "1")
    done = run(SKYLAKE)
    assert done.returncode == 1 and "FAILED" in done.rows["avx2"][1] and "FAILED" in done.rows["avx512"][1]
    monkeypatch.setenv("BUILD", "1")
    done = run(SKYLAKE, "avx512")
    assert done.returncode == 1 and done.rows["avx512"][1] == "FAILED to build"


def test_help_and_mistakes(run):
    done = run(HASWELL, "--help")
    assert done.returncode == 0 and "example: scripts/test_cpu_classes.sh avx2" in done.stdout and not done.calls
    done = run(HASWELL, "avx2", "sse")
    assert (done.returncode, done.stderr) == (
        2, "moelab: unknown class: sse (there are: avx2 avx512 avx512_bf16 amx)\n")
    assert not done.calls


@pytest.mark.parametrize("flags, arguments, builds", [
    (HASWELL, [], ["ci"]),
    (SKYLAKE, [], ["class-avx2", "ci"]),
    (SKYLAKE, ["-R", "moe"], ["ci"]),
])
def test_all_tests_cover_avx2_as_well_where_the_cpu_has_more(run, flags, arguments, builds):
    done = run(flags, *arguments, script="test.sh")
    assert done.calls[0] == "setup"
    assert [call.split()[2] for call in done.calls if "--build" in call] == [f"build/{folder}" for folder in builds]
    assert done.calls[-1] == " ".join(["ctest --test-dir build/ci --output-on-failure -j 2", *arguments, ""])
    assert done.returncode == 3  # ctest's


def test_all_tests_end_where_avx2_fails(run, monkeypatch):
    monkeypatch.setenv("TESTS", "1")
    done = run(SKYLAKE, script="test.sh")
    assert done.returncode == 1 and not any("build/ci" in call for call in done.calls)


@pytest.mark.parametrize("flags, vendor, mode", [
    (HASWELL, "GenuineIntel", "AVX2,STRICT"),
    (HASWELL, "AuthenticAMD", ""),
    (SKYLAKE, "GenuineIntel", ""),
])
def test_mkl_is_strict_where_its_bits_would_depend_on_threads(run, flags, vendor, mode):
    assert run(flags, script="test.sh", vendor=vendor).calls[-1].split(" ")[-1] == mode
