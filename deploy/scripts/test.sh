#!/bin/bash
# Runs every test, cheapest first: format and lints, all tests of cargo (including DPDK and namespaces, so it needs
# root), the lock-free code under loom, a short fuzz run, and the instructions per packet. At the end leftovers.sh
# checks that nothing was left behind. Called by `make test`. It fails without DPDK or without root, and never skips a
# test.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}

stage() { printf '\n=== %s (%ds)\n' "$*" "$SECONDS"; }

[[ $(id -u) == 0 ]] || { echo "make test needs root: namespaces, AF_PACKET and TUN" >&2; exit 1; }
pkg-config --exists 'libdpdk >= 22.11' || { echo "no libdpdk 22.11 or newer; run make setup" >&2; exit 1; }

[[ -n ${TIDEGATE_RUN:-} ]] || exec deploy/scripts/leftovers.sh run "$0"

# These variables would select another API server, which skips some tests: see make test-apiserver.
unset KUBE_APISERVER ETCD KUBE_CONTROLLER_MANAGER TIDEGATE_TEST_KUBECONFIG

ahead=
finish() {
  # The builds have their own process group.
  [[ -z $ahead ]] || kill -- "-$ahead" 2>/dev/null || true
}
trap finish EXIT
stage "format and lints"
make --no-print-directory lint

stage "tests of the workspace"
"$cargo" test --workspace --locked
# `cargo test` skips tests that need root.
"$cargo" test --workspace --lib --locked -q -- --ignored network::tests::associations::

# The following tests mostly wait. At the lowest priority, builds use only the time that the tests leave.
setsid deploy/scripts/lowest-priority.sh deploy/scripts/build-ahead.sh >/dev/null 2>&1 &
ahead=$!

# --workspace, although the tests are in one package: another selection has other features and rebuilds everything.
stage "edges, with HAProxy"
"$cargo" test --workspace --test edge --locked

stage "end to end, in network namespaces"
# A test waits for more than half of its time.
"$cargo" test --workspace --test e2e --locked -- --test-threads "$(($(nproc) * 3 / 2))"

# These tests mostly wait: for leases, timeouts and grace periods.
stage "with an API server"
"$cargo" test --workspace --test kubernetes --locked -- --test-threads 4

stage "lock-free code under loom"
wait "$ahead" || true
ahead=
deploy/scripts/loom.sh

stage "short fuzz run"
deploy/scripts/fuzz.sh "${FUZZ_SECONDS_SHORT:-20}"

stage "instructions per packet"
benches/instructions.sh

stage "performance lab, short form"
# With --tests, the programs have the features of the tests, so that their dependencies need not be compiled again.
"$cargo" build --workspace --bins --tests --locked
benches/perf-test.sh

stage "all passed"
