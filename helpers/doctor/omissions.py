"""The edits that put in what was left out: a function, a factor, a term or an index."""

import ast
import functools
import itertools

from .around import Around
from .edits import Edit, bracketed, parsed, with_other_sums
from .several import before, of_one_name
from .slips import batch_first
from .slots import (
    at_indices,
    centred,
    elsewhere_indexed,
    factors_of,
    fits,
    grows,
    is_of_no_tensor,
    is_value,
    is_whole,
    kinds_of,
    of_more_arguments,
    of_one_argument,
    of_two,
    parts_of,
    sizes_of,
    slots_of,
    suits,
)

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


def omissions(source, values, terms=False):
    """A function, a factor, a term or an index that was left out; terms: these come first."""
    kinds = kinds_of(values)
    several = {name for name, value in values.items() if isinstance(value, (tuple, list))}
    slots = [slot for slot in slots_of(source) if is_value(source, slot[2])
             and ast.unparse(slot[2]) not in several]  # fmt: skip
    slots.sort(key=functools.partial(is_later, source))
    ways = [f"{name}({{}})" for name in of_one_argument(source)]
    batched = range(len(values.get("in_dims", ())))
    ways += [f"{{}}.movedim(in_dims[{k}], 0)" for k in batched]
    with_a_name = WITH_A_NAME[::-1] if terms else WITH_A_NAME
    then = [(template, name) for template in with_a_name for name in kinds]
    then += [(template, "") for template in AROUND]
    then += [(template, text) for template in WITH_A_PART for text in parts_of(source)]
    then += [(template, name) for template in THEN for name in kinds]
    parts = {form for text in parts_of(source) for form in (text, f"({text})")}
    factors = factors_of(source, values)
    others = *factors, *at_indices(values), *elsewhere_indexed(source, kinds), *sizes_of(values)
    others = dict.fromkeys(others)
    rare = [(template, text) for template in WITH_A_PART for text in others if text not in parts]
    pairs = [*itertools.product(WITH_A_PART[:3], of_two([*kinds, *factors]))]
    wholes = [slot for slot in slots if is_whole(source, slot[2])]
    then, rare = then + rare, set(rare)
    if terms:
        some = itertools.product(with_a_name[:2], at_indices(values))
        then = [*some, *then]

    def turned(name):
        return [template.format(name) for template in EACH] if name in kinds else []

    yield from before(source, slots_of(source))
    for owner, key, node in slots:
        yield from (Edit([(owner, key, new)], node) for new in with_other_sums(node))
    for template in ways:
        for owner, key, node in slots:
            if suits(template, node, kinds):
                yield Edit([(owner, key, parsed(template.format(bracketed(node))))], node)
    for template in of_more_arguments(source, kinds):
        for owner, key, node in (slot for slot in slots if is_whole(source, slot[2])):
            yield Edit([(owner, key, parsed(template.format(bracketed(node))))], node)
    yield from of_one_name(source, slots, turned)
    yield from batch_first(source)
    yield from of_sizes(source, slots, kinds)
    yield from in_one_round(source, slots)
    texts = {node: bracketed(node) for *_, node in slots}
    for template, name in then:
        if name not in values or fits(template, values[name]):
            for slot in slots:
                text = texts[slot[2]]
                if suits(template, slot[2], kinds) and not (
                    grows(source, template, slot[2], name, values, kinds)
                    or text == name
                    and template in ("{0} + {1}", "{0} - {1}")
                ):
                    plain = is_later(source, slot) == 0
                    yield Around(slot, template, name, (template, name) in rare, plain)
    for (template, name), slot in itertools.product(pairs, wholes):
        if suits(template, slot[2], kinds):
            yield Around(slot, template, name, rare=True)
    sums = [slot for slot in slots if isinstance(slot[2], ast.BinOp)]
    for name, slot in itertools.product(centred(source, values), sums):
        yield Around(slot, "{1}", name, rare=True)


def is_later(source, slot):
    """Names, and all that is assigned or returned, come first."""
    node = slot[2]
    indexed = isinstance(source.up[node][2], ast.Subscript)
    return 2 - (isinstance(node, ast.Name) and not indexed) - is_whole(source, node)


def of_sizes(source, slots, kinds):
    """A whole number lacks two others as factors."""
    counts = [name for name, kind in kinds.items() if kind == "int"]
    for owner, key, node in slots:
        if is_of_no_tensor(node, kinds) and is_whole(source, node):
            for a, b in itertools.combinations(counts, 2):
                yield Edit([(owner, key, parsed(f"{bracketed(node)} * ({a} * {b})"))], node)


def in_one_round(source, slots):
    """In the first round of a loop, what is assigned is only a part of it."""
    for owner, key, node in slots:
        loop = source.statement(node)
        while loop in source.up and not isinstance(loop, ast.For):
            loop = source.up[loop][2]
        target = getattr(loop, "target", None)
        if isinstance(target, ast.Name) and isinstance(node, ast.BinOp) and is_whole(source, node):
            for part in (node.left, node.right):
                yield Edit([(owner, key, ast.IfExp(parsed(target.id), node, part))], node)
