#!/bin/bash
# Guards the instructions per packet: compares them with those in instructions.tsv, and fails if a scenario takes more
# than the bound allows. Called by `make test` and `make instructions`. Instructions hardly depend on the load of the
# machine, so they can be tested. Times cannot: see README.md.
#
# benches/instructions.sh            compares; a scenario that takes fewer by more than the bound is reported
# benches/instructions.sh --record   writes instructions.tsv anew
# benches/instructions.sh SCENARIO   compares the given scenarios only
set -euo pipefail
cd "$(dirname "$0")"

kept=instructions.tsv
# In percent. The same binary varies by 0.1 from run to run. Another compiler changes more, so the file names the
# compiler.
bound=2

compiler=$(rustc -V | cut -d' ' -f1,2)
if [[ ${1:-} == --record ]]; then
  # 20,480 flows exceed the first-level caches of the tables, and creating a packet of each is fast.
  scenarios=({dsr-l2,dsr-ipip,dsr-gue,nat,nat-reply,fullnat,fullnat-reply}/known-20480
    {dsr-l2,nat,nat-reply}/known-20480/v6 dsr-l2/{known-20480,new}/on-change
    {nat,nat-reply,fullnat}/known-20480/copied {dsr-l2,nat,fullnat}/new)
  measured=$(mktemp)
  trap 'rm -f "$measured"' EXIT
  ./callgrind.sh "${scenarios[@]}" >"$measured"
  {
    printf '# Instructions per packet. Written by benches/instructions.sh --record with %s.\n' "$compiler"
    awk -F' *[|] *' 'NR > 2 { print $2 "\t" $3 }' "$measured"
  } >"$kept"
  cat "$kept"
  exit
fi

mapfile -t scenarios < <(if (($#)); then printf '%s\n' "$@"; else grep -v '^#' "$kept" | cut -f1; fi)
measured=$(./callgrind.sh "${scenarios[@]}")
recorded=$(sed -n 's/^# .* with \(.*\)\.$/\1/p' "$kept")
awk -v bound=$bound -v kept=$kept -v compiler="$compiler" -v recorded="$recorded" -F'\t' '
  NR == FNR { if ($0 !~ /^#/) before[$1] = $2; next }
  FNR > 2 {
    split($0, cell, / *[|] */)
    name = cell[2]; now = cell[3]
    if (!(name in before)) { print name " is not in " kept > "/dev/stderr"; failed = 1; next }
    change = 100 * (now - before[name]) / before[name]
    printf "%-32s %8.1f, recorded %8.1f  %+.1f %%\n", name, now, before[name], change
    measured++
    if (change > bound) { grown = grown " " name; failed = 1 }
    if (change < -bound) fewer = fewer " " name
  }
  END {
    if (fewer) print "fewer than recorded; run benches/instructions.sh --record to keep that:" fewer
    if (grown) {
      print "more than " bound " % above " kept ":" grown > "/dev/stderr"
      print "benches/callgrind.sh -s SCENARIO shows the stages; benches/compare.sh COMMIT compares with a commit" > "/dev/stderr"
      if (compiler != recorded) print "the record is of " recorded ", this is " compiler > "/dev/stderr"
    }
    if (!measured) { print "nothing was measured" > "/dev/stderr"; failed = 1 }
    exit failed
  }' "$kept" <(printf '%s\n' "$measured")
