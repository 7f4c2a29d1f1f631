"""The edits that rearrange an expression: its operations, its factors, its two ends."""

import ast
import itertools
import re

from .edits import Add, Div, MatMult, Mult, Sub, at_end, bracketed, indices, is_module, parsed


def reordered(node):
    """Two operations, or two calls of methods, one inside the other, take turns."""
    match node:
        case ast.BinOp(left=ast.BinOp(left=a, op=inner, right=b), op=outer, right=c):
            yield ast.BinOp(ast.BinOp(a, outer, c), inner, b)
            yield ast.BinOp(a, inner, ast.BinOp(b, outer, c))
            if type(inner) is not type(outer):
                yield ast.BinOp(ast.BinOp(a, outer, b), inner, c)
    match node:
        case ast.BinOp(left=c, op=outer, right=ast.BinOp(left=a, op=inner, right=b)):
            yield ast.BinOp(a, inner, ast.BinOp(c, outer, b))
            yield ast.BinOp(ast.BinOp(c, outer, a), inner, b)
    match node:
        case ast.BinOp(left=a, op=op, right=ast.Call(func=ast.Name() as f, args=[x], keywords=[])):
            yield ast.Call(f, [ast.BinOp(a, op, x)], [])
        case ast.Call(func=ast.Name() as f, args=[ast.BinOp(a, op, b)], keywords=[]):
            yield ast.BinOp(a, op, ast.Call(f, [b], []))
    match node:
        case ast.BinOp(left=ast.Call(func=ast.Attribute() as method) as call, op=op, right=b):
            yield ast.Call(at_end(ast.BinOp(method.value, op, b), method), call.args, call.keywords)
    match node:
        case ast.BinOp(left=ast.Call(func=ast.Attribute() as f, args=[x, *rest]) as call, op=op,
                       right=b) if is_module(f.value):  # fmt: skip
            yield ast.Call(f, [ast.BinOp(x, op, b), *rest], call.keywords)
        case ast.BinOp(left=a, op=op,
                       right=ast.Call(func=ast.Attribute() as f, args=[x, *rest]) as call,
                       ) if is_module(f.value):  # fmt: skip
            yield ast.Call(f, [ast.BinOp(a, op, x), *rest], call.keywords)
    match node:
        case ast.BinOp(left=ast.Call() as call, op=op, right=b) if root_of(call) is not call:
            yield with_root(call, lambda root: ast.BinOp(root, op, b))
    match node:
        case ast.BinOp(left=a, op=op, right=ast.Call(func=ast.Attribute() as method) as call):
            yield ast.Call(at_end(ast.BinOp(a, op, method.value), method), call.args, call.keywords)
        case ast.Call(func=ast.Attribute(value=ast.BinOp(left=a, op=op, right=b)) as method):
            yield ast.BinOp(ast.Call(at_end(a, method), node.args, node.keywords), op, b)
            yield ast.BinOp(a, op, ast.Call(at_end(b, method), node.args, node.keywords))
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Attribute() as first) as call)):
            outer = ast.Call(at_end(first.value, node.func), node.args, node.keywords)
            yield ast.Call(at_end(outer, first), call.args, call.keywords)


def in_and_out(node):
    """A factor of what a function is given, for one of what it makes; or the other way round."""
    factors = factors_in(node)
    for k, (op, call) in enumerate(factors):
        rest = [factor for n, factor in enumerate(factors) if n != k]
        for n, (by, factor) in enumerate(rest) if isinstance(op, Mult) else ():
            if not isinstance(factor, ast.Constant):
                for each in (factor, *reduced(factor)):
                    for x in multiplied_by(first_given(call), by, each):
                        within = given_another(call, x)
                        yield multiplied([(op, within), *rest[:n], *rest[n + 1 :]])
    inside = factors_in(x) if (x := first_given(node)) else []
    for n, (by, factor) in enumerate(inside) if inside[1:] else ():
        within = given_another(node, multiplied([*inside[:n], *inside[n + 1 :]]))
        yield ast.BinOp(within, by, factor)


def multiplied_by(node, op, factor):
    """The product; of elements and slices, too, those of a product."""
    if node:
        yield ast.BinOp(node, op, factor)
    if isinstance(node, ast.Subscript):
        yield ast.Subscript(ast.BinOp(node.value, op, factor), node.slice, ast.Load())


def reduced(node):
    """Of a mean over all, that of which it is one."""
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr="mean" | "sum" | "amax" | "max"), args=[]):
            yield of


def factors_in(node):
    """(operation, factor) of a product, in order."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (Mult, Div)):
        right = factors_in(node.right) if isinstance(node.op, Mult) else [(None, node.right)]
        return [*factors_in(node.left), (node.op, right[0][1]), *right[1:]]
    return [(Mult(), node)]


def multiplied(factors):
    """The product; what divides comes after something."""
    factors = sorted(factors, key=lambda pair: isinstance(pair[0], Div))
    node = factors[0][1] if isinstance(factors[0][0], Mult) else None
    if node is None:
        node, factors = ast.Constant(1), [None, *factors]
    for op, factor in factors[1:]:
        node = ast.BinOp(node, op, factor)
    return node


def first_given(node):
    """The first argument of a function, or what has the method."""
    match node:
        case ast.Call(func=ast.Attribute(value=of)) if not is_module(of) and not (
            isinstance(of, ast.Name) and of.id[:1].isupper()
        ):
            return of
        case ast.Call(args=[x, *_]) | ast.BinOp(left=x, op=MatMult()):
            return x
    return None


def given_another(node, new):
    """The same call, with another in the place of what it is given first."""
    if isinstance(node, ast.BinOp):
        return ast.BinOp(new, node.op, node.right)
    if node.args[:1] == [first_given(node)]:
        return ast.Call(node.func, [new, *node.args[1:]], node.keywords)
    return ast.Call(at_end(new, node.func), node.args, node.keywords)


def together(node):
    """A product of sums for the sum of the products, each with its own."""
    match node:
        case ast.BinOp(
            left=ast.Call(func=ast.Attribute(value=a, attr="sum")) as left, op=op,
            right=ast.Call(func=ast.Attribute(value=b, attr="sum")) as right,
        ):  # fmt: skip
            some = [[ast.unparse(x) for x in (*c.args, *c.keywords)] for c in (left, right)]
            if some[0] == some[1] and isinstance(op, (Mult, Div)):
                yield ast.Call(at_end(ast.BinOp(a, op, b), left.func), left.args, left.keywords)
    match node:
        case ast.BinOp(
            left=whole, op=Mult(), right=ast.Call(func=ast.Attribute(value=x, attr="sum"))
        ):
            number, whole = (whole.left, whole.right) if is_product(whole) else (None, whole)
            match whole:
                case ast.Call(
                    func=ast.Attribute(attr="einsum"), args=[ast.Constant(str(of)), *terms]
                ):
                    for letter in dict.fromkeys(re.sub("[^a-zA-Z]", "", of)):
                        args = [ast.Constant(f"{letter},{of}"), x, *terms]
                        new = ast.Call(whole.func, args, whole.keywords)
                        yield ast.BinOp(number, Mult(), new) if number else new


def is_product(node):
    return isinstance(node, ast.BinOp) and isinstance(node.op, Mult)


def first_term(node):
    """Of a sum of three terms or more, the first."""
    terms = 0
    while isinstance(node, ast.BinOp) and isinstance(node.op, (Add, Sub)):
        node, terms = node.left, terms + 1
    if terms > 1:
        yield node


def root_of(node):
    """What a chain of methods, two or more, is called of; otherwise the node."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Attribute()) as inner)):
            while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                inner = inner.func.value
            return inner
    return node


def with_root(node, made):
    """The same chain of methods of made(its root)."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        root = with_root(node.func.value, made)
        return ast.Call(at_end(root, node.func), node.args, node.keywords)
    return made(node)


def gates(node):
    """The slope of a sigmoid for that of a tanh, by the output, or the other way round."""
    match node:
        case ast.BinOp(left=a, op=Mult(), right=ast.BinOp(ast.Constant(1), Sub(), b) as rest):
            slope = parsed(f"1 - {ast.unparse(b)} * {ast.unparse(b)}")
            if ast.unparse(a) == ast.unparse(b):
                yield slope
            elif isinstance(a, ast.BinOp) and ast.unparse(a.right) == ast.unparse(b):
                yield ast.BinOp(a.left, a.op, slope)
        case ast.BinOp(ast.Constant(1), Sub(), rest):
            of = re.fullmatch(r"(\w+)( \* \1| \*\* 2|\.square\(\)|\.pow\(2\))", ast.unparse(rest))
            if of:
                yield parsed(f"{of[1]} * (1 - {of[1]})")


def chains(node):
    """A product of matrices, with others of them transposed, or with the sum of two such."""
    terms, factor = product(node)
    if len(terms) == 1 and factor == "2 * ":
        yield parsed(f"{terms[0]} + {terms[0]}.mT")
    if not 2 <= len(terms) <= 3:
        return
    whole, found = ast.unparse(node), {}
    for order, turned in itertools.product(
        (terms, terms[::-1]), itertools.product(("", ".mT"), repeat=len(terms))
    ):
        found[" @ ".join(a + t for a, t in zip(order, turned, strict=True))] = None
    found = [text for text in found if text not in (whole, whole.replace(".T", ".mT"))]
    yield from (parsed(f"{factor}{text}") for text in found)
    if factor:
        yield from (parsed(f"{a} + {b}") for a, b in itertools.combinations(found, 2))
    yield from (parsed(f"{whole} + {text}") for text in found)


def halves(node):
    """A product of two matrices for the mean of it and of that with the transpose of one."""
    terms, factor = product(node)
    if len(terms) == 2 and not factor:
        whole, (a, b) = ast.unparse(node), terms
        for other in (f"{a} @ {b}", f"{a} @ {b}.mT", f"{a}.mT @ {b}"):
            if other not in (whole, whole.replace(".T", ".mT")):
                yield parsed(f"({whole} + {other}) / 2")


def folded(node):
    """A dimension in parts, some of which are summed: the parts in another order."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=of, args=sizes) as whole, attr="sum")):
            if not isinstance(of, ast.Attribute):
                return
            inside = of.attr == "unflatten" and len(sizes) == 2
            parts = sizes[1].elts if inside and isinstance(sizes[1], ast.Tuple) else sizes
            dims = [*node.args, *(k.value for k in node.keywords if k.arg == "dim")]
            before = re.match(r"\*\w+\.shape\[:(\d)\]$", " ".join(map(ast.unparse, sizes[:1])))
            parts = parts[1:] if before else parts
            try:
                summed = ast.literal_eval(dims[0])
                first = int(before[1]) if before else ast.literal_eval(sizes[0]) if inside else 0
            except (ValueError, IndexError):
                return
            summed = list(summed) if isinstance(summed, (tuple, list)) else [summed]
            if not all(type(d) is int for d in (*summed, first)) or not summed:
                return
            if of.attr not in ("reshape", "view", "unflatten") or min(*summed, first) < 0:
                return
            pairs = [(k, k + 1) for k in range(len(parts) - 1)]
            for some in [[pair] for pair in pairs] + ([pairs[::2]] if pairs[2:] else []):
                order = list(range(len(parts)))
                for a, b in some:
                    order[a], order[b] = b, a
                news = [parts[k] for k in order]
                dims = [order[d - first] + first if 0 <= d - first < len(parts) else d
                        for d in summed]  # fmt: skip
                args = [sizes[0], ast.Tuple(news, ast.Load())] if inside else news
                args = [sizes[0], *news] if before else args
                dims = parsed(str(tuple(sorted(dims)) if dims[1:] else dims[0]))
                keywords = [k for k in node.keywords if k.arg != "dim"]
                whole_anew = ast.Call(of, args, whole.keywords)
                yield ast.Call(at_end(whole_anew, node.func), [dims, *node.args[1:]], keywords)


def relabelled(node):
    """A view of memory whose sizes stand in another order, and the dimensions back in theirs."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Call(func=ast.Attribute(attr="reshape" | "view"))),
        ) if node.func.attr == "permute":
            yield from in_this_order(node)
            return
        case ast.Call(func=ast.Attribute(attr="transpose"), args=[ast.Constant(), ast.Constant()]):
            whole, pair = node.func.value, [arg.value for arg in node.args]
        case ast.Call(func=ast.Attribute(attr="reshape" | "view")):
            whole, pair = node, None
        case _:
            return
    of = whole.func if isinstance(whole, ast.Call) else None
    if not isinstance(of, ast.Attribute) or of.attr not in ("reshape", "view"):
        return
    sizes = whole.args
    for i, j in [pair] if pair else itertools.combinations(range(len(sizes)), 2):
        if type(i) is type(j) is int and i != j and max(i, j) < len(sizes):
            news = list(sizes)
            news[i], news[j] = sizes[j], sizes[i]
            anew = ast.Call(ast.Attribute(of.value, "reshape", ast.Load()), news, whole.keywords)
            back = f"{ast.unparse(anew)}.transpose({i}, {j})"
            yield anew if pair else parsed(back)


def in_this_order(node):
    """A view whose dimensions are permuted: its sizes were in this order from the first."""
    whole, order = node.func.value, [getattr(arg, "value", None) for arg in node.args]
    if sorted(map(str, order)) == sorted(map(str, range(len(whole.args)))):
        news = [whole.args[k] for k in order]
        yield ast.Call(at_end(whole.func.value, whole.func), news, whole.keywords)


def permuted(node, values):
    """What is viewed in another shape, its dimensions in another order before."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=x), attr="reshape" | "view"), args=args):
            dims = getattr(values.get(x), "ndim", 0)
            for order in itertools.permutations(range(dims)) if dims in (3, 4) else ():
                if order != tuple(range(dims)):
                    func = parsed(f"{x}.permute{order}.reshape")
                    yield ast.Call(func, args, node.keywords)


def forwards(node):
    """What is turned before and turned back runs from the first on."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(args=[first, *rest]) as call, attr="flip")):
            match first:
                case ast.Call(func=ast.Attribute(value=x, attr="flip")):
                    yield ast.Call(call.func, [x, *rest], call.keywords)


def delayed(node):
    """What is padded at one end and cut at the other: the other way round."""
    match node:
        case ast.Subscript(value=ast.Call(args=[x, ast.Tuple(elts=pads)]) as call, slice=index):
            for turned, other in turned_ends(call.func, pads, index):
                call = ast.Call(call.func, [x, turned], call.keywords)
                yield ast.Subscript(call, other, ast.Load())
        case ast.Call(args=[ast.Subscript(value=x, slice=index), ast.Tuple(elts=pads)]):
            for turned, other in turned_ends(node.func, pads, index):
                cut = ast.Subscript(x, other, ast.Load())
                yield ast.Call(node.func, [cut, turned], node.keywords)


def turned_ends(func, pads, index):
    """(pads, index) of the other end."""
    ends = [k for k, pad in enumerate(pads) if ast.unparse(pad) != "0"]
    if ast.unparse(func).endswith("pad") and len(ends) == 1 and len(pads) % 2 == 0:
        news, items = pads.copy(), index.elts if isinstance(index, ast.Tuple) else [index]
        news[ends[0]], news[ends[0] ^ 1] = pads[ends[0] ^ 1], pads[ends[0]]
        for last in indices(items[-1]):
            some = [*items[:-1], last]
            yield ast.Tuple(news, ast.Load()), ast.Tuple(some, ast.Load()) if some[1:] else last


def product(node):
    """The factors of a product of matrices, as text, without transposes; and the number before."""
    match node:
        case ast.BinOp(left=left, op=MatMult(), right=right):
            (*terms,), factor = product(left)
            return [*terms, *product(right)[0]], factor
        case ast.BinOp(left=ast.Constant(value=n), op=Mult(), right=right):
            return product(right)[0], f"{n} * "
        case ast.Attribute(value=value, attr="T" | "mT"):
            return [bracketed(value)], ""
    return [bracketed(node)], ""
