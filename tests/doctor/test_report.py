"""What a finding and a report hold, and how they are shown."""

import functools
import html
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import doctor
from helpers.doctor import WrongGradientError, examine
from helpers.doctor.report import SEVERITIES, as_json
from helpers.lessons.cases.case import draw, function
from tests.doctor.common import Half, OfAModule, Recomputes, Square, errors, ones


def found_of(forward, backward, *inputs):
    """The first finding on the `function` of these two."""
    return examine(function(forward, backward), *inputs, lines=False).findings[0]


def test_values_are_measured():
    """The worst element, and both Jacobians."""
    (x,) = draw((6,))
    found = examine(Half, x, lines=False).findings[0]
    assert found.code == "scaled" and found.values["ratio"] == pytest.approx(0.5)
    given, expected = found.values["given"], found.values["expected"]
    assert given == pytest.approx(0.5 * expected) and expected != 0
    expected = found.values["expected_jacobian"]
    torch.testing.assert_close(found.values["given_jacobian"], expected / 2)
    assert found.values["angle"] == "0°"


@pytest.mark.parametrize(
    ("forward", "shape"),
    [
        (lambda x: x.sin() * x.sum(), (3, 4)),
        (lambda x: torch.sin(50 * x), (4,)),
        (lambda x: (x.float().sin() * 2).double(), (4,)),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x) * x[:, :5], n=8), (2, 8)),
        (lambda x: x.square().sum(1).sqrt().exp() * x[:, 0], (5, 3)),
        (lambda x: 1e8 + x.exp(), (4,)),
    ],
)
def test_what_is_expected_is_the_derivative(forward, shape):
    """By differences, against the Jacobian by autograd."""
    x = torch.linspace(0.2, 1.4, torch.Size(shape).numel(), dtype=torch.float64)
    found = found_of(forward, lambda g, x: x * g.sum(), x.reshape(shape))
    assert found.severity == "error"
    jacobian = torch.autograd.functional.jacobian(forward, x.reshape(shape))
    expected = found.values["expected_jacobian"]
    jacobian = jacobian.reshape(-1, x.numel())
    torch.testing.assert_close(expected, jacobian, rtol=1e-3, atol=1e-3)


def test_names_of_inputs_and_outputs():
    def fn(first, *rest, scale):
        return {"a": [first.detach() * scale, rest[1].detach()]}

    report = examine(fn, ones(2), ones(2), ones(2), scale=3 * ones(2), lines=False)
    named = {(f.input, f.output) for f in report.findings}
    assert named == {("first", None), ("rest[1]", "`output['a'][1]`")}


def test_a_report_is_json_without_jacobians_unless_they_are_asked_for():
    report = examine(Half, *draw((6,)))
    told = json.loads(report.to_json())
    (found,) = told["findings"]
    assert (told["version"], told["ok"], found["code"]) == (3, False, "scaled")
    assert found["line"] == Half.backward.__code__.co_firstlineno + 3
    assert found["file"] == __file__.replace("test_report", "common")
    assert found["old"] == "grad_output * x" and "2" in found["new"]
    assert told["judged"][0]["points"] == 3 and "ratio" in found["values"]
    assert "given_jacobian" not in found["values"]
    readme = (Path(doctor.__file__).parent / "README.md").read_text(encoding="utf-8")
    assert f"version {told['version']} of this schema" in readme
    assert all(
        f"`{name}`" in readme
        for name in {*told, *found, *told["judged"][0], *told["outputs"][0]}
        if name != "version"
    )
    (found,) = json.loads(report.to_json(jacobians=True))["findings"]
    assert len(found["values"]["given_jacobian"]) == 6


@pytest.mark.parametrize(
    "n, index, unseen", [(1, [1], 2), (3, [0, 2, 1], 1), (3, [0, 0, 1], 0)]
)
def test_what_the_inputs_leave_open_is_said(n, index, unseen):
    (scores,) = draw((n, 4))
    cross_entropy = torch.nn.functional.cross_entropy
    report = examine(cross_entropy, scores, torch.tensor(index), lines=False)
    assert len(report.unseen) == unseen and all(s in str(report) for s in report.unseen)


@pytest.mark.parametrize("is_closure", [False, True])
def test_a_parameter_beside_its_module_is_not_judged(is_closure):
    layer, (x,) = torch.nn.Linear(3, 4).double(), draw((5, 3))
    fn, given = OfAModule, (layer, x, *layer.parameters())
    if is_closure:
        fn, given = (lambda x, *w: OfAModule.apply(layer, x, *w)), given[1:]
    report = examine(fn, *given, lines=False)
    assert not errors(report), report
    assert [one.points for one in report.judged] == [3, 0, 0]
    assert "it is a parameter of" in report.judged[1].why


class Wrapped(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, t):
        return torch.Tensor._make_wrapper_subclass(cls, t.shape, dtype=t.dtype)

    def __init__(self, t):
        self.t = t

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        own = [arg.t if isinstance(arg, Wrapped) else arg for arg in args]
        return Wrapped(func(*own, **(kwargs or {})))


class ToMainGrad(torch.autograd.Function):
    """Returns what nobody reads, as the optimizer reads what is kept there."""

    @staticmethod
    def forward(ctx, x, weight, put, dummy):
        ctx.save_for_backward(x, weight)
        ctx.put, ctx.dummy = put, dummy
        return x @ weight.T

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        ctx.put(weight, g.T @ x)
        return g @ weight, ctx.dummy(weight), None, None


def replaced(weight, grad):
    old = weight.main_grad
    weight.main_grad = grad if old is None else old + grad


def main_grad_of(put, dummy, main_grad):
    (x, weight) = draw((3, 4), (5, 4))
    weight = torch.nn.Parameter(weight)
    weight.main_grad = None if main_grad is None else torch.full_like(weight, main_grad)
    return examine(ToMainGrad, x.requires_grad_(), weight, put, dummy, lines=False)


PUTS = {  # and what `main_grad` is before
    "added": (lambda weight, grad: weight.main_grad.add_(grad), 1.0),
    "overwritten": (lambda weight, grad: weight.main_grad.copy_(grad), 1.0),
    "replaced": (replaced, 1.0),
    "made": (replaced, None),
}


@pytest.mark.parametrize(
    "dummy", [torch.zeros_like, torch.empty_like, lambda weight: None]
)
@pytest.mark.parametrize("put", PUTS)
def test_what_is_put_elsewhere_is_judged_to_the_first_order(put, dummy):
    put, before = PUTS[put]
    report = main_grad_of(put, dummy, before)
    assert report.ok and [one.order for one in report.judged] == [1, 1], report
    wrong = main_grad_of(lambda weight, grad: put(weight, 2 * grad), dummy, before)
    assert [(f.code, f.input) for f in errors(wrong)] == [("scaled", "weight")], wrong


class Replaces(Recomputes):
    """Another tensor stands in `.grad` afterwards."""

    @staticmethod
    def backward(ctx, grad_output):
        grads = Recomputes.backward(ctx, grad_output)
        ctx.module.weight.grad = ctx.module.weight.grad.clone()
        return grads


def test_the_grad_of_a_module_among_the_arguments_stays():
    module = torch.nn.Linear(3, 2).double()
    grad = module.weight.grad = torch.ones_like(module.weight)
    assert examine(Replaces, module, *draw((4, 3)), lines=False).ok
    assert module.weight.grad is grad and torch.equal(grad, torch.ones_like(grad))


class Approximate(Square):
    """Forward is off by 1e-4, as one that iterates is; backward is exact."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x + 1e-4 * torch.from_numpy(np.sin(10 * x.numpy()))


@pytest.mark.parametrize(("lines", "severity"), [(True, "warning"), (False, "error")])
def test_what_may_be_an_approximation_is_no_error_once_lines_are_searched(
    lines, severity
):
    """Where no line is wrong, forward may be what is not exact."""
    x = torch.linspace(0.5, 1, 4).double().requires_grad_()
    found = [
        (f.code, f.severity) for f in examine(Approximate, x, lines=lines).findings
    ]
    assert found == [("few-digits", severity)]


OWN, OF_NUMPY, OF_PYTHON = torch.Generator(), np.random.default_rng(), random.Random()


def dropout(x, generator):
    return x * (torch.rand(x.shape, generator=generator) > 0.5)


def global_dropout(x):
    return dropout(x, OWN)


handed_dropout = functools.partial(dropout, generator=OWN)


def times_numpys(x):
    return x * torch.from_numpy(OF_NUMPY.random(x.shape))


def times_new_ones(x):
    return x * torch.from_numpy(np.random.default_rng().random(x.shape))


def times_pythons(x):
    return x * OF_PYTHON.random()


@pytest.mark.parametrize(
    "fn", [global_dropout, handed_dropout, times_numpys, times_new_ones, times_pythons]
)
def test_generators_of_ones_own_stay_as_they_are(fn):
    def states():
        bits = OF_NUMPY.bit_generator.state["state"]
        return OWN.get_state().tolist(), bits, OF_PYTHON.getstate()

    before = states()
    report = examine(fn, torch.ones(9), lines=False)
    assert states() == before
    assert report.ok and "draws from a generator of its own" in str(report)


def hard_choice(x):
    return torch.nn.functional.gumbel_softmax(x, hard=True)


@pytest.mark.parametrize(
    "fn, x, why",
    [
        (torch.sin, torch.zeros(0, 3), "no elements"),
        (lambda x: x[:0], torch.ones(3), "the output has no elements"),
        (torch.Tensor.to_sparse, torch.ones(2), "the output is sparse or nested"),
        (torch.sin, Wrapped(torch.ones(3)), "operations of its own"),
        (hard_choice, torch.arange(3.0), "it is an estimator's"),
    ],
)
def test_what_cannot_be_judged_has_its_reason(fn, x, why):
    report = examine(fn, x, lines=False)
    assert report.ok and why in str(report)


def test_a_lazy_module_is_refused():
    with pytest.raises(ValueError, match="call it once before"):
        examine(torch.nn.LazyLinear(4), torch.ones(2, 3))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1 + 2j, torch.float16])
def test_what_json_does_not_know_is_a_string(value):
    assert isinstance(as_json(value), str)


def test_a_report_is_html_in_a_notebook_and_the_same_text_elsewhere():
    bad = examine(Half, *draw((6,)), lines=False)
    assert str(bad).startswith("Half: 1 error\n  error (scaled): ")
    page = bad._repr_html_()
    assert re.search("<code[^>]*>x</code>", page)
    assert SEVERITIES["error"] in page and SEVERITIES["note"] not in page
    shown = re.sub(r"<div[^>]*>|<br>", " ", page)
    text = html.unescape(re.sub(r"<[^>]+>", "", shown))
    assert text.split() == str(bad).replace("`", "").split()
    assert "&lt;lambda&gt;" in examine(lambda x: x.detach(), ones(2))._repr_html_()


def test_numbers_that_differ_look_different():
    found = found_of(lambda x: x * x, lambda g, x: g * 2.0004 * x, *draw((6,)))
    seen = [*found.lines()][-1]
    given, expected = (
        re.search(f"{word} (\\S+),", seen)[1] for word in ("given", "expected")
    )
    assert given != expected and "ratio 1.0" in seen


def test_what_is_wrong_can_be_raised():
    good, bad = examine(torch.sin, ones(2)), examine(Half, *draw((6,)), lines=False)
    assert good.ok and good.raise_if_wrong() is good and "nothing found" in str(good)
    with pytest.raises(WrongGradientError, match="multiplied by 0.5"):
        bad.raise_if_wrong()


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_a_test_in_which_nothing_was_judged_warns(dtype):
    x = torch.full((3,), 0.01, dtype=dtype, requires_grad=True)
    nothing = examine(lambda x: x.to(dtype) * 2, x)
    with pytest.warns(UserWarning, match="No gradient was judged"):
        nothing.raise_if_wrong()
    with pytest.raises(TypeError, match="fn must be callable, got int"):
        examine(3, ones(2))
