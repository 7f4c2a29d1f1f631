"""Drawings, and the numbers that are printed beside them."""

import matplotlib.pyplot as plt
import pytest
import torch

from helpers.lessons import draw
from helpers.lessons.cases.case import Double


@pytest.fixture(autouse=True)
def without_a_window():
    plt.switch_backend("agg")
    plt.style.use("helpers.lessons.figures")
    yield
    plt.close("all")


def test_graph_prints_the_edges_that_autograd_recorded(capsys):
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
    arrows = [
        patch._posA_posB for patch in plt.gca().patches if hasattr(patch, "_posA_posB")
    ]
    assert len(arrows) == 3
    assert all(
        end == start
        for (_, end), (start, _) in zip(arrows, arrows[1:] + arrows[:1], strict=True)
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
    # A row of pixels, then the next.
    assert places["0"][1] == places["1"][1] > places["2"][1]


def test_travels_draws_an_arrow_for_each_element_and_counts_what_is_sent(capsys):
    gathered = torch.eye(3).repeat(3, 1)
    draw.travels({"gather": gathered, "back": gathered.T}, processes=3)
    assert (
        capsys.readouterr().out
        == "gather: 3 stay, 6 are sent\nback: 3 stay, 6 are sent\n"
    )
    for ax, passed in zip(plt.gcf().axes, (1, 3), strict=True):
        arrows = [text for text in ax.texts if getattr(text, "arrow_patch", None)]
        boxes = [patch for patch in ax.patches if isinstance(patch, plt.Rectangle)]
        assert len(arrows) == 9 and len(boxes) == 12
        senders = {(round(a.xyann[1]), a.arrow_patch.get_edgecolor()) for a in arrows}
        assert len(senders) == len({colour for _, colour in senders}) == 3
        heights = sorted({round(arrow.xyann[1], 2) for arrow in arrows})
        assert len(heights) == 3 * passed
        assert all(round(height) in (0, -1, -2) for height in heights)
