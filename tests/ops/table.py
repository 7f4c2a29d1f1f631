"""The table of the operations: a row for each file in `helpers/ops`."""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from helpers.ops.attention import attention
from helpers.ops.exp import exp
from helpers.ops.gradient_reversal import gradient_reversal
from helpers.ops.involution import involution2d
from helpers.ops.linear import linear
from helpers.ops.linear_cross_entropy import linear_cross_entropy
from helpers.ops.mul_constant import mul_constant
from helpers.ops.sinh import sinh
from helpers.ops.softplus import softplus
from helpers.ops.straight_through import (
    round_straight_through,
    sign_straight_through,
    spike,
)
from tests.common import FLOATS, random
from tests.ops.samples import (
    and_a_number,
    in_blocks_of_two,
    in_float32_at_least,
    log_add_exp,
    of_attention,
    of_involution,
    of_linear,
    of_linear_cross_entropy,
    of_logits,
    of_one_tensor,
    of_target,
    reversed_slope,
    rounded,
    signed,
    spiked,
    with_corners,
    with_its_matrix,
)


class Op(NamedTuple):
    """What the tests know of an operation.

    function:  the one to call.
    reference: the same mathematics, in PyTorch's own operations.
    samples:   dtype -> {name: arguments}, the tensors first.
    bad:       (what changes in the first sample, some words of the TypeError or ValueError)
    small:     the samples for whole Jacobians, the doctor and the transforms.
    dtypes:    which are supported.
    remarks:   the codes of what the doctor has to say, all of it wanted. With
               "unfaithful", the gradient is not the derivative of the forward.
    wraps:     the one in `helpers/ops`, if `function` only reorders its arguments.
    """

    function: Callable
    reference: Callable
    samples: Callable
    bad: list
    small: tuple = ("contiguous",)
    dtypes: tuple = FLOATS
    remarks: tuple = ()
    wraps: Callable | None = None

    def good(self):
        """The arguments of the first sample, by name."""
        first = next(iter(self.samples(torch.float64).values()))
        return inspect.signature(self.function).bind(*first).arguments


# The oldest torch on which the tests of each file pass: `python -m tools.other_torch`
# tells.
TORCH = dict.fromkeys(
    """attention.py collectives exp.py fixed_point.py gradient_reversal.py
    involution legacy.py linear.py
    linear_cross_entropy.py mul_constant.py recompute.py sinh.py
    softplus.py straight_through.py""".split(),
    "2.10",
)
NOT_IN_THE_TABLE = {
    "collectives": "run in several processes, against one: tests/processes",
    "fixed_point.py": "is called with a function: test_fixed_point.py",
    "legacy.py": "classes of 2017, called through an adapter: tests/legacy",
    "recompute.py": "takes a function: test_recompute.py",
}
ALL = (*FLOATS, torch.complex128, torch.complex64)
INTEGERS = torch.arange(3)


SPARSE = (
    {"input": torch.eye(2).to_sparse()},
    "input must be dense (torch.strided), got",
)
FLOAT8 = (
    {"input": torch.ones(2).to(torch.float8_e4m3fn)},
    "input must have numbers of 16 bits or more, got torch.float8_e4m3fn",
)
NOT_A_TENSOR = ({"input": 1.0}, "input must be a torch.Tensor, got float")
NOT_REAL = [
    NOT_A_TENSOR,
    ({"input": INTEGERS}, "input must be floating-point, got torch.int64"),
    SPARSE,
    FLOAT8,
]
NOT_A_NUMBER = [
    NOT_A_TENSOR,
    ({"input": INTEGERS}, "must be floating-point or complex, got torch.int64"),
]


def weight(*sizes, dtype=torch.float64):
    return {"weight": torch.zeros(sizes, dtype=dtype)}


def options(**changes):
    return {"options": changes}


def linear_weight(*sizes, dtype=torch.float64):
    return {"linear_weight": torch.zeros(sizes, dtype=dtype)}


def query(*sizes):
    return {"query": random(*sizes)}


OPS = {
    "attention": Op(
        in_blocks_of_two,
        with_its_matrix,
        of_attention,
        small=("small", "small, causal", "small, biased"),
        bad=[
            ({"query": 1.0}, "query must be a torch.Tensor, got float"),
            ({"key": torch.eye(4).to_sparse()}, "key must be dense"),
            ({"key": INTEGERS}, "of 16 bits or more, got torch.int64"),
            (
                {"value": torch.ones(4, 2).to(torch.float8_e4m3fn)},
                "value must be floating-point, of 16 bits or more",
            ),
            ({"value": torch.ones(4, 2)}, "value is torch.float32, but query"),
            ({"value": random(4, 2).to("meta")}, "value is on meta, but query"),
            (query(3), "query must have two dimensions or more, got (3,)"),
            (query(2, 4), "broadcast to (..., L, E), (..., S, E), (..., S, Ev)"),
            ({"value": random(3, 2)}, "got (2, 3), (4, 3), (3, 2)"),
            (
                query(5, 2, 3) | {"key": random(2, 4, 3)},
                "(..., L, S), got (5, 2, 3), (2, 4, 3)",
            ),
            ({"attn_mask": INTEGERS}, "attn_mask must be floating-point"),
            ({"attn_mask": torch.ones(4)}, "attn_mask is torch.float32"),
            ({"attn_mask": random(3)}, "(..., L, S), got (2, 3), (4, 3), (4, 2), (3,)"),
            ({"attn_mask": random(5, 2, 4)}, "(4, 2), (5, 2, 4)"),
            (
                {"attn_mask": random(2, 4), "is_causal": True},
                "attn_mask must be None if is_causal is True",
            ),
            ({"dropout_p": 0.1}, "dropout_p must be 0, got 0.1: put a dropout behind"),
            ({"scale": "1"}, "scale must be a finite number, got '1'"),
            ({"scale": random()}, "scale must be a finite number, got tensor"),
            ({"scale": float("inf")}, "scale must be a finite number, got inf"),
            ({"enable_gqa": True}, "must divide those of query"),
            (
                {"enable_gqa": True, "key": random(2, 4, 3), "value": random(2, 4, 2)},
                "must divide those of query",
            ),
            ({"chunk_size": 2.0}, "chunk_size must be an int, 1 or more, got 2.0"),
            ({"chunk_size": 0}, "1 or more, got 0"),
        ],
        wraps=attention,
    ),
    "exp": Op(
        exp, torch.exp, of_one_tensor, [*NOT_A_NUMBER, SPARSE, FLOAT8], dtypes=ALL
    ),
    "gradient_reversal": Op(
        gradient_reversal,
        reversed_slope,
        and_a_number(0.5, 1.0, 0, 3),
        small=("contiguous, 0.5",),
        bad=[
            *NOT_A_NUMBER,
            FLOAT8,
            ({"scale": random(2)}, "scale must be a Python number, got Tensor"),
            ({"scale": True}, "got bool"),
            ({"scale": -1.0}, "scale must be finite and not negative, got -1.0"),
            ({"scale": float("nan")}, "not negative, got nan"),
            ({"scale": float("inf")}, "not negative, got inf"),
        ],
        dtypes=ALL,
        remarks=("unfaithful",),
    ),
    "involution": Op(
        involution2d,
        in_float32_at_least,
        of_involution,
        small=("small",),
        bad=[
            ({"input": [1.0]}, "input must be a torch.Tensor, got list"),
            ({"input": random(4, 5, 6)}, "shape (N, C, H, W), got (4, 5, 6)"),
            (weight(2, 2, 9, 5, 6), "shape (N, G, Kh, Kw, Ho, Wo), got (2, 2, 9, 5"),
            ({"input": torch.ones(2, 4, 5, 6).int()}, "input must be one of"),
            (weight(2, 2, 3, 3, 5, 6, dtype=torch.cfloat), "got torch.complex64"),
            (weight(2, 2, 3, 3, 5, 6, dtype=torch.half), "float64 and torch.float16"),
            ({"input": torch.ones(2, 4, 5, 6, device="meta")}, "got meta and cpu"),
            (weight(1, 2, 3, 3, 5, 6), "one batch size, got 2 and 1"),
            (weight(2, 3, 3, 3, 5, 6), "got 4 channels and 3 groups"),
            (weight(2, 0, 3, 3, 5, 6), "got 4 channels and 0 groups"),
            (weight(2, 2, 0, 3, 5, 6), "must be 1 x 1 or larger, got [0, 3]"),
            (weight(2, 2, 3, 3, 5, 5), "5 x 6 output pixels, got 5 x 5"),
            ({"padding": 0, "dilation": 3}, "does not fit into an input of 5 x 6"),
            (
                {"input": random(2, 4, 0, 6), "padding": (3, 1)},
                "does not fit into an input of 0 x 6",
            ),
            ({"stride": 0}, "stride must be two ints, 1 or more, got (0, 0)"),
            ({"dilation": (1, 0)}, "dilation must be two ints, 1 or more, got (1"),
            ({"padding": (1, -1)}, "padding must be two ints, 0 or more, got (1"),
            ({"stride": 1.5}, "stride must be an int or a pair of ints, got 1.5"),
            ({"padding": (1, 1, 1)}, "padding must be an int or a pair of ints"),
            ({"stride": True}, "got True"),
            ({"stride": 2**41}, "stride must be at most 2**40, got (2199"),
            ({"padding": 2**62, "dilation": 2**62}, "padding must be at most 2**40"),
            ({"dilation": (1, 2**41)}, "dilation must be at most 2**40, got (1, 2199"),
            ({"input": random(2, 4, 5, 6).detach().to_sparse()}, "input must be dense"),
        ],
    ),
    "linear": Op(
        linear,
        F.linear,
        of_linear,
        small=("three dimensions", "without bias"),
        bad=[
            NOT_A_TENSOR,
            SPARSE,
            FLOAT8,
            ({"weight": [1.0]}, "weight must be a torch.Tensor, got list"),
            ({"bias": 0.0}, "bias must be a torch.Tensor, got float"),
            ({"input": INTEGERS}, "input must be floating-point, got torch.int64"),
            (weight(2, 3, dtype=torch.bool), "weight must be floating-point, got"),
            (weight(2, 3, dtype=torch.float), "weight is torch.float32, but input is"),
            ({"bias": torch.zeros(2).half()}, "bias is torch.float16, but input"),
            ({"input": random(4, 3).to("meta")}, "weight is on cpu, but input is on"),
            (
                weight(1, 2, 3),
                "weight must have shape (out_features, in_features), got (1, 2, 3)",
            ),
            (weight(3, 2), "input must have shape (..., 2) to fit weight (3, 2)"),
            ({"input": random()}, "got ()"),
            ({"bias": random(3)}, "bias must have shape (2,), got (3,)"),
        ],
    ),
    "linear_cross_entropy": Op(
        of_target,
        of_logits,
        of_linear_cross_entropy,
        small=("smoothed", "everything"),
        bad=[
            NOT_A_TENSOR,
            ({"target": [1]}, "target must be a torch.Tensor, got list"),
            ({"linear_bias": 0.0}, "linear_bias must be a torch.Tensor, got float"),
            ({"input": torch.ones(5, 3).int()}, "input must be floating-point, got"),
            (linear_weight(4, 3, dtype=torch.bool), "linear_weight must be floating"),
            (linear_weight(4, 3, dtype=torch.float), "linear_weight is torch.float32"),
            ({"linear_bias": torch.zeros(4).half()}, "linear_bias is torch.float16"),
            ({"target": torch.ones(5)}, "target must have shape (5, 4), got (5,)"),
            ({"target": random(5, 4)}, "target must not require a gradient"),
            (options(weight=random(4)), "weight must not require a gradient"),
            (options(weight=torch.ones(3)), "weight must have shape (4,), got (3,)"),
            (
                options(weight=torch.ones(4).long()),
                "weight must be floating-point, got",
            ),
            (options(row_weight=torch.ones(4)), "row_weight must have shape (5,), got"),
            (options(row_weight=[1.0] * 5), "row_weight must be a torch.Tensor, got"),
            (options(z_loss=-1), "z_loss must be finite and not negative, got -1"),
            (options(softcap=float("inf")), "softcap must be finite and not"),
            ({"target": torch.ones(5).int()}, "got torch.int32"),
            ({"input": random(5, 3).to("meta")}, "is on cpu, but input is on meta"),
            ({"target": torch.ones(5).to("meta")}, "target is on meta, but input is"),
            (linear_weight(3), "linear_weight must have shape (V, D), V > 0, got (3,)"),
            (linear_weight(0, 3), "got (0, 3)"),
            (linear_weight(4, 2), "input must have shape (..., 2), got (5, 3)"),
            ({"input": random()}, "input must have shape (..., 3), got ()"),
            ({"target": torch.ones(5, 1).long()}, "shape (5,), got (5, 1)"),
            ({"linear_bias": random(3)}, "linear_bias must have shape (4,), got (3,)"),
            (options(reduction="max"), "must be 'mean', 'sum' or 'none', got 'max'"),
            (options(ignore_index=1.0), "ignore_index must be an int, got float"),
            (options(label_smoothing=1.5), "must be from 0 to 1, got 1.5"),
            (options(label_smoothing=-0.1), "from 0 to 1, got -0.1"),
            (options(chunk_size=0), "chunk_size must be 1 or more, got 0"),
            (options(chunk_size=1.5), "chunk_size must be an int, got float"),
            (options(softcap="2"), "softcap must be a number, got str"),
        ],
        wraps=linear_cross_entropy,
    ),
    "mul_constant": Op(
        mul_constant,
        torch.mul,
        and_a_number(2.5, -3, 0, if_complex=(2.5 - 1j,)),
        small=("contiguous, 2.5",),
        bad=[
            *NOT_A_NUMBER,
            FLOAT8,
            ({"constant": torch.tensor(2.0)}, "must be a Python number, got Tensor"),
            ({"constant": True}, "constant must be a Python number, got bool"),
            ({"constant": 1j}, "so input must be complex too, got torch.float64"),
        ],
        dtypes=ALL,
    ),
    "round_straight_through": Op(
        round_straight_through,
        rounded,
        of_one_tensor,
        NOT_REAL,
        remarks=("unfaithful",),
    ),
    "sign_straight_through": Op(
        sign_straight_through,
        signed,
        and_a_number(2.0, 3),
        small=("contiguous, 2.0",),
        bad=[
            *NOT_REAL,
            ({"clip": random(2)}, "clip must be a Python number, got Tensor"),
            ({"clip": True}, "got bool"),
            ({"clip": 0}, "clip must be larger than 0, got 0"),
            ({"clip": float("nan")}, "larger than 0, got nan"),
        ],
        remarks=("unfaithful",),
    ),
    "sinh": Op(sinh, torch.sinh, of_one_tensor, NOT_REAL),
    "softplus": Op(
        softplus,
        log_add_exp,
        with_corners,
        small=("corners",),
        bad=[
            *NOT_REAL,
            ({"beta": True}, "beta must be a Python number, got bool"),
            ({"beta": "1"}, "beta must be a Python number, got str"),
            ({"beta": 0}, "beta must be finite and larger than 0, got 0"),
            ({"beta": float("nan")}, "beta must be finite and larger than 0, got nan"),
            ({"beta": float("inf")}, "beta must be finite and larger than 0, got inf"),
        ],
    ),
    "spike": Op(
        spike,
        spiked,
        and_a_number(25.0, 2),
        small=("contiguous, 25.0",),
        bad=[
            *NOT_REAL,
            ({"slope": "25"}, "slope must be a Python number, got str"),
            ({"slope": -1.0}, "slope must be larger than 0, got -1.0"),
            ({"slope": float("inf")}, "for torch.float64, got inf"),
            ({"slope": 1e-308}, "slope must lie between 2.2e-308 and 1.8e+308"),
        ],
        remarks=("unfaithful",),
    ),
}
