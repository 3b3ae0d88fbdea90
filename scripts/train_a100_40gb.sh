#!/usr/bin/env bash
# Trains moe-230m on an A100 of 40 GiB: bf16, 8 x 4 sequences of 512 tokens a step.
source "$(dirname "${BASH_SOURCE[0]}")/train_lib.sh"
train_preset moe-230m gpu-a100-40gb "$@"
