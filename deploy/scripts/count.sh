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

# The directory of the package that a file belongs to.
crate_of() {
  local directory=$1
  until [[ -e $directory/Cargo.toml ]]; do directory=$(dirname "$directory"); done
  echo "$directory"
}

each_file() {
  local file
  files | while read -r file; do
    # An item behind #[cfg(test)] ends with a brace at its own indentation, or with a semicolon on its first lines.
    awk -v crate="$(crate_of "$(dirname "$file")")" -v file="$file" '
      function indentation() { match($0, /^ */); return RLENGTH }
      skipping && !opened && /;[[:space:]]*$/ { skipping = 0; next }
      skipping && /\{[[:space:]]*$/ { opened = 1 }
      skipping && opened && /^ *\}/ && indentation() == depth { skipping = 0; next }
      skipping && !opened && /\{.*\}[[:space:]]*$/ { skipping = 0; next }
      skipping { next }
      /^ *#\[cfg\((test|all\(test,[^)]*\))\)\]$/ { skipping = 1; opened = 0; depth = indentation(); next }
      { lines++ }
      END { print lines + 0, crate, file }' "$file"
  done
}

case ${1:-} in
  --files) each_file ;;
  '') each_file | awk '{ crates[$2] += $1; sum += $1 }
        END { for (crate in crates) print crates[crate], crate; print sum, "all" }' | sort -rn ;;
  *) echo "usage: count.sh [--files]" >&2; exit 2 ;;
esac
