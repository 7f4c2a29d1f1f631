"""Trials of what a Function declares beyond backward: its jvp, and its rule for vmap.

A Function that declares neither costs nothing here: each raises by itself when it is asked for.
"""

import traceback

import torch
from torch.autograd import Function, forward_ad

from ..function.private import FUNCTORCH, is_a_users
from ..function.surroundings import CallError, draws, phase, reseed
from ..function.tensors import as_vector, differentiable, largest, position, tensors
from ..measure.slopes import slopes_along
from ..name.exceptions import told
from ..name.where import relation
from ..report import error, note
from .examination import Trials
from .kept import nodes

trial = Trials()
NOISY = (
    "forward-not-finite", "input-not-finite", "backward-not-finite", "backward-not-deterministic",
    "state-between-calls", "saved-modified", "raised", "too-coarse",
)  # fmt: skip


def declaring(exam, *names):
    """The user's Functions that are applied, and declare one of these: {name: Function}."""
    classes = dict.fromkeys(node._forward_cls for node in nodes(exam))
    return {
        cls.__name__: cls for cls in filter(is_a_users, classes)
        if any(getattr(cls, name) is not getattr(Function, name) for name in names)
    }  # fmt: skip


def called(exam, given):
    """The outputs that can have a gradient, for these tensors, handed over as they are."""
    reseed(0)
    found = tensors(exam.subject.call([t.clone() for t in given]))
    return [t for _, t in found if differentiable(t)]


def close(exam, a, b):
    """Are they the same but for what differences may be off?"""
    return exam.same(a, b, exam.tolerance * largest(as_vector(b)))


# --- forward mode ---------------------------------------------------------------------------------

JVP_WRONG = error(
    "jvp-wrong",
    "Where {what}, the tangent of {y} that `{name}.jvp` gives {how}.",
    look="the derivative of forward times the tangent of each input, the same derivative as in "
    "backward, not transposed",
)
JVP_FAILS = error(
    "jvp-fails",
    "`{name}.jvp` {fails} the tangent of {x}.",
    look="one tangent for each output, of its shape; None arrives for what does not move under "
    "set_materialize_grads(False); save_for_forward",
)
JVP_MISSING = note(
    "jvp-missing", "`{name}` declares a jvp, but `{other}` does not, so forward mode raises."
)
NO_JVP = "must implement the jvp"


@trial(unless=NOISY)
def forward_mode(exam):
    """Is what jvp gives the derivative of forward?"""
    yield from exam.with_line(tangents, "jvp")


def tangents(exam):
    """Each input moves alone, then all of them together; until a tangent is wrong."""
    subject, names = exam.subject, list(declaring(exam, "jvp"))
    lies = {f.input for f in exam.findings if f.code == "unfaithful"}
    symmetric = exam.has("one-triangle", "symmetric-only")
    us = {i: exam.dice.direction(value, symmetric) for i, value in enumerate(subject.values)
          if names and subject.inputs[i] not in lies}  # fmt: skip
    name = " and ".join(names)
    for some in [*({i: u} for i, u in us.items()), us][: len(us) + (len(us) > 1)]:
        x = subject.inputs[min(some)]
        try:
            found = moved(exam, some)
        except CallError as raised:
            text, words = JVP_FAILS, {"name": name}
            if NO_JVP in str(raised.error):
                others = [n for n in declaring(exam, "backward") if n not in names]
                text, words["other"] = JVP_MISSING, " and ".join(others) or "another Function"
            yield told(subject, raised, text, x, **words)
            return
        what = f"`{x}` moves" if len(some) == 1 else "all inputs move"
        for finding in against_differences(exam, some, found, name, what):
            yield finding
            return


def moved(exam, us):
    """J · u by forward mode, for every output that has a gradient; otherwise None.

    us: the tangents of some inputs, by their number.
    """
    subject = exam.subject
    given = [t.detach() for t in subject.tensors]
    with phase("jvp"), forward_ad.dual_level():
        for i, u in us.items():
            given[subject.examined[i]] = forward_ad.make_dual(subject.values[i].detach(), u)
        pairs = [forward_ad.unpack_dual(o) for o in called(exam, given)]
    found = [torch.zeros_like(y) if t is None else t for y, t in pairs]
    return [t if o.requires_grad else None for t, o in zip(found, exam.run.outputs, strict=True)]


def against_differences(exam, us, found, name, what):
    """Findings for the outputs whose tangents are not what differences say."""
    subject, y0 = exam.subject, [as_vector(o) for o in exam.run.outputs]
    slopes = slopes_along(subject.forward, subject.values, us, y0, subject.eps)
    rows = zip(exam.run.names, exam.run.outputs, found, slopes, strict=True)
    for o, (y, output, given, slope) in enumerate(rows):
        if given is None:
            continue
        given = as_vector(given)
        limit = 10 * slope.error + exam.tolerance * largest(slope.value)
        off = torch.where(slope.trusted, (given - slope.value).abs().nan_to_num(torch.inf), 0.0)
        if (off > limit).any():
            k, wrong = int(off.argmax()), off > limit
            how = relation(given[wrong], slope.value[wrong], limit[wrong], subject.numbers)
            x = subject.inputs[min(us)]
            doubled = moved(exam, {i: 2 * u for i, u in us.items()})[o]
            if given.any() and torch.equal(given, as_vector(doubled)):
                how = f"does not change with that of `{x}`"
            elif given.any() and len(given) == 1:  # one number is another's multiple by chance
                how = "is wrong"
            at = position(k // (2 if output.is_complex() else 1), output.shape)
            seen = {"at": at, "given": given[k].item(), "expected": slope.value[k].item()}
            yield JVP_WRONG(x, y, seen, name=name, what=what, how=how)


# --- vmap -----------------------------------------------------------------------------------------

VMAP_WRONG = error(
    "vmap-wrong",
    "Under vmap, `{name}` gives another {what} than a loop over the batch, where {where}.",
    look="{rule}",
)
VMAP_FAILS = error("vmap-fails", "Under vmap, `{name}` fails where {where}.", look="{rule}")
BY_HAND = "the rule: in_dims says where each argument has its batch, or None if it has none"
GENERATED = (
    "forward, setup_context and backward, which generate_vmap_rule runs on batches: no .item(), no "
    "NumPy, no branches on values, nothing in place on what has no batch"
)
SAVED_APART = (  # what PyTorch's `assert flat_bdims is not None` is about
    "save_for_backward and save_for_forward: under generate_vmap_rule both must be given the same "
    "tensors in the same order"
)


@trial(unless=NOISY)
def over_batches(exam):
    """Is what the rule for vmap gives the same as a loop gives?"""
    yield from exam.with_line(batches, "vmap")


def batches(exam):
    """Each tensor with a batch, alone, then all of them; first as dimension 0, then as the last."""
    subject, rules = exam.subject, declaring(exam, "vmap", "generate_vmap_rule")
    if not rules or not subject.run(subject.values) or draws():
        return
    by_hand = any(cls.vmap is not Function.vmap for cls in rules.values())
    words = {"name": " and ".join(rules), "rule": BY_HAND if by_hand else GENERATED}
    others = dict(zip(subject.examined, map(exam.dice.nearby, subject.values), strict=True))
    pairs = [(t, others.get(k, t)) for k, t in enumerate(subject.tensors)]
    everything = [*range(len(pairs))]
    for batched in [*([k] for k in everything[:6]), everything][: 1 if len(pairs) == 1 else None]:
        try:
            loop = [one_of_batch(exam, pairs, batched, which) for which in (0, 1)]
        except CallError:  # not at the other point
            continue
        over = " and of ".join(f"`{subject.names[k]}`" for k in batched)
        over = over if len(batched) < 4 else "all tensors"
        found = [compared(exam, pairs, batched, dim, loop) for dim in (0, -1)]
        dim = 0 if found[0] else -1
        if found[dim]:
            text, evidence, *raised = found[dim]
            anywhere = all(found) and found[0][0] is found[1][0] and raised
            where = "there is a batch" if anywhere else f"the batch is dimension {dim}"
            words["where"], x = f"{where} of {over}", subject.names[batched[0]]
            if raised and "flat_bdims" in frames_of(raised[0])[-1].line:
                words["rule"] = SAVED_APART
            if raised:
                yield told(subject, *raised, text, x, **words)
            else:
                yield text(x, **evidence, **words)
            return


def one_of_batch(exam, pairs, batched, which):
    """Outputs and gradients for one of the two elements of the batch."""
    values = [pairs[k][which if k in batched else 0] for k in exam.subject.examined]
    run = exam.subject.run(values)
    return run.outputs, exam.subject.backward(run, exam.vs)


def compared(exam, pairs, batched, dim, loop):
    """(text, words, or what was raised) for what vmap gives with this batch, or None."""
    subject = exam.subject
    given = [torch.stack(pair, dim) if k in batched else pair[0] for k, pair in enumerate(pairs)]
    for k in subject.examined:
        given[k] = given[k].detach().clone().requires_grad_()
    in_dims = tuple(dim if k in batched else None for k in range(len(pairs)))
    try:
        with phase("vmap"):
            over = torch.func.vmap(lambda *ts: called(exam, ts), in_dims, randomness="same")
            outputs = over(*given)
        for y, o, *expected in zip(exam.run.names, outputs, *(run for run, _ in loop), strict=True):
            expected = torch.stack(expected)
            if o.shape != expected.shape or not close(exam, o, expected):
                return VMAP_WRONG, {"y": y, "seen": differ(o, expected), "what": "result"}
        graded = [(o, v) for o, v in zip(outputs, exam.vs, strict=True) if o.requires_grad]
        outputs, vs = [o for o, _ in graded], [v.expand(2, *v.shape) for _, v in graded]
        with phase("backward of vmap"):
            leaves = [given[k] for k in subject.examined]
            grads = torch.autograd.grad(outputs, leaves, vs, allow_unused=True)
    except CallError as raised:
        exam.given_up = True
        return (VMAP_FAILS, {}, raised) if to_blame(exam, raised) else None
    for k, grad, *each in zip(subject.examined, grads, *(g for _, g in loop), strict=True):
        each = [torch.zeros_like(pairs[k][0]) if g is None else g for g in each]
        expected = torch.stack(each, dim) if k in batched else sum(each)
        grad = torch.zeros_like(expected) if grad is None else grad
        if not close(exam, grad, expected):
            what = f"gradient of `{subject.names[k]}`"
            return VMAP_WRONG, {"seen": differ(grad, expected), "what": what}
    return None


def differ(given, expected):
    """As evidence: the shapes, or the worst element."""
    if given.shape != expected.shape:
        return {"shape": list(given.shape), "expected": list(expected.shape)}
    off = (given - expected).abs().nan_to_num(torch.inf).reshape(-1)
    k = int((off >= 0.99 * off.max()).nonzero()[0])
    numbers = [t.reshape(-1)[k].item() for t in (given, expected)]
    return {"at": position(k, given.shape), "given": numbers[0], "expected": numbers[1]}


def to_blame(exam, raised):
    """Has the Function failed that declares the rule, and not what is around it, nor by will?"""
    if isinstance(raised.error, NotImplementedError):
        return False
    return bool(exam.subject.cls) or any(f.filename == FUNCTORCH for f in frames_of(raised))


def frames_of(raised):
    """The frames of an exception, the innermost last."""
    return traceback.extract_tb(raised.error.__traceback__)
