"""Checks do not depend on what a notebook has set, nor change it."""

import asyncio
import errno
import os

import nbformat
import pytest
import torch

from helpers.lessons import exercise
from helpers.lessons.classroom.handed_in import verdicts
from helpers.lessons.cuda_on_cpu import emulator
from helpers.lessons.exercise import NOT_ATTEMPTED, RIGHT, exercises
from helpers.lessons.judge.surroundings import is_full, usual_settings
from helpers.lessons.native import c_and_cpp
from tests.needs import why_not


def settings():
    return {
        "anomaly": torch.is_anomaly_enabled(),
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device().type,
        "inference": torch.is_inference_mode_enabled(),
    }


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_check_sets_its_world_and_puts_back_what_it_found():
    usual, given = settings(), exercise("2.1")
    with torch.inference_mode(), torch.device("meta"), torch.autograd.detect_anomaly():
        torch.set_default_dtype(torch.float64)
        try:
            changed = settings()
            with usual_settings():
                assert settings() == usual
            verdict = given.judge(given.reference)
            assert settings() == changed
        finally:
            torch.set_default_dtype(torch.float32)
    assert all(changed[name] != value for name, value in usual.items())
    assert verdict.mark == RIGHT, verdict.message


SET = """import os
import torch
os.environ["TRITON_INTERPRET"] = str(int(not torch.cuda.is_available()))  # as chapter 15 does
torch.set_default_device("meta")
torch.set_default_dtype(torch.float64)
torch.set_grad_enabled(False)
torch.autograd.set_detect_anomaly(True)
inference_mode = torch.inference_mode()
inference_mode.__enter__()"""
CHECK = """from helpers.lessons.exercise import exercise
given = exercise("{}")
given.check(given.reference)"""


def test_each_solution_in_a_kernel_whose_settings_are_all_changed(tmp_path):
    numbers = [given.number for given in exercises() if why_not(given.needs) is None]
    cells = [
        nbformat.v4.new_code_cell(text) for text in (SET, *map(CHECK.format, numbers))
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "all.ipynb")
    marks, sentences = asyncio.run(
        verdicts(tmp_path / "all.ipynb", seconds=300, total=600)
    )
    assert [*marks] == numbers and not sentences
    for number, mark in marks.items():
        given = exercise(number)
        assert mark == RIGHT or mark == given.judge(given.reference).mark, number


def test_a_full_disk_is_not_the_learners_fault():
    def full(x):
        raise OSError(errno.ENOSPC, "No space left on device")

    checked = exercise("6.3")
    original, checked.kind = checked.kind, (full,)
    try:
        verdict = checked.judge(checked.reference)
    finally:
        checked.kind = original
    assert verdict.mark == NOT_ATTEMPTED
    assert "No space left on device" in verdict.message
    assert is_full(RuntimeError("setup.cfg: No space left on device"))
    assert not is_full(OSError(errno.ENOENT, "No such file"))


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize("number, asks", [("8.1", c_and_cpp), ("15.2", emulator)])
def test_a_compiler_that_finds_the_disk_full_refuses_nothing(
    number, asks, monkeypatch, tmp_path
):
    given = exercise(number)
    if (missing := why_not(given.needs)) is not None:
        pytest.skip(missing)
    compiler = tmp_path / "full"
    compiler.write_text(
        "#!/bin/sh\necho 'ld: final link failed: No space left on device' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setattr(asks, "find_compiler", lambda: [str(compiler)])
    # Nothing that was built before.
    verdict = given.judge(f"{given.reference}\n// {tmp_path}")
    assert verdict.mark == NOT_ATTEMPTED, verdict.message
    assert "No space left on device" in verdict.message
