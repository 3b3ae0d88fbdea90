#!/usr/bin/env bash
# Trains moe-nano on a card of 24 GiB: bf16, 32 sequences of 1024 tokens a step.
source "$(dirname "${BASH_SOURCE[0]}")/train_lib.sh"
train_preset moe-nano gpu-24gb "$@"
