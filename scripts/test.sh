#!/usr/bin/env bash
# Sets up, builds with warnings as errors, and runs every test. With arguments, runs the tests that ctest chooses by
# them. Exits as ctest does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh
source scripts/cpu_classes.sh

scripts/setup.sh
if needs_strict_mkl; then export "${STRICT_MKL?}"; fi
# build/ci uses all that this CPU has. On one with AVX-512, the kernels for CPUs without it need a build of their own.
if (($# == 0)) && [[ -z $(missing_flags avx512) ]]; then
  scripts/test_cpu_classes.sh avx2
fi
say "Building (build/ci, $(build_jobs) at a time)"
configure_and_build ci all
say "Testing"
# Containers often keep Python from storing what it compiles. Then each of a thousand starts compiles its packages anew.
export PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$PWD/build/ci/pycache
# one more than there are cores: some tests wait
exec ctest --test-dir build/ci --output-on-failure -j "$(($(nproc) + 1))" "$@"
