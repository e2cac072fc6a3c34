#!/bin/bash
# Throws arbitrary frames at the pipeline for so many seconds: no panic, every frame accounted for.
# Called by `make fuzz` (long) and test.sh (short). Usage: fuzz.sh SECONDS
set -euo pipefail
cd "$(dirname "$0")/../.."

[[ ${1:-} =~ ^[0-9]+$ ]] || { echo "usage: fuzz.sh SECONDS" >&2; exit 2; }
exec "${CARGO:-cargo}" run --release --locked --manifest-path fuzz/Cargo.toml --bin pipeline -- "$1"
