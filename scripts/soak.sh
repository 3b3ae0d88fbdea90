#!/usr/bin/env bash
# Kills, damages and tires moelab for as long as it is given, and adds up what was tried.
#
# usage: scripts/soak.sh --minutes N [--part kills|disks|inputs|memory|readers|long|streams|races|filled]… [--cell CELL]… [--store FILE] [--program PROGRAM]
#        scripts/soak.sh --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec .venv/bin/python tests/soak/soak.py "$@"
