"""What is kept, lost or coarse in ways that only another call, dtype or line shows."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from helpers.doctor import examine
from helpers.doctor.where import by_place
from helpers.lessons.patients.numbers import NaiveSoftplus
from tests.common import random
from tests.doctor.test_doctor_edits import errors


class KeepsItsSpread(nn.Module):
    """Its weight is divided by its own spread, which is computed once."""

    def __init__(self):
        super().__init__()
        self.weight, self.spread = nn.Parameter(random(4, 3).detach()), None

    def forward(self, x):
        if self.spread is None:
            self.spread = self.weight.detach().std(1, keepdim=True)
        return x @ (self.weight / self.spread).T


class Calibrates(KeepsItsSpread):
    """The first batch says in which units all are given: that is meant."""

    def forward(self, x):
        if self.spread is None:
            self.spread = x.detach().abs().max()
        return x @ self.weight.T / self.spread


def test_a_parameter_that_counts_in_part_is_found():
    module = KeepsItsSpread()
    (found,) = errors(examine(module, random(5, 3)))
    assert (found.code, found.input) == ("parameter-cached", "weight")
    assert "gets only a part of its gradient: without what" in found.message
    assert found.remedy.endswith("keeps: `self.spread`")
    assert examine(Calibrates(), random(5, 3)).ok


class OfFewDigits(Function):
    """Two digits, of whatever is not of double precision."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        work = torch.float64 if x.dtype == torch.float64 else torch.bfloat16
        return g * x.to(work).exp().to(x.dtype)


class SavesHalf(OfFewDigits):
    """To save memory; that is another matter."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.bfloat16() if x.dtype != torch.float64 else x)
        return x.exp()


class HalfThroughout(OfFewDigits):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        work = torch.float64 if x.dtype == torch.float64 else torch.bfloat16
        return x.to(work).exp().to(x.dtype)


@pytest.mark.parametrize(
    ("function", "dtype", "found"),
    [
        (OfFewDigits, torch.float32, ["in bfloat16, forward computes in float32."]),
        (OfFewDigits, torch.float64, []),
        (OfFewDigits, torch.bfloat16, []),
        (SavesHalf, torch.float32, []),
        (HalfThroughout, torch.float32, []),
    ],
)
def test_a_backward_that_is_coarser_than_what_was_given(function, dtype, found):
    report = examine(function.apply, random(6).detach().to(dtype).requires_grad_())
    coarse = [f.message for f in report.findings if f.code == "coarse-backward"]
    assert report.ok and len(coarse) == len(found)
    assert all(message.endswith(end) for message, end in zip(coarse, found, strict=True))


class Overflows(NaiveSoftplus):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        double = 2 * x
        large = double.exp()
        return g * (large / (large + double.exp() ** 0.5))


def test_where_a_backward_first_makes_inf():
    x = torch.tensor([0.5, 800.0], dtype=torch.float64, requires_grad=True)
    (found,) = errors(examine(Overflows.apply, x))
    assert found.code == "backward-not-finite"
    assert "first of all in `double.exp()` (line" in found.remedy


class Drops(Function):
    """Backward draws anew, whatever the state of the generator is."""

    @staticmethod
    def forward(ctx, x):
        return x * (torch.rand_like(x) > 0.5)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        state = torch.get_rng_state()
        keep = torch.rand_like(g) > 0.5
        torch.set_rng_state(state)
        return g * keep


def test_what_is_said_of_a_backward_that_draws():
    (found,) = errors(examine(Drops.apply, random(40).requires_grad_()))
    assert found.message.startswith(
        "The same backward gives another gradient for another random state, because it draws"
    )


class NearlyRight(Function):
    """Divided by one less than the size; a number of forward is nearly zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.mean(-1) + 1e-5

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        size = ctx.shape[-1]
        return g[..., None].expand(ctx.shape) / (size - 1)


def test_what_is_nearly_right_is_no_mend():
    (found,) = errors(examine(NearlyRight.apply, random(3, 24).requires_grad_()))
    assert "`size` stood in place of `size - 1`" in found.change


class InPieces(Function):
    """The gradient is made in forward, piece by piece."""

    @staticmethod
    def forward(ctx, x, w, size):
        total, gx, gw = 0.0, torch.empty_like(x), torch.zeros_like(w)
        for k in range(0, len(x), size):
            piece = x[k : k + size]
            total = total + (piece @ w).exp().sum()
            slope = (piece @ w).exp() / len(piece)
            gx[k : k + size] = slope[:, None] * w
            gw += piece.T @ slope
        ctx.save_for_backward(gx, gw)
        return total / len(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        gx, gw = ctx.saved_tensors
        return g * gx, g * gw, None


def test_what_is_made_piece_by_piece_in_forward():
    inputs = random(7, 3).requires_grad_(), random(3, seed=1).requires_grad_()
    found = errors(examine(InPieces.apply, *inputs, 3))
    assert [f.input for f in found] == ["x", "w"]
    assert all("`len(x)` stood in place of `len(piece)`" in f.change for f in found)


class SumsInHalf(Function):
    @staticmethod
    def forward(ctx, x, b):
        return x + b

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        total = torch.zeros(g.shape[1], dtype=torch.bfloat16)
        for part in g.to(torch.bfloat16).split(50):
            total = total + part.sum(0)
        return g, total.to(g.dtype)


def test_a_mend_does_not_leave_it_to_the_engine_to_sum():
    """`g` in place of `total` would be right, too, once the engine has summed it."""
    found = errors(examine(SumsInHalf.apply, random(300, 3).requires_grad_(), random(3)))
    (found,) = [f for f in found if f.input == "b"]
    assert found.change == "right if: nothing were made in half precision"


def test_the_diagonal_is_named_where_it_is_larger_than_all_else():
    class OfLogs(Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a.sum() - a.diagonal().log().sum()

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            (a,) = ctx.saved_tensors
            return g * (torch.ones_like(a) - torch.diag(a.diagonal().square()))

    a = torch.eye(4, dtype=torch.float64) * 2 + 0.1 * random(4, 4).abs()
    (found,) = errors(examine(OfLogs.apply, a.detach().requires_grad_()))
    assert "on the diagonal it" in found.message


@pytest.mark.parametrize(
    ("right", "said"),
    [
        ([0, 66], None),  # of four elements at which their rows and columns meet
        ([0, 5, 50, 55], "everywhere but at index 0, 5 of dimension 0 and index 0, 5 of"),
    ],
)
def test_of_what_is_not_known_nothing_is_said(right, said):
    wrong = [k for k in range(1, 100, 7) if k not in right]
    text = by_place((10, 10), torch.tensor(right), torch.tensor(wrong))
    assert text is None or text.startswith(said)
    assert bool(text) == bool(said)


class Times(nn.Module):
    """An input of which nobody asks a gradient may go to NumPy; a parameter may not."""

    def __init__(self):
        super().__init__()
        self.rates, self.out = nn.Parameter(random(4).detach()), nn.Linear(4, 2).double()

    def forward(self, t):
        phases = torch.as_tensor(t.numpy()[:, None]) * self.rates.detach()
        return self.out(phases.sin())


def test_an_input_of_a_module_may_leave_autograd():
    times = torch.linspace(0, 1, 5, dtype=torch.float64)
    (found,) = errors(examine(Times(), times))
    assert (found.code, found.input) == ("gradient-none", "rates")
    assert "`self.rates.detach()`" in found.remedy
    (asked,) = errors(examine(Times(), times.requires_grad_()))
    assert asked.code == "numpy-detour"


class KeepsWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, x):
        if x.shape not in self.kept:
            self.kept[x.shape] = (x[:, None] - x[None]).square().neg().softmax(-1)
        return self.kept[x.shape] @ x


def test_what_a_module_keeps_from_one_call_to_the_next_is_named():
    (found,) = errors(examine(KeepsWeights(), random(5).requires_grad_()))
    assert found.code == "state-between-calls" and "in a later call with the" in found.message
    assert found.remedy.endswith("from one call to the next: `self.kept`")


class InNumPy(Function):
    """Forward takes numbers out of autograd, which sees nothing of it; backward is wrong."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 3)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slopes = [v * v + 0.1 * v * float(x.sum()) for v in x.numpy().tolist()]
        return g * torch.from_numpy(np.array(slopes))


def test_what_a_function_takes_out_of_autograd_is_not_to_blame():
    found = errors(examine(lambda a, b: InNumPy.apply(a * b), *(random(5, seed=k) for k in (1, 2))))
    assert len(found) == 2 and all("detach" not in f.remedy for f in found)
    assert all("`InNumPy`, which is wrong by itself" in f.remedy for f in found)
