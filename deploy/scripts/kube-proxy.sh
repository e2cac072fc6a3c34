#!/bin/bash
# Tests the target `node` with the real kube-proxy. Builds kube-proxy 1.20.2 from Debian 12's source package (no package
# contains the program), and runs the end-to-end tests that need it. Called by `make kube-proxy`, not by `make test`:
# the build takes minutes and a GB under target/kube-proxy. KUBE_PROXY=PROGRAM uses an existing program.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
build=${CARGO_TARGET_DIR:-$PWD/target}/kube-proxy

die() { printf 'kube-proxy: %s\n' "$*" >&2; exit 1; }
say() { printf 'kube-proxy: %s\n' "$*"; }

[[ $(id -u) == 0 ]] || die "needs root: namespaces, AF_PACKET and TUN"

need() {
  local missing=() package
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  say "installing ${missing[*]}"
  DEBIAN_FRONTEND=noninteractive apt-get -qqy --no-install-recommends install "${missing[@]}" >/dev/null ||
    die "apt-get could not install ${missing[*]}"
}

# apt's own files stay in the build directory; the package sources of the machine are not changed.
fetch() {
  mkdir -p "$build"/apt/{lists/partial,cache/archives/partial}
  echo 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main' \
    >"$build/apt/sources.list"
  local options=(
    -o Dir::Etc::sourcelist="$build/apt/sources.list" -o Dir::Etc::sourceparts=-
    -o Dir::State::lists="$build/apt/lists" -o Dir::Cache="$build/apt/cache" -o APT::Sandbox::User=root
  )
  apt-get "${options[@]}" -qq update
  (cd "$build" && apt-get "${options[@]}" -qq --download-only source kubernetes)
  dpkg-source --no-check -x "$build"/kubernetes_*.dsc "$build/tree" >/dev/null
}

build() {
  [[ -d $build/tree ]] || fetch
  local go=/usr/lib/go-1.19/bin/go workspace=$build/gopath/src/k8s.io flags='-s -w' package
  mkdir -p "$workspace"
  ln -sfn "$build/tree" "$workspace/kubernetes"
  for package in k8s.io/component-base/version k8s.io/kubernetes/vendor/k8s.io/component-base/version; do
    flags+=" -X $package.gitVersion=v1.20.2 -X $package.gitMajor=1 -X $package.gitMinor=20"
  done
  say "building (minutes)"
  (cd "$workspace/kubernetes" &&
    GOPATH=$build/gopath GOCACHE=$build/cache GO111MODULE=off CGO_ENABLED=0 \
      nice -n 10 "$go" build -p 2 -ldflags "$flags" -o "$build/kube-proxy" ./cmd/kube-proxy)
}

need iptables conntrack
if [[ -z ${KUBE_PROXY:-} ]]; then
  KUBE_PROXY=$build/kube-proxy
  if [[ ! -x $KUBE_PROXY ]]; then
    need golang-1.19-go dpkg-dev xz-utils patch
    build
  fi
fi
export KUBE_PROXY
say "$("$KUBE_PROXY" --version), $(iptables --version)"
"$cargo" test --workspace --test e2e --locked -- --ignored --nocapture kube_proxy
