#!/bin/bash
# Installs the packages for building, the demo and the tests on Debian 12. Does nothing if all are installed. Called by
# `make setup`, with the argument `vm` by `make vm-test`, which needs more, and with `without-dpdk`, `image`, `deb` and
# `deb-test` by these targets, which need only a few. It never starts a service: an nginx or HAProxy that it installs
# does not start, and an existing one is not changed.
set -euo pipefail

packages=(
  libdpdk-dev libpcap-dev             # DPDK with all its drivers, and what net_pcap links
  gcc g++ make pkg-config clang libclang-dev # dpdk-sys: bindgen and cc; g++ for libFuzzer
  iproute2 ethtool procps util-linux nftables # the namespaces lab, and the rules of kube-proxy on its nodes
  iputils-arping                      # which stations answer ARP for a VIP, as the guide checks it
  curl iperf3 nginx-light haproxy tcpdump python3 python3-venv
  keepalived                          # VRRP, which decides the owner of VIPs
  libusrsctp-dev                      # SCTP endpoints of the tests, because kernels without SCTP are common
  systemd                             # systemd-analyze verify
  valgrind                            # instructions per packet
  bird2 frr gobgpd                    # the BGP of the gateway, and the routers of its tests
  dpdk-dev                            # dpdk-testpmd, which the performance lab measures beside the gateway
  chromium                            # shows the status page in a test
  nfdump                              # an IPFIX collector, which receives the flow log in a test
  prometheus                          # promtool, which tests the alerts; the server itself isn't started
)

case ${1:-} in
  vm)
    # The emulator; the tools of its initramfs; dpdk-devbind.py and lspci, which it calls; strip.
    packages+=(qemu-system-x86 busybox-static cpio kmod dpdk pciutils binutils)
    ;;
  without-dpdk)
    packages=(mmdebstrap util-linux)
    ;;
  image)
    packages=(mmdebstrap umoci jq binutils)
    ;;
  deb)
    # dpkg-buildpackage; strip.
    packages=(libdpdk-dev libpcap-dev gcc pkg-config clang libclang-dev git dpkg-dev debhelper binutils)
    ;;
  deb-test)
    # The root with its own systemd; the namespaces around it; the checks of packages and of the unit.
    packages=(mmdebstrap util-linux iproute2 ethtool curl python3 bird2 lintian systemd)
    ;;
esac

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

missing=()
for package in "${packages[@]}"; do
  # nginx-light is one of several packages with the server. Any of them is enough.
  if [[ $package == nginx-light ]] && command -v nginx >/dev/null; then continue; fi
  installed "$package" || missing+=("$package")
done

# Packages with a daemon would start it on installation. This policy, which invoke-rc.d reads, forbids it.
policy=/usr/sbin/policy-rc.d
policy_is_ours=no
drop_policy() { if [[ $policy_is_ours == yes ]]; then rm -f "$policy"; fi; }

install_missing() {
  [[ $(id -u) == 0 ]] || die "missing: ${missing[*]}; run as root, or install them yourself"
  command -v apt-get >/dev/null || die "missing: ${missing[*]}; no apt-get here, install them yourself"
  say "installing ${missing[*]}"
  trap drop_policy EXIT
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    policy_is_ours=yes
  fi
  local log
  log=$(mktemp)
  export DEBIAN_FRONTEND=noninteractive
  if ! { apt-get -q update && apt-get -qy --no-install-recommends install "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    rm -f "$log"
    die "apt-get could not install ${missing[*]}"
  fi
  rm -f "$log"
  drop_policy
  policy_is_ours=no
  local package service
  for package in nginx-light haproxy bird2 frr gobgpd keepalived nfdump prometheus; do
    [[ " ${missing[*]} " == *" $package "* ]] || continue
    # This script installed it, so it must neither run now nor start at the next boot.
    service=${package%-light}
    service=${service%2}
    if [[ -d /run/systemd/system ]]; then systemctl disable --now "$service" >/dev/null 2>&1 || true; fi
    if command -v update-rc.d >/dev/null; then update-rc.d "$service" disable >/dev/null 2>&1 || true; fi
  done
}

if ((${#missing[@]})); then install_missing; fi
case ${1:-} in without-dpdk | image | deb-test) exit ;; esac

# The drivers are plugins that EAL loads from this directory. The demo and the tests use the virtual ones.
pkg-config --exists 'libdpdk >= 22.11' || die "pkg-config finds no libdpdk of 22.11 or newer"
libdir=$(pkg-config --variable=libdir libdpdk)
for driver in net_af_packet net_ring net_null net_pcap net_tap mempool_ring; do
  compgen -G "$libdir/dpdk/pmds-*/librte_$driver.so*" >/dev/null ||
    die "DPDK driver $driver is missing under $libdir/dpdk"
done

cargo=${CARGO:-cargo}
command -v "$cargo" >/dev/null || die "no cargo: install a Rust toolchain (1.89 or newer, https://rustup.rs)"
"$cargo" fmt --version >/dev/null 2>&1 || say "note: no rustfmt; 'rustup component add rustfmt' for make lint and make test"
"$cargo" clippy --version >/dev/null 2>&1 || say "note: no clippy; 'rustup component add clippy' for make lint and make test"
say "DPDK $(pkg-config --modversion libdpdk), $("$cargo" --version | cut -d' ' -f1,2)"
