"""The classroom: notebooks that were handed in, exercises of one's own, a folder to work in."""

import csv
import json
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from helpers.lessons import exercise, grade, mine
from tests.notebooks.worked_in import why_left_out

ROOT = Path(__file__).parents[2]
NUMBERS = ("2.1", "2.2", "2.3")
RIGHT = {number: exercise(number).edited().strip() for number in NUMBERS}
WRONG = {number: exercise(number).edited(*exercise(number).wrong[0][:-1]) for number in NUMBERS}
STUB = {number: exercise(number).cell for number in NUMBERS}
CHECK = {number: f'exercise("{number}").check({exercise(number).name})' for number in NUMBERS}


def together(answers):
    return [f"{answer}\n\n{CHECK[number]}" for number, answer in answers.items()]


HANDED_IN = {  # the cells after the imports, and the marks
    "three": (together({"2.1": WRONG["2.1"], "2.2": STUB["2.2"]}) + [RIGHT["2.3"], CHECK["2.3"]],
              "✗○✓"),
    "lacks one": (together({"2.1": "class Square(:", "2.3": RIGHT["2.3"]}), "! ✓"),
    "prints": (together({"2.1": f'{STUB["2.1"]}\nprint("✓ 2.1 Square: so I say")'}), "○  "),
    "dies": (together(RIGHT | {"2.2": "import os\nos._exit(3)"}), "✓!!"),
    "hangs": (together(RIGHT | {"2.2": "import time\ntime.sleep(99)"}), "✓!✓"),
}  # fmt: skip
IMPORTS = "import torch\nfrom torch.autograd import Function\nfrom helpers.lessons import exercise"


def write(path, cells):
    code = [nbformat.v4.new_code_cell(source) for source in (IMPORTS, *cells)]
    nbformat.write(nbformat.v4.new_notebook(cells=code), path)


def test_the_table_of_students_and_exercises(tmp_path, monkeypatch, capsys):
    for name, (cells, _) in HANDED_IN.items():
        write(tmp_path / f"{name}.ipynb", cells)
    (tmp_path / "no notebook.ipynb").write_text("{")
    paths = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["grade", *paths, "--seconds", "5"])
    grade.main()
    said = capsys.readouterr()
    with open("verdicts.csv", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["student", *NUMBERS]
    expected = {name: marks for name, (_, marks) in HANDED_IN.items()} | {"no notebook": "   "}
    assert {row[0]: "".join(mark or " " for mark in row[1:]) for row in rows} == expected
    assert re.search(r"^dies +✓ +! +! *$", said.out, re.MULTILINE)
    assert "dies.ipynb: DeadKernelError" in said.err
    assert "no notebook.ipynb: is no notebook" in said.err


def test_an_exercise_of_your_own(tmp_path):
    """The example in the README, in a cell; the exercises of the course stand in modules."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n([^`]*Exercise\([^`]*)```", readme)
    assert len(example.splitlines()) <= 27
    answer = "class Half(Function):" + example.split("class Half(Function):")[1].split("\n\n\n")[0]
    check = '\nexercise("A.1").check(Half)'
    wrong = answer.replace("grad_output / 2", "grad_output")
    path = tmp_path / "mine.ipynb"
    write(path, [example, answer + check, 'exercise("A.1").solution()', wrong + check])
    notebook = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_name="python3", resources=folder).execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    said = [output.get("text") or output["data"]["text/plain"] for output in outputs]
    right, solution, verdict = said
    assert right.startswith("✓ A.1 Half: ")
    assert solution.startswith("class Half(Function):")
    assert verdict.startswith("✗ A.1 Half: ")


def test_a_folder_to_work_in_is_never_overwritten(tmp_path):
    (tmp_path / "notebooks").mkdir()
    for name in ("00_a.ipynb", "01_b.ipynb"):
        (tmp_path / "notebooks" / name).write_text("new")
    target = tmp_path / "mine"
    target.mkdir()
    (target / "00_a.ipynb").write_text("my answers")
    assert mine.copy(tmp_path / "notebooks", target) == ["01_b.ipynb"]
    assert (target / "00_a.ipynb").read_text() == "my answers"
    assert "mine/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("marks", "metadata", "words"),
    [
        ("○", {}, None),
        ("✗✓○", {}, None),  # an attempt that a chapter shows
        ("✓", {}, "holds answers to 2.1: "),
        ("○", {"execution": {}}, "holds execution timestamps: "),
    ],
)
def test_a_notebook_with_answers_is_left_out(tmp_path, monkeypatch, marks, metadata, words):
    monkeypatch.delenv("CI", raising=False)
    shown = [
        nbformat.v4.new_output("display_data", {"text/plain": f"{mark} 2.1 Square: …"})
        for mark in marks
    ]
    cell = nbformat.v4.new_code_cell(outputs=shown, metadata=metadata)
    path = tmp_path / f"{len(marks)}{marks[0]}.ipynb"
    path.write_text(json.dumps(nbformat.v4.new_notebook(cells=[cell])))
    why = why_left_out(path)
    assert why is None if words is None else words in why
    why_left_out.cache_clear()
    monkeypatch.setenv("CI", "1")
    assert why_left_out(path) is None
