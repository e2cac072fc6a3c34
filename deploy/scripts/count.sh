#!/bin/bash
# Counts the lines of production code: Rust without tests, test support, the network lab, the test API server, benches and
# fuzzing. A module or item behind #[cfg(test)] in its own file doesn't count; comments and blank lines do.
#
# deploy/scripts/count.sh               a line for each crate, the largest first, and the sum
# deploy/scripts/count.sh --files       a line for each file: lines, crate, path
# deploy/scripts/count.sh --functions   a line for each function: lines, path, name
set -euo pipefail
cd "$(dirname "$0")/../.."

# The files of the working tree, including those that are not committed yet.
files() {
  git ls-files --cached --others --exclude-standard '*.rs' | sort -u | grep -vxFf <(git ls-files --deleted) |
    grep -Ev '(^|/)(tests|testing|netlab|test-apiserver|benches|examples|fuzz)/|(^|/|_)(tests|testing)\.rs$'
}

# count files|functions
count() {
  local crates
  crates=$(git ls-files '*/Cargo.toml' | xargs dirname)
  # The crate of a file is the longest directory of a manifest above it. An item behind #[cfg(test)] ends with a brace at
  # its own indentation, or with a semicolon on its first lines. A function is counted from the line with `fn` to the brace at
  # the indentation of that line, as rustfmt writes it; one without a body ends with a semicolon there, and one on a line isn't
  # counted. A function inside another one counts in both.
  files | xargs awk -v crates="$crates" -v what="$1" '
    function indentation() { match($0, /^ */); return RLENGTH }
    function report(  crate, best) {
      for (crate in of_all) if (index(file, crate "/") == 1 && length(crate) > length(best)) best = crate
      if (file && what == "files") print lines + 0, best, file
    }
    function name_of(line) { sub(/.*fn /, "", line); sub(/[^A-Za-z0-9_].*/, "", line); return line }
    BEGIN { split(crates, list, "\n"); for (at in list) of_all[list[at]] }
    FNR == 1 { report(); file = FILENAME; lines = skipping = 0; delete began }
    skipping && !opened && /;[[:space:]]*$/ { skipping = 0; next }
    skipping && /\{[[:space:]]*$/ { opened = 1 }
    skipping && opened && /^ *\}/ && indentation() == depth { skipping = 0; next }
    skipping && !opened && /\{.*\}[[:space:]]*$/ { skipping = 0; next }
    skipping { next }
    /^ *#\[cfg\((test|all\(test, .*\))\)\]$/ { skipping = 1; opened = 0; depth = indentation(); next }
    { lines++ }
    what == "files" { next }
    /^ *(pub(\([^)]*\))? )?((const|async|unsafe|extern "[^"]*") )*fn [a-z_A-Z]/ {
      if (!/[;}]$/) { began[indentation()] = FNR; name[indentation()] = name_of($0) }
      next
    }
    /^ *\}$/ && began[indentation()] {
      print FNR - began[indentation()] + 1, file, name[indentation()]
      began[indentation()] = 0
    }
    /;$/ { began[indentation()] = 0 }
    END { report() }'
}

case ${1:-} in
  --files) count files ;;
  --functions) count functions ;;
  '') count files | awk '{ crates[$2] += $1; sum += $1 }
        END { for (crate in crates) print crates[crate], crate; print sum, "all" }' | sort -rn ;;
  *) echo "usage: count.sh [--files|--functions]" >&2; exit 2 ;;
esac
