#!/usr/bin/env bash
# Proves moelab on this machine's GPU: one command, what decides first, within the time given. Records go to
# results/<gpu>/ as they come; a page for its reader ends it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

readonly STEPS=(environment operators steps throughput estimates kernels peers presets sanitizer tests ranks sweep)
readonly DECIDING=(operators steps)  # whether the GPU's results are right

usage() {
  cat <<'TEXT'
usage: scripts/gpu_check.sh [--minutes N] [--device cuda|cpu] [--out DIR] [STEP …]

  --minutes  for everything together (default 30); a step takes half of what is left at most, the last all of it; one
             that is cut off by its time has FAILED, one that finds no time left has not run
  --device   cpu: the same steps without a GPU, the presets as miniatures
  --out      folder of the records (default results/<name of the GPU>)
  STEP       some of: environment operators steps throughput estimates kernels peers presets sanitizer tests ranks
             sweep (default: all, so)

It runs the programs of the newest build, or of the bundle that scripts/gpu_bundle.sh made. page.md in the folder of the
records says what ran, what is slower than predicted and what to look at first. On a GPU the outcome of operators and
steps is also noted beside the build (gpu_check.json), where moelab finds it. Exit code 1: a step failed.

example: scripts/gpu_check.sh --minutes 10 environment operators steps
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

# Programs of tests at a time: one for two cores, and for 8 GiB of the GPU's memory.
at_once=$((($(nproc) + 1) / 2))
if [[ $device == cuda ]]; then
  memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)  # MiB
  [[ ! $memory =~ ^[0-9]+$ ]] || ((at_once <= memory / 8000 + 1)) || at_once=$((memory / 8000 + 1))
fi

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

# The programs of the tests. A build has more, on an emulated GPU, which say nothing of this one and take minutes.
test_programs() {
  find "$build/tests" -type f -executable -name 'test_*' -not -path '*/CMakeFiles/*' \
    -not -path "$build/tests/emulator/*" | sort
}

# run_program PART PROGRAM FILTER: what the program says but for tests that pass, in one piece. PART: which of its
# tests, as 2/8. A program that is cut off leaves all that it said in $out.
run_program() {
  local code=0 log
  log=$(mktemp "$out/running-${2##*/}-${1%/*}.XXXX")
  GTEST_SHARD_INDEX=${1%/*} GTEST_TOTAL_SHARDS=${1#*/} OMP_NUM_THREADS=1 \
    "$2" "--gtest_filter=$3" </dev/null >"$log" 2>&1 || code=$?
  grep -q '^\[  PASSED  \] 0 tests' "$log" ||
    printf '%s --gtest_filter=%s, part %s: exit code %d\n%s\n' "$2" "$3" "$1" "$code" \
      "$(grep -vE '^(Running main|\[ RUN |\[       OK|\[---|\[===|Note: |$)' "$log")"
  rm "$log"
  return "$code"
}

# run_tests FILTER [PARTS]: the tests that FILTER names, of the programs that stdin lists, several at a time, each
# program in PARTS processes.
run_tests() {
  local program part parts=${2-1}
  while read -r program; do
    for ((part = 0; part < parts; ++part)); do printf '%s\n' "$part/$parts" "$program" "$1"; done
  done | xargs -r -d '\n' -n 3 -P "$at_once" \
    bash -c "$(declare -p out); $(declare -f run_program); run_program \"\$@\"" run_program || return 1
}

on_gpu() { [[ $device == cuda ]] && echo '*Cuda*:*Gpu*' || echo "$1"; }

# Does each operator agree with its reference? Then the same between sentinels. CudaLarge takes half a card's memory.
operators() {
  local failed=0
  test_programs | grep '/test_kernels$' | run_tests "$(on_gpu '*')-CudaLarge*" "$at_once" || failed=1
  if [[ $device == cuda ]]; then
    test_programs | grep '/test_kernels$' | MOELAB_GUARD_CUDA=1 run_tests '*Cuda*-CudaLarge*' "$at_once" || failed=1
    test_programs | grep '/test_kernels$' | run_tests 'CudaLarge*' || failed=1
  fi
  return "$failed"
}

# Whole training steps beside the CPU's, and whatever else needs a GPU.
steps() {
  test_programs | grep -v '/test_kernels$' | run_tests "$(on_gpu 'Trainer*')-NcclGroup*:*NcclRanks*" 3
}

tests() {
  test_programs | run_tests '*'
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

# keep_run RUN NAME: of a run's folder its summary, and what is predicted of its settings on this machine.
keep_run() {
  if [[ -f $out/run-$1/summary.json ]]; then
    "$build/bin/moelab" estimate --json --config "$out/run-$1/config.yaml" run.preset= >"$out/$2-estimate.json"
    mv "$out/run-$1/summary.json" "$out/$2.json"
  fi
  rm -rf "$out/run-$1"
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
    keep_run olmoe "olmoe-graphs-$graphs"
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
  fi
  keep_run "$name" "$name"
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

# On a GPU in a model that keeps one busy; what a call leaves unmeasured, the next goes on with.
sweep() {
  local plan=(--plan scripts/gpu_sweep.yaml --extra-rounds 0)
  [[ $device == cuda ]] || plan=(--quick)
  "$build/bin/bench_tradeoff" "${plan[@]}" --out "$out/tradeoff.jsonl" "data.path=$data" "run.device=$device"
}

declare -A outcome=()

# note STEP OUTCOME SECONDS
note() {
  outcome[$1]=$2
  printf '%s\t%s\t%d\n' "$@" >>"$out/check.tsv"
}

# run STEP: its output to STEP.log, its outcome to check.tsv. A step is a group of processes of its own, which ends with
# its time as a whole: of a shell that is stopped the program would run on.
run() {
  local left=$((minutes * 60 - SECONDS)) start=$SECONDS code=0 grace=10 result log printing
  [[ $1 == "${chosen[-1]}" ]] || left=$(((left + 1) / 2))
  ((left > 0)) || { note "$1" "not run: no time was left" 0 && return; }
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
    0) result=ok ;;
    77) result=$(tail -n 1 "$out/$1.log") ;;
    124) result="FAILED: cut off after its $left s; give --minutes more" ;;
    *) result="FAILED (exit $code): see $1.log" ;;
  esac
  note "$1" "$result" $((SECONDS - start))
}

# Once the steps that decide have run: what moelab says of this GPU from now on, with this driver and build.
record() {
  local step failed=() passed=true
  for step in "${DECIDING[@]}"; do
    [[ ${outcome[$step]-not run} != "not run"* ]] || return 0
    [[ ${outcome[$step]} == ok ]] || failed+=("$step") passed=false
  done
  printf '{"schema": 1, "gpu": "%s", "driver": "%s", "build": "%s", "passed": %s, "failed": "%s", "date": "%s"}\n' \
    "$name" "$driver" "$version" "$passed" "${failed[*]-}" "$(date -I)" >"$build/gpu_check.json"
}

# What a step's own shell needs of this one: `timeout` runs programs, no functions.
SHARED="set -uo pipefail; $(declare -p device out build python data at_once)
$(declare -f skip test_programs run_program run_tests on_gpu keep_run measured_run "${STEPS[@]}")"
readonly SHARED
group=""
trap '[[ -z $group ]] || kill -- "-$group" 2>/dev/null; exit 130' HUP INT TERM
: >"$out/check.tsv"
# As moelab reads them: the driver's release from its own file, the build from the program.
driver=$(awk 'NR == 1 {for (i = 1; i <= NF; i++) if ($i ~ /^[0-9]+\.[0-9.]+$/) {print $i; exit}}' \
  /proc/driver/nvidia/version 2>/dev/null || true)
version=$({ "$build/bin/moelab" --version || true; } | sed -n 's/.*(\(.*\))$/\1/p')
printf '{"name": "%s", "driver": "%s", "build": "%s", "device": "%s", "minutes": %d, "date": "%s"}\n' \
  "$name" "$driver" "$version" "$device" "$minutes" "$(date -I)" >"$out/machine.json"
for step in "${chosen[@]}"; do
  run "$step"
  [[ $device == cpu || $step != "${DECIDING[-1]}" ]] || record
done
say "$name: records in $out"
"$python" scripts/gpu_page.py "$out"
! grep -q FAILED "$out/check.tsv"
