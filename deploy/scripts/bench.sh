#!/bin/bash
# Runs the micro-benches and the instruction counts of benches/ on this machine. Called by `make bench`;
# benches/README.md says what the figures mean.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v valgrind >/dev/null || { echo "no valgrind for the instruction counts; run make setup-bench" >&2; exit 1; }
exec "${CARGO:-cargo}" bench --locked -p tidegate-bench "$@"
