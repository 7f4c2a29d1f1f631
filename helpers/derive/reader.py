"""A forward, read as Python reads it, one statement after the other.

What has no method here is refused by its name, so that nothing decides unseen.
"""

import ast
import builtins
import inspect
import operator

import torch
from torch.overrides import resolve_name

from .composites import COMPOSITES
from .rules import Refused
from .source import definition
from .tape import Known, Node, Shape, Tape, constant, flat, literal, plain, text

OPERATORS = {
    ast.Add: ("add", "+"),
    ast.Sub: ("sub", "-"),
    ast.Mult: ("mul", "*"),
    ast.Div: ("truediv", "/"),
    ast.FloorDiv: ("floordiv", "//"),
    ast.Mod: ("mod", "%"),
    ast.Pow: ("pow", "**"),
    ast.MatMult: ("matmul", "@"),
    ast.BitAnd: ("and_", "&"),
    ast.BitOr: ("or_", "|"),
    ast.BitXor: ("xor", "^"),
    ast.Gt: ("gt", ">"),
    ast.Lt: ("lt", "<"),
    ast.GtE: ("ge", ">="),
    ast.LtE: ("le", "<="),
    ast.Eq: ("eq", "=="),
    ast.NotEq: ("ne", "!="),
}
OF_NUMBERS = abs, bool, float, int, round
UNARY = {ast.USub: "neg", ast.Invert: "invert"}
ZERO = constant(0)
SEQUENCES = tuple, list, Shape


class Once(list):
    """What Python goes through once, where the list is there for more."""


def read(function, arguments, at_zero):
    """The tape of `function` with `arguments`: tensors and Python values, by name."""
    tree = definition(function)[0]
    tape = Tape(function, tree, at_zero)
    given = {n: tape.argument(n, v) for n, v in arguments.items()}
    reader = Reader(tape, given, tape.globals)
    try:
        result = reader.run(tree.body)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"line {tape.line}: {error}") from error
    tape.end(result, reader.locals)
    return tape


class Reader:
    """`locals` has the function's variables: Nodes, Knowns, and tuples and lists of them."""

    def __init__(self, tape, arguments, scope):
        self.tape, self.locals, self.globals = tape, dict(arguments), scope

    def refuse(self, name):
        self.tape.unknown(name)

    def visit(self, tree):
        visit = getattr(self, f"visit_{type(tree).__name__.lower()}", None)
        return (visit or self.unknown)(tree)

    def unknown(self, tree):
        self.refuse(ast.unparse(tree).split()[0].strip(":("))

    # Statements, of which one may return

    def run(self, statements):
        for tree in statements:
            self.tape.line = tree.lineno
            result = self.visit(tree)
            if result is not None:
                return result
        return None

    def visit_expr(self, tree):
        self.visit(tree.value)

    def visit_pass(self, tree):
        pass

    def visit_return(self, tree):
        return self.visit(tree.value or ast.Constant(None))

    def visit_raise(self, tree):
        self.tape.refuse(f"the example meets `{ast.unparse(tree)}`")

    def visit_assert(self, tree):
        if not self.truth(self.visit(tree.test)):
            self.visit_raise(tree)

    def visit_assign(self, tree):
        value = self.visit(tree.value)
        for target in tree.targets:
            self.bind(target, value)

    def visit_annassign(self, tree):
        if tree.value:
            self.bind(tree.target, self.visit(tree.value))

    def visit_augassign(self, tree):
        before, more = self.visit(tree.target), self.visit(tree.value)
        if isinstance(before, Node):
            self.tape.refuse(f"`{ast.unparse(tree)}` changes a tensor in place")
        if isinstance(before, list):  # which may have other names
            if not isinstance(tree.op, ast.Add):
                self.tape.refuse(f"`{ast.unparse(tree)}` changes a list in place")
            before.extend(self.items(more))
        else:
            self.bind(tree.target, self.binary(tree.op, before, more))

    def visit_if(self, tree):
        return self.run(tree.body if self.truth(self.visit(tree.test)) else tree.orelse)

    def visit_for(self, tree):
        for value in self.rounds(self.items(self.visit(tree.iter))):
            self.bind(tree.target, value)
            result = self.run(tree.body)
            if result is not None:
                return result
        return self.run(tree.orelse)

    def rounds(self, values):
        if len(values) > 8:
            self.tape.refuse("a loop of more than 8 rounds")
        return values

    def bind(self, target, value):
        if isinstance(target, ast.Name):
            self.locals[target.id] = self.tape.named(self.kept(value), target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            values, parts = [*self.items(value)], target.elts
            for k, part in enumerate(parts):
                if isinstance(part, ast.Starred):
                    end = len(values) - len(parts) + k + 1
                    values[k:end] = [values[k:end]]
            for part, one in zip(parts, values, strict=True):
                self.bind(part.value if isinstance(part, ast.Starred) else part, one)
        else:
            self.tape.refuse(f"`{ast.unparse(target)} =` changes it in place")

    def kept(self, value):
        if isinstance(value, Once):
            self.tape.refuse("an iterator that is kept: make a list of it")
        return value

    # Expressions

    def several(self, trees):
        found = []
        for tree in trees:
            if isinstance(tree, ast.Starred):
                found += self.items(self.visit(tree.value))
            else:
                found.append(self.visit(tree))
        return found

    def items(self, value):
        if isinstance(value, Shape):
            return value.elements()
        if isinstance(value, Node):
            return self.step("unbind", torch.Tensor.unbind, value)
        if not isinstance(value, (tuple, list)):
            self.refuse(text(value))
        return value

    def step(self, name, function, *arguments):
        return self.tape.step(f"torch.Tensor.{name}", function, arguments, {})

    def truth(self, value):
        if isinstance(value, Node):
            self.tape.refuse("a condition on a tensor's numbers")
        if isinstance(value, SEQUENCES):
            return bool(self.items(value))
        if literal(value) and not value.unwritten:
            return bool(value.value)
        return self.tape.known(value.value != 0, f"({value.text} != 0)", value).value

    def visit_constant(self, tree):
        return constant(tree.value)

    def visit_tuple(self, tree):
        return tuple(self.visit_list(tree))

    def visit_list(self, tree):
        return [*map(self.kept, self.several(tree.elts))]

    def visit_name(self, tree):
        if tree.id in self.locals:
            return self.locals[tree.id]
        if tree.id not in self.globals:
            return getattr(builtins, tree.id)
        value = self.globals[tree.id]
        if type(value) is float:
            return Known(value, tree.id)
        return constant(value) if isinstance(value, (bool, int, str)) else value

    def visit_attribute(self, tree):
        of, name = self.visit(tree.value), tree.attr
        if inspect.ismodule(of):
            found = getattr(of, name)
            known = not callable(found) and not inspect.ismodule(found)
            return Known(found, ast.unparse(tree)) if known else found
        if isinstance(of, Node) and name in ("T", "mT"):
            return self.step(name, lambda x: getattr(x, name), of)
        if isinstance(of, Node) and name in ("shape", "ndim", "dtype", "device"):
            return self.tape.attribute(of, name)
        if isinstance(of, tuple) and name in ("values", "indices"):  # of max and min
            return of[name == "indices"]
        if isinstance(of, Known) and isinstance(of.value, torch.finfo):
            return Known(getattr(of.value, name), f"{of.text}.{name}")
        return self.refuse(name)

    def visit_subscript(self, tree):
        of, index = self.visit(tree.value), self.visit(tree.slice)
        if isinstance(of, Node):
            for one in one_by_one(index):
                of = self.step("__getitem__", operator.getitem, of, one)
            return of
        if not isinstance(of, SEQUENCES):
            self.unknown(tree)
        if isinstance(of, Shape):
            return of[index]
        self.tape.pin(index)
        return of[plain(index)]

    def visit_slice(self, tree):
        bounds = tree.lower, tree.upper, tree.step
        return slice(*(bound and self.visit(bound) for bound in bounds))

    def visit_ifexp(self, tree):
        holds = self.truth(self.visit(tree.test))
        return self.visit(tree.body if holds else tree.orelse)

    def visit_boolop(self, tree):
        *first, last = tree.values
        for part in first:
            value = self.visit(part)
            if self.truth(value) == isinstance(tree.op, ast.Or):
                return value
        return self.visit(last)

    def visit_unaryop(self, tree):
        value = self.visit(tree.operand)
        if isinstance(tree.op, ast.Not):
            return constant(not self.truth(value))
        if isinstance(value, Node) and type(tree.op) in UNARY:
            name = UNARY[type(tree.op)]
            return self.step(f"__{name}__", getattr(operator, name), value)
        if not isinstance(value, Known) or not isinstance(tree.op, ast.USub):
            self.unknown(tree)
        written = repr(-value.value) if literal(value) else f"(-{value.text})"
        return self.tape.known(-value.value, written, value)

    def visit_binop(self, tree):
        return self.binary(tree.op, self.visit(tree.left), self.visit(tree.right))

    def binary(self, op, *terms):
        name, sign = OPERATORS.get(type(op)) or self.refuse(type(op).__name__)
        function = getattr(operator, name)
        a, b = (t.elements() if isinstance(t, Shape) else t for t in terms)
        if isinstance(a, Node) or isinstance(b, Node):
            return self.step(f"__{name.strip('_')}__", function, a, b)
        is_list = [isinstance(term, (tuple, list)) for term in (a, b)]
        if not all(isinstance(term, (Known, tuple, list)) for term in (a, b)):
            self.refuse(sign)
        if any(is_list) and isinstance(op, ast.Add):
            return a + b
        if any(is_list) and isinstance(op, ast.Mult):
            self.tape.pin(a if is_list[1] else b)
            return a * plain(b) if is_list[0] else plain(a) * b
        first = f"({text(a)})" if text(a)[0] == "-" else text(a)  # -1.5 ** 2
        written = f"({first} {sign} {text(b)})"
        value, divided = function(plain(a), plain(b)), sign in ("//", "%")
        return self.tape.known(value, written, a, b, divided=divided)

    def visit_compare(self, tree):
        left, result = self.visit(tree.left), None
        for op, right in zip(tree.ops, tree.comparators, strict=True):
            if result is not None and not self.truth(result):
                break
            right = self.visit(right)
            result, left = self.compare(op, left, right), right
        return result

    def compare(self, op, a, b):
        if isinstance(op, (ast.Is, ast.IsNot)):
            if not isinstance(b, Known) or not isinstance(b.value, (bool, type(None))):
                self.tape.refuse("`is` of two values, which may be one elsewhere")
            same = isinstance(a, Known) and a.value is b.value
            return constant(same == isinstance(op, ast.Is))
        if isinstance(op, (ast.In, ast.NotIn)):
            self.refuse("in")
        return self.binary(op, a, b)

    def visit_listcomp(self, tree):
        found, before = [], dict(self.locals)

        def rounds(generators):
            if not generators:
                found.append(self.kept(self.visit(tree.elt)))
                return
            first, *others = generators
            for value in self.rounds(self.items(self.visit(first.iter))):
                self.bind(first.target, value)
                if all(self.truth(self.visit(test)) for test in first.ifs):
                    rounds(others)

        rounds(tree.generators)
        self.locals = before
        return found

    def visit_generatorexp(self, tree):
        return Once(self.visit_listcomp(tree))

    def visit_call(self, tree):
        given = self.several(tree.args)
        named = {pair.arg: self.visit(pair.value) for pair in tree.keywords}
        if None in named:
            self.refuse("**")
        if isinstance(tree.func, ast.Attribute):
            of = self.visit(tree.func.value)
            if not inspect.ismodule(of):
                return self.method(of, tree.func.attr, given, named)
        function = self.visit(tree.func)
        name = getattr(function, "__name__", "")
        if function is abs and isinstance(given[0], Node):
            return self.step("abs", torch.abs, *given)
        if function is torch.finfo:
            return Known(torch.finfo(plain(given[0])), f"torch.finfo({text(given[0])})")
        is_math = getattr(function, "__module__", "") == "math"
        if (is_math or function in OF_NUMBERS) and not named:
            return self.of_numbers(function, "math." * is_math + name, given)
        own = getattr(self, f"call_{name}", None)
        if own and function is getattr(builtins, name, None) and not named:
            return own(*given)
        composite = self.composite(name, given, named)
        if composite and (composite is function or resolve_name(function)):
            return self.inlined(composite, given, named)
        called = (resolve_name(function) or self.refuse(name)).replace("spmm", "mm")
        return self.tape.step(called, function, given, named)

    def composite(self, name, given, named):
        """Is it of several steps? `max` and `min` of two tensors are not."""
        more = [*given[1:], *named.values()]
        of_two = any(isinstance(value, Node) for value in more)
        return None if of_two and name in ("max", "min") else COMPOSITES.get(name)

    def inlined(self, function, given, named):
        """What a plain function returns, read as if it stood in this line."""
        bound = inspect.signature(function).bind(*given, **named)
        defaults = inspect.signature(function).parameters.items()
        values = {n: constant(p.default) for n, p in defaults} | bound.arguments
        body = ast.parse(inspect.getsource(function)).body[0].body
        for tree in body:
            for part in ast.walk(tree):
                part.lineno = self.tape.line
        return Reader(self.tape, values, function.__globals__).run(body)

    def method(self, of, name, given, named):
        if isinstance(of, Node) and name in ("dim", "size", "numel"):
            return self.tape.attribute(of, name, *given, *named.values())
        if isinstance(of, Node):
            if composite := self.composite(name, [of, *given], named):
                return self.inlined(composite, [of, *given], named)
            function = getattr(torch.Tensor, name)
            return self.tape.step(f"torch.Tensor.{name}", function, (of, *given), named)
        if isinstance(of, list) and name == "append":
            of.extend(map(self.kept, given))
            return constant(None)
        return self.refuse(name)

    def of_numbers(self, function, name, given):
        given = [v.elements() if isinstance(v, Shape) else v for v in given]
        value = function(*plain(given))
        written = f"{name}({', '.join(map(text, given))})"
        if type(value) is int and any(isinstance(n.value, float) for n in flat(given)):
            self.tape.pin(*given)  # what is rounded is the same for many
        return self.tape.known(value, written, *given)

    def call_max(self, *values):
        return self.extreme(ast.Gt(), values)

    def call_min(self, *values):
        return self.extreme(ast.Lt(), values)

    def extreme(self, op, values):
        """One of them, with a guard on which: a size may be that of what it is compared with."""
        most, *others = self.items(values[0]) if len(values) == 1 else values
        for value in others:
            most = value if self.truth(self.compare(op, value, most)) else most
        return most

    def call_range(self, *bounds):
        self.tape.pin(*bounds)
        return [constant(k) for k in self.rounds(range(*plain(bounds)))]

    def call_len(self, of):
        if isinstance(of, Shape):
            return self.tape.attribute(of.node, "ndim")
        if isinstance(of, Node):
            return self.tape.attribute(of, "size", constant(0))
        return constant(len(self.items(of)))

    def call_sum(self, values, total=ZERO):
        for value in self.items(values):
            total = self.binary(ast.Add(), total, value)
        return total

    def call_zip(self, *several):
        return Once(zip(*map(self.items, several), strict=False))

    def call_enumerate(self, values, start=ZERO):
        self.tape.pin(start)
        pairs = enumerate(self.items(values), plain(start))
        return Once((constant(k), value) for k, value in pairs)

    def call_reversed(self, values):
        return Once(self.items(values)[::-1])

    def call_list(self, values):
        return [*self.items(values)]

    def call_tuple(self, values):
        return (*self.items(values),)


def one_by_one(index):
    """The same as indices that do one thing each, the last first; those of tensors as they are."""
    parts = index if isinstance(index, tuple) else (index,)
    plain_parts = [
        part if isinstance(part, slice) else plain(part, str) for part in parts
    ]
    acts = [k for k, part in enumerate(plain_parts) if part not in (..., slice(None))]
    if len(acts) < 2 or any(isinstance(part, Node) for part in parts):
        return [index]
    middle, found = (plain_parts.index(...) if ... in plain_parts else len(parts)), []
    for k in reversed(acts):
        before = (slice(None),) * sum(part is not None for part in plain_parts[:k])
        after = (slice(None),) * sum(
            type(part) is not int for part in plain_parts[k + 1 :]
        )
        found.append((*before, parts[k]) if k < middle else (..., parts[k], *after))
    return found
