"""No core uses a term before the cell that introduces it."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
INTRODUCED = {  # the chapter and the cell that say what it is
    "materialize": "03 none-raises",
    "once_differentiable": "05 c028",
    "Hessian": "05 a-hessian-times-a-vector-without-the-hes",
    "involution": "07 c002",
    "emulator": "07 predict-thread-asked",
    "template": "07 the-forward-kernel",
    "dispatcher": "08 c027",
    "schema": "08 c027",
    "fake kernel": "08 c067",
    "pybind11": "08 c039",
    "fullgraph": "09 why-compile-and-what-a-graph-break-costs",
    "graph break": "09 why-compile-and-what-a-graph-break-costs",
    "fake tensor": "09 c024",
    "vmap": "10 c002",
    "functorch": "10 c010",
    "dual number": "10 5d07b2f8",
    "tangent": "10 c022",
    "ticket": "12 c018",
    "straight-through": "13 c13-004",
    "surrogate": "13 c13-006",
    "lowered": "13 c13-m02",
    "fixed point": "13 c13-034",
    "collective": "14 c14-02",
    "all-reduce": "14 c14-04",
    "warp": "15 k15-04",
    "NVRTC": "15 count-the-instructions-machine-code",
    "loss scale": "17 gradient-underflow-in-float16-and-the-lo",
    "wrapper subclass": "18 a-matrix-that-is-never-made",
    "log-sum-exp": "20 the-backward-pass-one-number-for-each-ro",
}


def core_texts():
    """(chapter and cell, text) in reading order; heads, which look ahead, left out."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if path.name.startswith("19"):  # for looking up
            continue
        for cell in json.loads(path.read_text("utf-8"))["cells"][1:]:
            text = "".join(cell["source"])
            if cell["cell_type"] != "markdown":
                continue
            if re.match("## (What you learned|Deeper)", text):
                break
            yield f"{path.name[:2]} {cell['id']}", text


@pytest.mark.parametrize("term", INTRODUCED)
def test_a_term_is_not_used_before_it_is_introduced(term):
    using = (cell for cell, text in core_texts() if re.search(rf"\b{term}", text))
    assert next(using) == INTRODUCED[term]
