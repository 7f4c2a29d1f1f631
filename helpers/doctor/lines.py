"""The edits of whole lines: of another kind, left out, in another order, in or out of a loop."""

import ast

from .edits import Edit, assignments, negated

FAR = 4  # lines over which one is moved


def statements(source):
    """Lines of another kind, left out, or in another order; conditions that always hold."""
    blocks = [block for node in ast.walk(source.definition) for name in ("body", "orelse")
              if isinstance(block := getattr(node, name, None), list)]  # fmt: skip
    for block in blocks:
        for k, line in reversed(list(enumerate(block))):
            if line in source.body:
                yield from of_a_line(source, block, k)
                yield from at_other_end(source, block, k)
            yield from moved(source, block, k)
            if isinstance(line, (ast.For, ast.If)) and line in source.body:
                yield from in_or_out(source, block, k)


def of_a_line(source, block, k):
    line, this = block[k], f"`{source.head(block[k])}`"
    for new in map(ast.fix_missing_locations, assignments(line)):
        said = f"`{ast.unparse(new)}` stood in place of {this}"
        of_a_name = isinstance(new, ast.Assign) and isinstance(new.targets[0], ast.Name)
        put = (line, "value", new.value) if of_a_name else (block, k, new)
        yield Edit([put], line, said)
    if len(block) > 1 and not isinstance(line, ast.Return):
        yield Edit([(block, k, ast.Pass())], line, f"{this} were left out")


def at_other_end(source, block, k):
    """What is done at the first index is done at the last, too, as it is there or negated."""
    line, after = block[k], slice(k + 1, k + 1)
    match line:
        case ast.Assign(targets=[ast.Subscript()]) | ast.AugAssign(target=ast.Subscript()):
            new = OtherEnd().visit(ast.parse(ast.unparse(line)).body[0])
            if ast.unparse(new) != ast.unparse(line):
                for other in map(ast.unparse, (new, *negations(new))):
                    said = f"`{other}` came after `{source.head(line)}`"
                    yield Edit([(block, after, ast.parse(other).body)], line, said)


def negations(line):
    match line:
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            yield ast.AugAssign(target, ast.Sub(), value)
        case ast.AugAssign(target=target, op=ast.Sub(), value=value):
            yield ast.AugAssign(target, ast.Add(), value)
        case ast.Assign(targets=targets, value=value):
            yield ast.fix_missing_locations(ast.Assign(targets, negated(value)))


class OtherEnd(ast.NodeTransformer):
    """Each index, and each slice, counted from the other end."""

    def visit_Subscript(self, node):
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        items = [from_other_end(item) for item in items]
        index = ast.Tuple(items, ast.Load()) if items[1:] else items[0]
        return ast.Subscript(self.visit(node.value), index, node.ctx)


def from_other_end(item):
    match item:
        case ast.Slice(lower=a, upper=b, step=None):
            return ast.Slice(b and negated(b), a and negated(a))
        case ast.Constant(value=int(k)):
            return negated(ast.Constant(k + 1))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(k))):
            return ast.Constant(k - 1)
    return item


def moved(source, block, k):
    """A line comes before, or after, some of its neighbours."""
    line = block[k]
    for n in reversed(range(k + 1, min(k + 1 + FAR, len(block)))):
        other, here = block[n], slice(k, n + 1)
        if not isinstance(other, ast.Return) and {line, other} & set(source.body):
            this, that = source.head(line), source.head(other)
            said = f"`{that}` came before `{this}`"
            yield Edit([(block, here, [other, *block[k:n]])], other, said)
            said = f"`{this}` came after `{that}`"
            yield Edit([(block, here, [*block[k + 1 : n + 1], line])], line, said)


def in_or_out(source, block, k):
    """A line belongs to a loop or a branch, or not; what is asked is always so, or never."""
    line, after, head = block[k], slice(k + 1, k + 1), source.head(block[k])
    last = line.body[-1]
    for name in carried(source):
        zero = ast.parse(f"{name} = 0 * {name}").body
        said = f"`{name}` were set to 0 after `{source.head(last)}`"
        yield Edit([(line, "body", [*line.body, *zero])], last, said)
    if len(line.body) > 1:
        puts = [(line, "body", line.body[:-1]), (block, after, [last])]
        yield Edit(puts, last, f"`{source.head(last)}` came after what is in `{head}`")
    for following in block[k + 1 : k + 2]:
        if not isinstance(following, ast.Return):
            puts = [(line, "body", [*line.body, following]), (block, slice(k + 1, k + 2), [])]
            yield Edit(puts, following, f"`{source.head(following)}` were the last of `{head}`")
    if isinstance(line, ast.If):
        for always in (True, False):
            said = f"`{source.quoted(line.test)}` were {always}"
            yield Edit([(line, "test", ast.Constant(always))], line, said)
        for other in line.orelse[:1]:
            if isinstance(other, ast.If):
                puts = [(block, after, line.orelse), (line, "orelse", [])]
                yield Edit(puts, other, f"`{source.head(other)}` did not begin with `el`")


def carried(source):
    """The names to which something is added, or that are made of themselves."""
    found = {}
    for line in source.body:
        match line:
            case ast.AugAssign(target=ast.Name(id=name)):
                found[name] = None
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value)):
                    found[name] = None
    return list(found)
