#!/usr/bin/env bash
# Trains moe-100m on an RTX 3090 (24 GiB): fp16, 12 x 4 sequences of 256 tokens a step.
source "$(dirname "${BASH_SOURCE[0]}")/train_lib.sh"
train_preset moe-100m gpu-rtx3090 "$@"
