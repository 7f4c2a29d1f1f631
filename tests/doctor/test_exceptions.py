"""An exception becomes a finding that says what is wrong, and quotes the line."""

import pytest

from tests.doctor.cases_exceptions import CASES


@pytest.mark.parametrize("case", **CASES.named)
def test_what_is_said(case):
    case.check()
