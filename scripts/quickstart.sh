#!/usr/bin/env bash
# From a fresh clone to a trained model and a measured comparison of memory techniques, on this machine.
#
# usage: scripts/quickstart.sh [key=value …]     settings of the training run, e.g. train.steps=1000
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

readonly DATA=data/python-stdlib RUN=runs/quickstart RUNS=runs/quickstart-techniques
readonly STEPS=500 ROUNDS=2 ROUND_STEPS=12
readonly MICRO_BATCH=8

case ${1-} in
  -h | --help) sed -n '2,4s/^# \{0,1\}//p' "$0" && exit 0 ;;
esac
for setting in "$@"; do
  [[ $setting == *.*=* ]] || fail "'$setting': key=value is expected, e.g. train.steps=1000"
done

say "Setting up: compiler, libraries, LibTorch (a first time downloads about 1 GB)"
scripts/setup.sh --for run

say "Building moelab (a first time takes some minutes)"
device=cpu cuda=OFF
if have_gpu; then
  device=cuda cuda=AUTO
fi
configure_and_build quick moelab "-DMOELAB_CUDA=$cuda"
readonly MOELAB=build/quick/bin/moelab

say "Preparing the corpus: the source of Python's standard library, as bytes"
if [[ -f $DATA/meta.json ]]; then  # written last
  echo "it lies in $DATA already"
else
  .venv/bin/python scripts/prepare_data.py --bytes --python-stdlib --out "$DATA"
fi

# 16-bit products pay where the CPU has instructions for them.
compute=bf16
if [[ $device == cpu ]] && ! grep -qE 'amx_bf16|avx512_bf16' /proc/cpuinfo; then
  compute=fp32
fi
readonly COMMON=(--config moe-micro --device "$device" "data.path=$DATA")

say "Training moe-micro on the $device, in $compute, under a budget of 4 GiB"
rm -rf "$RUN"
# A setting may be given once, so what the caller gives takes the place of ours.
ours=()
for setting in "precision.compute=$compute" memory.limit=4GiB "train.steps=$STEPS" "train.micro_batch=$MICRO_BATCH" \
  run.name=quickstart "run.dir=$RUN"; do
  [[ " $*" == *" ${setting%%=*}="* ]] || ours+=("$setting")
done
"$MOELAB" train "${COMMON[@]}" "${ours[@]}" "$@"

say "Evaluating it on held-out text"
"$MOELAB" eval --config "$RUN/config.yaml"

say "Measuring four ways to train the same model ($ROUNDS rounds of $ROUND_STEPS steps each)"
readonly WHOLE="train.micro_batch=$MICRO_BATCH"
readonly LEAN=("precision.compute=$compute" attention.kernel=flash model.dispatch=capacity)
# measure NAME ROUND SETTING…: one short training run, in a process of its own.
measure() {
  local folder=$RUNS/$1-$2 code=0
  echo "  round $2: $1"
  "$MOELAB" train "${COMMON[@]}" "train.steps=$ROUND_STEPS" eval.batches=0 \
    checkpoint.keep=0 monitor.quiet=true run.log_every=0 "run.name=$1" "run.dir=$folder" "${@:3}" \
    >"$folder.log" 2>&1 || code=$?
  if ((code != 0 && code != 3)); then  # 3: out of memory, a result as well
    tail -n 20 "$folder.log" >&2
    return "$code"
  fi
}
rm -rf "$RUNS"
mkdir -p "$RUNS"
for ((round = 1; round <= ROUNDS; round++)); do
  measure textbook "$round" "$WHOLE" precision.compute=fp32 attention.kernel=materialised model.dispatch=onehot
  measure lean "$round" "$WHOLE" "${LEAN[@]}"
  measure recompute "$round" "$WHOLE" "${LEAN[@]}" activations.checkpoint=full
  measure accumulate "$round" "${LEAN[@]}" "train.micro_batch=$((MICRO_BATCH / 2))" train.accumulation=2
done

say "What they cost (held against the first)"
group() {
  local round folders=()
  for ((round = 1; round <= ROUNDS; round++)); do
    folders+=("$RUNS/$2-$round")
  done
  (IFS=, && echo "$1=${folders[*]}")
}
.venv/bin/python scripts/compare_runs.py \
  "$(group 'textbook: fp32, one-hot dispatch, S x S scores' textbook)" \
  "$(group "lean: $compute, capacity buffers, flash attention" lean)" \
  "$(group '  and every block recomputed in backward' recompute)" \
  "$(group '  and half the micro-batch, accumulated twice' accumulate)"

say "Done"
.venv/bin/python scripts/describe_run.py "$RUN" --unit byte
cat <<TEXT

The run:        $RUN/ (summary.json, metrics.jsonl, memory.json, checkpoints/)
The comparison: $RUNS/
Try next:
  $MOELAB train --help
  scripts/quickstart.sh train.steps=1000            # longer, better
  $MOELAB estimate --config moe-micro activations.checkpoint=full
                                                    # peak memory, without training
TEXT
