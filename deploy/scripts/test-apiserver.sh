#!/bin/bash
# Runs the tests of control/tests/kubernetes with a real API server instead of the test API server. Called by
# `make test-apiserver` and .ci/run. Reports at the end how many tests ran and which were skipped.
#
# Without a variable, tools.sh builds the control plane that deploy/tools pins, and each test starts its own.
#
#   KUBE_APISERVER=PROGRAM ETCD=PROGRAM [KUBE_CONTROLLER_MANAGER=PROGRAM]   another control plane
#   TIDEGATE_TEST_KUBECONFIG=FILE   the cluster of its current context, which must contain nothing of Tidegate
#   STORIES=FILTER                  run only these tests
#
# CONTRIBUTING.md explains which tests are skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}

die() { printf 'test-apiserver: %s\n' "$*" >&2; exit 1; }
accepted='accepted: no variable, for the pinned control plane; or KUBE_APISERVER=PROGRAM ETCD=PROGRAM, with
KUBE_CONTROLLER_MANAGER=PROGRAM for the tests that delete namespaces; or TIDEGATE_TEST_KUBECONFIG=FILE'

program() {
  local path
  path=$(command -v "${!1}") || die "$1=${!1}: no such program; $accepted"
  # Child processes of the tests have another working directory.
  export "$1=$(realpath "$path")"
}

[[ $(id -u) == 0 ]] || die "needs root: the gateways run in network namespaces"
pkg-config --exists 'libdpdk >= 22.11' || die "no libdpdk 22.11 or newer; run make setup"
if [[ -n ${TIDEGATE_TEST_KUBECONFIG:-} ]]; then
  [[ -z ${KUBE_APISERVER:-}${ETCD:-}${KUBE_CONTROLLER_MANAGER:-} ]] ||
    die "TIDEGATE_TEST_KUBECONFIG beside the path of a program; $accepted"
  [[ -r $TIDEGATE_TEST_KUBECONFIG ]] || die "$TIDEGATE_TEST_KUBECONFIG cannot be read; $accepted"
  TIDEGATE_TEST_KUBECONFIG=$(realpath "$TIDEGATE_TEST_KUBECONFIG")
  export TIDEGATE_TEST_KUBECONFIG
elif [[ -n ${KUBE_APISERVER:-} && -n ${ETCD:-} ]]; then
  program KUBE_APISERVER
  program ETCD
  if [[ -n ${KUBE_CONTROLLER_MANAGER:-} ]]; then program KUBE_CONTROLLER_MANAGER; fi
elif [[ -n ${KUBE_APISERVER:-}${ETCD:-}${KUBE_CONTROLLER_MANAGER:-} ]]; then
  die "KUBE_APISERVER and ETCD belong together; $accepted"
else
  tools=$(deploy/scripts/tools.sh)
  export KUBE_APISERVER=$tools/kube-apiserver ETCD=$tools/etcd KUBE_CONTROLLER_MANAGER=$tools/kube-controller-manager
  # Use kubectl of the same version, and helm.
  export PATH=$tools:$PATH
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
code=0
# Tests mostly wait, so more of them than cores run at a time.
"$cargo" test --workspace --test kubernetes --locked --no-fail-fast -- --test-threads 4 ${STORIES:+"$STORIES"} 2>&1 | tee "$log" || code=$?
# cargo counts a skipped test as passed, because it does not know skipped tests.
skipped=$(grep -c '^skipped: ' "$log" || true)
# Sums the results of the gateway's and of the plugin's tests.
count() { sed -n "s/^test result: .* \\([0-9]*\\) $1; .*/\\1/p" "$log" | awk '{ sum += $1 } END { print sum }'; }
passed=$(count passed)
failed=$(count failed)
if [[ -n $passed ]]; then
  printf '\ntest-apiserver: %d passed, %d failed, %d skipped:\n' "$((passed - skipped))" "$failed" "$skipped"
  sed -n 's/^skipped: /  /p' "$log" | sort
fi
exit "$code"
