"""Each change of a step, with its words: what the step makes and what it should, in closed form."""

import pytest
import torch

from helpers.doctor.changes import FIRST, THEN
from helpers.doctor.expressions import matches
from helpers.doctor.repair import ELEMENTS, length
from helpers.doctor.steps import Step
from tests.common import random

A, B, C = (random(3, 4, seed=seed).detach() for seed in range(3))
SQUARE, OTHER = random(4, 4, seed=3).detach(), random(4, 4, seed=4).detach()
ROW, COLUMN = random(4, seed=5).detach(), random(3, seed=6).detach()
POSITIVE = A.abs() + 0.5
MASK, INDEX = A > 0, torch.tensor([1, 0, 1])
BATCH, MATRICES = random(3, 2, seed=7).detach(), random(3, 2, 4, seed=8).detach()
SCOPE = {"`a`": A, "`b`": B, "`c`": C, "`square`": SQUARE, "`other`": OTHER, "`row`": ROW}
SCOPE |= {"`column`": COLUMN, "`positive`": POSITIVE, "`mask`": MASK, "`index`": INDEX, "`n`": 7}
SCOPE |= {"`batch`": BATCH, "`matrices`": MATRICES, "the output": COLUMN}


def of(func, *args, **kwargs):
    step = object.__new__(Step)
    step.func, step.args, step.kwargs, step.scope, step.text = func, args, kwargs, SCOPE, "it all"
    step.before, step.edge, step.version, step.written = None, None, None, " ".join(SCOPE)
    step.made(func(*args, **kwargs))
    return step


def expressed(step, wanted, short):
    """The changes by an expression of which five products of numbers say that they may fit."""
    slopes = random(5, wanted.numel(), seed=9).detach()
    target = slopes @ (wanted - step.value).reshape(-1)
    found = matches({0: [step]}, {0: slopes}, target, 1e-9, ELEMENTS, short)
    return [m[1] for m in (found if short else sorted(found, key=length))]


def changes_of(step, wanted):
    for level in FIRST:
        yield from level(step)
    yield from expressed(step, wanted, short=True)
    for level in THEN:
        yield from level(step)
    yield from expressed(step, wanted, short=False)


def first_that_makes(step, wanted):
    """The words and the effect of the first change after which the step makes what is wanted."""
    for change in changes_of(step, wanted):
        try:
            way = change.direction(step).expand_as(step.value)
        except (ValueError, RuntimeError, IndexError, TypeError):
            continue
        start = step.value if change.keeps else torch.zeros_like(step.value)
        factor = round((((wanted - start) * way).sum() / way.square().sum()).item(), 9)
        if change.factors is None or factor in change.factors:
            for words, number in [*change.names(factor, step), (change.words(factor), factor)]:
                if torch.allclose(change.by(number)(step).expand_as(wanted), wanted):
                    return words
    return None


mul, matmul = torch.mul, torch.matmul
SHIFTED = torch.cat((torch.zeros(1, 4), B[:-1]))
CHANGES = [  # (step, what it should make, words)
    (of(mul, A, B), -A * B, "it all were negated"),
    (of(mul, A, B), 0 * A, "it all were left out"),
    (of(mul, A, B), 5 * A * B, "it all were multiplied by 5"),
    (of(mul, A, B), 7 * A * B, "it all were multiplied by `n`"),
    (of(mul, A, B), A * B / 7, "it all were divided by `n`"),
    (of(torch.sum, SQUARE, 0), SQUARE.sum(1), "1 stood in place of 0 in it all"),
    (of(torch.sum, MATRICES, (0, 1)), MATRICES.sum((0, 1)) * 2, "it all were multiplied by 2"),
    (of(torch.sum, MATRICES, dim=(0, 2), keepdim=True), MATRICES.sum((0, 2), True) * 0, "left out"),
    (of(torch.roll, A, 1, 1), A.roll(-1, 1), "-1 stood in place of 1 in it all"),
    (of(torch.roll, A, (1, 1), (0, 1)), A.roll((1, 2), (0, 1)), "(1, 2) stood in place of (1, 1)"),
    (of(torch.cumsum, A, 1), A.flip(1).cumsum(1).flip(1), "it all ran from the other end"),
    (of(torch.triu, SQUARE, 1), SQUARE.triu(), "0 stood in place of 1 in it all"),
    (of(torch.sub, A, B), A - C, "`c` stood in place of `b` in it all"),
    (of(torch.sub, A, other=B), A - C, "`c` stood in place of `b` in it all"),
    (of(torch.sub, A, B + 1), A - B, "`b` stood in place of an operand in it all"),
    (of(torch.index_select, SQUARE, 0, 2 - 2 * INDEX), SQUARE[INDEX], "`index` stood in place"),
    (of(matmul, A, SQUARE), A @ SQUARE.mT, "`square` were transposed in it all"),
    (of(torch.sub, A, B), A - B.flip(1), "`b` were flipped along dimension 1 in it all"),
    (of(torch.sub, A, B), A - B.roll(1, 1), "`b` were rolled one place later along"),
    (of(torch.sub, A, B), A - B.roll(-1, 1), "`b` were rolled one place earlier along"),
    (of(torch.sub, A, B), A - SHIFTED, "`b` were shifted one place later along dimension 0"),
    (of(torch.sub, A, B), A - B[:, [0, 3, 2, 1]], "`b` were taken with index 1 and 3 of"),
    (of(torch.sub, A, B.exp() + C), A + B.exp() + C, "an operand were negated in it all"),
    (of(torch.sub, A, B), A - B.exp(), "`b` were replaced by its exponential in it all"),
    (of(torch.where, MASK, B, C), torch.where(MASK, C, B), "`mask` were inverted in it all"),
    (of(torch.cat, (A, B), 1), torch.cat((B, A), 1), "it all were taken with its halves along"),
    (of(torch.cat, (A, B)), torch.cat((A, B)).flip(0), "it all were flipped along dimension 0"),
    (of(torch.exp, A), B, "`b` stood in place of it all"),
    (of(torch.exp, A), -B, "-`b` stood in place of it all"),
    (of(torch.exp, A), 3 * B, "3 times `b` stood in place of it all"),
    (of(torch.exp, A), COLUMN[:, None].expand(3, 4),
     "`column[..., None]`, expanded, stood in place of it all"),
    (of(torch.exp, A), ROW.expand(3, 4), "`row`, expanded, stood in place of it all"),
    (of(torch.exp, A), A.exp() * B, "it all were multiplied by `b`"),
    (of(torch.exp, A), 2 * A.exp() * B, "it all were multiplied by `b` and multiplied by 2"),
    (of(torch.exp, A), A.exp() / POSITIVE, "it all were divided by `positive`"),
    (of(torch.exp, A), A.exp() * ROW, "it all were multiplied by `row`"),
    (of(torch.exp, A), A.exp() * COLUMN[:, None], "it all were multiplied by `column[..., None]`"),
    (of(torch.exp, A), A.exp() * MASK, "it all were multiplied by `mask`"),
    (of(torch.exp, A), A.exp() * B**2, "it all were multiplied by `b * b`"),
    (of(torch.exp, A), A.exp() / POSITIVE**2, "it all were divided by `positive.square()`"),
    (of(torch.exp, A), A.exp() * (1 - B), "it all were multiplied by `1 - b`"),
    (of(torch.exp, A), A.exp() * B.exp(), "it all were multiplied by `b.exp()`"),
    (of(torch.exp, A), A.exp() * (1 - B**2), "it all were multiplied by `1 - b * b`"),
    (of(torch.sum, A, 0), (A * B).sum(0), "an operand of it all were multiplied by `b`"),
    (of(torch.sum, A, 0), (A / POSITIVE).sum(0), "an operand of it all were divided by `positive`"),
    (of(torch.exp, A), A.exp() + B, "`b` were added to it all"),
    (of(torch.exp, A), A.exp() - 2 * B, "2 times `b` were subtracted from it all"),
    (of(torch.exp, A), A.exp() + COLUMN[:, None], "`column[..., None]` were added to it all"),
    (of(mul, A, B), A * B - (A * B).sum(1, True), "the sum of it all along dimension 1 were"),
    (of(mul, A, B), A * B - (A * B).sum(), "the sum of it all along dimensions 0, 1 w"),
    (of(mul, A, B), A * B + 2 * (A * B).mean(), "2 times the mean of it all along dimensions 0, 1"),
    (of(mul, A, B), A * B - C * (A * B).sum(0), "`c` times the sum of it all along dim"),
    (of(mul, A, B), A * B - C * (A * B * C).sum(0), "`c` times the sum of `c` times it all"),
    (of(mul, A, B), A * B - ROW * (A * B).sum(1, True), "`row` times the sum of it all"),
    (of(torch.exp, A), A.exp() + B * C, "`b * c` were added to it all"),
    (of(torch.exp, A), A.exp() + B * B, "`b * b` were added to it all"),
    (of(torch.exp, A), A.exp() + COLUMN[:, None] * ROW,
     "`row * column[..., None]` were added to it all"),
    (of(torch.exp, A), A.exp() - A @ SQUARE, "`a` @ `square` were subtracted from it all"),
    (of(torch.exp, A), A.exp() + A @ SQUARE.mT, "`a` @ `square`.mT were added to it all"),
    (of(torch.exp, SQUARE), SQUARE.exp() + A.mT @ B, "`a`.mT @ `b` were added to it all"),
    (of(torch.exp, A), A.exp() + (BATCH[:, None] @ MATRICES)[:, 0],
     "`batch` @ `matrices`, row by row, were added to it all"),
    (of(torch.sum, A, 1), A.sum(1) + A @ ROW, "`a` @ `row` were added to it all"),
    (of(torch.exp, A), -POSITIVE.log(), "-`positive.log()` stood in place of it all"),
    (of(torch.exp, A), B / (1 + C.exp()), "`b / (1 + c.exp())` stood in place of it all"),
    (of(torch.exp, A), A.exp() * (B - ROW), "it all were multiplied by `b - row`"),
    (of(torch.exp, A), A.exp() / (1 + B.exp()), "it all were divided by `1 + b.exp()`"),
    (of(torch.exp, A), A.exp() - 2 * B.tanh() * C, "2 times `c * b.tanh()` were subtracted"),
    (of(torch.exp, A), A.exp() + (B * C).flip(1).cumsum(1).flip(1),
     "`(b * c).flip(-1).cumsum(-1).flip(-1)` were added to it all"),
    (of(torch.exp, A), A.exp() - B * (B * C).sum(1, True),
     "`b * (b * c).sum(-1, keepdim=True)` were subtracted from it all"),
    (of(torch.exp, A), B * (C - (C * B).sum(1, True)),
     "`b * (c - (c * b).sum(-1, keepdim=True))` stood in place of it all"),
    (of(torch.exp, A), (B - C).mean(0, True).expand(3, 4),
     "`(b - c).mean(-2, keepdim=True)`, expanded, stood in place of it all"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("step", "wanted", "words"), CHANGES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_change(step, wanted, words):
    found = first_that_makes(step, wanted)
    assert words in found


def test_what_is_equal_by_chance_has_no_name_here():
    nothing = torch.zeros_like(A)
    step = of(torch.neg, nothing)
    step.scope, step.written = {"`a`": A, "`zeros`": nothing, "`d`": nothing}, "-d"
    assert first_that_makes(step, -A) == "`a` stood in place of `d` in it all"


def test_sums_over_equal_indices():
    step = of(mul, A, B)
    sums = torch.zeros(2, 4, dtype=A.dtype).index_add(0, INDEX, A * B)[INDEX]
    words = "`c` times the sum of it all over equal `index` were subtracted from it all"
    assert first_that_makes(step, A * B - C * sums) == words


def test_a_step_in_place_starts_from_what_was_there():
    before = A.clone()
    step = object.__new__(Step)
    step.func, step.args, step.kwargs, step.scope = torch.Tensor.mul_, (before, 3), {}, SCOPE
    step.text, step.edge, step.before, step.version = "it all", None, before.clone(), 0
    step.made(before.mul_(3))
    assert step.in_place
    assert first_that_makes(step, 2 * A) == "2 stood in place of 3 in it all"
    assert torch.equal(before, 3 * A)  # nothing was changed by trying
