#!/bin/bash
# Runs every loom test of the dataplane (dataplane/tests/loom_*.rs), which explores all interleavings of small bodies.
# Uses its own target directory, because the cfg rebuilds everything. Called by test.sh. Arguments are passed to `cargo
# test`.
set -euo pipefail
cd "$(dirname "$0")/../.."

tests=()
for file in dataplane/tests/loom_*.rs; do
  tests+=(--test "$(basename "$file" .rs)")
done
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" \
  "${CARGO:-cargo}" test --release --locked -p tidegate-dataplane "${tests[@]}" "$@"
