#!/bin/bash
# Builds the programs of the later stages of test.sh while tests run that mostly wait. Each stage builds again and finds
# everything built, so a build error shows there. Called by test.sh.
set -uo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}

deploy/scripts/loom.sh --no-run
deploy/scripts/fuzz.sh --build
"$cargo" build --release --locked -q -p tidegate-pipeline-bench --bin one-scenario
