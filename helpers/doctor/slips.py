"""The edits of a function's source that `rewritten` tries: each undoes one slip of the pen."""

import ast
import functools
import itertools
import re

import torch

from .edits import KINDS, MODULES, Edit, bracketed, numbers, parsed, scattered
from .lines import of_a_line, statements
from .rearranged import (
    chains,
    delayed,
    first_term,
    folded,
    forwards,
    gates,
    halves,
    in_and_out,
    permuted,
    relabelled,
    reordered,
    together,
)
from .several import (
    called_as_elsewhere,
    cut_off,
    exchanged_letters,
    exchanges,
    from_the_other_end,
    in_all_alike,
    in_full,
    is_alike,
    longer,
    of_one_name,
)
from .slots import (
    changes_nothing,
    gathered,
    is_name,
    is_number,
    is_of_no_tensor,
    is_sign,
    is_used,
    is_value,
    kind_of,
    kinds_of,
    others,
    others_of,
    power_of,
    scaled,
    slots_of,
    suits,
)

FIRST = "-{}", "{}.mT", "{}.conj()", "{}.real"
COUNT = r"^len\(\w+\)$|^\w+\.(numel\(\)|shape\[-?\w+\]|size\(-?\w+\))$"  # of all, and masked ones?
TINY = 1e-3
LONGEST = 5000  # dimension, of which there may be two by mistake


def slips(source, values):
    """What was written in the place of something else, or in another order.

    values: {name: value} of what there is when the function returns
    """
    slots, kinds = slots_of(source), kinds_of(values)
    yield from guards(source, slots)
    for owner, key, node in slots if source.saves else ():  # what is changed in place
        if is_value(source, node) and suits("{}.clone()", node, kinds):
            yield Edit([(owner, key, parsed(f"{bracketed(node)}.clone()"))], node)
    yield from in_full(source)
    yield from copied(source, slots, kinds, lambda name: len(name) > 1)
    yield from as_elsewhere(source, values)
    yield from other_indices(source, of_the_line=True)
    literals = [n for n in source.literals if n != round(n) or abs(n) > 3]
    for (owner, key, node), n in itertools.product(slots, literals):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value != n:
            sums = isinstance(getattr(source.up[node][2], "op", None), (ast.Add, ast.Sub))
            if not sums or abs(n) > TINY:  # else it would be nearly nothing
                yield Edit([(owner, key, ast.Constant(n))], node)
    yield from other_masks(source, slots, values)
    yield from of_kinds(source, slots, KINDS)
    yield from copied(source, slots, kinds, lambda name: len(name) == 1)
    values_only = [slot for slot in slots if is_value(source, slot[2])]
    for template, (owner, key, node) in itertools.product(FIRST, values_only):
        if suits(template, node, kinds):
            yield Edit([(owner, key, parsed(template.format(bracketed(node))))], node)
    yield from the_other_way(source)
    yield from in_all_alike(source, slots)
    yield from longer(source)
    yield from cut_off(source)
    yield from called_as_elsewhere(source, values)
    yield from statements(source)
    yield from of_kinds(
        source,
        slots,
        (
            reordered,
            in_and_out,
            together,
            first_term,
            gates,
            chains,
            halves,
            folded,
            relabelled,
            forwards,
            delayed,
        ),
    )
    yield from exchanges(source, slots)
    yield from from_the_other_end(source)
    yield from other_indices(source, of_the_line=False)
    yield from other_slices(source, slots, values, kinds)
    yield from exchanged_letters(source, kinds)
    yield from of_kinds(source, slots, [functools.partial(permuted, values=values)])
    yield from of_one_name(
        source, slots, lambda name: [*others(name, kinds), *multiples(source, name, kinds)]
    )
    for owner, key, node in slots:
        for new in in_place_of(source, node, values, kinds):
            if not is_idle(source.up[node][2], node, parsed(new)):
                yield Edit([(owner, key, parsed(new))], node)


def other_masks(source, slots, values):
    """Another mask that is at hand in the place of a comparison."""
    masks = [n for n, value in values.items() if getattr(value, "dtype", None) is torch.bool]
    for name, (owner, key, node) in itertools.product(masks, slots):
        if isinstance(node, ast.Compare):
            yield Edit([(owner, key, parsed(name))], node)


def guards(source, slots):
    """Another number of an input that needs a gradient: that of what is made if it does, first."""
    returned = [line.value for line in source.body if isinstance(line, ast.Return)]
    for owner, key, node in slots:
        parent = source.up[node][2]
        if isinstance(parent, ast.Subscript) and "needs_input_grad" in ast.unparse(parent.value):
            line = source.statement(node)
            made = {n.id for n in ast.walk(line) if isinstance(n, ast.Name)
                    and isinstance(n.ctx, ast.Store)}  # fmt: skip
            own = [k for value in returned if isinstance(value, ast.Tuple)
                   for k, part in enumerate(value.elts) if ast.unparse(part) in made]  # fmt: skip
            news = [ast.Constant(k) for k in own if ast.unparse(node) != str(k)]
            yield from (Edit([(owner, key, new)], node) for new in (*news, *numbers(node)))


def batch_first(source):
    """In a rule for vmap, each batch is moved to the front before all else."""
    _, *rest = source.definition.args.args
    if not rest or rest[0].arg != "in_dims":
        return
    moves = {x.arg: f"{x.arg}.movedim(in_dims[{k}], 0)" for k, x in enumerate(rest[1:])}
    lines = [
        f"{x} = {x} if in_dims[{k}] is None else {move}"
        for k, (x, move) in enumerate(moves.items())
    ]
    puts = [(source.definition.body, slice(0, 0), ast.parse("\n".join(lines)).body)]
    for node in source.body:
        match node:
            case ast.Return(value=ast.Tuple(elts=[_, out_dims] as pair)):
                puts.append((pair, 1, ast.Constant(0)))
                said = f"{', '.join(f'`{move}`' for move in moves.values())} came first"
                old = source.quoted(out_dims)
                said += f", and 0 stood in place of `{old}`" * (old != "0")
                yield Edit(puts, node, said)


def whole_of(source):
    """The whole numbers above 1 that forward is written with."""
    return [n for n in source.literals if type(n) is int and n > 1]


def multiples(source, name, kinds):
    """Of a whole number: but not of what forward keeps, as blocks so large that one is enough."""
    return () if source.saves else scaled(name, kinds, whole_of(source))


def of_kinds(source, slots, kinds):
    for kind, (owner, key, node) in itertools.product(kinds, slots):
        for new in kind(node):
            parent, literals = source.up[node][2], source.literals
            idle = is_idle(parent, node, new, literals)
            if is_sign(parent):  # a bound below zero
                idle |= is_idle(source.up[parent][2], parent, new, literals)
            if not (is_sign(new) and is_sign(parent)) and not idle:
                yield Edit([(owner, key, new)], node)


def is_idle(parent, old, new, literals=()):
    """Would it exchange a dimension with itself, or make up a bound?"""
    match parent:
        case ast.Call(func=ast.Attribute(attr="transpose"), args=[a, b]):
            return ast.unparse(new) == ast.unparse(b if old is a else a)
        case ast.Compare(comparators=[_]):
            negative = isinstance(new, ast.UnaryOp) and isinstance(old, ast.Constant)
            bound = getattr(new, "value", 0) if isinstance(new, ast.Constant) else 0
            other = parent.comparators[0] if old is parent.left else parent.left
            made_up = negative or bound not in (0, *literals)
            return made_up or ast.unparse(new) == ast.unparse(other)
    return False


def of_no_shape(source, values):
    """Slips that can be undone in much data: nothing is broadcast to what fills the memory."""
    tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
    if max((n for t in tensors for n in t.shape), default=0) <= LONGEST:
        for owner, key, node in slots_of(source):
            parent = source.up[node][2]
            if isinstance(parent, ast.Subscript) and ast.unparse(parent.value).endswith(".shape"):
                yield from (Edit([(owner, key, new)], node) for new in numbers(node))
    yield from in_full(source)
    yield from the_other_way(source)
    numbers_only = {name for name, value in values.items() if kind_of(value) and not dims(value)}
    for line in source.body:
        if isinstance(line, (ast.Assign, ast.AugAssign)):
            for edit in of_a_line(source, *source.up[line][:2]):
                owner, _, new = edit.puts[0]
                match new if isinstance(owner, list) else owner:
                    case ast.AugAssign() | ast.Assign(targets=[ast.Subscript()]):  # in place
                        yield edit
                    case ast.Assign(targets=[ast.Name(id=name)]) if name in numbers_only:
                        yield edit
    yield from of_kinds(source, slots_of(source), (scattered,))
    for owner, key, node in slots_of(source):
        if re.search(COUNT, ast.unparse(node)):
            yield from (Edit([(owner, key, parsed(new))], node) for new in counted(values))


def dims(value):
    return value.dim() if isinstance(value, torch.Tensor) else 0


# --- one thing for another ------------------------------------------------------------------------


def copied(source, slots, kinds, some):
    """A name that is written almost like another: what was copied was not changed everywhere."""
    for owner, key, node in slots:
        if is_name(node):
            name = ast.unparse(node)
            for other in others(name, kinds) if some(name) else ():
                if is_alike(name, other):
                    yield Edit([(owner, key, parsed(other))], node)


def as_elsewhere(source, values):
    """What another method computes under this name."""
    known = {*values, *MODULES, *(n.id for n in source.body if isinstance(n, ast.Name))}
    for line in source.body:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=old):
                for other, new in source.elsewhere:
                    names = {n.id for n in ast.walk(new) if isinstance(n, ast.Name)}
                    if other == name and names <= known and changes_nothing(new):
                        if ast.unparse(new) != ast.unparse(old):
                            yield Edit([(line, "value", new)], old)


def other_slices(source, slots, values, kinds):
    """A slice that stands elsewhere, in forward, too; that starts later, or moves with a loop."""
    found = {ast.unparse(node): node for *_, node in slots if isinstance(node, ast.Slice)}
    known = values.keys() | {node.id for node in source.body if isinstance(node, ast.Name)}
    for text, node in source.slices.items():
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        on_ctx = {name for name in names - known if f"ctx.{name}" in values}
        if names <= known | on_ctx:
            for name in on_ctx:
                text = re.sub(rf"\b{name}\b", f"ctx.{name}", text)
            found[text] = ast.parse(f"x[{text}]", mode="eval").body.slice if on_ctx else node
    loops = [node.target for node in source.body if isinstance(node, (ast.For, ast.comprehension))]
    counted = list(dict.fromkeys(target.id for target in loops if isinstance(target, ast.Name)))
    for owner, key, node in slots:
        for text, other in found.items() if isinstance(node, ast.Slice) else ():
            if text not in (ast.unparse(node), ":"):
                yield Edit([(owner, key, other)], node)
        match node:
            case ast.Slice(lower=a, upper=b, step=c) if b:
                later = [name for name in kinds if kinds[name] == "int"]
                later = counted if a and ast.unparse(a) != "0" else [*counted, *later]
                for name in later:
                    start = f"{ast.unparse(a)} + {name}" if a and ast.unparse(a) != "0" else name
                    ends = parsed(start), parsed(f"{ast.unparse(b)} + {name}")
                    yield Edit([(owner, key, ast.Slice(*ends, c))], node)


def in_place_of(source, node, values, kinds):
    """The names that may stand in the place of a name, a number or an argument."""
    lists = [name for name, value in values.items() if isinstance(value, list) and value]
    if isinstance(node, (ast.Name, ast.Subscript)):
        yield from (f"{name}[-1]" for name in lists if isinstance(values[name][-1], torch.Tensor))
    if is_name(node):
        name = ast.unparse(node)
        yield from others(name, kinds)
        yield from multiples(source, name, kinds)
        yield from gathered(name, values)
        if is_of_numbers(values.get(name)):
            yield f"[-n for n in {name}]"
    elif is_number(node) and not is_sign(source.up[node][2]):
        inside = isinstance(source.up[node][2], ast.Subscript)
        wanted = "int", "index" if inside else "number"
        yield from (name for name, kind in kinds.items() if kind in wanted)
    elif isinstance(node, ast.BinOp) and is_of_no_tensor(node, kinds):
        yield from counted(values)
        yield from (name for name, kind in kinds.items() if kind == "int")
    elif power := power_of(node):
        yield from (f"{bracketed(node.left)} ** {power - 1} * {n}" for n in others_of(node, kinds))
    elif isinstance(node, ast.Subscript) or (
        isinstance(node, (ast.Call, ast.BinOp)) and (is_used(source, node) or is_filled(node))
    ):
        yield from (name for name, kind in kinds.items() if kind == "number")
    yield from at_an_index(node, values)
    yield from at_each_index(node, values)
    if re.search(COUNT, ast.unparse(node)):
        yield from counted(values)
        yield from (name for name, kind in kinds.items() if kind in ("int", "number"))
    elif is_name(node) and kinds.get(ast.unparse(node)) == "int":
        if isinstance(getattr(source.up[node][2], "op", None), (ast.Mult, ast.Div)):
            yield from (name for name, kind in kinds.items() if kind == "number")


def is_of_numbers(value):
    """Are there several numbers, as of the shifts of a roll?"""
    return isinstance(value, (list, tuple)) and {type(n) for n in value} <= {int, float}


def at_each_index(node, values):
    """In the place of a reduction, the elements of an index for each row, as of its group."""
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr="sum" | "mean" | "amax" | "amin" | "max")):
            for name, index in values.items():
                if getattr(index, "dtype", None) is torch.int64 and index.dim() == 1:
                    yield f"{bracketed(of)}[{name}]"
                    yield f"{bracketed(of)}[{name}, None]"


def is_filled(node):
    """Is it a tensor of one number?"""
    names = "ones", "zeros", "full", "ones_like", "zeros_like", "full_like"
    return getattr(getattr(node, "func", None), "attr", "") in names


def counted(values):
    """How many a mask lets through."""
    for name, value in values.items():
        if getattr(value, "dtype", None) is torch.bool:
            yield f"{name}.sum()"


def at_an_index(node, values):
    """In the place of a reduction over one dimension, the elements that an index picks."""
    match node:
        case (
            ast.Attribute(value=ast.Call() as call, attr="values")
            | ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=0))
            | (ast.Call(func=ast.Attribute(attr="sum" | "mean" | "amax" | "amin" | "prod")) as call)
        ):
            pass
        case _:
            return
    given = [*call.args, *(k.value for k in call.keywords if k.arg == "dim")]
    if isinstance(call.func, ast.Attribute) and len(given) == 1:
        of, dim = bracketed(call.func.value), ast.unparse(given[0])
        for name, index in values.items():
            if getattr(index, "dtype", None) is torch.int64 and index.dim():
                picked = f"{of}.gather({dim}, {name}.unsqueeze({dim}))"
                keeps = any(k.arg == "keepdim" for k in call.keywords)
                yield picked if keeps else f"{picked}.squeeze({dim})"


def the_other_way(source):
    """A loop runs from the other end."""
    for node in source.body:
        if isinstance(node, (ast.For, ast.comprehension)) and node.iter in source.body:
            turned = parsed(f"list({ast.unparse(node.iter)})[::-1]")
            yield Edit([(node, "iter", turned)], node.iter)


def other_indices(source, of_the_line):
    """An index, or the place where something is put, that stands elsewhere, or in this line."""
    places = [node for node in source.body if isinstance(node, ast.Subscript)]
    known = {}
    for node in places:
        lines = known.setdefault(ast.unparse(node.slice), {})
        lines[source.statement(node)] = node.slice
    for node in places:
        for text, lines in known.items():
            in_line = source.statement(node) in lines
            if text != ast.unparse(node.slice) and in_line == of_the_line:
                yield Edit([(node, "slice", next(iter(lines.values())))], node)
