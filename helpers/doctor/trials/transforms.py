"""Trials of what else is asked of a Function: a tangent (jvp), a batch (vmap).

A Function that declares neither jvp nor a rule for vmap costs nothing here: each raises
by itself when it is asked for.
"""

import traceback

import torch
from torch.autograd import Function, forward_ad

from ..causes.exceptions import as_finding
from ..causes.where import relation
from ..function.isolation import CallError, phase
from ..function.private import FUNCTORCH, is_a_users
from ..function.tensors import Dice, as_vector, largest, shaped, worst
from ..measure.point import Point
from ..measure.slopes import slopes_along
from ..report import error
from ..words import N_, _, listed

# --- what a Function declares ---------------------------------------------------------


def declaring(exam, *names):
    """{name: Function} of the user's that are applied, and declare one of these."""
    return {
        cls.__name__: cls
        for cls in filter(is_a_users, exam.subject.functions)
        if any(getattr(cls, name) is not getattr(Function, name) for name in names)
    }


# --- forward mode ---------------------------------------------------------------------

JVP_WRONG = error(
    "jvp-wrong",
    "Where {what}, the tangent of {y} that `{name}.jvp` gives {how}.",
    look="the derivative of forward times the tangent of each input, the same "
    "derivative as in backward, not transposed",
)
JVP_FAILS = error(
    "jvp-fails",
    "`{name}.jvp` fails with the tangent of {x}.",
    look="one tangent for each output, of its shape; None arrives for what does not "
    "move under set_materialize_grads(False); save_for_forward",
)


def forward_mode(exam):
    """Is what jvp gives the derivative, if inputs move alone, and together?"""
    subject, declared = exam.subject, declaring(exam, "jvp")
    name = listed(declared, last=" and ")
    lies = {f.input for f in exam.findings if f.code == "unfaithful"}
    us = {
        i: exam.dice.direction(value)
        for i, value in enumerate(subject.values)
        if subject.inputs[i] not in lies
    }
    every = [{i: u} for i, u in us.items()]
    if len(us) > 1:
        every.append(us)
    for moves in every if declared else ():
        x = subject.inputs[min(moves)]
        try:
            found = moved(exam, moves)
        except CallError as raised:
            if "must implement the jvp" not in str(
                raised.error
            ):  # as another Function must
                yield as_finding(subject, raised, JVP_FAILS, x, name=name)
            return
        what = _("all inputs move")
        if len(moves) == 1:
            what = _("`{x}` moves", x=x)
        if finding := against_differences(exam, moves, found, name=name, what=what):
            yield finding
            return


def moved(exam, us):
    """J · u by forward mode, for every output.

    us: the tangents of some inputs, by their number.
    """
    subject = exam.subject
    given = [*subject.tensors]
    with phase("jvp"), forward_ad.dual_level():
        for i, u in us.items():
            k = subject.examined[i]
            given[k] = forward_ad.make_dual(given[k], u)
        pairs = [forward_ad.unpack_dual(o) for o in subject.outputs(given)]
    return [torch.zeros_like(y) if t is None else t for y, t in pairs]


def against_differences(exam, us, found, **words):
    """The finding for the first output with a wrong tangent, or None."""
    subject = exam.subject
    if subject.reference:  # which need not be smooth
        return None
    slopes = slopes_along(Point(subject, Dice()), us)
    for o, (tangent, slope) in enumerate(zip(found, slopes, strict=True)):
        if o not in exam.graded:
            continue
        given = as_vector(tangent)
        limit = 10 * slope.error + subject.tolerance * largest(slope.value)
        expected = torch.where(slope.trusted, slope.value, given)
        wrong = (given - expected).abs().nan_to_num(torch.inf) > limit
        if wrong.any():
            x, y = subject.inputs[min(us)], exam.run.names[o]
            doubled = moved(exam, {i: 2 * u for i, u in us.items()})[o]
            how = _("is wrong")
            if torch.equal(tangent, doubled) and given.any():
                how = _("does not change with that of `{x}`", x=x)
            elif len(given) > 1:  # one number is another's multiple by chance
                pair = given[wrong], expected[wrong]
                _kind, how = relation(*pair, limit[wrong])
            seen = worst(tangent, shaped(expected, tangent))
            return JVP_WRONG(x, y, seen, how=how, **words)
    return None


# --- vmap -----------------------------------------------------------------------------

VMAP_WRONG = error(
    "vmap-wrong",
    "Under vmap, `{name}` gives another {what} than a loop over the batch, where "
    "{where}.",
)
VMAP_FAILS = error(
    "vmap-fails",
    "Under vmap, `{name}` fails on inputs that require a gradient, where {where}.",
)
BY_HAND = N_(
    "the rule: in_dims says where each argument has its batch, or None if it has none"
)
GENERATED = N_(
    "forward, setup_context and backward, which generate_vmap_rule runs on batches: no "
    ".item(), no NumPy, no branches on values, nothing in place on what has no batch, "
    "and the same tensors for save_for_forward as for save_for_backward"
)


def over_batches(exam):
    """Is what the rule for vmap gives the same as a loop gives?

    Each tensor has a batch, alone, then all of them; first as dimension 0, then as the
    last.
    """
    subject, rules = exam.subject, declaring(exam, "vmap", "generate_vmap_rule")
    if not rules or exam.draws:
        return
    by_hand = any(cls.vmap is not Function.vmap for cls in rules.values())
    more = {
        "name": listed(rules, last=" and "),
        "remedy": _(BY_HAND if by_hand else GENERATED),
    }
    pairs = [
        (t, exam.dice.nearby(t) if k in subject.examined else t)
        for k, t in enumerate(subject.tensors)
    ]
    everything = tuple(range(len(pairs)))
    for batched in dict.fromkeys([*((k,) for k in everything[:6]), everything]):
        try:
            loop = [one_of_batch(exam, pairs, batched, which) for which in (0, 1)]
        except CallError:  # not at the other point
            continue
        x = subject.names[batched[0]]
        over = listed((f"`{subject.names[k]}`" for k in batched), " and of ")
        for dim in (0, -1):
            where = _("the batch is dimension {dim} of {over}", dim=dim, over=over)
            try:
                if wrong := compared(exam, pairs, batched, dim, loop):
                    yield VMAP_WRONG(x, **wrong, where=where, **more)
                    return
            except CallError as raised:
                if to_blame(exam, raised):
                    found = {"where": where, **more}
                    yield as_finding(subject, raised, VMAP_FAILS, x, **found)
                    return


def one_of_batch(exam, pairs, batched, which):
    """Outputs and gradients for one of the two elements of the batch."""
    values = [pairs[k][which if k in batched else 0] for k in exam.subject.examined]
    run = exam.subject.run(values)
    return run.outputs, exam.subject.backward(run, exam.vs)


def compared(exam, pairs, batched, dim, loop):
    """The words for what vmap gives in place of a loop's result, or None."""
    subject = exam.subject
    in_dims = tuple(dim if k in batched else None for k in range(len(pairs)))
    given = [
        pair[0] if at is None else torch.stack(pair, at)
        for pair, at in zip(pairs, in_dims, strict=True)
    ]
    for k in subject.examined:
        given[k] = given[k].clone().requires_grad_()
    with phase("vmap"):
        over = torch.func.vmap(
            lambda *ts: subject.outputs(ts), in_dims, randomness="same"
        )
        outputs = over(*given)
    due = [torch.stack(pair) for pair in zip(*(run for run, _ in loop), strict=True)]
    found = [(_("result"), o, pair) for o, pair in zip(outputs, due, strict=True)]
    if all(o.shape == pair.shape for _, o, pair in found):
        graded = [
            (o, v) for o, v in zip(outputs, exam.vs, strict=True) if o.requires_grad
        ]
        outputs, vs = [o for o, _ in graded], [v.expand(2, *v.shape) for _, v in graded]
        with phase("backward of vmap"):
            leaves = [given[k] for k in subject.examined]
            grads = torch.autograd.grad(outputs, leaves, vs, materialize_grads=True)
        for k, grad, *each in zip(
            subject.examined, grads, *(g for _, g in loop), strict=True
        ):
            each = [torch.zeros_like(pairs[k][0]) if g is None else g for g in each]
            due = torch.stack(each, dim) if k in batched else sum(each)
            found.append((_("gradient of `{x}`", x=subject.names[k]), grad, due))
    for what, a, b in found:
        if a.shape != b.shape or not exam.same(
            a, b, subject.tolerance * largest(as_vector(b))
        ):
            return {"values": worst(a, b), "what": what}
    return None


def to_blame(exam, raised):
    """Did the Function fail that declares the rule, and not on purpose?"""
    if isinstance(raised.error, NotImplementedError):
        return False
    files = {f.filename for f in traceback.extract_tb(raised.error.__traceback__)}
    # `checkpoint` runs forward again after vmap has ended, whatever forward is.
    again = torch.utils.checkpoint.__file__ in files
    return bool(exam.subject.cls) or FUNCTORCH in files and not again
