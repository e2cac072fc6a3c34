#!/bin/bash
# Measures Tidegate, testpmd and the Linux kernel by tidegate-bench, with huge pages if the machine has enough memory.
# Called by `make perf`, as root.
#
# benches/perf.sh [SCENARIO ...]    default: those below
#   ROUNDS=N       rounds, instead of those of the scenarios
#   RESULTS=NAME   writes NAME.json and NAME.html to target/perf, and the table to benches/results
#
# BENCH_ARGS are additional arguments of `tidegate-bench run`.
set -euo pipefail
cd "$(dirname "$0")/.."

# Each mode with 1,000 Services of 10 backends and with one of 100, on-change, replies, IPv6, connections, and the kernel.
(($#)) || set -- memif memif-replies memif-on-change memif-one-service memif-one-service-replies \
  memif-one-service-on-change memif-v6 memif-78-bytes connections veth connections-veth imix
for program in dpdk-testpmd nft; do
  command -v "$program" >/dev/null || { echo "no $program; run make setup" >&2; exit 1; }
done
"${CARGO:-cargo}" build --release --locked -q -p tidegate -p tidegate-bench

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bench=${CARGO_TARGET_DIR:-target}/release/tidegate-bench
read -ra more <<<"${BENCH_ARGS:-}"
[[ -z ${ROUNDS:-} ]] || more+=(--rounds "$ROUNDS")
status=0
deploy/scripts/hugepages.sh run 300 "$bench" run --out "$work/results.json" "${more[@]}" "$@" || status=$?
if [[ -s $work/results.json && -n ${RESULTS:-} ]]; then
  out=${CARGO_TARGET_DIR:-target}/perf
  mkdir -p "$out"
  cp "$work/results.json" "$out/$RESULTS.json"
  "$bench" report "$work/results.json" --out "$out/$RESULTS.html"
  table=benches/results/$RESULTS
  "$bench" table "$work/results.json" >"${table}.md"
fi
exit $status
