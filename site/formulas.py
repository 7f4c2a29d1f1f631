"""Formulas are set while the pages are made: no page brings MathJax, and none needs scripts."""

import json
import re
from html import unescape

from node import SITE, node

FONTS = (
    SITE / "node_modules" / "mathjax" / "es5" / "output" / "chtml" / "fonts" / "woff-v2"
)
# What Sphinx writes for MathJax to find.
MARKED = re.compile(r"\\\((.+?)\\\)(?=</span>)|\\\[(.+?)\\\](?=</div>)", re.DOTALL)


def set_formulas(body, fonts):
    """The body of a page, with its formulas set, and their style; `fonts`: where fonts are."""
    formulas = [
        [unescape(found[1] or found[2]), found[1] is None]
        for found in MARKED.finditer(body)
    ]
    answer = json.loads(node("formulas.cjs", fonts=fonts, formulas=formulas))
    html, style = iter(answer["html"]), re.sub(r"\s+", " ", answer["css"])
    return MARKED.sub(lambda _: next(html), body), f"<style>{style}</style>"
