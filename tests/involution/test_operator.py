"""The operator of involution under every transformation."""

import pytest
import torch

from helpers.ops.involution import involution2d, operator
from helpers.ops.involution.benchmark import unfold_involution
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


def loss(input, weight):
    return function(input, weight).pow(3).sum()


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Registration


def test_the_schema_and_what_is_registered():
    assert str(ops.involution2d.default._schema) == (
        "extending_pytorch::involution2d(Tensor input, Tensor weight, SymInt[2] stride,"
        " SymInt[2] padding, SymInt[2] dilation) -> Tensor"
    )
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in operator.OPERATORS:
        for key in ("CPU", "CUDA", "Meta", "FuncTorchBatched", "Autograd"):
            assert has_kernel(f"extending_pytorch::{name}", key), (name, key)
    for key in ("AutocastCPU", "AutocastCUDA"):
        assert has_kernel("extending_pytorch::involution2d", key)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_opcheck(dtype):
    """In every layout. The last of the four checks takes half a second each."""
    cheap = "test_schema", "test_autograd_registration", "test_faketensor"
    small = SMALL["same size"]
    for geometry in (small, SMALL["all options"], small._replace(batch=0)):
        case = random_tensors(geometry, dtype)
        for layout in (
            lambda t: t,
            images_channels_last,
            transposed,
        ):
            tensors = [layout(t).detach().requires_grad_() for t in case]
            for op, arguments in calls(geometry, *tensors).items():
                torch.library.opcheck(op, arguments, test_utils=cheap)
                on_meta = [a.to("meta") if torch.is_tensor(a) else a for a in arguments]
                assert op(*on_meta).stride() == op(*arguments).stride()
                if (
                    geometry is small
                    and layout is images_channels_last
                    and dtype == torch.float64
                ):
                    torch.library.opcheck(
                        op, arguments, test_utils="test_aot_dispatch_dynamic"
                    )


def test_bad_arguments_do_not_reach_a_kernel(monkeypatch):
    input, weight, grad_output = random_tensors(SMALL["same size"])
    monkeypatch.setattr(operator, "implementation", None)
    pair, odd, few = (1, 1), grad_output[..., 1:], grad_output[:, 1:]
    gradients = ops.involution2d_grad_input, ops.involution2d_grad_weight
    for op, arguments, error, message in (
        (
            ops.involution2d,
            (input, weight[:1], pair, pair, pair),
            ValueError,
            "one batch size",
        ),
        (
            ops.involution2d,
            (input, weight.double(), pair, pair, pair),
            TypeError,
            "one dtype",
        ),
        (
            ops.involution2d,
            (input, weight, (0, 1), pair, pair),
            ValueError,
            "stride must be two",
        ),
        (
            ops.involution2d,
            (input, weight, (1, 1, 1), pair, pair),
            ValueError,
            "two ints",
        ),
        (
            gradients[0],
            (grad_output, weight, (9, 9), pair, pair, pair),
            ValueError,
            "output pixel",
        ),
        (
            gradients[0],
            (odd, weight, (5, 6), pair, pair, pair),
            ValueError,
            r"got \(2, 4, 5, 5\)",
        ),
        (
            gradients[1],
            (grad_output, input, 3, (3, 3), pair, pair, pair),
            ValueError,
            "3 groups",
        ),
        (
            gradients[1],
            (grad_output, input, 2, (5, 3), pair, pair, pair),
            ValueError,
            "a kernel",
        ),
        (
            gradients[1],
            (few, input, 2, (3, 3), pair, pair, pair),
            ValueError,
            "grad_output must",
        ),
    ):
        with pytest.raises(error, match=message):
            op(*arguments)


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
    with torch.no_grad():
        torch.testing.assert_close(thrice(function)(input, weight), third)


# torch.compile, torch.export


# Two copies of the folder, where there is nothing but torch; and no warning either
