"""The grammar: what may have been written instead of what stands in a source.

A row matches kinds of nodes and gives texts to stand in their place. Rows come in the
order in which their edits are tried and told, the simplest first. To add one: a row in
EXPRESSIONS, as templates or as a function of the site, and a slip in the cases that
only this row undoes.
"""

import ast
import builtins
import itertools
import re

import torch

from ..function.source import names_in
from ..words import N_, _
from .edits import STANDS, Edit

# Functions and methods that are taken for one another.
FAMILIES = """
    sum mean prod amax amin norm logsumexp
    max min
    maximum minimum
    sin cos
    sinh cosh tanh
    sigmoid tanh relu softplus erf softmax log_softmax
    exp log expm1 log1p
    log2 log log10
    sqrt rsqrt square reciprocal
    abs sign sgn
    tril triu
    asin acos
    floor ceil round trunc
    zeros_like ones_like
    real imag
    fft ifft
    rfft irfft
    var std
    argmax argmin
    gt ge
    lt le
    eq ne
    mul div add sub
    mm bmm matmul
    scatter scatter_add
    scatter_ scatter_add_
    index_copy_ index_add_
    expand repeat
    conv1d conv_transpose1d
    conv2d conv_transpose2d
    add_ sub_ mul_ div_ copy_
""".splitlines()
OPERATORS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
ALIKE = "+ - * /", "* @", "& |", "// % /", "< <= > >= == !="
VIEWS = (  # of {0}, along {dim}
    "{0}.conj()",
    "{0}.real",
    "{0}.flip({dim})",
    "{0}.unsqueeze({dim})",
    "{0}.sum({dim})",
    "{0}.mean({dim})",
    "{0}.sum({dim}, keepdim=True)",
    "{0}.mean({dim}, keepdim=True)",
    "{0}.roll(1, {dim})",
    "{0}.roll(-1, {dim})",
    "~{0}",
    "{0}.argsort()",
)
FORMS = (
    "({0} + {0}.mT) / 2",
    "torch.abs({0})",
    "{0} ** 2",
    "{0} ** 0.5",
    "1 / {0}",
    "(1 - {0})",
    "(1 - {0} ** 2)",
    "{0} * (1 - {0})",
    "({0} > 0)",
    *(f"torch.{f}({{0}})" for f in "exp log sign cos sin sigmoid tanh".split()),
)
PASSED_ON = (  # by normalisations and softmaxes; {hand} is a tensor at hand
    "{0} - {0}.mean({dim}, keepdim=True)",
    "{0} - ({0} * {hand}).sum({dim}, keepdim=True)",
    "{0} - {hand} * ({0} * {hand}).sum({dim}, keepdim=True)",
    "{0} - {hand} * ({0} * {hand}).mean({dim}, keepdim=True)",
    "{0} - {0}.mean({dim}, keepdim=True) - {hand} * ({0} * {hand})"
    ".mean({dim}, keepdim=True)",
)
AROUND = {  # with what is at hand
    "{} * {}": torch.mul,
    "{} / {}": torch.div,
    "{} + {}": torch.add,
    "{} - {}": torch.sub,
}
MOST, LONG = 96, 48  # texts at hand; letters of one
FACTORS, LATEST = 20, 6  # names of which a missing term is made; those with a slope
DIMS = 0, -1, 1
SIZE = r"[\d.]+|len\(.*\)|.*\.(numel\(\)|size\(-?\d\)|shape\[-?\d\])"
INPUTS = 8  # whose flags are tried


class Site:
    """A node that may be edited, its text, and what is at hand there: {text: value}."""

    def __init__(self, code, node, hand):
        self.code, self.node, self.hand, self.text = code, node, hand, ast.unparse(node)

    def filled(self, templates):
        """The texts of templates, for each dimension and tensor at hand, if asked."""
        names = [n for n, v in self.hand.items() if kind_of(v) == "number"]
        for t in templates:
            for name in names if "{hand}" in t else [""]:
                for dim in DIMS if "{dim}" in t else [0]:
                    yield t.format(of(self.node), dim=dim, hand=name)


def of(node):
    """The text of a node, in brackets."""
    return f"({ast.unparse(node)})"


def kind_of(value):
    if torch.is_tensor(value):
        return "number" if value.is_floating_point() or value.is_complex() else "index"
    return type(value).__name__


def other_names(site):
    value = site.hand.get(site.text)
    same = [
        n
        for n, v in site.hand.items()
        if kind_of(v) == kind_of(value) and n != site.text
    ]
    shape = getattr(value, "shape", None)
    yield from sorted(same, key=lambda n: getattr(site.hand[n], "shape", None) != shape)


def others_of(one, families):
    """What may be taken for it: the others of its families."""
    own = [some.split() for some in families if one in some.split()]
    return [other for other in dict.fromkeys(sum(own, [])) if other != one]


def other_operators(site):
    match site.node:
        case (
            ast.BinOp(left=a, op=op, right=b)
            | ast.Compare(left=a, ops=[op], comparators=[b])
        ):
            others = others_of(OPERATORS.get(type(op)), ALIKE)
            values = [site.hand.get(ast.unparse(side)) for side in (a, b)]
            if any(torch.is_tensor(v) and v.dim() < 2 for v in values):
                others = [other for other in others if other != "@"]
            if getattr(b, "value", None) == 1:  # a part less says it
                others = [other for other in others if other not in "*/"]
            yield from (f"{of(a)} {other} {of(b)}" for other in others)


def without_a_part(site):
    match site.node:
        case ast.BinOp(left=a, op=op, right=b):
            yield from (of(a), f"-{of(b)}" if isinstance(op, ast.Sub) else of(b))
        case ast.IfExp(body=a, orelse=b):
            yield from (of(a), of(b))
        case (
            ast.Call(
                func=ast.Name() | ast.Attribute(value=ast.Name(id="torch" | "F")),
                args=[a, *_],
            )
            | ast.Call(func=ast.Attribute(value=a))
            | ast.UnaryOp(operand=a)
            | ast.Subscript(value=a)
            | ast.Attribute(value=a, attr="T" | "mT" | "H" | "mH" | "real")
        ):
            if not isinstance(a, ast.Constant):  # -2 is one constant
                yield of(a)


def other_functions(site):
    func, text = site.node.func, ast.unparse(site.node.func)
    name = getattr(func, "attr", getattr(func, "id", ""))
    others = others_of(name, FAMILIES)
    yield from ({func: text.removesuffix(name) + other} for other in others)


def not_in_place(site):
    """A method that changes its tensor, and the one that does not."""
    name = getattr(site.node.func, "attr", "")
    if re.fullmatch(r"[a-z]\w*[a-z0-9]_", name):
        yield {site.node.func: ast.unparse(site.node.func)[:-1]}


def other_constants(site):
    """Of a number with a minus, the whole is one constant."""
    match site.node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=n)):
            n = -n
        case ast.Constant(value=n) if not isinstance(
            site.code.up.get(site.node), ast.UnaryOp
        ):
            pass
        case _:
            return
    if isinstance(n, str):
        yield from other_letters(n)
    elif isinstance(n, bool) or n is None:
        yield str(not n)
    elif isinstance(n, (int, float)):
        near = [
            m for m in (n + 1, n - 1, -n, 2 * n, n / 2, n * n) if type(m) is type(n)
        ]
        written = [m for m in site.code.literals if type(m) in (int, float)]
        names = [name for name, v in site.hand.items() if type(v) in (int, type(n))]
        every = *map(repr, (*near, *written, 0, 1, 2, 3, 0.5)), *names, "None"
        yield from (text for text in dict.fromkeys(every) if text != site.text)


def other_letters(text):
    """Of an einsum: two side by side exchanged, or one in place of another."""
    letters = [k for k, x in enumerate(text) if "->" in text and x.isalpha()]
    for i, j in itertools.pairwise(letters):
        if j == i + 1:
            yield repr(text[:i] + text[j] + text[i] + text[j + 1 :])
    for i, x in itertools.product(letters, dict.fromkeys(text)):
        if x.isalpha():
            yield repr(text[:i] + x + text[i + 1 :])


def exchanged(site):
    """Two that stand side by side."""
    match site.node:
        case ast.BinOp(
            left=a, op=ast.Sub() | ast.Div() | ast.MatMult() | ast.Pow(), right=b
        ):
            pairs = [(a, b)]
        case ast.Tuple(elts=some) | ast.List(elts=some) | ast.Call(args=some):
            alone = ast.Slice, ast.Starred
            values = [e for e in some[:6] if not isinstance(e, alone)]
            pairs = itertools.combinations(values, 2)
        case _:
            return
    yield from ({a: of(b), b: of(a)} for a, b in pairs if of(a) != of(b))


def other_calls(site):
    """As an argument of a function that stands elsewhere, such as a conjugate."""
    calls = [n for n in site.code.parts if isinstance(n, ast.Call)]
    alone = [n for n in calls if len(n.args) == 1 and not n.keywords]
    texts = [ast.unparse(n.func) for n in alone]
    names = [text for text in texts if re.fullmatch(r"(F\.)?\w+", text)]
    names = [name for name in names if not hasattr(builtins, name)]
    yield from (f"{name}({site.text})" for name in dict.fromkeys(names))


def one_off(site):
    """A number by its name, as an exponent or a bound: one less, or more."""
    if type(site.hand.get(site.text)) in (int, float):
        yield from (f"({site.text} - 1)", f"({site.text} + 1)")


def other_flags(site):
    """Which input's gradient is asked for?"""
    if re.fullmatch(r"(any\(|all\()?ctx\.needs_input_grad\[.*\]\)?", site.text):
        yield from (f"ctx.needs_input_grad[{k}]" for k in range(INPUTS))


def other_counts(site):
    """Of elements, or of those that a mask leaves."""
    if re.fullmatch(SIZE, site.text) or type(site.hand.get(site.text)) is int:
        for name, t in sorted(
            site.hand.items(), key=lambda one: one[0] not in site.text
        ):
            if torch.is_tensor(t):
                if ((t == 0) | (t == 1)).all() and t.numel() > 1:  # a mask
                    yield f"{name}.sum()"
                yield from (
                    f"{name}.numel()",
                    *(f"{name}.shape[{d and d - t.dim()}]" for d in range(t.dim())),
                    *(f"{name}.numel() / {name}.shape[{d}]" for d in range(t.dim())),
                )


def other_axes(site):
    """Where a new axis stands among the slices."""
    match site.node:
        case ast.Subscript(value=a, slice=ast.Tuple(elts=elts)):
            parts = [*map(ast.unparse, elts)]
            left = [part for part in parts if part != "None"]
            if len(left) == len(parts) - 1:
                for k in range(len(parts)):
                    new = [*left[:k], "None", *left[k:]]
                    yield from [f"{of(a)}[{', '.join(new)}]"] * (new != parts)


def other_dims(site):
    """Over which dimensions is reduced, and are they kept?"""
    match site.node:
        case ast.Call(
            func=ast.Attribute(
                value=a, attr="sum" | "mean" | "amax" | "amin" | "prod" as name
            )
        ):
            yield f"{of(a)}.{name}()"
            own = f"{ast.unparse(a)}["
            yield from (t for t in gathered(site.hand) if t.startswith(own))
            for dim in DIMS:
                yield f"{of(a)}.{name}({dim}, keepdim=True)"
                yield f"{of(a)}.{name}({dim})"
        case ast.Call(func=ast.Attribute(attr="cumsum", value=a), args=[dim]):
            dim = ast.unparse(dim)
            yield f"{of(a)}.flip({dim}).cumsum({dim}).flip({dim})"


NAME = ast.Name, ast.Attribute
VALUE = *NAME, ast.Call, ast.BinOp, ast.Subscript
FLAGS = [((ast.Subscript, ast.Call), other_flags)]
NOT_IN_PLACE = [(ast.Call, not_in_place)]
EXPRESSIONS = [  # kinds of nodes; templates, or site -> texts or {node: text}
    *FLAGS,
    (NAME, other_names),
    ((ast.BinOp, ast.Compare), other_operators),
    ((*VALUE, ast.UnaryOp, ast.IfExp), without_a_part),
    ((*VALUE, ast.IfExp), ["-{0}"]),
    *NOT_IN_PLACE,
    (ast.Call, other_functions),
    ((*NAME, ast.BinOp), other_calls),
    (NAME, one_off),
    ((ast.Call, ast.Subscript), other_counts),
    ((ast.Constant, ast.UnaryOp), other_constants),
    ((ast.BinOp, ast.Tuple, ast.List, ast.Call), exchanged),
    (ast.Call, other_dims),
    (ast.Subscript, other_axes),
]
LARGER = ("{0} * {hand}",)  # if it broadcasts to what is at hand
MANY = [  # edits, tried later
    (VALUE, ["{0}.mT"]),
    (VALUE, VIEWS),
    (NAME, FORMS),
    (NAME, PASSED_ON),
    (VALUE, LARGER),
    (NAME, other_counts),
]


def edits_of(code, hands, rows):
    """All edits of expressions by these rows; hands: {root: what is at hand there}."""
    others = ast.Tuple, ast.List, ast.Constant
    for kinds, news in rows:
        for node in code.nodes:
            if isinstance(node, kinds) and (
                node in code.values or isinstance(node, others)
            ):
                site = Site(code, node, hands.get(code.root(node), {}))
                for new in news(site) if callable(news) else site.filled(news):
                    yield Edit(
                        code, node, new if isinstance(new, dict) else {node: new}
                    )


def divides(edit, hand):
    """Does it divide by a value that may be 0, and by which nothing else divides?"""
    if isinstance(edit.node, ast.stmt):
        return False
    news = [ast.walk(ast.parse(text, mode="eval")) for text in edit.puts.values()]
    numbers = [name for name, value in hand.items() if not torch.is_tensor(value)]
    safe = {*divisors(edit.code.parts), *numbers}
    new = divisors(itertools.chain(*news)) - safe
    return not all(re.fullmatch(rf"{SIZE}|math\..*", text) for text in new)


def divisors(nodes):
    return {
        ast.unparse(node.right)
        for node in nodes
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
    }


def operands(code, hand):
    """Texts that may multiply something, or be added to it, names first."""
    scope = code.fn.__globals__
    known = {*hand, "torch", "math", *(n for n, v in scope.items() if callable(v))}
    tensors = [n for n, v in hand.items() if torch.is_tensor(v)]
    numbers = [n for n in code.literals if type(n) in (int, float) and abs(n) > 1]
    texts = [*hand, "2", "0.5", "math.log(10)", "math.log(2)", *map(repr, numbers)]
    texts += [f"(1 - {n})" for n, v in hand.items() if isinstance(v, float)]
    for part in code.parts:
        if names_in(part) <= known and len(ast.unparse(part)) < LONG:
            texts.append(of(part))
    texts += gathered(hand)
    dims = [(n, hand[n].dim()) for n in tensors]
    texts += [f"{n}.shape[{d and d - dim}]" for n, dim in dims for d in range(dim)]
    texts += [f"{n}.numel()" for n in tensors]
    texts += [f"{n}.unsqueeze(-1)" for n in tensors]
    compares = [n.comparators for n in code.nodes if isinstance(n, ast.Compare)]
    compared = {ast.unparse(one) for some in compares for one in some}
    bounds = [n for n, v in hand.items() if isinstance(v, float)]
    for node in code.nodes:
        if re.fullmatch("clamp|clip", getattr(getattr(node, "func", None), "attr", "")):
            bounds += map(ast.unparse, node.args)
    bounds = [bound for bound in bounds if bound not in compared]
    masks = [
        f"({form} {bound})"
        for n, bound in itertools.product(tensors, bounds)  # of a clamp
        for form in (f"{n} <=", f"{n} >=", f"{n}.abs() <=")
    ]
    forms = [
        f"({form.format(n)})" for n in tensors if "grad" not in n for form in FORMS
    ]
    return [*list(dict.fromkeys(texts))[:MOST], *masks[:MOST], *forms[:MOST]]


def gathered(hand):
    """The numbers at hand, at indices that are."""
    kinds = [(n, kind_of(v)) for n, v in hand.items() if torch.is_tensor(v)]
    pairs = itertools.product(kinds, repeat=2)
    return [f"{n}[{i}]" for (n, a), (i, b) in pairs if (a, b) == ("number", "index")]


def terms(code, hand):
    """Texts of a term that may be missing in a line: products of what is at hand.

    What is never read comes first, and then what was made last.
    """
    loads = [n for n in code.nodes if isinstance(getattr(n, "ctx", None), ast.Load)]
    read = {*map(ast.unparse, loads)}
    names = [n for n, v in hand.items() if n[0] != "_" and type(v) is not bool]
    names = sorted(reversed(names), key=read.__contains__)[:FACTORS]
    tensors = [n for n in names if torch.is_tensor(hand[n])]
    names += ["2", "0.5"]
    slopes = [form.format(n) for n in tensors[:LATEST] for form in FORMS[5:8]]
    unread = [n for n in tensors if n not in read]
    of_means = itertools.product(unread, tensors)
    yield from (f"{a} / {b}.shape[-1]" for a, b in of_means)
    yield from (f"{a} / {b}" for a in (*names, "1") for b in tensors)
    for a, b in itertools.combinations(names, 2):
        yield from (f"{a} * {b}", f"({a} * {b}).sum(-1)", f"({a} * {b}).sum(0)")
        yield from (f"{a} * {b} / {c}" for c in names if c not in (a, b))
        others = [*names[names.index(b) + 1 :], *slopes]
        yield from (f"{a} * {b} * {c}" for c in others)
    for a, b in itertools.permutations(tensors, 2):
        yield from (f"{a} @ {b}", f"{a}.mT @ {b}", f"{a} @ {b}.mT")


# --- statements -----------------------------------------------------------------------

FLAGS_OF = "needs_input_grad"
ASSIGNED = {"=": "+=", "+=": "= -=", "-=": "+=", "*=": "/= =", "/=": "*="}


def lines_of(code):
    """Lines left out, before one of the last, or of another kind; conditions."""
    for node in (code.tree, *code.nodes):
        for block in (getattr(node, name, None) for name in ("body", "orelse")):
            for k, line in enumerate(block if isinstance(block, list) else ()):
                own = ast.unparse(line)
                for at, new in of_a_line(line, code):
                    before, after = (t.split("\n")[0] for t in (ast.unparse(at), new))
                    said = _(STANDS, new=after, old=before)
                    if new == "pass":
                        said = _("`{line}` were left out", line=before)
                    yield Edit(code, line, {at: new}, said)
                for other in block[max(k - 3, 0) : k][::-1]:  # its neighbour first
                    old = ast.unparse(other)
                    said = N_("`{line}` and `{other}` changed places")
                    if other is block[k - 1]:
                        said = N_("`{line}` came before `{other}`")
                    if "\n" not in old + own:
                        said = _(said, line=own, other=old)
                        yield Edit(code, line, {other: own, line: old}, said)


def of_a_line(line, code):
    """(a node, what takes its place)."""
    match line:
        # Of what is asked for, the index is wrong, not the sense.
        case ast.If(test=test) if FLAGS_OF not in code.text:
            yield test, f"not {of(test)}"
        case (
            ast.Assign(targets=[target], value=value)
            | ast.AugAssign(target=target, value=value)
        ):
            sign = OPERATORS.get(type(getattr(line, "op", None)), "") + "="
            left, right = ast.unparse(target), ast.unparse(value)
            yield line, "pass"
            if sign != "=" and isinstance(target, ast.Name):  # not in place
                yield line, f"{left} = {left} {sign[:-1]} {right}"
            for one, other in itertools.permutations(code.arguments, 2):  # copied
                if (new := re.sub(rf"\b{one}\b", other, right)) != right:
                    yield line, f"{left} {sign} {new}"
            for new in ASSIGNED.get(sign, "").split():
                yield line, f"{left} {new} {right}"
            # Of indices that are repeated, all count.
            if isinstance(target, ast.Subscript):
                t, i = ast.unparse(target.value), ast.unparse(target.slice)
                minus = ast.unparse(ast.UnaryOp(ast.USub(), value))
                added = minus if sign == "-=" else right
                every = i if isinstance(target.slice, ast.Tuple) else f"({i},)"
                yield line, f"{t}.index_add_(0, {i}, {added})"
                yield line, f"{t}.index_put_({every}, {added}, accumulate=True)"
        case ast.For(iter=turns):
            yield turns, f"reversed({ast.unparse(turns)})"
        case ast.Expr():
            yield line, "pass"


# --- what leaves autograd -------------------------------------------------------------


def kept_in_autograd(site):
    match site.node:
        case (
            ast.Call(
                func=ast.Attribute(value=a, attr="detach" | "item" | "numpy" | "tolist")
            )
            | ast.Attribute(value=a, attr="data")
            | ast.Call(
                func=ast.Attribute(attr="Parameter" | "tensor" | "as_tensor"),
                args=[a, *_],
            )
        ):
            yield of(a)
        case ast.Call(func=ast.Attribute(attr="no_grad"), args=[]):
            yield "torch.enable_grad()"


CUTS = [((ast.Call, ast.Attribute), kept_in_autograd)]
