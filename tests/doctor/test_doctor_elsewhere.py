"""What holds for other arguments, sizes and masks, too; and what follows from another error."""

import re

import pytest
import torch
from torch.autograd import Function

from helpers.doctor import examine
from helpers.lessons.patients import PATIENTS
from tests.common import random
from tests.doctor.test_doctor_edits import errors


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
    assert found.change.startswith("right if: `grad_output * 2 * x / (c - 1) / n` stood")


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
            y.register_hook(lambda grad: grad / 2)
            return y * torch.from_numpy(x.detach().numpy())

    for found in errors(examine(Halved(), random(4))):
        assert "saved_tensors_hooks" not in found.remedy + found.change


class Rounds(Function):
    """How often is a whole number; what is kept for it is kept for all."""

    made = {}

    @staticmethod
    def forward(ctx, x, times):
        ctx.times = times
        return x * 2.0**times

    @staticmethod
    def backward(ctx, grad_output):
        n = len(grad_output)
        if n not in Rounds.made:
            Rounds.made[n] = 2.0**ctx.times
        return grad_output * Rounds.made[n], None


def test_caches_are_given_other_whole_numbers_and_are_then_what_they_were():
    (found,) = errors(examine(Rounds, random(4), 3))
    assert found.code == "arguments-ignored"
    assert "where `times` is 4" in found.message
    assert set(Rounds.made.values()) == {8.0}


def test_what_a_cache_of_a_key_holds_is_as_it_was():
    spaced = PATIENTS["Spaced"]
    spaced.fn.made.clear()
    (found,) = errors(spaced.examine())
    assert found.code == "cache-key" and "Where `spacing` is 0.4" in found.message
    assert len(spaced.fn.made) == 1


DECAYS = {}


def decay(n, rate):
    if n not in DECAYS:
        DECAYS[n] = rate ** torch.arange(n).double()
    return DECAYS[n]


class Decays(Function):
    """A table of the module, which a function beside keeps."""

    @staticmethod
    def forward(ctx, x, rate):
        ctx.rate = rate
        return x * decay(len(x), rate)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * decay(len(grad_output), ctx.rate), None


def test_caches_beside_a_function_are_found():
    (found,) = errors(examine(Decays, random(4), 0.5))
    assert found.code == "cache-key" and "Where `rate` is 0.4" in found.message
    assert DECAYS[4][1] == 0.5


HANDLES, SEEN = {"kernel": 1}, []


class Registered(Function):
    """It does more than compute, so what it keeps is not to be taken from it."""

    @staticmethod
    def forward(ctx, x, rate):
        SEEN.append(len(HANDLES))
        ctx.rate = rate
        return torch.from_numpy(x.numpy() * rate)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.rate, None


def test_what_does_more_than_compute_keeps_its_dicts():
    assert not errors(examine(Registered, random(4), 0.5))
    assert set(SEEN) == {1}
