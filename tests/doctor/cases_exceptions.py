"""What the doctor says of what raises, and of what it quotes of it."""

import numpy as np
import torch

from helpers.lessons.patients.patient import Double
from tests.doctor.cases import Table, ones

THREE = (ones(3),)
case = CASES = Table()


def backward(codes, *words, inputs=THREE, forward=Double.forward, **options):
    """Registers a Function with this backward."""

    def register(fn):
        methods = {"forward": staticmethod(forward), "backward": staticmethod(fn)}
        cls = type(fn.__name__, (torch.autograd.Function,), methods)
        return case(codes, *words, inputs=inputs, **options)(cls)

    return register


@backward("raised", "Backward raised", "`return grad_output * undefined  # noqa: F821` (line ")
def an_undefined_name(ctx, grad_output):
    return grad_output * undefined  # noqa: F821


@case("raised", "Forward raised", "`return x * undefined  # noqa: F821` (line ", inputs=(ones(3),))
def undefined_in_forward(x):
    return x * undefined  # noqa: F821


@backward("raised", "`np.linalg.inv(np.zeros((2, 2)))` (line ")
def raises_in_numpy(ctx, grad_output):
    np.linalg.inv(np.zeros((2, 2)))


@backward("raised", "Backward raised KeyError")
def a_key_error(ctx, grad_output):
    raise KeyError("lost")


@backward("attribute-missing", "ctx has no `factor`")
def reads_what_is_not_there(ctx, grad_output):
    return grad_output * ctx.factor


@backward("gradient-type", "Backward returned `int` where a tensor or None belongs.")
def returns_a_number(ctx, grad_output):
    return 3


@backward("not-linear", "Backward returns int64 for `x`", inputs=(torch.full((3,), 1e6).double(),))
def returns_integers(ctx, grad_output):
    return 2 * grad_output.long()


@case("shapes-do-not-fit", "Forward failed: shapes do not fit", inputs=(ones(3, 4),))
def multiplies_what_does_not_fit(x):
    return x @ torch.ones(3, 4).double()
