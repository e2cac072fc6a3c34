#!/bin/bash
# Reports everything that a run has left behind: namespaces, links, processes, hugepages, run-time files. Called by
# test.sh before and after everything else. Others may use the machine meanwhile, so only what is ours by its name
# counts: all namespaces and links of the gateway, the labs and the tests begin with "tg".
# Usage: leftovers.sh snapshot FILE | leftovers.sh compare FILE   (exit 1 if there is more than before)
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}

# Processes that run a binary of this tree, or belong to a lab (their command line contains its directory).
processes() {
  local dir exe
  for dir in /proc/[0-9]*; do
    exe=$(readlink "$dir/exe" 2>/dev/null) || continue
    if [[ $exe == "$target"/* ]] || tr '\0' ' ' <"$dir/cmdline" 2>/dev/null | grep -q '/tidegate-lab-'; then
      printf 'process %s %s\n' "${dir#/proc/}" "$exe"
    fi
  done
}

state() {
  ip netns list | sed -n 's/ (id.*//; s/^tg/namespace tg/p'
  ip -o link | awk -F': ' '$2 ~ /^tg/ {print "link " $2}'
  processes
  printf 'hugepages %s\n' "$(cat /proc/sys/vm/nr_hugepages)"
  find /run/tidegate -mindepth 1 2>/dev/null | sed 's/^/file /' || true
  find "${TMPDIR:-/tmp}" -maxdepth 1 -name 'tidegate-lab-*' 2>/dev/null | sed 's/^/file /' || true
}

case ${1:-} in
snapshot) state | sort -u >"$2" ;;
compare)
  now=$(state | sort -u)
  more=$(comm -13 "$2" <(printf '%s\n' "$now"))
  if [[ -n $more ]]; then
    printf 'left behind:\n%s\n' "$more" >&2
    exit 1
  fi
  echo "nothing left behind: no namespace, link, process, hugepage or file"
  ;;
*) echo "usage: leftovers.sh snapshot|compare FILE" >&2; exit 2 ;;
esac
