#!/bin/bash
# Builds the kubectl plugin, and runs `cargo test`, in a root without DPDK: a Debian 12 with a C compiler, in which an
# ordinary user has read-only access to this tree and to the toolchain of this machine. Then the tests of the plugin run
# on this machine with that plugin, against a real API server. Called by `make without-dpdk`. It needs root, and a
# Debian mirror (MIRROR=URL selects another one than apt's default).
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
plugin=target/without-dpdk/kubectl-tidegate

say() { printf 'without-dpdk: %s\n' "$*"; }
die() { printf 'without-dpdk: %s\n' "$*" >&2; exit 1; }

if [[ ${1:-} != inside ]]; then
  [[ $(id -u) == 0 ]] || die "needs root: chroot and mounts"
  deploy/scripts/setup.sh without-dpdk
  "$cargo" fetch --locked -q --target "$(rustc -vV | sed -n 's/^host: //p')"
  TIDEGATE_ROOT=$(mktemp -d)
  trap 'rm -rf --one-file-system "$TIDEGATE_ROOT"' EXIT
  # ring is built with the C compiler, every program is linked with it, and tests read the certificates of the system.
  mmdebstrap --quiet --variant=apt --include=gcc,libc6-dev,ca-certificates bookworm "$TIDEGATE_ROOT" ${MIRROR:+"$MIRROR"}
  found=$(find "$TIDEGATE_ROOT" -name 'librte_*' -o -name 'libdpdk*')
  [[ -z $found ]] || die "the new root has DPDK: $found"
  export TIDEGATE_ROOT
  # The mounts end with their namespace.
  unshare --mount --propagation private "$0" inside
  KUBECTL_TIDEGATE=$PWD/$plugin STORIES=kubectl:: deploy/scripts/test-apiserver.sh
  say "kubectl-tidegate builds and works, and cargo test passes, without libdpdk"
  exit
fi

root=$TIDEGATE_ROOT
chmod 755 "$root"
mkdir -p "$root"/{src,rust,cargo/registry,target}
bind() {
  mount --bind "$1" "$root/$2"
  mount -o remount,bind,ro "$root/$2"
}
bind "$PWD" src
bind "$(rustc --print sysroot)" rust
bind "${CARGO_HOME:-$HOME/.cargo}/registry" cargo/registry
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
chown nobody "$root"/{cargo,target}

inside() {
  say "$*"
  chroot --userspec=nobody:nogroup "$root" /usr/bin/env -i PATH=/rust/bin:/usr/bin:/bin HOME=/target LANG=C.UTF-8 \
    CARGO_HOME=/cargo CARGO_TARGET_DIR=/target CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 \
    ${CARGO_BUILD_JOBS:+CARGO_BUILD_JOBS="$CARGO_BUILD_JOBS"} sh -c "cd /src && exec $*"
}
inside cargo build -p kubectl-tidegate --locked --offline
inside /target/debug/kubectl-tidegate --version
install -D "$root/target/debug/kubectl-tidegate" "$plugin"
inside cargo test --locked --offline
