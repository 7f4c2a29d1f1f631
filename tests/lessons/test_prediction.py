"""A prediction is told what came out, and whether it was that."""

import pytest

from helpers.lessons import predicted
from helpers.lessons.tempting import TEMPTING


@pytest.mark.parametrize(
    ("prediction", "outcome", "mark"),
    [
        (..., 8, "○"),
        (8, 8, "✓"),
        (7, 8, "✗"),
        (8.0, 8, "✓"),
        (True, True, "✓"),
        (" Raises", "raises", "✓"),
        ((True, 3), [True, 3], "✓"),
        ((True,), (True, 3), "✗"),
        (float("nan"), 1.0, "✗"),
        ("eight", 8, "✗"),
        ("default and Kaiming", "Kaiming and default", "✓"),
        ("default", "Kaiming and default", "✗"),
        ("b, a", "a, b", "✗"),
    ],
)
def test_a_prediction_is_compared(prediction, outcome, mark, capsys):
    predicted(prediction, outcome)
    said = capsys.readouterr().out
    assert said.startswith(mark)
    assert str(outcome) in said or not isinstance(outcome, int)


def test_a_number_may_be_off_by_what_is_said(capsys):
    predicted(100, 104.0, within=0.05)
    predicted(100, 106.0, within=0.05)
    assert [line[0] for line in capsys.readouterr().out.splitlines()] == ["✓", "✗"]


def test_what_came_out_is_not_translated(monkeypatch, capsys):
    monkeypatch.setenv("EXTENDING_PYTORCH_LANGUAGE", "zh")
    predicted("one number", "nothing")  # each is a clause of the catalogue, too
    said = capsys.readouterr().out
    assert "one number" in said and "nothing" in said and "You predicted" not in said


def test_a_tempting_prediction_is_answered(capsys):
    for key, reasons in TEMPTING.items():
        for guess, why in reasons.items():
            predicted(guess, "what came out", tempting=key)
            assert why in capsys.readouterr().out
    predicted(..., "what came out", tempting="5 term")
    predicted("2 sinh²", "2 sinh²", tempting="5 term")
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_one_of_a_list_may_be_given_without_its_brackets(capsys):
    predicted(0.1, [0.1])
    predicted([], [0.1])
    assert capsys.readouterr().out.splitlines() == [
        "✓ It is 0.1, as you predicted.",
        "✗ You predicted []; it is 0.1.",
    ]
