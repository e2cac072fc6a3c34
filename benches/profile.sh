#!/bin/bash
# Shows where the time of one scenario is spent, cache misses included: perf samples the clock, and sorts functions by
# their own time. Only those of the pipeline are shown. Each stage is one function with its leaves inlined.
#
# benches/profile.sh SCENARIO [PACKETS]
set -euo pipefail
cd "$(dirname "$0")/.."
command -v perf >/dev/null || { echo "no perf; install linux-perf" >&2; exit 1; }
"${CARGO:-cargo}" build --release --locked -q -p tidegate-pipeline-bench --bin one-scenario
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
perf record -q -e cpu-clock -F 5000 -o "$work/perf" target/release/one-scenario "$1" "${2:-20000000}"
perf report -i "$work/perf" --no-children --stdio --sort symbol 2>/dev/null |
    awk '/%/ && /tidegate_(pipeline|conntrack|snapshot|select|structures|spec|wire)::|one_burst|memcpy|memmove/ && !/maglev|Snapshot>?::compile|snapshot::compile/ {
            share = $1; sub("%", "", share); sub(/^[^\]]*\] /, ""); all += share; names[++n] = $0; of[n] = share }
        END { for (i = 1; i <= n; i++) if (of[i] / all >= 0.005) printf "%5.1f %%  %s\n", 100 * of[i] / all, names[i] }'
