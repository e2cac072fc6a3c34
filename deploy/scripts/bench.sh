#!/bin/bash
# Times the pipeline and counts its instructions on this machine, then runs the micro-benches. Called by `make bench`;
# arguments go to criterion. benches/README.md says what the figures mean.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v valgrind >/dev/null || { echo "no valgrind for the instruction counts; run make setup-bench" >&2; exit 1; }
cargo=${CARGO:-cargo}

echo "## ns per packet, flow tables on huge pages"
# Built first: the allocator's setting is for what is measured.
"$cargo" build --release --locked -q -p tidegate-bench --bin figures
GLIBC_TUNABLES=glibc.malloc.hugetlb=1 target/release/figures

echo "## instructions per packet"
CARGO=$cargo benches/callgrind.sh

echo "## micro-benches"
exec "$cargo" bench --locked -p tidegate-bench "$@"
