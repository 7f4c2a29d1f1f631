"""What only the notebooks need: data, drawings, the comparison behind the exercises."""

import ctypes
import os
import re
import time
import weakref
from dataclasses import replace
from types import SimpleNamespace

import matplotlib.pyplot as plt
import nbformat
import pytest
import torch
from nbval.plugin import NbCellError
from torch.autograd import Function

import conftest
from helpers.lessons import c_and_cpp, chapter_11, draw, timeline, torch_messages, unavailable
from helpers.lessons.data import digits
from helpers.lessons.judging import difference
from helpers.lessons.memory import Alive, Kept
from helpers.lessons.patients import PATIENTS
from helpers.ops.involution import compiler
from tests import needs
from tests.needs import needs_compiler


@pytest.fixture(autouse=True)
def without_a_window(monkeypatch):
    plt.switch_backend("agg")
    plt.style.use("helpers.lessons.figures")
    yield
    plt.close("all")


def test_digits_are_split_without_loss():
    train_x, train_y, test_x, test_y = digits(torch.float64)
    assert [tuple(t.shape) for t in (train_x, train_y, test_x, test_y)] == [
        (1437, 64), (1437,), (360, 64), (360,)
    ]  # fmt: skip
    assert train_x.dtype == test_x.dtype == torch.float64
    assert train_x.min() == 0
    assert train_x.max() == 1
    assert torch.bincount(test_y, minlength=10).min() >= 34  # every digit, about equally often


def test_graph_prints_the_edges_that_autograd_recorded(capsys):
    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad_output):
            return 2 * grad_output

    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    hidden = torch.ones(2, requires_grad=True)
    loss = (Double.apply(x * w) + x * hidden).sum()
    draw.graph(loss=loss, inputs={"x": x, "w": w})
    assert capsys.readouterr().out.splitlines() == [
        "loss → SumBackward0",
        "SumBackward0 → AddBackward0",
        "AddBackward0 → DoubleBackward, MulBackward0 #2",
        "DoubleBackward → MulBackward0",
        "MulBackward0 → x, w",
        "MulBackward0 #2 → x, AccumulateGrad",
    ]
    boxes = {text.get_text(): text.get_bbox_patch() for text in plt.gca().texts}
    colours = {name: box.get_facecolor()[:3] for name, box in boxes.items()}
    assert colours["DoubleBackward"] != colours["MulBackward0"]
    assert colours["x"] == colours["w"] != colours["loss"]


def test_time_line_draws_and_prints_each_event(capsys):
    events = [("2017-01-19", "a", "first"), ("2020-02-03", "b", "second")]
    timeline.draw(events)
    assert capsys.readouterr().out == "2017-01-19  a       first\n2020-02-03  b       second\n"
    assert [text.get_text() for text in plt.gca().texts] == ["a  first", "b  second"]


def attempt(forward, backward):
    class Attempt(Function):
        pass

    Attempt.forward = staticmethod(forward)
    Attempt.backward = staticmethod(backward)
    return Attempt.apply


X = torch.tensor([[0.5, -1.0], [2.0, 3.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: None, "returns None"),
        (lambda x: (x**2, x), "it returns a tuple, but a tensor is asked for"),
        (lambda x: 3.0, "the output is a float, not a tensor"),
        (lambda x: x[0] ** 2, "shape (2,), but (2, 2) is right"),
        (lambda x: x.float() ** 2, "torch.float32, but torch.float64 is right"),
        (lambda x: x**3, "the output is 27 at [1, 1], but 9 is right"),
        (lambda x: x.detach() ** 2, "requires no gradient"),
        (lambda x: 1 / 0, "ZeroDivisionError"),
        (attempt(lambda ctx, x: x**2, lambda ctx, g: 1 / 0), "ZeroDivisionError"),
        (attempt(lambda ctx, x: x**2, lambda ctx, g: None), "missing in `backward`"),
    ],
)
def test_comparison_says_what_is_wrong(function, words):
    assert words in difference(function, lambda x: x**2, [X])


def test_comparison_of_several_outputs():
    reference = lambda x: (x, x**2)  # noqa: E731
    assert difference(reference, reference, [X]) is None
    assert "but a tuple of 2 tensors" in difference(lambda x: x, reference, [X])
    assert "3 outputs; 2 expected" in difference(lambda x: (x, x**2, x), reference, [X])
    assert "output 1 is 27" in difference(lambda x: (x, x**3), reference, [X])


def test_comparison_accepts_what_is_right():
    assert difference(lambda x: x * x, lambda x: x**2, [X]) is None
    assert difference(torch.frac, lambda x: x - x.detach().trunc(), [X]) is None


def test_gradients_that_are_no_derivatives_are_compared_with_the_reference():
    reversal = attempt(lambda ctx, x: x.clone(), lambda ctx, g: -g)
    reference = lambda x: 2 * x.detach() - x  # noqa: E731
    assert "negated" in difference(reversal, reference, [X])
    assert difference(reversal, reference, [X], faithful=False) is None
    identity = attempt(lambda ctx, x: x.clone(), lambda ctx, g: g)
    assert "the gradient is" in difference(identity, reference, [X], faithful=False)
    none_for_zero = attempt(lambda ctx, x, y: x.clone(), lambda ctx, g: (-g, None))
    of_two = lambda x, y: reference(x) + 0 * y  # noqa: E731
    assert difference(none_for_zero, of_two, [X, X], faithful=False) is None


def test_second_derivatives_count_only_where_they_are_asked_for():
    forgets = attempt(
        lambda ctx, x: ctx.save_for_backward(3 * x**2) or x**3,
        lambda ctx, g: ctx.saved_tensors[0] * g,
    )
    reference = lambda x: x**3  # noqa: E731
    assert difference(forgets, reference, [X]) is None
    assert "silently wrong" in difference(forgets, reference, [X], order=2)
    assert difference(lambda x: x * x * x, reference, [X], order=2) is None


def test_a_complaint_is_the_cause_in_few_sentences(capsys):
    def fail(text):
        raise RuntimeError(text)

    def printed(call, **options):
        torch_messages.complaint(call, **options)
        return capsys.readouterr().out

    assert printed(lambda: 3) == "no complaint: 3\n"
    long = "It is so. It is such. It is more.\nA second line"
    assert printed(lambda: fail(long)) == "RuntimeError: It is so. It is such. It is more.\n"
    assert printed(lambda: fail(long), sentences=1) == "RuntimeError: It is so.\n"
    nested = (
        "fake tensors\n  Explanation: Failed to run: got ValueError('the cause. Really.')\n more"
    )
    assert printed(lambda: fail(nested)) == "RuntimeError: the cause. Really.\n"
    explained = "Unsupported\n  Explanation: No print here.\n  Hint: remove it"
    assert printed(lambda: fail(explained)) == "RuntimeError: Unsupported. No print here.\n"
    wrapped = printed(lambda: fail("word " * 40)).splitlines()
    assert len(wrapped) == 3
    assert max(map(len, wrapped)) <= 96


def test_what_is_missing_is_said_and_remembered(monkeypatch, capsys):
    monkeypatch.setattr(unavailable, "_missing", None)
    with pytest.raises(NameError), unavailable.or_say_why():
        made_by_an_earlier_cell  # noqa: B018, F821
    with pytest.raises(RuntimeError, match="a defect"), unavailable.or_say_why():
        raise RuntimeError("a defect")
    for error in (
        unavailable.CompilerNotFoundError("no C++ compiler"),
        ImportError("No module named 'cupy'"),
        RuntimeError("Ninja is required to load C++ extensions"),
        RuntimeError("Error building extension 'x': [1/2] c++\n/bin/sh: 1: c++: not found\n"),
        RuntimeError("Error building extension 'x': [1/2] c++\nx.cpp:3: error: no Python.h\n"),
    ):
        with unavailable.or_say_why():
            raise error
    with unavailable.or_say_why():
        made_by_an_earlier_cell  # noqa: B018, F821
    own = RuntimeError("Error building extension 'x': c++\nmain.cpp:7:3: error: expected ';'\n")
    with (
        pytest.raises(c_and_cpp.NativeError, match="line 7 of the text does not compile: expected"),
        unavailable.or_say_why(),
    ):
        raise own
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(unavailable.NOT_HERE) for line in lines)
    assert [line.split(": ")[1].split(". ")[0] for line in lines[:3]] == [
        "no C++ compiler",
        "No module named 'cupy'",
        "Ninja is required to load C++ extensions",
    ]
    assert "c++: not found" in lines[3]
    assert lines[4] == lines[5]
    assert "error: no Python.h" in lines[4]


@pytest.mark.parametrize(
    ("lacking", "said", "kind", "is_skipped"),
    [
        ("NO_COMPILER", "no compiler", "stream", True),
        ("NO_NVRTC", "no NVRTC", "stream", True),
        ("TORCH_BUILDS", "c++: not found", "stream", True),
        ("NO_NVRTC", "no compiler", "stream", False),  # there is one
        ("NO_NVRTC", "no NVRTC", "error", False),
        (None, "no NVRTC", "stream", False),
    ],
)
def test_a_cell_is_skipped_for_what_is_missing_only(
    lacking, said, kind, is_skipped, monkeypatch, capsys
):
    here = {"NO_COMPILER": None, "NO_NVRTC": None, "TORCH_BUILDS": "/bin/c++"}
    lacks = {"NO_COMPILER": "no compiler", "NO_NVRTC": "no NVRTC", "TORCH_BUILDS": None}
    for name in here:
        monkeypatch.setattr(needs, name, (lacks if name == lacking else here)[name])
    monkeypatch.setattr(unavailable, "_missing", None)
    with unavailable.or_say_why():
        raise ImportError(said)
    output = nbformat.v4.new_output(kind)
    output.text = capsys.readouterr().out

    def differ():
        raise NbCellError(1, "the cell differs", "")

    with pytest.raises((pytest.skip.Exception, NbCellError)) as caught:
        conftest.run_or_let_it_say_why(SimpleNamespace(test_outputs=[output]), differ)
    assert str(caught.value) == (said if is_skipped else "the cell differs")


@needs_compiler
def test_native_calls_give_views_their_strides_and_watch_all_memory():
    library = c_and_cpp.compile_library(
        """
void every(const double *x, int64_t step, int64_t count, double *y) {
    for (int64_t i = 0; i < count; ++i) y[i] = 2 * x[i * step];
}
void writes(double *x, double *y, int64_t where) { y[0] = x[0]; y[where] = 0; }
void changes(double *x, double *y) { y[0] = x[0] = 1; }
""",
        "c",
    )
    x, y = torch.arange(10.0, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    c_and_cpp.call(library, "every", {"x": x[1::3], "step": 3, "count": 3, "y": y}, "y")
    assert y.tolist() == [2, 8, 14]
    assert x._version == 0  # or autograd would take an input for changed
    y = y[:1].clone()
    for where, words in ((-1, "`writes` writes before the start of `y`"), (1, "past the end")):
        with pytest.raises(c_and_cpp.NativeError, match=words):
            c_and_cpp.call(library, "writes", {"x": x, "y": y, "where": where}, "y")
    with pytest.raises(c_and_cpp.NativeError, match="`mine` changes `x`, which is an input"):
        c_and_cpp.call(library, "changes", {"x": x, "y": y}, "y", says="mine")
    assert x[0] == 0
    with pytest.raises(c_and_cpp.NativeError, match=r"leaves y\[0\] without a value"):
        c_and_cpp.call(library, "every", {"x": x, "step": 1, "count": 0, "y": y}, "y")
    with pytest.raises(c_and_cpp.NativeError, match="no function `absent`"):
        c_and_cpp.call(library, "absent", {"y": y}, "y")


@needs_compiler
def test_a_source_that_does_not_compile_is_answered_with_its_line():
    with pytest.raises(c_and_cpp.NativeError, match="in line 3 of the cell: .*nothing"):
        c_and_cpp.compile_library("\nint f(void) {\n    return nothing; }", "c")
    doors = "\nint g(void) { return f(1, 2); }"
    with pytest.raises(c_and_cpp.NativeError, match=r"the check calls f\(a, b\)"):
        c_and_cpp.compile_library("\nint f(int a) { return a; }", "c", doors, "f(a, b)")
    with pytest.raises(c_and_cpp.NativeError, match="calls `absent`, which is defined nowhere"):
        c_and_cpp.compile_library("int absent(void);\nint f(void) { return absent(); }", "c")


@needs_compiler
def test_a_source_is_compiled_once(monkeypatch, tmp_path):
    compiled, run = [], c_and_cpp.subprocess.run

    def counted(command, **options):
        compiled.append(command)
        return run(command, **options)

    c_and_cpp.compiler_version(tuple(compiler.find_compiler()))
    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(c_and_cpp.subprocess, "run", counted)
    one, other = ("int f(void) { return 1; }", "c"), ("int f(void) { return 2; }", "c")
    assert [c_and_cpp.compile_library(*source).f() for source in (one, other, one)] == [1, 2, 1]
    assert len(compiled) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be copied on Windows")
def test_a_crash_stays_in_the_copy(monkeypatch):
    def endless():
        while True:
            pass

    assert c_and_cpp.crash_of(lambda: None) is None
    assert c_and_cpp.crash_of(lambda: 1 / 0) is None  # the parent will meet that, too
    assert "SIGSEGV). Which index" in c_and_cpp.crash_of(lambda: ctypes.string_at(8))
    assert "SIGABRT). Does an exception" in c_and_cpp.crash_of(os.abort)
    assert "ends the process" in c_and_cpp.crash_of(lambda: os._exit(0))
    monkeypatch.setattr(c_and_cpp, "PROCESSOR_SECONDS", 0.3)
    assert "does not end" in c_and_cpp.crash_of(endless)
    monkeypatch.setattr(c_and_cpp, "SECONDS", 0.3)
    assert "does not end" in c_and_cpp.crash_of(lambda: time.sleep(60))


def test_an_unknown_patient_gets_the_names():
    with pytest.raises(ValueError, match=r"name must be one of .*, Sinc, .*; got 'nope'"):
        chapter_11.consult("nope")


def test_totals_tell_who_is_missed_and_who_is_accused(monkeypatch, capsys):
    named, passed, right = (PATIENTS[k] for k in ("IgnoresGradOutput", "InputOnCtx", "sine"))
    broken = [PATIENTS["TransposedWeight"], *17 * [named], passed]  # the first has two findings
    mistaken, unseen = (replace(p, code="negated") for p in (named, right))
    monkeypatch.setattr(chapter_11, "BROKEN", [*broken, PATIENTS["OneInAMillion"]])
    monkeypatch.setattr(chapter_11, "HEALTHY", 20 * [right])
    chapter_11.totals()
    monkeypatch.setattr(chapter_11, "BROKEN", [*broken, mistaken, unseen])
    monkeypatch.setattr(chapter_11, "HEALTHY", [right, named])
    chapter_11.totals()
    assert re.findall(r"(?:: |than )(about \d+|all but \d+|\w+)", capsys.readouterr().out) == [
        *("0", "all", "about 1", "20", "none"),
        *("20", "all but 2", "about 1", "0", "1"),
    ]


def test_alive_counts_storages_until_their_last_user_is_gone():
    old = torch.ones(100)
    with Alive() as alive:
        table = torch.ones(10, 100)
        view = table[0]
        old.add_(1)
        old.view(10, 10)
        assert alive.now == alive.peak == 4000
        del table
        assert alive.now == 4000
        del view
        assert (alive.now, alive.peak) == (0, 4000)
    assert alive.operations == ["ones", "select", "add_", "view"]
    assert alive.history == [4000] * 4
    torch.ones(5)
    assert alive.peak == 4000 and len(alive.history) == 4


def test_alive_sees_backward():
    x = torch.ones(1000, requires_grad=True)
    with Alive() as alive:
        (x.sin() * 2).sum().backward()
    assert "cos" in alive.operations and alive.now == x.grad.nbytes


def test_kept_counts_each_storage_once_and_holds_nothing():
    x, weight = torch.ones(10, 10, requires_grad=True), torch.ones(10, 10, requires_grad=True)
    with Kept(but=[weight]) as kept:
        y = (x * weight).tanh()
        z = y[0] * y[1:2].exp()
    # x, the result of tanh, twice a part of it, and the result of exp, twice
    assert kept.total == 400 + 400 + 40
    assert kept.shapes.count((10, 10)) == 2
    reference = weakref.ref(y.untyped_storage())
    del y, z
    assert reference() is None
