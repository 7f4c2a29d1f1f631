"""The operator of involution under every transformation."""

import pytest
import torch

from helpers.lessons.involution_benchmark import unfold_involution
from helpers.ops.involution import involution2d, operator
from tests.involution.reference import (
    SMALL,
    images_channels_last,
    make_geometry,
    random_tensors,
    transposed,
    window,
)

ops = torch.ops.extending_pytorch


def calls(geometry, input, weight, grad_output):
    """The three operators, each with its arguments."""
    s = geometry
    size, rest = (s.kernel_height, s.kernel_width), window(s).values()
    return {
        ops.involution2d.default: (input, weight, *rest),
        ops.involution2d_grad_input.default: (
            grad_output,
            weight,
            (s.height, s.width),
            *rest,
        ),
        ops.involution2d_grad_weight.default: (
            grad_output,
            input,
            s.groups,
            size,
            *rest,
        ),
    }


def function(input, weight):
    return involution2d(input, weight, padding=1)


# Registration


def test_autocast_is_registered_for_cuda():
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    assert has_kernel("extending_pytorch::involution2d", "AutocastCUDA")


@pytest.mark.parametrize("layout", [torch.clone, images_channels_last, transposed])
def test_opcheck(layout):
    """The compiled uses of test_table.py show the rest."""
    checks = "test_schema", "test_autograd_registration", "test_faketensor"
    for geometry in (SMALL["all options"], SMALL["same size"]._replace(batch=0)):
        case = random_tensors(geometry, torch.float64)
        tensors = [layout(t).detach().requires_grad_() for t in case]
        for op, arguments in calls(geometry, *tensors).items():
            torch.library.opcheck(op, arguments, test_utils=checks)
            on_meta = [a.to("meta") if torch.is_tensor(a) else a for a in arguments]
            assert op(*on_meta).stride() == op(*arguments).stride()


def test_bad_arguments_do_not_reach_a_kernel(monkeypatch):
    input, weight, grad_output = random_tensors(SMALL["same size"])
    monkeypatch.setattr(operator, "implementation", None)
    pairs = [(1, 1)] * 3
    for op, arguments, message in (
        (ops.involution2d, (input, weight[:1]), "one batch size"),
        (
            ops.involution2d_grad_input,
            (grad_output[..., 1:], weight, (5, 6)),
            r"got \(2, 4, 5, 5\)",
        ),
        (
            ops.involution2d_grad_weight,
            (grad_output[:, 1:], input, 2, (3, 3)),
            "grad_output must",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            op(*arguments, *pairs)


# Derivatives


def test_third_derivatives():
    """Those of first and second order are in tests/ops/test_table.py."""
    geometry = make_geometry(1, 2, 1, (3, 3), (3, 3), padding=(1, 1))
    input, weight, _ = random_tensors(geometry, torch.float64)

    def thrice(f):
        for _ in range(3):
            f = torch.func.grad(lambda x, w, f=f: f(x, w).pow(2).sum())
        return f

    third = thrice(function)(input, weight)
    torch.testing.assert_close(third, thrice(unfold_involution)(input, weight))
