"""What a rule may cost at most, as an API server reckons before it takes the definition.

The reckoning of cel-go (checker/cost.go) with the sizes of a schema and the costs of Kubernetes' functions
(apiserver/pkg/cel/library/cost.go); the largest cost only. Where versions of API servers reckon differently, the dearest
counts: equality of values of the types IP and CIDR has no bound here (`a in [b]` has). Used by check-crds.py.
"""

import math
from dataclasses import dataclass

from cel.functions import ALWAYS, SINCE, parse

UNBOUNDED = math.inf
# The cost limits of one rule over all its calls, and of all rules of a definition:
# apiextensions-apiserver/pkg/apis/apiextensions/validation.
RULE_COST_MAX = 10_000_000
DEFINITION_COST_MAX = 100_000_000
# The limit on sizes for which the schema has no limit: the size of a request.
REQUEST_BYTES_MAX = 3 * 1024 * 1024
# The costs per character of a scanned text, and per character of a regular expression.
TEXT, REGEX = 0.1, 0.25
SCALARS = ("boolean", "integer", "number")
# The functions with O(1) cost whose result is a scalar.
SCALAR_RESULTS = ("size", "family", "isIP", "isCIDR", "startsWith", "endsWith", "contains", "matches", "containsIP")
NOMINAL = (*SCALAR_RESULTS, "ip", "cidr", "masked", "int", "string") + tuple(
    name for name in SINCE if name.startswith("is") and name not in ("isIP", "isCIDR")
)
MACROS = ("all", "exists")


class NotReckoned(Exception):
    """An expression with something in it whose cost is not known here."""


@dataclass(frozen=True)
class Value:
    """What is known of a value: its largest size, and the schema where it comes from one."""

    size: float = UNBOUNDED
    schema: dict | None = None

    def below(self, schema):
        return Value(size_of(schema), schema) if schema else Value()


SCALAR = Value(1)


def size_of(schema):
    """Items of a list or map, bytes of a text."""
    kind = schema.get("type")
    if kind in SCALARS:
        return 1
    if kind == "array":
        return schema.get("maxItems", REQUEST_BYTES_MAX)
    if kind == "object":
        return schema.get("maxProperties", REQUEST_BYTES_MAX) if "additionalProperties" in schema else 1
    if "maxLength" in schema:
        # A character may take four bytes.
        return schema["maxLength"] * 4
    if "enum" in schema:
        return max(len(str(one)) for one in schema["enum"])
    return 64 if schema.get("format") in ("date", "date-time", "duration") else REQUEST_BYTES_MAX


class Reckoner:
    """The cost of one expression at one place of a schema."""

    def __init__(self, schema):
        self.root = Value(size_of(schema), schema)
        self.names = {"self": self.root, "oldSelf": self.root}

    def cost(self, expression):
        return self.visit(parse(expression))[0]

    def visit(self, node):
        """(cost, value) of a place of the tree."""
        visitor = getattr(self, f"visit_{node.data}", None)
        if visitor is None:
            raise NotReckoned(node.data)
        return visitor(node.children)

    def only(self, children):
        return self.visit(children[0])

    visit_primary = visit_paren_expr = visit_member = only

    def visit_expr(self, children):
        if len(children) == 1:
            return self.visit(children[0])
        (condition, _), one, other = map(self.visit, children)
        return condition + max(one[0], other[0]), Value(max(one[1].size, other[1].size))

    def visit_conditionalor(self, children):
        if len(children) == 1:
            return self.visit(children[0])
        return sum(self.visit(child)[0] for child in children), SCALAR

    visit_conditionaland = visit_conditionalor

    def visit_unary(self, children):
        if len(children) == 1:
            return self.visit(children[0])
        cost, value = self.visit(children[1])
        return cost + 1, value

    def visit_relation(self, children):
        if len(children) == 1:
            return self.visit(children[0])
        operator, right = children[0].data, self.visit(children[1])
        left = self.visit(children[0].children[0])
        size = right[1].size if operator == "relation_in" else TEXT * min(left[1].size, right[1].size)
        if size == UNBOUNDED:
            return UNBOUNDED, SCALAR
        return left[0] + right[0] + math.ceil(size), SCALAR

    def visit_addition(self, children):
        if len(children) > 1:
            raise NotReckoned("arithmetic")
        return self.visit(children[0])

    visit_multiplication = visit_addition

    def visit_literal(self, children):
        token = children[0]
        return 0, Value(len(token) - 2) if token.type == "STRING_LIT" else SCALAR

    def visit_list_lit(self, children):
        items = children[0].children if children else []
        return 10 + sum(self.visit(item)[0] for item in items), Value(len(items))

    def visit_ident(self, children):
        return 1, self.names[str(children[0])]

    def visit_member_dot(self, children):
        cost, value = self.visit(children[0])
        schema = value.schema or {}
        below = schema.get("properties", {}).get(str(children[1])) or schema.get("additionalProperties")
        if below is None:
            raise NotReckoned(f"no field {children[1]}")
        return cost + 1, value.below(below)

    def visit_member_index(self, children):
        cost, value = self.visit(children[0])
        index, _ = self.visit(children[1])
        return cost + index + 1, self.item_of(value)

    def item_of(self, value):
        if value.schema and "items" in value.schema:
            return value.below(value.schema["items"])
        # The items of a list that a function created have the size of the rule's own value: cel-go knows no other path.
        return Value(self.root.size)

    def visit_ident_arg(self, children):
        name, arguments = str(children[0]), children[1].children if len(children) > 1 else []
        if name == "has":
            # The cost of the object; the access to its field is free.
            return self.visit(arguments[0])[0] - 1, SCALAR
        return self.call(name, (0, None), [self.visit(one) for one in arguments])

    def visit_member_dot_arg(self, children):
        name, arguments = str(children[1]), children[2].children if len(children) > 2 else []
        target = self.visit(children[0])
        if name in MACROS:
            return self.loop(target, arguments)
        return self.call(name, target, [self.visit(one) for one in arguments])

    def loop(self, target, arguments):
        variable = str(next(arguments[0].scan_values(lambda _: True)))
        before = self.names.get(variable)
        self.names[variable] = self.item_of(target[1])
        predicate, _ = self.visit(arguments[1])
        self.names.pop(variable)
        if before is not None:
            self.names[variable] = before
        # Each iteration: the check whether the result is decided (2), the result so far (1), the predicate.
        return target[0] + 1 + target[1].size * (predicate + 3), SCALAR

    def call(self, name, target, arguments):
        if name not in SINCE:
            raise NotReckoned(f"function {name}")
        base = target[0] + sum(cost for cost, _ in arguments)
        size = target[1].size if target[1] else 0
        first = arguments[0][1].size if arguments else 0
        if name == "trim" or name == "lowerAscii":
            return base + math.ceil(size * TEXT), Value(size)
        if name == "split":
            return base + math.ceil(size * 2 * TEXT), Value(size)
        if name == "matches":
            return base + math.ceil((size + 1) * TEXT) * math.ceil(first * REGEX), SCALAR
        if name == "contains":
            return base + math.ceil(size * TEXT) * math.ceil(first * TEXT), SCALAR
        if name in ("startsWith", "endsWith"):
            return base + math.ceil(first * TEXT), SCALAR
        if name == "containsIP":
            return base + 4 + math.ceil(first * TEXT), SCALAR
        if name in NOMINAL:
            return base + 1, SCALAR if name in SCALAR_RESULTS or name.startswith("is") else Value()
        raise NotReckoned(f"function {name}")


def places(schema, path="", times=1):
    """(path, schema, how many of it an object may have) of every place."""
    yield path, schema, times
    for name, below in schema.get("properties", {}).items():
        yield from places(below, f"{path}.{name}" if path else name, times)
    if schema.get("type") == "array":
        yield from places(schema["items"], f"{path}[]", times * size_of(schema))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from places(schema["additionalProperties"], f"{path}.*", times * size_of(schema))


assert ALWAYS == min(SINCE.values())
