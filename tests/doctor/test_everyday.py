"""Slips in Functions of everyday kinds, and what once was said of them that helped nobody."""

import torch
from torch.autograd import Function

from helpers.doctor import examine
from helpers.doctor.__main__ import main
from helpers.lessons.patients.patient import draw
from tests.doctor.cases import errors, ones


class Rotary(Function):
    """Pairs of features are turned; backward turns one of the two the wrong way."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        a, b = g.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos - a * sin), -1), None, None


def test_what_needs_pairs_gets_pairs_and_what_nobody_trains_is_no_error():
    (x,) = draw((2, 5, 6))
    angles = torch.arange(5.0)[:, None] / 10 ** torch.arange(3.0)
    report = examine(Rotary, x.float().requires_grad_(), angles.cos(), angles.sin())
    (found,) = errors(report)
    assert "`a * cos + b * sin` stood in place of `a * cos - b * sin`" in found.change
    assert [one.input for one in report.judged if one.meant] == ["cos", "sin"]


class OtherDimension(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.softmax(x, 0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        y = torch.softmax(x, -1)
        return y * (g - (g * y).sum(0, keepdim=True))


def test_a_negative_constant_is_a_constant():
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
    (found, *_) = errors(examine(OtherDimension, x))
    assert "`torch.softmax(x, 0)` stood in place of `torch.softmax(x, -1)`" in found.change


class Solve(Function):
    """Right; the gradient of b is a step on the way to that of the matrix."""

    @staticmethod
    def forward(ctx, matrix, b):
        x = torch.linalg.solve(matrix, b)
        ctx.save_for_backward(matrix, x)
        return x

    @staticmethod
    def backward(ctx, g):
        matrix, x = ctx.saved_tensors
        of_b = torch.linalg.solve(matrix.mT, g)
        return -of_b.unsqueeze(-1) @ x.unsqueeze(-2), of_b


def test_a_gradient_that_another_one_needs_is_not_computed_in_vain():
    matrix, b = draw((4, 4), (4,))
    report = examine(Solve, matrix + 4 * torch.eye(4).double(), b)
    assert not report.findings, report


class Ratio(Function):
    """Its gradient lacks a division by what backward has at hand."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        size = x.square().sum() + 1
        return (x / size).sum()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        size = x.square().sum() + 1
        return g * (1 - 2 * x * x.sum() / size)


def test_a_division_is_written_as_one():
    (found,) = errors(examine(Ratio, *draw((5,))))
    assert found.change and "(1 / " not in found.change, found


class Layer(Function):
    """It asks about the other input."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        of_w = x.t() @ g if ctx.needs_input_grad[0] else None
        return g @ w.t(), of_w


def test_a_flag_is_exchanged_for_another():
    (found,) = errors(examine(Layer, *draw((3, 2), (2, 2))))
    assert "`ctx.needs_input_grad[1]` stood in place of `ctx.needs_input_grad[0]`" in found.change


class AnswersItself(Function):
    """An exception of what backward tries first is no cure."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        try:
            return half(g, x)
        except Exception:
            return 2 * g * x


def half(g, x):
    if x.dtype != torch.float16:  # with <, this raises
        return g * x
    return 2 * g * x


def test_an_exception_that_backward_answers_is_no_cure():
    (found,) = errors(examine(AnswersItself, *draw((4,))))
    assert "`g * x * 2` stood in place of `g * x`" in found.change, found


def test_a_gradient_that_ones_make_zero_says_so():
    """As of the weight before a normalisation."""

    class Centred(Function):
        @staticmethod
        def forward(ctx, x):
            return x - x.mean()

        @staticmethod
        def backward(ctx, g):
            return g.sum().expand_as(g)

    (found, *_) = errors(examine(Centred, *draw((4,)), lines=False))
    assert (found.evidence["expected"], found.evidence["grad_output"]) == (0, "ones")


def test_the_command_line_prints_json_and_takes_what_is_trained(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("def product(x, w): return x * w\n")
    arguments = [f"{file}:product", "--input", "3x4", "--trained", "4", "--json"]
    assert main(arguments) == 0
    assert '"input": "w", "points": 3, "order": 2' in capsys.readouterr().out
    assert ones(1).numel() == 1
