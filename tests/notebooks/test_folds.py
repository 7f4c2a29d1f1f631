"""What the folds of predictions show: JupyterLab shows the first line of a folded output."""

from tests.notebooks.test_notebooks import NOTEBOOKS, read

FOLDED = {  # chapter: the first line of each folded output, none of which holds the answer
    "00": ["slopes at 100 and at 0:"],
    "01": ["SumBackward0  of the leaf: None", "correct:       6.0"],
    "02": [
        "everything:       ['mm', 'mm', 'sum']",
        "correct: 0.69 at first, 0.28 after 10, 0.16 at the end",
        "returned: (4, 2)  bias: (2,)",
    ],
    "03": ["what PyTorch says to a return of", "correct: 3.0"],
    "04": ["the error at h = 1e-15, compared with that at h = 0.1:", "what gradcheck says at"],
    "05": ["what the two checks say of", "compared with torch.sinh:"],
    "06": [
        "FromTheNotes(3, 5, bias=False):",
        "nothing, after ten steps: nan",
        "the mean of the last ten losses:",
    ],
    "07": [
        "the block that owns each element:",
        "no tests: thread (0, 0, 0) of block (0, 0, 0) reads input[-9], but input has 48 elements",
    ],
    "11": ["the derivative of b² + b at 1: 3.0", "the same weights: True"],
}


def test_a_fold_shows_nothing_of_the_answer():
    shown = {}
    for path in NOTEBOOKS:
        for cell in read(path)[1]:
            if cell.metadata.get("jupyter", {}).get("outputs_hidden"):
                first = cell.outputs[0].get("text", "").split("\n")[0]
                shown.setdefault(path.stem[:2], []).append(first)
    assert shown == FOLDED
