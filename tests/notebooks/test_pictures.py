"""A README's pictures are figures of its notebooks: that of the cell tagged `picture-NAME`."""

import base64
import io
import re
import sys

import nbformat
import numpy
import pytest
from matplotlib import image

from tools.execute import PICTURES, ROOT, figures, in_one_piece

sys.path.insert(0, str(ROOT / "site"))
from panels import below_each_other  # noqa: E402


def test_each_picture_is_the_figure_of_its_notebook():
    shown = [
        name
        for readme in ("README.md", "README.zh.md")
        for name in re.findall(
            r"\(\.github/pictures/(\S+?)\)", (ROOT / readme).read_text("utf-8")
        )
    ]
    given = figures()
    assert sorted(given) == sorted(path.name for path in PICTURES.iterdir())
    assert {*shown} == {*given}
    stale = [name for name in given if (PICTURES / name).read_bytes() != given[name]]
    assert stale == [], "make them again: python -m tools.execute"


def test_one_text_that_was_printed_in_pieces_is_stored_in_one():
    def stream(name, text):
        return nbformat.v4.new_output("stream", name=name, text=text)

    figure = nbformat.v4.new_output("display_data", data={"text/plain": "figure"})
    pieces = [
        stream("stdout", "a"),
        stream("stdout", "b"),
        figure,
        figure,
        stream("stdout", "c"),
    ]
    whole = [stream("stdout", "ab"), figure, figure, stream("stdout", "c")]
    assert list(in_one_piece(pieces + [stream("stderr", "d")])) == [
        *whole, stream("stderr", "d")
    ]  # fmt: skip


def in_panels():
    """(cell, its PNG, where its pages cut it for a phone) of both editions."""
    for file in sorted(ROOT.glob("notebooks/*.ipynb")) + sorted(
        ROOT.glob("zh/*.ipynb")
    ):
        for cell in nbformat.read(file, 4).cells:
            for tag in cell.metadata.get("tags", ()):
                if tag.startswith("panels-"):
                    (png,) = (
                        o.data["image/png"]
                        for o in cell.outputs
                        if "image/png" in o.get("data", {})
                    )
                    name = f"{file.parent.name}/{cell.id}"
                    yield pytest.param(png, tag.split("-")[1:], id=name)


@pytest.mark.parametrize("png, cuts", [*in_panels()])
def test_no_panel_is_cut_for_a_phone(png, cuts):
    pixels = image.imread(io.BytesIO(base64.b64decode(png)))
    wide = pixels.shape[1]
    below_each_other(pixels, [int(cut) * wide // 1000 for cut in cuts])


def test_panels_stand_one_below_the_other():
    pixels = numpy.zeros((2, 5, 4))
    pixels[1, 0], pixels[1, 3:] = 1, 2
    made = below_each_other(pixels, [2])
    assert made[:, :, 0].tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 2, 2]]
    with pytest.raises(ValueError, match="column 3 is not blank"):
        below_each_other(pixels, [3])
