"""The edits of a function's source that `rewritten` tries: each undoes one slip of the pen."""

import ast
import itertools
from typing import NamedTuple

import torch

Add, Sub, Mult, Div, Pow, MatMult = ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.MatMult
OPERATORS = {
    Add: (Sub, Mult), Sub: (Add,), Mult: (Div, MatMult, Add), Div: (Mult,), MatMult: (Mult,),
    Pow: (), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}  # fmt: skip
COMPARISONS = ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq
ALIKE = [
    set(names.split())
    for names in (
        "sum mean amax amin prod cumsum logsumexp", "tril triu", "sin cos tan", "sinh cosh tanh",
        "exp expm1", "log log1p log2", "sigmoid tanh softmax", "min max amin amax",
        "minimum maximum", "zeros_like ones_like", "repeat repeat_interleave tile expand",
        "argmax argmin argsort", "floor ceil round trunc", "sqrt rsqrt square",
        "scatter scatter_add", "scatter_ scatter_add_ add_", "index_copy index_add index_select",
        "index_copy_ index_add_", "gt ge lt le", "real imag", "rfft irfft fft ifft",
        "fft2 ifft2 rfft2 irfft2", "asin acos atan", "mm matmul mul", "div mul", "add sub",
        "conv1d conv_transpose1d", "conv2d conv_transpose2d", "unbind split chunk",
        "gather scatter take_along_dim", "abs square sign", "view reshape", "eye ones zeros",
    )
]  # fmt: skip
REDUCTIONS = {"sum", "mean", "amax", "amin", "logsumexp", "prod", "var", "std", "norm"}
AROUND = (
    "-{}", "{}.mT", "{}.conj()", "1 - {}", "{}.flip(0)", "{}.flip(-1)", "{}.argsort()",
    "{}.sqrt()", "{}.square()", "1 / {}", "{}.exp()", "{}.abs()", "{}.sign()", "{} + 1", "{} - 1",
    "2 * {}", "{} / 2", "{}.sum()", "{}.sum(0)", "{}.sum(-1)", "{}.sum(1)",
    "{}.sum(-1, keepdim=True)", "{}.sum(0, keepdim=True)", "{}.sum(1, keepdim=True)",
    "{}.mean(-1, keepdim=True)", "{}.transpose(0, 1)", "{}.transpose(1, 2)", "{}.cumsum(0)",
    "{}.cumsum(-1)", "{}.diag()", "{}.unsqueeze(-1)", "{}.contiguous()", "{}.real", "{}.log()",
)  # fmt: skip
EACH = "{}.mT", "{}.conj()", "1 - {}", "-{}", "{}.sqrt()", "{}.square()", "1 / {}"
WITH_NAMES = (
    "{0} * {1}", "{0} / {1}", "{0} + {1}", "{0} - {1}", "{0}[{1}]", "{0} @ {1}", "{1} @ {0}",
    "{0} * ({1} > 0)", "{0} * ({1} < 0)", "{0} * ~{1}", "{0} * (1 - {1})", "{0} * {1} ** 2",
)  # fmt: skip


class Edit(NamedTuple):
    """What is put where, as `Source.edited` takes it; the node that changes; words, or None."""

    puts: list
    node: ast.AST
    said: str | None = None


def slips(source, values):
    """What was written in place of something that is there, or in another order.

    values: {name: value} of what there is when the function returns
    """
    slots, kinds = slots_of(source), kinds_of(values)
    for kind in (operators, numbers, calls, indices):
        for owner, key, node in slots:
            for new in kind(node):
                yield Edit([(owner, key, new)], node)
    yield from in_all_alike(source, slots)
    yield from statements(source)
    yield from exchanges(source, slots)
    others = {ast.unparse(n.slice): n.slice for _, _, n in slots if isinstance(n, ast.Subscript)}
    for node in source.body:
        if isinstance(node, ast.Subscript):
            for text, other in others.items():
                if text != ast.unparse(node.slice):
                    yield Edit([(node, "slice", other)], node)

    def others(name):
        return [o for o in kinds if name in kinds and o != name and kinds[o] == kinds[name]]

    yield from of_one_name(source, slots, others)
    for owner, key, node in slots:
        if is_name(node) and not is_called(source, node):
            old = ast.unparse(node)
            for name in kinds:
                if name != old and kinds.get(old, kinds[name]) == kinds[name]:
                    yield Edit([(owner, key, parsed(name))], node)
            if type(values.get(old)) is int:
                for other in (f"({old} - 1)", f"({old} + 1)"):
                    yield Edit([(owner, key, parsed(other))], node)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            inside = isinstance(source.up[node][2], ast.Subscript)
            for name, kind in kinds.items():
                if kind == "int" or kind == ("index" if inside else "number"):
                    yield Edit([(owner, key, parsed(name))], node)


        elif isinstance(node, (ast.Call, ast.BinOp)) and argument(source, node):
            for name, kind in kinds.items():
                if kind == "number":
                    yield Edit([(owner, key, parsed(name))], node)


def in_all_alike(source, slots):
    """The same edit in all calls of one function, or of one number, of a line."""
    alike = {}
    for owner, key, node in slots:
        match node:
            case ast.Call(func=func, args=args, keywords=keywords):
                name = func.attr if isinstance(func, ast.Attribute) else ast.unparse(func)
                like = calls, name, len(args), *[k.arg for k in keywords]
            case ast.Constant(value=value):
                like = numbers, value
            case _:
                continue
        alike.setdefault((source.statement(node), *like), []).append((owner, key, node))
    for (line, kind, *_), some in alike.items():
        if len(some) > 1:
            for news in zip(*(kind(node) for *_, node in some), strict=False):
                puts = [(owner, key, new) for (owner, key, _), new in zip(some, news, strict=True)]
                yield in_line(source, puts, line)


def of_one_name(source, slots, meant):
    """A name that stands in a line more than once is another; meant(name): what it may be."""
    lines = {}
    for owner, key, node in slots:
        if is_name(node):
            some = lines.setdefault((source.statement(node), ast.unparse(node)), [])
            some.append((owner, key))
    for (line, name), some in lines.items():
        for other in meant(name) if len(some) > 1 else ():
            puts = [(*slot, parsed(f"({other})")) for slot in some]
            said = f"`{other}` stood in place of each `{name}` in `{source.quoted(line)}`"
            yield Edit(puts, line, said)


def in_line(source, puts, line):
    with source.edited(puts):
        new = ast.unparse(line)
    return Edit(puts, line, f"`{new}` stood in place of `{source.quoted(line)}`")


def argument(source, node):
    parent = source.up[node][2]
    return isinstance(parent, ast.Call) and parent.func is not node


def omissions(source, values):
    """A function, a factor, a term or an index that was left out."""
    kinds = kinds_of(values)
    slots = [slot for slot in slots_of(source) if is_value(source, slot[2])]
    slots.sort(key=lambda slot: 2 - isinstance(slot[2], ast.Name) - whole(source, slot[2]))
    ways = [(template, name) for template in WITH_NAMES[:5] for name in kinds]
    ways += [(f"{name}({{}})", "") for name in one_argument(source)]
    ways += [(template, "") for template in AROUND]
    ways += [(template, name) for template in WITH_NAMES[5:] for name in kinds]

    def turned(name):
        return [template.format(name) for template in EACH] if name in kinds else []

    for template, name in ways:
        if not name or fits(template, values[name]):
            for owner, key, node in slots:
                yield Edit([(owner, key, parsed(template.format(bracketed(node), name)))], node)
    yield from of_one_name(source, slots, turned)


def slots_of(source):
    return [
        (owner, key, node)
        for node, (owner, key, _) in source.up.items()
        if isinstance(node, ast.expr) and node in source.body
        and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
    ]  # fmt: skip


def kinds_of(values):
    """{name: kind}; numbers come first."""
    found = {name: kind_of(value) for name, value in values.items() if kind_of(value)}
    return dict(sorted(found.items(), key=lambda item: isinstance(values[item[0]], torch.Tensor)))


def whole(source, node):
    """Is it all that is returned, or assigned?"""
    parent = source.up[node][2]
    parent = source.up[parent][2] if isinstance(parent, ast.Tuple) else parent
    return isinstance(parent, ast.stmt)


def kind_of(value):
    """Values of one kind may be taken for each other."""
    if isinstance(value, torch.Tensor):
        return "number" if value.is_floating_point() or value.is_complex() else "index"
    return "int" if type(value) is int else "number" if type(value) is float else None


def fits(template, value):
    if "[" in template:
        return kind_of(value) == "index" or type(value) is int
    if "@" in template:
        return kind_of(value) == "number" and isinstance(value, torch.Tensor) and value.dim() > 0
    if "~" in template:
        return isinstance(value, torch.Tensor) and value.dtype is torch.bool
    return value is not None and (kind_of(value) != "index" or value.dtype is torch.bool or ">" not in template)


def one_argument(source):
    """The functions of this class, or that it calls, that take one tensor."""
    found = {}
    for node in source.body:
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            name = ast.unparse(node.func)
            if not (isinstance(node.func, ast.Attribute) and not name.startswith(("torch.", "F."))) and "(" not in name:
                found[name] = True
    for name in source.siblings:
        found[name] = True
    return list(found)


def parsed(text):
    return ast.parse(text, mode="eval").body


def bracketed(node):
    text = ast.unparse(node)
    plain = isinstance(node, (ast.Name, ast.Call, ast.Attribute, ast.Subscript, ast.Constant))
    return text if plain else f"({text})"


def is_name(node):
    """A variable, or what ctx holds."""
    return isinstance(node, ast.Name) or (
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        and node.value.id in ("ctx", "self")
    )  # fmt: skip


def is_called(source, node):
    parent = source.up[node][2]
    return isinstance(parent, ast.Attribute) or (
        isinstance(parent, ast.Call) and parent.func is node
    )


def is_value(source, node):
    kinds = ast.Name, ast.Call, ast.BinOp, ast.Subscript, ast.Attribute, ast.UnaryOp
    return isinstance(node, kinds) and not (
        isinstance(source.up[node][2], ast.Call) and source.up[node][2].func is node
    ) and ast.unparse(node) not in ("ctx", "ctx.saved_tensors", "torch", "F", "math")  # fmt: skip


def operators(node):
    match node:
        case ast.BinOp(left=a, op=op, right=b):
            for other in OPERATORS.get(type(op), ()):
                yield ast.BinOp(a, other(), b)
            if not isinstance(op, (Add, Mult)):
                yield ast.BinOp(b, op, a)
            yield from (a, b)
        case ast.UnaryOp(operand=a):
            yield a
        case ast.BoolOp(op=op, values=values):
            yield from (ast.BoolOp(other(), values) for other in OPERATORS[type(op)])
            yield from values
        case ast.Compare(left=a, ops=[op], comparators=b) if isinstance(op, COMPARISONS):
            for other in COMPARISONS:
                if not isinstance(op, other):
                    yield ast.Compare(a, [other()], b)
        case ast.IfExp(body=a, orelse=b):
            yield from (a, b)


def numbers(node):
    match node:
        case ast.Constant(value=bool(old)):
            news = [not old]
        case ast.Constant(value=int(old)):
            news = [old + 1, old - 1, -old, 0, 1, 2, 3, 0.5, old + 2]
        case ast.Constant(value=float(old)):
            news = [-old, old / 2, 2 * old, 1 - old, 1 / old if old else 1.0, 0.0, 1.0, old + 1,
                    old - 1]  # fmt: skip
        case ast.Constant(value=str(old)) if "->" in old:
            ins, out = old.replace(" ", "").split("->")
            news = [f"{ins}->{out[:k]}{out[k + 1]}{out[k]}{out[k + 2:]}" for k in range(len(out) - 1)]
            terms = ins.split(",")
            for t, term in enumerate(terms):
                for i, j in itertools.combinations(range(len(term)), 2):
                    swapped = list(term)
                    swapped[i], swapped[j] = swapped[j], swapped[i]
                    news.append(",".join([*terms[:t], "".join(swapped), *terms[t + 1 :]]) + "->" + out)
        case _:
            return
    for new in dict.fromkeys(news):
        if new != old:
            yield parsed(repr(new))


def calls(node):
    if not isinstance(node, ast.Call):
        return
    func, args, keywords = node.func, node.args, node.keywords
    name = func.attr if isinstance(func, ast.Attribute) else ""
    of_a_value = name and not (isinstance(func.value, ast.Name) and func.value.id in ("torch", "F", "math"))
    for i, j in itertools.combinations(range(len(args)), 2):
        news = args.copy()
        news[i], news[j] = args[j], args[i]
        yield ast.Call(func, news, keywords)
    for group in ALIKE:
        for other in sorted(group - {name}) if name in group else ():
            yield ast.Call(ast.Attribute(func.value, other, ast.Load()), args, keywords)
    if of_a_value:
        yield func.value
        for k, arg in enumerate(args):
            news = [*args[:k], func.value, *args[k + 1 :]]
            yield ast.Call(ast.Attribute(arg, name, ast.Load()), news, keywords)
    yield from args
    for k in range(len(keywords)):
        yield ast.Call(func, args, keywords[:k] + keywords[k + 1 :])
    for k in range(len(args)):
        yield ast.Call(func, args[:k] + args[k + 1 :], keywords)
    if name in REDUCTIONS and len(args) == 1 and of_a_value:
        for dims in other_dimensions(args[0]):
            yield ast.Call(func, [dims], keywords)
    if name in REDUCTIONS and of_a_value and not args and not keywords:
        for dim in (-1, 0, 1, -2):
            yield parsed(f"{bracketed(func.value)}.{name}({dim}, keepdim=True)")
            yield parsed(f"{bracketed(func.value)}.{name}({dim})")
    if name == "repeat" and len(args) > 1:
        for d, arg in enumerate(args):
            dim = ast.Constant(d - len(args))
            yield ast.Call(ast.Attribute(func.value, "repeat_interleave", ast.Load()), [arg, dim], [])
    for k in range(len(args)) if name in ("index_put", "index_put_") else ():
        more = ast.keyword("accumulate", ast.Constant(True))
        yield ast.Call(func, args, [*keywords, more])


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


def indices(node):
    match node:
        case ast.Slice(lower=a, upper=b, step=c):
            for lower, upper in ((b and negated(b), a and negated(a)), (None, None), (b, a), (a, None), (None, b)):
                yield ast.Slice(lower, upper, c)
            yield ast.Slice(a, b, parsed("-1") if c is None else None)
        case ast.Subscript(value=value, slice=index):
            yield value
            if isinstance(index, ast.Name):
                yield parsed(f"{bracketed(value)}[{index.id}.argsort()]")
        case ast.Attribute(value=value, attr=("T" | "mT" | "H" | "mH" | "real" | "imag") as attr):
            yield value
            other = {"T": "H", "mT": "mH", "H": "T", "mH": "mT", "real": "imag", "imag": "real"}
            yield ast.Attribute(value, other[attr], ast.Load())


def negated(node):
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return node.operand
    return ast.UnaryOp(ast.USub(), node)


def blocks(source):
    for node in [source.definition, *source.body]:
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield node, block


def statements(source):
    """Lines in another order, left out, or another kind of assignment."""
    for loop, block in blocks(source):
        for k, line in reversed(list(enumerate(block))):
            this = f"`{source.quoted(line)}`"
            mine = line in source.body
            for new in map(ast.fix_missing_locations, assignments(line) if mine else ()):
                said = f"`{ast.unparse(new)}` stood in place of {this}"
                yield Edit([(block, k, new)], line, said)
            if mine and len(block) > 1 and not isinstance(line, ast.Return):
                yield Edit([(block, k, ast.Pass())], line, f"{this} were left out")
            for other in reversed(range(k + 1, min(k + 5, len(block)))):
                if not (mine or block[other] in source.body) or isinstance(block[other], ast.Return):
                    continue
                if short(source, line):
                    that = f"`{source.quoted(block[other])}`"
                    order = [block[other], *block[k:other]]
                    said = f"{that} came before {this}"
                    yield Edit([(block, slice(k, other + 1), order)], block[other], said)
                    order = [*block[k + 1 : other + 1], line]
                    said = f"{this} came after {that}"
                    yield Edit([(block, slice(k, other + 1), order)], line, said)
            if mine and isinstance(line, (ast.For, ast.If)):
                last, rest, head = line.body[-1], line.body[:-1], source.quoted(line).split("\n")[0]
                if rest:
                    said = f"`{source.quoted(last)}` came after what is in `{head}`"
                    yield Edit([(line, "body", rest), (block, slice(k + 1, k + 1), [last])], last, said)
                if k + 1 < len(block) and not isinstance(block[k + 1], ast.Return):
                    following = block[k + 1]
                    said = f"`{source.quoted(following)}` were the last line in `{head}`"
                    yield Edit([(line, "body", [*line.body, following]), (block, slice(k + 1, k + 2), [])], following, said)
            if mine and isinstance(line, ast.If):
                for always in (True, False):
                    said = f"`{source.quoted(line.test)}` were {always}"
                    yield Edit([(line, "test", ast.Constant(always))], line, said)
                if line.orelse and isinstance(line.orelse[0], ast.If):
                    puts = [(block, slice(k + 1, k + 1), line.orelse), (line, "orelse", [])]
                    said = f"`if {source.quoted(line.orelse[0].test)}` stood in place of this `elif`"
                    yield Edit(puts, line.orelse[0], said)


def short(source, line):
    return "\n" not in source.quoted(line)


def assignments(line):
    """It adds to what is there, or takes its place."""
    match line:
        case ast.Assign(targets=[ast.Name() | ast.Subscript() as target], value=value):
            old = None
            yield from (ast.AugAssign(target, op, value) for op in (Add(), Sub()))
        case ast.AugAssign(target=target, op=old, value=value):
            for other in (Add, Sub, Mult, Div):
                if not isinstance(old, other):
                    yield ast.AugAssign(target, other(), value)
            yield ast.Assign([target], value)
        case _:
            return
    if isinstance(target, ast.Subscript) and isinstance(old, (Add, type(None))):
        tensor, index = ast.unparse(target.value), target.slice
        items = index.elts if isinstance(index, ast.Tuple) else [index]
        if not any(isinstance(item, (ast.Slice, ast.Constant)) for item in items):
            items = ", ".join(map(ast.unparse, items))
            text = f"{tensor}.index_put_(({items},), {ast.unparse(value)}, accumulate=True)"
            yield ast.parse(text).body[0]


def exchanges(source, slots):
    """Two that stand in one tuple, or two names in one line or everywhere."""
    for node in source.body:
        if isinstance(node, (ast.Tuple, ast.List)):
            for i, j in itertools.combinations(range(len(node.elts)), 2):
                puts = [(node.elts, i, node.elts[j]), (node.elts, j, node.elts[i])]
                a, b = source.quoted(node.elts[i]), source.quoted(node.elts[j])
                line = source.quoted(source.statement(node))
                yield Edit(puts, node, f"`{a}` and `{b}` were exchanged in `{line}`")
    by_name = {}
    for owner, key, node in slots:
        if is_name(node) and not (isinstance(node, ast.Name) and node.id in ("torch", "F", "math", "ctx")):
            by_name.setdefault(ast.unparse(node), []).append((owner, key, node))
    for a, b in itertools.combinations(by_name, 2):
        both = [(o, k, n, parsed(b)) for o, k, n in by_name[a]] + [(o, k, n, parsed(a)) for o, k, n in by_name[b]]
        lines = {}
        for o, k, n, new in both:
            lines.setdefault(source.statement(n), []).append((o, k, n, new))
        groups = [g for g in lines.values() if len({ast.unparse(n) for _, _, n, _ in g}) == 2]
        for group in [*groups, both] if len(lines) > 1 else groups:
            line = source.statement(group[0][2])
            within = f"in `{source.quoted(line)}`" if group is not both else "wherever they stand"
            said = f"`{a}` and `{b}` were exchanged {within}"
            yield Edit([(o, k, new) for o, k, _, new in group], line, said)
