import torch

from helpers.lessons import setup_check
from helpers.ops.involution import compiler


def test_reports_what_is_there():
    lines = setup_check.report().splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["Python", "torch"]
    assert len(lines) == 6
    assert ("no CUDA GPU" in lines[5]) != torch.cuda.is_available()


def test_a_missing_compiler_names_the_remedy(monkeypatch):
    monkeypatch.setattr(
        setup_check, "find_compiler", compiler.find_compiler.__wrapped__
    )
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    assert "no C++ compiler" in setup_check.report()
    assert "`pip install ziglang` brings one" in setup_check.report()
    monkeypatch.setattr(compiler, "find_spec", lambda name: name)
    assert "compiler zig" in setup_check.report()
    monkeypatch.setattr(compiler.shutil, "which", lambda name: f"/bin/{name}")
    assert "compiler g++ " in setup_check.report()


def test_another_torch_is_noticed(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "9.9.9+cpu")
    assert "outputs may differ" in setup_check.report()


def test_missing_packages_are_said(monkeypatch):
    def missing(name):
        raise setup_check.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(setup_check.importlib.metadata, "version", missing)
    assert "no CuPy" in setup_check.report() and "no Triton" in setup_check.report()
