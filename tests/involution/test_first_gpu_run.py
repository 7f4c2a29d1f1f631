"""The script for a GPU, as far as a CPU can try it."""

import pytest

from helpers.ops.involution import backends, first_gpu_run, operator, plain


def test_every_case_is_right_on_the_cpu():
    assert list(first_gpu_run.wrong_cases("cpu")) == []


@pytest.mark.parametrize("kernel", ["forward", "grad_input", "grad_weight"])
def test_a_wrong_kernel_is_named(kernel, monkeypatch):
    class Wrong:
        forward, grad_input = plain.forward, plain.grad_input
        grad_weight = plain.grad_weight

    right = getattr(plain, kernel)
    setattr(Wrong, kernel, staticmethod(lambda *arguments: 2 * right(*arguments)))
    monkeypatch.setattr(operator, "implementation", lambda device: Wrong)
    wrong = list(first_gpu_run.wrong_cases("cpu"))
    assert len(wrong) == len(list(first_gpu_run.cases("cpu"))) - 1  # not an empty batch


def test_without_a_gpu_it_says_why_nothing_was_run(capsys, monkeypatch):
    reason = backends.Backend("none", "there is no CuPy")
    monkeypatch.setattr(first_gpu_run, "backend", lambda device: reason)
    assert first_gpu_run.main() == 1
    assert "there is no CuPy" in capsys.readouterr().out
