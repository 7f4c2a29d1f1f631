"""What the doctor tries, in which order, with which numbers; and which words it has for that."""

import re

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import _SingleLevelFunction

from helpers.doctor import examine, rewritten
from tests.common import random
from tests.test_doctor_edits import errors, made


class Affine(Function):
    """The gradient of w is wrong, in one line of four."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return (x * w).sin() + b.exp() * 0

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        slope = (x * w).cos()
        of_x = grad_output * slope * w
        of_w = grad_output * slope * x.square()
        of_b = grad_output * 0
        return of_x, of_w, of_b


def test_a_line_on_which_the_gradient_does_not_depend_is_not_edited(monkeypatch):
    lines, each = [], rewritten.each

    def noting(cls, name, helper, *rest):
        for source, function, edit in each(cls, name, helper, *rest):
            if name == "backward":
                lines.append(source.head(source.statement(edit.node)))
            yield source, function, edit

    monkeypatch.setattr(rewritten, "each", noting)
    assert errors(examine(Affine, random(4), random(4, seed=1), random(4, seed=2)))[0].change
    unknown, of_w = "x, w = ctx.saved_tensors", "of_w = grad_output * slope * x.square()"
    assert of_w in lines and set(lines) <= {unknown, of_w, "return of_x, of_w, of_b"}


class TwoOutputs(Function):
    """What comes through the second output is forgotten."""

    @staticmethod
    def forward(ctx, x, gate):
        ctx.save_for_backward(x, gate)
        cell = x.sin() * gate
        return cell.exp(), cell.clone()

    @staticmethod
    def backward(ctx, g, g_cell):
        x, gate = ctx.saved_tensors
        inner = g * (x.sin() * gate).exp()
        return inner * gate * x.cos(), inner * x.sin()


def test_what_is_right_through_another_output_is_what_it_was():
    found = errors(examine(TwoOutputs, random(4), random(4, seed=1)))
    assert {f.through for f in found} == {"`output[1]`"}
    words = "right if: `g_cell` were added to `g * (x.sin() * gate).exp()`"
    assert [f.change for f in found] == [words, words]


class Ramp(Function):
    """At 2 and 0.5, it could lack the one, or the inverse of the other."""

    @staticmethod
    def forward(ctx, x, a=2.0, b=0.5):
        ctx.rates = a, b
        return x * a / b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.rates
        return halved(grad_output) * a, None, None


def halved(t):
    return torch.from_numpy(t.numpy() * 1.0)  # NumPy, so that nothing is edited


@pytest.mark.parametrize(
    "fn", (Ramp, lambda x: Ramp.apply(x, 2.0, 0.5), lambda x: Ramp.apply(x)),
    ids=("a default", "in a lambda", "a default in a lambda"),
)  # fmt: skip
def test_numbers_are_told_apart_by_other_numbers(fn):
    (found,) = errors(examine(fn, random(4)))
    assert found.change == "right if: `halved(grad_output) * a` were divided by `b`"
    assert "apply" not in vars(_SingleLevelFunction)


class Unexplained(Function):
    """Wrong by a number that comes from nowhere, in what autograd does not see."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.numpy() * 0.8912)

    @staticmethod
    def backward(ctx, grad_output):
        return halved(grad_output) * 0.5134


def test_a_number_that_nothing_explains_is_said_at_last():
    (found,) = errors(examine(Unexplained, random(4)))
    assert found.change == "right if: `halved(grad_output) * 0.5134` were multiplied by 1.74"


class Sums(Function):
    """One of two equal expressions is wrong; the loop keeps the source from being edited."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x.flip(0) + 3 * x.cumsum(0)

    @staticmethod
    def backward(ctx, grad_output):
        rounds, g = 1, grad_output
        while rounds:
            rounds -= 1
        return (2 * g).flip(0) + (2 * g).flip(0).cumsum(0).flip(0)


def test_which_of_two_equal_expressions_is_said():
    (found,) = errors(examine(Sums, random(4)))
    assert found.change == "right if: 3 stood in place of 2 in the second `2 * g`"


class Centred(Function):
    """Its rule takes the mean over the batch."""

    @staticmethod
    def forward(x):
        return x - x.mean(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output - grad_output.mean(0)

    @staticmethod
    def vmap(info, in_dims, x):
        x = x.movedim(in_dims[0], 0)
        return x - x.mean(0, keepdim=True), 0


def test_a_rule_for_vmap_is_edited():
    rule = vars(Centred)["vmap"]
    (found,) = errors(examine(Centred, random(4, 3)))
    assert found.change.startswith("right if: `x.mean(1, keepdim=True)` stood in place of")
    assert vars(Centred)["vmap"] is rule


SLIPS = {  # forward, backward, what is said
    "each of a name": (
        """        ctx.save_for_backward(x, w)
        ctx.step = step
        return sum(w[j] * x[j * step : j * step + 3] for j in range(len(w)))""",
        """        x, w = ctx.saved_tensors
        step, gx = ctx.step, torch.zeros_like(x)
        for j in range(len(w)):
            gx[j * step : j * step + 3] += w[j] * g
        gw = []
        for j in range(len(w)):
            gw.append((g * x[j : j + 3]).sum())
        return gx, torch.stack(gw), None""",
        "`x[j * step:j * step + 3]` stood in place of `x[j : j + 3]`",
    ),
    "each of an operation": (
        """        ctx.save_for_backward(x, w)
        return w.square() @ x.sin() @ w.square()""",
        """        x, w = ctx.saved_tensors
        a = w.square()
        gx = (a / a.sum(0)).mT @ g @ (a / a.sum(0)).mT
        gx = gx * x.cos()
        b = x.sin()
        return gx, 2 * w * (g @ (b @ a).mT + (a @ b).mT @ g), None""",
        "`gx = a.mT @ g @ a.mT` stood in place of",
    ),
    "a function within": (
        """        ctx.save_for_backward(x, w)
        return (3 * x).exp() * w""",
        """        x, w = ctx.saved_tensors
        times = lambda t: t * g
        return times((3 * x).exp() * w), times((3 * x).exp()), None""",
        "multiplied by 3",
    ),
    "a number of forward": (
        """        ctx.save_for_backward(x, w)
        return torch.where(x < 0.0117, 9 * x, x.sin()) * w""",
        """        x, w = ctx.saved_tensors
        slope = torch.where(x < 0.4331, 9.0, x.cos())
        return g * slope * w, g * torch.where(x < 0.0117, 9 * x, x.sin()), None""",
        "`x < 0.0117` stood in place of `x < 0.4331`",
    ),
}


@pytest.mark.parametrize(("forward", "backward", "said"), SLIPS.values(), ids=SLIPS)
def test_it_says_how_to_undo_more_slips(forward, backward, said):
    head = """
import torch
from torch.autograd import Function

def launch(parts):
    return torch.from_numpy(sum(part.numpy() for part in parts))

class Layer(Function):
    @staticmethod
    def forward(ctx, x, w, step):
"""
    between = "\n\n    @staticmethod\n    def backward(ctx, g):\n"
    layer = made(head + forward + between + backward + "\n")
    shapes = (
        ((8,), (3,)) if "step" in backward else ((3, 3), (3, 3)) if "@" in forward else ((5,), (5,))
    )
    x, w = (random(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes))
    with torch.no_grad():
        x[0] = 0.2  # between the two bounds
    (found,) = errors(examine(layer, x, w, 2))
    assert said in found.change


def gated(x):
    """A product leaves autograd."""
    inner = torch.tensor((x.detach() * 2).numpy())
    return inner.cumsum(0).sin() * x.flip(0) + Affine.apply(x, x.detach(), x.detach())


def test_what_leaves_autograd_is_shown_beside_a_function():
    (found,) = errors(examine(gated, random(4)))
    assert re.fullmatch(
        r"what leaves autograd: `x.detach\(\)` \(line \d+, in `gated`\).*", found.remedy
    )
