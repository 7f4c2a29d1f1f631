"""What the doctor points at beyond backward: hooks, other calls, what is never used, and places."""

import re

import pytest
import torch
from torch.autograd import Function
from torch.nn import functional as F

from helpers.doctor import examine
from helpers.lessons.patients import PATIENTS
from helpers.lessons.patients.patient import draw
from tests.common import random
from tests.test_doctor_edits import errors
from tests.test_doctor_sentences import told, wrong


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
    monkeypatch.setattr("helpers.doctor.derivative.repair", lambda *_: None)
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


def test_what_is_large_and_so_slow_is_cut_down_too(monkeypatch):
    monkeypatch.setattr("helpers.doctor.subject.SLOW", 1e9)
    monkeypatch.setattr("helpers.doctor.derivative.BIG", 1e4)
    (found,) = errors(examine(Scores, random(100, 150)))
    assert "`x > 0` stood in place of `x < 0`" in found.change
    monkeypatch.setattr("helpers.doctor.derivative.BIG", 1e9)
    (found,) = errors(examine(Scores, random(100, 150)))
    assert not found.change


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


class ByTheBatch(Function):
    @staticmethod
    def forward(ctx, x, owner):
        owner.scale = 1 + len(x) / 4
        ctx.owner = owner
        ctx.save_for_backward(x)
        return (owner.scale * x).sin()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        scale = ctx.owner.scale
        return grad_output * scale * (scale * x).cos(), None


class Owner(torch.nn.Module):
    def forward(self, x):
        return ByTheBatch.apply(x, self)


def test_a_call_with_fewer_rows_comes_between():
    assert [f.code for f in errors(examine(Owner(), random(4, 3)))] == ["state-between-calls"]


class Norm(Function):
    @staticmethod
    def forward(ctx, x, p, shift):
        ctx.p = p
        ctx.save_for_backward(x)
        return (x.abs() + shift) ** p

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x.sign() * (x.abs() + 0.5), None, None


def test_the_arguments_that_make_a_gradient_right_are_no_chance():
    (found,) = errors(examine(Norm, random(5), 2, 0.5))
    assert found.code == "arguments-ignored" and "but wrong where `p` is 3." in found.message
    (found,) = errors(examine(Norm, random(5), 2.0, 0.5))
    assert "but wrong where `p` is 1.6." in found.message


class PowerNorm(Function):
    @staticmethod
    def forward(x, p):
        return x.abs() ** p

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, p = inputs
        ctx.p, ctx.size = 2, len(x)
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * ctx.p * x.sign() * x.abs() ** (ctx.p - 1), None


@pytest.mark.parametrize("p", [2, 3])
def test_what_is_put_on_ctx_in_one_line_is_edited(p):
    (found,) = errors(examine(PowerNorm, random(5), p))
    assert found.code == ("derivative-wrong" if p == 3 else "arguments-ignored")
    assert found.change == "right if: `p, len(x)` stood in place of `2, len(x)`"


class CyclesDimensions(Function):
    order = (1, 2, 0)

    @staticmethod
    def forward(ctx, x):
        return x.permute(CyclesDimensions.order).contiguous()

    @staticmethod
    def backward(ctx, grad_output):
        inverse = [0] * 3
        for k, d in enumerate(CyclesDimensions.order):
            inverse[d] = k
        return grad_output.permute(CyclesDimensions.order)


def test_how_dimensions_are_to_be_permuted():
    x = random(3, 3, 3)
    (found,) = errors(examine(CyclesDimensions, x))
    order = eval(re.search(r"permuted by permute(\(.*\)), it is right", found.message)[1])
    (grad,) = torch.autograd.grad(CyclesDimensions.apply(x), x, v := random(3, 3, 3, seed=1))
    torch.testing.assert_close(grad.permute(order), v.permute(2, 0, 1))
    assert found.remedy.endswith("; and why backward never uses `inverse`")


class SmallIndex(Function):
    """The index of a maximum is kept in eight bits."""

    @staticmethod
    def forward(ctx, x):
        y, k = x.max(-1)
        ctx.save_for_backward(k.to(torch.uint8))
        ctx.size = x.shape[-1]
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (k,) = ctx.saved_tensors
        zeros = grad_output.new_zeros(*grad_output.shape, ctx.size)
        return zeros.scatter(-1, k.long()[..., None], grad_output[..., None])


def test_what_few_elements_do_not_change_is_not_called_flat():
    assert [f.code for f in errors(examine(SmallIndex, random(250, 400)))] != ["straight-through"]


class OthersOf(Function):
    """At this size, c * c - 1 is what belongs there, too."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        n, c = x.shape
        return x.square().sum() / ((c - 1) * n)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        n, c = x.shape
        return grad_output * 2 * x / (c - 1)


def test_what_fits_this_size_by_chance_is_not_said():
    (found,) = errors(examine(OthersOf, random(6, 5)))
    assert found.change.endswith(("divided by `n`", "divided by `len(x)`"))


class WeighsTwo(Function):
    """What is returned for one is that of the other, and computed only where it is asked for."""

    @staticmethod
    def forward(ctx, x, s, b):
        ctx.save_for_backward(x, s)
        return x * s + b

    @staticmethod
    def backward(ctx, grad_output):
        x, s = ctx.saved_tensors
        gs = (grad_output * x).sum() if ctx.needs_input_grad[1] else None
        gb = grad_output.sum() if ctx.needs_input_grad[2] else None
        return grad_output * s, gb, gs


def test_what_follows_from_an_exchange_is_not_said_again():
    found = errors(examine(WeighsTwo, random(5), random(1)[0], random(1, seed=1)[0]))
    assert {f.code for f in found} == {"swapped"}


class GuardedByAnother(WeighsTwo):
    @staticmethod
    def backward(ctx, grad_output):
        x, s = ctx.saved_tensors
        gb = grad_output.sum() if ctx.needs_input_grad[1] else None
        return grad_output * s, (grad_output * x).sum(), gb


def test_which_needs_input_grad_is_asked_for():
    (found,) = errors(examine(GuardedByAnother, random(5), random(1)[0], random(1, seed=1)[0]))
    assert (found.code, found.input) == ("needs-input-grad-wrong", "b")
    asked = "ctx.needs_input_grad"
    assert found.change == f"right if: `{asked}[2]` stood in place of `{asked}[1]`"


class ScalesWhatArrives(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        doubled = grad_output.clone().mul_(2)  # its own
        grad_output.diagonal().add_(1e-3)
        return doubled


def test_where_backward_changes_what_it_is_handed():
    (found,) = errors(examine(ScalesWhatArrives, random(3, 3)))
    assert found.code == "grad-output-modified"
    assert "`grad_output.diagonal().add_(1e-3)` (line " in found.remedy
    assert "mul_" not in found.remedy


class InTheFirstPlace(Function):
    @staticmethod
    def forward(ctx, counts, x):
        ctx.save_for_backward(counts, x)
        return counts * x.exp()

    @staticmethod
    def backward(ctx, grad_output):
        counts, x = ctx.saved_tensors
        return grad_output * counts * x.exp(), None


def test_what_is_returned_for_what_needs_none():
    (found,) = errors(examine(InTheFirstPlace, random(4).detach(), random(4, seed=1)))
    assert found.code == "gradient-none"
    assert "`grad_output * counts * x.exp()` and `None` were exchanged in" in found.change


class OfSome(Function):
    @staticmethod
    def forward(ctx, x, mask):
        return x * mask / mask.sum()

    @staticmethod
    def backward(ctx, grad_output):
        mask = torch.tensor([True, True, False, True])
        return grad_output * mask / 3, None


def test_another_mask_is_an_argument_too():
    (found,) = errors(examine(OfSome, random(4), torch.tensor([True, True, False, True])))
    assert (
        found.code == "arguments-ignored" and "where `mask` has one element less" in found.message
    )


class Collatz(Function):
    """For other numbers than powers of two it does not end."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        while n != 1:
            n = n // 2 if n % 2 == 0 else n
        return n * x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


def test_what_may_not_end_is_given_no_other_number():
    assert examine(Collatz, random(3), 8).ok


class OfPieces(Function):
    """The fourth piece, which only another number makes, is wrong."""

    @staticmethod
    def forward(ctx, x, n):
        return tuple(2 * t for t in x.tensor_split(n))

    @staticmethod
    def backward(ctx, *grads):
        return torch.cat([(2 if k < 3 else 3) * g for k, g in enumerate(grads)]), None


def test_other_numbers_may_make_other_outputs():
    (found,) = errors(examine(OfPieces, random(8), 3))
    assert found.code == "arguments-ignored" and "where `n` is 4." in found.message


def test_hooks_that_pack_rightly_do_not_leave_autograd():
    class Halved(torch.nn.Module):
        def forward(self, x):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                y = x.sin()
            y.register_hook(halved)
            return y * torch.from_numpy(x.detach().numpy())

    for found in errors(examine(Halved(), random(4))):
        assert "saved_tensors_hooks" not in found.remedy + found.change
