"""The doctor's rounds over a program on the command line, and over a test suite."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.doctor.plugin import Doctor, pytest_configure

from helpers import doctor
from helpers.doctor.__main__ import main
from tests.doctor.test_doctor_rounds import half, leaf

PROGRAM = """
import sys
import torch
class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.saved_tensors[0]
class Third(Half):
    pass
def test_one(): Half.apply(torch.ones(2, requires_grad=True))
def test_two():
    Half.apply(torch.ones(3, requires_grad=True))
    Third.apply(torch.ones(2, requires_grad=True))
"""


def test_command_line(tmp_path, capsys):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM + "test_one()\nprint(sys.argv, __name__)\n")
    before = list(sys.argv), list(sys.path)
    assert main(["--run", str(file), "--epochs", "-h"]) == 1
    out = capsys.readouterr().out
    assert f"{[str(file), '--epochs', '-h']} __main__" in out
    assert "Half: 1 error" in out and f"{file}:14 in test_one" in " ".join(out.split())
    assert (sys.argv, sys.path) == before
    for last, status in [("", 0), ("sys.exit(3)", 3), ("sys.exit('no')", 1), ("1 / 0", 2)]:
        file.write_text(f"{PROGRAM}\n{last}")
        assert main(["--run", str(file)]) == status
        printed = capsys.readouterr()
        assert "Rounds: 0 Functions, none wrong" in printed.out
        assert ("ZeroDivisionError" in printed.err) == (status == 2)
        assert ("no\n" in printed.err) == (status == 1)
    for arguments in (["--run", "nowhere.py"], ["--run"], []):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 2


def pytest_over(tmp_path, *arguments, plugin="helpers.doctor.plugin"):
    program, settings = tmp_path / "test_program.py", tmp_path / "pytest.ini"
    program.write_text(PROGRAM)
    settings.write_text("[pytest]\n")
    sys.modules.pop("test_program", None)
    surroundings = [
        "--disable-plugin-autoload",
        "-p",
        "no:cacheprovider",
        "-c",
        str(settings),
        "--rootdir",
        str(tmp_path),
    ]
    return ["-p", plugin, *surroundings, *arguments, str(program)]


def test_a_test_suite_fails_and_names_the_first_test(tmp_path, capsys):
    pytest_configure(SimpleNamespace(getoption=lambda name: False))  # without the flag, nothing
    assert pytest.main(pytest_over(tmp_path, "--doctor")) == 1
    out = " ".join(capsys.readouterr().out.split())
    for words in (
        "2 passed", "Half: 1 error", "Third: 1 error", "2 calls, 2 patterns examined",
        "first in test_program.py::test_one", "first in test_program.py::test_two",
        "test_program.py:14 in test_one", "Functions: 2, wrong: 2",
    ):  # fmt: skip
        assert words in out, out
    options = ["--doctor", "--doctor-skip", "Half", "--doctor-unfaithful", "test_program.Third"]
    assert pytest.main(pytest_over(tmp_path, *options)) == 0
    assert "Functions: 1, wrong: none" in capsys.readouterr().out


def test_the_plugin_works_in_a_renamed_copy(tmp_path, capsys, monkeypatch):
    shutil.copytree(Path(doctor.__file__).parent, tmp_path / "physician")
    monkeypatch.syspath_prepend(tmp_path)
    assert pytest.main(pytest_over(tmp_path, "--doctor", plugin="physician.plugin")) == 1
    assert "Functions: 2, wrong: 2" in capsys.readouterr().out
    folders = [
        Path(m.__file__).parent for n, m in sys.modules.items() if n.startswith("physician.")
    ]
    assert set(folders) == {tmp_path / "physician"}


def test_what_workers_of_xdist_found_is_gathered():
    config = SimpleNamespace(getoption=lambda name: [], workeroutput={})
    worker = Doctor(config)
    half(leaf(2))
    worker.pytest_sessionfinish(SimpleNamespace(config=config))
    ((name, ok, text),) = config.workeroutput["doctor"]
    assert name.endswith(".Half") and not ok and "Half: 1 error" in text
    boss, session = Doctor(config), SimpleNamespace(config=SimpleNamespace(), exitstatus=0)
    for _ in range(2):
        boss.pytest_testnodedown(SimpleNamespace(workeroutput=config.workeroutput))
    boss.pytest_testnodedown(SimpleNamespace())  # one that crashed
    boss.pytest_sessionfinish(session)
    assert session.exitstatus == 1
    lines = []
    boss.pytest_terminal_summary(
        SimpleNamespace(section=lambda *_, **__: 0, write_line=lines.append)
    )
    assert lines == [text, "Functions: 1, wrong: 1"]
