#!/usr/bin/env bash
# Fuzzes the readers of files that others may have made, with clang's libFuzzer, ASan and UBSan.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

mapfile -t TARGETS < <(printf '%s\n' tests/fuzz/fuzz_*.cpp | sed 's|.*/fuzz_||; s|\.cpp$||')
readonly TARGETS

usage() {
  cat <<TEXT
usage: scripts/fuzz.sh [SECONDS] [TARGET]…      (TARGET: ${TARGETS[*]})

Fuzzes each target (default: all) for so long (default: 60 seconds), on one core. What crashes is kept in
build/fuzz/TARGET/, new inputs worth keeping in build/fuzz/TARGET/corpus/.
TEXT
}

readonly FLAGS=(-std=c++20 -O2 -g -I. "-fsanitize=fuzzer,address,undefined" -fno-sanitize-recover=all)

# A fifth of the time went into noting where each block came from; the input of a crash, run again without this, shows it.
export ASAN_OPTIONS=malloc_context_size=0:quarantine_size_mb=4${ASAN_OPTIONS:+:$ASAN_OPTIONS}

readonly SETTINGS="train/settings/*.cpp train/settings/facts/*.cpp train/settings/presets/*.cpp moe/settings/*.cpp"

# The sources that a target's program consists of, its own aside.
# shellcheck disable=SC2086  # several file names
sources_of() {
  case $1 in
    claims) echo train/predict/techniques/claims.cpp ;;
    config) echo train/checkpoint/huggingface/model_config.cpp train/checkpoint/{file_io,hash}.cpp train/io/{file_descriptor,json_text}.cpp $SETTINGS ;;
    manifest) echo train/checkpoint/{manifest,safetensors,hash}.cpp train/io/json_text.cpp ;;
    metrics) echo train/io/json_{lines,text}.cpp ;;
    safetensors) echo train/checkpoint/safetensors.cpp ;;
    settings) echo $SETTINGS ;;
    shard) echo train/data/shard.cpp train/io/*.cpp ;;
    tokenizer) echo train/data/tokenizer/{bpe_model,tokenizer_json,utf8}.cpp train/io/json_text.cpp ;;
    *) fail "no fuzz target '$1'; there are ${TARGETS[*]}" ;;
  esac
}

fuzz() {
  local target=$1 seconds=$2 folder=build/fuzz/$1 sources
  sources=$(shopt -s nullglob && sources_of "$target")
  mkdir -p "$folder/corpus"
  say "Building fuzz_$target"
  # shellcheck disable=SC2086  # several file names
  "$CLANG" "${FLAGS[@]}" tests/fuzz/fuzz_"$target".cpp $sources -o "$folder/fuzz" -lyaml-cpp -lxxhash
  say "Fuzzing $target for $seconds s"
  nice -n 19 "$folder/fuzz" -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="$folder/" "$folder/corpus" tests/fuzz/corpus/"$target"
}

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  usage
  exit
fi
seconds=60
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
  seconds=$1
  shift
fi
targets=("$@")
if ((${#targets[@]} == 0)); then
  targets=("${TARGETS[@]}")
fi
CLANG=$(command -v clang++ || command -v clang++-14) || fail "clang++ is not installed; apt-get install clang"
readonly CLANG
for target in "${targets[@]}"; do
  fuzz "$target" "$seconds"
done
