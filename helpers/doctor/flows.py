"""What flows into what is returned, and what only into what is kept for backward."""

import ast
import inspect


def flows(nodes):
    """(line, names that it makes or adds to, names that it reads) of lines that make something."""
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AugAssign(target=target, value=value):
                targets = [target]
            case ast.For(target=target, iter=value):
                targets = [target]
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=of), args=args)):
                targets, value = [of], ast.Tuple(args, ast.Load())
            case _:
                continue
        yield node, *parted(targets, value)


def parted(targets, value):
    """The names of what is made, or filled, and those of what is read for it."""
    made, read = set(), names_in(value)
    for target in targets:
        while isinstance(target, (ast.Subscript, ast.Attribute)):
            read |= names_in(getattr(target, "slice", ast.Tuple([], ast.Load())))
            target = target.value
        made |= names_in(target)
    return made, read


def names_in(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def only_kept(definition, lines):
    """The lines that make nothing but what these lines keep, and no part of what is returned."""
    nodes = list(ast.walk(definition))
    made = list(flows(nodes))

    def behind(names):
        while more := {n for _, to, of in made if to & names for n in of} - names:
            names |= more
        return names

    returned = [n.value for n in nodes if isinstance(n, ast.Return) and n.value]
    out = behind({name for value in returned for name in names_in(value)})
    kept = behind({name for line in lines for name in names_in(line)} - {"ctx"})
    inputs = {arg.arg for arg in definition.args.args}
    return [line for line, to, _ in made if not isinstance(line, ast.For) and line not in lines
            and to & kept and not to & (out | inputs)]  # fmt: skip


def methods_of(cls):
    names = "forward", "setup_context", "backward", "vjp", "jvp"
    return [of for name in names if inspect.isfunction(of := getattr(cls, name))]
