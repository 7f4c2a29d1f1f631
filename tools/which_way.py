"""Writes the indexes of `helpers.lessons.index` into chapter 19 and the README.

python -m tools.which_way
"""

import re

import nbformat

from helpers.lessons.index import (
    ROOT,
    index_of_messages,
    index_of_tasks,
    linked_matrix,
    most_wanted,
)

CHAPTER = ROOT / "notebooks" / "19_which_way.ipynb"
README = ROOT / "README.md"
INDEXES = {"tasks": index_of_tasks, "messages": index_of_messages}  # by the id of their cells
BETWEEN = re.compile(r"(?<=<!-- tasks -->\n)(?s:.*?)(?=<!-- end of tasks -->)")


def written(notebook, readme):
    """The notebook, whose cells are changed, and the README's text, with today's indexes."""
    cells = {cell.id: cell for cell in notebook.cells}
    for name, index in INDEXES.items():
        cells[name].source = index()
    cells["matrix-links"].source = linked_matrix(cells)
    return notebook, BETWEEN.sub(lambda _: f"\n{most_wanted()}\n\n", readme)


if __name__ == "__main__":
    notebook, readme = written(
        nbformat.read(CHAPTER, as_version=4), README.read_text(encoding="utf-8")
    )
    nbformat.write(notebook, CHAPTER)
    README.write_text(readme, encoding="utf-8")
