#!/bin/bash
# Evaluates the CEL of deploy/kubernetes with cel-python, in its own environment below target/: the rules of the
# definitions (`crds`) or the admission policies (`admission`), each with its table of cases. Called by the tests of
# deploy/.
# Usage: check-cel.sh crds|admission [DIRECTORY]
set -euo pipefail
cd "$(dirname "$0")/../.."

version=0.5.0
tools=${CARGO_TARGET_DIR:-target}/tools/cel
if [[ ! -d $tools/lib || -z $(compgen -G "$tools/lib/python3*/site-packages/celpy") ]]; then
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check "cel-python==$version" >&2
fi

scripts=deploy/scripts
manifests=deploy/kubernetes
# -B: no compiled files beside the sources.
case $1 in
  admission) exec "$tools/bin/python" -B $scripts/check-admission.py "${2:-$manifests/admission}" ;;
  crds)
    exec "$tools/bin/python" -B $scripts/check-crds.py "${2:-$manifests/crds}" $scripts/crd-cases.yaml \
      $manifests/admission deploy/README.md
    ;;
  *) echo "what: crds or admission?" >&2; exit 2 ;;
esac
