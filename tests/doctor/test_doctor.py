"""What the gradient doctor says: messages, evidence, names, severities."""

import random

import numpy as np
import pytest
import torch

from helpers.doctor import examine
from helpers.doctor.subject import Subject
from helpers.lessons.patients import PATIENTS, formulas, healthy, numbers
from helpers.lessons.patients.patient import draw, matrix, pair, vector


def ones(*shape):
    return torch.ones(shape, dtype=torch.float64)


def finding(fn, *inputs, **kwargs):
    return examine(fn, *inputs, **kwargs).findings[0]


def test_evidence_is_measured():
    """The numbers at the worst element and the Jacobians, against PyTorch's own derivative."""
    (x,) = vector()
    found = finding(formulas.HalfSquare, x)
    assert found.code == "scaled" and found.evidence["ratio"] == pytest.approx(0.5)
    given, expected = found.evidence["given"], found.evidence["expected"]
    assert given == pytest.approx(0.5 * expected) and expected != 0
    jacobian = torch.autograd.functional.jacobian(torch.square, x)
    torch.testing.assert_close(found.evidence["expected_jacobian"], jacobian)
    torch.testing.assert_close(found.evidence["given_jacobian"], jacobian / 2)
    assert found.evidence["angle"] == "0°"


def test_operations_are_counted():
    """Two products of 3 · 5 · 4 multiplications and as many additions, whoever asks."""
    seen = {"operations for `input` alone": 240, "for all inputs": 240}
    assert PATIENTS["NeverAsks"].examine().findings[0].evidence == seen


def test_the_worst_element_is_pointed_at():
    class Off(formulas.Square):
        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            grad = grad_output * 2 * x
            grad[2, 1] += 100 * grad_output[2, 1]
            return grad

    found = finding(Off, *matrix())
    assert found.evidence["at"] == [2, 1]
    assert found.code == "partly-right" and "at [2, 1]" in found.message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("TransposedWeight", "The gradient of `weight` is right, but transposed."),
        ("MeanOverBatch", "1/3 of what it should be, and 3 is the size of dimension 0"),
        ("Power", "lacks the factor `exponent` = 3"),
        ("ExpOfSquare", "lacks the factor `x`, and is multiplied by 0.5"),
        ("SwappedGradients", "returned for `x` is that of `y`"),
        ("LeakyReLU", "where `x` is below 0, it is zero"),
        ("HalfOfTheElements", "at index 3 to 5 of dimension 0 it is zero"),
        ("Huber", "where the magnitude of `x` is above `delta` = 0.5, it is wrong"),
        ("MasksZeros", "where `x` is 0, it is zero"),
        ("RollsOn", "shifted by -3 along dimension 1"),
        ("MeanOfPixels", "10 times too large, and 10 is the size of dimensions 0 and 2 of `x`"),
        ("MinusMeanRows", "12 times too large and negated, and 12 is the size of dimension 0"),
        ("LogSumExpOfRows", "is spread along dimension 0 in place of dimension 1"),
        ("SumsAllForTheBias", "is the sum of what belongs there along dimension 0"),
        ("HalfPrecision", "is right to 3 digits only"),
        ("MasksTwice", "has once too often the factor `y`."),
        ("ForgottenTangent", "does not change with that of `x`"),
        ("Halve", "negated, against backward"),
        ("DetachedByTheRule", "another gradient of `x` than a loop"),
        ("ShiftedByOne", "shifted by -1 along dimension 0"),
        ("NeverAsks", "computes that of `weight` and `bias`"),
        ("OutputOnCtx", "`ctx.result` holds an output"),
        ("SavedThenChanged", "before forward returned, so the gradient of `x` is wrong"),
        ("ChangedByBackward", "by backward itself"),
        ("DrawsTwice", "because it draws random numbers"),
        ("NaiveSoftplus", "not in float32: backward makes nan or inf"),
        ("SqueezedBias", "The gradient of `bias` has shape (), but (1) belongs there."),
        ("TransposedShape", "`weight` is right, but transposed: its shape is (5, 4), not (4, 5)."),
        ("TooFewGradients", "returned 2 gradient(s), but forward has 3 argument(s)"),
    ],
)
def test_messages(name, words):
    assert words in PATIENTS[name].examine().findings[0].message


def test_deliberate_gradients_are_errors_whose_message_admits_that_they_may_be_meant():
    for fn in (formulas.RoundStraightThrough, formulas.ClipGradient, formulas.reverse):
        found = finding(fn, *vector())
        assert found.severity == "error" and "faithful=False" in found.message
        assert examine(fn, *vector(), faithful=False).ok
    # A sign error elsewhere is no deliberate reversal.
    assert "faithful" not in finding(formulas.Subtract, *pair()).message


def test_names_of_inputs_and_outputs():
    def fn(first, *rest, scale):
        return {"a": [first.detach() * scale, rest[1].detach()]}

    report = examine(fn, ones(2), ones(2), ones(2), scale=3 * ones(2))
    named = {(f.input, f.output) for f in report.findings}
    assert named == {("first", "`output['a'][0]`"), ("rest[1]", "`output['a'][1]`")}
    assert finding(numbers.ModuleWithTwoOutputs(), *vector()).input == "offset"
    legacy = healthy._LegacySquare()
    assert Subject(legacy, (ones(2),), {}).names == ["x"]


def test_only_what_requires_a_gradient_is_examined():
    x, y = pair()
    assert not examine(formulas.Subtract, x, y).ok
    assert examine(formulas.Subtract, x.requires_grad_(), y).ok


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_is_examined_in_a_double_copy_that_is_mentioned(dtype):
    (x,) = draw((3, 4), dtype=dtype)
    report = examine(torch.tanh, x)
    assert [f.code for f in report.findings] == ["double-copy"]
    assert str(dtype).removeprefix("torch.") in report.findings[0].message
    assert finding(formulas.HalfSquare, x).code == "scaled"


def test_what_runs_in_one_precision_only_is_examined_in_it():
    weight = torch.eye(3)

    def single(x):
        return torch.sin(x) @ weight

    assert [f.code for f in examine(single, torch.ones(2, 3)).findings] == ["not-in-double"]

    class Wrong(formulas.Square):
        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output @ torch.eye(3) * x

    assert finding(Wrong, torch.rand(2, 3) + 0.5).code == "scaled"


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_exceptions_become_findings_that_name_the_phase(phase):
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2 if phase == "backward" else torch.ones(3) @ torch.ones(4)

        @staticmethod
        def backward(ctx, grad_output):
            raise KeyError("lost")

    found = finding(Raises, ones(3))
    assert found.severity == "error" and found.message.lower().startswith(phase)
    assert ("KeyError" in found.evidence["message"]) == (phase == "backward")


def test_kinks_are_notes_with_both_slopes():
    report = examine(torch.abs, torch.tensor([1.0, 0.0], dtype=torch.float64))
    (note,) = report.findings
    assert (note.code, note.severity) == ("kink", "note")
    assert note.evidence == {"at": [1], "slopes": "-1 and 1"}


def test_a_wrong_element_beside_a_kink_is_still_found():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.abs()

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output

    codes = [f.code for f in examine(Wrong, torch.tensor([1.0, 0.0, -2.0]).double()).findings]
    assert codes == ["partly-right", "kink"]


def test_a_forward_that_draws_is_not_accused_in_float32():
    class Dropout(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            mask = torch.rand_like(x) > 0.5
            ctx.save_for_backward(mask)
            return x * mask

        @staticmethod
        def backward(ctx, grad_output):
            (mask,) = ctx.saved_tensors
            return grad_output * mask

    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert examine(Dropout, torch.randn(4, 5).to(dtype)).ok


def test_what_draws_from_numpy_and_from_python_is_seeded():
    assert examine(lambda x: x * np.random.rand() * random.random(), ones(3)).findings == []


def test_forward_that_overflows_only_in_the_dtype_of_the_input():
    x = torch.tensor([1.0, 100.0])
    report = examine(lambda x: torch.log(torch.cosh(x)), x)
    assert any(
        f.code == "forward-not-finite" and "of float32" in f.message for f in report.findings
    )
    double = examine(lambda x: torch.log(torch.cosh(x)), x.double())
    assert not any(f.code == "forward-not-finite" for f in double.findings)


def backward_of(backward, forward=lambda ctx, x: 2 * x):
    """A Function with these two, named `Tried`."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Tried", (torch.autograd.Function,), methods).apply


def sole(fn, *inputs):
    (found,) = examine(fn, *inputs).findings
    return found


def test_with_several_outputs_the_wrong_one_is_named():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    def of_cos_negated(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        return grad_sin * x.cos() + grad_cos * x.sin()

    x = torch.tensor([0.5, 1.0, -2.0], dtype=torch.float64)
    found = sole(backward_of(of_cos_negated, forward), x)
    assert found.message == "The gradient of `x` through `output[1]` is right, but negated."

    def sin_negated_cos_doubled(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        return -grad_sin * x.cos() - 2 * grad_cos * x.sin()

    messages = [
        f.message for f in examine(backward_of(sin_negated_cos_doubled, forward), x).findings
    ]
    assert messages == [
        "The gradient of `x` through `output[0]` is right, but negated.",
        "The gradient of `x` through `output[1]` is right, but multiplied by 2.",
    ]

    def three(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos(), x**2

    def two_negated(ctx, grad_sin, grad_cos, grad_square):
        (x,) = ctx.saved_tensors
        return grad_cos * x.sin() - grad_sin * x.cos() + grad_square * 2 * x

    messages = [f.message for f in examine(backward_of(two_negated, three), x).findings]
    assert messages == [
        f"The gradient of `x` through `output[{k}]` is right, but negated." for k in (0, 1)
    ]

    def negated(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        return grad_cos * x.sin() - grad_sin * x.cos()

    found = sole(backward_of(negated, forward), x)
    assert found.message == "The gradient of `x` is right, but negated."


def test_what_raises_is_quoted():
    def raises_backward(ctx, grad_output):
        return grad_output * undefined  # noqa: F821

    def raises_forward(ctx, x):
        return x * undefined  # noqa: F821

    x = torch.ones(2, dtype=torch.float64)
    found = sole(backward_of(raises_backward), x)
    line = raises_backward.__code__.co_firstlineno + 1
    where = f"(line {line}, in `raises_backward`)"
    assert found.remedy == f"`return grad_output * undefined  # noqa: F821` {where}"
    found = sole(backward_of(raises_backward, raises_forward), x)
    assert found.remedy.startswith("`return x * undefined  # noqa: F821` (line ")

    def raises_in_numpy(ctx, grad_output):
        np.linalg.inv(np.zeros((2, 2)))

    found = sole(backward_of(raises_in_numpy), x)
    assert found.remedy.startswith("`np.linalg.inv(np.zeros((2, 2)))` (line ")


def test_a_misspelled_attribute_is_recognised():
    def backward(ctx, grad_output):
        return 2 * grad_output + 0 * ctx.saved_tensor[0]

    found = sole(backward_of(backward), torch.ones(2))
    assert "Did you mean `saved_tensors`?" in found.message
    found = sole(backward_of(lambda ctx, g: g * ctx.factor), torch.ones(2))
    assert found.message == "ctx has no `factor`: forward did not put it there."


def test_an_integer_input_on_ctx_is_found():
    def forward(ctx, x, index):
        ctx.index, ctx.size = index, len(x)
        return x[index]

    def backward(ctx, grad_output):
        grad = torch.zeros(ctx.size, dtype=grad_output.dtype)
        return grad.index_add_(0, ctx.index, grad_output), None

    found = sole(backward_of(backward, forward), torch.rand(4).double(), torch.tensor([1, 1, 3]))
    assert (found.code, found.severity) == ("tensor-on-ctx", "warning")
    assert found.message.startswith("`ctx.index` holds an input outside `save_for_backward`")


def test_a_change_that_an_expanded_grad_output_forbids_is_named():
    def backward(ctx, grad_output):
        grad_output += 0
        return 2 * grad_output

    codes = {f.code for f in examine(backward_of(backward), torch.ones(3)).findings}
    assert codes >= {"grad-output-modified"}
    assert "grad-output-layout" not in codes


def test_a_wrong_type_has_the_right_article():
    found = sole(backward_of(lambda ctx, g: 3), torch.ones(2))
    assert found.message == "Backward returned an int where a tensor or None belongs."


def test_one_cause_is_told_once_for_two_of_three_outputs():
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        y += 1  # before forward returns, which nothing guards against
        return y, 2 * y, x * 1

    def backward(ctx, grad_one, grad_two, grad_same):
        (y,) = ctx.saved_tensors
        return grad_one * y + 2 * grad_two * y + grad_same

    findings = examine(backward_of(backward, forward), torch.rand(3).double()).findings
    assert [f.code for f in findings].count("saved-modified") == 1


def test_an_integer_gradient_is_of_the_wrong_dtype():
    report = examine(backward_of(lambda ctx, g: 2 * g.long()), torch.full((3,), 1e6).double())
    assert any(f.code == "gradient-dtype" and "int64" in f.message for f in report.findings)


def test_what_refuses_strides_only_is_found():
    def backward(ctx, grad_output):
        assert grad_output.is_contiguous() or not any(grad_output.stride())
        return 2 * grad_output

    found = sole(backward_of(backward), ones(2, 3))
    assert found.code == "grad-output-layout" and "not contiguous" in found.message


def test_an_unused_output_must_not_silence_the_others():
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    def backward(ctx, grad_double, grad_triple):
        if grad_double is None:
            return None
        return 2 * grad_double + (0 if grad_triple is None else 3 * grad_triple)

    assert sole(backward_of(backward, forward), ones(3)).code == "none-not-handled"


def test_what_is_right_at_zero_only_is_found():
    fn = backward_of(lambda ctx, g: 0 * g, lambda ctx, x: x * x)
    assert finding(fn, 0 * ones(3)).code == "right-here-only"


def test_some_percent_lost_in_float32_are_found():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * ((x + 1e6) - 1e6)

    assert finding(backward_of(backward, forward), torch.tensor([0.52, 1.27])).code == (
        "low-precision"
    )
