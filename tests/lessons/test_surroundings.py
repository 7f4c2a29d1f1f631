"""Checks do not depend on what a notebook has set, nor change it.

tests/lessons/test_exercises.py sees that the check of each solution does not.
"""

import contextlib
import sys

import pytest
import torch

from helpers.lessons import exercise
from helpers.lessons.exercise import RIGHT
from helpers.lessons.judge.surroundings import usual_settings


def settings():
    return {
        "anomaly": torch.is_anomaly_enabled(),
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device().type,
        "inference": torch.is_inference_mode_enabled(),
    }


@contextlib.contextmanager
def changed_settings():
    """All of them changed, and back again."""
    torch.set_default_dtype(torch.float64)
    try:
        with (
            torch.inference_mode(),
            torch.device("meta"),
            torch.autograd.detect_anomaly(),
        ):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_check_sets_its_world_and_puts_back_what_it_found():
    usual, given = settings(), exercise("2.1")
    with changed_settings():
        changed = settings()
        with usual_settings():
            assert settings() == usual
        given.judge(given.reference)
        assert settings() == changed
    assert all(changed[name] != value for name, value in usual.items())


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_exercises_are_made_in_the_usual_world(monkeypatch):
    """The first call imports them, and they hold tensors."""
    exercise("4.1")
    monkeypatch.delitem(sys.modules, "helpers.lessons.exercises.chapter_04")
    with changed_settings():
        given = exercise("4.1")
        verdict = given.judge(given.reference)
    assert verdict.mark == RIGHT, verdict.message
