#!/bin/bash
# Feeds arbitrary frames to the pipeline, and arbitrary bytes to the parser of captures, for a total time.
# libFuzzer guides it by coverage, like `cargo fuzz run --sanitizer none`, but with the stable compiler and
# without that tool. Called by `make fuzz` (long) and test.sh (short). Usage: fuzz.sh SECONDS [PROCESSES], or
# fuzz.sh --build
# It starts with the inputs in fuzz/seeds/ (fuzz-seeds.sh writes them) and keeps inputs that reach new code in
# fuzz/corpus/. A failing input ends the run with an error and is saved in
# dataplane/pipeline/tests/regressions/, where the tests replay it.
set -euo pipefail
cd "$(dirname "$0")/../../fuzz"

is_number() { [[ $1 =~ ^[1-9][0-9]*$ ]]; }
only_build=false
[[ ${1:-} != --build ]] || { only_build=true; set -- 1; }
{ is_number "${1:-}" && is_number "${2:-1}"; } || { echo "usage: fuzz.sh SECONDS [PROCESSES], or fuzz.sh --build" >&2; exit 2; }
processes=${2:-1}
cargo=${CARGO:-cargo}
host=$(rustc -vV | sed -n 's/^host: //p')
# With --target, build scripts are not instrumented.
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
"$cargo" build --release --locked --target "$host"
if $only_build; then exit; fi

# All processes share the directory of a target, so each one uses the inputs that the others found.
run() { # TARGET SECONDS
    mkdir -p "corpus/$1"
    tar -xzf "seeds/$1.tar.gz" -C "corpus/$1" --skip-old-files
    local started=() failed=0
    for _ in $(seq "$processes"); do
        "target/$host/release/$1" -max_total_time="$2" -max_len=4096 -len_control=20 -timeout=10 -rss_limit_mb=2048 \
            -print_final_stats=1 -verbosity=0 -reload=1 \
            -artifact_prefix="../dataplane/pipeline/tests/regressions/$1-" "corpus/$1" &
        started+=($!)
    done
    for process in "${started[@]}"; do wait "$process" || failed=1; done
    ((failed == 0)) || { echo "fuzz: $1 failed; the input is in dataplane/pipeline/tests/regressions/" >&2; exit 1; }
    echo "fuzz: $1 found no failure in $2 s and $processes processes, $(find "corpus/$1" -type f | wc -l) inputs in its corpus"
}

captures=$((($1 + 7) / 8))
run captures "$captures"
if (($1 > captures)); then run pipeline $(($1 - captures)); fi
