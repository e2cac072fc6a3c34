#!/bin/bash
# Runs a command with N free 2-MiB hugepages if the machine has enough memory, and afterwards frees the pages that it
# reserved, however the command ends. Without hugepages the command runs too: it checks HugePages_Free itself. EAL runs
# with --in-memory, so there are no hugetlbfs files to remove.
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
# Lets leftovers.sh find pages that are still reserved.
note=${TIDEGATE_RUN:+$TIDEGATE_RUN/hugepages/$$}
restore() {
  if [[ -n $before ]]; then echo "$before" >"$pool/nr_hugepages" 2>/dev/null && rm -f "$note" || true; before=; fi
}
# While the command runs, it handles INT and TERM itself (it cleans up and ends); then this script restores the pages.
trap restore EXIT
trap : INT
trap 'kill -TERM "$child" 2>/dev/null' TERM

if [[ -w $pool/nr_hugepages ]]; then
  total=$(<"$pool/nr_hugepages")
  free=$(<"$pool/free_hugepages")
  if ((free < wanted)); then
    before=$total
    [[ -z $note ]] || echo "$total" >"$note"
    echo $((total + wanted - free)) >"$pool/nr_hugepages" 2>/dev/null
    free=$(<"$pool/free_hugepages")
    if ((free < wanted)); then
      echo "hugepages: $free of $wanted free 2-MiB pages are available; continuing without them" >&2
      restore
    fi
  fi
fi

"$@" &
child=$!
status=0
# `wait` returns early on a trapped signal, so wait again until the child has ended.
while :; do
  wait "$child"
  status=$?
  kill -0 "$child" 2>/dev/null || break
done
exit "$status"
