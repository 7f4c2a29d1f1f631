"""What the gradient doctor promises: no trace, little time, a report, a command line, copies."""

import ast
import dataclasses
import functools
import html
import io
import os
import random
import re
import runpy
import shutil
import signal
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
from helpers.doctor import WrongGradientError, effort, examine
from helpers.doctor.__main__ import main, tensor
from helpers.doctor.report import SEVERITIES, marked_up
from helpers.lessons.patients import PATIENTS, formulas, numbers, products
from helpers.lessons.patients.patient import affine, draw, pair, vector


def ones(*shape):
    return torch.ones(shape, dtype=torch.float64)


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

    x, y = pair()
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
        linear = affine()
        texts.add(str(examine(formulas.MeanOverBatch, *linear)))
        texts.add(str(examine(formulas.MeanOverBatch, *linear)))
    torch.set_num_threads(1)
    assert len(texts) == 1 and "0x" not in texts.pop()


def test_a_million_elements_take_less_than_ten_seconds_and_a_hundred_less_than_one():
    (x,) = draw((1000, 1000))
    start = time.process_time()
    assert examine(torch.tanh, x).ok
    assert time.process_time() - start < 10
    start = time.process_time()
    assert not examine(formulas.MeanRows, x[:10, :10]).ok
    assert time.process_time() - start < 1


def test_what_is_not_declared_costs_no_call():
    calls = []

    def counted(**methods):
        def forward(ctx, x):
            calls.append(x)
            return 2 * x

        bodies = {"forward": forward, "backward": lambda ctx, g: 2 * g, **methods}
        bodies = {name: staticmethod(body) for name, body in bodies.items()}
        calls.clear()
        assert examine(type("Counted", (torch.autograd.Function,), bodies), ones(3)).ok
        return len(calls)

    plain = counted()
    assert plain < 160 and plain < counted(jvp=lambda ctx, t: 2 * t)


class TimeLimitError(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer signal")
def test_a_time_limit_of_the_caller_is_no_finding():
    def stop(*_):
        raise TimeLimitError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(TimeLimitError):
            examine(lambda x: (time.sleep(0.2), x)[1], ones(3))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_numbers_that_differ_look_different():
    class Off(formulas.Square):
        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * 2.0004 * x

    seen = str(examine(Off, *vector())).split("seen: ")[1]
    given, expected = (re.search(f"{word} (\\S+),", seen)[1] for word in ("given", "expected"))
    assert given != expected and "ratio 1.0" in seen


def test_what_a_partial_a_method_and_a_dataclass_hold_is_examined():
    @dataclasses.dataclass(frozen=True)
    class Pair:
        left: torch.Tensor
        right: torch.Tensor

    bad, (x, y) = formulas.Subtract.apply, pair()
    module = numbers.ModuleWithTwoOutputs()
    for examined in (
        examine(functools.partial(bad, x), y), examine(lambda p: bad(p.left, p.right), Pair(x, y)),
        examine(module.forward, *vector()),
    ):  # fmt: skip
        assert examined.findings[0].code == "negated"


def contrast(one, other):
    """As WCAG 2 defines it."""

    def luminance(colour):
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colour", SEVERITIES.values())
def test_colours_can_be_read_on_a_light_and_on_a_dark_page(colour):
    assert contrast(colour, "#ffffff") >= 4.5  # the word in its box, and the box on a light page
    assert contrast(colour, "#111111") >= 3  # the box on JupyterLab's dark page


def test_a_report_is_html_in_a_notebook_and_the_same_text_elsewhere():
    bad = examine(formulas.HalfSquare, *vector())
    assert repr(bad) == str(bad)
    assert str(bad).startswith("HalfSquare: 1 error\n  error (scaled): ")
    page = bad._repr_html_()
    assert "<code>x</code>" in page and page.count("<div") == page.count("</div>") == 1
    assert SEVERITIES["error"] in page and SEVERITIES["note"] not in page
    shown = re.sub(r"<div[^>]*>|<br>", " ", page)
    text = html.unescape(re.sub(r"<[^>]+>", "", shown))
    assert text.split() == str(bad).replace("`", "").split()
    assert "&lt;lambda&gt;" in examine(lambda x: x.detach(), ones(2))._repr_html_()


def test_names_are_set_as_code():
    line = "ctx.save_for_backward, .data and .item(); requires_grad=True is 0.5 of a<b. `x` is"
    assert marked_up(line) == (
        "<code>ctx.save_for_backward</code>, <code>.data</code> and <code>.item()</code>; "
        "<code>requires_grad=True</code> is 0.5 of a&lt;b. <code>x</code> is"
    )


def test_what_is_wrong_can_be_raised():
    good, bad = examine(torch.sin, ones(2)), examine(formulas.HalfSquare, *vector())
    assert good.ok and good.raise_if_wrong() is good and "nothing found" in str(good)
    with pytest.raises(WrongGradientError, match="multiplied by 0.5"):
        bad.raise_if_wrong()
    with pytest.raises(TypeError, match="fn must be callable, got int"):
        examine(3, ones(2))


MINE = """
import torch
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, c):
        ctx.c = c
        return x * c
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None
def add(x, i): return x + i
class Layer(torch.nn.Linear):
    def __init__(self): super().__init__(4, 2)
"""


def test_command_line(tmp_path, capsys, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    arguments = [f"{file}:Scale", "--input", "3x4", "--value", "2.5"]
    monkeypatch.delitem(sys.modules, "helpers.doctor.__main__")
    monkeypatch.setattr(sys, "argv", ["doctor", *arguments])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("helpers.doctor", run_name="__main__")
    assert left.value.code == 1 and "lacks the factor `c` = 2.5" in capsys.readouterr().out
    assert main([f"{file}:add", "--input", "2x3:float32", "--input", "3:int64"]) == 0
    assert main([f"{file}:Layer", "--input", "5x4"]) == 0
    assert main(["torch:round", "--input", "3"]) == 0
    rounded = "helpers.lessons.patients.formulas:RoundStraightThrough"
    assert main([rounded, "--input", "3"]) == 1
    assert main([rounded, "--input", "3", "--unfaithful"]) == 0
    assert "Layer: 1 note" in capsys.readouterr().out
    assert main([f"{file}:add", "--input", "3:int64", "--value", "1"]) == 2  # nothing to examine
    assert main([f"{file}:add", "--input", "2x3", "--input", "4x5"]) == 2  # does not run
    assert tensor("3:float8_e4m3fn").dtype == torch.float8_e4m3fn
    capsys.readouterr()
    for arguments, words in [
        (["nowhere.py:f", "--input", "3"], "cannot be loaded: FileNotFoundError"),
        ([f"{file}:missing", "--input", "3"], "has no attribute 'missing'"),
        (["math:pi", "--input", "3"], "pi cannot be called, it is float"),
        ([f"{file}:add", "--input", "99999999x99999999"], "cannot be made"),
        (["add", "--input", "3"], "target must be module.py:name"),
        ([f"{file}:add"], "give at least one --input"),
        ([f"{file}:add", "--input", "3,4"], "write sizes as 3x4"),
        ([f"{file}:add", "--input", "3:sin"], "write sizes as 3x4"),
        ([f"{file}:add", "--input", "3", "--value", "x"], "write a number"),
    ]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 2
        assert words in capsys.readouterr().err


def test_the_folder_can_be_copied_and_renamed(tmp_path):
    shutil.copytree(Path(doctor.__file__).parent, tmp_path / "physician")
    told = "import sys\nfrom physician import examine\nassert 'helpers' not in sys.modules\n"
    (tmp_path / "mine.py").write_text(told + MINE)
    arguments = ["mine.py:Scale", "--input", "3x4", "--value", "2.5"]
    done = subprocess.run(
        [sys.executable, "-m", "physician", *arguments],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and "lacks the factor `c` = 2.5" in done.stdout, done.stderr


def test_the_doctor_needs_nothing_but_torch():
    names = set()
    for file in Path(doctor.__file__).parent.glob("*.py"):
        if file.name == "plugin.py":  # for those who have pytest
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(node.module.split(".")[0])
    assert names - {"torch"} <= set(sys.stdlib_module_names)


class Deep(torch.nn.Sequential):
    """Of many parameters; with `wrong`, that many of them, from the first on, are halved."""

    def __init__(self, wrong=0, layers=12):
        super().__init__(*[torch.nn.Linear(8, 8) for _ in range(layers)])
        self.wrong = wrong

    def forward(self, x):
        for k, layer in enumerate(self):
            weight = formulas.HalfSquare.apply(layer.weight) if k < self.wrong else layer.weight
            x = torch.tanh(torch.nn.functional.linear(x, weight, layer.bias))
        return x


def test_many_inputs_are_judged_together():
    def calls(module):
        counted.clear()
        report = examine(module.double(), *draw((3, 8)))
        return len(counted), report

    counted = []
    handle = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, _: counted.append(1) if isinstance(module, Deep) else None
    )
    try:
        right, report = calls(Deep())
        assert report.ok and right < 150
        one, report = calls(Deep(wrong=1))
        assert [f.input for f in report.findings if f.severity == "error"] == ["0.weight"]
        assert one < 1000
        several, report = calls(Deep(wrong=12))
        assert report.findings[0].code == "scaled" and "weight" in report.findings[0].input
        assert "24 more gradients are not examined" in str(report)
        assert several < 1500
    finally:
        handle.remove()


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [Screen, io.StringIO])
def test_a_terminal_shows_what_takes_long(stream, monkeypatch):
    monkeypatch.setattr(effort, "SECONDS", -1.0)
    monkeypatch.setattr(sys, "stderr", stream())
    examine(formulas.HalfSquare, *vector())
    written = sys.stderr.getvalue()
    if stream is Screen:
        assert "doctor: HalfSquare under examination" in written and written.endswith("\r")
    else:
        assert written == ""


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (products.VarianceIsConstant, lambda: draw((40, 60), (60,))),
        (products.SoftmaxCorrectedElsewhere, lambda: draw((20, 30, 40))),
    ],
)
def test_a_name_does_not_coarsen_with_size(fn, inputs):
    patient = PATIENTS[fn.__name__]
    large, small = examine(fn, *inputs()).findings[0], patient.examine().findings[0]
    assert large.code == patient.code and large.message.endswith(small.message[1:])
    assert "in a corner of shape" in large.evidence and "in a corner" not in str(small.evidence)


class Counts(torch.nn.Module):
    """Another gradient at each call."""

    calls = 0

    def forward(self, x):
        Counts.calls += 1
        return CountedSquare.apply(x)


class CountedSquare(formulas.HalfSquare):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x * Counts.calls


def test_what_depends_on_other_calls_is_said_once():
    codes = [f.code for f in examine(Counts(), *vector()).findings if f.severity == "error"]
    assert codes == ["state-between-calls"]
