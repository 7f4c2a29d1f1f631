"""What is said of whom: all tables of what the doctor says, and of whom it must not accuse."""

import pytest

from helpers.doctor import examine
from helpers.doctor.function.tensors import Dice
from helpers.lessons.patients import PATIENTS
from tests.doctor import (
    cases_causes,
    cases_exceptions,
    cases_pitfalls,
    cases_right,
    cases_trials,
)
from tests.doctor.cases import ones

TABLES = cases_causes, cases_trials, cases_exceptions, cases_pitfalls, cases_right
CASES = [
    pytest.param(case, id=f"{table.__name__.split('_')[-1]}: {case.codes or 'right'}: {case.name}")
    for table in TABLES
    for case in table.CASES
]


@pytest.mark.parametrize("case", CASES)
def test_what_is_said(case):
    case.check()


def test_a_message_does_not_announce_a_list_that_is_left_out():
    (finding,) = examine(lambda x: x.mean(keepdim=True), ones(3)).findings
    assert finding.evidence["message"].endswith("got (keepdim=bool, )"), finding.evidence


def test_what_moves_in_steps_of_its_own_is_not_accused_by_chance(monkeypatch):
    """Of rounding, differences along some directions agree with each other, and with nothing."""
    for seed in range(10):
        monkeypatch.setattr(Dice.__init__, "__defaults__", (seed,))
        report = PATIENTS["log_cosh"].examine(lines=False)
        assert [f.code for f in report.findings] == ["not-judged"], seed
