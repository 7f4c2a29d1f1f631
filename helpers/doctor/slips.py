"""The edits of a function's source that `rewritten` tries: each undoes one slip of the pen."""

import ast
import functools
import itertools
import re

import torch

from .edits import KINDS, MODULES, Edit, bracketed, numbers, parsed, scattered, with_other_sums
from .harmless import NEVER
from .lines import of_a_line, statements
from .rearranged import (
    chains,
    delayed,
    first_term,
    folded,
    forwards,
    gates,
    halves,
    permuted,
    relabelled,
    reordered,
    together,
)
from .several import (
    before,
    exchanged_letters,
    exchanges,
    in_all_alike,
    in_full,
    is_alike,
    of_one_name,
)
from .slots import (
    at_indices,
    fits,
    gathered,
    grows,
    is_name,
    is_number,
    is_sign,
    is_used,
    is_value,
    is_whole,
    kind_of,
    kinds_of,
    of_more_arguments,
    of_one_argument,
    others,
    others_of,
    parts_of,
    power_of,
    scaled,
    slots_of,
    suits,
)

FIRST = "-{}", "{}.mT", "{}.conj()", "{}.real"
AROUND = (
    "1 - {}", "{}.flip(0)", "{}.flip(-1)", "{}.flip(-2, -1)", "{}.argsort()",
    "{}.sqrt()", "{}.square()", "1 / {}", "{}.exp()", "{}.abs()", "{}.sign()", "{} + 1", "{} - 1",
    "2 * {}", "{} / 2", "{}.sum()", "{}.sum(0)", "{}.sum(-1)", "{}.sum(1)",
    "{}.sum(-1, keepdim=True)", "{}.sum(0, keepdim=True)", "{}.sum(1, keepdim=True)",
    "{}.sum(-2, keepdim=True)", "{}.sum(-2)",
    "{}.mean(-1, keepdim=True)", "{}.mean(0)", "{}.transpose(0, 1)", "{}.transpose(1, 2)",
    "{}.cumsum(0)", "{}.cumsum(-1)", "{}.diag()", "{}.unsqueeze(-1)", "{}.contiguous()", "{}.log()",
    "torch.pi * {}", "{} / torch.pi", "{}.tril()", "{}.triu()",
)  # fmt: skip
EACH = "{}.mT", "{}.conj()", "1 - {}", "-{}", "{}.sqrt()", "{}.square()", "1 / {}"
WITH_A_NAME = "{0}[{1}]", "{0}[{1}.argsort()]", "{0} * {1}", "{0} / {1}", "{0} - {1}", "{0} + {1}"
THEN = (
    "{0} @ {1}", "{1} @ {0}", "{0} * ({1} > 0)", "{0} * ({1} < 0)", "{0} * ~{1}",
    "{0} * (1 - {1})", "{0} * {1} ** 2", "{1}.gather(1, {0})", "{1}.gather(0, {0})",
    "{0}.gather(1, {1})", "{0}.gather(1, {1}.argsort(1))", "{0}.gather(0, {1}.argsort(0))",
)  # fmt: skip
WITH_A_PART = "{0} * {1}", "{0} + {1}", "{0} - {1}", "{0} * ~{1}", "{0} / {1}"
COUNT = r"^len\(\w+\)$|^\w+\.(numel\(\)|shape\[-?\w+\]|size\(-?\w+\))$"  # of all, and masked ones?
LONGEST = 5000  # dimension, of which there may be two by mistake


def slips(source, values):
    """What was written in the place of something else, or in another order.

    values: {name: value} of what there is when the function returns
    """
    slots, kinds = slots_of(source), kinds_of(values)
    for owner, key, node in slots:
        parent = source.up[node][2]
        if isinstance(parent, ast.Subscript) and "needs_input_grad" in ast.unparse(parent.value):
            yield from (Edit([(owner, key, new)], node) for new in numbers(node))
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
            yield Edit([(owner, key, ast.Constant(n))], node)
    yield from of_kinds(source, slots, KINDS)
    yield from copied(source, slots, kinds, lambda name: len(name) == 1)
    values_only = [slot for slot in slots if is_value(source, slot[2])]
    for template, (owner, key, node) in itertools.product(FIRST, values_only):
        if suits(template, node, kinds):
            yield Edit([(owner, key, parsed(template.format(bracketed(node))))], node)
    yield from the_other_way(source)
    yield from in_all_alike(source, slots)
    yield from statements(source)
    yield from of_kinds(
        source,
        slots,
        (
            reordered,
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
            parent = source.up[node][2]
            if not (is_sign(new) and is_sign(parent)) and not is_idle(parent, node, new):
                yield Edit([(owner, key, new)], node)


def is_idle(parent, old, new):
    """Would it exchange a dimension with itself, or switch a branch off by a bound below zero?"""
    match parent:
        case ast.Call(func=ast.Attribute(attr="transpose"), args=[a, b]):
            return ast.unparse(new) == ast.unparse(b if old is a else a)
        case ast.Compare(comparators=[_]):
            negative = isinstance(new, ast.UnaryOp) and isinstance(old, ast.Constant)
            other = parent.comparators[0] if old is parent.left else parent.left
            return negative or ast.unparse(new) == ast.unparse(other)
    return False


def omissions(source, values, terms=False):
    """A function, a factor, a term or an index that was left out; terms: these come first."""
    kinds = kinds_of(values)
    slots = [slot for slot in slots_of(source) if is_value(source, slot[2])]
    slots.sort(key=lambda slot: 2 - isinstance(slot[2], ast.Name) - is_whole(source, slot[2]))
    ways = [(f"{name}({{}})", "") for name in of_one_argument(source)]
    batched = range(len(values.get("in_dims", ())))
    ways += [(f"{{}}.movedim(in_dims[{k}], 0)", "") for k in batched]
    with_a_name = WITH_A_NAME[::-1] if terms else WITH_A_NAME
    then = [(template, name) for template in with_a_name for name in kinds]
    then += [(template, "") for template in AROUND]
    then += [(template, text) for template in WITH_A_PART for text in parts_of(source)]
    then += [(template, name) for template in THEN for name in kinds]
    if terms:
        some = itertools.product(with_a_name[:2], at_indices(values))
        then = [*some, *then]

    def turned(name):
        return [template.format(name) for template in EACH] if name in kinds else []

    yield from before(source, slots_of(source))
    for owner, key, node in slots:
        yield from (Edit([(owner, key, new)], node) for new in with_other_sums(node))
    for some in (ways, then):
        for template, name in some:
            if name not in values or fits(template, values[name]):
                for owner, key, node in slots:
                    if suits(template, node, kinds) and not grows(
                        source, template, node, values.get(name), kinds
                    ):
                        new = parsed(template.format(bracketed(node), name))
                        yield Edit([(owner, key, new)], node)
        if some is ways:
            for template in of_more_arguments(source, kinds):
                for owner, key, node in (slot for slot in slots if is_whole(source, slot[2])):
                    yield Edit([(owner, key, parsed(template.format(bracketed(node))))], node)
            yield from of_one_name(source, slots, turned)
            yield from batch_first(source)


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
                match edit.puts[0][2]:
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
                    nodes = list(ast.walk(new))
                    names = {n.id for n in nodes if isinstance(n, ast.Name)}
                    methods = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
                    harm = NEVER | {"data"} | {n for n in methods if n.endswith("_")}  # in place
                    if other == name and names <= known and not methods & harm:
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
    elif is_number(node) and not is_sign(source.up[node][2]):
        inside = isinstance(source.up[node][2], ast.Subscript)
        wanted = "int", "index" if inside else "number"
        yield from (name for name, kind in kinds.items() if kind in wanted)
    elif power := power_of(node):
        yield from (f"{bracketed(node.left)} ** {power - 1} * {n}" for n in others_of(node, kinds))
    elif isinstance(node, ast.Subscript) or (
        isinstance(node, (ast.Call, ast.BinOp)) and is_used(source, node)
    ):
        yield from (name for name, kind in kinds.items() if kind == "number")
    yield from at_an_index(node, values)
    if re.search(COUNT, ast.unparse(node)):
        yield from counted(values)
        yield from (name for name, kind in kinds.items() if kind in ("int", "number"))
    elif is_name(node) and kinds.get(ast.unparse(node)) == "int":
        if isinstance(getattr(source.up[node][2], "op", None), (ast.Mult, ast.Div)):
            yield from (name for name, kind in kinds.items() if kind == "number")


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
