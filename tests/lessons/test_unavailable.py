"""What is said where something is missing, and when a cell that says it is skipped."""

from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbval.plugin import NbCellError

import conftest
from helpers.lessons import unavailable
from helpers.lessons.native import c_and_cpp
from tests import needs

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "00_start_here.ipynb"


def test_what_is_missing_is_said_and_remembered(monkeypatch, capsys):
    monkeypatch.setattr(unavailable, "_missing", None)
    with pytest.raises(NameError), unavailable.or_say_why():
        made_by_an_earlier_cell  # noqa: B018, F821
    with pytest.raises(RuntimeError, match="a defect"), unavailable.or_say_why():
        raise RuntimeError("a defect")
    for error in (
        unavailable.CompilerNotFoundError("no C++ compiler"),
        ImportError("No module named 'cupy'"),
        RuntimeError("Ninja is required to load C++ extensions"),
        RuntimeError(
            "Error building extension 'x': [1/2] c++\n/bin/sh: 1: c++: not found\n"
        ),
        RuntimeError(
            "Error building extension 'x': [1/2] c++\nx.cpp:3: error: no Python.h\n"
        ),
    ):
        with unavailable.or_say_why():
            raise error
    with unavailable.or_say_why():
        made_by_an_earlier_cell  # noqa: B018, F821
    own = RuntimeError(
        "Error building extension 'x': c++\nmain.cpp:7:3: error: expected ';'\n"
    )
    with (
        pytest.raises(
            c_and_cpp.NativeError, match="line 7 of the text does not compile: expected"
        ),
        unavailable.or_say_why(),
    ):
        raise own
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(unavailable.NOT_HERE) for line in lines)
    said = [
        "no C++ compiler",
        "No module named 'cupy'",
        "Ninja is required to load C++ extensions",
    ]
    assert [line.split(": ")[1].split(". ")[0] for line in lines[:3]] == said
    assert "c++: not found" in lines[3]
    assert lines[4] == lines[5]
    assert "error: no Python.h" in lines[4]


@pytest.mark.parametrize(
    ("lacking", "said", "kind", "is_skipped"),
    [
        ("NO_COMPILER", "no compiler", "stream", True),
        ("NO_NVRTC", "no NVRTC", "stream", True),
        ("TORCH_BUILDS", "c++: not found", "stream", True),
        ("NO_NVRTC", "no compiler", "stream", False),  # there is one
        ("NO_NVRTC", "no NVRTC", "error", False),
        (None, "no NVRTC", "stream", False),
    ],
)
def test_a_cell_is_skipped_for_what_is_missing_only(
    lacking, said, kind, is_skipped, monkeypatch, capsys
):
    here = {"NO_COMPILER": None, "NO_NVRTC": None, "TORCH_BUILDS": "/bin/c++"}
    lacks = {"NO_COMPILER": "no compiler", "NO_NVRTC": "no NVRTC", "TORCH_BUILDS": None}
    for name in here:
        monkeypatch.setattr(needs, name, (lacks if name == lacking else here)[name])
    monkeypatch.setattr(unavailable, "_missing", None)
    with unavailable.or_say_why():
        raise ImportError(said)
    output = nbformat.v4.new_output(kind)
    output.text = capsys.readouterr().out

    def differ():
        raise NbCellError(1, "the cell differs", "")

    with pytest.raises((pytest.skip.Exception, NbCellError)) as caught:
        cell = nbformat.v4.new_code_cell()
        item = SimpleNamespace(path=NOTEBOOK, test_outputs=[output], cell=cell)
        conftest.run_or_let_it_say_why(item, differ)
    assert str(caught.value) == (said if is_skipped else "the cell differs")
