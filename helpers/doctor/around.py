"""Edits that put a call or an operation around what stands in a source: foreseen, many at once."""

import ast
import contextlib
import functools

import torch

from .edits import bracketed, parsed
from .raised import forgiving

LINEAR = {  # functions and methods of PyTorch that are linear in each tensor
    "sum", "mean", "reshape", "view", "permute", "transpose", "unsqueeze", "squeeze", "expand",
    "expand_as", "flip", "roll", "cumsum", "diag", "contiguous", "clone", "movedim", "gather",
    "index_select", "flatten", "unflatten", "repeat", "diagonal", "tril", "triu", "neg", "t",
    "stack", "cat", "einsum", "matmul", "mm", "bmm", "pad", "outer", "dot", "index_add", "double",
    "scatter_add", "unbind", "diag_embed", "masked_fill", "new_tensor", "mul", "add", "sub",
}  # fmt: skip


class Around:
    """An edit that puts a template around what stands somewhere, with a name: parsed if asked.

    rare: is it to be tried only where it is foreseen to mend?
    plain: is it around a name that is all that is assigned or returned?
    """

    said = None

    def __init__(self, slot, template, name, rare=False, plain=False):
        (self.owner, self.key, self.node), self.template, self.name = slot, template, name
        self.rare, self.plain = rare, plain

    @functools.cached_property
    def puts(self):
        new = parsed(self.template.format(bracketed(self.node), self.name))
        return [(self.owner, self.key, new)]

    def made(self, scope, _, value, variables):
        """What it makes of this value; scope: what is known around these variables, too."""
        other = eval(code_of(self.name), {**scope, **variables}) if self.name else None
        return written(self.template)(value, other)


REDUCING = {"sum", "mean", "einsum", "matmul", "mm", "bmm", "dot", "index_add", "gather"}


def is_rare(edit):
    return isinstance(edit, Around) and edit.rare


def way_up(source, node, root):
    """(part, what it is part of), from this one to the whole expression."""
    while node is not root:
        yield node, source.up[node][2]
        node = source.up[node][2]


def is_linear_in(source, node, root):
    """Does the value of an expression depend on that of this part of it linearly, plainly seen?"""
    for part, parent in way_up(source, node, root):
        match parent:
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.MatMult()):
                pass
            case ast.BinOp(left=left, op=ast.Div()) if left is part:
                pass
            case ast.UnaryOp(op=ast.USub()) | ast.Tuple() | ast.List():
                pass
            case ast.Subscript(value=value) if value is part:
                pass
            case ast.Attribute(attr="T" | "mT"):
                pass
            case ast.Attribute(attr=name) if name in LINEAR:
                pass
            case ast.Call(func=ast.Attribute(attr=name)) if name in LINEAR:
                pass
            case _:
                return False
    return True


def is_reduced_in(source, node, root):
    """Has this part perhaps more elements than the whole?"""
    return any(getattr(parent, "attr", "") in REDUCING
               or isinstance(getattr(parent, "op", None), ast.MatMult)
               for _, parent in way_up(source, node, root))  # fmt: skip


@functools.cache
def written(template):
    """The function of a value and of another that a template writes."""
    return eval(f"lambda a, b: {template.format('a', 'b')}", {"torch": torch})


def function_of(template):
    """The same, where masks are numbers."""
    return written(template.replace("~{1}", "(1 - {1})"))


@functools.lru_cache(1000)
def code_of(text):
    return compile(text, "<edited>", "eval")


class Foreseen:
    """What each edit around one part of an expression changes; in a few projections, all turns.

    keys: see `key_of`; names: {text: number} of the second operands
    """

    def __init__(self, keys, names, part):
        self.keys, self.names, self.part, self.turns = keys, names, part, 0
        self.found, self.shapes = {}, {}

    def see(self, value, slope, others):
        """value: what stands there in this turn; slope: (probes, elements); others: Operands."""
        self.turns += 1
        for template, name in self.keys:
            if self.shapes.get((template, name), ()) is None:
                continue  # it has raised already
            if name:
                other, rows = others.values[self.names[name]], value.detach()
                known = other is not None
            else:
                other, rows, known = others.rows(value), precise(value), True
            made = None
            with contextlib.suppress(RuntimeError, IndexError, TypeError):
                made = function_of(template)(rows, other) if known else None
            self.add((template, name), made, value, slope)

    def add(self, key, made, value, slope):
        self.shapes[key] = None if made is None else made.shape
        before = self.found.get(key, (0, True) if self.turns == 1 else None)
        self.found[key] = None
        many = is_of_many(key[0])
        if before and made is not None and made.shape[many:] == value.shape:
            if made.is_floating_point() or made.is_complex() and value.is_complex():
                moves = precise(made.to(precise(value)) - precise(value))
                moves = torch.view_as_real(moves) if moves.is_complex() else moves
                moves = moves.reshape(-1, slope.shape[1])
                idle = (moves == 0).all(1)
                self.found[key] = before[0] + moves @ slope.T, before[1] & idle

    def of(self, edit):
        """(what it changes, does it make nothing else there?), or None: nobody knows."""
        found = self.found.get(key_of(edit.template, edit.name))
        k = self.names[edit.name] if is_of_many(edit.template) else 0
        if not found or found[0][k].isnan().any():
            return None
        return found[0][k], bool(found[1][k])

    def lacks(self, edit, others):
        """Can it not be made there, or has what it makes no place? A sum may be taken over it."""
        key = key_of(edit.template, edit.name)
        if is_of_many(edit.template):
            shape = others.shapes[self.names[edit.name]]
        elif is_of_one(edit.template) and others.values[self.names[edit.name]] is not None:
            shape = self.shapes[key]
        else:
            return False
        return shape is None or not (
            self.part.is_reduced or is_spread(shape, self.part.place.shape)
        )


def is_of_many(template):
    """Of two operands: of many second ones, stacked, the same in one call?"""
    return "{1}" in template and not any(sign in template for sign in ("@", "gather", "["))


def is_of_one(template):
    """Of two operands, of one second one in a call?"""
    return "{1}" in template and not is_of_many(template)


def key_of(template, name):
    return template, name if is_of_one(template) else ""


class Operands:
    """What these expressions are in some turn: numbers and tensors, or None."""

    def __init__(self, codes, scope):
        self.values, self.shapes, self.stacks = [], [], {}
        for code in codes:
            value = None
            with forgiving():
                value = eval(code, scope)
            if isinstance(value, (bool, int, float)):
                value = torch.tensor(value)
            found = isinstance(value, torch.Tensor)
            self.values.append(value.detach() if found else None)
            self.shapes.append(value.shape if found else None)

    def rows(self, like):
        """One a row, of the shape of another value; or nan."""
        key = like.shape, like.is_complex()
        if key not in self.stacks:
            rows = precise(like).new_full((len(self.values), *like.shape), torch.nan)
            for row, value, shape in zip(rows, self.values, self.shapes, strict=True):
                if shape is not None and is_spread(shape, like.shape):
                    if like.is_complex() or not value.is_complex():
                        row.copy_(value)
            self.stacks[key] = rows
        return self.stacks[key]


def precise(value):
    return value.detach().to(torch.complex128 if value.is_complex() else torch.float64)


def is_spread(shape, whole):
    sizes = zip(shape[::-1], whole[::-1], strict=False)
    return len(shape) <= len(whole) and all(n in (1, m) for n, m in sizes)
