"""What autograd makes of forward counts where differences confirm it, and only there."""

import pytest
import torch
from torch.autograd.function import Function

from helpers.doctor import examine
from helpers.doctor.gradient import Point
from helpers.doctor.plain import by_autograd
from helpers.doctor.slopes import Dice, largest
from helpers.doctor.subject import Subject
from helpers.lessons.patients.patient import draw


def detached(x):
    return x * x.detach() + (x.sum() * x).data


def behind_its_back(x):
    """Autograd does not see that there are other numbers now."""
    y = x.sin()
    y.data = 2 * y
    return y


class Doubled(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3 / 3

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


def root_of_nothing(x):
    return torch.where(x.abs() > 0, x.abs().sqrt(), 0 * x)


def point_of(fn, *inputs):
    subject = Subject(fn, inputs, {})
    return Point(subject, subject.values, Dice())


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sin() * x.sum(),
        lambda x: (x.exp().cumsum(1), (x * x).sum(0)),  # of two outputs
        lambda x: torch.fft.rfft(x),
        lambda x: torch.fft.irfft(torch.fft.rfft(x) * x[:, :13]),
        detached,
        Doubled.apply,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_two_agree(fn, dtype):
    (x,) = draw((3, 24), dtype=torch.float64)
    if dtype.is_complex:
        x = torch.complex(x.detach(), x.detach().roll(1, 1)).requires_grad_()
        whole = fn
        fn = lambda x: whole(x.real * x.imag)  # noqa: E731
    point = point_of(fn, x)
    elements = torch.arange(x.numel())
    ours, others = by_autograd(point, 0, elements), point.by_differences(0, elements)
    for (a, small, sure, jacobian), (b, *_, expected) in zip(ours, others, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and sure.all()
        assert (a - b).abs().max() <= 1e-7 * largest(b)
        assert small.shape == a.shape and small.max() < 1e-8 * largest(b)
        assert (jacobian is None) == (expected is None)
        if jacobian is not None and not dtype.is_complex:
            assert (jacobian - expected).abs().max() <= 1e-7 * largest(expected)


@pytest.mark.parametrize(
    ("fn", "at"),
    [
        (behind_its_back, None),
        (lambda x: torch.from_numpy(x.detach().numpy() ** 2), None),
        (torch.relu, 0.0),  # a kink
        (root_of_nothing, 0.0),  # infinite
        (lambda x: x.float().exp().double(), None),  # too coarse to confirm anything
    ],
)
def test_what_differences_do_not_confirm_does_not_count(fn, at):
    (x,) = draw((3, 24))
    if at is not None:
        with torch.no_grad():
            x[1, 2] = at
    assert by_autograd(point_of(fn, x), 0, torch.arange(x.numel())) is None


def test_few_elements_are_left_to_differences():
    (x,) = draw((5,))
    assert by_autograd(point_of(torch.exp, x), 0, torch.arange(5)) is None


class Remembers(Function):
    """Forward leaves something of each call on the class."""

    seen = []

    @staticmethod
    def forward(ctx, x):
        Remembers.seen.append(x.mean())
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x.exp()


def test_what_a_function_keeps_elsewhere_has_no_graph_afterwards():
    examine(Remembers.apply, *draw((3, 24)))
    assert Remembers.seen and not any(t.requires_grad for t in Remembers.seen)
