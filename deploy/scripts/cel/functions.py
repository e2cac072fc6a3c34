"""CEL as an API server evaluates it: cel-python, with the functions that Kubernetes adds.

Here are their meaning (by the documentation of Kubernetes, and as strict as Go's net/netip: no leading zeros, no
zones, no IPv4 inside of IPv6) and the versions of API servers that take them in a new expression. Used by
check-admission.py and check-crds.py. What is not here is not known: an expression that needs it is an error.
"""

import functools
import ipaddress
import re

import celpy
from celpy import celtypes


class Ip(celtypes.StringType):
    """A value of the type IP: its canonical text."""


class Cidr(celtypes.StringType):
    """A value of the type CIDR: canonical, the bits after the prefix kept."""


FUNCTIONS = {}


def function(name):
    """Registers a function, or a method with its object as the first argument."""

    def register(body):
        FUNCTIONS[name] = body
        return body

    return register


def address_of(text):
    """The address that a text is, or None."""
    try:
        found = ipaddress.ip_address(str(text))
    except ValueError:
        return None
    is_strange = found.version == 6 and (found.scope_id or found.ipv4_mapped)
    return None if is_strange else found


def network_of(text):
    """The address with a prefix length that a text is, or None."""
    address, _, prefix = str(text).partition("/")
    if not re.fullmatch("0|[1-9][0-9]*", prefix) or address_of(address) is None:
        return None
    try:
        return ipaddress.ip_interface(str(text))
    except ValueError:
        return None


def needed(found, what):
    if found is None:
        # cel-python turns this into an error that `||`, `&&` and `? :` handle as CEL specifies.
        raise ValueError(what)
    return found


def is_text(value):
    return isinstance(value, celtypes.StringType) and not isinstance(value, (Ip, Cidr))


@function("isIP")
def is_ip(text):
    return celtypes.BoolType(is_text(text) and address_of(text) is not None)


@function("isCIDR")
def is_cidr(text):
    return celtypes.BoolType(is_text(text) and network_of(text) is not None)


@function("ip")
def ip(value):
    if isinstance(value, Cidr):
        return Ip(network_of(value).ip)
    return Ip(needed(address_of(value), f"no IP: {value}"))


@function("cidr")
def cidr(text):
    return Cidr(needed(network_of(text), f"no CIDR: {text}"))


@function("masked")
def masked(network):
    return Cidr(network_of(network).network)


@function("family")
def family(address):
    return celtypes.IntType(address_of(address).version)


@function("containsIP")
def contains_ip(network, address):
    network, address = network_of(network).network, needed(address_of(address), f"no IP: {address}")
    return celtypes.BoolType(network.version == address.version and address in network)


def question(answer):
    return lambda address: celtypes.BoolType(answer(address_of(address)))


def is_link_local_multicast(one):
    return one in ipaddress.ip_network({4: "224.0.0.0/24", 6: "ff02::/16"}[one.version])


def is_global_unicast(one):
    known = one.is_unspecified or one.is_loopback or one.is_link_local or one.is_multicast
    return not known and str(one) != "255.255.255.255"


FUNCTIONS["isUnspecified"] = question(lambda one: one.is_unspecified)
FUNCTIONS["isLoopback"] = question(lambda one: one.is_loopback)
FUNCTIONS["isLinkLocalUnicast"] = question(lambda one: one.is_link_local)
FUNCTIONS["isLinkLocalMulticast"] = question(is_link_local_multicast)
FUNCTIONS["isGlobalUnicast"] = question(is_global_unicast)


@function("join")
def join(words, between):
    return celtypes.StringType(str(between).join(str(word) for word in words))


@function("replace")
def replace(text, old, new):
    return celtypes.StringType(str(text).replace(str(old), str(new)))


@function("split")
def split(text, at):
    return celtypes.ListType([celtypes.StringType(part) for part in str(text).split(str(at))])


@function("trim")
def trim(text):
    return celtypes.StringType(str(text).strip())


# The first API server (1.N) that accepts a function in a new rule. That is one version after the one that introduced
# the library: a server accepts only functions that the previous version knows too, so that it can be rolled back. See
# apiserver/pkg/cel/environment/base.go. Rules of CRDs are enabled by default from 1.25.
ALWAYS = 25
SINCE = {
    **dict.fromkeys(["size", "has", "all", "exists", "exists_one", "map", "filter", "int", "string"], ALWAYS),
    **dict.fromkeys(["startsWith", "endsWith", "contains", "matches"], ALWAYS),
    **dict.fromkeys(["split", "join", "replace", "trim", "lowerAscii"], ALWAYS),
    **dict.fromkeys(["isIP", "ip", "family", "isUnspecified", "isLoopback", "isGlobalUnicast"], 31),
    **dict.fromkeys(["isLinkLocalUnicast", "isLinkLocalMulticast"], 31),
    **dict.fromkeys(["isCIDR", "cidr", "masked", "containsIP"], 31),
}

ENVIRONMENT = celpy.Environment()


def parse(expression):
    return ENVIRONMENT.compile(expression)


def evaluate(expression, names):
    """The value of an expression.

    Raises celpy.CELEvalError where it has none."""
    return program_of(expression).evaluate(dict(names))


@functools.cache
def program_of(expression):
    return ENVIRONMENT.program(parse(expression), functions=FUNCTIONS)


def called(expression):
    """The names of the functions and macros that an expression calls."""
    tree = parse(expression)
    found = set()
    for node in tree.iter_subtrees():
        if node.data == "ident_arg" or node.data == "dot_ident_arg":
            found.add(str(node.children[0]))
        elif node.data == "member_dot_arg":
            found.add(str(node.children[1]))
    return found


def since(expression):
    """The first API server, as N of 1.N, that takes the expression.

    Raises KeyError with the name of a function that is not known here."""
    return max([ALWAYS, *(SINCE[name] for name in called(expression))])
