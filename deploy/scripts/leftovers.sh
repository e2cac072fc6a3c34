#!/bin/bash
# Runs a command, and fails if it leaves anything behind: namespaces, links, processes, hugepages, run-time files, labs.
# Other programs may use the machine at the same time, so the command gets its own /run/tidegate, names of namespaces
# and $TMPDIR. Its processes inherit TIDEGATE_RUN, which identifies them. Needs root. Called by test.sh.
# Usage: leftovers.sh run COMMAND [ARG...]   (exit 1 if something is left behind, otherwise the exit code of
# the command)
set -euo pipefail

if [[ ${1:-} == run && $# -gt 1 ]]; then
  exec unshare --mount --propagation private "$0" apart "${@:2}"
elif [[ ${1:-} != apart ]]; then
  echo "usage: leftovers.sh run COMMAND [ARG...]" >&2
  exit 2
fi
shift

# A short path: labs have sockets in it, whose paths have at most 107 bytes.
run=$(mktemp -d "${TMPDIR:-/tmp}/tg.XXXX")
# Daemons of FRR run as a separate user, and write into their lab.
chmod 755 "$run"
trap 'rm -rf "$run"' EXIT
mkdir -p /run/tidegate /run/netns "$run/hugepages"
mount -t tmpfs -o mode=0755 tidegate /run/tidegate
mount -t tmpfs -o mode=0755 netns /run/netns

links() { ip -o link | awk -F': ' '$2 ~ /^tg/ {sub(/@.*/, "", $2); print $2}' | sort; }

# The environments, below /proc, of the processes of this run.
ours() { grep -lszFx "TIDEGATE_RUN=$run" /proc/[0-9]*/environ || true; }

# Whether a process outside this run has the link: a tap belongs to the process that has it open.
is_of_others() {
  local info of_run
  of_run=$(ours)
  for info in $(grep -lsE "^iff:[[:space:]]+$1\$" /proc/[0-9]*/fdinfo/*); do
    [[ $of_run == *"${info%%/fdinfo/*}/environ"* ]] || return 0
  done
  return 1
}

processes() {
  local environ
  for environ in $(ours); do
    printf 'process %s\n' "$(readlink "${environ%environ}exe" || true) ${environ//[^0-9]/}"
  done
}

left() {
  local link
  find /run/netns -mindepth 1 -printf 'namespace %f\n'
  find /run/tidegate -mindepth 1 ! -type d -printf 'file %p\n'
  find "$run" -maxdepth 1 -name 'tidegate-lab-*' -printf 'file %p\n'
  # hugepages.sh records the pages that it has reserved.
  find "$run/hugepages" -mindepth 1 -printf 'hugepages %f\n'
  processes
  for link in $(comm -13 <(echo "$before") <(links)); do
    is_of_others "$link" || echo "link $link"
  done
}

before=$(links)
status=0
env TIDEGATE_RUN="$run" TMPDIR="$run" "$@" || status=$?

# The last processes may still be exiting.
for _ in {1..20}; do
  found=$(left)
  [[ -n $found ]] || break
  sleep 0.1
done
if [[ -n $found ]]; then
  printf 'left behind:\n%s\n' "$found" >&2
  if ((status == 0)); then status=1; fi
else
  echo "nothing left behind: no namespace, link, process, hugepage or file"
fi
exit "$status"
