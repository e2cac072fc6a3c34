#!/bin/bash
# Runs a command with N free 2-MiB hugepages where the machine can spare them, and gives back after it
# what it took, however the command ends. Without hugepages the command runs all the same: it looks at
# HugePages_Free itself. EAL runs with --in-memory, so there are no hugetlbfs files to remove.
# Usage: hugepages.sh run N COMMAND [ARG...]
set -uo pipefail

if [[ ${1:-} != run || $# -lt 3 ]]; then
  echo "usage: hugepages.sh run N COMMAND [ARG...]" >&2
  exit 2
fi
wanted=$2
shift 2

pool=/sys/kernel/mm/hugepages/hugepages-2048kB
before=
restore() {
  if [[ -n $before ]]; then echo "$before" >"$pool/nr_hugepages" 2>/dev/null || true; before=; fi
}
# While the command runs, INT and TERM are its own business (it cleans up and ends); then we restore.
trap restore EXIT
trap : INT
trap 'kill -TERM "$child" 2>/dev/null' TERM

if [[ -w $pool/nr_hugepages ]]; then
  total=$(<"$pool/nr_hugepages")
  free=$(<"$pool/free_hugepages")
  if ((free < wanted)); then
    before=$total
    echo $((total + wanted - free)) >"$pool/nr_hugepages" 2>/dev/null
    free=$(<"$pool/free_hugepages")
    if ((free < wanted)); then
      echo "hugepages: $free of $wanted free 2-MiB pages to be had; going on without them" >&2
      restore
    fi
  fi
fi

"$@" &
child=$!
status=0
# `wait` comes back early on a trapped signal: wait again until the child is really gone.
while :; do
  wait "$child"
  status=$?
  kill -0 "$child" 2>/dev/null || break
done
exit "$status"
