"""The learner's C and C++: a crash stays outside.

What calls do wrong, and how they crash, the attempts at 7.1, 8.1 and 8.3 show.
"""

import os
import time

import pytest

from helpers.lessons.native import c_and_cpp


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="processes cannot be copied on Windows"
)
def test_what_waits_does_not_end_and_what_raises_is_no_crash(monkeypatch):
    assert c_and_cpp.crash_of(lambda: None) is None
    assert c_and_cpp.crash_of(lambda: 1 / 0) is None  # the parent will meet that, too
    monkeypatch.setattr(c_and_cpp, "SECONDS", 0.3)
    assert "does not end" in str(c_and_cpp.crash_of(lambda: time.sleep(60)))
