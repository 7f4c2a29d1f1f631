"""What a finding and a report hold, and how they are shown."""

import html
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from helpers import doctor
from helpers.doctor import WrongGradientError, examine, words
from helpers.doctor.report import SEVERITIES, as_json
from helpers.doctor.words import listed
from helpers.lessons.cases.case import draw
from tests.doctor.common import Half, Square, ones


def found_of(forward, backward, *inputs):
    """The first finding on this Function of x alone."""

    class Wrong(Square):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

    Wrong.backward = staticmethod(lambda ctx, g: backward(g, *ctx.saved_tensors))
    return examine(Wrong, *inputs, lines=False).findings[0]


@pytest.mark.parametrize(
    "product, where", [(True, "no other output"), (False, "every")]
)
def test_a_zero_gradient_says_where_it_is_zero(product, where):
    """A product of two grad_outputs is zero only where one output is used alone."""

    class Wrong(Square):
        @staticmethod
        def forward(ctx, x):
            return x.sin(), x.cos()

        @staticmethod
        def backward(ctx, a, b):
            return a * b if product else 0 * a

    found = examine(Wrong, *draw((3,)), lines=False).findings[0]
    assert found.code == "gradient-zero" and where in found.message


def test_what_setup_context_raises_is_not_said_of_forward():
    class Wrong(Square):
        @staticmethod
        def forward(x):
            return x.square()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.second = inputs[1]

    found = examine(Wrong, *draw((3,)), lines=False).findings[0]
    assert found.message.startswith("`setup_context` raised IndexError")


def test_values_are_measured():
    """The worst element and the Jacobians, against PyTorch's own derivative."""
    (x,) = draw((6,))
    found = examine(Half, x, lines=False).findings[0]
    assert found.code == "scaled" and found.values["ratio"] == pytest.approx(0.5)
    given, expected = found.values["given"], found.values["expected"]
    assert given == pytest.approx(0.5 * expected) and expected != 0
    jacobian = torch.autograd.functional.jacobian(torch.square, x)
    torch.testing.assert_close(found.values["expected_jacobian"], jacobian)
    torch.testing.assert_close(found.values["given_jacobian"], jacobian / 2)
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


def test_both_slopes_of_a_kink_are_seen():
    (note,) = examine(torch.abs, torch.tensor([1.0, 0.0]).double()).findings
    assert (note.code, note.severity) == ("kink", "note")
    assert note.values["at"] == [1] and note.values["slopes"] == "-1 and 1"


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


def test_each_of_several_outputs_is_described():
    def largest(x):
        return x.max(-1)

    report = examine(largest, torch.randn(2, 4), lines=False)
    found = {(one.dtype, one.gradient) for one in report.outputs}
    assert found == {("float32", True), ("int64", False)}
    assert "(int64, no gradient)" in str(report)


class OfAModule(torch.autograd.Function):
    """f(x), whose backward differentiates with respect to parameters that it is given."""

    @staticmethod
    def forward(ctx, f, x, *w):
        ctx.f = f
        ctx.save_for_backward(x, *w)
        return f(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, *w = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.f(x)
        return None, *torch.autograd.grad(y, (x, *w), g)


@pytest.mark.parametrize("is_closure", [False, True])
def test_a_parameter_beside_its_module_is_not_judged(is_closure):
    layer, (x,) = torch.nn.Linear(3, 4).double(), draw((5, 3))
    fn, given = OfAModule, (layer, x, *layer.parameters())
    if is_closure:
        fn, given = (lambda x, *w: OfAModule.apply(layer, x, *w)), given[1:]
    report = examine(fn, *given, lines=False)
    assert not [f for f in report.findings if f.severity == "error"], report
    assert [one.points for one in report.judged] == [3, 0, 0]
    assert "it is a parameter of" in report.judged[1].why


class Average(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1)
        return x * self.mean


def test_a_buffer_that_forward_moves_accuses_nobody():
    assert examine(Average(), torch.randn(4, 3), lines=False).ok


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


class InEightBits(torch.autograd.Function):
    """Two outputs, of which differences see one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.to(torch.float8_e5m2), x * x

    @staticmethod
    def backward(ctx, of_bits, g):
        (x,) = ctx.saved_tensors
        return of_bits.to(x.dtype) + 2 * x * g


def test_an_output_without_differences_is_not_judged():
    assert "not judged: what comes through `output[0]`" in str(
        examine(InEightBits, *draw((3,)))
    )


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
    errors = [(f.code, f.input) for f in wrong.findings if f.severity == "error"]
    assert errors == [("scaled", "weight")], wrong


class Deletes(Square):
    """What an optimizer reads is done with."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        del x.main_grad
        return 2 * g * x


def test_an_attribute_that_backward_deletes_has_not_changed():
    x = torch.nn.Parameter(torch.linspace(1, 2, 3))
    x.main_grad = torch.ones_like(x)
    report = examine(Deletes, x, lines=False)
    assert report.ok and report.judged[0].points == 3, report


class Masked(Square):
    """An attribute of the input is saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x.mask)
        return x * x * x.mask

    @staticmethod
    def backward(ctx, g):
        x, mask = ctx.saved_tensors
        return 2 * g * x * mask


def test_an_attribute_that_is_saved_has_not_changed():
    x = torch.ones(3, requires_grad=True)
    x.mask = torch.tensor([1.0, 0.0, 1.0])
    assert examine(Masked, x, lines=False).ok


class Frees(torch.autograd.Function):
    """Frees the memory of what is on ctx until backward, as FSDP does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.kept = x.sin()
        ctx.bytes = ctx.kept.untyped_storage().size()
        y = ctx.kept.clone()
        ctx.kept.untyped_storage().resize_(0)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        ctx.kept.untyped_storage().resize_(ctx.bytes)
        ctx.kept.copy_(ctx.saved_tensors[0].cos())
        result = g * ctx.kept
        ctx.kept.untyped_storage().resize_(0)
        return result


def test_what_has_freed_its_memory_is_not_read():
    assert examine(Frees, torch.randn(3, dtype=torch.float64), lines=False).ok


def test_a_matrix_of_zeros_is_not_called_symmetric():
    report = examine(torch.linalg.det, torch.zeros(3, 3, dtype=torch.float64))
    assert all(finding.code != "symmetric-only" for finding in report.findings)


class InItsDtype(Half):
    """Right in float32 only, where `float` returns the argument itself."""

    @staticmethod
    def forward(ctx, x):
        ctx.needed = x.float().requires_grad
        return x * 0.5

    @staticmethod
    def backward(ctx, g):
        return g * 0.5 if ctx.needed else None


def test_what_is_another_in_float64_is_judged_as_it_was_given():
    assert examine(InItsDtype, torch.ones(3), lines=False).ok
    assert not examine(InItsDtype, torch.ones(3).double(), lines=False).ok


class IntoModule(torch.autograd.Function):
    """Adds to the `.grad` of a module that is an argument."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.save_for_backward(x)
        ctx.weight = module.weight
        return x @ module.weight.t()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        ctx.weight.grad = ctx.weight.grad + g.t() @ x
        return g @ ctx.weight, None


def test_the_grad_of_a_module_among_the_arguments_stays():
    module = torch.nn.Linear(3, 2).double()
    grad = module.weight.grad = torch.ones_like(module.weight)
    assert examine(IntoModule, torch.randn(4, 3).double(), module).ok
    assert module.weight.grad is grad and torch.equal(grad, torch.ones_like(grad))


class ForParameters(Square):
    """Wrong for a parameter only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.factor = 3 if isinstance(x, torch.nn.Parameter) else 2
        return x * x

    @staticmethod
    def backward(ctx, g):
        return ctx.factor * g * ctx.saved_tensors[0]


def test_a_parameter_is_examined_as_one():
    given = torch.ones(3, requires_grad=True)
    assert examine(ForParameters, given, lines=False).ok
    assert not examine(ForParameters, torch.nn.Parameter(given), lines=False).ok


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


def test_an_output_that_is_not_dense_says_so():
    report = examine(torch.Tensor.to_sparse, torch.ones(2, 2, requires_grad=True))
    assert "(the output is sparse or nested, not a dense tensor)" in str(report)


def test_a_generator_among_the_arguments_stays():
    generator = torch.Generator().manual_seed(1)
    state = generator.get_state()

    def dropped(x, generator):
        return x * (torch.rand(x.shape, generator=generator) > 0.5)

    examine(dropped, torch.randn(4, 5).double(), generator)
    assert torch.equal(generator.get_state(), state)


class Batched(Square):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)


def test_checkpoint_is_no_fault_of_a_rule_for_vmap():
    def again(x):
        return checkpoint(Batched.apply, x, use_reentrant=False)

    assert examine(again, torch.ones(2, 3)).ok


OWN, OF_NUMPY, OF_PYTHON = torch.Generator(), np.random.default_rng(), random.Random()


def dropout(x):
    return x * (torch.rand(x.shape, generator=OWN) > 0.5)


def times_numpys(x):
    return x * torch.from_numpy(OF_NUMPY.random(x.shape))


def times_new_ones(x):
    return x * torch.from_numpy(np.random.default_rng().random(x.shape))


def times_pythons(x):
    return x * OF_PYTHON.random()


DRAWN = dropout, times_numpys, times_new_ones, times_pythons


@pytest.mark.parametrize("fn", DRAWN)
def test_generators_of_ones_own_stay_as_they_are(fn):
    def states():
        bits = OF_NUMPY.bit_generator.state["state"]
        return OWN.get_state().tolist(), bits, OF_PYTHON.getstate()

    before = states()
    examine(fn, torch.ones(9), lines=False)
    assert states() == before


def hard_choice(x):
    return torch.nn.functional.gumbel_softmax(x, hard=True)


@pytest.mark.parametrize(
    "fn, x, why",
    [
        (torch.sin, torch.zeros(0, 3), "no elements"),
        (lambda x: x[:0], torch.ones(3), "the output has no elements"),
        (torch.sin, Wrapped(torch.ones(3)), "operations of its own"),
        (hard_choice, torch.arange(3.0), "it is an estimator's"),
        *((fn, torch.ones(9), "draws from a generator of its own") for fn in DRAWN),
    ],
)
def test_what_cannot_be_judged_has_its_reason(fn, x, why):
    report = examine(fn, x, lines=False)
    assert report.ok and why in str(report)


def test_bits_that_another_dtype_reads_are_no_crash():
    assert examine(lambda x: 1.0 * x.view(torch.int32).view(x.dtype), torch.randn(4))


def test_a_lazy_module_is_refused():
    with pytest.raises(ValueError, match="call it once before"):
        examine(torch.nn.LazyLinear(4), torch.ones(2, 3))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1 + 2j, torch.float16])
def test_what_json_does_not_know_is_a_string(value):
    assert isinstance(as_json(value), str)


def test_a_translator_may_be_set(monkeypatch):
    """It is asked for sentences with their gaps, and for what fills these."""
    german = {
        "error": "Fehler",
        "{n} error": "{n} Fehler",
        "The gradient of {x} {what}.": "Der Gradient von {x} {what}.",
        "is right in part: {where}, it {how}": "stimmt zum Teil: {where} ist er {how}",
        "where {what} is below 0": "wo {what} unter 0 liegt,",
        "is zero": "null",
        "look at: {remedy}": "siehe: {remedy}",
        "masks, branches and bounds, and the formula there": "Masken, Zweige, Grenzen",
    }

    def leaky():
        (x,) = draw((8,))

        class Leaky(Square):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return torch.where(x > 0, x, 0.1 * x)

            @staticmethod
            def backward(ctx, g):
                return g * (ctx.saved_tensors[0] > 0)

        return str(examine(Leaky, x, lines=False))

    assert "The gradient of `x` is right in part: where `x` is below 0, it" in leaky()
    monkeypatch.setattr(words, "translate", lambda text: german.get(text, text))
    text = leaky()
    for said in (
        "Leaky: 1 Fehler\n",
        "Fehler (partly-right): Der Gradient von `x` stimmt zum Teil: wo `x` unter 0",
        "siehe: Masken, Zweige, Grenzen\n",
    ):
        assert said in text, text


def test_lists():
    assert listed([1, 2, 3], last=" and ") == "1, 2 and 3"
    assert (listed([1, 2]), listed([1]), listed([])) == ("1, 2", "1", "")


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


def test_what_is_meant_may_be_accepted():
    class Round(Square):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, g):
            return g

    found = examine(Round, *draw((6,)), lines=False).findings[0]
    assert found.severity == "error" and "faithful=False" in found.meant
    assert "faithful" not in found.message and found.meant in "".join(found.lines())
    assert examine(Round, *draw((6,)), faithful=False).ok


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
