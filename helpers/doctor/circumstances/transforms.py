"""Trials of what a Function declares beyond backward: its jvp, and its rule for vmap.

A Function that declares neither costs nothing here: each raises by itself when it is asked for.
"""

import itertools
import traceback

import torch
from torch.autograd import Function, forward_ad

from ..function.private import FUNCTORCH
from ..function.surroundings import CallError, draws, phase, reseed
from ..function.tensors import as_vector, differentiable, largest, position, tensors
from ..measure.slopes import slopes_along
from ..name.exceptions import told
from ..name.where import relation
from ..report import error, note
from .examination import Trials
from .forward import nodes
from .reached import unwatched

trial = Trials()
NOISY = (
    "forward-not-finite", "input-not-finite", "backward-not-finite", "backward-not-deterministic",
    "state-between-calls", "saved-modified", "raised", "too-coarse",
)  # fmt: skip


def declaring(exam, *names):
    """The Functions that are applied, and declare one of these: {name: Function}."""
    found = {}
    for cls in {node._forward_cls: None for node in nodes(exam)}:
        if any(getattr(cls, name) is not getattr(Function, name) for name in names):
            found[cls.__name__] = cls
    return found


def called(exam, values):
    """All outputs for these values of the examined inputs, handed over as they are."""
    subject = exam.subject
    given = dict(enumerate(subject.tensors)) | dict(zip(subject.examined, values, strict=True))
    reseed(0)
    return tensors(subject.call([t.clone() for t in given.values()]), "output")


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
def tangents(exam):
    yield from exam.with_line(of_tangents, "jvp")


def of_tangents(exam):
    subject, names = exam.subject, list(declaring(exam, "jvp"))
    if not names:
        return
    name = " and ".join(names)
    lies = {f.input for f in exam.findings if f.code == "unfaithful"}
    symmetric, alone, wrong = exam.has("one-triangle", "symmetric-only"), [], []
    us = [exam.dice.direction(value, symmetric) for value in subject.values]
    for i, x in enumerate(subject.inputs):
        try:
            alone.append(moved(exam, {i: us[i]}))
        except CallError as raised:
            if NO_JVP in str(raised.error):
                others = [n for n in declaring(exam, "backward") if n not in names]
                yield JVP_MISSING(name=name, other=" and ".join(others) or "another Function")
                return
            yield told(subject, raised, JVP_FAILS, x, name=name)
            return
        against = against_backward if x in lies else against_differences
        wrong += list(against(exam, i, us[i], alone[i], name))
    yield from wrong or against_the_sum(exam, us, alone, name)


def moved(exam, us):
    """J · u by forward mode, for every output that has a gradient; otherwise None.

    us: the tangents of some inputs, by their number.
    """
    values = [v.detach() for v in exam.subject.values]
    with phase("jvp"), forward_ad.dual_level():
        for i, u in us.items():
            values[i] = forward_ad.make_dual(values[i], u)
        pairs = [forward_ad.unpack_dual(o) for _, o in called(exam, values)]
    pairs = [(y, t) for y, t in pairs if differentiable(y)]
    pairs = [(y, torch.zeros_like(y) if t is None else t) for y, t in pairs]
    graded = [o.requires_grad for o in exam.run.outputs]
    return [t if has else None for (_, t), has in zip(pairs, graded, strict=True)]


def against_differences(exam, i, u, found, name):
    subject = exam.subject
    y0 = [as_vector(o) for o in exam.run.outputs]
    with unwatched():
        slopes = slopes_along(subject.forward, subject.values, {i: u}, y0, subject.eps)
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
            if given.any() and torch.equal(given, as_vector(moved(exam, {i: 2 * u})[o])):
                how = f"does not change with that of `{subject.inputs[i]}`"
            at = position(k // (2 if output.is_complex() else 1), output.shape)
            seen = {"at": at, "given": given[k].item(), "expected": slope.value[k].item()}
            x = subject.inputs[i]
            yield JVP_WRONG(x, y, seen, name=name, what=f"`{x}` moves", how=how)


def against_backward(exam, i, u, found, name):
    """Both modes must tell the same lie: v · tangent is the gradient times u."""
    subject, vs, grad = exam.subject, exam.vs, exam.first.grads[i]
    doubled = subject.gradients(subject.values, [2 * v for v in vs])[i]
    if grad is None or not exam.same(doubled, 2 * grad):
        return  # no linear map, as of a clip, so it has no tangent
    pairs = [(as_vector(v), as_vector(t)) for v, t in zip(vs, found, strict=True) if t is not None]
    given = sum((v * t).sum().item() for v, t in pairs)
    expected = (as_vector(grad) * as_vector(u)).sum().item()
    limit = exam.tolerance * max(largest(as_vector(grad) * as_vector(u)), abs(expected))
    if not abs(given - expected) <= limit:
        how = relation(*(torch.tensor([t]) for t in (given, expected, limit)), subject.numbers)
        seen = {"along a random step, given": given, "by backward": expected}
        x, how = subject.inputs[i], f"{how}, against backward"
        yield JVP_WRONG(x, "the output", seen, name=name, what=f"`{x}` moves", how=how)


def against_the_sum(exam, us, alone, name):
    """A tangent is linear: where all inputs move, it is the sum."""
    if len(us) < 2:
        return
    try:
        both = moved(exam, dict(enumerate(us)))
    except CallError as raised:
        yield told(exam.subject, raised, JVP_FAILS, exam.subject.inputs[0], name=name)
        return
    for y, given, *each in zip(exam.run.names, both, *alone, strict=True):
        if given is not None and not close(exam, given, sum(each)):
            how = "is not the sum of what it is where each moves alone"
            seen = differ(given, sum(each))
            yield JVP_WRONG(None, y, seen, name=name, what="all inputs move", how=how)


# --- vmap -----------------------------------------------------------------------------------------

VMAP_WRONG = error(
    "vmap-wrong",
    "Under vmap, `{name}` gives another {what} than a loop over the batch, where the batch is "
    "dimension {dim} of {over}.",
    look="{rule}",
)
OUT_DIMS_WRONG = error(
    "out-dims-wrong",
    "`{name}.vmap` returns the right numbers for {y}, but out_dims names another dimension than "
    "that of the batch.",
    look="the second of what the rule returns: the batch's dimension in each output, or None",
)
VMAP_FAILS = error(
    "vmap-fails",
    "Under vmap, `{name}` {fails} a batch that is dimension {dim} of {over}.",
    look="{rule}",
)
BY_HAND = "the rule: in_dims says where each argument has its batch, or None if it has none"
GENERATED = (
    "forward, setup_context and backward, which generate_vmap_rule runs on batches: no .item(), no "
    "NumPy, no branches on values, nothing in place on what has no batch"
)


@trial(unless=NOISY)
def over_batches(exam):
    yield from exam.with_line(of_batches, "vmap")


def of_batches(exam):
    rules = declaring(exam, "vmap", "generate_vmap_rule")
    if not rules or not exam.subject.run(exam.subject.values) or draws():
        return
    subject = exam.subject
    by_hand = any(cls.vmap is not Function.vmap for cls in rules.values())
    words = {"name": " and ".join(rules), "rule": BY_HAND if by_hand else GENERATED}
    others = dict(zip(subject.examined, map(exam.dice.nearby, subject.values), strict=True))
    pairs = [(t, others.get(k, t)) for k, t in enumerate(subject.tensors)]
    alone = [{k} for k in range(len(pairs))][:6]
    for batched in [*alone, set(range(len(pairs)))] if len(pairs) > 1 else alone:
        try:
            loop = [one_of_batch(exam, pairs, batched, which) for which in (0, 1)]
        except CallError:  # not at the other point
            continue
        names = [subject.names[k] for k in sorted(batched)]
        over = " and of ".join(f"`{n}`" for n in names) if len(names) < 4 else "all tensors"
        for dim in (0, -1):
            where = {"over": over, "dim": dim, **words}
            finding = compared(exam, pairs, batched, dim, loop, where, by_hand)
            if finding:
                yield finding
                return


def one_of_batch(exam, pairs, batched, which):
    """Outputs and gradients for one of the two elements of the batch."""
    values = [pairs[k][which if k in batched else 0] for k in exam.subject.examined]
    run = exam.subject.run(values)
    return run.outputs, exam.subject.backward(run, exam.vs)


def compared(exam, pairs, batched, dim, loop, where, by_hand):
    """The finding that vmap with this batch is due, or None."""
    subject = exam.subject
    given = [torch.stack(pair, dim) if k in batched else pair[0] for k, pair in enumerate(pairs)]
    for k in subject.examined:
        given[k] = given[k].detach().clone().requires_grad_()
    in_dims = tuple(dim if k in batched else None for k in range(len(pairs)))
    x = subject.names[min(batched)]
    try:
        reseed(0)
        with phase("vmap"):
            outputs = torch.func.vmap(
                lambda *ts: [t for _, t in tensors(subject.call([t.clone() for t in ts]))],
                in_dims, randomness="same",
            )(*given)  # fmt: skip
        outputs = [o for o in outputs if differentiable(o)]
        for y, o, *expected in zip(exam.run.names, outputs, *(run for run, _ in loop), strict=True):
            expected = torch.stack(expected)
            if o.shape != expected.shape or not close(exam, o, expected):
                if by_hand and misread(exam, o, expected):
                    return OUT_DIMS_WRONG(x, y, differ(o, expected), **where)
                return VMAP_WRONG(x, y, differ(o, expected), what="result", **where)
        if dim == 0:  # the gradient is asked for once
            return None
        graded = [(o, v) for o, v in zip(outputs, exam.vs, strict=True) if o.requires_grad]
        leaves = [given[k] for k in subject.examined]
        with phase("backward of vmap"):
            grads = torch.autograd.grad(
                [o for o, _ in graded], leaves, [v.expand(2, *v.shape) for _, v in graded],
                allow_unused=True,
            )  # fmt: skip
    except CallError as raised:
        exam.given_up = True
        return told(subject, raised, VMAP_FAILS, x, **where) if to_blame(exam, raised) else None
    for k, grad, *each in zip(subject.examined, grads, *(g for _, g in loop), strict=True):
        each = [torch.zeros_like(pairs[k][0]) if g is None else g for g in each]
        expected = torch.stack(each, dim) if k in batched else sum(each)
        grad = torch.zeros_like(expected) if grad is None else grad
        if not close(exam, grad, expected):
            what = f"gradient of `{subject.names[k]}`"
            return VMAP_WRONG(x, seen=differ(grad, expected), what=what, **where)
    return None


def close(exam, a, b):
    return exam.same(a, b, exam.tolerance * largest(as_vector(b)))


def misread(exam, output, expected):
    """Is it right but for the dimension of the batch?"""
    dims = itertools.permutations(range(output.dim()), 2) if output.dim() < 6 else ()
    moved = [output.movedim(0, said).movedim(found, 0) for said, found in dims]
    moved += [output[0]] if len(output) == 2 else []  # out_dims is None
    return any(t.shape == expected.shape and close(exam, t, expected) for t in moved)


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
    frames = traceback.extract_tb(raised.error.__traceback__)
    return bool(exam.subject.cls) or any(f.filename == FUNCTORCH for f in frames)
