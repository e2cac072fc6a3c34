#!/bin/bash
# Builds the programs of deploy/tools (kube-apiserver, kube-controller-manager, kubectl, etcd, helm) at the versions of
# its go.mod files and prints the directory that contains them. Called by `make tools` and test-apiserver.sh. They are built once
# for each version, at low priority, outside of the tree: in TIDEGATE_TOOLS, or below ~/.cache/tidegate.
set -euo pipefail
cd "$(dirname "$0")/../tools"

die() { printf 'tools: %s\n' "$*" >&2; exit 1; }
say() { printf 'tools: %s\n' "$*" >&2; }

command -v go >/dev/null || die 'no go: install Go 1.26, or 1.21 or newer, which fetches 1.26 itself'
# Kubernetes 1.36 built with Go 1.27 does not serve /openapi/v2, so every `kubectl apply` fails.
case $(GOTOOLCHAIN=local go env GOVERSION) in
  go1.26 | go1.26.*) export GOTOOLCHAIN=local ;;
  *) export GOTOOLCHAIN=go1.26.8 ;;
esac
toolchain=$(go env GOVERSION) || die "cannot fetch $GOTOOLCHAIN: install Go 1.26"

kubernetes=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
# The programs depend on the versions of all modules, the compiler and this script.
key=$({ cat {.,helm}/go.{mod,sum} ../scripts/tools.sh; echo "$toolchain"; } | sha256sum | cut -c1-12)
cache=${TIDEGATE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/tools}
directory=$cache/kubernetes-$kubernetes-$key
mkdir -p "$cache"

# Only one build at a time; a second run waits and finds the result of the first.
exec 9>"$cache/lock"
flock 9
if [[ ! -d $directory ]]; then
  say "building $kubernetes with $toolchain; this takes minutes, once"
  new=$(mktemp -d "$cache/new.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  version=k8s.io/component-base/version
  IFS=. read -r major minor _ <<<"${kubernetes#v}"
  # Without a repository the programs do not know their version.
  flags="-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=$major -X $version.gitMinor=$minor"
  flags+=" -X $version.gitTreeState=clean"
  CGO_ENABLED=0 nice -n 19 go build -trimpath -buildvcs=false -ldflags "$flags" -o "$new/" tool
  # helm uses the libraries of another version of Kubernetes.
  flags="-s -w -X helm.sh/helm/v4/internal/version.version=$(go -C helm list -m -f '{{.Version}}' helm.sh/helm/v4)"
  CGO_ENABLED=0 nice -n 19 go -C helm build -trimpath -buildvcs=false -ldflags "$flags" -o "$new/" tool
  # The program of the module `server` is the server of etcd.
  mv "$new/server" "$new/etcd"
  chmod 755 "$new"
  mv "$new" "$directory"
fi
echo "$directory"
