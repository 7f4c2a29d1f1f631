"""Which cause the doctor names, and in which words."""

import pytest

from tests.doctor.cases_causes import CASES


@pytest.mark.parametrize("case", **CASES.named)
def test_what_is_said(case):
    case.check()
