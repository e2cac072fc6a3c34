#!/bin/bash
# Runs the gateway on emulated PCI NICs with DPDK's own drivers, in virtual machines under software emulation, with real
# clients and servers in namespaces of the host. Called by `make vm-test`, not by `make test`, because it takes minutes.
# It prints a line for each check and a summary, and keeps the logs of machines with failed checks in target/vm/logs.
# NICS="virtio e1000e" limits the run to these machines.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
image=${CARGO_TARGET_DIR:-$PWD/target}/vm

die() { printf 'vm-test: %s\n' "$*" >&2; exit 1; }

[[ $(id -u) == 0 ]] || die "needs root: namespaces and taps"
deploy/scripts/setup.sh vm
deploy/vm/image.sh "$image"
rm -rf "$image/logs"

"$cargo" test --workspace --test e2e --locked --no-run -q
read -ra nics <<<"${NICS:-virtio e1000e vmxnet3}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
TIDEGATE_VM_IMAGE=$image "$cargo" test --workspace --test e2e --locked -q -- --ignored --nocapture --test-threads 1 \
  "${nics[@]/#/vm::long::}" 2>&1 | tee "$log" || status=$?

passed=$(grep -c '^vm-test: ok ' "$log" || true)
failed=$(grep -c '^vm-test: FAIL ' "$log" || true)
printf 'vm-test: %d checks passed, %d failed, %s, %ds\n' "$passed" "$failed" "$(qemu-system-x86_64 --version | head -1)" "$SECONDS"
((passed > 0)) || die "no check has run"
exit "$status"
