#!/bin/bash
# Every test, in the order in which a failure is cheapest to hear of: format and lints, then all of cargo's
# tests (DPDK and namespaces included, so as root), the lock-free code under loom, a short fuzz run; and at the
# end that nothing was left behind. Called by `make test`. Fails without DPDK or without root, never skips.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}

stage() { printf '\n=== %s (%ds)\n' "$*" "$SECONDS"; }

[[ $(id -u) == 0 ]] || { echo "make test needs root: namespaces, AF_PACKET and TUN" >&2; exit 1; }
pkg-config --exists 'libdpdk >= 22.11' || { echo "no libdpdk 22.11 or newer; run make setup" >&2; exit 1; }

# These choose another API server for the stories, which skips some: make test-apiserver.
unset KUBE_APISERVER ETCD KUBE_CONTROLLER_MANAGER TIDEGATE_TEST_KUBECONFIG

before=$(mktemp)
trap 'rm -f "$before"' EXIT
deploy/scripts/leftovers.sh snapshot "$before"

stage "format and lints"
make --no-print-directory lint

stage "tests of the workspace"
"$cargo" test --workspace --locked

# With --workspace, though the tests are of one package: another selection has other features, and builds everything again.
stage "end to end, in network namespaces"
"$cargo" test --workspace --test e2e --locked

stage "with an API server"
"$cargo" test --workspace --test kubernetes --locked

stage "lock-free code under loom"
deploy/scripts/loom.sh

stage "short fuzz run"
deploy/scripts/fuzz.sh "${FUZZ_SECONDS_SHORT:-20}"

stage "what is left"
deploy/scripts/leftovers.sh compare "$before"

stage "all passed"
