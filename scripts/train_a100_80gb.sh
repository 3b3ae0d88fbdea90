#!/usr/bin/env bash
# Trains moe-570m on an A100 of 80 GiB: bf16, every block recomputed, 4 x 8 sequences of 2048 tokens a step.
source "$(dirname "${BASH_SOURCE[0]}")/train_lib.sh"
train_preset moe-570m gpu-a100-80gb "$@"
