"""The doctor on the command line: one function, or a whole program."""

import json
import runpy
import sys

import pytest

from helpers.doctor.__main__ import main
from helpers.doctor.course import SECTIONS
from helpers.doctor.report import TEXTS
from helpers.lessons.index import section

MINE = """
import torch
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, c):
        ctx.c = c
        return x * c
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None
class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.round()
    @staticmethod
    def backward(ctx, grad_output): return grad_output
def add(x, i): return x + i
class Layer(torch.nn.Linear):
    def __init__(self): super().__init__(4, 2)
"""
PROGRAM = """
import sys, time
import torch
class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.saved_tensors[0]
def apply(): Half.apply(torch.ones(2, requires_grad=True))
"""


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


@pytest.fixture
def program(tmp_path):
    def written(last):
        file = tmp_path / "program.py"
        file.write_text(f"{PROGRAM}\n{last}\n")
        return str(file)

    return written


def test_as_a_module_it_exits_with_the_status(mine, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "helpers.doctor.__main__", raising=False)
    argv = ["x", f"{mine}:Scale", "--input", "3x4", "--value", "2.5"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as left:
        runpy.run_module("helpers.doctor", run_name="__main__")
    assert left.value.code == 1 and "multiplied by 0.4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("{}:add --input 2x3:float32 --input 3:int64", 0),
        ("{}:Layer --input 5x4", 0),
        ("torch:round --input 3", 0),
        ("{}:Round --input 3", 1),
        ("{}:Round --input 3 --unfaithful", 0),
        ("{}:add --input 3:int64 --value 1", 2),  # nothing to examine
        ("{}:add --input 2x3 --input 4x5", 2),  # does not run
    ],
)
def test_the_status_says_whether_it_is_right(arguments, status, mine):
    assert main(arguments.format(mine).split()) == status


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{}:Scal --input 3", "has no Scal"),
        ("none.py:Scale --input 3", "must be module.py:name"),
        ("no_such_module:Scale --input 3", "No module named"),
        ("--run none.py", "there is no file none.py"),
        ("{}:add --input 3,4", "write 3x4"),
        ("{}:add --input 3:sin", "write 3x4"),
    ],
)
def test_what_cannot_be_found_or_read_is_not_run(arguments, words, mine, capsys):
    with pytest.raises(SystemExit) as left:
        main(arguments.format(mine).split())
    assert left.value.code == 2 and words in capsys.readouterr().err


def test_it_prints_json_and_takes_what_is_trained(mine, capsys):
    assert main([f"{mine}:add", "--input", "3x4", "--trained", "4", "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)["judged"]
    of_i = {"input": "i", "points": 3, "order": 2, "why": "", "meant": False}
    of_i["beside"] = "differences"
    assert of_i in judged


def test_a_program_runs_as_it_would_without(program, capsys):
    file, before = program("apply()\nprint(sys.argv, __name__)"), list(sys.path)
    assert main(["--run", file, "--epochs", "-h"]) == 1
    out = capsys.readouterr().out
    assert f"{[file, '--epochs', '-h']} __main__" in out and sys.path == before
    assert "Half: 1 error" in out and "program.py:12 in apply" in " ".join(out.split())


@pytest.mark.parametrize(
    ("last", "status", "error"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no')", 1, "no\n"),
        ("1 / 0", 2, "ZeroDivisionError"),
    ],
)
def test_a_program_ends_with_its_own_status(last, status, error, program, capsys):
    assert main(["--run", program(last)]) == status
    printed = capsys.readouterr()
    assert "Rounds: 0 Functions, none wrong" in printed.out and error in printed.err


def test_options_of_a_program(program, capsys):
    file = program("apply()")
    assert main(["--accept", "Half", "--run", file]) == 0
    assert main(["--seconds", "0", "--run", file]) == 0
    assert "it used up its share of the seconds" in capsys.readouterr().out
    assert main(["--skip", "Ha*", "--run", file]) == 0
    assert "Rounds: 0 Functions" in capsys.readouterr().out
    assert main(["--json", "--run", file]) == 1
    (half,) = json.loads(capsys.readouterr().out)["functions"]
    assert (half["name"], half["ok"], half["calls"]) == ("Half", False, 1)
    assert half["findings"][0]["code"] == "scaled"


def test_it_names_the_section_of_the_course(mine, capsys):
    for place, codes in SECTIONS.items():
        section(place)  # ValueError where the chapter has no such heading
        assert set(codes.split()) <= set(TEXTS), place
    assert main([f"{mine}:Round", "--input", "3"]) == 1
    assert "read: chapter 11 Deeper: numbers: nan" in capsys.readouterr().out
