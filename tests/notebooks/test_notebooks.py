"""The rules of a notebook. That every stored output is true is checked by nbval itself."""

import builtins
import re
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

from helpers.lessons.prediction import shown
from helpers.lessons.tempting import TEMPTING
from tests.notebooks.worked_in import why_left_out

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
IGNORED_OUTPUTS_LIMIT = 4  # in the whole course
KERNEL = {
    "display_name": "Python 3 (ipykernel)",
    "language": "python",
    "name": "python3",
}
RECIPES = {"22", "23", "24"}  # which are no chapters: tests/notebooks/test_recipes.py
# What these hold is practised in the chapters they lead to.
FOR_LOOKING_UP = {"19", *RECIPES}
CHAPTERS = [path for path in NOTEBOOKS if path.stem[:2] not in RECIPES]
WHY = "<details><summary>Why</summary>"  # begins what follows from a prediction
DEEPER = re.compile(r"^## Deeper: ", re.MULTILINE)
README = (ROOT / "README.md").read_text(encoding="utf-8")


def each(paths):
    """A mark: the notebooks at these paths, without those in which a learner has worked."""
    kept = [path for path in paths if not why_left_out(path)]
    return pytest.mark.parametrize("path", kept, ids=lambda path: path.stem)


each_notebook = each(NOTEBOOKS)


def read(path):
    return nbformat.read(path, as_version=4)


def cells(notebook, kind):
    return [cell for cell in notebook.cells if cell.cell_type == kind]


def tags(cell):
    return cell.metadata.get("tags", [])


def is_folded(cell):
    return cell.metadata.get("jupyter", {}).get("outputs_hidden")


def printed(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def breaches(notebook):
    """The rules for a stored notebook that do not hold, as sentences."""
    code = cells(notebook, "code")
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        yield "not executed in order from a fresh kernel: python -m tools.execute"
    if notebook.metadata.kernelspec != KERNEL:
        yield f"the kernel is not {KERNEL}, and JupyterLab changes the notebook when it is opened"
    for cell in code:
        where = f"In [{cell.execution_count}]"
        if "execution" in cell.metadata:
            yield f"{where}: execution timestamps"
        if "NBVAL_" in cell.source or {"nbval-skip", "skip-execution"} & set(
            tags(cell)
        ):
            yield f"{where}: nbval is steered by a comment or told to skip; use the counted tag"
        for output in cell.outputs:
            if output.output_type == "error" and "raises-exception" not in tags(cell):
                yield f"{where}: an error that is not promised"
            text = str({key: value for key, value in output.get("data", {}).items()
                        if not key.startswith("image/")}) + output.get("text", "")  # fmt: skip
            if re.search(
                r"/(home|root|tmp|usr|Users|work)/|[A-Z]:\\\\|ipykernel_\d", text
            ):
                yield f"{where}: a path of one machine"
            if re.search(r"\bat 0x[0-9a-f]{6,}", text):
                yield f"{where}: an address in memory"
            if output.get("name") == "stderr":
                yield f"{where}: text on stderr"
        if "nbval-ignore-output" in tags(cell) and not cell.outputs:
            yield f"{where}: an ignored output that does not exist"


@each_notebook
def test_stored_notebook_keeps_the_rules(path):
    assert list(breaches(read(path))) == []


@each_notebook
def test_a_fold_shows_nothing_that_was_computed(path):
    """JupyterLab shows the first line of a folded output: that has to stand in the cell, too."""
    for cell in cells(read(path), "code"):
        if is_folded(cell):
            line = cell.outputs[0].get("text", "").split("\n")[0].strip()
            assert line and line in cell.source, (
                f"print a heading before {line!r}, of its words"
            )


@each_notebook
def test_what_is_predicted_is_folded(path):
    for cell in cells(read(path), "code"):
        asked = re.findall("○ It is (.+)[.] Predict before you run", printed(cell))
        for answer in asked:
            told = not is_folded(cell) and answer not in cell.source
            assert not told, f"fold the output: it says {answer}"


@each_notebook
def test_what_follows_from_a_prediction_is_hidden_with_it(path):
    """What stands below a folded output is folded, too, unless a new section begins."""
    for cell, after in pairwise(read(path).cells):
        if is_folded(cell):
            if after.cell_type == "code":
                shows = after.outputs and not after.metadata.get("jupyter")
                assert not shows, f"{after.id}: fold its output, or join the cells"
            else:
                begins = after.source.startswith(("#", f"{WHY}\n\n"))
                assert begins, f"{after.id}: begin with {WHY}"
        if WHY in after.source:
            assert after.source.endswith("\n\n</details>"), f"{after.id}: end the fold"


@each_notebook
def test_a_tempting_prediction_is_known_and_can_be_made(path):
    notebook = read(path)
    text = "\n".join(cell.source for cell in notebook.cells)
    for cell in cells(notebook, "code"):
        for key in re.findall(r'tempting="(.+?)"', cell.source):
            stored = printed(cell)
            assert f"{int(path.stem[:2])} " == key[: key.index(" ") + 1], key
            for guess in TEMPTING[key]:
                assert f"○ It is {shown(guess)}. " not in stored, "it is right"
                for word in re.split(r", | and ", shown(guess)):
                    free = re.fullmatch(r"[A-Z]+|[-\d.e]+|True|False|\[\]", word)
                    known = free or f'"{word}"' in text or hasattr(builtins, word)
                    assert known or f'"{shown(guess)}"' in text, f"nobody says {word}"


def test_each_tempting_prediction_is_asked_for():
    used = [
        key
        for path in NOTEBOOKS
        if not why_left_out(path)
        for cell in cells(read(path), "code")
        for key in re.findall(r'tempting="(.+?)"', cell.source)
    ]
    assert sorted(used) == sorted(TEMPTING)


def test_each_rule_is_able_to_fail():
    def spoil(cell):
        cell.execution_count = 7
        cell.metadata.update(execution={}, tags=["nbval-ignore-output"])
        cell.source = "# NBVAL_SKIP"

    kernel = {"name": "other", "display_name": "Other"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    for output in (
        nbformat.v4.new_output("error", ename="E", evalue="", traceback=[]),
        nbformat.v4.new_output("stream", text="/home/someone/x <f at 0x7f0000000000>"),
        nbformat.v4.new_output("stream", name="stderr", text="careful"),
        None,
    ):
        notebook.cells.append(
            nbformat.v4.new_code_cell(outputs=[output] if output else [])
        )
        spoil(notebook.cells[-1])
    found = " ".join(breaches(notebook))
    for rule in ("order", "kernel", "timestamps", "steered", "promised", "path", "address",
                 "stderr", "not exist"):  # fmt: skip
        assert rule in found, rule


def test_few_outputs_are_ignored():
    ignored = [
        f"{path.stem} In [{cell.execution_count}]"
        for path in NOTEBOOKS
        for cell in cells(read(path), "code")
        if "nbval-ignore-output" in tags(cell)
    ]
    assert len(ignored) <= IGNORED_OUTPUTS_LIMIT, ignored


def omissions(path, paths, notebook, readme):
    """What to write, as sentences, until the chapter at `path`, one of `paths`, is complete."""
    rows = re.findall(
        r"^\| \[(.+)\]\((notebooks/.+)\) \| (.*) \| (.*) \| (.*) \|$",
        readme,
        re.MULTILINE,
    )
    titles = {file: title for title, file, *_ in rows}
    questions = {file: question for _, file, question, *_ in rows}
    promises = {file: (minutes, needed) for _, file, _, minutes, needed in rows}
    texts = [cell.source for cell in cells(notebook, "markdown")]
    title, question = (texts[0] + "\n\n").split("\n\n")[:2]
    file, place, number = f"notebooks/{path.name}", paths.index(path), path.stem[:2]
    if not re.fullmatch(f"# {number} .+", title):
        yield f"begin the first cell with the line `# {number} ` and the title"
    if not re.match(r"\*\*.+\?.*\*\*", question):
        yield "write the question under the title, between `**` and `**`"
    if titles.get(file) != title[2:]:
        yield f"write a row `| [{title[2:]}]({file}) | question | … |` into the README's chapters"
    elif [*titles].index(file) != place:
        yield f"make its row in README.md number {place + 1} of the chapters"
    elif len(questions[file].split()) < 3 or questions[file][-1] != "?":
        yield f"write a question in words into README.md, in place of `{questions[file]}`"
    minutes = re.search(
        r"\*\*It takes\*\* about (\d+) minutes for the core, and (\d+) for the exercises?"
        r"[^.;]*(?:; the deeper sections, (\d+) more)?",
        texts[0],
    )
    needed = re.search(r"\*\*You need\*\*([^;\n]*)", texts[0])
    if number in FOR_LOOKING_UP:
        if promises.get(file) != ("to look up", "–"):
            yield "end its row in README.md with `| to look up | – |`"
    elif not minutes or not needed:
        yield (
            "say in the first cell `**You need** …` and `**It takes** about 30 minutes "
            "for the core, and 20 for the exercises`"
        )
    else:
        builds_on = ", ".join(re.findall(r"\]\((\d\d)_", needed[1])) or "–"
        row = " + ".join(filter(None, minutes.groups())), builds_on
        if promises.get(file) != row:
            yield f"end its row in README.md with `| {row[0]} | {row[1]} |`, as its first cell says"
    exercise = f'\nexercise("{int(number)}.'
    practised = any(exercise in f"\n{cell.source}" for cell in notebook.cells)
    if not practised and number not in FOR_LOOKING_UP:
        yield f'write an exercise: a cell that ends with `exercise("{int(number)}.1").check(...)`'
    *_, learned = [
        -1,
        *(n for n, t in enumerate(texts) if t.startswith("## What you learned\n")),
    ]
    if learned < 0 or not all(DEEPER.search(text) for text in texts[learned + 1 :][:1]):
        yield "write a last cell that begins with `## What you learned`, or `## Deeper: …` after it"
    deeper = any(map(DEEPER.search, texts))
    if minutes and deeper != bool(minutes[3]):
        yield "say `; the deeper sections, 5 more` in the first cell if there are some, or not"
    for neighbour in paths[max(place - 1, 0) : place] + paths[place + 1 :][:1]:
        if f"({neighbour.name})" not in texts[-1]:
            yield f"write a link to {neighbour.name} into the last cell"


@each(CHAPTERS)
def test_nothing_of_a_chapter_was_forgotten(path):
    forgotten = "; ".join(omissions(path, CHAPTERS, read(path), README))
    assert not forgotten, forgotten


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("# 02 Two", "# Two", "the line `# 02 ` and the title"),
        ("**How?**", "How?", "the question under the title"),
        (
            "[02 Two]",
            "[02 Twice]",
            "a row `| [02 Two](notebooks/02_two.ipynb) | question | … |`",
        ),
        (
            "[01 One](notebooks/01_one.ipynb) | What is one? | 5 + 5 | – |\n| ",
            "",
            "number 2 of the chapters",
        ),
        ("What is two?", "?", "in words into README.md, in place of `?`"),
        ("20 + 10 | 01 |", "30 | 01 |", "with `| 20 + 10 | 01 |`"),
        ("It takes", "It is", "say in the first cell"),
        (
            "exercises.",
            "exercises; the deeper sections, 5 more.",
            "with `| 20 + 10 + 5 | 01 |`",
        ),
        (
            "(03_three.ipynb)",
            "(03_three.ipynb)\n\n## Deeper: so",
            "if there are some, or not",
        ),
        (
            'exercise("2.1")',
            'exercise("1.1")',
            'ends with `exercise("2.1").check(...)`',
        ),
        ("## What you learned", "## The end", "begins with `## What you learned`"),
        ("(03_three.ipynb)", "", "a link to 03_three.ipynb"),
    ],
)
def test_what_was_forgotten_is_said(old, new, sentence):
    readme = """| [01 One](notebooks/01_one.ipynb) | What is one? | 5 + 5 | – |
| [02 Two](notebooks/02_two.ipynb) | What is two? | 20 + 10 | 01 |"""
    sources = [
        "# 02 Two\n\n**How?** So.\n\n- **You need** [chapter 01](01_one.ipynb); a pen.\n"
        "- **It takes** about 20 minutes for the core, and 10 for the exercises.",
        'exercise("2.1").check(f)',
        "## What you learned\n\n(01_one.ipynb) (03_three.ipynb)",
    ]
    paths = [Path(name) for name in ("01_one.ipynb", "02_two.ipynb", "03_three.ipynb")]

    def said(change):
        first, code, last = map(change, sources)
        markdown = nbformat.v4.new_markdown_cell
        made = [markdown(first), nbformat.v4.new_code_cell(code), markdown(last)]
        notebook = nbformat.v4.new_notebook(cells=made)
        return list(omissions(paths[1], paths, notebook, change(readme)))

    assert said(str) == []
    assert sentence in " ".join(said(lambda text: text.replace(old, new)))


@each_notebook
def test_links_lead_somewhere(path):
    texts = [cell.source for cell in cells(read(path), "markdown")]
    text = re.sub(r"`[^`]*`", "", "\n".join(texts))  # `[&](int i)` is C++
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith("https://"):
            assert (path.parent / target).exists(), target


@each_notebook
def test_first_code_cell_imports_and_seeds_and_nothing_installs(path):
    code = [cell.source for cell in cells(read(path), "code")]
    assert "import torch" in code[0]
    assert "manual_seed(" in code[0]
    magic = "" if path.stem[:2] in RECIPES else "|^[!%]"  # torchrun
    assert not re.search(
        rf"sys\.path|pip install{magic}", "\n".join(code), re.MULTILINE
    )


@each_notebook
def test_figures_come_with_numbers(path):
    """PNG files are not compared, so a cell that draws must print or return what it drew."""
    for cell in cells(read(path), "code"):
        kinds = [kind for output in cell.outputs for kind in output.get("data", {})]
        if "image/png" in kinds:
            said = [
                o
                for o in cell.outputs
                if "text" in o or "image/png" not in o.get("data", {})
            ]
            assert said, (
                f"In [{cell.execution_count}] draws a figure without a number to compare"
            )
