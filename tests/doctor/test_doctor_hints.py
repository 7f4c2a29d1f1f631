"""What the doctor points at beyond backward: hooks, other calls, what is never used, and places."""

import pytest
import torch
from torch.autograd import Function
from torch.nn import functional as F

from helpers.doctor import examine
from helpers.lessons.patients import PATIENTS
from helpers.lessons.patients.patient import draw
from tests.common import random
from tests.doctor.test_doctor_edits import errors
from tests.doctor.test_doctor_sentences import told, wrong


def halved(grad):
    return grad / 2


def all_halved(module, grad_input, grad_output):
    return tuple(grad / 2 for grad in grad_input)


def with_a_hook_of_a_parameter():
    layer = torch.nn.Linear(3, 2).double()
    layer.weight.register_hook(halved)
    return layer


def with_a_hook_of_a_module():
    layer = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(3, 2).double())
    layer[1].register_full_backward_hook(all_halved)
    return layer


@pytest.mark.parametrize(
    ("made", "wrong", "hook"),
    [
        (with_a_hook_of_a_parameter, "weight", "`halved`, a hook of `weight`,"),
        (with_a_hook_of_a_module, "input", "`all_halved`, a hook of `1`,"),
    ],
)
def test_a_hook_that_changes_a_gradient_is_named(made, wrong, hook):
    layer, x = made(), random(4, 3)
    (found,) = errors(examine(layer, x))
    assert (found.code, found.input) == ("scaled", wrong)
    assert found.change == f"right if: {hook} were left out"
    (grad,) = torch.autograd.grad(layer(x).sum(), x)  # what the caller has is as it was
    layer.weight if wrong == "weight" else layer[1]._backward_hooks.clear()
    (again,) = torch.autograd.grad(layer(x).sum(), x)
    assert torch.equal(grad, again if wrong == "weight" else again / 2)


class MedianOfRows(Function):
    """What goes to the median is spread over all."""

    @staticmethod
    def forward(ctx, x):
        middle, where = x.median(1)
        ctx.save_for_backward(x, where)
        ctx.rows, ctx.size = len(x), x.exp()
        return middle.exp()

    @staticmethod
    def backward(ctx, grad_output):
        x, where = ctx.saved_tensors
        _, (rows, columns) = None, x.shape
        spread = (x.median(1).values.exp() * grad_output / columns)[:, None]
        return spread.expand(rows, columns) + x.detach() * 0


def test_what_backward_never_uses_is_pointed_at():
    (found,) = errors(examine(MedianOfRows, random(4, 5)))
    assert found.remedy.endswith("; and why backward never uses `where` or `ctx.size`")


def test_a_factor_along_a_dimension_is_named():
    (x,), w = draw((2, 3, 4)), torch.tensor([0.7, 1.1, 2.0], dtype=torch.float64)

    def mixed(x, w):
        return (x * w[:, None]).cumsum(1)

    def backward(grad_output, x, w):
        return grad_output.flip(1).cumsum(1).flip(1)

    message = told(wrong(mixed, backward), x, w).message
    assert message.endswith("0.5; it lacks the factor `arguments[1]` along dimension 1.")


def test_along_which_dimension_elements_stand_alone():
    def centred(x):
        return x.cumsum(1) - x.mean(0).expand_as(x)

    def backward(grad_output, x):
        return grad_output.flip(1).cumsum(1).flip(1) - grad_output / len(x)

    message = told(wrong(centred, backward), *draw((3, 4))).message
    assert "is that of each index of dimension 0 alone" in message


def test_the_sides_of_what_is_large_are_looked_at():
    kernel = torch.tensor([[0, 1, 0], [1, -4, 1], [0, 1, 0]]).double()[None, None]

    def laplacian(u):
        return F.conv2d(F.pad(u[None, None], (1, 1, 1, 1), mode="replicate"), kernel)[0, 0]

    def backward(grad_output, u):
        return F.conv2d(grad_output[None, None], kernel, padding=1)[0, 0]

    message = told(wrong(laplacian, backward), *draw((300, 300))).message
    inside = "index 1 to 298 of dimension"
    assert f"everywhere but at {inside} 0 and {inside} 1 it is wrong" in message


def test_a_factor_holds_of_what_is_small_too():
    (x,) = draw((2, 4, 5))
    x[:, 2:] *= 1e-5

    def backward(grad_output, x):
        factor = torch.ones_like(x)
        factor[:, :2] = torch.tensor([0.35, 1.15], dtype=x.dtype)[:, None, None]
        return grad_output * 2 * x * factor

    assert "index 0, 1 of dimension 1" in told(wrong(torch.square, backward), x).message


class TwoSums(Function):
    """Of two gradients that arrive, the second is lost; of each alone, none is."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * y, x.sum()

    @staticmethod
    def backward(ctx, g, g_sum):
        x, y = ctx.saved_tensors
        gx = gy = None
        if g is not None:
            gx, gy = g * y, g * x
        if g_sum is not None:
            gx = g_sum.expand_as(x) if gx is None else gx
        return gx, gy


def test_none_that_is_answered_rightly_is_not_blamed():
    assert [f.code for f in errors(examine(TwoSums, random(4), random(4)))] == ["gradient-zero"]


def test_an_edit_that_raises_for_none_is_no_mend(monkeypatch):
    monkeypatch.setattr("helpers.doctor.derivative.repair", lambda *_, **__: None)
    (found,) = errors(examine(TwoSums, random(4), random(4)))
    assert "gx + g_sum` stood in place of" in found.change


class InCoarseSums(Function):
    @staticmethod
    def forward(ctx, x, b, at_once):
        ctx.at_once = at_once
        return x + b

    @staticmethod
    def backward(ctx, grad_output):
        low = torch.bfloat16 if grad_output.dtype == torch.float32 else grad_output.dtype
        total = torch.zeros_like(grad_output[0], dtype=low)
        for part in grad_output.to(low).split(ctx.at_once):
            total += part.sum(0)
        return grad_output, total.to(grad_output.dtype), None


@pytest.mark.parametrize(("rows", "at_once"), [(8192, 64), (1024, 32)])
def test_long_sums_are_examined_with_what_cancels_and_with_what_does_not(rows, at_once):
    """The one shows where all of grad_output is positive, the other where it is not."""
    found = errors(examine(InCoarseSums, torch.ones(rows, 3), torch.ones(3), at_once))
    assert [(f.code, f.input) for f in found] == [("low-precision", "b")]
    assert found[0].remedy.split("first of all in ")[1].startswith("`grad_output.to(low)` (line ")


def test_what_a_class_holds_is_as_it_was():
    patient = PATIENTS["NumberedMaskOnTheClass"]
    assert not patient.examine().ok
    assert patient.fn.mask.any()


class Scores(Function):
    """In a large input, the two branches are taken for each other."""

    @staticmethod
    def forward(ctx, x):
        s = torch.where(x >= 0, x + 1, 1 / (1 - x))
        total = s.sum(-1, keepdim=True)
        ctx.save_for_backward(x, s / total, total)
        return s / total

    @staticmethod
    def backward(ctx, grad_output):
        x, share, total = ctx.saved_tensors
        slope = torch.where(x < 0, 1.0, 1 / (1 - x) ** 2)
        rest = grad_output - (grad_output * share).sum(-1, keepdim=True)
        return rest / total * slope


class Blocks(Function):
    """Of the columns, of which forward insists on a multiple of ten, some belong together."""

    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(x, s)
        return (x.unflatten(1, (10, -1)) * s[:, None]).flatten(1)

    @staticmethod
    def backward(ctx, grad_output):
        x, s = ctx.saved_tensors
        blocks = grad_output.unflatten(1, (10, -1))
        gs = (blocks * x.unflatten(1, (10, -1))).sum((0, 2))
        return (blocks * s.flip(0)[:, None]).flatten(1), gs


@pytest.mark.parametrize(
    ("fn", "shapes", "said"),
    [
        (Scores, [(300, 200)], "`x > 0` stood in place of `x < 0`"),
        (Blocks, [(400, 400), (10,)], "`s` stood in place of `s.flip(0)`"),
        (Blocks, [(4000, 40), (10,)], "`s` stood in place of `s.flip(0)`"),
    ],
)
def test_a_mend_is_found_in_a_corner_and_holds_of_the_whole(fn, shapes, said):
    found = errors(examine(fn, *(random(*shape, seed=k) for k, shape in enumerate(shapes))))
    assert [f.input for f in found] == ["x"]
    assert said in found[0].change
    assert "in a corner of shape" not in found[0].evidence  # what is seen is that of the whole


def test_what_is_slow_is_cut_down_too(monkeypatch):
    monkeypatch.setattr("helpers.doctor.derivative.QUICK", 1e9)
    (found,) = errors(examine(Scores, random(100, 150)))
    assert "`x > 0` stood in place of `x < 0`" in found.change


class Packed(torch.nn.Module):
    def pack(self, t):
        return (8 * t).round()

    def unpack(self, t):
        return t / 8

    def forward(self, x):
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            y = x.sin() * x
        return y


def test_hooks_that_pack_what_is_saved_are_named():
    layer, x = Packed(), random(5)
    (found,) = errors(examine(layer, x))
    assert found.change == "right if: `saved_tensors_hooks` handed back what was saved"
    (grad,) = torch.autograd.grad(layer(x).sum(), x)  # they are there again
    exact = x.cos() * x + x.sin()
    assert not torch.allclose(grad, exact) and torch.allclose(grad, exact, atol=0.2)


class Suffixes(Function):
    """Products of what comes before, whose backward leaves out the element itself."""

    @staticmethod
    def forward(ctx, x, dim):
        y = x.cumprod(dim)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        total = (grad_output * y).sum(1, keepdim=True)
        rest = total - (grad_output * y).cumsum(1)
        return rest / x, None


def test_a_mend_is_found_where_a_wrapped_function_is_given_a_whole_number():
    (found,) = errors(examine(lambda x: Suffixes.apply(1 + x.square(), 1), random(4, 5)))
    assert found.change.startswith("right if: ")


class Crops(Function):
    """The maximum over some columns, which a smaller image may not have."""

    @staticmethod
    def forward(ctx, x, crops):
        values, places = [], []
        for a, b in crops.tolist():
            value, k = x[:, a:b].reshape(-1).max(0)
            values.append(value)
            places.append(k // (b - a) * x.shape[1] + a + k % (b - a))
        ctx.save_for_backward(torch.stack(places))
        ctx.shape = x.shape
        return torch.stack(values)

    @staticmethod
    def backward(ctx, grad_output):
        (at,) = ctx.saved_tensors
        return grad_output.new_zeros(ctx.shape).view(-1).scatter_(0, at, grad_output).view(
            ctx.shape
        ), None


def test_what_numbers_point_at_stays_there_in_other_sizes():
    (found,) = errors(examine(Crops, random(3, 7), torch.tensor([[0, 6], [2, 7], [1, 7]])))
    assert "scatter_add_(0, at, grad_output)" in found.change


class Biased(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, grad_output):
        total = torch.zeros(grad_output.shape[1], dtype=torch.bfloat16)
        for row in grad_output:
            total += row.to(torch.bfloat16)
        return grad_output, total.to(grad_output.dtype)


def test_rounding_that_adds_up_is_no_clip():
    (found,) = errors(examine(Biased, random(270, 3), random(3)))
    assert (found.code, found.change) == (
        "few-digits", "right if: nothing were made in half precision",
    )  # fmt: skip


class InChunks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.GRU(12, 16, batch_first=True)

    def forward(self, x):
        state, ys = None, []
        for part in x.split(5, dim=1):
            y, state = self.rnn(part, state)
            state = state.detach()
            ys.append(y)
        return torch.cat(ys, 1)


def test_the_parameters_of_recurrent_layers_are_not_cut_down(monkeypatch):
    """PyTorch does not look at their sizes, and reads what lies beyond."""
    sizes, forward = set(), torch.nn.GRU.forward

    def noted(self, *args):
        sizes.add(self.weight_hh_l0.shape)
        assert self.weight_hh_l0.shape == (48, 16)
        return forward(self, *args)

    monkeypatch.setattr(torch.nn.GRU, "forward", noted)
    found = errors(examine(InChunks().double(), random(40, 15, 12)))
    assert {f.change for f in found} == {"right if: `state.detach()` kept its gradient"}
    assert sizes == {(48, 16)}
