#!/usr/bin/env python3
"""Judges the objects of crd-cases.yaml by the CustomResourceDefinitions in deploy/kubernetes/crds, CEL rules included.

Each object must be taken, or be refused with exactly the messages that its case names. Every rule must refuse an
object of the table and let another one through. What the rules may cost at most is within what API servers allow, and
the functions that they and the admission policies use are known to the API servers that deploy/README.md promises.
Called by check-cel.sh. Exits 1 and says what came out otherwise.
Usage: check-crds.py DIRECTORY-OF-CRDS CASES DIRECTORY-OF-POLICIES README
"""

import pathlib
import re
import sys

import yaml
from cel import cost, functions, schema

OBJECT = {"type": "object", "additionalProperties": {"type": "string"}}
METADATA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}, "labels": OBJECT},
}


def documents(directory):
    for path in sorted(pathlib.Path(directory).glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text())


def definitions(directory):
    """The schema of each kind, with what every object has."""
    found = {}
    for one in documents(directory):
        if one["kind"] == "CustomResourceDefinition":
            root = one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            always = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": METADATA}
            found[one["spec"]["names"]["kind"]] = {**root, "properties": {**root["properties"], **always}}
    return found


def check_cases(schemas, cases):
    """What came out otherwise, and the rules that no object was refused by, or passed."""
    wrong, held, broke = [], set(), set()
    for case in cases:
        kind = case["object"]["kind"]
        said, ran = schema.judge(schemas[kind], case["object"], case.get("old"))
        said = [f"{path}: {what}" for path, what in said]
        expected = case.get("refused", [])
        if len(said) != len(expected) or not all(map(str.startswith, said, expected)):
            wrong.append(f"{case['case']}: said {said}, expected {expected}")
        broke |= {(kind, place, at) for place, at, holds in ran if not holds}
        if not said:
            held |= {(kind, place, at) for place, at, _ in ran}
    for kind, root in schemas.items():
        for place, below, _ in cost.places(root):
            for at in range(len(below.get("x-kubernetes-validations", []))):
                name = f"rule {at} at {place} of {kind}"
                wrong += [] if (kind, place, at) in broke else [f"{name}: refuses no object of the table"]
                wrong += [] if (kind, place, at) in held else [f"{name}: lets no object of the table through"]
    return wrong


def check_costs(schemas):
    """What is too dear, with the sum of each definition."""
    wrong, sums = [], {}
    for kind, root in schemas.items():
        sums[kind] = 0
        for place, below, times in cost.places(root):
            for at, rule in enumerate(below.get("x-kubernetes-validations", [])):
                try:
                    most = cost.Reckoner(below).cost(rule["rule"]) * times
                except cost.NotReckoned as error:
                    wrong.append(f"rule {at} at {place} of {kind}: its cost cannot be told: {error}")
                    continue
                sums[kind] += most
                if most > cost.RULE_COST_MAX:
                    wrong.append(f"rule {at} at {place} of {kind} may cost {most}, {cost.RULE_COST_MAX} are allowed")
        if sums[kind] > cost.DEFINITION_COST_MAX:
            wrong.append(f"the rules of {kind} may cost {sums[kind]}, {cost.DEFINITION_COST_MAX} are allowed")
    return wrong, sums


def expressions_of(policy):
    """All CEL of a ValidatingAdmissionPolicy."""
    spec = policy["spec"]
    for part in ("matchConditions", "variables", "validations"):
        for one in spec.get(part, []):
            yield one["expression"]
            if "messageExpression" in one:
                yield one["messageExpression"]


def check_versions(schemas, policies, readme):
    """Whether the README promises API servers that are too old for what is used."""
    rules = [
        rule["rule"]
        for root in schemas.values()
        for _, below, _ in cost.places(root)
        for rule in below.get("x-kubernetes-validations", [])
    ]
    admission = [text for one in policies if one["kind"].endswith("Policy") for text in expressions_of(one)]
    wrong = []
    for name, expressions in (("kubernetes/crds", rules), ("kubernetes/admission", admission)):
        row = next(line for line in readme.splitlines() if line.startswith(f"| [{name}]"))
        promised = re.search(r"Kubernetes 1\.(\d+)", row)
        needed = max(functions.since(one) for one in expressions)
        if promised is None or int(promised.group(1)) != needed:
            wrong.append(f"{name} needs Kubernetes 1.{needed}; the README says: {row}")
    return wrong


def check_checker():
    """What the definitions of today do not need, and the next ones may."""
    counter = {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "backwards"}]}
    item = {"type": "object", "properties": {"name": {"type": "string"}, "n": counter}}
    keyed = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": item}
    root = {"type": "object", "properties": {
        "n": counter,
        "keyed": keyed,
        "plain": {"type": "array", "items": item},
        "limits": {"type": "object", "additionalProperties": {"type": "string", "x-kubernetes-validations": [
            {"rule": "self != 'no'", "messageExpression": "'not ' + self"}]}},
        "pair": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                 "x-kubernetes-validations": [{"rule": "self.a < self.b", "fieldPath": ".a", "message": "order"}]},
    }}
    old = {"n": 2, "keyed": [{"name": "a", "n": 1}, {"name": "b", "n": 5}], "plain": [{"n": 9}]}
    for new, before, expected in [
        ({"n": 1}, None, []),
        ({"n": 1}, old, [("n", "backwards")]),
        ({"keyed": [{"name": "b", "n": 4}, {"name": "c", "n": 0}]}, old, [("keyed[0].n", "backwards")]),
        ({"plain": [{"n": 1}]}, old, []),
        ({"limits": {"x": "yes", "y": "no"}}, None, [("limits.y", "not no")]),
        ({"pair": {"a": 2, "b": 1}}, None, [("pair.a", "order")]),
    ]:
        assert schema.judge(root, new, before)[0] == expected, (new, before)
    names = {"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self.contains('-')"}]}}
    assert check_costs({"Wide": {"type": "object", "properties": {"names": names}}})[0], "no bound is too dear"


def main(crds, table, policies, readme):
    check_checker()
    schemas, cases = definitions(crds), yaml.safe_load(pathlib.Path(table).read_text())
    wrong, sums = check_costs(schemas)
    wrong += check_cases(schemas, cases)
    wrong += check_versions(schemas, documents(policies), pathlib.Path(readme).read_text())
    for one in wrong:
        print(one, file=sys.stderr)
    for kind, most in sums.items():
        print(f"{kind}: rules may cost {most} of {cost.DEFINITION_COST_MAX}")
    print(f"{len(cases)} cases, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
