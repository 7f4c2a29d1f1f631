"""What the fold of a prediction shows: JupyterLab shows the first line of a folded output."""

from tests.notebooks.test_notebooks import each_notebook, read


def folded(code):
    """(source, first line of the output) of each cell whose output is folded."""
    for cell in code:
        if cell.metadata.get("jupyter", {}).get("outputs_hidden"):
            yield cell.source, cell.outputs[0].get("text", "").split("\n")[0].strip()


@each_notebook
def test_a_fold_shows_nothing_that_was_computed(path):
    """So the answer cannot stand there: the line is printed as it stands in the cell."""
    for source, line in folded(read(path)[1]):
        assert line and line in source, f"print a heading before {line!r}, in words of the cell"
