#!/bin/bash
# Counts the instructions of one backend lookup with callgrind, for N and 2N lookups of the same flows; the result is
# the difference divided by N. It includes hashing the flow's number (about 10 instructions).
#
# benches/selection.sh [BACKENDS[xWEIGHT] ...]
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 1 10 16 32 64 96 128 160 192 224 256 300 400 1000 2000 20000 20x100 21x512 1000x100
count=20000
command -v valgrind >/dev/null || { echo "no valgrind; run make setup" >&2; exit 1; }
"${CARGO:-cargo}" build --release --locked -q -p tidegate-pipeline-bench --bin selection
binary="${CARGO_TARGET_DIR:-target}/release/selection"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

total() { # SCHEME BACKENDS WEIGHT COUNT
    valgrind --tool=callgrind --callgrind-out-file="$work/out" "$binary" lookups "$@" 2>"$work/log" ||
        { cat "$work/log" >&2; exit 1; }
    awk '/^(totals|summary):/ { print $2; exit }' "$work/out"
}

echo "| backends x weight | rendezvous | maglev |"
echo "|---|---|---|"
for what; do
    backends=${what%x*} weight=1
    case $what in *x*) weight=${what#*x} ;; esac
    line="| $backends x $weight |"
    for scheme in rendezvous maglev; do
        once=$(total $scheme "$backends" "$weight" $count)
        twice=$(total $scheme "$backends" "$weight" $((2 * count)))
        line+=" $(awk -v d=$((twice - once)) -v n=$count 'BEGIN { printf "%.0f", d / n }') |"
    done
    echo "$line"
done
