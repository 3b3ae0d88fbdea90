#!/usr/bin/env bash
# Proves moelab on this machine's GPU: one command, the most important first, within the time given. Records go to
# results/<gpu>/ as they come; a short table ends it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

readonly STEPS=(environment tests sanitizer kernels peers throughput estimates ranks presets sweep)

usage() {
  cat <<'TEXT'
usage: scripts/gpu_check.sh [--minutes N] [--device cuda|cpu] [--out DIR] [STEP …]

  --minutes  for everything together (default 30); a step takes half of what is left at most, the last all of it;
             one that finds no time left is named in the table; on a GPU the goals follow it, by scripts/gpu_goals.py
  --device   cpu: the same steps without a GPU, the presets as miniatures
  --out      folder of the records (default results/<name of the GPU>)
  STEP       some of: environment tests sanitizer kernels peers throughput estimates ranks presets sweep (default: all,
             so)

It runs the programs of the newest build, or of the bundle that scripts/gpu_bundle.sh made. Exit code 1: a step failed.

example: scripts/gpu_check.sh --minutes 10 environment tests sanitizer
TEXT
}

minutes=30 device=cuda out="" chosen=()
while (($# > 0)); do
  case $1 in
    --minutes | --device | --out)
      (($# > 1)) || fail "$1: a value is missing"
      declare "${1#--}=$2"
      shift 2
      ;;
    -h | --help) usage && exit 0 ;;
    *)
      [[ " ${STEPS[*]} " == *" $1 "* ]] || fail "$1: unknown step; known: ${STEPS[*]}"
      chosen+=("$1")
      shift
      ;;
  esac
done
[[ $minutes =~ ^[1-9][0-9]*$ ]] || fail "--minutes $minutes: a whole number of minutes, at least 1"
[[ $device == cuda || $device == cpu ]] || fail "--device $device: cuda or cpu"
((${#chosen[@]} > 0)) || chosen=("${STEPS[@]}")
if [[ $device == cuda ]]; then
  have_gpu || fail "no GPU: nvidia-smi finds none on this machine (--device cpu runs the same steps without one)"
  name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
else
  name=$(awk -F': ' '/^model name/ {print $2; exit}' /proc/cpuinfo)
fi
out=${out:-results/$(tr -cs '[:alnum:]' - <<<"${name,,}" | sed 's/^-*//; s/-*$//')}
mkdir -p "$out"
out=$(cd "$out" && pwd)

# The newest build, with LibTorch and what the bundle brings along where the loader finds them.
build=""
for folder in build/*/; do
  [[ ! -x $folder/bin/moelab || $folder/bin/moelab -ot $build/bin/moelab ]] || build=${folder%/}
done
[[ -n $build ]] || fail "moelab is not built: run scripts/setup.sh && cmake --preset dev && cmake --build --preset dev"
python=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)}
# CUDA's own libraries come with LibTorch's wheel, in packages beside it, or with a toolkit.
folders=$("$python" -c 'import glob, torch; lib = torch.__path__[0] + "/lib"
print(lib, *sorted(glob.glob(torch.__path__[0] + "/../nvidia/*/lib")), sep=":")' 2>/dev/null) ||
  fail "$python has no torch: pip install torch==2.11.0, or name an interpreter that has it in PYTHON"
for folder in "${CUDA_HOME:-/usr/local/cuda}"/{lib64,lib,extras/CUPTI/lib64}; do
  [[ ! -d $folder ]] || folders+=:$folder
done
export LD_LIBRARY_PATH=$PWD/$build/lib:$folders${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PYTHONUNBUFFERED=1
missing=$({ ldd "$build/bin/moelab" 2>/dev/null || true; } | awk '/=> not found/ {print $1}' | sort -u | tr '\n' ' ')
[[ -z $missing ]] || fail "missing libraries: ${missing% } (they are neither beside torch nor in CUDA_HOME; CUDA 13" \
  "has them: pip install nvidia-cuda-runtime nvidia-cuda-cupti, or name its folder in CUDA_HOME)"
data=$PWD/data/python-stdlib

skip() {
  echo "skipped: $*"
  exit 77
}

environment() {
  set -e
  uname -srm
  lscpu | grep -E '^(Model name|CPU\(s\)|Flags)' | cut -c -400
  [[ $device == cpu ]] || nvidia-smi
  "$python" -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)'
  ldd "$build/bin/moelab" | awk '/libtorch_c|libcudart|libcupti|libcublas|libnccl/ {print $1, $3}'
  "$build/bin/moelab" techniques --json | "$python" -c 'import json, sys; json.load(sys.stdin)'
  [[ -f $data/meta.json ]] || "$python" scripts/prepare_data.py --bytes --python-stdlib --out "$data"
}

# Those that need a GPU first; then everything; then the kernels' once more between sentinels. A build has more, on an
# emulated GPU, which say nothing of this one and take minutes.
tests() {
  local program failed=0
  local only=('--gtest_filter=*Cuda*:*Gpu*' '--gtest_filter=*')
  [[ $device == cuda ]] || only=('--gtest_filter=*')
  for filter in "${only[@]}"; do
    while read -r program; do
      echo "$program $filter"
      OMP_NUM_THREADS=1 "$program" --gtest_brief=1 "$filter" || failed=1
    done < <(find "$build/tests" -type f -executable -name 'test_*' -not -path '*/CMakeFiles/*' \
      -not -path "$build/tests/emulator/*" | sort)
  done
  if [[ $device == cuda ]]; then
    MOELAB_GUARD_CUDA=1 "$build/tests/kernels/test_kernels" --gtest_brief=1 '--gtest_filter=*Cuda*' || failed=1
  fi
  return "$failed"
}

# Without the caching allocator every tensor is a block of its own, whose end memcheck sees. What only runs long or
# takes half a card is left out.
sanitizer() {
  local tool failed=0
  local -x PYTORCH_NO_CUDA_MEMORY_CACHING=1
  [[ $device == cuda ]] || skip "there is nothing for it on a CPU"
  command -v compute-sanitizer >/dev/null || skip "compute-sanitizer is not on PATH (it comes with CUDA)"
  for tool in memcheck racecheck synccheck; do
    echo "$tool"
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/tests/kernels/test_kernels" --gtest_brief=1 \
      '--gtest_filter=*Cuda*:*Gpu*-*BitwiseTheSame*:CudaLarge*:*NeverHolds*:*Keeps*' || failed=1
  done
  return "$failed"
}

# Attention once more as run.deterministic has it: its backward is another.
kernels() {
  [[ -x $build/bin/bench_kernels ]] || skip "bench_kernels is not built (Google Benchmark)"
  local common=(--device "$device" --benchmark_min_time=0.1 --benchmark_out_format=json) failed=0
  "$build/bin/bench_kernels" "${common[@]}" --benchmark_out="$out/kernels.json" || failed=1
  "$build/bin/bench_kernels" "${common[@]}" --deterministic --benchmark_filter='^attention/' \
    --benchmark_out="$out/kernels-deterministic.json" || failed=1
  return "$failed"
}

peers() {
  [[ -x $build/bin/bench_moe_layer ]] || skip "bench_moe_layer is not built"
  "$python" bench/peers/hf_moe_layer.py --program "$build/bin/bench_moe_layer" --device "$device" --rounds 3 \
    --iterations 5 --out "$out/peers.jsonl"
}

# A model of 7B parameters on one card, its steps launched and as one CUDA graph: tokens a second and peak, in the
# summaries.
throughput() {
  local graphs failed=0 modes=(none step) miniature=()
  [[ $device == cuda ]] || modes=(none) miniature=(--scale 1/64)
  for graphs in "${modes[@]}"; do
    "$build/bin/moelab" train --config olmoe-1b-7b "${miniature[@]}" "run.device=$device" precision.compute=bf16 \
      model.dispatch=capacity optim.name=adamw_compact activations.checkpoint=full "memory.cuda_graphs=$graphs" \
      train.micro_batch=8 train.steps=12 eval.batches=0 checkpoint.keep=0 "run.dir=$out/run-olmoe" "data.path=$data" ||
      failed=1
    [[ ! -f $out/run-olmoe/summary.json ]] || mv "$out/run-olmoe/summary.json" "$out/olmoe-graphs-$graphs.json"
    rm -rf "$out/run-olmoe"
  done
  return "$failed"
}

# measured_run NAME COMMAND…: five steps of a training command; its peaks beside the prediction, its summary kept.
measured_run() {
  local name=$1 failed=0
  shift
  "$@" train.steps=5 eval.batches=0 checkpoint.keep=0 "run.dir=$out/run-$name" "data.path=$data" || failed=1
  if [[ -f $out/run-$name/summary.json ]]; then
    "$python" scripts/check_estimates.py --program "$build/bin/moelab" --run "$out/run-$name" || failed=1
    mv "$out/run-$name/summary.json" "$out/$name.json"
  fi
  rm -rf "$out/run-$name"
  return "$failed"
}

# What is predicted and measured of one model under different techniques; large enough that what libraries hold is a
# small part of it.
estimates() {
  local techniques miniature=() failed=0 model=moe-740m
  [[ $device == cuda ]] || miniature=(--scale 1/64) model=moe-nano
  for techniques in \
    "bf16 precision.compute=bf16" \
    "fp32 precision.compute=fp32" \
    "dropless precision.compute=bf16 model.dispatch=dropless" \
    "recomputed precision.compute=bf16 activations.checkpoint=full optim.name=adam8bit" \
    "int8 precision.compute=bf16 activations.storage=int8" \
    "offloaded precision.compute=bf16 activations.storage=host placement.optimizer=host" \
    "in_backward precision.compute=bf16 optim.in_backward=true"; do
    # shellcheck disable=SC2086  # several words
    measured_run "estimate-${techniques%% *}" "$build/bin/moelab" train --config "$model" "${miniature[@]}" \
      "run.device=$device" train.sequence=1024 train.micro_batch=4 train.accumulation=1 ${techniques#* } || failed=1
  done
  return "$failed"
}

# NCCL with one rank in a program of the tests, then with a rank on each GPU; a run of as many beside one of one rank.
ranks() {
  local count=2 failed=0
  [[ $device == cpu ]] || count=$(nvidia-smi -L | grep -c '^GPU')
  OMP_NUM_THREADS=1 "$build/tests/train/parallel/test_parallel" '--gtest_filter=*NcclGroup*:*NcclRanks*' || failed=1
  if ((count > 1)); then
    "$python" scripts/check_ranks.py --program "$build/bin/moelab" --data "$data" --device "$device" --ranks "$count" ||
      failed=1
  else
    echo "one GPU: several ranks need several"
  fi
  return "$failed"
}

# Each card's script for a few steps: its peak beside the card's memory, and beside what was predicted.
presets() {
  local card failed=0 miniature=()
  [[ $device == cuda ]] || miniature=(--scale 1/64)
  for card in 8gb 12gb 16gb 24gb a100_40gb a100_80gb h100_80gb; do
    MOELAB_PROGRAM=$PWD/$build/bin/moelab measured_run "preset-$card" "scripts/train_$card.sh" --device "$device" \
      "${miniature[@]}" || failed=1
  done
  return "$failed"
}

sweep() {
  "$build/bin/bench_tradeoff" --quick --out "$out/tradeoff.jsonl" "data.path=$data" "run.device=$device"
}

# run STEP: its output to STEP.log, its outcome to check.tsv. A step is a group of processes of its own, which ends with
# its time as a whole: of a shell that is stopped the program would run on.
run() {
  local left=$((minutes * 60 - SECONDS)) start=$SECONDS code=0 grace=10 outcome log printing
  [[ $1 == "${chosen[-1]}" ]] || left=$(((left + 1) / 2))
  ((left > 0)) || { printf '%s\tno time left\t0\n' "$1" >>"$out/check.tsv" && return; }
  say "$1"
  exec {log}> >(tee "$out/$1.log")
  printing=$!
  timeout "$left" bash -c "$SHARED; $1" >&"$log" 2>&1 &
  group=$!
  wait "$group" || code=$?
  while ((grace-- > 0)) && kill -0 -- "-$group" 2>/dev/null; do sleep 1; done
  kill -KILL -- "-$group" 2>/dev/null || true
  exec {log}>&-
  wait "$printing"
  case $code in
    0) outcome=ok ;;
    77) outcome=$(tail -n 1 "$out/$1.log") ;;
    124) outcome="stopped after its share of the time" ;;
    *) outcome="FAILED (exit $code): see $1.log" ;;
  esac
  printf '%s\t%s\t%d\n' "$1" "$outcome" $((SECONDS - start)) >>"$out/check.tsv"
}

# What a step's own shell needs of this one: `timeout` runs programs, no functions.
SHARED="set -uo pipefail; $(declare -p device out build python data); $(declare -f skip measured_run "${STEPS[@]}")"
readonly SHARED
group=""
trap '[[ -z $group ]] || kill -- "-$group" 2>/dev/null; exit 130' HUP INT TERM
: >"$out/check.tsv"
for step in "${chosen[@]}"; do run "$step"; done
say "$name: records in $out"
awk -F'\t' '{printf "%-12s %6d s  %s\n", $1, $3, $2}' "$out/check.tsv"
[[ $device == cpu ]] || "$python" scripts/gpu_goals.py "$out"
! grep -q FAILED "$out/check.tsv"
