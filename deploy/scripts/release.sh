#!/bin/bash
# Builds the programs that an operator installs, the gateway and the kubectl plugin, into target/install. Their debug
# symbols are in separate files beside them, `NAME.debug`. The programs keep the names of their functions for
# backtraces; with the symbols beside it, a backtrace also has files and lines. Called by `make release`, by the
# Dockerfile, and by deb.sh, which sets TIDEGATE_AUDITABLE: `cargo auditable` then writes the list of crates into the
# programs.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-$PWD/target}
command -v objcopy >/dev/null || { echo "release: no objcopy; install binutils" >&2; exit 1; }

# `tidegate version` shows the commit.
TIDEGATE_COMMIT=${TIDEGATE_COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
export TIDEGATE_COMMIT
"$cargo" ${TIDEGATE_AUDITABLE:+auditable} build --release --locked -p tidegate -p kubectl-tidegate
mkdir -p "$target/install"
cd "$target/install"
for program in tidegate kubectl-tidegate; do
  objcopy --only-keep-debug --compress-debug-sections=zlib "../release/$program" "$program.debug"
  chmod 644 "$program.debug"
  strip --strip-debug -o "$program" "../release/$program"
  objcopy --add-gnu-debuglink="$program.debug" "$program"
done
du -h --apparent-size "$PWD"/*
