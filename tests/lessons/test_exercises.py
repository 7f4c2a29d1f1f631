"""Every exercise: stub, solution, and wrong attempts that learners really make."""

import contextlib
import re
import shutil
import sys
import types

import pytest
import torch

from helpers.doctor import examine
from helpers.lessons import exercise
from helpers.lessons.exercise import COLOURS, NOT_ATTEMPTED, RIGHT, WRONG
from helpers.lessons.exercises import chapter_04
from helpers.lessons.judge import variations_of_processes
from helpers.lessons.judge.variations import Inputs
from helpers.lessons.native import c_and_cpp
from helpers.ops.involution import compiler
from tests.lessons.judged import EXERCISES, judged
from tests.lessons.test_surroundings import changed_settings
from tests.needs import needs_compiler
from tests.notebooks.test_notebooks import cells, each_notebook, read

each_exercise = pytest.mark.parametrize("number", EXERCISES)


def noted(has, spoke):
    """The property, one of those that spoke, once it finds something wrong."""

    def sentences(attempt):
        for wrong in has(attempt):
            if wrong:
                spoke.add(has)
            yield wrong

    sentences.of = has
    return sentences


@each_notebook
def test_a_notebook_holds_each_exercise_once_with_its_stub_untouched(path):
    check = re.compile(r'^exercise\("([\d.]+)"\)\.check\(', re.MULTILINE)
    checked = [cell for cell in cells(read(path), "code") if check.search(cell.source)]
    numbers = [check.search(cell.source)[1] for cell in checked]
    expected = [
        number
        for number in EXERCISES
        if int(number.split(".")[0]) == int(path.stem[:2])
    ]
    for number in expected:
        once = f'write one cell that ends with `exercise("{number}").check(...)` into its notebook'
        assert numbers.count(number) == 1, once
    assert numbers == expected, "write an Exercise for each of these, in this order"
    for number, cell in zip(numbers, checked, strict=True):
        assert EXERCISES[number].cell in cell.source, "write its stub into the cell"
        assert len(cell.outputs) == 1, "execute the notebook: `python -m tools.execute`"
        shown = cell.outputs[0].data
        expected = (
            f"{NOT_ATTEMPTED} {number} {EXERCISES[number].name}: not attempted yet"
        )
        assert shown["text/plain"] == expected
        assert NOT_ATTEMPTED in shown["text/html"]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(
    "settings", [contextlib.nullcontext, changed_settings], ids=["usual", "changed"]
)
@each_exercise
def test_solution_is_accepted(number, settings, given):
    with settings():
        verdict = exercise(number).judge(given.reference)
    assert verdict.mark == RIGHT, verdict.message


# As attempts at 5.2 do.
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@each_exercise
def test_wrong_attempts_are_answered_as_promised(number, given, monkeypatch):
    monkeypatch.setattr(c_and_cpp, "PROCESSOR_SECONDS", 1.0)  # of loops that do not end
    monkeypatch.setattr(variations_of_processes, "PROCESSOR_SECONDS", 2.0)
    assert 3 <= len(given.wrong) <= 5, "write three to five wrong attempts"
    spoke = set()
    for field in ("kind", "properties"):
        monkeypatch.setattr(
            given, field, [noted(has, spoke) for has in getattr(given, field)]
        )
    for edits, words in given.wrong:
        verdict = judged(number, edits)
        assert verdict.mark == WRONG, f"{edits} was accepted"
        assert words in verdict.message, f"{edits}: {verdict.message}"
    silent = {has.of for has in (*given.kind, *given.properties)} - spoke
    # What may be saved is asked in many exercises: attempts at some of them will do.
    silent = {has for has in silent if "keeps_only" not in has.__qualname__}
    assert not silent, f"write wrong attempts of which {silent} say what is wrong"


FILTER = "weight[(c * K + i) * K + j]"


@pytest.mark.parametrize(
    ("number", "edits", "words"),
    [
        ("7.1", {FILTER: "weight[i * K + j]"}, "the filter of channel 0"),
        ("7.1", {FILTER: "weight[(c * K + j) * K + i]"}, "takes row j, column i"),
        ("7.1", {FILTER: "weight[(c * K - i + K) * K - j - 1]"}, "in reverse order"),
        ("7.1", {"K / 2": "(K - 1) / 2"}, "For an even K"),
        ("7.1", {"element / width % height": "element / height % width"}, "Its row"),
        ("7.1", {"float sum = 0;": "", "sum": "y[element]"}, "holds no value yet"),
        ("7.2", {".sum(0)": ".mean(0)"}, "averages over the channels"),
        (
            "7.2",
            {
                "padded = F": "x, grad_output = grad_output, x; padded = F",
            },
            "takes the neighbourhood from `grad_output`",
        ),
        ("7.3", {"- i *": "+ i *"}, "(1, 0) reads the input pixel (2, 0)"),
        ("7.3", {"return (h, w) if": "return h if"}, "(0, 0) is right."),
        ("16.3", {"scan(": "scan2("}, "the name must stay; here it is `scan2`"),
        (
            "8.1",
            {"_output[i] * y[i]": "_output[i] * exp(y[i])"},
            "`y` is exp(x) already",
        ),
        (
            "20.2",
            {
                ".masked_fill(hidden, -torch.inf)": "",
                "torch.exp(scores - lse)": "scores.softmax(-1).masked_fill(hidden, 0)",
            },
            "`hidden` comes too late",
        ),
    ],
)
def test_a_near_miss_is_named(number, edits, words, given):
    verdict = judged(number, edits)
    assert verdict.mark == WRONG
    assert words in verdict.message, verdict.message


@each_exercise
def test_hints_and_solution_are_said(number, capsys):
    given = EXERCISES[number]
    assert 2 <= len(given.hints) <= 3, "write two or three hints"
    for _ in range(len(given.hints) + 1):
        given.hint()
    said = capsys.readouterr().out
    assert f"Hint 1 of {len(given.hints)}:" in said
    assert said.count("(the last one)") == 2
    given.hints_given = 0
    given.solution()
    assert given.explanation.split()[0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "old", "new"),
    [
        ("0.1", "3 * x", "4 * x"),
        (
            "10.3",
            "Matmul(Function):",
            "Matmul(Function):\n    generate_vmap_rule = True\n",
        ),
        ("11.5", "tanh", "sinh"),
    ],
)
def test_a_stub_with_another_number_name_or_flag_is_an_attempt(number, old, new):
    given = EXERCISES[number]
    assert old in given.cell
    assert given.judge(given.made_of(given.cell.replace(old, new))).mark == WRONG


def test_a_feed_leaves_out_only_what_there_is():
    with pytest.raises(ValueError, match="must name variations, got {'zeros'}"):
        Inputs(shapes="...", without={"zeros": "a slip of the pen"})


def test_a_line_of_ours_is_not_quoted():
    verdict = judged("1.1", {"return grad_output": "return grad_output, grad_output"})
    assert verdict.message.endswith("(expected 1, but got 2).")
    verdict = judged("1.1", {"return x +": "self.save_for_backward(2.5); return x +"})
    assert verdict.message.endswith("what is no tensor goes on self.")


def test_where_is_said_unless_it_is_the_same_everywhere():
    for edits, said in [
        ({"- 1), None": "- 1)"}, "Backward returned 1 gradient(s)"),
        (
            {"x ** (ctx.n - 1)": "-(x ** (ctx.n - 1))"},
            "with n = 3: The gradient of `x` is right",
        ),
    ]:
        verdict = judged("3.1", edits)
        assert verdict.message.startswith(said), verdict.message


def test_one_suspect_only_is_wrong():
    x = torch.linspace(-2, 2, 6, dtype=torch.float64)
    wrong = [
        name
        for name, suspect in chapter_04.suspects.items()
        if not examine(suspect, x).ok
    ]
    assert wrong == [EXERCISES["4.3"].reference]


def test_a_wrapped_stub_is_an_attempt():
    given, names = EXERCISES["9.3"], {}
    exec(given.stub, names)
    assert given.judge(names["clip_by_norm"]).mark == NOT_ATTEMPTED
    assert given.judge(torch.compiler.disable(names["clip_by_norm"])).mark == WRONG


@pytest.mark.parametrize(
    "number",
    [n for n, given in EXERCISES.items() if given.needs is compiler.find_compiler],
)
def test_without_a_compiler_an_answer_is_not_called_wrong(number, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    compiler.find_compiler.cache_clear()
    try:
        verdict = EXERCISES[number].judge(EXERCISES[number].reference)
    finally:
        compiler.find_compiler.cache_clear()
    assert verdict.mark == NOT_ATTEMPTED
    assert "it cannot be checked here: no C++ compiler was found" in verdict.message


@each_exercise
def test_stub_is_untouched(number):
    given = EXERCISES[number]
    comment = (
        "// mine\n\n/* hm */\n" if isinstance(given.reference, str) else "# mine\n\n"
    )
    stub = ... if given.cell.endswith("= ...") else given.made_of(comment + given.cell)
    assert given.judge(stub).mark == NOT_ATTEMPTED


@pytest.mark.parametrize("body", ["...", "pass", "'''what it does'''"])
def test_an_empty_skeleton_is_no_attempt(body):
    source = f"""from torch.autograd import Function
class Square(Function):
    @staticmethod
    def forward(ctx, x): {body}
    @staticmethod
    def backward(ctx, grad_output): {body}"""
    names = {}
    exec(source, names)
    assert EXERCISES["2.1"].judge(names["Square"]).mark == NOT_ATTEMPTED


def test_to_return_none_is_an_attempt():
    edits = {"return x * x": "return None", "return 2 * x * grad_output": "return None"}
    edits |= {"ctx.save_for_backward(x)": "", "(x,) = ctx.saved_tensors": ""}
    assert judged("2.1", edits).mark == WRONG


def test_what_is_no_answer_at_all_gets_a_sentence():
    given = EXERCISES["2.1"]
    a_class = "give check the class {} itself, not its instance, its apply or a result; got a value"
    assert given.judge(3).message == a_class.format("Square") + " of type int."
    assert a_class.format("Square") in given.judge(given.reference.apply).message
    legacy = EXERCISES["1.2"].judge(EXERCISES["1.2"].reference(0, 1)).message
    assert a_class.format("Transpose") in legacy
    assert "must derive from torch.autograd.Function" in given.judge(int).message
    assert "give check the function itself" in EXERCISES["5.2"].judge(3).message
    operator = EXERCISES["9.2"].reference()
    assert "not the operator that it made" in EXERCISES["9.2"].judge(operator).message
    assert "got 7" in EXERCISES["4.3"].judge(7).message


@needs_compiler
def test_of_c_the_source_is_asked_for():
    said = EXERCISES["8.1"].judge(3).message
    assert "give check the source, a string; got a" in said


@pytest.mark.parametrize("number", ["2.9", "77.1", "x", 2.1, ""])
def test_an_unknown_number_gets_a_sentence(number):
    with pytest.raises(ValueError, match="number must be .*2.1"):
        exercise(number)


def test_numbers_are_read_kindly():
    assert exercise(" 2,1").name == "Square"


def test_an_edit_of_what_does_not_occur_is_an_error():
    with pytest.raises(ValueError, match=r"2.1: 'x \* x' does not occur"):
        EXERCISES["2.1"].edited({"return x * x": "y", "x * x": "z"})


def test_a_verdict_is_plain_text_and_in_a_notebook_html(capsys, monkeypatch):
    given, shown = EXERCISES["2.1"], []
    given.check(3)
    plain = capsys.readouterr().out
    assert plain.startswith("✗ 2.1 Square: give check the class Square itself")
    display = types.SimpleNamespace(display=lambda data, raw: shown.append(data))
    notebook = types.SimpleNamespace(get_ipython=lambda: "a shell", display=display)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    given.check(3)
    given.check(given.reference)
    assert capsys.readouterr().out == ""
    wrong, right = shown
    assert wrong["text/plain"] == plain.rstrip("\n")
    assert COLOURS[WRONG] in wrong["text/html"]
    assert COLOURS[RIGHT] in right["text/html"]
    said = (
        "✓</b> <b>2.1 Square</b>: values and gradient agree with <code>x ** 2</code>. "
    )
    assert said in right["text/html"]
    monkeypatch.setattr(given, "success", "a < b & `c < d`")
    given.check(given.reference)
    assert "a &lt; b &amp; <code>c &lt; d</code>" in shown[-1]["text/html"]


def test_a_nan_that_where_hides_has_its_reason():
    divided = "torch.where(x == 0, 0 * x, 2 * x * x / x) *"
    verdict = judged("2.1", {"2 * x *": divided})
    assert verdict.mark == WRONG
    assert "hides them from a value, but not from its derivative" in verdict.message
