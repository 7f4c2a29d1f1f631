"""The edits of several places at once, each of which undoes one slip of the pen."""

import ast
import contextlib
import itertools
import re

from .edits import Edit, bracketed, calls, indices, numbers, operators, parsed
from .slots import is_name, is_whole
from .source import at, is_method, made_in


def in_all_alike(source, slots):
    """The same edit in all calls of one function, or of one number, of a line."""
    alike = {}
    for owner, key, node in slots:
        parent = source.up[node][2]
        if isinstance(node, ast.Constant) and isinstance(parent, ast.Call) and owner is parent.args:
            like = numbers, ast.unparse(parent.func), key, type(node.value)
            places = alike.setdefault((source.statement(node), *like), [])
            places.append((owner, key, node))
        match node:
            case ast.Call(func=func, args=args, keywords=keywords):
                name = func.attr if isinstance(func, ast.Attribute) else ast.unparse(func)
                like = calls, name, len(args), *[k.arg for k in keywords]
            case ast.Constant(value=value):
                like = numbers, type(value), value
            case ast.BinOp(op=op):
                like = operators, type(op)
            case ast.Slice(lower=a, upper=b):
                like = indices, a is None, b is None
            case _:
                continue
        alike.setdefault((source.statement(node), *like), []).append((owner, key, node))
    for (line, kind, *_), some in alike.items():
        if len(some) > 1:
            for news in zip(*(kind(node) for *_, node in some), strict=False):
                puts = [(owner, key, new) for (owner, key, _), new in zip(some, news, strict=True)]
                with source.edited(puts):
                    new = ast.unparse(line)
                yield Edit(puts, line, f"`{new}` stood in place of `{source.quoted(line)}`")


def in_full(source):
    """All that is made in half precision is made in the precision of grad_output."""
    args, puts = source.definition.args.args, []
    for node in source.body if len(args) > 1 and args[0].arg == "ctx" else ():
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="half" | "bfloat16"), args=[]):
                puts.append((*source.up[node][:2], value))
            case ast.Attribute(attr="half" | "float16" | "bfloat16") if not is_method(source, node):
                puts.append((*source.up[node][:2], parsed(f"{args[1].arg}.dtype")))
    if len(puts) > 1:
        line = min((source.statement(at(*put[:2])) for put in puts), key=lambda line: line.lineno)
        yield Edit(puts, line, "nothing were made in half precision")


def of_one_name(source, slots, meant):
    """A name that stands in a line more than once is another; meant(name): what it may be."""
    lines = {}
    for owner, key, node in slots:
        for part in (source.statement(node), source.slice_of(node)) if is_name(node) else ():
            lines.setdefault((part, ast.unparse(node)), []).append((owner, key))
    for (line, name), some in lines.items():
        if line is None:
            continue
        for other in meant(name) if len(some) > 1 else ():
            puts, new = [(*slot, parsed(other)) for slot in some], bracketed(parsed(other))
            said = f"`{new}` stood in place of each `{name}` in `{source.quoted(line)}`"
            yield Edit(puts, line, said)


def exchanged_letters(source, kinds):
    """A line that was copied for another name: in all of its names, two letters change places."""
    pairs = {
        frozenset((x, y)) for a, b in itertools.combinations(kinds, 2)
        if len(a) == len(b) and is_alike(a, b)
        for x, y in zip(a, b, strict=True) if x != y
    }  # fmt: skip
    for line in source.body:
        value = line.value if isinstance(line, (ast.Assign, ast.AugAssign)) else None
        names = [n for n in ast.walk(value) if isinstance(n, ast.Name)] if value else []
        for x, y in sorted(map(sorted, pairs)):
            news = [(n, n.id.translate(str.maketrans(x + y, y + x))) for n in names]
            puts = [
                (*source.up[n][:2], parsed(new)) for n, new in news
                if new != n.id and new in kinds and kinds[new] == kinds.get(n.id)
            ]  # fmt: skip
            if len(puts) > 1:
                yield Edit(puts, value)


def exchanges(source, slots):
    """Two that stand in one tuple; two names, in one line or everywhere."""
    for node in source.body:
        if isinstance(node, (ast.Tuple, ast.List)):
            line = source.quoted(source.statement(node))
            for i, j in itertools.combinations(range(len(node.elts)), 2):
                puts = [(node.elts, i, node.elts[j]), (node.elts, j, node.elts[i])]
                a, b = source.quoted(node.elts[i]), source.quoted(node.elts[j])
                yield Edit(puts, node, f"`{a}` and `{b}` were exchanged in `{line}`")
    yield from in_other_order(source)
    names = {}
    for owner, key, node in slots:
        if is_name(node):
            names.setdefault(ast.unparse(node), []).append((owner, key, source.statement(node)))
    for a, b in itertools.combinations(names, 2):
        lines = {line for *_, line in names[a]}, {line for *_, line in names[b]}
        groups = [{line} for line in lines[0] & lines[1]]
        groups += [{k, n} for k, n in itertools.product(*lines) if abs(k.lineno - n.lineno) == 1]
        for group in [*groups, lines[0] | lines[1]]:
            puts = [(owner, key, parsed(new)) for old, new in ((a, b), (b, a))
                    for owner, key, line in names[old] if line in group]  # fmt: skip
            line = min(group, key=lambda line: line.lineno)
            where = "wherever they stand"
            if group != lines[0] | lines[1] or len(group) == 1:
                heads = sorted(group, key=lambda line: line.lineno)
                where = "in " + " and ".join(f"`{source.quoted(line)}`" for line in heads)
            yield Edit(puts, line, f"`{a}` and `{b}` were exchanged {where}")


def in_other_order(source):
    """Of two that are made in one line, the second comes first, as what draws numbers asks."""
    for line in source.body:
        match line:
            case ast.Assign(targets=[ast.Tuple(elts=[_, _] as names)],
                            value=ast.Tuple(elts=[ast.Call(), ast.Call()] as values)):  # fmt: skip
                puts = [(some, slice(0, 2), some[::-1]) for some in (names, values)]
                with source.edited(puts):
                    new = ast.unparse(line)
                yield Edit(puts, line, f"`{new}` stood in place of `{source.quoted(line)}`")


def from_the_other_end(source):
    """What is made of grad_output: made of it reversed, and reversed itself."""
    grads = {arg.arg for arg in source.definition.args.args[1:]}
    for owner, key, node in list(made_in(source.body)):
        used = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in grads]
        for d in (-1, 0) if used and node not in used else ():
            puts = [(*source.up[n][:2], parsed(f"{n.id}.flip({d})")) for n in used]
            puts.append(
                (
                    owner,
                    key,
                    ast.Call(ast.Attribute(node, "flip", ast.Load()), [parsed(str(d))], []),
                )
            )
            said = f"`{source.quoted(node)}` ran from the other end of dimension {d}"
            yield Edit(puts, node, said)


def called_as_elsewhere(source, values):
    """A call, or that of its counterpart, is given by name what it is given elsewhere."""
    given, known = {}, {*values, *source.fn.__globals__}
    for expression in (*(new for _, new in source.elsewhere), *source.returned):
        for node in ast.walk(expression):
            if isinstance(node, ast.Call) and (more := named_in(node, known)):
                given.setdefault(family_of(node), []).append(more)
    for node in source.body:
        if isinstance(node, ast.Call):
            for keywords in given.get(family_of(node), ()):
                own = [k.arg for k in node.keywords]
                more = [k for k in keywords if k.arg not in own]
                for some in ([more] if more else []) + [[k] for k in more if more[1:]]:
                    new = ast.Call(node.func, node.args, [*node.keywords, *some])
                    yield Edit([(*source.up[node][:2], new)], node)


def named_in(call, known):
    """What it is given by name; what has a name in forward may be known as that of ctx."""
    found = []
    for keyword in call.keywords:
        names = {n.id for n in ast.walk(keyword.value) if isinstance(n, ast.Name)} - known
        if keyword.arg and all(f"ctx.{name}" in known for name in names):
            text = ast.unparse(keyword.value)
            for name in names:
                text = re.sub(rf"\b{name}\b", f"ctx.{name}", text)
            found.append(ast.keyword(keyword.arg, parsed(text)))
    return found


def family_of(call):
    """Its name, of which some are counterparts of each other."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    return re.sub(r"_transpose|^un(?=fold)|^i?r?(?=fft)", "", name)


def cut_off(source):
    """What is rolled: without what comes in again at the other end."""
    for node in source.body:
        match node:
            case ast.Call(func=ast.Name(id="roll") | ast.Attribute(attr="roll")):
                for new in without_the_end(node):
                    said = f"`{source.quoted(node)}` made zeros of what comes in again"
                    yield Edit([(*source.up[node][:2], new)], node, said)


def without_the_end(node):
    args, by = list(node.args), {k.arg: k.value for k in node.keywords}
    if ast.unparse(node.func) not in ("torch.roll", "roll"):
        args = [node.func.value, *args]
    args += [by[name] for name in ("shifts", "dims") if name in by]
    with contextlib.suppress(ValueError):
        t, n, d = bracketed(args[0]), *map(ast.unparse, args[1:])
        after = -int(d) - 1 if int(d) < 0 else f"{t}.ndim - {int(d) + 1}"
        came = f"torch.arange({t}.shape[{d}]) - ({n})"
        kept = f"(({came}) % {t}.shape[{d}] == {came}).reshape(-1, *[1] * ({after}))"
        yield parsed(f"{ast.unparse(node)} * {kept}")


def longer(source):
    """All slices of a line that leave out the last, or the first, do not."""
    for line in source.body:
        if isinstance(line, (ast.Assign, ast.AugAssign)):
            slices = [node for node in ast.walk(line) if isinstance(node, ast.Slice)]
            for end in ("upper", "lower"):
                some = [node for node in slices if getattr(node, end)]
                if len(some) > 1:
                    puts = [(node, end, None) for node in some]
                    with source.edited(puts):
                        new = ast.unparse(line)
                    yield Edit(puts, line, f"`{new}` stood in place of `{source.quoted(line)}`")


def before(source, slots):
    """What grad_output is multiplied by comes before what is done with it, not after."""
    grads = {arg.arg for arg in source.definition.args.args[1:]}
    used = [slot for slot in slots if isinstance(slot[2], ast.Name) and slot[2].id in grads]
    for owner, key, node in slots:
        match node:
            case ast.BinOp(left=a, op=ast.Mult() as op, right=b):
                pairs = (a, b), (b, a)
            case ast.BinOp(left=a, op=ast.Div() as op, right=b):
                pairs = ((a, b),)
            case _:
                continue
        inside, whole = list(ast.walk(node)), node
        while isinstance(getattr(source.up[whole][2], "op", None), (ast.Mult, ast.Div)):
            whole = source.up[whole][2]
        for (rest, factor), (*slot, grad) in itertools.product(pairs, used):
            known = isinstance(factor, ast.Constant) or not is_whole(source, whole)
            if grad not in inside and not known:
                new = ast.BinOp(grad, op, factor)
                said = f"`{ast.unparse(rest)}` stood in place of `{source.quoted(node)}`, and "
                said += f"`{ast.unparse(new)}` in place of `{grad.id}` in "
                said += f"`{source.head(source.statement(grad))}`"
                yield Edit([(owner, key, rest), (*slot, new)], node, said)


def is_alike(name, other):
    """Do they differ in one letter, or in one of several words?"""
    words = name.split("_"), other.split("_")
    return any(
        len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) == 1
        for a, b in ((name, other), words) if a is name or len(a) > 1
    )  # fmt: skip
