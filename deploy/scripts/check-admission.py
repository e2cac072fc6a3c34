#!/usr/bin/env python3
"""Evaluates the ValidatingAdmissionPolicies of deploy/kubernetes/admission over tables of writes.

CEL is evaluated by cel-python with the functions of Kubernetes (cel/functions.py), in the order of an API server
(apiserver/pkg/admission/plugin/policy): parameters are looked for before match conditions are evaluated, and what
fails there or in an expression is up to `failurePolicy`. The first table is what Services ask for, the second what
accounts of gateways write; and a write that concerns no policy is let through whatever of the installation is there.
Called by check-cel.sh. Exits 1 and says which case came out otherwise.
Usage: check-admission.py DIRECTORY
"""

import copy
import itertools
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

    def matches(self, request):
        """Whether the policy has a rule for the request."""
        resource = request["resource"]["resource"] + ("/" + request["subResource"] if request["subResource"] else "")
        group = request["resource"]["group"]
        return any(
            resource in rule["resources"] and request["operation"] in rule["operations"] and group in rule["apiGroups"]
            for rule in self.spec["matchConstraints"]["resourceRules"]
        )

    def refusals(self, write, params, definitions):
        """Why a write is refused; `params` are the objects that are there, `definitions` the kinds."""
        if not self.matches(write["request"]):
            return []
        try:
            return self.judge(write, self.params(params, definitions))
        except (celpy.CELEvalError, LookupError) as error:
            ignored = self.spec["failurePolicy"] == "Ignore"
            return [] if ignored else [f"{self.name}: it fails: {error}"]

    def params(self, params, definitions):
        kind = self.spec.get("paramKind")
        if not kind:
            return [None]
        if kind["kind"] not in definitions:
            raise LookupError(f"paramKind {kind['kind']} is not known")
        found = [one for one in params if one["kind"] == kind["kind"]]
        if not found and self.binding["paramRef"]["parameterNotFoundAction"] == "Deny":
            raise LookupError("no params found")
        return found

    def judge(self, write, params):
        names = {name: celpy.json_to_cel(value) for name, value in write.items()}
        said = []
        for param in params:
            if not all(evaluate(one["expression"], names) for one in self.spec.get("matchConditions", [])):
                return []
            if param is not None:
                names["params"] = celpy.json_to_cel(param)
            variables = Variables(self.spec.get("variables", []), names)
            for validation in self.spec["validations"]:
                if not variables.evaluate(validation["expression"]):
                    message = validation.get("messageExpression")
                    said.append(f"{self.name}: {variables.evaluate(message) if message else validation['message']}")
        return said


class Variables:
    """The variables of a policy: each is evaluated where an expression names it."""

    def __init__(self, spec, names):
        self.expressions = {one["name"]: one["expression"] for one in spec}
        self.names = names
        self.values = {}

    def evaluate(self, expression):
        for name in re.findall(r"variables\.(\w+)", expression):
            if name not in self.values:
                try:
                    self.values[name] = self.evaluate(self.expressions[name])
                except celpy.CELEvalError as error:
                    # As in cel-python: an operator may not need the value.
                    self.values[name] = error
        known = {celtypes.StringType(name): value for name, value in self.values.items()}
        return evaluate(expression, {**self.names, "variables": celtypes.MapType(known)})


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

# Each case: its description, the Service, its old state, its namespace, the parameters, the policies that refuse it.
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
    ("no ConfigMap", service("203.0.113.200"), None, OTHER, POOLS, set()),
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




def asking(annotations=None, kind="LoadBalancer", labels=None, **spec):
    metadata = {"name": "web", "labels": labels or {}, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"type": kind, **spec}}


def names_pool(name, **more):
    return asking({"tidegate.dev/address-pool": name}, **more)


def names_address(address, **more):
    return asking({"tidegate.dev/load-balancer-ips": address}, **more)


# The same format as CASES.
REQUESTS = [
    ("a pool that is open to all", names_pool("open"), None, OTHER, POOLS, set()),
    ("a pool of another team", names_pool("team"), None, OTHER, POOLS, {"requests"}),
    ("a pool of its team", names_pool("team"), None, SHOP, POOLS, set()),
    ("a pool for other Services", names_pool("front"), None, SHOP, POOLS, {"requests"}),
    ("a pool for such Services", names_pool("front", labels={"tier": "front"}), None, SHOP, POOLS, set()),
    ("a pool that is not there", names_pool("none"), None, OTHER, POOLS, set()),
    ("an address of another team", names_address("192.0.2.3"), None, OTHER, POOLS, {"requests"}),
    ("the second of two", names_address("2001:db8::9, 192.0.2.3"), None, OTHER, POOLS, {"requests"}),
    ("an address of its team", names_address("192.0.2.3"), None, SHOP, POOLS, set()),
    ("loadBalancerIP", asking(loadBalancerIP="192.0.2.3"), None, OTHER, POOLS, {"requests"}),
    ("no address at all", names_address("here"), None, OTHER, POOLS, set()),
    ("a pool in ranges cannot be judged", names_address("192.0.2.3"), None, OTHER,
     [pool("range", "192.0.2.1-192.0.2.9", namespaceSelector={"matchLabels": {"team": "shop"}})], set()),
    ("ClusterIP", names_pool("team", kind="ClusterIP"), None, OTHER, POOLS, set()),
    ("unchanged since before", names_pool("team"), names_pool("team"), OTHER, POOLS, set()),
    ("changed", names_pool("team"), names_pool("open"), OTHER, POOLS, {"requests"}),
    ("it had no type of ours before", names_pool("team"), names_pool("team", kind="ClusterIP"), OTHER, POOLS,
     {"requests"}),
]

OURS = {"username": "system:serviceaccount:tidegate-system:tidegate", "groups": ["system:serviceaccounts"]}
EDGE = {"username": "system:serviceaccount:tidegate-system:tidegate-edge-1", "groups": []}
CERTIFICATE = {"username": "tidegate:gateway:edge-1", "groups": ["tidegate:gateways", "system:authenticated"]}
POD = {**OURS, "extra": {"authentication.kubernetes.io/node-name": ["node-a"]}}
ADMIN = {"username": "admin", "groups": ["system:masters"]}
NODE = {"username": "system:node:a"}
HEARD = {"leader": True, "stopped": False, "addresses": ["192.0.2.2"], "appliedResourceVersion": "7",
         "lastHeartbeat": "2026-01-01T00:00:00Z", "conditions": [{"type": "Ready", "status": "True"}]}
SILENT = {**HEARD, "leader": False, "conditions": [{"type": "Ready", "status": "Unknown"}]}
STORED = {
    "metadata": {"name": "web", "labels": {"a": "b"}, "finalizers": ["example.com/theirs"]},
    "spec": {"type": "LoadBalancer", "loadBalancerClass": "tidegate.dev/gateway", "ports": [{"port": 80}]},
    "status": {"loadBalancer": {}, "conditions": [{"type": "example.com/Ready", "status": "True"}]},
}


def edited(*changes, of=STORED):
    """A copy with values at paths such as `spec.type`; None takes one out."""
    made = copy.deepcopy(of)
    for path, value in changes:
        *way, last = path.split(".")
        place = made
        for step in way:
            place = place[step]
        if value is None:
            place.pop(last)
        else:
            place[last] = value
    return made


CONDITIONS = STORED["status"]["conditions"]
INGRESS = ("status.loadBalancer.ingress", [{"ip": "203.0.113.1", "ipMode": "VIP"}])
CLEANUP = ("metadata.finalizers", ["example.com/theirs", "tidegate.dev/cleanup"])
ALLOCATED = ("status.conditions", [*CONDITIONS, {"type": "tidegate.dev/Allocated", "status": "True"}])
HELD = edited(CLEANUP, INGRESS, ALLOCATED)
OTHER_CLASS = ("spec.loadBalancerClass", "example.com/other")

# Each case: its description, the user, the operation, the resource, the new state, the old state, whether it is
# refused.
WRITES = [
    ("the finalizer", OURS, "UPDATE", "services", edited(CLEANUP), STORED, False),
    ("the finalizer off", OURS, "UPDATE", "services", STORED, edited(CLEANUP), False),
    ("the finalizer of others off", OURS, "UPDATE", "services", edited(("metadata.finalizers", [])), STORED, True),
    ("one more of others", OURS, "UPDATE", "services", edited(("metadata.finalizers", ["example.com/theirs", "x/y"])),
     STORED, True),
    ("the ports", OURS, "UPDATE", "services", edited(("spec.ports", [{"port": 81}])), STORED, True),
    ("a selector", OURS, "UPDATE", "services", edited(("spec.selector", {"app": "x"})), STORED, True),
    ("externalIPs", OURS, "UPDATE", "services", edited(("spec.externalIPs", ["192.0.2.1"])), STORED, True),
    ("labels", OURS, "UPDATE", "services", edited(("metadata.labels", {})), STORED, True),
    ("annotations", EDGE, "UPDATE", "services", edited(("metadata.annotations", {"a": "b"})), STORED, True),
    ("owners", CERTIFICATE, "UPDATE", "services", edited(("metadata.ownerReferences", [{"uid": "u"}])), STORED, True),
    ("a new Service", OURS, "CREATE", "services", STORED, None, True),
    ("an admin changes ports", ADMIN, "UPDATE", "services", edited(("spec.ports", [{"port": 81}])), STORED, False),
    ("an admin makes a Service", ADMIN, "CREATE", "services", STORED, None, False),
    ("a user without groups", NODE, "UPDATE", "services", edited(("spec.ports", [{"port": 81}])), STORED, False),
    ("the status", OURS, "UPDATE", "services/status", edited(INGRESS, ALLOCATED), STORED, False),
    ("the status, by certificate", CERTIFICATE, "UPDATE", "services/status", edited(INGRESS, ALLOCATED), STORED, False),
    ("no class", OURS, "UPDATE", "services/status",
     edited(("spec.loadBalancerClass", None), INGRESS), edited(("spec.loadBalancerClass", None)), False),
    ("another class", OURS, "UPDATE", "services/status", edited(OTHER_CLASS, INGRESS), edited(OTHER_CLASS), True),
    ("another class, taken out", OURS, "UPDATE", "services/status",
     edited(OTHER_CLASS), edited(OTHER_CLASS, of=HELD), False),
    ("conditions of others", OURS, "UPDATE", "services/status", edited(("status.conditions", [])), STORED, True),
    ("link-local", OURS, "UPDATE", "services/status",
     edited(("status.loadBalancer.ingress", [{"ip": "169.254.169.254"}])), STORED, True),
    ("a host name", OURS, "UPDATE", "services/status",
     edited(("status.loadBalancer.ingress", [{"hostname": "example.org"}])), STORED, True),
    ("everything taken out", OURS, "UPDATE", "services/status", edited(CLEANUP), HELD, False),
    ("a pool's finalizer", OURS, "UPDATE", "addresspools",
     edited(CLEANUP, of=pool("p") | {"metadata": {"name": "p"}}), pool("p") | {"metadata": {
         "name": "p", "finalizers": ["example.com/theirs"]}}, False),
    ("a pool's addresses", OURS, "UPDATE", "addresspools", pool("p", "192.0.2.1"), pool("p"), True),
    ("a pool's status", OURS, "UPDATE", "addresspools/status", {**pool("p"), "status": {"total": 1}}, pool("p"), False),
    ("a new pool", OURS, "CREATE", "addresspools", pool("p"), None, True),
    ("its own GatewayStatus", EDGE, "CREATE", "gatewaystatuses", {"metadata": {"name": "edge-1"}}, None, False),
    ("that of another", EDGE, "UPDATE", "gatewaystatuses/status", {"metadata": {"name": "edge-2"}}, STORED, True),
    ("that of another, which is not heard of", EDGE, "UPDATE", "gatewaystatuses/status",
     {"metadata": {"name": "edge-2"}, "status": SILENT}, {"metadata": {"name": "edge-2"}, "status": HEARD}, False),
    ("the addresses of another, which is not heard of", EDGE, "UPDATE", "gatewaystatuses/status",
     {"metadata": {"name": "edge-2"}, "status": {**SILENT, "addresses": []}},
     {"metadata": {"name": "edge-2"}, "status": HEARD}, True),
    ("that of another, by certificate", CERTIFICATE, "UPDATE", "gatewaystatuses/status",
     {"metadata": {"name": "edge-2"}}, STORED, True),
    ("that of its node", POD, "UPDATE", "gatewaystatuses/status", {"metadata": {"name": "node-a"}}, STORED, False),
    ("that of another node", POD, "UPDATE", "gatewaystatuses/status", {"metadata": {"name": "node-b"}}, STORED, True),
    ("an account that says no gateway", OURS, "UPDATE", "gatewaystatuses/status",
     {"metadata": {"name": "edge-2"}}, STORED, False),
]

GROUPS = {"services": "", "addresspools": "tidegate.dev", "gatewaystatuses": "tidegate.dev"}
KINDS = {"ConfigMap", "AddressPool"}


def write_of(user, operation, resource, new, old, namespace=OTHER):
    resource, _, subresource = resource.partition("/")
    request = {
        "userInfo": user,
        "operation": operation,
        "resource": {"group": GROUPS[resource], "version": "v1", "resource": resource},
        "subResource": subresource,
    }
    return {"request": request, "object": new, "oldObject": old, "namespaceObject": namespace}


def said_by(all_policies, write, params, definitions=KINDS):
    return [word for policy in all_policies for word in policy.refusals(write, params, definitions)]


def check_order(all_policies):
    """Writes that ask for nothing, and those of the gateways, with any part of the installation missing."""
    plain = ({"metadata": {"name": "web"}, "spec": {"type": "ClusterIP"}}, None)
    balanced = (asking(loadBalancerClass="tidegate.dev/gateway"), None)
    claims = (service("203.0.113.9"), service("203.0.113.9"))
    writes = [write_of(ADMIN, "UPDATE" if old else "CREATE", "services", new, old) for new, old in
              (plain, balanced, claims)]
    writes.append(write_of(OURS, "UPDATE", "services", STORED, edited(CLEANUP)))
    writes.append(write_of(OURS, "UPDATE", "services/status", STORED, HELD))
    held = edited(CLEANUP, ("spec.externalIPs", ["127.0.0.1"]))
    writes.append(write_of(ADMIN, "UPDATE", "services", edited(("spec.externalIPs", ["127.0.0.1"])), held))
    states = [(KINDS, [ALL, *POOLS]), (KINDS, POOLS), (KINDS, [ALL]), (KINDS, []), ({"ConfigMap"}, [ALL]), (set(), [])]
    wrong, count = [], 0
    # A missing policy does not cause more refusals: the results of the other policies do not change.
    for (definitions, params), write in itertools.product(states, writes):
        count += 1
        said = said_by(all_policies, write, params, definitions)
        if said:
            wrong.append(f"definitions {sorted(definitions)}, {len(params)} parameters: {write['object']}: {said}")
    # A claim is let through if the policies cannot decide on it, and checked if they can.
    for definitions, params, refused in (
        (KINDS, [ALL, *POOLS], True), ({"ConfigMap"}, [ALL], False), (set(), [], False), (KINDS, [], False),
    ):
        count += 1
        said = said_by(all_policies, write_of(ADMIN, "CREATE", "services", service("198.51.100.1"), None), params,
                       definitions)
        if bool(said) != refused:
            wrong.append(f"a claim with definitions {sorted(definitions)}: {said}")
    return count, wrong


def main(directory):
    all_policies = policies(directory)
    names = [f"external-ips-{one}" for one in ("never", "pools", "ranges")] + ["accounts", "requests"]
    assert {one.name for one in all_policies} == {f"tidegate-{one}" for one in names}
    count, wrong = check_order(all_policies)
    for what, new, old, namespace, params, expected in CASES + REQUESTS:
        count += 1
        new.setdefault("spec", {}).setdefault("type", "ClusterIP")
        if old:
            old["spec"].setdefault("type", "ClusterIP")
        write = write_of(ADMIN, "UPDATE" if old else "CREATE", "services", new, old, namespace)
        said = said_by(all_policies, write, params)
        refused = {re.match(r"tidegate-(?:external-ips-)?(\w+):", word).group(1) for word in said}
        if refused != expected:
            wrong.append(f"{what}: refused by {sorted(refused)}, expected {sorted(expected)}: {said}")
    for what, user, operation, resource, new, old, expected in WRITES:
        count += 1
        said = said_by(all_policies, write_of(user, operation, resource, new, old), [ALL, *POOLS])
        if any(word.startswith("tidegate-accounts: ") for word in said) != expected or (said and not expected):
            wrong.append(f"{what}: {said}, expected {'a refusal' if expected else 'none'}")
        if any("it fails" in word for word in said):
            wrong.append(f"{what}: {said}")
    for one in wrong:
        print(one, file=sys.stderr)
    print(f"{count} cases, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
