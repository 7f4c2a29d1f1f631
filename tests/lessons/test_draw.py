"""Drawings, and the numbers that are printed beside them."""

import matplotlib.pyplot as plt
import pytest
import torch
from torch.autograd import Function

from helpers.lessons import draw, timeline


@pytest.fixture(autouse=True)
def without_a_window():
    plt.switch_backend("agg")
    plt.style.use("helpers.lessons.figures")
    yield
    plt.close("all")


def test_graph_prints_the_edges_that_autograd_recorded(capsys):
    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad_output):
            return 2 * grad_output

    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    hidden = torch.ones(2, requires_grad=True)
    loss = (Double.apply(x * w) + x * hidden).sum()
    draw.graph(loss=loss, inputs={"x": x, "w": w})
    assert capsys.readouterr().out.splitlines() == [
        "loss → SumBackward0",
        "SumBackward0 → AddBackward0",
        "AddBackward0 → DoubleBackward, MulBackward0 #2",
        "DoubleBackward → MulBackward0",
        "MulBackward0 → x, w",
        "MulBackward0 #2 → x, AccumulateGrad",
    ]
    boxes = {text.get_text(): text.get_bbox_patch() for text in plt.gca().texts}
    colours = {name: box.get_facecolor()[:3] for name, box in boxes.items()}
    assert colours["DoubleBackward"] != colours["MulBackward0"]
    assert colours["x"] == colours["w"] != colours["loss"]


def test_ring_names_each_object_and_points_from_each_to_the_next(capsys):
    draw.ring(("output", "grad_fn"), ("node", "ctx"), ("ctx", "result"), title="A ring")
    assert capsys.readouterr().out == "output → node → ctx → output\n"
    texts = {text.get_text(): text.get_position() for text in plt.gca().texts}
    assert {"output", "grad_fn", "node", "ctx", "result"} >= set(texts)
    arrows = [patch._posA_posB for patch in plt.gca().patches if hasattr(patch, "_posA_posB")]
    assert len(arrows) == 3
    assert all(
        end == start for (_, end), (start, _) in zip(arrows, arrows[1:] + arrows[:1], strict=True)
    )


def test_owners_are_drawn_beside_one_another_and_counted(capsys):
    draw.owners({"one": [[0, 1], [2, 3]], "four": [[0, 0], [0, 0]]})
    assert capsys.readouterr().out.splitlines() == [
        "one: 1 of 4 elements for each thread",
        "four: 4 of 4 elements for each thread",
    ]
    one, four = plt.gcf().axes
    assert [text.get_text() for text in one.texts] == ["0", "1", "2", "3"]
    assert [text.get_text() for text in four.texts] == ["0"] * 4
    colours = {patch.get_facecolor() for patch in one.patches}
    assert len(colours) > 1 == len({patch.get_facecolor() for patch in four.patches})
    places = {text.get_text(): text.get_position() for text in one.texts}
    assert places["0"][1] == places["1"][1] > places["2"][1]  # a row of pixels, then the next


def test_time_line_draws_and_prints_each_event(capsys):
    events = [("2017-01-19", "a", "first"), ("2020-02-03", "b", "second")]
    timeline.draw(events)
    assert capsys.readouterr().out == "2017-01-19  a       first\n2020-02-03  b       second\n"
    assert [text.get_text() for text in plt.gca().texts] == ["a  first", "b  second"]
