"""What an edit is looked for, and the loop that looks."""

import ast
import contextlib
import functools
import inspect
import itertools
import math
import re

import torch
from torch.autograd import Function

from ..function.isolation import forgiving
from ..function.source import (
    UnsuitableError,
    closure,
    harmless,
    nodes_of,
    place,
    root,
)
from ..function.subject import own_grads
from ..function.tensors import is_symmetric
from ..measure.gradient import are_right
from ..words import N_, _, listed
from .edits import Code, running
from .foresight import HOPELESS, LIKELY, Foresight
from .grammar import (
    CUTS,
    EXPRESSIONS,
    FLAGS,
    FLAGS_OF,
    MANY,
    NOT_IN_PLACE,
    divides,
    edits_of,
    lines_of,
)

FEW = 4  # names that are told
SIZES = re.compile(
    r"= [\w.]+\.(shape(\[.*\])?|(size|numel)\(.*\))$|^for .* in (reversed\()?range\("
)
ASSIGNMENTS = ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For
UNSURE, ODD = 40, 200  # edits of each kind that are run
# Edits that are run when one has been found that mends not all that is wrong.
FURTHER = 20


def first_that_holds(wrong, edits, budget, fits):
    """(the first edit with which fits(edit) is true, or None; does it mend all?)."""
    subject, found, further = wrong.here.subject, None, 0
    others = [*wrong.others, *wrong.negated]
    for edit in itertools.chain(tuple(budget.known), edits):
        further += found is not None
        if budget.is_spent or further > FURTHER:
            break
        budget.spent += 1
        # The others are made without the edit.
        fine = in_place(subject, edit, fits, edit)
        if fine and in_place(subject, edit, are_right, others):
            found = found or edit
            if in_place(subject, edit, are_right, wrong.together):
                budget.known.append(edit)
                return edit, True
    budget.known += [found] if found else []
    return found, False


def in_place(subject, edit, test, *given):
    """test(*given), while the edit stands in its function; False if that raises.

    It is False, too, where a `try` around it answers the exception of the edited
    function, or where this, and not the function as it is, writes into grad_output:
    that is no cure.
    """
    code, raised = edit.code, []

    def watched(*args, **kwargs):
        try:
            return made(*args, **kwargs)
        except Exception as error:
            raised.append(error)
            raise

    with forgiving():
        made = code.compiled(edit.made_in(code.tree))
        with own_grads() as written, running(code.fn, watched):
            return test(*given) and not raised and (subject.protects or not written)
    return False


# --- right if: backward is edited until its gradient is right -------------------------


def right_if(wrong, budget, few, first):
    """The `Change` that makes this gradient right and keeps the others, or None.

    few: as in `find`; first: the `FirstWrong` that is known, in whose line it is sought
         first, and nowhere else if there a path is missing that is the cause of all
    """
    codes = editable(wrong.here.subject)
    stay, alone = guard_of(wrong), functools.partial(right_alone, wrong.here.subject)
    was_alone = alone()
    through_others = [other for other in wrong.together if other.i == wrong.here.i]
    partly = [one for one in wrong.together if one.right.any()]

    def keeps():
        """Are elements of other wrong gradients right still that were right?"""
        return all(one.fits(one.rows(), one.right) for one in partly)

    def fits(edit):
        asks = FLAGS_OF in edit.code.text and (was_alone or is_asked(edit))
        right = are_right(wrong.at) and are_right(through_others)
        return right and stay() and keeps() and (not asks or alone())

    edits = candidates(codes, wrong, budget, few, first) if codes else ()
    edit, mends_all = first_that_holds(wrong, edits, budget, fits)
    # Of a symmetric matrix, all points are symmetric, as forward may demand.
    tried = wrong.of_other_sizes and not any(map(is_symmetric, wrong.here.point.values))
    return edit and edit.change(bool(tried)), mends_all


def candidates(codes, wrong, budget, few, first):
    """Edits of these functions.

    First come those that are foreseen to mend it, then others that may; none divides by
    what may be 0.
    """
    if wrong.here.subject.protects:  # of what is written into, the rest may follow
        for code in codes:
            yield from edits_of(code, {}, NOT_IN_PLACE)
    ahead = Foresight(codes, wrong.here, budget)
    places, everywhere = [], (lambda edit: True, HOPELESS, never)
    for line in first.lines if first else ():  # whatever is foreseen, as in a loop
        is_there = functools.partial(acts_in, line)
        places.append((is_there, math.inf, is_there if first.is_part else never))
    if first and first.is_part:  # a term of what is made after that line
        places.append((first.is_of_it, HOPELESS, first.is_of_it))
    if not (first and first.is_part and first.is_cause):
        known = first and (first.is_part or first.is_cause)
        places.insert(len(places) if known else 0, everywhere)
    for one in places:
        for edit in ranked(codes, ahead, few, *one):
            if not divides(edit, ahead.hands.get(edit.code.root(edit.node), {})):
                yield edit
        if one is everywhere:  # the lines that are left are few
            ahead.evaluated = 0


def never(edit):
    return False


def acts_in(place, edit):
    """Is this edit made in this (file, line), or may it act there?"""
    code = edit.code
    line = code.line(code.statement(edit.node))
    return edit.is_in_place or place == (code.fn.__code__.co_filename, line)


def ranked(codes, ahead, few, is_due, hopeless, lacks_a_term):
    """Those edits for which is_due(edit), in the order in which they are tried.

    hopeless: so much would be left, as it is foreseen, of what is not tried
    """
    unsure, odd = ([], [], []), []

    def of_these(rows):
        for code in codes:
            edits = filter(is_due, edits_of(code, ahead.hands, rows))
            yield from ahead.ranked(edits)

    every = (pair for c in codes for pair in ahead.around(c, lacks_a_term))
    around = (pair for pair in every if is_due(pair[1]))
    kinds = of_these(EXPRESSIONS), around, of_these(MANY)
    for kind, pairs in zip(unsure, kinds, strict=True):
        for left, edit in pairs:
            if left is None:
                odd.append(edit)
            elif left < LIKELY:
                yield edit
            elif left < hopeless:
                kind.append((min(left, 1.0), len(kind), edit))
    if not few:
        lines = (edit for c in codes for edit in lines_of(c) if is_due(edit))
        yield from itertools.islice(lines, ODD)
        for kind in unsure:
            yield from (edit for *_, edit in sorted(kind)[:UNSURE])
    yield from odd[: UNSURE if few else ODD]


def is_asked(edit):
    """Does it stand in a condition, such as which gradients are asked for?"""
    for node in edit.puts:
        while node in edit.code.up:
            up = edit.code.up[node]
            if getattr(up, "test", None) is node:
                return True
            node = up
    return False


def right_alone(subject):
    """Is each gradient the same where no other one is asked for?"""

    def gradients(needs):
        return subject.for_ones(subject.run(needs=needs))

    every = gradients(True)
    for i, due in enumerate(every):
        one = gradients([j == i for j in range(len(every))])[i]
        if (one is None) != (due is None):
            return False
        if one is not None and not torch.allclose(one, due, 1e-6, 1e-9):
            return False
    return True


def guard_of(wrong):
    """What tells whether the gradients that are right now are so still."""
    point = wrong.here.point
    before = {
        (j, o): grad.clone()
        for o in range(len(point.outputs))
        for j, grad in enumerate(point.given(o)[0])
        if grad is not None and (j, o) not in wrong.wrong_through
    }

    def stay():
        now = [point.vjp({o: vs[0]}) for o, vs in enumerate(point.vs)]
        return all(
            torch.allclose(now[o][j], t, 1e-6, 1e-9) for (j, o), t in before.items()
        )

    return stay


# --- right if something were not cut off from autograd --------------------------------


def other_flag(subject):
    """The `Change` of a `needs_input_grad` that is right wherever one is asked for."""
    return right_by(FLAGS, subject, editable(subject), right_alone, subject)


def right_by(rows, subject, codes, test, *given):
    """The `Change` of the first edit by these rows with test(*given), or None."""
    edits = (edit for code in codes for edit in edits_of(code, {}, rows))
    right = (edit for edit in edits if in_place(subject, edit, test, *given))
    return next((edit.change() for edit in right), None)


def exits(subject):
    """What leaves autograd in the functions that forward calls, in words; or None."""
    found = [edit for code in plain_codes(subject) for edit in edits_of(code, {}, CUTS)]
    said = [
        _("`{old}` ({place})", old=edit.quoted()[1], place=edit.place())
        for edit in found
    ]
    said = [*dict.fromkeys(said)][:3]
    return _("what leaves autograd: {these}", these=listed(said)) if said else None


def unused(subject):
    """What backward assigns, or takes from ctx, and never reads, in words; or None."""
    found = {}
    for code in backward_codes(subject):
        names = [n for n in code.nodes if isinstance(n, ast.Name) and n.id[0] != "_"]
        alone = [n.value for n in code.nodes if isinstance(n, ast.Expr)]
        methods = [call.func for call in alone if isinstance(call, ast.Call)]
        filled = [m.value for m in methods if getattr(m, "attr", " ")[-1] == "_"]
        loaded = [n for n in names if isinstance(n.ctx, ast.Load) and n not in filled]
        read = {n.id for n in loaded}
        for node in names:
            line = code.beyond(node)
            is_size = line is not code.up[node] and SIZES.search(head_of(line))
            if node.id not in read and isinstance(line, ast.Assign) and not is_size:
                at = place(code.line(node), code.fn.__name__)
                found[_("`{old}` ({place})", old=node.id, place=at)] = None
    return found and _("what is at hand and never used: {these}", these=listed(found))


def common(subject, wrong):
    """What several wrong gradients go through, and no right one, in words; or None."""
    inputs = dict.fromkeys(one.input for one in wrong.together)
    is_told_here = [*inputs][0] == wrong.here.input  # and not for each of them
    if len(inputs) < 2 or not is_told_here or len(subject.functions) != 1:
        return None
    (cls,) = subject.functions
    forward, backward = codes_of([cls.forward], cls)[0], backward_codes(subject)[0]
    ends = [n.value for n in backward.nodes if isinstance(n, ast.Return)]
    if len(ends) != 1 or not isinstance(ends[0], ast.Tuple):
        return None
    # What forward computes in the same words, what it has saved, and sizes are as they
    # should be.
    known, lines = {*map(head_of, forward.nodes)}, {}
    for line in backward.nodes:
        text = head_of(line)
        is_right = text in known or "ctx." in text or SIZES.search(text)
        if not is_right and names_read(line):  # more than numbers
            for name in bound_by(line):
                lines.setdefault(name, []).append(line)

    def through(node):
        found, new = {}, [node]
        while new:
            names = names_read(new.pop()) & lines.keys() - found.keys()
            found |= dict.fromkeys(names)
            new += [line for name in names for line in lines[name]]
        return found.keys()

    by_right = {True: [], False: []}
    for x, returned in zip(forward.arguments, ends[0].elts, strict=False):
        by_right[x not in inputs].append(through(returned))
    shared = set.intersection(*map(set, by_right[False])).difference(*by_right[True])
    places = {name: [*map(backward.line, lines[name])] for name in shared}
    if not 0 < len(places) <= FEW:
        return None
    one, several = N_("`{name}` (line {line})"), N_("`{name}` (lines {line})")
    said = [
        _(several if at[1:] else one, name=name, line=listed(at))
        for name, at in sorted(places.items(), key=lambda item: item[1])
    ]
    return _("all that is wrong goes through {these}", these=listed(said))


def head_of(node):
    """A statement as text, a loop without what it repeats."""
    if isinstance(node, ast.For):
        return f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
    return ast.unparse(node) if isinstance(node, ast.stmt) else ""


def names_read(node):
    """The names that a statement reads, or an expression."""
    if isinstance(node, ast.For):
        node = node.iter
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    return {n.id for n in names if isinstance(n.ctx, ast.Load)}


def bound_by(node):
    """The names of the locals that a line binds, or whose tensors it changes."""
    if isinstance(node, ast.Expr):
        call = node.value
        if not isinstance(call, ast.Call):
            return []
        targets = [k.value for k in call.keywords if k.arg == "out"]
        method = getattr(call.func, "attr", " ")
        if method == "append" or method[-1] == "_":
            targets.append(call.func.value)
    elif isinstance(node, ASSIGNMENTS) and getattr(node, "value", node) is not None:
        targets = getattr(node, "targets", None) or [node.target]
    else:
        return []
    return dict.fromkeys(stored_in(targets))


def stored_in(targets):
    """The names that are assigned to, also in a part, in order."""
    for target in targets:
        parts = getattr(target, "elts", None)
        yield from stored_in(parts) if parts else filter(None, [root(target)])


# --- which functions ------------------------------------------------------------------


def codes_of(functions, cls=None):
    """The functions, and those that they call in their class and module."""
    found = {}
    for fn in map(inspect.unwrap, functions):
        names = [getattr(n, "id", getattr(n, "attr", "")) for n in nodes_of(fn)]
        of_class = [
            vars(cls).get(name) for name in names if cls and name not in vars(Function)
        ]
        of_module = [(fn.__globals__ | closure(fn)).get(name) for name in names]
        own = [held.__func__ for held in of_class if isinstance(held, staticmethod)]
        own += [
            held
            for held in of_module
            if getattr(held, "__module__", "") == fn.__module__
        ]
        for each in (fn, *filter(inspect.isfunction, own)):
            with contextlib.suppress(UnsuitableError):
                found[each] = found.get(each) or Code(each, cls)
    return list(found.values())


def backward_of(cls):
    return cls.vjp if cls.backward is Function.backward else cls.backward


def backward_codes(subject):
    """The backward of each Function that is applied, and what it calls."""
    return [
        code for cls in subject.functions for code in codes_of([backward_of(cls)], cls)
    ]


def editable(subject):
    """Those of them that do nothing but compute: only these may run in another form."""
    return [code for code in backward_codes(subject) if harmless(code, code.cls)]


def forward_codes(subject):
    """The forward of each Function that is applied, and what it calls."""
    return [
        code
        for cls in subject.functions
        for code in codes_of([cls.forward, cls.setup_context], cls)
    ]


def plain_codes(subject):
    """What autograd records: what runs in forward outside of a Function."""
    if subject.cls:
        return []
    modules = subject.scope.module.modules() if subject.is_module else ()
    own = {type(m) for m in modules if not type(m).__module__.startswith("torch.")}
    plain = [fn for cls in own for fn in vars(cls).values() if inspect.isfunction(fn)]
    plain += [subject.fn] if inspect.isfunction(subject.fn) else []
    return codes_of([fn for fn in plain if fn.__name__ != "__init__"])
