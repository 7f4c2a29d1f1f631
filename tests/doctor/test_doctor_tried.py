"""What the doctor tries, in which order, with which numbers; and which words it has for that."""

import ast
import itertools
import re
import types

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import _SingleLevelFunction

from helpers.doctor import examine, rewritten
from helpers.doctor.omissions import omissions
from helpers.doctor.rearranged import folded
from helpers.doctor.slips import of_no_shape, slips
from helpers.doctor.source import Source
from tests.common import random
from tests.doctor.test_doctor_edits import errors


class Affine(Function):
    """The gradient of w is wrong, in one line of four."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return (x * w).sin() + b.exp() * 0

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        slope = (x * w).cos()
        of_x = grad_output * slope * w
        of_w = grad_output * slope * x.square()
        of_b = grad_output * 0
        return *(of_x, of_w), of_b


def test_a_line_on_which_the_gradient_does_not_depend_is_not_edited(monkeypatch):
    lines, each = [], rewritten.each

    def noting(cls, name, helper, *rest):
        for source, function, edit in each(cls, name, helper, *rest):
            if name == "backward":
                lines.append(source.head(source.statement(edit.node)))
            yield source, function, edit

    monkeypatch.setattr(rewritten, "each", noting)
    assert errors(examine(Affine, random(4), random(4, seed=1), random(4, seed=2)))[0].change
    unknown, of_w = "x, w = ctx.saved_tensors", "of_w = grad_output * slope * x.square()"
    assert of_w in lines and set(lines) <= {unknown, of_w, "return *(of_x, of_w), of_b"}


class TwoOutputs(Function):
    """What comes through the second output is forgotten."""

    @staticmethod
    def forward(ctx, x, gate):
        ctx.save_for_backward(x, gate)
        cell = x.sin() * gate
        return cell.exp(), cell.clone()

    @staticmethod
    def backward(ctx, g, g_cell):
        x, gate = ctx.saved_tensors
        inner = g * (x.sin() * gate).exp()
        return inner * gate * x.cos(), inner * x.sin()


def test_what_is_right_through_another_output_is_what_it_was():
    found = errors(examine(TwoOutputs, random(4), random(4, seed=1)))
    assert {f.through for f in found} == {"`output[1]`"}
    old = "g * (x.sin() * gate).exp()"
    words = f"right if: `{old} + g_cell` stood in place of `{old}`"
    assert [f.change for f in found] == [words, words]


class Ramp(Function):
    """At 2 and 0.5, it could lack the one, or the inverse of the other."""

    @staticmethod
    def forward(ctx, x, a=2.0, b=0.5):
        ctx.rates = a, b
        return x * a / b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.rates
        return halved(grad_output) * a, None, None


def halved(t):
    return torch.from_numpy(t.numpy() * 1.0)  # NumPy, so that nothing is edited


@pytest.mark.parametrize(
    "fn", (Ramp, lambda x: Ramp.apply(x, 2.0, 0.5), lambda x: Ramp.apply(x)),
    ids=("a default", "in a lambda", "a default in a lambda"),
)  # fmt: skip
def test_numbers_are_told_apart_by_other_numbers(fn):
    (found,) = errors(examine(fn, random(4)))
    assert found.change == "right if: `halved(grad_output) * a` were divided by `b`"
    assert "apply" not in vars(_SingleLevelFunction)


class Unexplained(Function):
    """Wrong by a number that comes from nowhere, in what autograd does not see."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.numpy() * 0.8912)

    @staticmethod
    def backward(ctx, grad_output):
        return halved(grad_output) * 0.5134


def test_a_number_that_nothing_explains_is_said_at_last():
    (found,) = errors(examine(Unexplained, random(4)))
    assert found.change == "right if: `halved(grad_output) * 0.5134` were multiplied by 1.73588"


class Sums(Function):
    """One of two equal expressions is wrong; `del` keeps the source from being edited."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x.flip(0) + 3 * x.cumsum(0)

    @staticmethod
    def backward(ctx, grad_output):
        g = grad_output
        del grad_output
        return (2 * g).flip(0) + (2 * g).flip(0).cumsum(0).flip(0)


def test_which_of_two_equal_expressions_is_said():
    (found,) = errors(examine(Sums, random(4)))
    assert found.change == "right if: 3 stood in place of 2 in the second `2 * g`"


class Centred(Function):
    """Its rule takes the mean over the batch."""

    @staticmethod
    def forward(x):
        return x - x.mean(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output - grad_output.mean(0)

    @staticmethod
    def vmap(info, in_dims, x):
        x = x.movedim(in_dims[0], 0)
        return x - x.mean(0, keepdim=True), 0


def test_a_rule_for_vmap_is_edited():
    rule = vars(Centred)["vmap"]
    (found,) = errors(examine(Centred, random(4, 3)))
    assert found.change.startswith("right if: `x.mean(1, keepdim=True)` stood in place of")
    assert vars(Centred)["vmap"] is rule


def test_a_name_that_is_written_almost_alike_comes_first():
    source = Source(Affine.backward, Affine)
    values = {"x": random(4), "of_x": random(4), "of_w": random(4), "grad_output": random(4)}
    edits = itertools.islice(slips(source, values), 2)
    first = [rewritten.said_of(source, edit)["change"] for edit in edits]
    assert first == [
        "right if: `*(of_w, of_w), of_b` stood in place of `*(of_x, of_w), of_b`",
        "right if: `*(of_x, of_x), of_b` stood in place of `*(of_x, of_w), of_b`",
    ]


class Tail(Function):
    """Only the last chunk of so many elements counts, too many to try what changes their shape."""

    @staticmethod
    def forward(ctx, x, p):
        ctx.save_for_backward(x, p)
        return x * p

    @staticmethod
    def backward(ctx, grad_output):
        (x, p), of_p = ctx.saved_tensors, torch.zeros_like(grad_output.sum())
        for chunk, g in zip(x.split(2000), grad_output.split(2000), strict=True):
            of_p = (chunk * g).sum()
        return grad_output * p, of_p


def test_much_is_edited_if_it_stays_as_large_as_it_is():
    found = errors(examine(Tail, random(5500), random(1)[0].detach().requires_grad_()))
    words = (
        "right if: `of_p = of_p + (chunk * g).sum()` stood in place of `of_p = (chunk * g).sum()`"
    )
    assert [f.change for f in found] == [words]


def test_what_could_fill_the_memory_is_not_tried():
    source, one = Source(Tail.backward, Tail), random(1)[0]
    tried = [edit.said for edit in of_no_shape(source, {"of_p": one, "g": random(2000)})]
    assert any(said and said.startswith("`of_p = of_p + ") for said in tried)
    others = [edit.said for edit in of_no_shape(source, {"of_p": random(2000), "g": one})]
    assert others and not any(said and "of_p" in said for said in others)


class SumOfRows(Function):
    """The rule takes the batch for the first dimension, wherever it is."""

    @staticmethod
    def forward(x):
        return torch.nn.functional.softplus(x).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.unsqueeze(-1) * torch.sigmoid(*ctx.saved_tensors)

    @staticmethod
    def vmap(info, in_dims, x):
        return SumOfRows.apply(x), 0


def test_what_raises_under_vmap_is_no_mend():
    (found,) = errors(examine(lambda x: SumOfRows.apply(x), random(4, 3)))
    assert "SumOfRows.apply(x.movedim(in_dims[0], 0))` stood in place" in found.change


class Repeated(Function):
    @staticmethod
    def forward(ctx, x, times):
        ctx.save_for_backward(x)
        ctx.times = times
        return (2 * x).sin().repeat(times)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.reshape(ctx.times, -1).sum(0) * (2 * x).cos(), None


def test_what_fits_one_whole_number_only_is_not_said():
    (found,) = errors(examine(Repeated, random(5), 2))
    assert "times" not in found.message
    assert re.search("multiplied by 2$|`2 \\*", found.change), found.change


class Energy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum().exp()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x.detach() * x.square().sum().exp()


def forces(x):
    return torch.autograd.grad(Energy.apply(x), x, create_graph=True)[0]


def test_a_backward_that_forward_asks_for_is_edited(monkeypatch):
    monkeypatch.setattr("helpers.doctor.derivative.cut", lambda cases: None)
    (found,) = errors(examine(forces, random(4).requires_grad_()))
    assert found.change == "right if: `x` stood in place of `x.detach()`"


class Padded(Function):
    """The number of rows is not that of what counts; here, 3 minus a mask is no chance."""

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(mask)
        return (x * mask).sum() / mask.sum()

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        return grad_output * mask / (len(mask) - 1), None


def test_what_fits_one_mask_only_is_not_said():
    mask = torch.tensor([True, True, False, True, True, False])
    (found,) = errors(examine(Padded, random(6), mask))
    assert "mask.sum()" in found.change


class MeanOfRows(Function):
    """The rule has never heard of in_dims."""

    @staticmethod
    def forward(x, w):
        return (x * w).mean(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        grad = grad_output[..., None] / x.shape[-1]
        return grad * w, grad * x

    @staticmethod
    def vmap(info, in_dims, x, w):
        return MeanOfRows.apply(x, w), in_dims[1]


class MovesTheFirst(MeanOfRows):
    @staticmethod
    def vmap(info, in_dims, x, w):
        x = x.expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        w = w.expand(info.batch_size, *w.shape) if in_dims[1] is None else w
        return MeanOfRows.apply(x, w), 0


def test_a_batch_that_a_rule_leaves_where_it_is(monkeypatch):
    x, w = random(3, 4), random(3, 4, seed=1)
    monkeypatch.setattr(MeanOfRows, "vmap", MovesTheFirst.vmap)
    (found,) = errors(examine(MeanOfRows, x, w))
    assert "else w.movedim(in_dims[1], 0)` stood in place of" in found.change
    monkeypatch.undo()
    (found,) = errors(examine(MeanOfRows, x, w))
    moves = "`x.movedim(in_dims[0], 0)`, `w.movedim(in_dims[1], 0)` came first, and 0 stood in"
    assert found.change == f"right if: {moves} place of `in_dims[1]`"


def in_lists(x):
    parts, n = [], len(x)
    for k in range(n):
        parts.append(x[k] * x.shape[0])
    return sum(parts) + n


def test_what_is_no_tensor_is_asked_for_nothing_that_a_tensor_has():
    cls = types.SimpleNamespace(forward=in_lists, __name__="None", setup_context=in_lists)
    cls.backward = cls.vjp = cls.jvp = in_lists
    source = Source(in_lists, cls)
    values = {"x": random(3), "parts": [], "n": 3, "k": 1}
    news = {ast.unparse(new) for edit in omissions(source, values) for *_, new in edit.puts}
    for none in ("range(n).abs()", "n.abs()", "parts.abs()", "x.shape.abs()", "len(x).abs()"):
        assert none not in news
    assert {"x[k].abs()", "sum(parts).abs()"} <= news


@pytest.mark.parametrize("text", ["t.reshape(2, 3).sum(None)", "t.view(2, 3).sum('N')"])
def test_a_sum_over_what_is_no_number_has_no_parts(text):
    assert not [*folded(ast.parse(text, mode="eval").body)]


class SoftOverlap(Function):
    """In the few columns that count, much is a multiple of what is missing."""

    @staticmethod
    def forward(ctx, z, y):
        ctx.save_for_backward(z, y)
        p = z.sigmoid()
        return (1 - 2 * (p * y).sum(0) / (p.sum(0) + y.sum(0))).mean()

    @staticmethod
    def backward(ctx, g):
        z, y = ctx.saved_tensors
        p = z.sigmoid()
        total = p.sum(0) + y.sum(0)
        overlap = 2 * (p * y).sum(0) / total
        slope = -(2 * y) / total / z.size(1)
        return g * slope * p * (1 - p), g * (overlap - 2 * p) / total / z.size(1)


def test_what_asks_for_no_number_is_tried_first():
    y = (torch.arange(18).reshape(6, 3) % 3 == 0).double()
    (found,) = errors(examine(SoftOverlap, random(6, 3), y))
    assert found.change == "right if: `2 * y - overlap` stood in place of `2 * y`"
