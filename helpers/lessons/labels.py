"""The words of figures in the language of the edition.

The code of a chapter is the same in every edition. What a figure says is looked up when
the figure is drawn.
"""

import os
import re

import matplotlib
from matplotlib.font_manager import fontManager
from matplotlib.text import Text

FONTS = (
    "Noto Sans CJK SC",
    "Source Han Sans SC",
    "PingFang SC",
    "Microsoft YaHei",
    "WenQuanYi Zen Hei",
    "SimHei",
)
# A file to which labels go that have no translation, for `tools.execute`.
UNTRANSLATED = "EXTENDING_PYTORCH_LABELS_UNTRANSLATED"
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def chinese_font():
    """The name of an installed font with Chinese characters, or None."""
    installed = {font.name for font in fontManager.ttflist}
    return next((name for name in FONTS if name in installed), None)


def translate_labels(translate):
    """From now on, what matplotlib writes goes through `translate` first.

    Without a font for the translation, figures stay English.
    """
    font = chinese_font()
    if not font:
        return
    matplotlib.rcParams["font.family"] = [font, "DejaVu Sans"]  # for ✗ and the like
    as_given = Text.set_text

    def set_text(self, words):
        as_given(self, translated(words, translate))

    Text.set_text = set_text


def translated(words, translate):
    """A label in translation; where a message has `{}`, the label has a number."""
    if not isinstance(words, str):
        return words
    template = NUMBER.sub("{}", words)
    if translate(template) != template:
        return translate(template).format(*NUMBER.findall(words))
    shown = translate(words)
    if shown == words and os.environ.get(UNTRANSLATED):
        with open(os.environ[UNTRANSLATED], "a", encoding="utf-8") as file:
            file.write(words.replace("\n", " ") + "\n")
    return shown
