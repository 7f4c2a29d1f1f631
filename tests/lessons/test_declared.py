"""An author's slips are said to the author, when the exercise is made."""

import io
import re
import sys

import pytest

from helpers.lessons import grade
from helpers.lessons.classroom.trial import try_exercises
from helpers.lessons.exercise import KNOWN, Exercise
from helpers.lessons.judge.variations import Inputs
from tests.test_teaching import ASSIGNMENT

FEED = Inputs(shapes="N D")
GOOD = {
    "number": "A.1",
    "name": "Half",
    "reference": "0.5",
    "stub": "...",
    "success": "Yes.",
    "hints": ("Halve it.",),
    "explanation": "A half.",
}


@pytest.fixture(autouse=True)
def forget():
    yield
    KNOWN.pop("A.1", None)


@pytest.mark.parametrize(
    ("slip", "words"),
    [
        ({"number": 2.1}, "number must be a word"),
        ({"number": "A,1"}, "without a comma, got 'A,1'"),
        ({"name": ""}, "where the reference has no name"),
        ({"stub": ""}, "edits {old: new}, got ''"),
        ({"hints": "What is it?"}, "hints must be a tuple of strings"),
        ({"hints": ()}, "hints must be a tuple of strings"),
        ({"inputs": FEED, "like": abs}, "inputs must be a tuple of Inputs"),
        ({"inputs": (FEED,)}, "like must be given where there are inputs"),
        ({"order": 3}, "order must be 1 or 2, got 3"),
        ({"properties": abs}, "properties must be a tuple of functions"),
        ({"stub": ("a", "b")}, "edits {old: new}, got ('a', 'b')"),
        ({"wrong": ({"a": "b"}, "c")}, "wrong must be pairs ({old: new}, words)"),
        ({"wrong": (("a", "b", "c"),)}, "wrong must be pairs ({old: new}, words)"),
    ],
)
def test_a_slip_gets_a_sentence(slip, words):
    known = dict(KNOWN)
    with pytest.raises(ValueError, match=re.escape(words)):
        Exercise(**GOOD | slip)
    assert known == KNOWN


def test_what_is_declared_well_is_taken():
    made = Exercise(**GOOD)
    assert KNOWN["A.1"] is made


def module(folder, changes=()):
    text = ASSIGNMENT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "assignment.py"
    path.write_text(text)
    return path


def test_an_exercise_of_your_own_is_tried(tmp_path, capsys):
    assert try_exercises(module(tmp_path)) is None
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == [
        "A.1 Half",
        "  the reference: ✓ A linear function: its slope is 1/2.",
        "  the stub: ○ not attempted yet",
    ]


def test_what_is_not_as_expected_is_said(tmp_path, capsys):
    attempts = [
        ({"grad_output / 2": "grad_output"}, "multiplied by 2"),
        ({"grad_output / 2": "grad_output"}, "negated"),
        ({"grad_output / 2": "0.5 * grad_output"}, "whatever"),
        ({"no such text": ""}, "whatever"),
    ]
    path = module(tmp_path, [("    success", f"    wrong={attempts},\n    success")])
    assert try_exercises(path) == "3 not as expected"
    right, negated, accepted, absent = capsys.readouterr().out.splitlines()[-4:]
    assert right.startswith("  wrong attempt 1: ✗ ") and "(expected" not in right
    assert negated.endswith("(expected the words 'negated')")
    assert accepted.endswith("(expected ✗)")
    assert absent.startswith(
        "  wrong attempt 4 cannot be made: ValueError: A.1: 'no such text'"
    )


def test_a_module_that_cannot_be_tried_gets_a_sentence(tmp_path):
    said = try_exercises(module(tmp_path, [('shapes="N D"),)', 'shapes="N D"))')]))
    assert "could not be imported: ValueError: inputs must be a tuple of Inputs" in said
    assert "FileNotFoundError" in try_exercises(tmp_path / "absent.py")
    (tmp_path / "empty.py").write_text("")
    assert try_exercises(tmp_path / "empty.py").endswith("empty.py holds no Exercise")


def test_the_command_ends_as_the_trial_does(tmp_path, monkeypatch):
    for path, status in (
        (module(tmp_path), None),
        (tmp_path / "a", f"{tmp_path / 'a'} could not"),
    ):
        monkeypatch.setattr(sys, "argv", ["grade", "--try", str(path)])
        cannot_show_marks = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
        monkeypatch.setattr(sys, "stdout", cannot_show_marks)
        with pytest.raises(SystemExit) as ended:
            grade.main()
        assert str(ended.value.code).startswith(str(status))
