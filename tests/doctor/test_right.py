"""What is right is not accused."""

import sys

import pytest

from helpers.doctor import examine, rounds
from helpers.doctor.function.tensors import Dice
from helpers.lessons.patients import PATIENTS
from helpers.lessons.patients.patient import vector
from tests.doctor.cases_right import CASES

CLAMPS = PATIENTS["ClampsWhatIsLarge"].fn


@pytest.mark.parametrize("case", **CASES.named)
def test_it_is_not_accused(case):
    case.check()


def of_code(report, code):
    return [f.message for f in report.findings if f.code == code]


def test_a_line_that_no_call_reaches_is_named():
    (message,) = of_code(examine(CLAMPS, *vector()), "not-reached")
    assert "`grad_output = grad_output.clamp(-1, 1)`, so that nothing" in message
    file, number = sys.modules[CLAMPS.__module__].__file__, message.split(".py:")[1].split()[0]
    with open(file) as text:
        assert "grad_output.clamp(-1, 1)" in text.readlines()[int(number) - 1]


def test_a_debugger_goes_on_and_rounds_say_nothing_of_lines():
    def trace(*_):
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert not of_code(examine(CLAMPS, *vector()), "not-reached")
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    with rounds() as found:
        CLAMPS.apply(vector()[0].requires_grad_())
    assert found.visits[0].findings == [] and sys.gettrace() is before


def test_only_what_requires_a_gradient_is_examined():
    wrong = PATIENTS["Subtract"]
    x, y = wrong.inputs()
    assert not examine(wrong.fn, x, y).ok
    assert examine(wrong.fn, x.requires_grad_(), y).ok


def test_what_moves_in_steps_of_its_own_is_not_accused_by_chance(monkeypatch):
    """Of rounding, differences along some directions agree with each other, and with nothing."""
    for seed in range(10):
        monkeypatch.setattr(Dice.__init__, "__defaults__", (seed,))
        report = PATIENTS["log_cosh"].examine(lines=False)
        assert [f.code for f in report.findings] == ["not-judged"], seed
