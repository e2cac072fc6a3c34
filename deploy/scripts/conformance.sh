#!/bin/bash
# Runs the conformance suite of the Gateway API against a gateway: a real API server and controllers, and Pods without a
# kubelet and without a container runtime, in network namespaces. Called by `make conformance`.
# docs/conformance/README.md describes what is run.
#
#   CONFORMANCE_ARGS=FLAGS    more flags of the suite, such as -run-test=UDPRoute
#   UPDATE_DOCS=1             store the report of a complete run in docs/conformance
#   CONFORMANCE_URL=URL CONFORMANCE_CONTACT=WHO   for the report, whose other fields are constant
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
module=deploy/tools/conformance

die() { printf 'conformance: %s\n' "$*" >&2; exit 1; }

[[ $(id -u) == 0 ]] || die 'needs root: the gateway, the clients and the Pods run in network namespaces'
pkg-config --exists 'libdpdk >= 22.11' || die 'no libdpdk 22.11 or newer; run make setup'
[[ -z ${UPDATE_DOCS:-} || -z ${CONFORMANCE_ARGS:-} ]] ||
  die 'UPDATE_DOCS with CONFORMANCE_ARGS: accepted: one of them, because a stored report is of a complete run'

tools=$(deploy/scripts/tools.sh)
export KUBE_APISERVER=$tools/kube-apiserver ETCD=$tools/etcd KUBE_CONTROLLER_MANAGER=$tools/kube-controller-manager

# The suite and the programs of its images, from the pinned modules. The programs run in a root directory without
# libraries.
programs=$PWD/target/conformance/programs
mkdir -p "$programs"
export CGO_ENABLED=0
nice -n 10 go -C "$module" build -trimpath -buildvcs=false -o "$programs/" tool
nice -n 10 go -C "$module" build -trimpath -buildvcs=false -o "$programs/" ./coredns
nice -n 10 go -C "$module" test -c -trimpath -buildvcs=false -o "$programs/conformance.test" .
"$programs/conformance.test" -test.run 'Test(Skipped|Only)' >/dev/null || die 'the tests of deploy/tools/conformance fail'
suite=$(go -C "$module" list -m -f '{{.Version}}' sigs.k8s.io/gateway-api)
rm -rf "$programs/crds"
cp -r --no-preserve=mode "$(go -C "$module" list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd/standard" "$programs/crds"

output=$PWD/target/conformance/output
rm -rf "$output"
mkdir -p "$output"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
export TIDEGATE_CONFORMANCE=$programs TIDEGATE_CONFORMANCE_OUTPUT=$output
export TIDEGATE_CONFORMANCE_ARGS="-organization=tidegate -project=tidegate -version=$version
  -url=${CONFORMANCE_URL:-https://tidegate.dev} -contact=${CONFORMANCE_CONTACT:-none} ${CONFORMANCE_ARGS:-}"

code=0
"$cargo" test -p tidegate --test kubernetes --locked -- --nocapture conformance:: || code=$?

echo
if [[ -f $output/suite.log ]]; then
  # The results of the tests, without those of their parts.
  sed -n 's/^    --- \(PASS\|FAIL\): TestConformance\//\1 /p' "$output/suite.log" | sort
  skipped=$(grep -c '^    --- SKIP' "$output/suite.log" || true)
  printf '%d tests are skipped, including those of other profiles\n\n' "$skipped"
fi
if [[ -f $output/report.yaml ]]; then
  cat "$output/report.yaml"
  if [[ -n ${UPDATE_DOCS:-} ]]; then
    cp "$output/report.yaml" "docs/conformance/gateway-api-$suite-tidegate-$version.yaml"
    chmod 644 "docs/conformance/gateway-api-$suite-tidegate-$version.yaml"
  fi
fi
printf '\nconformance: %s; logs and report: %s\n' "$([[ $code == 0 ]] && echo passed || echo failed)" "$output"
exit "$code"
