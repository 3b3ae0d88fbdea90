#!/usr/bin/env bash
# Trains moe-100m on an RTX 4090 (24 GiB): fp16, 16 x 4 sequences of 512 tokens a step.
source "$(dirname "${BASH_SOURCE[0]}")/train_lib.sh"
train_preset moe-100m gpu-rtx4090 "$@"
