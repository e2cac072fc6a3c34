#!/bin/bash
# Times the pipeline and counts its instructions on this machine, measures the control plane at 10,000 Services, and
# runs the micro-benches. Called by `make bench`. Arguments are passed to criterion, BENCH selects parts, and
# CONTROL_RUN_ARGS are passed to control-run. benches/README.md explains the figures.
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo=${CARGO:-cargo}
parts=${BENCH:-figures callgrind control micro}
for part in $parts; do
  case $part in
    figures | callgrind | control | micro) ;;
    *) echo "BENCH: no part $part; accepted: figures callgrind control micro" >&2; exit 2 ;;
  esac
done
wants() { [[ " $parts " == *" $1 "* ]]; }

if wants callgrind && ! command -v valgrind >/dev/null; then
  echo "no valgrind for the instruction counts; run make setup" >&2
  exit 1
fi

if wants figures; then
  echo "## ns per packet, flow tables on huge pages"
  # Build first, because the allocator setting is only for the measured program.
  "$cargo" build --release --locked -q -p tidegate-pipeline-bench --bin figures
  GLIBC_TUNABLES=glibc.malloc.hugetlb=1 target/release/figures
fi

if wants callgrind; then
  echo "## instructions per packet"
  CARGO=$cargo benches/callgrind.sh
fi

if wants control; then
  "$cargo" build --release --locked -q -p tidegate -p tidegate-control-bench
  echo "## control plane: stages of a change"
  target/release/control-scale
  echo "## control plane: from a write to an API server to the worker"
  target/release/control-chain
  echo "## control plane: the whole process"
  if [[ $(id -u) == 0 ]]; then
    read -ra arguments <<<"${CONTROL_RUN_ARGS:---sizes}"
    target/release/control-run "${arguments[@]}"
  else
    echo "skipped: network namespaces need root" >&2
  fi
fi

if wants micro; then
  echo "## micro-benches"
  "$cargo" bench --locked -p tidegate-pipeline-bench "$@"
fi
