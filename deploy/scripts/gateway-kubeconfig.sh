#!/bin/bash
# Prints a kubeconfig for a gateway outside the cluster. It has its own account, tidegate-NAME, and a token that
# expires. Run the script again before the token expires and replace the old file; the gateway reads the file before its
# next request. Needs kubectl, with the rights to create accounts and tokens in tidegate-system.
# Usage: gateway-kubeconfig.sh NAME [DAYS]
set -euo pipefail

name=${1:?the name of the gateway: metadata.name of its configuration} days=${2:-30}
account=tidegate-$name namespace=tidegate-system

kubectl apply -f - >&2 <<END
apiVersion: v1
kind: ServiceAccount
metadata: {name: $account, namespace: $namespace, labels: {app.kubernetes.io/name: tidegate}}
automountServiceAccountToken: false
END
# A plain request, because `kubectl create token` needs Kubernetes 1.24.
answer=$(kubectl create --raw "/api/v1/namespaces/$namespace/serviceaccounts/$account/token" -f - <<END
{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": $((days * 86400))}}
END
)
field() { sed -n "s/.*\"$1\": *\"\\([^\"]*\\)\".*/\\1/p" <<<"$answer"; }
cluster() { kubectl config view --raw --minify --flatten -o "jsonpath={.clusters[0].cluster.$1}"; }
# An API server may grant less time than requested.
echo "the token of $account expires at $(field expirationTimestamp)" >&2
cat <<END
apiVersion: v1
kind: Config
current-context: tidegate
clusters:
  - name: tidegate
    cluster: {server: "$(cluster server)", certificate-authority-data: "$(cluster certificate-authority-data)"}
contexts: [{name: tidegate, context: {cluster: tidegate, user: $account}}]
users: [{name: $account, user: {token: "$(field token)"}}]
END
