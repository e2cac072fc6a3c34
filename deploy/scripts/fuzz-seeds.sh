#!/bin/bash
# Writes the archives in fuzz/seeds/ anew: of the inputs in fuzz/corpus/, the smallest ones that reach the same code
# together. Call it after a long `make fuzz`, and commit the result. fuzz.sh has built the targets and unpacked the
# present archives, so nothing that they reach is lost.
set -euo pipefail
cd "$(dirname "$0")/../../fuzz"
host=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p seeds

for target in captures pipeline; do
    merged=$(mktemp -d)
    "target/$host/release/$target" -merge=1 -verbosity=0 "$merged" "corpus/$target" 2>/dev/null
    # The same inputs give the same archive.
    tar -C "$merged" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . | gzip -n9 >"seeds/$target.tar.gz"
    echo "$target: $(find "$merged" -type f | wc -l) inputs, $(wc -c <"seeds/$target.tar.gz") bytes"
    rm -r "$merged"
done
