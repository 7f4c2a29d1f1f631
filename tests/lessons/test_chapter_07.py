"""What chapter 07 says of a sign that is not in memory, and no cell of it shows."""

import torch

from tests.needs import needs_compiler

negative = []


@torch.library.custom_op("chapter_07::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    negative.append(("kernel", x.is_neg()))
    return 2 * x


def backward(ctx, grad_output):
    negative.append(("backward", grad_output.is_neg()))
    return twice(grad_output)


twice.register_autograd(backward)


def test_the_dispatcher_resolves_a_sign_for_kernels_only():
    x = torch.ones(3, dtype=torch.complex64).conj().imag.requires_grad_()
    assert x.is_neg()
    negative.clear()
    y = torch.complex(torch.zeros(3), twice(x)).conj() * (2 + 1j)
    y.abs().sum().backward()
    assert negative == [("kernel", False), ("backward", True), ("kernel", False)]


@needs_compiler
def test_inductor_loses_a_sign_that_is_not_in_memory():
    x = torch.complex(torch.zeros(3), torch.ones(3)).conj().imag
    double = torch.compile(lambda x: x * 2, backend="inductor")
    assert double(x).tolist() == [2, 2, 2] and (x * 2).tolist() == [-2, -2, -2]
    assert double(x.resolve_neg()).tolist() == [-2, -2, -2]
