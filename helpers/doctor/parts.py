"""The expressions of a backward that are watched, and the parts of them."""

import ast
from typing import NamedTuple

from .edits import parsed
from .source import at

PROBE = "what_the_doctor_probes"


class Rank(NamedTuple):
    """What is less comes first.

    is_shared: do right gradients depend on it? unlike: 0 for what changes as much as is to change,
    1 for what changes other things; is_part: is it no name that is all that is assigned?
    """

    is_shared: bool
    unlike: float
    is_part: bool = True


CHANCE, UNKNOWN = Rank(False, 0.2), Rank(False, 0.3)


class Place:
    """An expression that is assigned or returned; slopes: of the projections, each time."""

    def __init__(self, owner, key):
        self.owner, self.key, self.nodes = owner, key, set(ast.walk(at(owner, key)))
        self.leaves, self.slopes, self.times, self.is_exact = [], [], 0, False
        self.place, self.shape, self.is_reduced, self.is_shared = self, None, True, False

    @property
    def is_recorded(self):
        return 0 < len(self.slopes) == self.times


class Part(Place):
    """A part of what is assigned or returned, on which all of it depends linearly."""

    def __init__(self, owner, key, place):
        super().__init__(owner, key)
        self.place = place


def probed(number, owner, key):
    """What puts a call around what stands there: of a probe, with this number and all variables."""
    call = parsed(f"{PROBE}({number}, 0, locals())")
    call.args[1] = at(owner, key)
    return owner, key, call


def handed_in(nodes):
    """(owner, key) of what is handed to a method that is called for what it does."""
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(), args=args)):
                yield from ((args, k) for k in range(len(args)))
