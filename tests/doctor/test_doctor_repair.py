"""The one change that the doctor names: made in the source by hand, it makes gradcheck pass."""

import inspect
import re
import signal
import sys
import textwrap

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction

from helpers.doctor import examine
from tests.common import random
from tests.doctor import mistakes
from tests.doctor.mistakes import (
    Adapter,
    Attention,
    Channels,
    Cubed,
    Gate,
    InPlace,
    Leaky,
    Masked,
    Planes,
    Recomputed,
    Reversed,
    Rotary,
    RowSums,
    Scale,
    Scan,
    Segments,
    Shared,
    Steps,
    Summed,
    Temperature,
    Weights,
)  # fmt: skip

INDEX = torch.tensor([0, 2, 2, 1, 3, 0])
CHANGES = [  # (Function, shapes, other arguments, what is said, the change in the source)
    (Attention, [(2, 3, 4), (2, 5, 4), (2, 5, 3)], (),
     "`p` times the sum of `p * dp` along dimension 2 were subtracted from `p * dp`",
     ("ds = p * dp", "ds = p * dp; ds = ds - p * ds.sum(2, keepdim=True)")),
    (Channels, [(2, 3, 4)], (), "`(grad_output * y).mean(1, keepdim=True)` stood",
     ("* y).mean(2", "* y).mean(1")),
    (Summed, [(3, 4)], (), "`grad_output` stood in place of `grad_output.sum()`",
     ("output.sum()", "output")),
    (Weights, [(3, 4)], (), "`r.sqrt()` stood in place of each `r`",
     ("ctx.save_for_backward(p)", "ctx.save_for_backward(p.sqrt())")),
    (Planes, [(2, 3, 4)], (), "(g - g.mean((-2, -1), keepdim=True) - y",
     ("(g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True))",
      "(g - g.mean((-2, -1), keepdim=True) - y * (g * y).mean((-2, -1), keepdim=True))")),
    (Gate, [(3, 4), (3, 4), (4, 4)], (),
     "`dx + grad_output * (1 - z), grad_output * z,",
     ("return dx,", "return dx + grad_output * (1 - z),")),
    (Rotary, [(3, 4)], (random(3, 2).detach(),),
     "`b * c - a * s` stood in place of `b * c + a * s`",
     ("b * c + a * s),", "b * c - a * s),")),
    (Scale, [(3, 4), (4,)], (), "`(grad_output * normal).sum(0)` stood",
     ("(grad_output * x).sum(0)", "(grad_output * normal).sum(0)")),
    (RowSums, [(4, 4), (4,)], (), "`(grad_output * x).sum(1)` stood",
     (".sum(0)", ".sum(1)")),
    (Leaky, [(4,)], (INDEX,), "`torch.where(picked > 0, 1.0, 0.3).to(x)` stood",
     ("1.0, 0.1)", "1.0, 0.3)")),
    (Temperature, [(3, 4)], (0.7,), "keepdim=True)) / ctx.tau` stood",
     ("inner = grad_output - (grad_output * y).sum(-1, keepdim=True)",
      "inner = (grad_output - (grad_output * y).sum(-1, keepdim=True)) / ctx.tau")),
    (Segments, [(6,)], (INDEX,),
     "of `p * grad_output` over equal `segment` were subtracted from `p * grad_output`",
     ("return dx", "return dx - p * torch.zeros_like(p).index_add(0, segment, dx)[segment]")),
    (Adapter, [(3, 4), (4, 5), (4, 2), (2, 5)], (),
     "`inner` @ `a`.mT were added to", ("return dx,", "return dx + inner @ a.mT,")),
    (Recomputed, [(3, 4), (3, 4), (4, 4)], (),
     "`(moved @ w).tanh()` stood in place of `(x @ w).tanh()`",
     ("t = (x @ w)", "t = (moved @ w)")),
    (Steps, [(5,), (3,)], (), "`(k + 1) * x ** k * w` stood",
     ("(k + 1) * x**k", "(k + 1) * x**k * w")),
    (InPlace, [(3, 4), (4, 2)], (), "`(inner * x).mul_(2.0)` stood",
     ("mul_(3.0)", "mul_(2.0)")),
    (Shared, [(3, 4), (3, 4), (4, 4)], (),
     "`both + grad_output * slope, 2 * both,",
     ("return both,", "return both + grad_output * slope,")),
    (Masked, [(4, 3), (4, 3)], (), "`p` stood in place of `s.softmax(-1)`",
     ("s.softmax(-1))", "p)")),
    (Reversed, [(3, 4), (3, 4), (4, 4)], (), "`y.detach().requires_grad_()` stood",
     ("start = a.detach()", "start = y.detach()")),
    (Scan, [(3, 4)], (), "`(grad_output * (-y).exp()).cumsum(-1)` ran from the other end",
     (".cumsum(-1)", ".flip(-1).cumsum(-1).flip(-1)")),
]  # fmt: skip


def changed(function, old, new, *more):
    source = inspect.getsource(function)
    for this, that in ((old, new), *more):
        assert source.count(this) == 1
        source = source.replace(this, that)
    names = dict(vars(mistakes))
    exec(textwrap.dedent(source), names)
    return names[function.__name__]


@pytest.mark.parametrize(
    ("function", "shapes", "others", "said", "edit"),
    CHANGES,
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_the_change_is_named_and_mends(function, shapes, others, said, edit):
    inputs = [random(*shape).requires_grad_() for shape in shapes]
    finding = next(f for f in examine(function, *inputs, *others).findings if f.severity == "error")
    assert re.fullmatch(r"line \d+, in `(for|back)ward`", finding.place)
    line = int(finding.place.split()[1].strip(","))
    lines, first = inspect.getsourcelines(function)
    assert first < line < first + len(lines)
    if rewritten := re.fullmatch(r"right if: `([^`]+)` stood in place of `(.+)`", finding.change):
        assert rewritten[2] in lines[line - first]
        edit = lines[line - first], lines[line - first].replace(*rewritten.group(2, 1))
    if sys.version_info >= (3, 11):  # before, whole lines are quoted
        assert said in finding.change
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(function.apply, (*inputs, *others))
    assert torch.autograd.gradcheck(changed(function, *edit).apply, (*inputs, *others))


def test_the_input_should_have_been_saved_before_it_was_changed():
    finding = next(f for f in examine(Cubed, random(3, 4)).findings if f.change)
    assert finding.change == "right if: `ctx.save_for_backward(x.clone())` came before `x.pow_(3)`"
    mended = changed(Cubed, "x.pow_(3)", "came = x.clone(); x.pow_(3)", ("x.clone())\n", "came)\n"))
    x = random(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: mended.apply(1 * x), x)
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(lambda x: Cubed.apply(1 * x), x)


class InNumpy(Attention):
    """Nobody can watch this backward, and backward may not be called twice."""

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v, p = (t.numpy() for t in ctx.saved_tensors)
        ds = p * (grad_output.numpy() @ v.swapaxes(-1, -2))
        found = ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ grad_output.numpy()
        return tuple(map(torch.from_numpy, found))


def test_what_cannot_be_watched_has_no_change():
    method = BackwardCFunction.apply
    report = examine(InNumpy, random(2, 3, 4), random(2, 5, 4), random(2, 5, 3))
    (finding, *_) = [f for f in report.findings if f.input == "q"]
    assert (finding.code, finding.change) == ("gradient-wrong", "")
    assert "in no way that has a name" in finding.message
    assert "look at" in str(report)
    assert BackwardCFunction.apply is method


def test_the_report_says_it_in_the_place_of_where_to_look():
    report = examine(Scale, random(3, 4), random(4))
    text = " ".join(str(report).split())
    assert "right if: `(grad_output * normal).sum(0)` stood in place of" in text
    assert "look at" not in text
    assert (
        "<code>(grad_output * normal).sum(0)</code> stood in place of <code>(grad"
        in report._repr_html_()
    )


class TransposedFirst(Attention):
    """With p.mT at hand, the gradient of k has a change of its own, in a later line."""

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v, p = ctx.saved_tensors
        dv = p.mT @ grad_output
        ds = p * (grad_output @ v.mT)
        return ds @ k, ds.mT @ q, dv


def test_one_change_for_all_the_gradients_that_it_makes_right():
    report = examine(TransposedFirst, random(2, 3, 4), random(2, 5, 4), random(2, 5, 3))
    found = [f for f in report.findings if f.severity == "error"]
    assert [f.input for f in found] == ["q", "k"]
    assert len({(f.change, f.place) for f in found}) == 1


class OutOfTime(Attention):
    """The caller's time limit strikes while backward is watched."""

    @staticmethod
    def backward(ctx, grad_output):
        if torch._C._len_torch_function_stack():
            signal.raise_signal(signal.SIGINT)
        return Attention.backward(ctx, grad_output)


def test_a_time_limit_of_the_caller_is_not_swallowed():
    def handler(*_):
        raise TimeoutError("of the caller")

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(TimeoutError, match="of the caller"):
            examine(OutOfTime, random(2, 3, 4), random(2, 5, 4), random(2, 5, 3))
    finally:
        signal.signal(signal.SIGINT, before)


class TwoHeads(Function):
    """The gradients of both outputs are wrong: no one change serves both."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        return grad_sin * x.exp() - grad_cos * x.cos()


def test_a_change_for_one_output_is_said_of_that_output():
    found = [f for f in examine(TwoHeads, random(3, 4)).findings if f.severity == "error"]
    assert [f.through for f in found] == ["`output[0]`", "`output[1]`"]
    assert all(f.change and f.through in f.message for f in found)
    assert found[0].change != found[1].change


class Halves(Attention):
    """What backward computes in half precision is noise, not a power."""

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v, p = (t.half() for t in ctx.saved_tensors)
        g = grad_output.half()
        ds = p * (g @ v.mT)
        ds = ds - p * ds.sum(-1, keepdim=True)
        return (ds @ k).double(), (ds.mT @ q).double(), (p.mT @ g).double()


def test_rounding_is_called_rounding():
    report = examine(Halves, random(2, 3, 4), random(2, 5, 4), random(2, 5, 3))
    codes = {f.code for f in report.findings if f.severity == "error"}
    assert codes == {"few-digits"}


class RowsOfAnother(Function):
    """w gets the sums of what is x's gradient: a wrong factor, not the wrong order."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w + 0 * w.exp()

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return grad_output * w, (grad_output * w).sum(0)


def test_a_gradient_of_another_shape_is_not_that_of_another_input():
    report = examine(RowsOfAnother, random(4, 3), random(3))
    assert not report.ok
    assert "swapped" not in {f.code for f in report.findings}


def shift(x):
    return x.roll(1, 0)


class Rolls(Function):
    """Backward rolls as forward does, with a helper that both call."""

    @staticmethod
    def forward(ctx, x):
        y = shift(x)
        ctx.save_for_backward(y)
        return y.sin() + x

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return shift(grad_output * y.cos()) + grad_output


def test_a_helper_that_forward_calls_too_is_not_to_be_changed_there():
    (finding,) = [f for f in examine(Rolls, random(5)).findings if f.severity == "error"]
    assert finding.change and finding.place.endswith(", when backward calls it, not forward")


class Divides(Function):
    """Once too seldom by c: no number in place of c would do."""

    @staticmethod
    def forward(ctx, x, c):
        ctx.save_for_backward(x)
        ctx.c = c
        return (x / c).sin() / c

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x / ctx.c).cos() / ctx.c, None


def test_a_number_in_the_place_of_another_is_tried_as_it_is_said():
    finding = next(f for f in examine(Divides, random(3, 4), 0.7).findings if f.change)
    assert ".cos() / ctx.c / ctx.c` stood" in finding.change


class NearlyLinear(Function):
    """A small term is missing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp() + 2e-5 * x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.exp()


def test_what_is_nearly_right_may_lack_a_term():
    (finding,) = [f for f in examine(NearlyLinear, random(3, 4)).findings if f.severity == "error"]
    assert finding.code == "few-digits"
    assert finding.change == "as if: `2e-05 * x ** 3` were a constant in `x.exp() + 2e-5 * x**3`"


class Ignores(Function):
    """Straight-through, but grad_output does not come through."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad_output):
        return torch.ones_like(grad_output)


def test_a_lie_on_purpose_may_not_ignore_grad_output():
    report = examine(Ignores, random(3, 4), faithful=False)
    assert [f.code for f in report.findings if f.severity == "error"] == ["grad-output-ignored"]


def halved(x):
    made = x.sin() * x.exp()
    made[0] = made[0] / 2
    return made


class Quoted(Function):
    """What an expression made was changed in place: it is not what should stand there."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ halved(torch.ones_like(x)).mT

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output @ halved(torch.ones_like(x)).mT


def test_an_expression_is_not_quoted_for_what_was_changed_since():
    (finding,) = [f for f in examine(Quoted, random(3, 3)).findings if f.severity == "error"]
    assert "x.sin() * x.exp()" not in finding.change
