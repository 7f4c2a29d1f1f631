"""The grammar: what may have been written instead of what stands in a source.

A row matches kinds of nodes and gives texts to stand in their place. Rows come in the order in
which their edits are tried and told, the simplest first. To add one: a row here, and one example
in at least two kinds of functions in the tests.
"""

import ast
import itertools
import re
from collections.abc import Callable
from typing import NamedTuple

import torch

from ..report import exact
from .edits import Edit

FAMILIES = [  # functions and methods that are taken for one another
    "sum mean prod amax amin", "max min", "maximum minimum", "sin cos", "sinh cosh tanh",
    "sigmoid tanh relu softplus erf", "exp log expm1 log1p", "exp2 exp", "log2 log log10",
    "sqrt rsqrt square reciprocal", "abs sign sgn", "tril triu", "floor ceil round trunc",
    "zeros_like ones_like", "real imag", "softmax log_softmax sigmoid", "fft ifft", "rfft irfft",
    "var std", "argmax argmin", "gt ge", "lt le", "eq ne", "cumsum flip", "mul div add sub",
    "scatter scatter_add", "scatter_ scatter_add_", "index_copy index_add",
    "index_copy_ index_add_", "gather take_along_dim", "mm bmm matmul", "conv1d conv_transpose1d",
    "conv2d conv_transpose2d", "pow mul", "logsumexp sum", "add_ sub_ mul_ div_", "asin acos",
    "solve solve_ex", "norm sum", "expand repeat", "floor_divide div", "atan atanh",
]  # fmt: skip
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@",
             ast.Pow: "**", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
             ast.FloorDiv: "//", ast.Mod: "%"}  # fmt: skip
ALIKE = "+-*/", "*@", "&|^", "/%", ("//", "%", "/")
COMPARED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
DERIVATIVES = {  # of what forward computes, by its name
    "sin": "torch.cos({})", "cos": "-torch.sin({})", "exp": "torch.exp({})", "log": "1 / ({})",
    "tanh": "(1 - torch.tanh({}) ** 2)", "sqrt": "0.5 / torch.sqrt({})", "abs": "torch.sign({})",
    "sigmoid": "torch.sigmoid({0}) * (1 - torch.sigmoid({0}))", "relu": "(({}) > 0)",
    "softplus": "torch.sigmoid({})", "log1p": "1 / (1 + ({}))", "expm1": "torch.exp({})",
    "square": "2 * ({})", "sinh": "torch.cosh({})", "cosh": "torch.sinh({})",
    "rsqrt": "-0.5 * ({}) ** -1.5", "reciprocal": "-1 / ({}) ** 2", "erf":
    "2 / torch.pi ** 0.5 * torch.exp(-({}) ** 2)", "silu":
    "(torch.sigmoid({0}) * (1 + ({0}) * (1 - torch.sigmoid({0}))))",
}  # fmt: skip
FORMS = "{} ** 2", "torch.sqrt({})", "{} > 0", "1 - {}", "torch.exp({})"
MOST, LONG = 48, 48  # texts at hand; letters of one


class Site:
    """A node that may be edited, its text, and what is at hand there: {text: value}."""

    def __init__(self, code, node, hand):
        self.code, self.node, self.hand = code, node, hand
        self.text, self.up = code.of(node), code.up.get(node)

    def of(self, node):
        text = self.code.of(node)
        atom = isinstance(node, (ast.Name, ast.Call, ast.Subscript, ast.Attribute, ast.Constant))
        return text if atom else f"({text})"

    @property
    def atom(self):
        return self.of(self.node)

    @property
    def value(self):
        return self.hand.get(self.text)

    @property
    def dims(self):
        """The dimensions of its value, as far as that is known; else the usual ones."""
        if torch.is_tensor(self.value):
            return range(self.value.dim())
        return (0, 1, -1) if isinstance(self.node, (ast.Call, ast.BinOp, ast.Name)) else ()


class Row(NamedTuple):
    """what: in words; kinds: of nodes; news: site -> texts, or tuples of puts of several texts."""

    what: str
    kinds: tuple
    news: Callable


# --- expressions ----------------------------------------------------------------------------------


def other_names(site):
    value = site.value
    if value is not None:
        same = [n for n, v in site.hand.items() if n != site.text and kind_of(v) == kind_of(value)]
        shape = getattr(value, "shape", None)
        yield from sorted(same, key=lambda n: getattr(site.hand[n], "shape", None) != shape)


def kind_of(value):
    if torch.is_tensor(value):
        return "number" if value.is_floating_point() or value.is_complex() else "index"
    return type(value).__name__


def other_operators(site):
    a, b, op = site.of(site.node.left), site.of(site.node.right), OPERATORS.get(type(site.node.op))
    for other in {o: None for family in ALIKE if op in family for o in family if o != op}:
        yield f"{a} {other} {b}"


def other_comparisons(site):
    if len(site.node.ops) == 1:
        a, b = site.of(site.node.left), site.of(site.node.comparators[0])
        op = COMPARED.get(type(site.node.ops[0]))
        yield from (f"{a} {other} {b}" for other in COMPARED.values() if op and other != op)


def without_a_part(site):
    match site.node:
        case ast.BinOp(left=a, op=op, right=b):
            yield site.of(a)
            yield f"-{site.of(b)}" if isinstance(op, ast.Sub) else site.of(b)
        case ast.UnaryOp(operand=a) | ast.Attribute(value=a, attr="T" | "mT" | "H" | "mH" | "real"):
            yield site.of(a)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "F" | "np")), args=[a, *_]):
            yield site.of(a)
        case ast.Call(func=ast.Attribute(value=a)):
            yield site.of(a)
        case ast.Call(func=ast.Name(), args=[a, *_]):
            yield site.of(a)
        case ast.IfExp(body=a, orelse=b):
            yield from (site.of(a), site.of(b))
        case ast.Subscript(value=a):
            yield site.of(a)


def negated(site):
    if not isinstance(site.up, (ast.UnaryOp, ast.keyword)) and not is_number(site.node):
        yield f"-{site.atom}"


def other_functions(site):
    func = site.node.func
    name = getattr(func, "attr", getattr(func, "id", ""))
    start, end = site.code.span(func)
    for other in {o: None for family in FAMILIES if name in family.split() for o in family.split()}:
        if other != name:
            yield ((end - len(name.encode()), end, other),)


def other_letters(site):
    """Of an einsum."""
    text = site.node.value
    if not isinstance(text, str) or not re.fullmatch(r"[a-zA-Z., ]+->[a-zA-Z. ]*", text):
        return
    parts, letters = re.split(r"(,|->)", text), sorted(set(re.findall("[a-zA-Z]", text)))
    for k, part in enumerate(parts):
        for i, j in itertools.combinations(range(len(part)), 2) if part.isalpha() else ():
            new = part[:i] + part[j] + part[i + 1 : j] + part[i] + part[j + 1 :]
            yield repr("".join((*parts[:k], new, *parts[k + 1 :])))
        for i, x in itertools.product(range(len(part)), letters) if part.isalpha() else ():
            new = part[:i] + x + part[i + 1 :]
            yield repr("".join((*parts[:k], new, *parts[k + 1 :])))


def other_constants(site):
    n = site.node.value
    if isinstance(n, bool):
        yield str(not n)
    elif isinstance(n, int):
        yield from map(str, dict.fromkeys((n + 1, n - 1, -n, 2 * n, *written(site), 0, 2, 3)))
        yield from ("0.5", "None") if n in (1, 2) else ()
    elif isinstance(n, float):
        values = (-n, 2 * n, n / 2, n * n, 3 * n, n / 3, 4 * n, n / 4, n + 1, n - 1, 10 * n)
        yield from map(repr, dict.fromkeys((*written(site), *values, 1.0, 0.5, 2.0)))
    if isinstance(n, (int, float)) and not isinstance(n, bool):
        yield from (exact(n / f) for f in site.code.factors if n)
        kinds = (int,) if isinstance(n, int) else (int, float)
        yield from (name for name, v in site.hand.items() if type(v) in kinds)


def written(site):
    """The numbers that forward is written with."""
    return [n for n in site.code.literals if type(n) in (int, float) and n != site.node.value]


def other_slices(site):
    a, b, c = (n and site.code.of(n) for n in (site.node.lower, site.node.upper, site.node.step))
    ends = ("", "1", "-1", "2", "-2", *((f"{n} + 1", f"{n} - 1") if (n := a) else ()))
    step = f":{c}" if c else ""
    yield from (f"{x}:{b or ''}{step}" for x in ends if x != (a or ""))
    ends = ("", "-1", "1", "-2", *((f"{n} + 1", f"{n} - 1") if (n := b) else ()))
    yield from (f"{a or ''}:{x}{step}" for x in ends if x != (b or ""))
    yield from ("1:", ":-1", f"{b or ''}:{a or ''}")


def exchanged(site):
    """Two that stand side by side."""
    match site.node:
        case ast.BinOp(left=a, op=ast.Sub() | ast.Div() | ast.MatMult() | ast.Pow(), right=b):
            pairs = [(a, b)]
        case ast.Tuple(elts=some) | ast.List(elts=some) | ast.Call(args=some):
            pairs = itertools.combinations(some[:6], 2)
        case _:
            return
    for a, b in pairs:
        if site.code.of(a) != site.code.of(b):
            yield (*site.code.span(a), site.of(b)), (*site.code.span(b), site.of(a))


def without_one(site):
    """Of several dimensions, all but one, or one more."""
    some = [site.code.of(n) for n in site.node.elts]
    if len(some) > 1 and all(is_whole(n) for n in site.node.elts):
        yield from (f"({', '.join((*some[:k], *some[k + 1 :]))},)" for k in range(len(some)))
    if 0 < len(some) < 4 and all(is_whole(n) for n in site.node.elts):
        yield from (f"({', '.join((*some, str(d)))})" for d in (0, 1, 2, -1) if str(d) not in some)


def is_whole(node):
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and type(node.value) is int


def from_the_other_end(site):
    match site.node:
        case ast.Call(func=ast.Attribute(value=a, attr="cumsum" | "cumprod"), args=[d, *_]):
            d = site.code.of(d)
            torch_s = isinstance(a, ast.Name) and a.id == "torch"
            a, d = (d, site.code.of(site.node.args[1])) if torch_s else (site.of(a), d)
            yield f"{a}.flip({d}).cumsum({d}).flip({d})"


def other_views(site):
    two = not torch.is_tensor(site.value) or site.value.dim() > 1
    if kind_of(site.value) in ("number", "NoneType") and not is_number(site.node):
        yield from (
            f"{site.atom}.{view}" for view in ("mT", "conj()", "real") if two or "m" != view
        )
        yield from (f"{site.atom}.flip({d})" for d in site.dims)
        yield from (f"{site.atom}.unsqueeze({d})" for d in (-1, 0, 1))
        yield from (f"{site.atom}.{kind}({d}{keep})" for d in site.dims
                    for kind in ("sum", "mean") for keep in (", keepdim=True", ""))  # fmt: skip
        yield from (f"{site.atom}.roll({n}, {d})" for d in site.dims for n in (1, -1))
    if kind_of(site.value) == "index":
        yield from (f"~{site.atom}",) if site.value.dtype is torch.bool else ()
        yield from (f"{site.atom}.argsort()",) if site.value.dim() == 1 else ()
        yield from (f"({site.text} - 1)", f"({site.text} + 1)")


def other_powers(site):
    if isinstance(site.value, (int, float)) or kind_of(site.value) in ("number", "NoneType"):
        yield from (
            f"{site.atom} ** 2",
            f"{site.atom} ** 0.5",
            f"1 / {site.atom}",
            f"{site.atom} ** 3",
        )
        yield from (f"(1 - {site.text})", f"torch.exp({site.text})", f"torch.log({site.text})")
        yield from (
            f"torch.{f}({site.text})" for f in ("abs", "sign", "cos", "sin", "sigmoid", "tanh")
        )
    if type(site.value) is int:
        yield from (f"({site.text} - 1)", f"({site.text} + 1)")


def of_a_projection(site):
    """What normalisations and softmaxes pass on."""
    g = site.atom
    for y in (n for n, v in site.hand.items() if torch.is_tensor(v) and v.is_floating_point()):
        for d in (-1, 0, 1):
            yield f"{g} - ({g} * {y}).sum({d}, keepdim=True)"
            yield f"{g} - {y} * ({g} * {y}).sum({d}, keepdim=True)"
            yield f"{g} - {y} * ({g} * {y}).mean({d}, keepdim=True)"
            mean = f"{g}.mean({d}, keepdim=True)"
            yield f"{g} - {mean} - {y} * ({g} * {y}).mean({d}, keepdim=True)"
    yield from (f"{g} - {g}.mean({d}, keepdim=True)" for d in (-1, 0, 1))


def is_number(node):
    return isinstance(node, ast.Constant)


NAME = ast.Name, ast.Attribute
VALUE = *NAME, ast.Call, ast.BinOp, ast.Subscript
EXPRESSIONS = [
    Row("a name for a name", NAME, other_names),
    Row("an operator for an operator", (ast.BinOp,), other_operators),
    Row("a comparison for a comparison", (ast.Compare,), other_comparisons),
    Row("a part left out", (*VALUE, ast.UnaryOp, ast.IfExp), without_a_part),
    Row("a sign", (*VALUE, ast.IfExp), negated),
    Row("a function for a function", (ast.Call,), other_functions),
    Row("a number for a number", (ast.Constant,), other_constants),
    Row("letters of an einsum", (ast.Constant,), other_letters),
    Row("two exchanged", (ast.BinOp, ast.Tuple, ast.List, ast.Call), exchanged),
    Row("a bound of a slice", (ast.Slice,), other_slices),
    Row("a dimension left out, or one more", (ast.Tuple,), without_one),
    Row("from the other end", (ast.Call,), from_the_other_end),
    Row("another view, or a sum", VALUE, other_views),
    Row("another power, or a function", NAME, other_powers),
    Row("what a normalisation passes on", NAME, of_a_projection),
]
AROUND = "{} * {}", "{} / {}", "{} + {}", "{} - {}"  # with what is at hand; foreseen at once


def edits_of(code, hands, rows=EXPRESSIONS):
    """All edits of expressions by these rows; hands: {root: what is at hand there}."""
    for number, row in enumerate(rows):
        for node in code.nodes:
            if isinstance(node, row.kinds) and (node in code.values or not_a_value(node)):
                site = Site(code, node, hands.get(code.root(node), {}))
                for new in row.news(site):
                    puts = new if isinstance(new, tuple) else ((*code.span(node), fit(new, site)),)
                    yield Edit(code, node, puts, row=number)


def not_a_value(node):
    return isinstance(node, (ast.Slice, ast.Tuple, ast.List, ast.Constant))


def fit(new, site):
    """In brackets, where what is around it would tear it apart."""
    inside = ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Subscript, ast.Compare
    if isinstance(site.up, inside) and not re.fullmatch(r"[\w.]+(\([^()]*\))?", new):
        whole = isinstance(site.up, ast.Subscript) and site.up.slice is site.node
        return new if whole else f"({new})"
    return new


def operands(code, hand):
    """Texts by which something may be multiplied, or which may be added: names first."""
    known = {*hand, "torch", "math"}
    names = [
        n for n, v in hand.items() if kind_of(v) in ("number", "int", "float", "bool", "index")
    ]
    tensors = [n for n in names if torch.is_tensor(hand[n])]
    found = dict.fromkeys([*names, "2", "0.5"])
    for part in code.parts:
        if {n.id for n in ast.walk(part) if isinstance(n, ast.Name)} <= known:
            text = ast.unparse(part)
            found |= {f"({text})": None} if len(text) < LONG else {}
            name = getattr(getattr(part, "func", None), "attr", "")
            of = part.func.value if getattr(part, "args", None) == [] else None
            for a in [of or part.args[0]] if name in DERIVATIVES and (of or part.args) else ():
                found[f"({DERIVATIVES[name].format(ast.unparse(a))})"] = None
    found |= {f"{n}.shape[{d}]": None for n in tensors for d in range(hand[n].dim())}
    found |= {f"{n}.numel()": None for n in tensors}
    forms = [f"({form.format(n)})" for n in tensors if "grad" not in n for form in FORMS]
    return [*list(found)[:MOST], *forms[:MOST]]


# --- statements -----------------------------------------------------------------------------------

CHANGED = {"=": ("+=",), "+=": ("=", "-="), "-=": ("+=", "="), "*=": ("/=", "="), "/=": ("*=",)}


def lines_of(code):
    """Lines left out, exchanged with one of the next, or of another kind; conditions."""
    for node in (code.tree, *code.nodes):
        for block in (getattr(node, name, None) for name in ("body", "orelse")):
            for k, line in enumerate(block if isinstance(block, list) else ()):
                yield from of_one_line(code, line)
                yield from in_another_order(code, block, k)


def of_one_line(code, line):
    text, (start, end) = one_head(code, line), code.span(line)
    if isinstance(line, (ast.Assign, ast.AugAssign, ast.Expr)):
        for old, new, at in assignments(code, line):
            puts = ((start + at, start + at + len(old), new),)
            changed = code.of(line)[:at] + new + code.of(line)[at + len(old) :]
            yield Edit(code, line, puts, f"`{changed}` stood in place of `{text}`")
        yield from added_up(code, line)
        yield Edit(code, line, ((start, end, "pass"),), f"`{text}` were left out")
    if isinstance(line, ast.If):
        for always in ("True", "False", f"not ({code.of(line.test)})"):
            said = f"`{always}` stood in place of `{code.of(line.test)}`"
            yield Edit(code, line, ((*code.span(line.test), always),), said)


def assignments(code, line):
    target = line.targets[-1] if isinstance(line, ast.Assign) else getattr(line, "target", None)
    if target is not None:
        rest = code.of(line)[len(code.of(target)) :]
        found = re.match(r"\s*([-+*/]?=)", rest)
        if found and code.of(line).startswith(code.of(target)) and code.of(line).isascii():
            at = len(code.of(target)) + found.start(1)
            yield from ((found[1], new, at) for new in CHANGED[found[1]])


def added_up(code, line):
    """Of indices that are repeated, all count."""
    target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
    if isinstance(target, ast.Subscript) and not isinstance(target.slice, (ast.Slice, ast.Tuple)):
        t, i, v = (code.of(n) for n in (target.value, target.slice, line.value))
        for new in (
            f"{t}.index_add_(0, {i}, {v})",
            f"{t}.index_put_(({i},), {v}, accumulate=True)",
        ):
            said = f"`{new}` stood in place of `{one_head(code, line)}`"
            yield Edit(code, line, ((*code.span(line), new),), said)


def in_another_order(code, block, k):
    for other in block[k + 1 : k + 4]:
        if not isinstance(other, ast.Return) and not isinstance(block[k], ast.Return):
            a, b = block[k], other
            puts = (*code.span(a), code.of(b)), (*code.span(b), code.of(a))
            if all(n.lineno == n.end_lineno for n in (a, b)):
                said = f"`{one_head(code, b)}` came before `{one_head(code, a)}`"
                yield Edit(code, b, puts, said)


def one_head(code, line):
    return code.of(line).split("\n")[0]


# --- what leaves autograd -------------------------------------------------------------------------


def kept_in_autograd(site):
    match site.node:
        case ast.Call(func=ast.Attribute(value=a, attr="detach" | "item" | "numpy" | "tolist")):
            yield site.of(a)
        case ast.Attribute(value=a, attr="data"):
            yield site.of(a)
        case ast.Call(func=ast.Attribute(attr="Parameter" | "tensor" | "as_tensor"), args=[a, *_]):
            yield site.of(a)
        case ast.Call(func=ast.Attribute(attr="no_grad"), args=[]):
            yield "torch.enable_grad()"
        case ast.Call(func=ast.Attribute(attr="register_hook"), args=[_]):
            yield "None"
        case ast.Call(func=ast.Attribute(attr="grad"), keywords=given) if "autograd" in site.text:
            if not any(k.arg == "create_graph" for k in given):
                yield f"{site.text[:-1].rstrip().rstrip(',')}, create_graph=True)"


CUTS = [Row("what leaves autograd", (ast.Call, ast.Attribute), kept_in_autograd)]
DETACHED = [Row("taken for a constant", VALUE, lambda site: [f"{site.atom}.detach()"])]
NUMBERS = [row.what for row in EXPRESSIONS].index("a number for a number")
