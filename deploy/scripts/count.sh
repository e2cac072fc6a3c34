#!/bin/bash
# Counts the lines of production code: Rust without tests, test support, the network lab, the test API server, benches and
# fuzzing. A module or item behind #[cfg(test)] in its own file doesn't count; comments and blank lines do.
#
# deploy/scripts/count.sh           a line for each crate, the largest first, and the sum
# deploy/scripts/count.sh --files   a line for each file: lines, crate, path
set -euo pipefail
cd "$(dirname "$0")/../.."

files() {
  git ls-files '*.rs' | grep -Ev '(^|/)(tests|testing|netlab|test-apiserver|benches|examples|fuzz)/|(^|/|_)(tests|testing)\.rs$'
}

each_file() {
  local crates
  crates=$(git ls-files '*/Cargo.toml' | xargs dirname)
  # The crate of a file is the longest directory of a manifest above it. An item behind #[cfg(test)] ends with a brace at
  # its own indentation, or with a semicolon on its first lines.
  files | xargs awk -v crates="$crates" '
    function indentation() { match($0, /^ */); return RLENGTH }
    function report(  crate, best) {
      for (crate in of_all) if (index(file, crate "/") == 1 && length(crate) > length(best)) best = crate
      if (file) print lines + 0, best, file
    }
    BEGIN { split(crates, list, "\n"); for (at in list) of_all[list[at]] }
    FNR == 1 { report(); file = FILENAME; lines = skipping = 0 }
    skipping && !opened && /;[[:space:]]*$/ { skipping = 0; next }
    skipping && /\{[[:space:]]*$/ { opened = 1 }
    skipping && opened && /^ *\}/ && indentation() == depth { skipping = 0; next }
    skipping && !opened && /\{.*\}[[:space:]]*$/ { skipping = 0; next }
    skipping { next }
    /^ *#\[cfg\((test|all\(test,[^)]*\))\)\]$/ { skipping = 1; opened = 0; depth = indentation(); next }
    { lines++ }
    END { report() }'
}

case ${1:-} in
  --files) each_file ;;
  '') each_file | awk '{ crates[$2] += $1; sum += $1 }
        END { for (crate in crates) print crates[crate], crate; print sum, "all" }' | sort -rn ;;
  *) echo "usage: count.sh [--files]" >&2; exit 2 ;;
esac
