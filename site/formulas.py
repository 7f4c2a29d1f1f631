"""Formulas are set while the pages are made: no page brings MathJax, and none needs scripts."""

import json
import re
from html import unescape

from node import SITE, node

FONTS = (
    SITE / "node_modules" / "mathjax" / "es5" / "output" / "chtml" / "fonts" / "woff-v2"
)
# What Sphinx writes for MathJax to find.
MARKED = re.compile(r'(?<=nohighlight">)\s*(?:\\\((.+?)\\\)|\\\[(.+?)\\\])', re.DOTALL)
# A formula that is too wide may go on in the next line after a quad or two.
QUAD = re.compile(
    r'<mjx-mstyle><mjx-mspace style="width: [12]em;"></mjx-mspace></mjx-mstyle>'
)
# No line begins with the comma that follows a formula.
FOLLOWED = re.compile(
    r'<span class="math(?:(?!</span>).)+</span>[,.;:)?，。、；：）]+', re.DOTALL
)


def set_formulas(body, fonts):
    """The body of a page, with its formulas set, and their style; `fonts`: where fonts are."""
    formulas = [
        [unescape(found[1] or found[2]), found[1] is None]
        for found in MARKED.finditer(body)
    ]
    answer = json.loads(node("formulas.cjs", fonts=fonts, formulas=formulas))
    html, style = iter(answer["html"]), re.sub(r"\s+", " ", answer["css"])
    body = MARKED.sub(lambda _: QUAD.sub(r"\g<0><wbr>", next(html)), body)
    body = FOLLOWED.sub(r'<span class="followed">\g<0></span>', body)
    return body, f"<style>{style}</style>"
