"""The edits of one expression, or of one line, each of which undoes one slip of the pen."""

import ast
import itertools
import re
from typing import NamedTuple

Add, Sub, Mult, Div, MatMult = ast.Add, ast.Sub, ast.Mult, ast.Div, ast.MatMult
OPERATORS = {
    Add: (Sub, Mult), Sub: (Add,), Mult: (Div, MatMult, Add), Div: (Mult,), MatMult: (Mult,),
    ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip
ORDERS, EQUAL = (ast.Lt, ast.LtE, ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)
COMPARISONS = ORDERS + EQUAL
REDUCTIONS = {"sum", "mean", "amax", "amin", "logsumexp", "prod", "var", "std", "norm"}
ALIKE = [  # what is taken for each other
    set(names.split())
    for names in (
        "sum mean amax amin prod cumsum logsumexp", "tril triu", "sin cos tan", "sinh cosh tanh",
        "exp expm1", "log log1p log2 digamma lgamma", "sigmoid tanh softmax", "min max amin amax",
        "minimum maximum", "zeros_like ones_like", "repeat repeat_interleave tile expand",
        "argmax argmin argsort", "floor ceil round trunc", "sqrt rsqrt square",
        "scatter_add_ add_", "index_add index_select", "gt ge lt le", "real imag",
        "rfft irfft fft ifft", "fft2 ifft2 rfft2 irfft2", "asin acos atan", "mm matmul mul",
        "div mul", "add sub", "conv1d conv_transpose1d", "conv2d conv_transpose2d",
        "unbind split chunk", "gather scatter take_along_dim", "abs square sign",
        "view reshape", "eye ones zeros",
    )
]  # fmt: skip
SCATTERED = [("scatter", "scatter_add"), ("scatter_", "scatter_add_"), ("index_copy", "index_add"),
             ("index_copy_", "index_add_")]  # fmt: skip
MODULES = "torch", "F", "math"
WITHIN = "nn", "functional", "fft", "linalg", "special"  # as `torch.nn.functional`


class Edit(NamedTuple):
    """What is put where, as `Source.edited` takes it; the node that changes; words, or None."""

    puts: list
    node: ast.AST
    said: str | None = None


def parsed(text):
    return ast.parse(text, mode="eval").body


def is_module(node):
    """Does it hold functions, and is no tensor?"""
    if isinstance(node, ast.Attribute):
        return node.attr in WITHIN and is_module(node.value)
    return isinstance(node, ast.Name) and node.id in MODULES


def bracketed(node):
    text = ast.unparse(node)
    plain = isinstance(node, (ast.Name, ast.Call, ast.Attribute, ast.Subscript, ast.Constant))
    return text if plain else f"({text})"


def operators(node):
    match node:
        case ast.BinOp(left=a, op=op, right=b):
            for other in OPERATORS.get(type(op), ()):
                if other not in (Mult, Div) or ast.unparse(b) != "1":
                    yield ast.BinOp(a, other(), b)
            if not isinstance(op, (Add, Mult)):
                yield ast.BinOp(b, op, a)
            if isinstance(op, MatMult) and isinstance(a, ast.BinOp) and isinstance(a.op, MatMult):
                yield ast.BinOp(ast.BinOp(b, op, a.right), op, a.left)  # from the other end
            if isinstance(op, ast.FloorDiv):  # rounded up
                yield negated(ast.BinOp(negated(a), op, b))
            yield from (a, b)
            yield from of_each(a, op, b)
        case ast.UnaryOp(operand=a):
            yield a
        case ast.BoolOp(op=op, values=values):
            yield from (ast.BoolOp(other(), values) for other in OPERATORS[type(op)])
            yield from values
        case ast.Compare(left=a, ops=[op], comparators=b) if isinstance(op, COMPARISONS):
            exact = isinstance(op, EQUAL) or type(getattr(b[0], "value", None)) is int
            for other in COMPARISONS if exact else ORDERS:  # no real number equals another
                if not isinstance(op, other):
                    yield ast.Compare(a, [other()], b)
            if not ast.unparse(b[0]).startswith("-"):  # below which no magnitude is
                yield ast.Compare(parsed(f"{bracketed(a)}.abs()"), [op], b)
        case ast.IfExp(body=a, orelse=b):
            yield from (a, b)


def of_each(a, op, b):
    """Of n times each n-th: the sum of all n."""
    match (a, op, b):
        case (ast.Constant(value=n), ast.Mult(), ast.Subscript(value=of, slice=index)) | (
            ast.Subscript(value=of, slice=index),
            ast.Mult(),
            ast.Constant(value=n),
        ):
            text = ast.unparse(index).removeprefix("(").removesuffix(")")
            if type(n) is int and 1 < n < 5 and len(re.findall(rf"\b0?::{n}\b", text)) == 1:
                texts = [re.sub(rf"0?::{n}\b", f"{k}::{n}", text) for k in range(n)]
                yield parsed(" + ".join(f"{bracketed(of)}[{text}]" for text in texts))


def with_other_sums(node):
    """A sum over one dimension, with or without that over another."""
    match node:
        case ast.Call(func=ast.Attribute(attr="sum") as method, args=[dim], keywords=[]):
            for d, op in itertools.product((-1, -2, 0, 1), (Sub(), Add())):
                if ast.unparse(dim) != str(d):
                    yield ast.BinOp(node, op, ast.Call(method, [parsed(str(d))], []))


def at_end(node, method):
    return ast.Attribute(node, method.attr, ast.Load())


def numbers(node):
    match node:
        case ast.Constant(value=bool(old)):
            news = [not old]
        case ast.Constant(value=int(old)):
            half = [old // 2] if old > 3 and old % 2 == 0 else []
            news = [old + 1, old - 1, -old, 0, 1, 2, 3, 0.5, *half, 2 * old, old + 2]
        case ast.Constant(value=float(old)):
            inverse = 1 / old if old else 1.0
            news = [-old, old / 2, 2 * old, 1 - old, inverse, 1.0, old + 1, old - 1]
        case ast.Constant(value=str(old)) if "->" in old:
            news = equations(old)
        case _:
            return
    yield from (parsed(repr(new)) for new in dict.fromkeys(news) if new != old)


def equations(old):
    """Of einsum: two letters of one term are exchanged."""
    *terms, out = old.replace(" ", "").replace("->", ",").split(",")
    for t, term in enumerate([*terms, out]):
        for i, j in itertools.combinations(range(len(term)), 2):
            new = [*terms, out]
            new[t] = term[:i] + term[j] + term[i + 1 : j] + term[i] + term[j + 1 :]
            yield ",".join(new[:-1]) + "->" + new[-1]


def calls(node):
    if not isinstance(node, ast.Call):
        return
    func, args, keywords = node.func, node.args, node.keywords
    name = func.attr if isinstance(func, ast.Attribute) else ""
    method = name and not is_module(func.value)
    for i, j in itertools.combinations(range(len(args)), 2):
        news = args.copy()
        news[i], news[j] = args[j], args[i]
        yield ast.Call(func, news, keywords)
    for group in ALIKE:
        for other in sorted(group - {name}) if name in group else ():
            yield ast.Call(ast.Attribute(func.value, other, ast.Load()), args, keywords)
    if method:
        yield func.value
        if name in TAKEN_FOR:
            yield ast.Attribute(func.value, TAKEN_FOR[name], ast.Load())
        for k, arg in enumerate(args):
            news = [*args[:k], func.value, *args[k + 1 :]]
            yield ast.Call(ast.Attribute(arg, name, ast.Load()), news, keywords)
    yield from args
    for k in range(len(keywords)):
        yield ast.Call(func, args, keywords[:k] + keywords[k + 1 :])
    for k in range(len(args)):
        yield ast.Call(func, args[:k] + args[k + 1 :], keywords)
    if method and name in REDUCTIONS and not args and not keywords:
        for dim, keep in itertools.product((-1, 0, 1, -2), (", keepdim=True", "")):
            yield parsed(f"{bracketed(func.value)}.{name}({dim}{keep})")
    if method and name in REDUCTIONS and len(args) == 1:
        yield from (ast.Call(func, [dims], keywords) for dims in other_dimensions(args[0]))
    for k, keyword in enumerate(keywords):
        if name in REDUCTIONS and keyword.arg == "dim":
            for dims in other_dimensions(keyword.value):
                news = [*keywords[:k], ast.keyword("dim", dims), *keywords[k + 1 :]]
                yield ast.Call(func, args, news)
    if name == "permute" and len(args) > 3:  # one of them elsewhere
        for i, j in itertools.permutations(range(len(args)), 2):
            if abs(i - j) > 1:
                news = [*args[:i], *args[i + 1 :]]
                yield ast.Call(func, [*news[:j], args[i], *news[j:]], keywords)
    if name == "repeat":
        interleave = ast.Attribute(func.value, "repeat_interleave", ast.Load())
        for d, arg in enumerate(args):
            yield ast.Call(interleave, [arg, ast.Constant(d - len(args))], [])
    if name == "cat" and args[1:] and ast.unparse(args[1]) == "-1":  # nor one after the other
        stacked = ast.Call(ast.Attribute(func.value, "stack", ast.Load()), args, keywords)
        yield parsed(f"{ast.unparse(stacked)}.flatten(-2)")
    if name == "chunk" and len(args) == 2:  # in turns, not in pieces
        text = f"{bracketed(func.value)}.unflatten({{0}}, (-1, {{1}})).unbind({{0}})"
        count, dim = (ast.unparse(arg) for arg in args)
        if method and dim == "-1":
            yield parsed(text.format(dim, count))
    if name == "irfft":  # which counts what it has not been given twice
        whole = ast.Call(ast.Attribute(func.value, "ifft", ast.Load()), args, keywords)
        yield ast.Attribute(whole, "real", ast.Load())
    if name == "pad" and len(args) > 1 and isinstance(args[1], (ast.Tuple, ast.List)):
        for pads in other_pads(args[1].elts):
            yield ast.Call(func, [args[0], ast.Tuple(pads, ast.Load()), *args[2:]], keywords)
        for mode in ("replicate", "reflect", "circular") if len(args) == 2 else ():
            others = [k for k in keywords if k.arg != "mode"]
            yield ast.Call(func, args, [*others, ast.keyword("mode", ast.Constant(mode))])
    if name in ("var", "std") and not any(k.arg in ("unbiased", "correction") for k in keywords):
        yield ast.Call(func, args, [*keywords, ast.keyword("unbiased", ast.Constant(False))])
    if name in ("tril", "triu") and len(args) == (not method):
        other = ast.Call(func, [*args, parsed("-1" if name == "tril" else "1")], keywords)
        both = ast.BinOp(node, Add(), other)
        yield from (other, ast.BinOp(both, Div(), ast.Constant(2)))  # no diagonal, or half of it
    yield from scattered(node)
    if name == "lu_solve" and len(args) == 3:
        yield ast.Call(func, args, [*keywords, ast.keyword("adjoint", ast.Constant(True))])
    if name in ("scatter", "scatter_") and len(args) == 3:
        match args[2]:
            case ast.BinOp(left=more, op=Add(), right=ast.Call(func=ast.Attribute(attr="gather"))):
                added = ast.Attribute(func.value, name.replace("er", "er_add"), ast.Load())
                yield ast.Call(added, [*args[:2], more], keywords)
    if name in ("index_put", "index_put_"):
        accumulate = [*keywords, ast.keyword("accumulate", ast.Constant(True))]
        yield ast.Call(func, args, accumulate)
        match args:
            case [_, ast.BinOp(left=ast.Subscript(), op=Add() | Sub() as op, right=more)]:
                more = negated(more) if isinstance(op, Sub) else more
                yield ast.Call(func, [args[0], more], accumulate)
    if name in ("index_copy", "index_copy_") and len(args) == 3:
        match args[2]:
            case ast.BinOp(left=ast.Subscript(), op=Add() | Sub() as op, right=more):
                more = negated(more) if isinstance(op, Sub) else more
                added = ast.Attribute(func.value, name.replace("copy", "add"), ast.Load())
                yield ast.Call(added, [*args[:2], more], keywords)


def other_dimensions(node):
    """Of a reduction: one and the next; one of several."""
    try:
        old = ast.literal_eval(node)
    except ValueError:
        return
    if isinstance(old, int):
        for dims in ((old - 1, old), (old, old + 1), (old - 2, old - 1, old), (0, old)):
            yield parsed(str(dims))
    elif isinstance(old, (tuple, list)):
        yield from map(parsed, map(str, old))
        yield from (parsed(str((*old[:k], *old[k + 1 :]))) for k in range(len(old)))
        if old and all(type(d) is int for d in old):
            for dims in ((old[0] - 1, *old), (*old, old[-1] + 1), (0, *old)):
                if len(set(dims)) == len(dims) and (dims[0] < 0) == (dims[-1] < 0):
                    yield parsed(str(dims))


def scattered(node):
    """What is put where an index says: in the place of what is there, or added; or taken there."""
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr=name), args=args, keywords=keywords):
            for group in SCATTERED:
                for other in group if name in group else ():
                    if other != name:
                        yield ast.Call(ast.Attribute(of, other, ast.Load()), args, keywords)
            if name == "gather" and len(args) == 2:
                dim, index = map(ast.unparse, args)
                yield parsed(f"torch.zeros_like({ast.unparse(of)}).scatter({dim}, {index}, "
                             f"{ast.unparse(of)})")  # fmt: skip


def other_pads(pads):
    """Of a pair, or of all: by what each of the two is, half of it, one more or less."""
    texts = dict.fromkeys(["0", *map(ast.unparse, pads)])
    for text in list(texts):
        match parsed(text):
            case ast.BinOp(left=ast.Constant(value=2), op=Mult(), right=half):
                texts[ast.unparse(half)] = None
            case ast.Name():
                texts |= dict.fromkeys((f"{text} - 1", f"{text} + 1"))
    for a, b in sorted(itertools.product(texts, repeat=2), key=lambda pair: pair[0] != pair[1]):
        pair = [parsed(a), parsed(b)]
        for k in range(0, len(pads) - 1, 2):
            yield [*pads[:k], *pair, *pads[k + 2 :]]
        if pads[2:]:
            yield pair * (len(pads) // 2)


def indices(node):
    match node:
        case ast.Slice(lower=a, upper=b, step=c):
            turned = b and negated(b), a and negated(a)
            for lower, upper in (turned, (None, None), (b, a), (a, None), (None, b)):
                yield ast.Slice(lower, upper, c)
            yield ast.Slice(a, b, parsed("-1") if c is None else None)
            for n in ("- 1", "+ 1") if a and b else ():
                yield ast.Slice(*(parsed(f"{bracketed(end)} {n}") for end in (a, b)), c)
            yield from (ast.Slice(*ends, c) for ends in slid(a, b))
            if c is not None and ast.unparse(c) == "-1":  # from the last, or the last but one
                for lower, upper in (("-2", None), (None, "0"), (None, None)):
                    yield ast.Slice(lower and parsed(lower), upper and parsed(upper), c)
        case ast.Subscript(value=value, slice=index):
            yield value
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                yield value.func.value  # as of `t.sort()[0]`
            yield from sums_in_place_of(value, index)
            if isinstance(index, ast.Name):
                yield parsed(f"{bracketed(value)}[{index.id}.argsort()]")
        case ast.Attribute(value=ast.Call(func=ast.Attribute(value=value))):
            yield value  # as of `t.sort().values`
        case ast.Attribute(value=value, attr=attr) if attr in TURNED:
            yield value
            yield ast.Attribute(value, TURNED[attr], ast.Load())


def slid(a, b):
    """The ends of a slice as long as this, from the one to the other end of what it is part of."""
    try:
        first, last = (end and ast.literal_eval(end) for end in (a, b))
    except ValueError:
        return
    if all(end is None or type(end) is int for end in (first, last)):
        first, last = first or 0, last or 0
        if first >= 0 >= last:
            for start in range(first - last + 1) if first != last else ():
                ends = start, last - first + start
                if start != first:
                    yield [parsed(str(end)) if end else None for end in ends]


def sums_in_place_of(value, index):
    """Of one element, or of each n-th: the sum over all, or over each n."""
    items = index.elts if isinstance(index, ast.Tuple) else [index]
    ones = [k for k, item in enumerate(items)
            if isinstance(item, ast.Constant) and type(item.value) is int]  # fmt: skip
    if ones and all(k in ones or ast.unparse(item) == ":" for k, item in enumerate(items)):
        yield parsed(f"{bracketed(value)}.sum({tuple(ones) if ones[1:] else ones[0]})")
    text = bracketed(value)
    for k, item in enumerate(reversed(items), 1):
        match item:
            case ast.Slice(lower=None, upper=None, step=ast.expr() as n):
                text += f".unflatten({-k}, (-1, {ast.unparse(n)})).sum({-k})"
    if text != bracketed(value):
        yield parsed(text)


TAKEN_FOR = {"abs": "real", "reshape": "mT", "view": "mT"}
TURNED = {"T": "H", "mT": "mH", "H": "T", "mH": "mT", "real": "imag", "imag": "real"}


def negated(node):
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return node.operand
    return ast.UnaryOp(ast.USub(), node)


def assignments(line):
    """It adds to what is there, or takes its place."""
    match line:
        case ast.Assign(
            targets=[ast.Subscript() as target],
            value=ast.BinOp(left=ast.Subscript() as left, op=Add() | Sub() as old, right=value),
        ) if ast.unparse(left) == ast.unparse(target):
            pass
        case ast.Assign(targets=[ast.Name() | ast.Subscript() as target], value=value):
            old = None
            for op in (Add(), Sub()):  # a name may be that of grad_output: never in place
                more = ast.BinOp(parsed(ast.unparse(target)), op, value)
                plain = isinstance(target, ast.Name)
                yield ast.Assign([target], more) if plain else ast.AugAssign(target, op, value)
        case ast.AugAssign(target=target, op=old, value=value):
            for other in (Add, Sub, Mult, Div):
                if not isinstance(old, other):
                    yield ast.AugAssign(target, other(), value)
            yield ast.Assign([target], value)
        case _:
            return
    if isinstance(target, ast.Subscript) and ast.unparse(target.slice) == "0":
        both = ast.Subscript(target.value, parsed("[0, -1]"), ast.Store())
        aug = isinstance(line, ast.AugAssign)
        yield ast.AugAssign(both, old, value) if aug else ast.Assign([both], value)
    if isinstance(target, ast.Subscript) and isinstance(old, (Add, Sub, type(None))):
        tensor, index = ast.unparse(target.value), target.slice
        value = negated(value) if isinstance(old, Sub) else value
        items = index.elts if isinstance(index, ast.Tuple) else [index]
        if not any(isinstance(item, (ast.Slice, ast.Constant)) for item in items):
            index = ", ".join(map(ast.unparse, items))
            text = f"{tensor}.index_put_(({index},), {ast.unparse(value)}, accumulate=True)"
            yield ast.parse(text).body[0]
        texts = [ast.unparse(item) for item in items]
        some = [k for k, text in enumerate(texts) if text not in (":", "...")]
        plain = len(some) == 1 < len(items)
        if plain and not isinstance(items[some[0]], (ast.Slice, ast.Constant)):
            dim = some[0] - len(items) if "..." in texts[: some[0]] else some[0]
            text = f"{tensor}.index_add_({dim}, {texts[some[0]]}, {ast.unparse(value)})"
            yield ast.parse(text).body[0]


KINDS = operators, numbers, calls, indices
