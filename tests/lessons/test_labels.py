"""The words of figures in the language of the edition."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.text import Text

from helpers.lessons import labels

CHINESE = {"step": "步", "thread {}: row {}": "线程 {}：第 {} 行"}


@pytest.mark.parametrize(
    "label, shown",
    {
        "step": "步",
        "thread 40: row 5": "线程 40：第 5 行",
        "unknown 3": "unknown 3",
        "$10^{-3}$": "$10^{-3}$",
        "": "",
        7: 7,
    }.items(),
)
def test_a_label_is_translated_and_keeps_its_numbers(label, shown):
    assert labels.translated(label, lambda words: CHINESE.get(words, words)) == shown


def test_a_figure_says_it_in_another_font_if_there_is_one(monkeypatch):
    monkeypatch.setattr(Text, "set_text", Text.set_text)  # restored at the end
    monkeypatch.setattr(labels, "chinese_font", lambda: None)
    labels.translate_labels(CHINESE.get)
    assert plt.figure().text(0, 0, "step").get_text() == "step"
    monkeypatch.setattr(labels, "chinese_font", lambda: "DejaVu Sans")
    with plt.rc_context():
        labels.translate_labels(lambda words: CHINESE.get(words, words))
        assert plt.figure().text(0, 0, "step").get_text() == "步"
    plt.close("all")
