"""A README's pictures are figures of its notebooks: that of the cell tagged `picture-NAME`."""

import re

import nbformat

from tools.execute import PICTURES, ROOT, figures, in_one_piece


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
