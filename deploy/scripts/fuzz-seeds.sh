#!/bin/bash
# Rewrites the archives in fuzz/seeds/ from the inputs in fuzz/corpus/: the smallest ones that together reach the same
# code. Run it after a long `make fuzz`, and commit the result. fuzz.sh has built the targets and unpacked the current
# archives, so their coverage is not lost.
set -euo pipefail
cd "$(dirname "$0")/../../fuzz"
host=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p seeds

for target in captures pipeline; do
    merged=$(mktemp -d)
    "target/$host/release/$target" -merge=1 -verbosity=0 "$merged" "corpus/$target" 2>/dev/null
    # Equal inputs give equal archives.
    tar -C "$merged" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . | gzip -n9 >"seeds/$target.tar.gz"
    echo "$target: $(find "$merged" -type f | wc -l) inputs, $(wc -c <"seeds/$target.tar.gz") bytes"
    rm -r "$merged"
done
