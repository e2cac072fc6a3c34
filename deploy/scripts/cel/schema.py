"""Objects against a structural schema with its rules, as an API server judges them when they are written.

Defaults, then types and limits, then the CEL rules of every place: `self` is what is at the place, `oldSelf` what was
there before (such rules run on updates only, and only where old and new can be matched). Rules do not run at all on an
object whose types, required fields or lengths are wrong. Used by check-crds.py.
"""

import copy
import re

import celpy
from cel.functions import evaluate

PYTHON = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
NOTHING = object()


def with_defaults(schema, value):
    """A copy with the defaults of the schema, and without what it does not name."""
    if isinstance(value, list) and "items" in schema:
        return [with_defaults(schema["items"], one) for one in value]
    if not isinstance(value, dict):
        return value
    fields, more = schema.get("properties", {}), schema.get("additionalProperties")
    kept = {}
    for name, one in value.items():
        below = fields.get(name) or more
        if isinstance(below, dict) and not (one is None and not below.get("nullable") and "default" in below):
            kept[name] = with_defaults(below, one)
    for name, below in fields.items():
        if name not in kept and "default" in below:
            kept[name] = copy.deepcopy(below["default"])
    return kept


def unknown(schema, value, path=""):
    """The paths that the schema does not name."""
    if isinstance(value, list) and "items" in schema:
        for at, one in enumerate(value):
            yield from unknown(schema["items"], one, f"{path}[{at}]")
    if isinstance(value, dict):
        for name, one in value.items():
            below = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            where = f"{path}.{name}" if path else name
            if isinstance(below, dict):
                yield from unknown(below, one, where)
            else:
                yield where


def faults(schema, value, path=""):
    """(path, what, whether rules are not run for it) of every breach of types and limits."""
    kind = schema["type"]
    if value is None and schema.get("nullable"):
        return
    is_number_like = isinstance(value, bool) and kind in ("integer", "number")
    if not isinstance(value, PYTHON[kind]) or is_number_like:
        yield path, f"must be of type {kind}", True
        return
    if "enum" in schema and value not in schema["enum"]:
        quoted = ", ".join(f'"{one}"' for one in schema["enum"])
        yield path, f"supported values: {quoted}", True
    lengths = {"array": ("minItems", "maxItems"), "object": ("minProperties", "maxProperties")}
    if kind not in ("boolean", "integer", "number"):
        least, most = lengths.get(kind, ("minLength", "maxLength"))
        if len(value) < schema.get(least, 0):
            yield path, f"should have at least {schema[least]}", False
        if len(value) > schema.get(most, len(value)):
            yield path, f"may not be more than {schema[most]}", True
    elif kind != "boolean":
        if value < schema.get("minimum", value):
            yield path, f"should be greater than or equal to {schema['minimum']:g}", False
        if value > schema.get("maximum", value):
            yield path, f"should be less than or equal to {schema['maximum']:.0f}", False
    if kind == "string" and not re.search(schema.get("pattern", ""), value):
        yield path, f"should match {schema['pattern']}", False
    if kind == "object":
        for name in schema.get("required", []):
            if name not in value:
                yield f"{path}.{name}" if path else name, "Required value", True
    for where, below, _, one, _ in children(schema, value, path):
        yield from faults(below, one, where)
    if kind == "array":
        seen = []
        for at, one in enumerate(value):
            key = list_key(schema, one)
            if key is not NOTHING and key in seen:
                yield f"{path}[{at}]", "Duplicate value", False
            seen.append(key)


def list_key(schema, item):
    """What items of a list of the types `set` and `map` are told apart by."""
    match schema.get("x-kubernetes-list-type"):
        case "set":
            return item
        case "map" if isinstance(item, dict):
            return [item.get(key) for key in schema["x-kubernetes-list-map-keys"]]
    return NOTHING


def children(schema, value, path, old=NOTHING):
    """(path, schema, step in the schema's path, value, old value) of all that is below a value."""
    if isinstance(value, dict):
        can_match = isinstance(old, dict) and schema.get("x-kubernetes-map-type") != "atomic"
        for name, one in value.items():
            named = schema.get("properties", {}).get(name)
            below = named or schema.get("additionalProperties")
            if isinstance(below, dict):
                before = old.get(name, NOTHING) if can_match else NOTHING
                step = name if named else "*"
                yield (f"{path}.{name}" if path else name), below, f".{step}", one, before
    elif isinstance(value, list):
        is_map = schema.get("x-kubernetes-list-type") == "map" and isinstance(old, list)
        for at, one in enumerate(value):
            same = [was for was in old if list_key(schema, was) == list_key(schema, one)] if is_map else []
            yield f"{path}[{at}]", schema["items"], "[]", one, same[0] if same else NOTHING


def run_rules(schema, value, old=NOTHING, path="", place=""):
    """(place in the schema, index of the rule, path, None or its message) of every rule that runs."""
    if value is None:
        return
    for at, rule in enumerate(schema.get("x-kubernetes-validations", [])):
        names = {"self": celpy.json_to_cel(value)}
        if re.search(r"\boldSelf\b", rule["rule"]):
            if old is NOTHING:
                continue
            names["oldSelf"] = celpy.json_to_cel(old)
        try:
            holds, said = bool(evaluate(rule["rule"], names)), rule.get("message") or f"failed rule: {rule['rule']}"
        except celpy.CELEvalError as error:
            # The object is refused as for a rule that does not hold, but the message does not explain why.
            holds, said = False, f"rule has an error: {error.args[0]}"
        if not holds and "messageExpression" in rule and not said.startswith("rule has"):
            said = str(evaluate(rule["messageExpression"], names))
        where = (path + rule.get("fieldPath", "")).lstrip(".")
        yield place, at, where, None if holds else said
    for where, below, step, one, before in children(schema, value, path, old):
        yield from run_rules(below, one, before, where, (place + step).lstrip("."))


def judge(schema, new, old=None):
    """What an API server says of an object: ([(path, what)], [(place, index of the rule, whether it held)])."""
    said = [(path, "unknown field") for path in unknown(schema, new)]
    new = with_defaults(schema, new)
    found = list(faults(schema, new))
    said += [(path, what) for path, what, _ in found]
    ran = []
    if not any(blocks for _, _, blocks in found):
        before = NOTHING if old is None else with_defaults(schema, old)
        for place, at, path, what in run_rules(schema, new, before):
            ran.append((place, at, what is None))
            if what is not None:
                said.append((path, what))
    return said, ran
