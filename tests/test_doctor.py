"""The gradient doctor against the patients of chapter 11, and its promises."""

import ast
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd.function import BackwardCFunction, FunctionCtx

from helpers import doctor
from helpers.doctor import WrongGradientError, examine
from helpers.lessons import patients
from helpers.lessons.patients import BROKEN, HEALTHY

REPORTS = {}  # of the broken patients, by name: for the table


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small tensors on many threads are slow where other processes want the cores, too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def name_of(patient):
    return f"{patient.name}{'' if patient.options.get('faithful', True) else '-unfaithful'}"


def ones(*shape):
    return torch.ones(shape, dtype=torch.float64)


# --- the patients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("patient", BROKEN, ids=name_of)
def test_the_cause_is_named(patient):
    report = REPORTS[patient.name] = patient.examine()
    assert [f.code for f in report.findings][:1] == [patient.code], str(report)


@pytest.mark.parametrize("patient", HEALTHY, ids=name_of)
def test_the_healthy_are_not_accused(patient):
    report = patient.examine()
    assert all(f.severity == "note" for f in report.findings), str(report)
    assert patient.code is None or patient.code in [f.code for f in report.findings], str(report)


def test_there_are_enough_patients_and_the_table_is_printed(capsys):
    assert len(BROKEN) >= 45 and len(HEALTHY) >= 25
    rows, named, flagged = {}, 0, 0
    for patient in BROKEN:
        row = rows.setdefault(patient.code, [0, 0, 0])
        report = REPORTS.get(patient.name) or patient.examine()
        found = [f.code for f in report.findings if f.code != "double-copy"]
        large = max(getattr(value, "nelement", int)() for value in patient.inputs()) > 1000
        row[0] += 1
        row[1] += found[:1] == [patient.code]
        row[2] += not large and patient.gradcheck() is not None
        named, flagged = named + (found[:1] == [patient.code]), flagged + bool(found)
    assert flagged == len(BROKEN)
    assert named >= 0.9 * len(BROKEN)
    cells = [f"{code:27} {n} {k} {g}" for code, (n, k, g) in sorted(rows.items())]
    with capsys.disabled():
        print("\ncause: patients, named by the doctor, flagged by gradcheck")
        for left, right in zip(cells[::2], [*cells[1::2], ""], strict=False):
            print(f"  {left:40}{right}".rstrip())
        checks = sum(g for _, _, g in rows.values())
        print(f"  all: {len(BROKEN)} patients, {named} named, {checks} flagged by gradcheck")


def test_every_text_is_used_and_every_patient_has_a_known_cause():
    source = Path(doctor.__file__).read_text(encoding="utf-8")
    for code in doctor.FINDINGS:
        assert source.count(f'"{code}"') >= 2, code
    assert {p.code for p in BROKEN + HEALTHY} - {None} <= set(doctor.FINDINGS)


# --- what a finding says --------------------------------------------------------------------------


def finding(fn, *inputs, **kwargs):
    return examine(fn, *inputs, **kwargs).findings[0]


def test_evidence_is_measured():
    """The numbers at the worst element and the Jacobians, against PyTorch's own derivative."""
    (x,) = patients.vector()
    found = finding(patients.HalfSquare, x)
    assert found.code == "scaled" and found.evidence["ratio"] == pytest.approx(0.5)
    given, expected = found.evidence["given"], found.evidence["expected"]
    assert given == pytest.approx(0.5 * expected) and expected != 0
    jacobian = torch.autograd.functional.jacobian(torch.square, x)
    torch.testing.assert_close(found.evidence["expected_jacobian"], jacobian)
    torch.testing.assert_close(found.evidence["given_jacobian"], jacobian / 2)
    assert found.evidence["angle"] == "0°"


def test_the_worst_element_is_pointed_at():
    class Off(patients.Square):
        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            grad = grad_output * 2 * x
            grad[2, 1] += 100 * grad_output[2, 1]
            return grad

    found = finding(Off, *patients.matrix())
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
        ("ShiftedByOne", "shifted by -1 along dimension 0"),
        ("NeverAsks", "computes that of `weight` and `bias`"),
        ("OutputOnCtx", "`ctx.result` holds an output"),
        ("SavedThenChanged", "before forward returned, so the gradient of `x` is wrong"),
        ("ChangedByBackward", "by backward itself"),
        ("DrawsTwice", "because it draws random numbers"),
        ("NaiveSoftplus", "not in float32: backward makes nan or inf"),
        ("TooFewGradients", "returned 2 gradient(s), but forward has 3 argument(s)"),
        ("OneInAMillion", "right in part: at [700, 123] it is zero"),
    ],
)
def test_messages(name, words):
    patient = next(p for p in BROKEN if p.name == name)
    report = REPORTS.get(name) or patient.examine()
    assert words in report.findings[0].message


def test_deliberate_gradients_are_errors_whose_message_admits_that_they_may_be_meant():
    for fn in (patients.RoundStraightThrough, patients.ClipGradient, patients.reverse):
        found = finding(fn, *patients.vector())
        assert found.severity == "error" and "faithful=False" in found.message
        assert examine(fn, *patients.vector(), faithful=False).ok
    # A sign error elsewhere is no deliberate reversal.
    assert "faithful" not in finding(patients.Subtract, *patients.pair()).message


def test_names_of_inputs_and_outputs():
    def fn(first, *rest, scale):
        return {"a": [first.detach() * scale, rest[1].detach()]}

    report = examine(fn, ones(2), ones(2), ones(2), scale=3 * ones(2))
    named = {(f.input, f.output) for f in report.findings}
    assert named == {("first", "`output['a'][0]`"), ("rest[1]", "`output['a'][1]`")}
    assert finding(patients.ModuleWithTwoOutputs(), *patients.vector()).input == "offset"
    legacy = patients._LegacySquare()
    assert doctor._Subject(legacy, (ones(2),), {}).names == ["x"]


def test_only_what_requires_a_gradient_is_examined():
    x, y = patients.pair()
    assert not examine(patients.Subtract, x, y).ok
    assert examine(patients.Subtract, x.requires_grad_(), y).ok


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_is_examined_in_a_double_copy_that_is_mentioned(dtype):
    (x,) = patients.draw((3, 4), dtype=dtype)
    report = examine(torch.tanh, x)
    assert [f.code for f in report.findings] == ["double-copy"]
    assert str(dtype).removeprefix("torch.") in report.findings[0].message
    assert finding(patients.HalfSquare, x).code == "scaled"


def test_what_runs_in_one_precision_only_is_examined_in_it():
    weight = torch.eye(3)

    def single(x):
        return torch.sin(x) @ weight

    assert [f.code for f in examine(single, torch.ones(2, 3)).findings] == ["not-in-double"]

    class Wrong(patients.Square):
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


def function(forward, backward=lambda ctx, grad_output: grad_output):
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Made", (torch.autograd.Function,), methods)


def changed_and_dirty(ctx, x):
    ctx.mark_dirty(x.mul_(2))
    return x.clone()


def forgets(ctx, grad_output):
    del ctx.x
    return grad_output


MADE = {
    "dirty-not-returned": function(changed_and_dirty),
    "saved-no-tensor": function(lambda ctx, x: ctx.save_for_backward(3)),
    "gradient-dtype": function(lambda ctx, x: 2 * x, lambda ctx, g: g.long()),
    "complex-for-real": function(lambda ctx, x: 2 * x, lambda ctx, g: g * 1j),
    "layout": function(lambda ctx, x: x.t().view(-1)),
    "dtype-mix": function(lambda ctx, x: x @ torch.ones(2, 2)),
    "shapes-do-not-fit": function(lambda ctx, x: x + torch.ones(5)),
    "backward-only-once": function(lambda ctx, x: setattr(ctx, "x", 1) or 1 * x, forgets),
    "numpy-detour": lambda x: torch.from_numpy(x.numpy()),
    "in-place-leaf": lambda x: x * torch.ones(2, requires_grad=True).add_(1),
    "not-static": lambda x: torch.autograd.Function()(x),
    "no-output": lambda x: None,
    "only-integers": lambda x: x.argmax(),
    "output-dtype": lambda x: x.float(),
    "engine-sums": function(lambda ctx, x: x + ones(3, 2, 2), lambda ctx, g: g),
}


@pytest.mark.parametrize("code", MADE)
def test_what_the_engine_says_is_translated(code):
    assert code in [f.code for f in examine(MADE[code], ones(2, 2)).findings]


def test_notes_on_inputs_and_outputs():
    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y, z = x.sin(), x.cos()
            ctx.mark_non_differentiable(z)
            return y, z

        @staticmethod
        def backward(ctx, grad_output, _):
            return grad_output

    codes = [f.code for f in examine(Marked, ones(2), faithful=False).findings]
    assert "marked-non-differentiable" in codes and "output-detached" not in codes
    assert finding(torch.sin, torch.tensor([torch.nan, 1.0]).double()).code == "input-not-finite"
    assert finding(torch.sin, torch.tensor([1, 2])).code == "nothing-to-examine"
    tiny = torch.tensor([1e-6, 2e-6], dtype=torch.float64)
    assert finding(lambda x: x.cosh().log(), tiny).code == "not-judged"
    assert examine(lambda x: x.cosh().log(), tiny / 1000).ok


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


# --- numerical derivatives ------------------------------------------------------------------------


def slope_of(f, x, u=None):
    x = x.double()
    u = torch.ones_like(x) if u is None else u
    (slope,) = doctor._slopes(lambda v: [f(v[0])], [x], 0, u, [f(x)], 2.2e-16)
    return slope


@pytest.mark.parametrize(
    ("f", "derivative", "at"),
    [
        (torch.sin, torch.cos, 0.3),
        (torch.exp, torch.exp, 5.0),
        (torch.sqrt, lambda x: 0.5 / x.sqrt(), 1e-2),
        (lambda x: torch.sin(50 * x), lambda x: 50 * torch.cos(50 * x), 0.7),
        (lambda x: torch.sin(x.float()).double(), torch.cos, 0.3),
    ],
)
def test_slopes_are_as_exact_as_their_error_bars_say(f, derivative, at):
    x = torch.linspace(at, 1.5 * at, 7)
    slope = slope_of(f, x, x.double())
    off = (slope.value - derivative(x.double()) * x.double()).abs()
    assert slope.trusted.all()
    assert (off <= 10 * slope.error + 1e-12).all()
    assert (slope.error < 1e-3 * slope.value.abs()).all()


@pytest.mark.parametrize("f", [torch.abs, torch.relu, torch.sign, lambda x: x.abs().sqrt()])
def test_kinks_jumps_and_singularities_are_not_believed(f):
    assert slope_of(f, torch.tensor([0.0, 1.0])).trusted.tolist() == [False, True]


def test_a_slope_that_is_lost_in_rounding_is_not_called_zero():
    slope = slope_of(lambda x: 1 + 1e-17 * x + torch.log(torch.cosh(x)), torch.tensor([1e-8]))
    assert not slope.trusted.any() or slope.error.item() > 0


# --- promises -------------------------------------------------------------------------------------


def test_nothing_is_changed():
    class Disturbing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            torch.manual_seed(1)
            random.random(), np.random.rand()
            torch.set_default_dtype(torch.float16)
            torch.set_grad_enabled(False)
            warnings.warn("heard", stacklevel=1)
            print("heard")
            x.add_(1)
            return x * y

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output.mul_(2), grad_output

    x, y = patients.pair()
    x.requires_grad_().grad = torch.full_like(x, 3)
    before = x.detach().clone(), x._version, y.clone(), y._version

    def state():
        return (
            torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist(),
            torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_anomaly_enabled(),
            list(warnings.filters), sys.stdout, FunctionCtx.save_for_backward,
            BackwardCFunction.apply,
        )  # fmt: skip

    with torch.no_grad(), torch.autograd.set_detect_anomaly(True, check_nan=False):
        expected = state()
        examine(Disturbing, x, y)
        examine(torch.nn.Sequential(torch.nn.Dropout(), torch.nn.BatchNorm1d(4)), y.float())
        assert state() == expected
    assert torch.equal(x, before[0]) and x._version == before[1] and x.requires_grad
    assert torch.equal(y, before[2]) and y._version == before[3] and not y.requires_grad
    assert torch.equal(x.grad, torch.full_like(x, 3))


def test_a_gradient_that_is_zero_by_cancellation_is_not_accused():
    """The bias before a batch norm; with this seed float32 leaves 8e-5 of it."""
    torch.manual_seed(31)
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    assert examine(module, torch.rand(5, 4)).ok


def test_a_module_is_not_changed():
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    before = {name: t.clone() for name, t in module.state_dict().items()}
    assert examine(module, torch.rand(5, 4)).ok
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


def test_works_under_inference_mode():
    with torch.inference_mode():
        assert examine(torch.sin, ones(3)).ok
        assert torch.is_inference_mode_enabled()


def test_the_text_is_the_same_whatever_the_seed_and_the_threads():
    texts = set()
    for threads, seed in ((1, 0), (2, 1)):
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        linear = patients.affine()
        texts.add(str(examine(patients.MeanOverBatch, *linear)))
        texts.add(str(examine(patients.MeanOverBatch, *linear)))
    torch.set_num_threads(1)
    assert len(texts) == 1 and "0x" not in texts.pop()


def test_a_million_elements_take_less_than_ten_seconds_and_a_hundred_less_than_one():
    (x,) = patients.draw((1000, 1000))
    start = time.process_time()
    assert examine(torch.tanh, x).ok
    assert time.process_time() - start < 10
    start = time.process_time()
    assert not examine(patients.MeanRows, x[:10, :10]).ok
    assert time.process_time() - start < 1


def test_the_file_can_be_copied():
    tree = ast.parse(Path(doctor.__file__).read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    assert names - {"torch"} <= set(sys.stdlib_module_names)


def test_report():
    good, bad = examine(torch.sin, ones(2)), examine(patients.HalfSquare, *patients.vector())
    assert good.ok and good.raise_if_wrong() is good and "nothing found" in str(good)
    with pytest.raises(WrongGradientError, match="multiplied by 0.5"):
        bad.raise_if_wrong()
    assert str(bad).startswith("HalfSquare: 1 error\n  error (scaled): ")
    page = bad._repr_html_()
    assert "<code>x</code>" in page and page.count("<div") == page.count("</div>") == 1
    assert "&lt;lambda&gt;" in examine(lambda x: x.detach(), ones(2))._repr_html_()
    with pytest.raises(TypeError, match="fn must be callable, got int"):
        examine(3, ones(2))


def test_command_line(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "class Scale(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x, c):\n"
        "        ctx.c = c\n"
        "        return x * c\n"
        "    @staticmethod\n"
        "    def backward(ctx, grad_output):\n"
        "        return grad_output, None\n"
        "def add(x, i): return x + i\n"
        "class Layer(torch.nn.Linear):\n"
        "    def __init__(self): super().__init__(4, 2)\n"
    )
    arguments = [f"{file}:Scale", "--input", "3x4", "--value", "2.5"]
    root = Path(doctor.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "helpers.doctor", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "lacks the factor `c` = 2.5" in done.stdout, done.stderr
    assert doctor.main([f"{file}:add", "--input", "2x3:float32", "--input", "3:int64"]) == 0
    assert doctor.main([f"{file}:Layer", "--input", "5x4"]) == 0
    assert doctor.main(["torch:round", "--input", "3"]) == 0
    rounded = "helpers.lessons.patients:RoundStraightThrough"
    assert doctor.main([rounded, "--input", "3"]) == 1
    assert doctor.main([rounded, "--input", "3", "--unfaithful"]) == 0
    assert "Layer: 1 note" in capsys.readouterr().out
    for arguments, words in [
        (["nowhere.py:f", "--input", "3"], "cannot be loaded: FileNotFoundError"),
        ([f"{file}:missing", "--input", "3"], "has no attribute 'missing'"),
        (["add", "--input", "3"], "target must be module.py:name"),
        ([f"{file}:add"], "give at least one --input"),
        ([f"{file}:add", "--input", "3,4"], "write sizes as 3x4"),
        ([f"{file}:add", "--input", "3:sin"], "write sizes as 3x4"),
        ([f"{file}:add", "--input", "3", "--value", "x"], "write a number"),
    ]:
        with pytest.raises(SystemExit) as left:
            doctor.main(arguments)
        assert left.value.code == 2
        assert words in capsys.readouterr().err


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
        assert doctor.examine(Dropout, torch.randn(4, 5).to(dtype)).ok


def test_forward_that_overflows_only_in_the_dtype_of_the_input():
    x = torch.tensor([1.0, 100.0])
    report = doctor.examine(lambda x: torch.log(torch.cosh(x)), x)
    assert any(
        f.code == "forward-not-finite" and "of float32" in f.message for f in report.findings
    )
    double = doctor.examine(lambda x: torch.log(torch.cosh(x)), x.double())
    assert not any(f.code == "forward-not-finite" for f in double.findings)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_findings_on_cuda():
    for patient in BROKEN:
        if patient.name in ("ThroughNumPy", "through_numpy", "OneInAMillion", "ReadsMemory"):
            continue
        fn = patient.fn.cuda() if isinstance(patient.fn, torch.nn.Module) else patient.fn
        inputs = [v.cuda() if isinstance(v, torch.Tensor) else v for v in patient.inputs()]
        state = torch.cuda.get_rng_state()
        report = examine(fn, *inputs, **patient.options)
        assert report.findings[0].code == patient.code, str(report)
        assert torch.equal(torch.cuda.get_rng_state(), state)


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
    assert found.remedy == "`return grad_output * undefined  # noqa: F821`"
    found = sole(backward_of(raises_backward, raises_forward), x)
    assert found.remedy == "`return x * undefined  # noqa: F821`"

    def raises_in_numpy(ctx, grad_output):
        np.linalg.inv(np.zeros((2, 2)))

    found = sole(backward_of(raises_in_numpy), x)
    assert found.remedy == "`np.linalg.inv(np.zeros((2, 2)))`"


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
