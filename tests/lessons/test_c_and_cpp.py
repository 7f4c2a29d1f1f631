"""The learner's C and C++: compiled once, called under watch, and a crash stays outside."""

import ctypes
import os
import time

import pytest
import torch

from helpers.lessons import c_and_cpp
from helpers.ops.involution import compiler
from tests.needs import needs_compiler


@needs_compiler
def test_native_calls_give_views_their_strides_and_watch_all_memory():
    library = c_and_cpp.compile_library(
        """
void every(const double *x, int64_t step, int64_t count, double *y) {
    for (int64_t i = 0; i < count; ++i) y[i] = 2 * x[i * step];
}
void writes(double *x, double *y, int64_t where) { y[0] = x[0]; y[where] = 0; }
void changes(double *x, double *y) { y[0] = x[0] = 1; }
""",
        "c",
    )
    x, y = torch.arange(10.0, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    c_and_cpp.call(library, "every", {"x": x[1::3], "step": 3, "count": 3, "y": y}, "y")
    assert y.tolist() == [2, 8, 14]
    assert x._version == 0  # or autograd would take an input for changed
    y = y[:1].clone()
    for where, words in ((-1, "`writes` writes before the start of `y`"), (1, "past the end")):
        with pytest.raises(c_and_cpp.NativeError, match=words):
            c_and_cpp.call(library, "writes", {"x": x, "y": y, "where": where}, "y")
    with pytest.raises(c_and_cpp.NativeError, match="`mine` changes `x`, which is an input"):
        c_and_cpp.call(library, "changes", {"x": x, "y": y}, "y", says="mine")
    assert x[0] == 0
    with pytest.raises(c_and_cpp.NativeError, match=r"leaves y\[0\] without a value"):
        c_and_cpp.call(library, "every", {"x": x, "step": 1, "count": 0, "y": y}, "y")
    with pytest.raises(c_and_cpp.NativeError, match="no function `absent`"):
        c_and_cpp.call(library, "absent", {"y": y}, "y")


@needs_compiler
def test_a_source_that_does_not_compile_is_answered_with_its_line():
    with pytest.raises(c_and_cpp.NativeError, match="in line 3 of the cell: .*nothing"):
        c_and_cpp.compile_library("\nint f(void) {\n    return nothing; }", "c")
    doors = "\nint g(void) { return f(1, 2); }"
    with pytest.raises(c_and_cpp.NativeError, match=r"the check calls f\(a, b\)"):
        c_and_cpp.compile_library("\nint f(int a) { return a; }", "c", doors, "f(a, b)")
    with pytest.raises(c_and_cpp.NativeError, match="calls `absent`, which is defined nowhere"):
        c_and_cpp.compile_library("int absent(void);\nint f(void) { return absent(); }", "c")


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
    assert [c_and_cpp.compile_library(*source).f() for source in (one, other, one)] == [1, 2, 1]
    assert len(compiled) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be copied on Windows")
def test_a_crash_stays_in_the_copy(monkeypatch):
    def endless():
        while True:
            pass

    assert c_and_cpp.crash_of(lambda: None) is None
    assert c_and_cpp.crash_of(lambda: 1 / 0) is None  # the parent will meet that, too
    assert "SIGSEGV). Which index" in c_and_cpp.crash_of(lambda: ctypes.string_at(8))
    assert "SIGABRT). Does an exception" in c_and_cpp.crash_of(os.abort)
    assert "ends the process" in c_and_cpp.crash_of(lambda: os._exit(0))
    monkeypatch.setattr(c_and_cpp, "PROCESSOR_SECONDS", 0.3)
    assert "does not end" in c_and_cpp.crash_of(endless)
    monkeypatch.setattr(c_and_cpp, "SECONDS", 0.3)
    assert "does not end" in c_and_cpp.crash_of(lambda: time.sleep(60))
