#!/bin/bash
# Counts instructions per packet, and the share of each stage, with callgrind: the figures are equal on every run of one
# binary. Each scenario runs for N and for 2N packets; the difference, divided by N, is the cost of a packet. Only
# instructions inside `one_burst` count: the pipeline, the counters and the aging, but not the creation of frames.
#
# benches/callgrind.sh [-s] [SCENARIO ...]       -s: also the instructions of each stage, inclusive
set -euo pipefail
cd "$(dirname "$0")/.."
stages=0
[ "${1:-}" = -s ] && { stages=1; shift; }
# 95,000 flows in tables for 100,000: as full as a million in the default of 1,048,576.
entries=100000
[ $# -gt 0 ] || set -- {dsr-l2,dsr-ipip,nat,nat-reply,fullnat,fullnat-reply}/known-{1,1000,95000} \
    {dsr-l2,dsr-ipip,nat,fullnat}/new dsr-l2/known-95000/{tcp,udp,v6} trivial/known-1
packets=20480
command -v valgrind >/dev/null || { echo "no valgrind; run make setup" >&2; exit 1; }
"${CARGO:-cargo}" build --release --locked -q -p tidegate-pipeline-bench --bin one-scenario
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

count() { # SCENARIO PACKETS -> the file of counts
    valgrind --tool=callgrind --callgrind-out-file="$work/out.$2" --toggle-collect='*one_*burst*' \
        target/release/one-scenario "$1" "$2" "$entries" 2>"$work/log.$2" ||
        { grep -m 1 '^Error' "$work/log.$2" >&2; return 1; }
}
total() { awk '/^(totals|summary):/ { print $2; exit }' "$1"; }

echo "| scenario | instructions per packet |"
echo "|---|---|"
for scenario; do
    count "$scenario" $packets &
    first=$!
    count "$scenario" $((2 * packets)) || { wait $first || true; exit 1; }
    wait $first
    once=$(total "$work/out.$packets") twice=$(total "$work/out.$((2 * packets))")
    awk -v s="$scenario" -v n=$packets -v d=$((twice - once)) 'BEGIN { printf "| %s | %.1f |\n", s, d / n }'
    if [ $stages = 1 ]; then
        callgrind_annotate --inclusive=yes --threshold=100 "$work/out.$((2 * packets))" 2>/dev/null |
            awk -v n=$((2 * packets)) '
                match($0, /(Pipeline>?|FlowTables>?|BurstOutput|[A-Za-z]*Table<.*>)::[a-z_]+/) {
                    name = substr($0, RSTART, RLENGTH); gsub(/<.*>/, "", name)
                    gsub(",", "", $1)
                    if (!(name in seen) && $1 / n >= 0.5) { seen[name] = 1; printf "|   %s | %.1f |\n", name, $1 / n }
                }'
    fi
done
