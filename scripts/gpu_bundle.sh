#!/usr/bin/env bash
# Packs what a host with a GPU needs to run scripts/gpu_check.sh: no compiler and no Debian package, only CUDA 13,
# Python and PyTorch 2.11 (pip install torch==2.11.0).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/gpu_bundle.sh [--build DIR] [--out FILE]

  --build  packs the programs of this build folder as they are; without it, build/gpu is built: for x86-64-v3
           processors and Hopper GPUs (sm_90a)
  --out    the archive (default: moelab-gpu.tar.gz)

example, on the GPU host: tar xf moelab-gpu.tar.gz && moelab-gpu/scripts/gpu_check.sh --minutes 30
TEXT
}

readonly NAME=moelab-gpu MOST=$((60 << 20))  # bytes of an archive

# What scripts/gpu_check.sh runs: of the tests those that are programs, without the tools of Python's tests and without the
# emulated GPU, which is for machines without one, nor those of texts and tables, which know no device; and no simulation of
# schedules, nor what times the CPU's products and exchanges.
programs_of() {
  find "$1/bin" "$1/tests" -type f -executable \( -path "$1/bin/*" -o -name 'test_*' \) -not -path '*/CMakeFiles/*' \
    -not -path "$1/tests/emulator/*" -not -name '*.py' \
    -not -name test_techniques -not -name test_settings -not -name test_tokenizer -not -name test_tradeoff -not -name test_tensorboard \
    -not -name bench_pipeline -not -name bench_products -not -name bench_exchange
}

# Programs stripped, and without the paths of this machine's libraries.
pack_programs() {
  local program to
  while read -r program; do
    to=$2/${program#"$1"/}
    mkdir -p "$(dirname "$to")"
    strip -o "$to" "$program"
    echo "file(RPATH_REMOVE FILE \"$to\")" >>"$2/rpath.cmake"
  done < <(programs_of "$1")
  cmake -P "$2/rpath.cmake" >/dev/null
  rm "$2/rpath.cmake"
}

# The shared libraries that programs take from the system and a bare host lacks.
pack_libraries() {
  local library
  mkdir -p "$2/lib"
  programs_of "$1" | xargs -d '\n' ldd 2>/dev/null |
    awk '$1 ~ /^lib(yaml-cpp|uring|xxhash|benchmark|fmt)\./ {print $3}' | sort -u |
    while read -r library; do cp -L "$library" "$2/lib/"; done
}

build="" out=moelab-gpu.tar.gz
while (($# > 0)); do
  case $1 in
    --build | --out)
      (($# > 1)) || fail "$1: a value is missing"
      if [[ $1 == --build ]]; then build=$2; else out=$2; fi
      shift 2
      ;;
    -h | --help) usage && exit 0 ;;
    *) fail "$1: unknown; see --help" ;;
  esac
done
if [[ -z $build ]]; then
  build=build/gpu
  say "Building ($build, $(build_jobs) at a time)"
  configure_and_build gpu all
fi
[[ -x $build/bin/moelab ]] || fail "$build: no build folder (there is no bin/moelab in it)"

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
root=$staging/$NAME
say "Packing $build"
mkdir -p "$root/build/gpu" "$root/bench"
pack_programs "$build" "$root/build/gpu"
pack_libraries "$build" "$root/build/gpu"
cp -r scripts "$root/scripts"
cp -r --parents bench/peers/*.py bench/tradeoff/*.yaml train/predict/devices.json \
  train/predict/techniques/claims.yaml "$root"
find "$root" -name __pycache__ -prune -exec rm -r {} +
mkdir -p "$(dirname "$out")"
tar -C "$staging" -c "$NAME" | gzip -9 >"$out"
size=$(stat -c %s "$out")
((size <= MOST)) || fail "$out: $((size >> 20)) MiB, more than the $((MOST >> 20)) that a bundle may have"
printf '%s: %d MiB, %d programs\n' "$out" $((size >> 20)) "$(find "$root/build/gpu" -type f -executable -not -name '*.so*' | wc -l)"
