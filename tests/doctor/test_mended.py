"""What the doctor once got wrong stays right."""

import pytest

from tests.doctor.cases_mended import CASES


@pytest.mark.parametrize("case", **CASES.named)
def test_it_stays_mended(case):
    case.check()
