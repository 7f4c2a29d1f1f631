"""The script for a GPU, as far as a CPU can try it."""

from types import SimpleNamespace

from helpers.ops.involution import backends, operator, plain
from helpers.ops.involution.geometry import KERNELS
from tests.involution.reference import each_kernel
from tools import involution_first_gpu_run as first_gpu_run


def test_every_case_is_right_on_the_cpu():
    assert list(first_gpu_run.wrong_cases("cpu")) == []


@each_kernel
def test_a_wrong_kernel_is_named(kernel, monkeypatch):
    kernels = {name: getattr(plain, name) for name in KERNELS}
    right = kernels[kernel]
    kernels[kernel] = lambda *arguments: 2 * right(*arguments)
    wrong = SimpleNamespace(**kernels)
    monkeypatch.setattr(operator, "implementation", lambda device: wrong)
    named = list(first_gpu_run.wrong_cases("cpu"))
    assert len(named) == len(list(first_gpu_run.cases("cpu"))) - 1  # not an empty batch


def test_without_a_gpu_it_says_why_nothing_was_run(capsys, monkeypatch):
    reason = backends.Backend("none", "there is no CuPy")
    monkeypatch.setattr(first_gpu_run, "backend", lambda device: reason)
    assert first_gpu_run.main() == 1
    assert "there is no CuPy" in capsys.readouterr().out
