#!/bin/bash
# Tests the target `node` with the real kube-proxy that deploy/tools pins. Called by `make kube-proxy`, not by `make
# test`. KUBE_PROXY=PROGRAM selects another program.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}

die() { printf 'kube-proxy: %s\n' "$*" >&2; exit 1; }

[[ $(id -u) == 0 ]] || die "needs root: namespaces, AF_PACKET and TUN"
[[ -n ${KUBE_PROXY:-} ]] || KUBE_PROXY=$(deploy/scripts/tools.sh)/kube-proxy
[[ -x $KUBE_PROXY ]] || die "KUBE_PROXY=$KUBE_PROXY: no such program"
export KUBE_PROXY
printf 'kube-proxy: %s, %s\n' "$("$KUBE_PROXY" --version)" "$(nft --version)"
"$cargo" test --workspace --test e2e --locked -- --ignored --nocapture kube_proxy
