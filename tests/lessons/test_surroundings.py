"""Checks do not depend on what a notebook has set, nor change it."""

import asyncio

import nbformat
import pytest
import torch

from helpers.lessons import exercise
from helpers.lessons.classroom.handed_in import verdicts
from helpers.lessons.exercise import RIGHT, exercises
from helpers.lessons.judge.surroundings import usual_settings
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
