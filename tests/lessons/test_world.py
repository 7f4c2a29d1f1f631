"""Checks do not depend on what a notebook has set, nor change it."""

import errno
from functools import partial

import pytest
import torch

from helpers.lessons import exercise
from helpers.lessons.exercise import NOT_ATTEMPTED, RIGHT, Verdict
from helpers.lessons.world import is_full, usual_world

SETTINGS = {
    "anomaly mode": (partial(torch.autograd.set_detect_anomaly, True), "anomaly"),
    "no gradients": (partial(torch.set_grad_enabled, False), "grad"),
    "float64": (partial(torch.set_default_dtype, torch.float64), "dtype"),
    "meta": (partial(torch.set_default_device, "meta"), "device"),
}


def settings():
    return {
        "anomaly": torch.is_anomaly_enabled(),
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device().type,
    }


@pytest.fixture
def put_back():
    yield
    torch.autograd.set_detect_anomaly(False)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_check_sets_its_world_and_puts_back_what_it_found(name, put_back):
    usual = settings()
    answers = {number: exercise(number).reference for number in ("2.1", "2.3", "4.1", "6.3")}
    change, what = SETTINGS[name]
    change()
    changed = settings()
    assert changed[what] != usual[what]
    with usual_world():
        assert settings() == usual
    for number, answer in answers.items():
        verdict = exercise(number).judge(answer)
        assert verdict == Verdict(RIGHT, exercise(number).success), number
    assert settings() == changed


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
    assert is_full(RuntimeError("cc1: fatal error: No space left on device"))
    assert not is_full(OSError(errno.ENOENT, "No such file"))
