"""Writes the indexes of `helpers.lessons.index` into chapter 19 and the README.

python -m tools.which_way
"""

import nbformat

from helpers.lessons.index import (
    INDEXES,
    ROOT,
    index_of_symptoms,
    linked_matrix,
    of_messages,
    of_tasks,
)

CHAPTER = ROOT / "notebooks" / "19_which_way.ipynb"
README = ROOT / "README.md"
IN_README = {"tasks": of_tasks, "messages": of_messages}  # between comments


def written(notebook, readme):
    """The notebook, whose cells are changed, and the README, with today's indexes."""
    cells = {cell.id: cell for cell in notebook.cells}
    for groups, index in INDEXES.values():
        for group in groups:
            heading = f"### {group}\n\n"
            (cell,) = (c for c in notebook.cells if c.source.startswith(heading))
            cell.source = heading + index(group)
    before, _, _ = cells["symptoms"].source.partition("\n\n|")
    cells["symptoms"].source = f"{before}\n\n{index_of_symptoms()}"
    cells["matrix-links"].source = linked_matrix(cells)
    for name, index in IN_README.items():
        first, last = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = readme.split(first)
        readme = f"{before}{first}\n{index()}\n\n{last}{rest.split(last)[1]}"
    return notebook, readme


if __name__ == "__main__":
    notebook, readme = written(
        nbformat.read(CHAPTER, as_version=4), README.read_text(encoding="utf-8")
    )
    nbformat.write(notebook, CHAPTER)
    README.write_text(readme, encoding="utf-8")
