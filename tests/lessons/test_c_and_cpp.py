"""The learner's C and C++: compiled once, and a crash stays outside.

What calls do wrong, and how they crash, the attempts at 7.1, 8.1 and 8.3 show.
"""

import os
import time

import pytest

from helpers.lessons.native import c_and_cpp
from helpers.ops.involution import compiler
from tests.needs import needs_compiler


@needs_compiler
def test_a_source_is_compiled_once(monkeypatch, tmp_path):
    compiled, run = [], c_and_cpp.subprocess.run

    def counted(command, **options):
        compiled.append(command)
        return run(command, **options)

    c_and_cpp.compiler_version(tuple(compiler.find_compiler()))
    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(c_and_cpp.subprocess, "run", counted)
    one, other = ("int f(void) { return 1; }", "c"), ("int f(void) { return 2; }", "c")
    assert [c_and_cpp.compile_library(*source).f() for source in (one, other, one)] == [
        1,
        2,
        1,
    ]
    assert len(compiled) == 2


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="processes cannot be copied on Windows"
)
def test_what_waits_does_not_end_and_what_raises_is_no_crash(monkeypatch):
    assert c_and_cpp.crash_of(lambda: None) is None
    assert c_and_cpp.crash_of(lambda: 1 / 0) is None  # the parent will meet that, too
    monkeypatch.setattr(c_and_cpp, "SECONDS", 0.3)
    assert "does not end" in str(c_and_cpp.crash_of(lambda: time.sleep(60)))
