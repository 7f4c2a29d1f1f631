"""The table of the operations. A new one in `helpers/ops` gets a row; test_ops.py does the rest."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from helpers.ops.exp import exp
from helpers.ops.gradient_reversal import gradient_reversal
from helpers.ops.involution import involution2d
from helpers.ops.linear import linear
from helpers.ops.mul_constant import mul_constant
from helpers.ops.sinh import sinh
from helpers.ops.softplus import softplus
from tests.common import FLOATS, layouts, random
from tests.involution_reference import unfolded


class Op(NamedTuple):
    """What the tests know of an operation.

    function:  the one to call.
    reference: the same mathematics, in PyTorch's own operations.
    samples:   dtype -> {name: arguments}, the tensors first.
    bad:       (what changes in the first sample, the exception, some of its words)
    small:     the samples that whole Jacobians, the doctor and the transforms are tried on.
    dtypes:    which are supported.
    remarks:   the codes of what the doctor has to say, all of it wanted. With "unfaithful", the
               gradient is not the derivative of the forward.
    raises:    what of test_ops.USES raises, with some of the words.
    wrong:     what of test_ops.USES is wrong without a word on the pinned version of torch.
    """

    function: Callable
    reference: Callable
    samples: Callable
    bad: list
    small: tuple = ("contiguous",)
    dtypes: tuple = FLOATS
    remarks: tuple = ()
    raises: dict = {}
    wrong: tuple = ()


NOT_IN_THE_TABLE = {
    "legacy.py": "classes of 2017, called through an adapter: test_legacy.py",
    "recompute.py": "takes a function: test_recompute.py",
    "reversible.py": "a module of modules: test_reversible.py",
}
ALL = (*FLOATS, torch.complex128, torch.complex64)
INTEGERS = torch.arange(3)
NO_FORWARD_MODE = dict.fromkeys(
    ("jvp", "jacfwd", "hessian", "linearize"), "You must implement the jvp function"
)


def of_one_tensor(dtype):
    return {name: (tensor,) for name, tensor in layouts(dtype).items()}


def and_a_number(*numbers, if_complex=()):
    def samples(dtype):
        return {
            f"{name}, {number}": (tensor, number)
            for name, tensor in layouts(dtype).items()
            for number in (numbers + if_complex if dtype.is_complex else numbers)
        }

    return samples


def log_add_exp(x):
    """log(exp(x) + exp(0)) by PyTorch's own stable operation."""
    return torch.logaddexp(x, torch.zeros_like(x))


def reversed_slope(x, scale=1.0):
    constant = x.detach()
    return constant - scale * (x - constant)


def of_linear(dtype):
    """input, weight, bias or None"""
    shapes = {
        "matrix": ((4, 3), (2, 3), (2,)),
        "without bias": ((4, 3), (2, 3), None),
        "vector": ((3,), (2, 3), (2,)),
        "three dimensions": ((2, 5, 3), (4, 3), (4,)),
        "four dimensions": ((2, 1, 5, 3), (4, 3), (4,)),
        "one output feature": ((4, 3), (1, 3), (1,)),
        "one input feature": ((4, 1), (2, 1), (2,)),
        "empty batch": ((0, 3), (2, 3), (2,)),
        "empty batch of matrices": ((2, 0, 3), (2, 3), (2,)),
        "no input features": ((4, 0), (2, 0), (2,)),
        "no output features": ((4, 3), (0, 3), (0,)),
    }
    samples = {
        name: tuple(
            None if size is None else random(*size, dtype=dtype, seed=seed)
            for seed, size in enumerate(sizes)
        )
        for name, sizes in shapes.items()
    }
    x = random(3, 4, dtype=dtype).detach().t().requires_grad_()
    weight = random(6, 2, dtype=dtype, seed=1).detach()[::2].t().requires_grad_()
    samples["not contiguous"] = (x, weight, random(2, dtype=dtype, seed=2))
    samples["expanded"] = (random(3, dtype=dtype).expand(2, 5, 3), weight, None)
    return samples


def of_involution(dtype):
    """input, weight, stride, padding, dilation"""

    def pair(input_size, weight_size):
        return random(*input_size, dtype=dtype), random(*weight_size, dtype=dtype, seed=1)

    same = pair((2, 4, 5, 6), (2, 2, 3, 3, 5, 6))
    across = [t.detach().transpose(-1, -2).contiguous().transpose(-1, -2) for t in same]
    return {
        "same size": (*same, 1, 1),
        "small": (*pair((1, 2, 3, 4), (1, 1, 2, 3, 2, 2)), (1, 2), (0, 1)),
        "all options": (*pair((2, 6, 8, 9), (2, 3, 3, 5, 7, 7)), (2, 1), (4, 3), (1, 2)),
        "transposed": (*[t.requires_grad_() for t in across], 1, 1),
        "strided": (*[torch.stack([t, t], -1)[..., 0] for t in same], 1, 1),
        "channels last": (same[0].to(memory_format=torch.channels_last), same[1], 1, 1),
        "empty batch": (*pair((0, 4, 5, 6), (0, 2, 3, 3, 5, 6)), 1, 1),
    }


def in_float32_at_least(input, weight, *geometry):
    """Involution by unfold, summed in float32 as it promises."""
    wide = torch.promote_types(input.dtype, torch.float32)
    return unfolded(input.to(wide), weight.to(wide), *geometry).to(input.dtype)


NOT_A_TENSOR = ({"input": 1.0}, TypeError, "input must be a torch.Tensor, got float")
NOT_REAL = [
    NOT_A_TENSOR,
    ({"input": INTEGERS}, TypeError, "input must be floating-point, got torch.int64"),
    ({"input": INTEGERS.cfloat()}, TypeError, "got torch.complex64"),
]
NOT_A_NUMBER = [
    NOT_A_TENSOR,
    ({"input": INTEGERS}, TypeError, "must be floating-point or complex, got torch.int64"),
]


def weight(*sizes, dtype=torch.float64):
    return {"weight": torch.zeros(sizes, dtype=dtype)}


OPS = {
    "exp": Op(exp, torch.exp, of_one_tensor, NOT_A_NUMBER, dtypes=ALL, raises=NO_FORWARD_MODE),
    "gradient_reversal": Op(
        gradient_reversal,
        reversed_slope,
        and_a_number(0.5, 1.0, 0, 3),
        small=("contiguous, 0.5",),
        bad=[
            *NOT_A_NUMBER,
            ({"scale": random(2)}, TypeError, "scale must be a Python number, got Tensor"),
            ({"scale": True}, TypeError, "got bool"),
            ({"scale": -1.0}, ValueError, "scale must be finite and not negative, got -1.0"),
            ({"scale": float("nan")}, ValueError, "not negative, got nan"),
            ({"scale": float("inf")}, ValueError, "not negative, got inf"),
        ],
        dtypes=ALL,
        remarks=("input-returned", "unfaithful"),
        raises=NO_FORWARD_MODE | {"compile, dynamic shapes": "isfinite"},  # a free scale, that is
        wrong=("compile(func.grad)", "export"),
    ),
    "involution": Op(
        involution2d,
        in_float32_at_least,
        of_involution,
        small=("small",),
        bad=[
            ({"input": [1.0]}, TypeError, "input must be a torch.Tensor, got list"),
            ({"input": random(4, 5, 6)}, ValueError, "shape (N, C, H, W), got (4, 5, 6)"),
            (weight(2, 2, 9, 5, 6), ValueError, "shape (N, G, Kh, Kw, Ho, Wo), got (2, 2, 9, 5"),
            ({"input": torch.ones(2, 4, 5, 6).int()}, TypeError, "input must be one of"),
            (weight(2, 2, 3, 3, 5, 6, dtype=torch.cfloat), TypeError, "got torch.complex64"),
            (weight(2, 2, 3, 3, 5, 6, dtype=torch.half), TypeError, "float64 and torch.float16"),
            ({"input": torch.ones(2, 4, 5, 6, device="meta")}, ValueError, "got meta and cpu"),
            (weight(1, 2, 3, 3, 5, 6), ValueError, "one batch size, got 2 and 1"),
            (weight(2, 3, 3, 3, 5, 6), ValueError, "got 4 channels and 3 groups"),
            (weight(2, 0, 3, 3, 5, 6), ValueError, "got 4 channels and 0 groups"),
            (weight(2, 2, 0, 3, 5, 6), ValueError, "must be 1 x 1 or larger, got [0, 3]"),
            (weight(2, 2, 3, 3, 5, 5), ValueError, "5 x 6 output pixels, got 5 x 5"),
            ({"padding": 0, "dilation": 3}, ValueError, "does not fit into an input of 5 x 6"),
            ({"input": random(2, 4, 0, 6)}, ValueError, "does not fit"),
            ({"stride": 0}, ValueError, "stride must be 1 or more, got 0"),
            ({"dilation": (1, 0)}, ValueError, "dilation must be 1 or more, got (1, 0)"),
            ({"padding": (1, -1)}, ValueError, "padding must be 0 or more, got (1, -1)"),
            ({"stride": 1.5}, TypeError, "stride must be an int or a pair of ints, got 1.5"),
            ({"padding": (1, 1, 1)}, TypeError, "padding must be an int or a pair of ints"),
            ({"stride": True}, TypeError, "got True"),
            ({"stride": 2**41}, ValueError, "stride must be at most 2**40, got (2199"),
            ({"padding": 2**62, "dilation": 2**62}, ValueError, "padding must be at most 2**40"),
            ({"dilation": (1, 2**41)}, ValueError, "dilation must be at most 2**40, got (1, 2199"),
            ({"input": random(2, 4, 5, 6).detach().to_sparse()}, TypeError, "input must be dense"),
            ({"input": torch.ones(2, 4, 5, 6).to_mkldnn()}, TypeError, "got torch._mkldnn"),
        ],
    ),
    "linear": Op(
        linear,
        F.linear,
        of_linear,
        small=("three dimensions", "without bias"),
        bad=[
            NOT_A_TENSOR,
            ({"weight": [1.0]}, TypeError, "weight must be a torch.Tensor, got list"),
            ({"bias": 0.0}, TypeError, "bias must be a torch.Tensor, got float"),
            ({"input": INTEGERS}, TypeError, "input must be floating-point, got torch.int64"),
            (weight(2, 3, dtype=torch.bool), TypeError, "weight must be floating-point, got"),
            (weight(2, 3, dtype=torch.float), TypeError, "weight is torch.float32, but input is"),
            ({"bias": torch.zeros(2).half()}, TypeError, "bias is torch.float16, but input"),
            ({"input": random(4, 3).to("meta")}, ValueError, "weight is on cpu, but input is on"),
            (weight(3), ValueError, "(out_features, in_features), got (3,)"),
            (weight(3, 2), ValueError, "input must have shape (..., 2) to fit weight (3, 2)"),
            ({"input": random()}, ValueError, "got ()"),
            ({"bias": random(1)}, ValueError, "shape (2,) to fit weight (2, 3), got (1,)"),
            ({"bias": random(2, 1)}, ValueError, "got (2, 1)"),
        ],
        raises=NO_FORWARD_MODE,
    ),
    "mul_constant": Op(
        mul_constant,
        torch.mul,
        and_a_number(2.5, -3, 0, if_complex=(2.5 - 1j,)),
        small=("contiguous, 2.5",),
        bad=[
            *NOT_A_NUMBER,
            ({"constant": torch.tensor(2.0)}, TypeError, "must be a Python number, got Tensor"),
            ({"constant": True}, TypeError, "constant must be a Python number, got bool"),
            ({"constant": None}, TypeError, "got NoneType"),
            ({"constant": 1j}, TypeError, "so input must be complex too, got torch.float64"),
        ],
        dtypes=ALL,
        raises=NO_FORWARD_MODE,
    ),
    "sinh": Op(sinh, torch.sinh, of_one_tensor, NOT_REAL, raises=NO_FORWARD_MODE),
    "softplus": Op(softplus, log_add_exp, of_one_tensor, NOT_REAL, raises=NO_FORWARD_MODE),
}
