"""What the doctor tries, in which order, with which numbers; and which words it has for that."""

import itertools

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import _SingleLevelFunction

from helpers.doctor import examine, rewritten
from helpers.doctor.slips import of_no_shape, slips
from helpers.doctor.source import Source
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
        return *(of_x, of_w), of_b


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
    assert of_w in lines and set(lines) <= {unknown, of_w, "return *(of_x, of_w), of_b"}


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
        times = lambda t: t + g
        return times(3 * (3 * x).exp() * w), g * (3 * x).exp(), None""",
        "`t * g` stood in place of `t + g`",
    ),
    "a slice of forward": (
        """        ctx.save_for_backward(x, w)
        return sum(w[i, i] * x[i : i + 2, i : i + 2] for i in range(2))""",
        """        x, w = ctx.saved_tensors
        gx, gw = torch.zeros_like(x), torch.zeros_like(w)
        for i in range(2):
            gx[i : i + 2].narrow(1, i, 2).add_(w[i, i] * g)
            gw[i, i] = (g * x[i : i + 2, :2]).sum()
        return gx, gw, None""",
        "i:i + 2, i:i + 2` stood in place of `",
    ),
    "two slices from the other end": (
        """        ctx.save_for_backward(x, w)
        return torch.nn.functional.pad(x @ w, (0, 2, 0, 2))""",
        """        x, w = ctx.saved_tensors
        g = g[-len(x) :, -len(x) :]
        return g @ w.mT, x.mT @ g, None""",
        "`g = g[:len(x), :len(x)]` stood in place of",
    ),
    "a slice that moves with the loop": (
        """        ctx.save_for_backward(x, w)
        return torch.stack([(x[k : k + 3] * w).sum() for k in range(len(x) - 2)])""",
        """        x, w = ctx.saved_tensors
        gx, steps = torch.zeros_like(x), len(x) - 2
        for j in range(len(w)):
            gx.narrow(0, j, steps).add_(g * w[j])
        return gx, torch.stack([(g * x[0:steps]).sum() for j in range(len(w))]), None""",
        "`x[0 + j:steps + j]` stood in place of `x[0:steps]`",
    ),
    "the modulus": (
        """        ctx.save_for_backward(x, w)
        return x.to(torch.complex128) * (1 + 2j) * w""",
        """        x, w = ctx.saved_tensors
        g = g * (1 - 2j)
        return (g * w).abs(), (g * x).real, None""",
        "`(g * w).real` stood in place of `(g * w).abs()`",
    ),
    "an element of a variable": (
        """        ctx.save_for_backward(x > 0)
        acc, out = torch.zeros_like(x[0]), []
        for k in range(len(x)):
            acc = torch.where(x[k] > 0, x[k], 0.5 * acc)
            out.append(acc)
        return torch.stack(out)""",
        """        (reset,) = ctx.saved_tensors
        gx, acc = torch.zeros_like(g), torch.zeros_like(g[0])
        for k in range(len(g) - 1, -1, -1):
            acc = acc + g[k]
            gx[k] = torch.where(reset[k], acc, 0.0)
            acc = 0.5 * acc
        return gx, None, None""",
        "`0.5 * acc * ~reset[k]` stood in place of `0.5 * acc`",
    ),
    "what a comprehension counts": (
        """        ctx.save_for_backward(x, w)
        return sum((rate * x).sin() for rate in Layer.RATES) * w.exp()""",
        """        x, w = ctx.saved_tensors
        rates = Layer.RATES
        gx = sum(rates[0] * (rate * x).cos() for rate in rates) * w.exp()
        return g * gx, g * sum((rate * x).sin() for rate in rates) * w.exp(), None""",
        "`rate` stood in place of `rates[0]`",
    ),
    "with a helper of the class": (
        """        ctx.save_for_backward(x, w)
        return Layer._wave(x) * w""",
        """        x, w = ctx.saved_tensors
        return g * w * (Layer.RATES[1] * x).sin() * Layer.RATES[1], g * Layer._wave(x), None""",
        "`(Layer.RATES[1] * x).cos()` stood in place of `(Layer.RATES[1] * x).sin()`",
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
def test_it_says_how_to_undo_more_slips(forward, backward, said, monkeypatch):
    monkeypatch.setattr("helpers.doctor.derivative.repair", lambda *_: None)
    head = """
import torch
from torch.autograd import Function

def launch(parts):
    return torch.from_numpy(sum(part.numpy() for part in parts))

class Layer(Function):
    RATES = 0.3, 1.7, 2.9

    @staticmethod
    def _wave(t):
        return (Layer.RATES[1] * t).sin()

    @staticmethod
    def forward(ctx, x, w, step):
"""
    between = "\n\n    @staticmethod\n    def backward(ctx, g):\n"
    layer = made(head + forward + between + backward + "\n")
    square = "@" in forward or "i, i" in forward
    shapes = ((8,), (3,)) if "step" in backward else ((3, 3), (3, 3)) if square else ((5,), (5,))
    x, w = (random(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes))
    with torch.no_grad():
        x[0] = 0.2  # between the two bounds
    found = errors(examine(layer, x, w, 2))
    assert said in found[0].change


def test_a_name_that_is_written_almost_alike_comes_first():
    source = Source(Affine.backward, Affine)
    values = {"x": random(4), "of_x": random(4), "of_w": random(4), "grad_output": random(4)}
    edits = itertools.islice(slips(source, values), 2)
    first = [rewritten.said_of(source, edit)["change"] for edit in edits]
    assert first == [
        "right if: `*(of_w, of_w), of_b` stood in place of `*(of_x, of_w), of_b`",
        "right if: `*(of_x, of_x), of_b` stood in place of `*(of_x, of_w), of_b`",
    ]


class Tail(Function):
    """Only the last chunk of so many elements counts, too many to try what changes their shape."""

    @staticmethod
    def forward(ctx, x, p):
        ctx.save_for_backward(x, p)
        return x * p

    @staticmethod
    def backward(ctx, grad_output):
        (x, p), of_p = ctx.saved_tensors, torch.zeros_like(grad_output.sum())
        for chunk, g in zip(x.split(2000), grad_output.split(2000), strict=True):
            of_p = (chunk * g).sum()
        return grad_output * p, of_p


def test_much_is_edited_if_it_stays_as_large_as_it_is():
    found = errors(examine(Tail, random(5500), random(1)[0].detach().requires_grad_()))
    words = (
        "right if: `of_p = of_p + (chunk * g).sum()` stood in place of `of_p = (chunk * g).sum()`"
    )
    assert [f.change for f in found] == [words]


def test_what_could_fill_the_memory_is_not_tried():
    source, one = Source(Tail.backward, Tail), random(1)[0]
    tried = [edit.said for edit in of_no_shape(source, {"of_p": one, "g": random(2000)})]
    assert any(said and said.startswith("`of_p = of_p + ") for said in tried)
    others = [edit.said for edit in of_no_shape(source, {"of_p": random(2000), "g": one})]
    assert others and not any(said and "of_p" in said for said in others)


class Energy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum().exp()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x.detach() * x.square().sum().exp()


def forces(x):
    return torch.autograd.grad(Energy.apply(x), x, create_graph=True)[0]


def test_a_backward_that_forward_asks_for_is_edited(monkeypatch):
    monkeypatch.setattr("helpers.doctor.derivative.cut", lambda cases: None)
    (found,) = errors(examine(forces, random(4).requires_grad_()))
    assert found.change == "right if: `x` stood in place of `x.detach()`"


class Padded(Function):
    """The number of rows is not that of what counts; here, 3 minus a mask is no chance."""

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(mask)
        return (x * mask).sum() / mask.sum()

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        return grad_output * mask / (len(mask) - 1), None


def test_what_fits_one_mask_only_is_not_said():
    mask = torch.tensor([True, True, False, True, True, False])
    (found,) = errors(examine(Padded, random(6), mask))
    assert "mask.sum()" in found.change
