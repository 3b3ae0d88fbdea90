#!/usr/bin/env bash
# Sets up, builds with warnings as errors, and runs every test. Arguments go to ctest. Exits as ctest does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

scripts/setup.sh
say "Building (build/ci, $(build_jobs) at a time)"
configure_and_build ci all
say "Testing"
exec ctest --test-dir build/ci --output-on-failure -j "$(nproc)" "$@"
