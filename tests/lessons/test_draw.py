"""Drawings. What is printed beside them, the notebooks compare."""

import matplotlib.pyplot as plt
import torch

from helpers.lessons import draw
from helpers.lessons.cases.case import Double


def test_nodes_of_a_graph_are_coloured_by_what_they_are():
    plt.switch_backend("agg")  # without a window
    plt.style.use("helpers.lessons.figures")
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    hidden = torch.ones(2, requires_grad=True)
    loss = (Double.apply(x * w) + x * hidden).sum()
    draw.graph(loss=loss, inputs={"x": x, "w": w})
    boxes = {
        text.get_text(): text.get_bbox_patch()
        for text in plt.gca().texts
        if text.get_text()
    }
    colours = {name: box.get_facecolor()[:3] for name, box in boxes.items()}
    assert colours["DoubleBackward"] != colours["MulBackward0"]
    assert colours["x"] == colours["w"] != colours["loss"]
    plt.close("all")
