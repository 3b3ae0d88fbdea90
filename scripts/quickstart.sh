#!/usr/bin/env bash
# From a fresh clone to a trained model and a measured comparison of memory techniques, on this machine.
#
# usage: scripts/quickstart.sh [key=value …]     settings of the training run, e.g. train.steps=1000
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

readonly DATA=data/python-stdlib RUN=runs/quickstart TRADEOFF=runs/quickstart-tradeoff
readonly PROBE=runs/quickstart-probe
readonly CASES=(flash_attention capacity bf16 recompute_full all_that_pays guides_stack
  "guides_stack without accumulation")  # beside the baseline
readonly BUDGET_GIB=4

case ${1-} in
  -h | --help) sed -n '2,4s/^# \{0,1\}//p' "$0" && exit 0 ;;
esac
for setting in "$@"; do
  [[ $setting == *.*=* ]] || fail "'$setting': key=value is expected, e.g. train.steps=1000"
  [[ $setting != run.dir=* && $setting != data.path=* && $setting != checkpoint.dir=* ]] ||
    fail "'$setting': the quick start has folders of its own; moelab train takes others"
done

say "Setting up: compiler, libraries, LibTorch (a first time downloads about 1 GB)"
scripts/setup.sh --for run

say "Building moelab and its trade-off harness (a first time takes some minutes)"
# CUDA takes longer to build: only where there is a GPU, and then for that GPU.
cuda=OFF
if have_gpu; then cuda=AUTO; fi
configure_and_build quick bench_tradeoff "-DMOELAB_CUDA=$cuda"
readonly MOELAB=build/quick/bin/moelab

say "Preparing the corpus: the source of Python's standard library, as bytes"
if [[ -f $DATA/meta.json ]]; then  # written last
  echo "it lies in $DATA already"
else
  .venv/bin/python scripts/prepare_data.py --bytes --python-stdlib --out "$DATA"
fi

# The GPU, if the program can use it; bf16, unless the program finds its products slow on this CPU.
device=$("$MOELAB" train --config moe-micro --print-config | sed -n 's/^  device: //p')
compute=bf16
warning=$("$MOELAB" estimate --config moe-micro --device "$device" precision.compute=bf16 2>&1 >/dev/null)
if [[ $warning == *"precision.compute=bf16 is slow here"* ]]; then
  compute=fp32
fi
readonly TRAIN=("$MOELAB" train --config moe-micro --device "$device" "data.path=$DATA")
readonly OURS=("precision.compute=$compute" "memory.limit=${BUDGET_GIB}GiB" train.micro_batch=8 run.name=quickstart)

say "Timing a few steps on this machine"
rm -rf "$PROBE"
# probe FOLDER key=value…
probe() {
  quietly "$PROBE/$1.log" "${TRAIN[@]}" "${@:2}" train.steps=5 eval.batches=0 checkpoint.keep=0 "run.dir=$PROBE/$1"
}
probe training "${OURS[@]}" "$@"
probe baseline precision.compute=fp32 attention.kernel=materialised model.dispatch=onehot
plan=$(.venv/bin/python scripts/quickstart_plan.py "$PROBE/training" "$PROBE/baseline")
# steps, model, rounds and case_steps
declare $plan

say "Training moe-micro on the $device, in $compute, under a budget of $BUDGET_GIB GiB"
# Of a setting given twice the later wins: the caller's.
"${TRAIN[@]}" --overwrite "${OURS[@]}" "train.steps=$steps" "$@" "run.dir=$RUN"

say "Evaluating it on held-out text"
"$MOELAB" eval --config "$RUN/config.yaml"

say "Measuring $((${#CASES[@]} + 1)) ways to train $model ($rounds rounds of $case_steps steps each)"
rm -rf "$TRADEOFF"
build/quick/bin/bench_tradeoff --out "$TRADEOFF/records.jsonl" --plan bench/tradeoff/quickstart.yaml \
  --only "$(IFS=, && echo "${CASES[*]}")" --rounds "$rounds" --case-steps "$case_steps" --extra-rounds 0 --model "$model" \
  "run.device=$device" "data.path=$DATA"

say "What they cost"
"$MOELAB" techniques --json >"$TRADEOFF/techniques.json"
.venv/bin/python scripts/report.py "$TRADEOFF/records.jsonl" --techniques "$TRADEOFF/techniques.json" \
  --out "$TRADEOFF"
.venv/bin/python scripts/quickstart_best.py "$TRADEOFF/records.jsonl" --budget-gib "$BUDGET_GIB"

say "Done"
.venv/bin/python scripts/describe_run.py "$RUN"
cat <<TEXT

The run:        $RUN/ (summary.json, metrics.jsonl, memory.json, checkpoints/)
The comparison: $TRADEOFF/report.html (one file, works offline; report.md is the same)
Try next:
  $MOELAB train --help
  scripts/quickstart.sh train.steps=1000            # longer, better
  $MOELAB estimate --config moe-micro activations.checkpoint=full
                                                    # peak memory, without training
TEXT
