"""The doctor on the command line: one function, or a whole program."""

import runpy
import sys

import pytest
import torch

from helpers.doctor.__main__ import main, tensor
from helpers.doctor.course import SECTIONS
from helpers.doctor.report import TEXTS
from helpers.lessons.which_way import section

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
def add(x, i): return x + i
class Layer(torch.nn.Linear):
    def __init__(self): super().__init__(4, 2)
"""
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
def apply(): Half.apply(torch.ones(2, requires_grad=True))
"""
ROUND = "helpers.lessons.cases.formulas:RoundStraightThrough"


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


def test_as_a_module_it_exits_with_the_status(mine, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "helpers.doctor.__main__", raising=False)
    monkeypatch.setattr(sys, "argv", ["x", f"{mine}:Scale", "--input", "3x4", "--value", "2.5"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("helpers.doctor", run_name="__main__")
    assert left.value.code == 1 and "multiplied by 0.4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("{}:add --input 2x3:float32 --input 3:int64", 0),
        ("{}:Layer --input 5x4", 0),
        ("torch:round --input 3", 0),
        (f"{ROUND} --input 3", 1),
        (f"{ROUND} --input 3 --unfaithful", 0),
        ("{}:add --input 3:int64 --value 1", 2),  # nothing to examine
        ("{}:add --input 2x3 --input 4x5", 2),  # does not run
    ],
)
def test_the_status_says_whether_it_is_right(arguments, status, mine):
    assert main(arguments.format(mine).split()) == status


def test_it_prints_json_and_takes_what_is_trained(mine, capsys):
    assert main([f"{mine}:add", "--input", "3x4", "--trained", "4", "--json"]) == 0
    assert '"input": "i", "points": 3, "order": 2' in capsys.readouterr().out


def test_all_dtypes_can_be_asked_for():
    assert tensor("3:float8_e4m3fn").dtype == torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nowhere.py:f --input 3", "cannot be loaded: FileNotFoundError"),
        ("{}:missing --input 3", "has no attribute 'missing'"),
        ("math:pi --input 3", "pi cannot be called, it is float"),
        ("{}:add --input 99999999x99999999", "cannot be made"),
        ("add --input 3", "target must be module.py:name"),
        ("{}:add", "give at least one --input"),
        ("{}:add --input 3,4", "write sizes as 3x4"),
        ("{}:add --input 3:sin", "write sizes as 3x4"),
        ("{}:add --input 3 --value x", "write a number"),
        ("--run nowhere.py", "nowhere.py"),
        ("--run", ""),
        ("", ""),
    ],
)
def test_what_cannot_be_examined_is_one_sentence(arguments, words, mine, capsys):
    with pytest.raises(SystemExit) as left:
        main(arguments.format(mine).split())
    assert left.value.code == 2
    assert words in capsys.readouterr().err


def test_a_program_runs_as_it_would_without(tmp_path, capsys):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM + "apply()\nprint(sys.argv, __name__)\n")
    before = list(sys.argv), list(sys.path)
    assert main(["--run", str(file), "--epochs", "-h"]) == 1
    out = capsys.readouterr().out
    assert f"{[str(file), '--epochs', '-h']} __main__" in out
    assert "Half: 1 error" in out and f"{file.name}:12 in apply" in " ".join(out.split())
    assert (sys.argv, sys.path) == before


@pytest.mark.parametrize(
    ("last", "status", "error"),
    [("", 0, ""), ("sys.exit(3)", 3, ""), ("sys.exit('no')", 1, "no\n"),
     ("1 / 0", 2, "ZeroDivisionError")],
)  # fmt: skip
def test_a_program_ends_with_its_own_status(last, status, error, tmp_path, capsys):
    file = tmp_path / "program.py"
    file.write_text(f"{PROGRAM}\n{last}")
    assert main(["--run", str(file)]) == status
    printed = capsys.readouterr()
    assert "Rounds: 0 Functions, none wrong" in printed.out and error in printed.err


def test_it_names_the_section_of_the_course(capsys):
    for place, codes in SECTIONS.items():
        section(place)  # ValueError where the chapter has no such heading
        assert set(codes.split()) <= set(TEXTS), place
    assert main([*ROUND.split(), "--input", "3"]) == 1
    assert "read: chapter 11 Deeper: numbers: nan" in capsys.readouterr().out
    assert main([*ROUND.split(), "--input", "3", "--json"]) == 1
    assert "read: " not in capsys.readouterr().out
