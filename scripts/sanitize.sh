#!/usr/bin/env bash
# Builds test programs with sanitizers, runs them, and adds up what was tried and found.
#
# usage: scripts/sanitize.sh asan|tsan [--store FILE] [--jobs N] [TEST]…
#        scripts/sanitize.sh --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec .venv/bin/python tests/soak/sanitizers.py "$@"
