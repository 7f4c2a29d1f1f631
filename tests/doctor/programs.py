"""What the tests of rounds run: two Functions in everyday use, one wrong, one sometimes wrong."""

import torch

from helpers.doctor import rounds
from helpers.lessons.cases.case import Square
from helpers.lessons.cases.formulas import RepeatedIndex


class Half(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x


class LookUp(RepeatedIndex):
    """Wrong where an index is repeated."""


half = Half.apply  # bound before the rounds, as many libraries do


def that(do):
    """A right Function whose backward does this, too."""

    class Does(Half):
        @staticmethod
        def backward(ctx, grad_output):
            do()
            return 2 * Half.backward(ctx, grad_output)

    return Does


def leaf(*shape):
    return torch.linspace(0.5, 1.5, torch.Size(shape).numel()).reshape(shape).requires_grad_()


def visits(do, **options):
    """{name: the visit} of rounds over do()."""
    with rounds(**options) as found:
        do()
    return {visit.name: visit for visit in found.visits}
