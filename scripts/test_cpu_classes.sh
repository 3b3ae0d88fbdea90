#!/usr/bin/env bash
# Builds the kernels and their tests for each class of CPU that this machine can play, and runs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh
source scripts/cpu_classes.sh

usage() {
  cat <<TEXT
usage: scripts/test_cpu_classes.sh [${CPU_CLASSES[*]}]…

Builds kernels/ and its tests with warnings as errors for each class named (default: all) in build/class-NAME, without
CUDA, and runs the tests with LibTorch, oneDNN and MKL kept to that class. A class whose instructions this CPU lacks is
skipped. Ends with a table. Exit code: 0, or 1 if a class failed.

example: scripts/test_cpu_classes.sh avx2      # what a CPU without AVX-512 builds and runs
TEXT
}

build_class() {
  local folder=build/class-$1
  quietly "$folder/configure.log" cmake --preset ci -B "$folder" -DMOELAB_CUDA=OFF -DMOELAB_MARCH="${MARCH[$1]}" &&
    cmake --build "$folder" --target test_kernels -j "$(build_jobs)"
}

# LibTorch multiplies fp8 by oneDNN wherever the CPU itself has AMX, and oneDNN kept to a lesser class refuses.
readonly NEEDS_REAL_CPU=Fp8.ProductsAreThoseOfRoundedFactors

# Runs the class's tests in as many processes as memory and cores allow, a thread each. Their output: tests-N.log.
run_class() {
  local folder=build/class-$1 shards shard lowered filter='*' processes=() failed=0
  [[ $1 == amx ]] || filter=-$NEEDS_REAL_CPU
  shards=$(build_jobs)
  read -ra lowered <<<"${LOWERED[$1]}"
  [[ $1 != avx2 ]] || lowered+=("$STRICT_MKL")
  rm -f "$folder"/tests-*.log
  for ((shard = 0; shard < shards; ++shard)); do
    env "${lowered[@]}" OMP_NUM_THREADS=1 GTEST_TOTAL_SHARDS="$shards" GTEST_SHARD_INDEX="$shard" \
      "$folder/tests/kernels/test_kernels" --gtest_brief=1 --gtest_filter="$filter" >"$folder/tests-$shard.log" 2>&1 &
    processes+=($!)
  done
  for shard in "${!processes[@]}"; do
    wait "${processes[shard]}" || { failed=1 && tail -n 40 "$folder/tests-$shard.log" >&2; }
  done
  return $failed
}

# test_class NAME: appends a row to the table.
test_class() {
  local missing start outcome
  missing=$(missing_flags "$1")
  if [[ -n $missing ]]; then
    table+=("$1|-|skipped: this CPU lacks $missing")
    return
  fi
  say "Building for $1 (-march=${MARCH[$1]})"
  start=$SECONDS
  if ! build_class "$1"; then
    table+=("$1|$((SECONDS - start))|FAILED to build")
    return
  fi
  local built=$((SECONDS - start))
  say "Testing $1"
  outcome=passed
  run_class "$1" || outcome="passed, others FAILED; see build/class-$1/tests-*.log"
  local count
  count=$(cat "build/class-$1"/tests-*.log | awk '/^\[  PASSED  \]/ {n += $4} END {print n + 0}')
  table+=("$1|$built|$count $outcome")
}

main() {
  local class table=("class|build s|tests")
  for class in "$@"; do
    case $class in -h | --help) usage && exit 0 ;; esac
    [[ -v MARCH[$class] ]] || fail "unknown class: $class (there are: ${CPU_CLASSES[*]})"
  done
  (($# > 0)) || set -- "${CPU_CLASSES[@]}"
  for class in "$@"; do test_class "$class"; done
  say "CPU classes"
  printf '%s\n' "${table[@]}" | awk -F '|' '{printf "%-12s %8s  %s\n", $1, $2, $3}'
  [[ ${table[*]} != *FAILED* ]]
}

main "$@"
