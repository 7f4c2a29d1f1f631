"""The classroom: notebooks handed in, exercises of one's own, a folder to work in."""

import codecs
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from helpers.lessons import exercise, grade, mine
from tests.notebooks.worked_in import why_left_out
from tests.test_teaching import ASSIGNMENT, ROOT

NUMBERS = ("2.1", "2.2", "2.3", "2.4")
RIGHT = {number: exercise(number).edited().strip() for number in NUMBERS}
WRONG = exercise("2.1").edited(exercise("2.1").wrong[0][0])
STUB = exercise("2.2").cell
CHECK = {
    number: f'exercise("{number}").check({exercise(number).name})' for number in NUMBERS
}


def together(answers):
    return [f"{answer}\n\n{CHECK[number]}" for number, answer in answers.items()]


IMPORTS = "import torch\nfrom torch.autograd import Function\nfrom helpers.lessons import exercise"
SECONDS = 987654  # as no other process sleeps
CHILD = f"""import subprocess, sys
deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep({SECONDS})"
subprocess.Popen([sys.executable, "-c", deaf])"""
ENDLESS = """import time
while True:
    try:
        time.sleep(1)
    except:
        pass"""
BESIDE = f"""import assignment
from pathlib import Path
assert Path("data.txt").read_text() == "theirs"
Path("data.txt").write_text("changed")
{RIGHT["2.1"]}
# exercise("2.2").check(Square)
number = "2,1"
asked = exercise(number)
asked.check(Square)
exercise("A.1").check(assignment.Half)"""

# The cells after the imports, the marks, and words of why there is a `!`, or no mark.
HANDED_IN = {
    "three": (
        [
            *together(
                {"2.1": WRONG, "2.2": f'{STUB}\nprint("✓ 2.2 Multiply: so I say")'}
            ),
            RIGHT["2.3"],
            CHECK["2.3"],
        ],
        "✗○✓  ",
        [],
    ),
    "dies": (
        together(RIGHT | {"2.2": f"{CHILD}\nimport os\nos._exit(3)"}),
        "✓!!! ",
        ["code cell 3: the kernel died, and no later cell"],
    ),
    "hangs": (
        together(
            {
                "2.1": "import time\ntime.sleep(99)",
                "2.2": "class Square(:",
                "2.3": RIGHT["2.3"],
                "2.4": f"{CHILD}\n{ENDLESS}",
            }
        ),
        "!!✓! ",
        ["code cell 2, 5: interrupted after 8 s.", "code cell 3: SyntaxError: "],
    ),
    "anna/a chapter": ([BESIDE], "✓   ✓", ["an essay.ipynb runs no check."]),
    "anna/an essay": ([], "✓   ✓", ["an essay.ipynb runs no check."]),
}


def write(path, cells, encoding="utf-8"):
    code = [nbformat.v4.new_code_cell(source) for source in (IMPORTS, *cells)]
    text = nbformat.writes(nbformat.v4.new_notebook(cells=code))
    path.write_text(text, encoding=encoding)


@pytest.fixture
def handed_in(tmp_path, monkeypatch):
    """The folder, in which the table is made."""
    (tmp_path / "anna").mkdir()
    for name, (cells, _, _) in HANDED_IN.items():
        # With the mark of some editors.
        write(tmp_path / f"{name}.ipynb", cells, "utf-8-sig")
    (tmp_path / "anna" / "assignment.py").write_text(ASSIGNMENT)
    (tmp_path / "anna" / "data.txt").write_text("theirs")
    (tmp_path / "no notebook.ipynb").write_text("{")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_of_students_and_exercises(handed_in, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["grade", "*.ipynb", "anna", "--seconds", "8"])
    grade.main()
    said = capsys.readouterr()
    raw = Path("verdicts.csv").read_bytes()
    assert raw.startswith(codecs.BOM_UTF8)
    header, *rows = csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
    assert header == ["student", *NUMBERS, "A.1", "why"]
    found = {
        student: ("".join(mark or " " for mark in marks), why)
        for student, *marks, why in rows
    }
    expected = {name.split("/")[0]: rest for name, (_, *rest) in HANDED_IN.items()}
    expected["no notebook"] = "     ", ["no notebook.ipynb is no notebook: "]
    assert {student: marks for student, (marks, _) in found.items()} == {
        student: marks for student, (marks, _) in expected.items()
    }
    for student, (marks, whys) in expected.items():
        assert all(why in found[student][1] and why in said.out for why in whys)
        assert bool(found[student][1]) == bool(whys), f"{student}: {found[student][1]}"
        assert whys or "!" not in marks
    assert re.search(r"^dies +✓ +! +! +! *$", said.out, re.MULTILINE)
    # The progress, and no warnings.
    assert len(said.err.splitlines()) == len(expected), said.err
    assert re.search(r"^\d of 5: three  2.1 ✗  2.2 ○  2.3 ✓$", said.err, re.MULTILINE)
    assert (handed_in / "anna" / "data.txt").read_text() == "theirs"
    commands = [
        process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])
    ]
    assert not [command for command in commands if str(SECONDS) in " ".join(command)]


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT to one process")
def test_interrupted_it_has_the_table_of_what_was_done(tmp_path):
    write(tmp_path / "endless.ipynb", [ENDLESS])
    (tmp_path / "done.ipynb").write_text("{")
    command = [
        sys.executable,
        "-m",
        "helpers.lessons.grade",
        "endless.ipynb",
        "done.ipynb",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}  # it has no ✓
    # Where the tests run in the background of a shell, their children would ignore the
    # signal.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, preexec_fn=heard, **pipes
    ) as process:
        progress = process.stderr.readline().decode()
        table = (tmp_path / "verdicts.csv").read_text(encoding="utf-8-sig")
        process.send_signal(signal.SIGINT)
        out, error = (text.decode() for text in process.communicate(timeout=60))
    assert progress.startswith("1 of 2: done")
    assert table.splitlines()[1].startswith("done,")
    assert "done: done.ipynb is no notebook" in out
    assert error.strip().endswith("interrupted: 1 of 2 students are in the table")
    assert process.returncode == 1


def test_an_exercise_of_your_own(tmp_path):
    """The example in TEACHING.md, in a cell.

    The exercises of the course stand in modules.
    """
    answer = (
        "class Half(Function):"
        + ASSIGNMENT.split("class Half(Function):")[1].split("\n\n\n")[0]
    )
    check = '\nexercise("A.1").check(Half)'
    wrong = answer.replace("grad_output / 2", "grad_output")
    path = tmp_path / "mine.ipynb"
    write(
        path, [ASSIGNMENT, answer + check, 'exercise("A.1").solution()', wrong + check]
    )
    notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_name="python3", resources=folder).execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    said = [output.get("text") or output["data"]["text/plain"] for output in outputs]
    right, solution, verdict = said
    assert right.startswith("✓ A.1 Half: ")
    assert solution.startswith("class Half(Function):")
    assert verdict.startswith("✗ A.1 Half: ")


def test_a_folder_to_work_in_is_never_overwritten(tmp_path):
    source, target = tmp_path / "notebooks", tmp_path / "mine"
    source.mkdir()
    target.mkdir()
    for name in ("00_a", "01_b", "02_c"):
        write(source / f"{name}.ipynb", [name])
    (target / "00_a.ipynb").write_text("my answers")
    assert mine.copy(source, target) == (["01_b.ipynb", "02_c.ipynb"], [])
    assert mine.copy(source, target) == ([], [])
    write(source / "01_b.ipynb", ["another text"])
    (target / "02_c.ipynb").write_text("my answers")
    assert mine.copy(source, target) == ([], ["01_b.ipynb"])
    assert (target / "00_a.ipynb").read_text() == "my answers"
    assert "another text" not in (target / "01_b.ipynb").read_text(encoding="utf-8")
    assert "mine/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_another_output_or_edition_is_no_change(tmp_path):
    source, target = tmp_path / "notebooks", tmp_path / "mine"
    source.mkdir()
    write(source / "00_a.ipynb", ["1 + 1"])
    mine.copy(source, target)
    notebook = json.loads((source / "00_a.ipynb").read_bytes())
    notebook["cells"][1]["execution_count"] = 7
    (source / "00_a.ipynb").write_text(json.dumps(notebook))
    assert mine.copy(source, target) == ([], [])
    (tmp_path / "zh").mkdir()
    write(tmp_path / "zh" / "00_a.ipynb", ["1 + 2"])
    assert mine.copy(tmp_path / "zh", target) == ([], [])


@pytest.mark.parametrize(
    ("marks", "metadata", "words"),
    [
        ("○", {}, None),
        ("✗✓○", {}, None),  # an attempt that a chapter shows
        ("✓", {}, "holds answers to 2.1: "),
        ("○", {"execution": {}}, "holds execution timestamps: "),
    ],
)
def test_a_notebook_with_answers_is_left_out(
    tmp_path, monkeypatch, marks, metadata, words
):
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
