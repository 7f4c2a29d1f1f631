"""What is suspected is measured, element by element."""

import functools
import math

import torch

from ..function.budget import affordable
from ..function.tensors import Dice, as_vector, is_symmetric, largest
from ..measure.gradient import WrongGradient, measured
from ..measure.point import Point
from ..measure.screening import KINK, too_much
from ..measure.slopes import agrees, half_change, rest_of, wide_slope
from ..report import brief, note
from ..words import N_, _

SYMMETRIC_ONLY = note(
    "symmetric-only",
    "The gradient of {x}, which is symmetric, is right for symmetric changes, not for "
    "others, as where forward reads one triangle.",
)
COARSE_FORWARD = note(
    "coarse-forward",
    "Forward is exact to about {size} only, so that the gradient of {x} was compared "
    "with differences over wide steps.",
)
# Of the output, at least; what moves in larger steps does so on purpose.
EXACT_TO = 5e-4
LONG = N_("element by element, that would take long")


def wrong_gradients(exam, suspected):
    """({(i, o): `WrongGradient`}, notes): what came of measuring what is suspected.

    A `WrongGradient` holds a `Gradient` for each point at which it is wrong, at most two.
    The notes are about what is right after all.
    """
    subject, wrong, notes, coarse = exam.subject, {}, [], {}
    # Which inputs, elements and points the calls suffice for.
    due = [s for s in suspected if s.verdict in ("wrong", "unsure")]
    inputs = sorted({s.i for s in due})
    points = 1 if too_much(subject.values) or subject.is_slow else 2
    number, limit = affordable(subject, len(inputs), points)
    left = {s.i for s in suspected if s.verdict == "unknown"} | {*inputs[number:]}
    for i in left:
        exam.not_judged(_(LONG), subject.inputs[i])
    right = {(s.i, s.o) for s in suspected if s.here and s.verdict == "right"}
    for s in due:
        io = s.i, s.o
        if s.i in left or len(wrong.get(io, ())) >= points:
            continue
        here = remeasured(s, limit)
        note = None if subject.reference else excuse(s, here)
        if note and note.code == COARSE_FORWARD.code:
            coarse.setdefault(io, note)
        elif note:
            notes.append(note)
        # If not all elements are examined, the wrong one may not be among them.
        elif here.wrong.any() or s.verdict == "wrong" and here.sparse:
            wrong.setdefault(io, []).append(here)
        elif s.here and here.whole:
            right.add(io)
    for io, note in coarse.items():
        if io not in wrong:  # wide steps judge it
            points = max(exam.judged[note.input].points, 1)
            exam.note_judged(note.input, points=points, order=1)
            notes.append(note)
    several = any(not s.here for s in suspected)
    right -= {*wrong_there_too(suspected, wrong, right, limit)} if several else set()
    others = {(s.i, s.o) for s in suspected if s.verdict in ("wrong", "unknown")}
    through = frozenset(wrong.keys() | others)
    together = tuple(some[0] for some in wrong.values())
    found = {
        io: WrongGradient(tuple(at), io in right and several, through, together)
        for io, at in wrong.items()
    }
    return found, notes


def wrong_there_too(suspected, wrong, right, limit):
    """What looked right at the given point, and is wrong by little, which is added."""
    for s in suspected:
        io = s.i, s.o
        if s.here and io in wrong and io in right:
            here = remeasured(s, limit)
            if here.wrong.any():
                wrong[io].insert(0, here)
                yield io


def remeasured(s, limit):
    """The `Gradient` of what is suspected, with the v that show it."""
    s.point.limit = min(s.point.limit, limit)
    here = measured(s.point, s.i, s.o)
    if s.verdict == "wrong" and not (here.wrong.any() or here.sparse):
        louder = Point(s.point.subject, s.point.dice, s.point.values, s.factors)
        return measured(louder, s.i, s.o)
    return here


def excuse(s, here):
    """The note that differences say too little, or of changes that nobody makes."""
    is_wrong = here.wrong.any()
    if (
        (is_wrong or s.verdict == "wrong")
        and is_symmetric(here.x)
        and right_if_symmetric(here)
    ):
        return SYMMETRIC_ONLY(here.input)
    if is_wrong and not adds_up(here):
        return KINK(here.input)
    if is_wrong and (size := exact_to(here)):
        return COARSE_FORWARD(here.input, size=brief(size))
    return None


def adds_up(here):
    """Is the slope along all elements the sum of theirs?"""
    if not here.whole or here.x.is_complex():
        return True
    u = Dice().direction(here.x).reshape(-1)
    slope, products = here.slope(u), here.expected * as_vector(u)
    pairs = zip(map(as_vector, here.vs), products, strict=True)
    near = [
        agrees(v, slope, row, 1e-3, 1e-3 * row.abs().sum().item()) for v, row in pairs
    ]
    return all(near) or not slope.trusted.all()


def exact_to(here):
    """How exact forward is, a power of 10, if wide steps make it right; otherwise 0.

    A forward that iterates until it is exact to 1e-4, say, stops a step earlier or
    later where its input moves: narrow differences show how the last step moves, or
    nothing.
    """
    vs, size = torch.stack([as_vector(v) for v in here.vs]), 0.0
    for _turn in range(3):
        u = torch.zeros_like(here.row(here.x))
        u[here.elements] = (
            here.row(here.point.dice.direction(here.x))[here.elements] * here.trusted
        )
        move = {here.i: u.reshape(here.shape).to(here.x.dtype)}
        half = functools.partial(half_change, here.point, move, here.o)
        wide = wide_slope(half)
        slope = vs @ wide
        given, expected = (
            rows @ u[here.elements] for rows in (here.sampled, here.expected)
        )
        if (given - slope).norm() > 0.1 * min((expected - slope).norm(), slope.norm()):
            return 0
        size = max(size, rest_of(half, wide))
    return (
        10.0 ** round(math.log10(size))
        if 0 < size < EXACT_TO * largest(here.point.y0[here.o])
        else 0
    )


def right_if_symmetric(here):
    """Is v · J · u right for a symmetric u, and is the gradient not just transposed?"""
    turned = here.given.reshape(-1, *here.shape).mT.reshape(here.given.shape)
    if here.wrong.any() and here.fits(turned):
        return False
    point = here.point
    u = point.dice.direction(here.x, symmetric=True)
    v, products = as_vector(here.vs[0]), as_vector(here.given[0]) * as_vector(u)
    floor = max(1e-11, point.eps) * (v * point.y0[here.o]).norm()
    return agrees(v, here.slope(u), products, point.tolerance, floor)
