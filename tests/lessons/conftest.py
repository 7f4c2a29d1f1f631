"""The exercise that a test is about."""

import pytest

from tests.lessons.judged import EXERCISES
from tests.needs import missing, why_not


@pytest.fixture
def given(number):
    """The exercise, where attempts at it can be tried."""
    why = why_not(EXERCISES[number].needs)
    if why:
        assert why in missing(), (
            f"{number} says that this machine lacks what it has: {why}"
        )
        pytest.skip(why)
    return EXERCISES[number]
