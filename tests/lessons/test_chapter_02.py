"""What chapter 02 says of function transforms and compiled views, and no cell of it shows."""

import pytest
import torch
from torch.autograd import Function


class FirstTwo(Function):
    @staticmethod
    def forward(x):
        return x[:2]

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return torch.nn.functional.pad(grad_output, (0, 1))


def doubled_base(first_two, x):
    base = 3 * x
    first = first_two(base)
    base.mul_(2)
    return first.sum()


def test_a_changed_base_of_a_view_under_a_function_transform():
    x = torch.ones(3)
    right = torch.func.grad(lambda x: doubled_base(lambda base: base[:2], x))(x)
    ours = torch.func.grad(lambda x: doubled_base(FirstTwo.apply, x))(x)
    assert (right.tolist(), ours.tolist()) == ([6, 6, 0], [3, 3, 0])


class Mask(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx, grad_output):
        return torch.zeros_like(grad_output)


def test_vmap_loses_the_mark_of_a_constant_output():
    x = torch.ones(3, requires_grad=True)
    assert not Mask.apply(x).requires_grad
    assert torch.vmap(Mask.apply)(x).requires_grad


class Reversed(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return -grad_output


def beside(x):
    y = 2 * x
    return y, Reversed.apply(y)


def turned(x):
    return x, Reversed.apply(x).t()


@pytest.mark.parametrize(("f", "slope"), [(beside, -2), (turned, -1)])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_view_that_leaves_a_compiled_function(f, slope, backend):
    x = torch.ones(1, 1, requires_grad=True)
    y = torch.compile(f, backend=backend, fullgraph=True)(x)[1]
    (found,) = torch.autograd.grad(y, x)
    assert found.item() == (slope if backend == "eager" else -slope)


class Masked(Function):
    @staticmethod
    def forward(ctx, x):
        mask = (x > 0).to(x.dtype)
        ctx.mark_non_differentiable(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx, grad_output, _):
        torch._dynamo.graph_break()
        return grad_output


def test_a_compiler_that_breaks_the_graph_at_a_function_loses_the_mark():
    x = torch.ones(1, requires_grad=True)
    assert torch.compile(Masked.apply, backend="aot_eager")(x)[1].requires_grad
    assert not Masked.apply(x)[1].requires_grad
