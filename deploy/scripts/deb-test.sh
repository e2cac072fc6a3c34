#!/bin/bash
# Tests the packages of target/deb in a fresh Debian 12 that runs its own systemd in namespaces of this machine: lintian,
# installation, a start with what `tidegate init` writes, a client's connection that outlives a change of the user, a
# rollback and an upgrade, BGP, removal and purge. Then the end-to-end tests of restarts, in which each restart is a
# rollback or an upgrade. Called by `make deb-test`. It needs root, and a Debian mirror (MIRROR=URL selects another one
# than apt's default).
#
# PREVIOUS=DIRECTORY has the packages of the earlier version. By default they are built from the commit before this one.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
packages=$target/deb
unit=tidegate.service
vip=203.0.113.1
client=198.51.100.10

say() { printf 'deb-test: %s\n' "$*"; }
die() { printf 'deb-test: %s\n' "$*" >&2; exit 1; }

[[ $(id -u) == 0 ]] || die "needs root: namespaces and chroot"
deploy/scripts/setup.sh deb-test
tidegate=$(compgen -G "$packages/tidegate_*.deb") || die "no packages in $packages: make deb"
plugin=$(compgen -G "$packages/kubectl-tidegate_*.deb")

work=$(mktemp -d)
root=$work/root
outside=tidegate-deb-$$
tree=
init=
background=()
clean_up() {
  local status=$?
  if ((status)) && [[ -n $init ]]; then inside journalctl -u tidegate -n 40 --no-pager >&2 || true; fi
  # The namespaces of a machine end with its first process.
  if [[ -n $init ]]; then kill -KILL "$init" 2>/dev/null || true; fi
  for process in "${background[@]}"; do kill "$process" 2>/dev/null || true; done
  wait
  ip netns delete "$outside" 2>/dev/null || true
  if [[ -n $tree ]]; then git worktree remove --force "$tree" || true; fi
  rm -rf --one-file-system "$work"
  exit "$status"
}
trap clean_up EXIT

# Waits until a command succeeds, for at most a minute.
wait_for() {
  local what=$1 until=$((SECONDS + 60))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < until)) || die "no $what within a minute"
    read -rt 0.2 <> <(:) || true
  done
}

say "lintian"
lintian --allow-root --fail-on error,warning "$packages"/*.deb

previous=${PREVIOUS:-}
if [[ -z $previous ]]; then
  say "packages of the previous commit: $(git log -1 --format='%h %s' HEAD^)"
  # A target directory of its own, so that target/install stays that of this commit.
  mkdir -p "$target"/{tools,previous}
  ln -sfn "$target/tools" "$target/previous/tools"
  tree=$target/previous/tree
  rm -rf "$tree"
  git worktree add --quiet --force --detach "$tree" HEAD^
  CARGO_TARGET_DIR=$target/previous "$tree/deploy/scripts/deb.sh" >/dev/null
  previous=$target/previous/deb
fi

say "a fresh Debian 12"
chmod 755 "$work"
mmdebstrap --quiet --variant=apt --include=systemd,iproute2 bookworm "$root" ${MIRROR:+"$MIRROR"}
mkdir -p "$root/srv/now" "$root/srv/previous"
cp "$tidegate" "$plugin" "$root/srv/now/"
cp "$previous"/{tidegate,kubectl-tidegate}_*.deb "$root/srv/previous/"

say "apt install ./tidegate_*.deb ./kubectl-tidegate_*.deb"
apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y --allow-downgrades)
install_in_chroot() {
  chroot "$root" apt-get -q update && chroot "$root" "${apt[@]}" install "/srv/now/${tidegate##*/}" "/srv/now/${plugin##*/}"
}
install_in_chroot >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; die "the packages cannot be installed"; }
chroot "$root" getent passwd tidegate >/dev/null || die "no user tidegate"
for package in dpdk bird2; do chroot "$root" dpkg -s "$package" >/dev/null || die "$package is not recommended"; done
[[ ! -e $root/etc/systemd/system/multi-user.target.wants/$unit ]] || die "the service is enabled"

say "start of its systemd"
# A network namespace for the router, the client and the server; the packets of veth need their checksums.
ip netns add "$outside"
at=(ip netns exec "$outside")
"${at[@]}" sh -c "ip link set lo up && ip link add eth1 type veth peer name gateway && ethtool -K eth1 tx off >/dev/null &&
  ip addr add 192.0.2.1/24 dev eth1 && ip addr add 192.0.2.50/24 dev eth1 && ip addr add $client/32 dev lo &&
  ip link set eth1 up &&
  ip route add 203.0.113.0/28 via 192.0.2.2"
boot() {
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  mkdir "$root"/dev/{net,shm,pts}
  mknod -m 666 "$root/dev/net/tun" c 10 200
  local device
  for device in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 "$root/dev/${device%:*}" c 1 "${device#*:}"
  done
  exec chroot "$root" /usr/bin/env -i container=deb-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
}
export -f boot
export root
unshare --mount --propagation private --pid --net --uts --ipc --cgroup --fork bash -c boot </dev/null >"$work/console" 2>&1 &
background+=($!)
first_process() { init=$(cat "/proc/${background[0]}/task/${background[0]}/children") && [[ -n $init ]]; }
wait_for "first process" first_process
init=${init// /}
inside() {
  nsenter --target "$init" --all --root --wd -- /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"
}
# Without a device manager and a login, some units fail.
has_booted() { [[ $(inside systemctl is-system-running) =~ ^(running|degraded)$ ]]; }
wait_for "end of the boot" has_booted
ip -n "$outside" link set gateway netns "$init" name eth1
inside sh -c 'ip link set lo up; ip link set eth1 up; ip addr add 192.0.2.2/24 dev eth1; ip route add default via 192.0.2.1'

say "$(inside tidegate version | head -1), $(inside kubectl-tidegate version | head -1)"
findings=$(inside tidegate doctor || (($? == 1)))
grep -q '^ok  *programs  *bird' <<<"$findings" || die "doctor does not find BIRD: $findings"
[[ -d $root/etc/tidegate/manifests ]] || die "no directory for manifests"
next=$(inside tidegate init --nic eth1 --pool 203.0.113.0/28 -o /etc/tidegate/gateway.yaml)
[[ $next == *"systemctl enable --now tidegate"* ]] || die "init does not name the unit: $next"
# The link of the test has an address left for connections to servers.
inside sed -i 's/# snatAddresses: .*/snatAddresses: ["192.0.2.12"]/' /etc/tidegate/gateway.yaml
inside cp /usr/share/doc/tidegate/examples/manifests/web.yaml /etc/tidegate/manifests/
inside ip addr flush dev eth1
inside runuser -u tidegate -- tidegate check -c /etc/tidegate/gateway.yaml
inside systemctl enable --now "$unit"
inside systemctl is-active "$unit"

"${at[@]}" /usr/bin/python3 -m http.server --protocol HTTP/1.1 --bind 192.0.2.50 \
  --directory "$root/usr/share/doc/tidegate" 8080 >/dev/null 2>&1 &
background+=($!)
fetch() { "${at[@]}" curl -sS --fail --max-time 5 --interface $client "http://$vip/copyright"; }
wait_for "answer of the Service" fetch
say "curl http://$vip/ gets an answer through the gateway"

# The property of a unit, and the capabilities of a process.
of_unit() { inside systemctl show -P "$1" "$unit"; }
field() { inside sed -n "s/^$2:\t//p" "/proc/$1/status"; }
[[ $(inside stat -c %U "/proc/$(of_unit MainPID)") == tidegate ]] || die "the gateway runs as another user"
# CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW and CAP_IPC_LOCK.
[[ $(field "$(of_unit MainPID)" CapEff) == 0000000000007400 ]] || die "the gateway has other capabilities"
score=$(inside systemd-analyze security --no-pager "$unit" | sed -n 's/.*exposure level.*: \([0-9.]*\) .*/\1/p')
awk -v score="$score" 'BEGIN { exit !(score != "" && score < 3) }' || die "the exposure level is $score, not below 3"
say "user tidegate, four capabilities, exposure level $score"
# What the pages of the guide run with systemd.
inside sh -c 'systemctl status tidegate && journalctl -u tidegate -n 50 && systemctl status systemd-journald &&
  journalctl --disk-usage' >/dev/null

# A client that sends a request on its only connection for each line that it reads.
coproc connection {
  "${at[@]}" /usr/bin/python3 -uc '
import http.client, sys
connection = http.client.HTTPConnection("'$vip'", timeout=30, source_address=("'$client'", 0))
connection.connect()
connection.auto_open = 0
for line in sys.stdin:
    connection.request("GET", "/copyright")
    print(connection.getresponse().read().count(b"Tidegate"))
'
}
background+=("$connection_PID")
request() {
  local answer
  echo >&"${connection[1]}"
  read -rt 60 answer <&"${connection[0]}" && ((answer > 0))
}
request || die "the connection does not work"

exchange() {
  local what=$1 from before version
  from=$(inside sh -c "echo /srv/$2/*.deb")
  before=$(of_unit MainPID)
  # shellcheck disable=SC2086 # several files
  inside "${apt[@]}" install $from >"$work/log" 2>&1 || { cat "$work/log" >&2; die "the $what fails"; }
  inside systemctl is-active --quiet "$unit" || die "the gateway does not run after the $what"
  [[ $(of_unit MainPID) != "$before" ]] || die "the $what does not restart the gateway"
  request || die "the $what breaks a connection"
  version=$(inside dpkg-query -W -f '${Version}' tidegate)
  say "$what to $version: the connection continues; $(inside tidegate status | sed -n 's/^Restored: *//p')"
}
# Units of earlier versions ran as root.
drop_in=/etc/systemd/system/$unit.d/root.conf
inside mkdir -p "${drop_in%/*}"
inside tee "$drop_in" <<<$'[Service]\nUser=root' >/dev/null
inside sh -c "systemctl daemon-reload && systemctl restart $unit"
[[ $(inside stat -c %U "/proc/$(of_unit MainPID)") == root ]] || die "the drop-in has no effect"
request || die "a restart as root breaks a connection"
inside rm -r "${drop_in%/*}"
inside sh -c "systemctl daemon-reload && systemctl restart $unit"
request || die "a restart as the user breaks a connection"
say "from root to the user tidegate: the connection continues"

exchange rollback previous
inside sh -c 'dpkg -x /srv/now/tidegate_*.deb /tmp/new && /tmp/new/usr/bin/tidegate check && rm -r /tmp/new'
exchange upgrade now

say "BGP"
mkdir "$work/bird"
cat >"$work/bird/bird.conf" <<'END'
router id 192.0.2.1;
protocol device {}
protocol bfd { interface "eth1" { interval 1 s; multiplier 5; }; }
protocol bgp edge {
  local 192.0.2.1 as 64513;
  neighbor 192.0.2.2 as 64512;
  bfd on;
  ipv4 { import all; export none; };
}
END
"${at[@]}" bird -f -c "$work/bird/bird.conf" -s "$work/bird/ctl" -P "$work/bird/pid" 2>"$work/bird/log" &
background+=($!)
inside tee -a /etc/tidegate/gateway.yaml <<'END' >/dev/null
announce: {bgp: {asn: 64512, peers: [{address: 192.0.2.1, asn: 64513, bfd: true}]}}
END
inside systemctl reload "$unit"
has_route() { "${at[@]}" birdc -s "$work/bird/ctl" show route | grep -q "$vip/32"; }
wait_for "route to $vip" has_route
has_bfd() { "${at[@]}" birdc -s "$work/bird/ctl" show bfd sessions | grep -q '192.0.2.2 .* Up '; }
wait_for "BFD session" has_bfd
bird=$(inside pidof bird)
[[ $(inside stat -c %U "/proc/$bird") == tidegate ]] || die "BIRD runs as another user"
# CAP_NET_BIND_SERVICE and CAP_NET_RAW.
[[ $(field "$bird" CapEff) == 0000000000002400 ]] || die "BIRD has other capabilities"
request || die "the connection does not work"

say "removal and purge"
inside "${apt[@]}" remove tidegate kubectl-tidegate >"$work/log" 2>&1 || { cat "$work/log" >&2; die "apt remove fails"; }
[[ -z $(inside pidof tidegate) ]] || die "the gateway runs after its removal"
[[ -e $root/etc/tidegate/gateway.yaml && -e $root/etc/sysctl.d/60-tidegate.conf && -d $root/var/lib/tidegate ]] ||
  die "a removal deletes the configuration or the state"
inside "${apt[@]}" purge tidegate kubectl-tidegate >"$work/log" 2>&1 || { cat "$work/log" >&2; die "apt purge fails"; }
left=$(inside sh -c "find / -xdev -path /srv -prune -o -name '*tidegate*' -print; find /run -name '*tidegate*'")
[[ -z $left ]] || die "left after the purge: $left"
say "restarts of every mode, each with the other version"
dpkg-deb --extract "$previous"/tidegate_*.deb "$work/program"
TIDEGATE_PREVIOUS=$work/program/usr/bin/tidegate "${CARGO:-cargo}" test --workspace --test e2e --locked -q -- \
  restarts:: old_and_new_flows_are_forwarded_until_and_after_every_restart

say "passed in ${SECONDS} s"
