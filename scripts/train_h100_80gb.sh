#!/usr/bin/env bash
# Trains moe-740m on an H100 (80 GiB): bf16, every block recomputed, 6 x 8 sequences of 4096 tokens a step.
source "$(dirname "${BASH_SOURCE[0]}")/train_lib.sh"
train_preset moe-740m gpu-h100-80gb "$@"
