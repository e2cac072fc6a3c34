#!/bin/bash
# Builds what the later stages of test.sh need, while tests run that mostly wait. Each stage builds again and then finds
# everything built, so an error here shows there. Called by test.sh.
set -uo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}

deploy/scripts/loom.sh --no-run
deploy/scripts/fuzz.sh --build
"$cargo" build --release --locked -q -p tidegate-pipeline-bench --bin one-scenario
