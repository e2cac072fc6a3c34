#!/bin/bash
# Compares two commits on this machine: instructions per packet, and ns per packet taken in turn. Called by
# `make compare`.
#
# benches/compare.sh A [B] [SCENARIO ...]   B is the working tree unless a second commit is named
#
# A and B run one after the other in each round, so that other load of the machine affects both. The table has the
# median of the rounds' ratios and their range. A median whose range includes 1.00 is not significant.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${ROUNDS:-7}
cargo=${CARGO:-cargo}
usage() { sed -n '/^# benches.compare.sh/s/^# //p' benches/compare.sh >&2; exit 2; }
is_commit() { git rev-parse -q --verify "$1^{commit}" >/dev/null; }
[[ $# -gt 0 ]] && is_commit "$1" || usage
command -v valgrind >/dev/null || { echo "no valgrind; run make setup" >&2; exit 1; }
names=("$(git rev-parse --short "$1")") && shift
if [[ $# -gt 0 ]] && is_commit "$1"; then
  names+=("$(git rev-parse --short "$1")") && shift
else
  names+=("working-tree")
fi
(($#)) || set -- {dsr-l2,dsr-ipip,nat,nat-reply,fullnat}/known-1000000 {dsr-l2,nat}/new

work=$(mktemp -d)
cleanup() {
  for tree in "$work"/tree-*; do
    if [[ -d $tree ]]; then git worktree remove --force "$tree"; fi
  done
  rm -rf "$work"
}
trap cleanup EXIT

# Builds the two programs of a side: build SIDE NAME
build() {
  local tree=.
  if [[ $2 != working-tree ]]; then
    tree=$work/tree-$1
    git worktree add -q --detach "$tree" "$2"
  fi
  # Otherwise cargo would mistake the older files of the second side for those just built in the same directory.
  (cd "$tree" && CARGO_TARGET_DIR=$work/target-$1 "$cargo" build --release --locked -q --bin one-scenario --bin figures)
  mkdir "$work/$1"
  cp "$work/target-$1/release/one-scenario" "$work/target-$1/release/figures" "$work/$1/"
}
build A "${names[0]}"
build B "${names[1]}"

# The flow tables of the instruction counts are those of callgrind.sh.
total() { # SIDE SCENARIO PACKETS
  valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*one_*burst*' \
    "$work/$1/one-scenario" "$2" "$3" 100000 2>"$work/log" ||
    { echo "side $1 cannot run $2:" >&2; grep -m 1 '^Error' "$work/log" >&2; return 1; }
  awk '/Collected/ { print $4 }' "$work/log"
}
for scenario; do
  # A million flows do not fit those tables.
  smaller=${scenario/known-1000000/known-95000}
  for side in A B; do
    once=$(total $side "$smaller" 20480)
    twice=$(total $side "$smaller" 40960)
    printf '%s\t%s\t%s\n' "$scenario" "$side" "$(((twice - once) / 2048))" >>"$work/instructions"
  done
done

for ((round = 0; round < rounds; round++)); do
  # A and B alternate in running first.
  if ((round % 2)); then sides="B A"; else sides="A B"; fi
  for side in $sides; do
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 "$work/$side/figures" --rounds 1 "$@" |
      awk -v side="$side" -F' *[|] *' 'NR > 2 { print $2 "\t" side "\t" $3 }' >>"$work/times"
  done
done

printf 'A = %s, B = %s, %d rounds, %s\n\n' "${names[@]}" "$rounds" "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
echo "| scenario | instructions A | B | change | ns A | ns B | B to A, median | range |"
echo "|---|---|---|---|---|---|---|---|"
python3 - "$work" "$@" <<'PY'
import statistics
import sys

work, scenarios = sys.argv[1], sys.argv[2:]
instructions, times = {}, {}
for line in open(f"{work}/instructions"):
    scenario, side, tenths = line.split("\t")
    instructions[scenario, side] = int(tenths) / 10
for line in open(f"{work}/times"):
    scenario, side, ns = line.split("\t")
    times.setdefault((scenario, side), []).append(float(ns))
for scenario in scenarios:
    a, b = instructions[scenario, "A"], instructions[scenario, "B"]
    rounds = times[scenario, "A"], times[scenario, "B"]
    ratios = [after / before for before, after in zip(*rounds)]
    ns = [statistics.median(one) for one in rounds]
    print(
        f"| `{scenario}` | {a:,.1f} | {b:,.1f} | {100 * (b - a) / a:+.1f} % | {ns[0]:.1f} | {ns[1]:.1f} "
        f"| {statistics.median(ratios):.2f} | {min(ratios):.2f}-{max(ratios):.2f} |"
    )
PY
