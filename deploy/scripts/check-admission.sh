#!/bin/bash
# Evaluates the admission policies of deploy/kubernetes/admission with cel-python, in an environment of its own below
# target/. Called by the tests of deploy/. Usage: check-admission.sh [DIRECTORY]
set -euo pipefail
cd "$(dirname "$0")/../.."

version=0.5.0
tools=${CARGO_TARGET_DIR:-target}/tools/cel
if [[ ! -d $tools/lib || -z $(compgen -G "$tools/lib/python3*/site-packages/celpy") ]]; then
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check "cel-python==$version" >&2
fi
exec "$tools/bin/python" deploy/scripts/check-admission.py "${1:-deploy/kubernetes/admission}"
