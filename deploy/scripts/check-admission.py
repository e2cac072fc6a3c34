#!/usr/bin/env python3
"""Evaluates the ValidatingAdmissionPolicies of deploy/kubernetes/admission over a table of Services and pools.

CEL is evaluated by cel-python with the functions of Kubernetes (cel/functions.py). Called by check-cel.sh. Exits 1 and
says which case came out otherwise.
Usage: check-admission.py DIRECTORY
"""

import pathlib
import re
import sys

import celpy
import yaml
from cel.functions import evaluate
from celpy import celtypes


class Policy:
    """One policy with its binding."""

    def __init__(self, policy, binding):
        self.name = policy["metadata"]["name"]
        self.spec = policy["spec"]
        self.binding = binding["spec"]

    def refusals(self, service, old, namespace, params):
        names = {"object": celpy.json_to_cel(service), "oldObject": celpy.json_to_cel(old)}
        names["namespaceObject"] = celpy.json_to_cel(namespace)
        if not all(evaluate(one["expression"], names) for one in self.spec.get("matchConditions", [])):
            return []
        kind = self.spec.get("paramKind")
        found = [one for one in params if kind and one["kind"] == kind["kind"]]
        if kind and not found:
            deny = self.binding["paramRef"]["parameterNotFoundAction"] == "Deny"
            return [f"{self.name}: no parameter"] if deny else []
        said = []
        for param in found if kind else [None]:
            if param is not None:
                names["params"] = celpy.json_to_cel(param)
            variables = {}
            for variable in self.spec.get("variables", []):
                names["variables"] = celtypes.MapType(variables)
                variables[celtypes.StringType(variable["name"])] = evaluate(variable["expression"], names)
            names["variables"] = celtypes.MapType(variables)
            for validation in self.spec["validations"]:
                if not evaluate(validation["expression"], names):
                    said.append(f"{self.name}: {evaluate(validation['messageExpression'], names)}")
        return said


def policies(directory):
    documents = [
        document
        for path in sorted(pathlib.Path(directory).glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]
    bindings = {
        one["spec"]["policyName"]: one
        for one in documents
        if one["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    found = [one for one in documents if one["kind"] == "ValidatingAdmissionPolicy"]
    return [Policy(one, bindings[one["metadata"]["name"]]) for one in found]


def service(*addresses, **labels):
    return {"metadata": {"name": "web", "labels": labels}, "spec": {"externalIPs": list(addresses)}}


def pool(name, *addresses, **spec):
    return {"kind": "AddressPool", "metadata": {"name": name}, "spec": {"addresses": list(addresses), **spec}}


def ranges(text):
    return {"kind": "ConfigMap", "metadata": {"name": "tidegate-external-ips"}, "data": {"ranges": text}}


SHOP = {"metadata": {"name": "shop", "labels": {"team": "shop"}}}
OTHER = {"metadata": {"name": "other"}}
ALL = ranges("0.0.0.0/0 ::/0")
OPEN = pool("open", "203.0.113.0/24", "2001:db8::/64", externalIPs=True)
SHUT = pool("shut", "198.51.100.0/24", "192.0.2.7")
TEAM = pool("team", "192.0.2.0/28", externalIPs=True, namespaceSelector={"matchLabels": {"team": "shop"}})
FRONT = pool(
    "front",
    "192.0.2.16/28",
    externalIPs=True,
    serviceSelector={"matchExpressions": [
        {"key": "tier", "operator": "In", "values": ["front"]},
        {"key": "old", "operator": "DoesNotExist"},
    ]},
)
POOLS = [OPEN, SHUT, TEAM, FRONT]

# What it is; the Service, what it was, its namespace, the parameters; who refuses.
CASES = [
    ("no externalIPs", {"metadata": {"name": "web"}, "spec": {}}, None, OTHER, [ranges("")], set()),
    ("in an open pool", service("203.0.113.9", "2001:db8::9"), None, OTHER, [ALL, *POOLS], set()),
    ("in a pool that does not authorise", service("198.51.100.1"), None, OTHER, [ALL, *POOLS], {"pools"}),
    ("a single address of such a pool", service("192.0.2.7"), None, SHOP, [ALL, SHUT], {"pools"}),
    ("one of two in such a pool", service("203.0.113.9", "198.51.100.1"), None, OTHER, [ALL, *POOLS], {"pools"}),
    ("a namespace that matches", service("192.0.2.3"), None, SHOP, [ALL, TEAM], set()),
    ("a namespace that does not", service("192.0.2.3"), None, OTHER, [ALL, TEAM], {"pools"}),
    ("a Service that matches", service("192.0.2.17", tier="front"), None, OTHER, [ALL, FRONT], set()),
    ("a Service of another tier", service("192.0.2.17", tier="back"), None, OTHER, [ALL, FRONT], {"pools"}),
    ("a Service that is old", service("192.0.2.17", tier="front", old="y"), None, OTHER, [ALL, FRONT], {"pools"}),
    ("outside of every range", service("192.0.2.200"), None, OTHER, [ranges("203.0.113.0/24"), *POOLS], {"ranges"}),
    ("inside a range", service("203.0.113.200"), None, OTHER, [ranges("10.0.0.0/8\n203.0.113.0/24"), *POOLS], set()),
    ("no ranges at all", service("203.0.113.200"), None, OTHER, [ranges(""), *POOLS], {"ranges"}),
    ("no ConfigMap", service("203.0.113.200"), None, OTHER, POOLS, {"ranges"}),
    ("loopback", service("127.0.0.1"), None, OTHER, [ALL], {"never"}),
    ("loopback, IPv6", service("::1"), None, OTHER, [ALL], {"never"}),
    ("link-local", service("169.254.169.254"), None, OTHER, [ALL], {"never"}),
    ("link-local, IPv6", service("fe80::1"), None, OTHER, [ALL], {"never"}),
    ("multicast", service("239.1.1.1"), None, OTHER, [ALL], {"never"}),
    ("multicast, IPv6", service("ff05::2"), None, OTHER, [ALL], {"never"}),
    ("unspecified", service("0.0.0.0"), None, OTHER, [ALL], {"never"}),
    ("no address", service("here"), None, OTHER, [ALL], {"never", "ranges"}),
    ("unchanged since before", service("127.0.0.1"), service("127.0.0.1"), OTHER, [ranges("")], set()),
    ("changed", service("127.0.0.1"), service("127.0.0.2"), OTHER, [ALL], {"never"}),
]


def main(directory):
    all_policies = policies(directory)
    assert {one.name for one in all_policies} == {f"tidegate-external-ips-{one}" for one in ("never", "pools", "ranges")}
    wrong = 0
    for what, new, old, namespace, params, expected in CASES:
        said = [word for policy in all_policies for word in policy.refusals(new, old, namespace, params)]
        refused = {re.match(r"tidegate-external-ips-(\w+):", word).group(1) for word in said}
        if refused != expected:
            wrong += 1
            print(f"{what}: refused by {sorted(refused)}, expected {sorted(expected)}: {said}", file=sys.stderr)
    print(f"{len(CASES)} cases, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
