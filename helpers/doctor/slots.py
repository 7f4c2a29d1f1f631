"""The places in a function's source where something may be put, and what there is to put there."""

import ast
import itertools

import torch

from .edits import MODULES
from .harmless import NEVER

PARTS, CALLS, FACTORS, PAIRED, LONG = 8, 24, 40, 24, 40  # at most; letters


def slots_of(source):
    """(owner, key, node) of every expression that has a value."""
    return [
        (owner, key, node)
        for node, (owner, key, _) in source.up.items()
        if isinstance(node, ast.expr) and node in source.body and not is_of_no_number(source, node)
        and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
    ]  # fmt: skip


def is_of_no_number(source, node):
    """Is it a dtype, a device, or that of which it is?"""
    owner = source.up[node][2]
    attributes = {getattr(n, "attr", None) for n in (node, owner)}
    return bool(attributes & {"dtype", "device"})


def kinds_of(values):
    """{name: kind}; numbers come first."""
    found = {name: kind_of(value) for name, value in values.items() if kind_of(value)}
    return dict(sorted(found.items(), key=lambda item: isinstance(values[item[0]], torch.Tensor)))


def kind_of(value):
    """Values of one kind may be taken for each other."""
    if isinstance(value, torch.Tensor):
        return "number" if value.is_floating_point() or value.is_complex() else "index"
    return "int" if type(value) is int else "number" if type(value) is float else None


def others(name, kinds):
    return [other for other in kinds if other != name and kinds[other] == kinds.get(name)]


def scaled(name, kinds, whole=()):
    """Of a whole number: the next ones, and multiples."""
    if kinds.get(name) == "int":
        yield from (f"({name} - 1)", f"({name} + 1)")
        yield from (f"({n} * {name})" for n in whole)
        yield from (f"({name} * {other})" for other in kinds if kinds[other] == "int")


def fits(template, value):
    """May what has this value stand in this template?"""
    kind, tensor = kind_of(value), isinstance(value, torch.Tensor)
    if "gather" in template:
        return tensor and kind == "index" and value.dtype is torch.int64
    if "argsort" in template:
        return tensor and kind == "index" and value.dim() == 1
    if "[" in template:
        return kind in ("index", "int")
    if "@" in template:
        return tensor and kind == "number" and value.dim() > 0
    if "~" in template:
        return tensor and value.dtype is torch.bool
    truth = tensor and value.dtype is torch.bool
    return not (truth and any(sign in template for sign in "><+-"))


def suits(template, node, kinds):
    """Has what stands here such a method? No list has, no whole number, and no size."""
    return "}." not in template or not is_of_no_tensor(node, kinds)


def is_of_no_tensor(node, kinds):
    match node:
        case ast.Name(id=name):
            return kinds.get(name, "int") == "int"
        case ast.BinOp(left=a, right=b):
            return is_of_no_tensor(a, kinds) and is_of_no_tensor(b, kinds)
        case ast.UnaryOp(operand=of) | ast.Subscript(value=of):
            return is_of_no_tensor(of, kinds)
        case ast.Call(func=ast.Name(id="range" | "len" | "list" | "zip" | "enumerate")):
            return True
        case ast.Call(func=ast.Attribute(attr="append" | "size" | "numel" | "dim")):
            return True
        case ast.Attribute(attr=attr):
            return attr == "shape" or kinds.get(ast.unparse(node)) == "int"
    return isinstance(node, (ast.Constant, ast.List, ast.Tuple))


def grows(source, template, node, name, values, kinds):
    """Would something get more dimensions, perhaps one in each round of a loop?"""
    if "unsqueeze" in template:
        return source.is_in_a_loop(node)
    value = values.get(name)
    large = value.dim() > 0 if isinstance(value, torch.Tensor) else name and name not in values
    return bool(large) and is_of_no_tensor(node, kinds)


def is_name(node):
    """A variable, or what ctx holds."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "ctx"
    return isinstance(node, ast.Name) and node.id not in (*MODULES, "ctx")


def is_sign(node):
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def is_argument(source, node):
    """Of a call: is it an argument, or (False) what is called? Otherwise None."""
    parent = source.up[node][2]
    return parent.func is not node if isinstance(parent, ast.Call) else None


def is_used(source, node):
    """Is it an argument of a call, or what has the method that is called?"""
    parent = source.up[node][2]
    return is_argument(source, node) or is_argument(source, parent) is False


def is_value(source, node):
    kinds = ast.Name, ast.Call, ast.BinOp, ast.Subscript, ast.Attribute, ast.UnaryOp
    if not isinstance(node, kinds) or is_argument(source, node) is False or is_of_sizes(node):
        return False
    return ast.unparse(node) not in ("ctx", "ctx.saved_tensors", *MODULES)


def is_of_sizes(node):
    """Is it a shape, or a part of one? Times a number, it is one of very many dimensions."""
    match node:
        case ast.Subscript(value=value, slice=ast.Slice()):
            return is_of_sizes(value)
        case ast.Call(func=ast.Attribute(attr="size"), args=[]):
            return True
    return isinstance(node, ast.Attribute) and node.attr == "shape"


def is_whole(source, node):
    """Is it all that is returned, or assigned?"""
    parent = source.up[node][2]
    parent = source.up[parent][2] if isinstance(parent, ast.Tuple) else parent
    return isinstance(parent, ast.stmt)


def parts_of(source):
    """The elements and slices of a variable that stand in the source."""
    found = [node for node in source.body if isinstance(node, ast.Subscript)]
    found = [n for n in found if isinstance(n.ctx, ast.Load) and isinstance(n.value, ast.Name)]
    return list(dict.fromkeys(ast.unparse(node) for node in found))[:PARTS]


def elsewhere_indexed(source, kinds):
    """Other tensors at the indices that stand in the source, of one dimension."""
    found = {ast.unparse(n.slice): None for n in source.body if isinstance(n, ast.Subscript)
             and isinstance(n.slice, (ast.Name, ast.BinOp))}  # fmt: skip
    names = [name for name, kind in kinds.items() if kind == "number" and "ctx." not in name]
    return [f"{name}[{index}]" for index in list(found)[:PARTS] for name in names]


def sizes_of(values):
    """How many elements some tensors have, and along which dimension."""
    tensors = [n for n, t in values.items() if isinstance(t, torch.Tensor) and t.dim()][:PARTS]
    found = [f"{name}.shape[{d}]" for d in (-1, 0, -2, 1) for name in tensors]
    return [*found, *(f"{name}.numel()" for name in tensors)]


def of_two(names):
    """Products and ratios of what may be brought in."""
    some = [name for name in names if "ctx" not in name][:PAIRED]
    found = [f"({a} * {b})" for a, b in itertools.combinations_with_replacement(some, 2)]
    return [*found, *(f"({a} / {b})" for a, b in itertools.permutations(some, 2))]


def centred(source, values):
    """What normalisations and softmaxes pass on, along the dimensions that stand in the source."""
    tensors = [n for n, t in values.items() if isinstance(t, torch.Tensor) and t.dim() > 1
               and t.is_floating_point() and "ctx." not in n][:PARTS]  # fmt: skip
    dims = {}
    for node in source.body:
        match node:
            case ast.Call(func=ast.Attribute(attr="sum" | "mean"), args=args, keywords=keywords):
                given = [*args, *(k.value for k in keywords if k.arg == "dim")]
                dims |= {ast.unparse(d): None for d in given[:1]}
    found = []
    for (a, b), d in itertools.product(itertools.permutations(tensors, 2), list(dims)[:2]):
        mean = f"({{}}).mean({d}, keepdim=True)"
        rest = f"{b} * {mean.format(f'{a} * {b}')}"
        found += [f"{a} - {rest}", f"{a} - {mean.format(a)} - {rest}"]
        found += [f"{b} * ({a} - ({a} * {b}).sum({d}, keepdim=True))"]
    return found


def changes_nothing(node):
    """Has it no method that changes what it is called of, or leaves PyTorch?"""
    attributes = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    in_place = {name for name in attributes if name.endswith("_")}
    return not attributes & (NEVER | {"data", "append", "pop", "update"} | in_place)


def factors_of(source, values):
    """What else is multiplied, divided or added somewhere in the Function, and is known here."""
    known, found = {*values, *MODULES}, {}
    for node in (*source.body, *(new for _, new in source.elsewhere), *source.returned):
        for part in ast.walk(node) if node not in source.body else (node,):
            match part:
                case ast.BinOp(left=a, op=ast.Mult() | ast.Div() | ast.Add() | ast.Sub(), right=b):
                    found |= dict.fromkeys((part, a, b))
    wanted = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Subscript, ast.Attribute)
    texts = {
        ast.unparse(node): None for node in found if isinstance(node, wanted)
        and {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} <= known
        and changes_nothing(node)
    }  # fmt: skip
    return [f"({text})" for text in sorted(texts, key=len) if len(text) < LONG][:FACTORS]


def of_one_argument(source):
    """The functions of this class, or that it calls, that take one tensor."""
    found = dict.fromkeys(source.siblings)
    for node in source.body:
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            name = ast.unparse(node.func)
            # A function that is defined here would call itself, again and again.
            if name in source.fn.__globals__ or name.split(".")[0] in MODULES:
                found[name] = None
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda(args=of)):
                if len(of.args) == 1:
                    found[name] = None
    return list(found)


def of_more_arguments(source, kinds):
    """Calls that stand in the source, of functions of the user: another argument, and a gap."""
    found = {}
    for node in source.body:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
            if node.func.id in source.fn.__globals__ and not node.keywords:
                for name in (name for name in kinds if kinds[name] == "number"):
                    found[f"{node.func.id}({name}, {{}})"] = None
                    found[f"{node.func.id}({{}}, {name})"] = None
    return list(found)[:CALLS]


def is_number(node):
    """As it is written, with its sign."""
    node = node.operand if is_sign(node) else node
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def power_of(node):
    """Of a square, or a higher power."""
    match node:
        case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=int(n))) if n > 1:
            return n
    return None


def others_of(node, kinds):
    """What may stand in the place of one factor of a power."""
    return [name for name, kind in kinds.items()
            if kind == "number" and name != ast.unparse(node.left)]  # fmt: skip


def gathered(name, values):
    """Of other tensors, elements that make the same shape."""
    like = values.get(name)
    if isinstance(like, torch.Tensor) and like.dim():
        for text, shape in at_indices(values).items():
            if shape == like.shape and not text.startswith(f"{name}["):
                yield text


def at_indices(values):
    """{text: shape} of the tensors at the indices that are at hand."""
    tensors = {n: t for n, t in values.items() if isinstance(t, torch.Tensor) and t.numel()}
    indices = {n: i for n, i in tensors.items() if i.dtype is torch.int64 and i.dim()}
    pairs = itertools.product(tensors.items(), indices.items())
    return {
        f"{name}[{index}]": i.shape + t.shape[1:]
        for (name, t), (index, i) in pairs
        if t.dim() and kind_of(t) == "number" and 0 <= i.min() and i.max() < len(t)
    }
