#!/usr/bin/env bash
# Trains moe-nano on several ranks that divide all of the training state (ZeRO-3, as FSDP does): bf16, every block
# recomputed, 8 x 2 sequences of 1024 tokens a step on each rank, under a budget of 6 GB for each.
#
#   --config NAME|FILE     the model (moe-nano)
#   --ranks N              ranks on this machine, by default one for each GPU, or 2 without any
#
# On several machines torchrun starts it, and --ranks stays away; each rank takes the GPU of its number:
#   torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 --no-python \
#       scripts/train_distributed.sh checkpoint.dir=SHARED
source "$(dirname "${BASH_SOURCE[0]}")/train_lib.sh"

# One rank for each GPU that the driver lists.
default_ranks() {
  local gpus
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
  echo $((gpus > 0 ? gpus : 2))
}

ranks="" arguments=()
while (($# > 0)); do
  case $1 in
    --ranks) set -- "--ranks=${2-}" "${@:3}" && continue ;;
    --ranks=*)
      ranks=${1#*=}
      [[ $ranks =~ ^[1-9][0-9]*$ ]] || fail "--ranks $ranks: a number is expected, e.g. --ranks 2"
      ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

if [[ -n ${WORLD_SIZE-} ]]; then  # torchrun has started this as one of its ranks
  [[ -z $ranks ]] || fail "--ranks $ranks: torchrun has started $WORLD_SIZE ranks already; leave --ranks away"
else
  LAUNCHER=("$ROOT/scripts/ranks.sh" "${ranks:-$(default_ranks)}")
fi
train_preset moe-nano memory-optimized parallel.zero=3 "${arguments[@]}"
