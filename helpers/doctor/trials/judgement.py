"""What is suspected is measured, element by element."""

import functools
import math

import torch

from ..function.budget import calls_allowed, shared
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


class Judgement:
    """What came of measuring what is suspected.

    wrong: {(i, o): list of `Gradient`}, one for each point at which it is wrong, at
           most two
    notes: findings about what is right after all, or was not measured
    right: (i, o) of what is right at the given point
    left:  the inputs for which there were no calls left
    """

    def __init__(self, exam, suspected):
        self.exam, self.suspected, self.wrong, self.notes = exam, suspected, {}, []
        self.right = {(s.i, s.o) for s in suspected if s.here and s.verdict == "right"}
        self.coarse = {}
        self.choose()
        for s in self.judged:
            found = self.wrong.get((s.i, s.o), ())
            if s.i not in self.left and len(found) < self.points:
                self.measure(s)
        self.notes += [
            self.of_coarse(i, size)
            for (i, o), size in self.coarse.items()
            if (i, o) not in self.wrong
        ]

    def choose(self):
        """Which inputs, elements and points the calls suffice for."""
        subject = self.exam.subject
        self.judged = [s for s in self.suspected if s.verdict in ("wrong", "unsure")]
        inputs = {s.i for s in self.judged}
        self.points = 1 if too_much(subject.values) or subject.is_slow else 2
        calls = calls_allowed(subject) // self.points
        number, self.limit = shared(calls, len(inputs))
        unknown = {s.i for s in self.suspected if s.verdict == "unknown"}
        self.left = unknown | set(sorted(inputs)[number:])
        for i in self.left:
            self.exam.not_judged(_(LONG), subject.inputs[i])

    def measure(self, s):
        """Measure one. Is it wrong, or right after all?"""
        s.point.limit = min(s.point.limit, self.limit)
        here = measured(s.point, s.i, s.o)
        if s.verdict == "wrong" and not (here.wrong.any() or here.sparse):
            louder = Point(s.point.subject, s.point.dice, s.point.values, s.factors)
            here = measured(louder, s.i, s.o)
        if not here.subject.reference and self.is_excused(s, here):
            return
        # If not all elements are examined, the wrong one may not be among them.
        if here.wrong.any() or s.verdict == "wrong" and here.sparse:
            self.wrong.setdefault((s.i, s.o), []).append(here)
        elif s.here and here.whole:
            self.right.add((s.i, s.o))

    def is_excused(self, s, here):
        """Is it that differences say too little, or of changes that nobody makes?"""
        is_wrong = here.wrong.any()
        if (
            (is_wrong or s.verdict == "wrong")
            and is_symmetric(here.x)
            and right_if_symmetric(here)
        ):
            self.notes.append(SYMMETRIC_ONLY(here.input))
        elif is_wrong and not adds_up(here):
            self.notes.append(KINK(here.input))
        elif is_wrong and (size := exact_to(here)):
            self.coarse.setdefault((s.i, s.o), size)
        else:
            return False
        return True

    def of_coarse(self, i, size):
        """The note about an input that wide steps judge."""
        x = self.exam.subject.inputs[i]
        self.exam.note_judged(x, points=max(self.exam.judged[x].points, 1), order=1)
        return COARSE_FORWARD(x, size=brief(size))

    def wrong_gradients(self):
        """{(i, o): `WrongGradient`} of what is wrong."""
        several = any(not s.here for s in self.suspected)
        due = [s for s in self.suspected if s.verdict in ("wrong", "unknown")]
        through = frozenset(self.wrong.keys() | {(s.i, s.o) for s in due})
        together = tuple(some[0] for some in self.wrong.values())
        return {
            io: WrongGradient(
                tuple(at), io in self.right and several, through, together
            )
            for io, at in self.wrong.items()
        }


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
