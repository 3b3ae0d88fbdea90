#!/usr/bin/env bash
# Trains with all of the guides' memory optimizations on: bf16, every block recomputed, flash attention, capacity
# buffers, small batches accumulated; under a budget of 6 GB, which memory.limit=SIZE changes.
#
#   --config NAME|FILE     the model (moe-nano)
#   --batch_size N         sequences a forward pass (8)
#   --grad_accum N         forward passes a step (2)
#   --resume latest|auto|PATH   go on from a checkpoint
#   --monitor_memory       a line of memory use every 10 steps, not every 50
source "$(dirname "${BASH_SOURCE[0]}")/train_lib.sh"

arguments=()
while (($# > 0)); do
  case $1 in
    --batch_size | --grad_accum)
      [[ ${2-} =~ ^[0-9]+$ ]] || fail "$1 ${2-}: a number is expected, e.g. $1 4"
      set -- "$1=$2" "${@:3}"
      continue
      ;;
    --batch_size=*) arguments+=("train.micro_batch=${1#*=}") ;;
    --grad_accum=*) arguments+=("train.accumulation=${1#*=}") ;;
    --monitor_memory) arguments+=(monitor.every=10) ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
train_preset moe-nano memory-optimized "${arguments[@]}"
