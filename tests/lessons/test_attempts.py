"""What a page says of a line of the reader's is what Python says, or that it cannot."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.lessons import drill
from helpers.lessons.drill import DRILLS

pytest.importorskip("docutils", reason="the pages are made with Sphinx")
if not shutil.which("node"):
    pytest.skip("the pages' scripts need Node.js", allow_module_level=True)

HERE = Path(__file__).parent
SITE = HERE.parents[1] / "site"
sys.path.insert(0, str(SITE))
from attempts import ASKS, SAID, TASKS, data_of_drill, names_and_line  # noqa: E402
from candidates import WHY, front_attempt  # noqa: E402
from gate import SAID as OF_GATE  # noqa: E402
from gate import WRONG as OF_DOCTOR  # noqa: E402
from gate import gate_attempt  # noqa: E402

GAP = re.compile(r"\{\w+\}")
ENGLISH = re.compile(r"\b(the|of|for|what|where|without|all|its)\b")
LINES = [number for number, one in DRILLS.items() if one.answer.startswith("lambda")]
RIGHT = [
    ("1.a", "g * (w + 1)"),
    ("1.a", "torch.add(g, g.mul(w))"),
    ("1.b", "g.expand_as(x)"),
    ("1.b", "torch.full_like(x, 1) * g"),
    ("2.a", "torch.mm(G.t(), X)"),
    ("2.a", "(G[:, :, None] * X[:, None, :]).sum(dim=0)"),
    ("2.b", "torch.sum(G, dim=(0,))"),
    ("2.b", "G.mean(axis=0) * len(G)"),
    ("2.b", "torch.ones_like(G[:, 0]) @ G"),
    ("3.a", "torch.stack([g[3], g[2], g[1], g[0]])"),
    ("3.b", "torch.cat((g[1:], g[:1]), dim=0)"),
    ("3.c", "g.reshape(2, -1).sum(0)"),
    ("3.c", "sum(g.chunk(2))"),
    ("4.a", "-(g * y) * y"),
    ("4.b", "torch.addcmul(g, g, y)"),
    ("5.a", "-torch.mul(h, g) * x.sin()"),
    ("6.a", "torch.einsum('ni,ni->i', g, x)"),
    ("10.a", "x.exp().mul(tangent)"),
    ("10.c", "float(j <= i)"),
    ("10.c", "1.0 if j < i or j == i else 0.0"),
    ("10.c", "1.0 if True and not i < j else 0.0"),
    ("13.a", "torch.where(x.abs() < 1, g, torch.zeros_like(g))"),
    ("13.a", "g * ((x > -1) & (x < 1))"),
    ("13.b", "g * z ** -2 / 3"),
    ("3.b", "torch.roll(g, shifts=-1, dims=0)"),
    ("3.a", "torch.flip(g, dims=[0])"),
    ("3.c", "sum(g.split(len(g) // 2))"),
    ("4.a", "torch.div(-1, 1 / y**2) * g"),
    ("13.a", "g.where(x.abs() < 1, 0)"),
    ("3.a", "g[[3, 2, 1, 0]]"),
    ("2.a", "G.mT @ X"),
    ("2.a", "G.transpose(0, 1) @ X"),
    ("13.a", "g.masked_fill(x.abs() >= 1, 0)"),
    ("13.a", "g * (torch.maximum(x, x.neg()) < 1)"),
    ("4.a", "g.neg() * y.clip(min=-1e9) * y"),
]
WRONG = [
    ("1.a", "g * w - g"),
    ("1.a", "w"),
    ("1.b", "g.sum()"),
    ("1.b", "torch.ones_like(x)"),
    ("2.a", "G @ X"),
    ("2.a", "(G.T @ X).T"),
    ("2.b", "G.sum(0, keepdim=True)"),
    ("2.b", "G[0]"),
    ("3.a", "g.flip(1)"),
    ("3.b", "g.roll(-1)"),
    ("3.c", "g[::2] + g[1::2]"),
    ("4.a", "-g * y ** -2"),
    ("4.a", "g * y ^ 2"),
    ("4.b", "g * torch.exp(y)"),
    ("5.b", "6 * x"),
    ("6.a", "g * x.sum(0)"),
    ("10.a", "tangent"),
    ("10.b", "x.sum()"),
    ("10.c", "1.0 if i == j else 0.0"),
    ("13.a", "g if x.abs() < 1 else 0"),
    ("13.a", "(x.abs() < 1) * 1.0"),
    ("13.a", "x.abs() < 1"),
    ("13.b", "g / 3 * z**2"),
    ("13.b", "g / (3 * z)"),
    ("2.b", "(G,)"),
    ("4.a", "True - g * y**2"),
    ("13.a", "g * ~(x > 1) - (x > 1)"),
    ("13.a", "g * (-1 < x < 1)"),
    ("13.a", "g * (x > -1 and not x > 1)"),
]
REFUSED = [
    ("1.a", "g.detach() * w + g"),
    ("1.a", "torch.zeros(3)"),
    ("1.b", "g * torch.ones(2, 3)"),
    ("2.a", "G.T.double() @ X"),
    ("2.b", "G.sum(0).data"),
    ("2.b", "G.mean(0) * len(G.data)"),
    ("3.a", "g.flip(0).add_(0)"),
    ("3.a", "[row for row in g]"),
    ("3.b", "torch.randn_like(g)"),
    ("10.b", "tangent.sum().item()"),
    ("13.a", "g.__class__"),
    ("2.b", "G.sum(keepdim=True)"),  # PyTorch raises an error in each of these
    ("3.a", "torch.flip(g, 0)"),
    ("13.a", "+(x.abs() < 1) * g"),
    ("13.a", "torch.maximum(g)"),
    ("3.c", "g.chunk(2.0)[0]"),
    ("3.c", "g[]"),
    ("13.a", "g * x.clamp()"),
    ("13.a", "(g * 1).view(-1, 3)"),  # the page has a part of what these know
    ("13.a", "g * (x > 0).sum()"),
    ("13.a", "g * x.clamp(None, 1)"),
    ("13.a", "g * x.sum(dim=(0, 0))"),
    ("13.a", "g * ((x > 0) + (x < 1))"),
]
# Lines for the front page. Their marks are Python's, too; the words behind a mark are
# what a reader can act on, beside the numbers.
FRONT = {
    "grad_output * (1 + torch.tanh(x / 2)) / 2": "✓",
    "grad_output - grad_output * torch.sigmoid(-x)": "✓",
    "grad_output * torch.exp(torch.nn.functional.logsigmoid(x))": "✓",
    "grad_output * torch.div(1, 1 + torch.exp(-x))": "✓",
    "grad_output * torch.sigmoid(x) * (1 - torch.sigmoid(x))": "✗ derivative too many",
    "grad_output * (x > 0)": "✗ That is the slope of relu.",
    "torch.sigmoid(x)": "✗ does not depend on grad_output",
    "2 * grad_output * torch.sigmoid(x)": "✗ Everywhere it is 2 times what is right.",
    "1.0001 * grad_output * torch.sigmoid(x)": "✗ Everywhere it is 1.0001 times",
    "(grad_output * torch.sigmoid(x)).sum()": "✗",
    "grad_output @ torch.sigmoid(x)": "✗ inner sizes",
    "grad_output * sigmoid(x)": "✗",  # of torch
    "banana * grad_output": "✗ this page does not know `banana`",
    "grad_output * torch.sigmoid(x": "✗ brackets: 1 opened, 0 closed",
    "grad_output * F.sigmoid(x)": "✓",
    "grad_output * torch.sigmoid(x);": "✓",
    "grad_output * math.exp(x)": "○ write `torch` in place of `math`",
    "grad_output * torch.exp(x) / 1 + torch.exp(x)": "✗ each term needs that factor",
    "grad_output * (torch.exp(x) / 1 + torch.exp(x))": "✗ needs brackets",
    "grad_output * torch.exp(-x) / (1 + torch.exp(-x))": "✗ the slope at -x",
    "grad_output * F.logsigmoid(x)": "✗ the logarithm of the slope",
    "grad_output * (torch.sigmoid(x) + 1e-10)": "✗",
    "grad_ouput * torch.sigmoid(x)": "○ Is `grad_output` meant?",
    "grad * torch.sigmoid(x)": "○ Is `grad_output` meant?",
    "grad_output × torch.sigmoid(x)": "○ write `*`",
    "grad_output / (1 + torch.exp(-x))": "✓ Far out, a step is inf",
    "grad_output * torch.logsigmoid(x)": "✗ write `F.logsigmoid`",
    "grad_output * torch.nn.sigmoid(x)": "○ not `torch.nn.sigmoid`",
    "grad_output * torch.tanh(x) / 2": "✗ at x =",
    "grad_output torch.sigmoid(x)": "○ cannot read `torch.sigmoid(x)`",
    "grad_output * torch.exp(F.logsigmoid(x))": "✓",
    "grad_output * torch.sigmod(x)": "○ Is `sigmoid` meant?",
    "grad_output * torch.sigmiod(x)": "○ Is `sigmoid` meant?",
    "torch.nan_to_num(grad_output * torch.exp(x) / (1 + torch.exp(x)), nan=1.0)": "✗",
    "None": "✗ `x` gets no gradient",
    "grad_output * max(x, 0)": "○",
    "grad_output * torch.exp(min(x, 0))": "○ and not `min`",
    "grad_output * x.detach()": "○",
    # Python takes a tuple.
    "(grad_output * torch.sigmoid(x),)": "○ one expression is asked for",
    "grad_output * torch.sigmoid(x), None": "○ one expression is asked for",
    "grad_output / (1 + e**-x)": "✗ write `torch.exp(…)`",
    "grad_output * expit(x)": "✗ write `torch.sigmoid`",
    "grad_output.mul_(torch.sigmoid(x))": "○ changes a tensor in place",
    "grad_output * torch.sigmoid(input)": "✗ write `x`",
    "grad_output / (1 + torch.e**-x)": "○ write `torch.exp(…)`",
    "grad_output * torch.sigmoid(2*x)": "✗ halve the argument",
    "grad_output * (torch.tanh(x) + 1) / 2": "✗ halve the argument",
    "grad_output * F.softplus(x)": "✗ That is softplus itself",
    "torch.sigmoid(x) * grad_output.mean()": "✗ leave out the mean",
    "grad_output * torch.exp(x - torch.logaddexp(x, torch.zeros_like(x)))": "✓",
    "grad_output * torch.where(x < 5, torch.sigmoid(x), 1)": "✗",
    "grad_output * torch.where(x < -5, 0, torch.sigmoid(x))": "✗",
    "torch.where(x > 18, grad_output, grad_output * torch.sigmoid(x))": "✗",
    "grad_output * torch.where((x > 50) & (x < 300), 0.5, torch.sigmoid(x))": "✗",
    "grad_output * x.sigmoid": "✗ without its parentheses",
    "grad_output *": "○",
    "grad_output * torch.special.expit(x)": "✓",
    "grad_output * torch.exp(torch.minimum(x, x.neg())) / (1 + (-x.abs()).exp())": "✗",
    "grad_output * torch.sinh(x)": "✗",
    "torch.einsum('ij,ij->ij', grad_output, torch.sigmoid(x))": "○ and not `einsum`",
}
# Python finds a derivative of these that is nan, infinite, or 0 at a kink, which the page
# says that it does not see.
ONCE = [
    "grad_output - grad_output / (1 + torch.exp(x))",
    "grad_output / (1 + 1 / torch.exp(x))",
    "grad_output * torch.sqrt(torch.sigmoid(x) ** 2)",
    "grad_output * torch.exp(x - F.softplus(x))",
    "grad_output * (torch.exp(x) / (1 + torch.exp(x))).nan_to_num(1.0)",
    "torch.where(x > 20, grad_output, grad_output * x.exp() / (x.exp() + 1))",
    "grad_output * torch.exp(x.clamp(max=0)) / (1 + torch.exp(-x.abs()))",
]


def said_by_a_page(lines, folder="notebooks"):
    asked = {number: data_of_drill(number, folder) for number in LINES}
    asked |= {"front": front_attempt(folder), "gate": gate_attempt(folder)}
    scripts = [str(SITE / "static" / f"{n}.js") for n in ("expression", "attempts")]
    handed = {"scripts": scripts, "lines": lines, "asked": asked}
    command = ["node", HERE / "attempts.cjs"]
    given = json.dumps(handed)
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, check=True
    )
    return [" ".join(said) for said in json.loads(done.stdout)]


def said_by_python(number, line):
    names = ", ".join(names_and_line(drill(number).answer)[0])
    return drill(number).verdict(drill(number).made(f"lambda {names}: {line}"))


def test_the_table_of_drills_is_judged_alike():
    lines = [
        (number, source)
        for number in LINES
        for source in (drill(number).answer, *drill(number).wrong)
    ]
    expected = [drill(number).verdict(drill(number).made(one)) for number, one in lines]
    assert said_by_a_page(lines) == expected


def test_other_lines_are_judged_alike_or_refused():
    refused = 0
    said = said_by_a_page(RIGHT + WRONG)
    for (number, line), page in zip(RIGHT + WRONG, said, strict=True):
        python = said_by_python(number, line)
        assert python[0] == ("✓" if (number, line) in RIGHT else "✗"), (line, python)
        refused += page[0] == "○" and (number, line) in RIGHT
        if page[0] != "○" and "raises" not in python:
            assert page == python, line
        elif page[0] != "○":  # an error is told in the page's own words
            assert page[0] == "✗" and page != python, line
    assert refused <= 4
    assert [page for page in said[len(RIGHT) :] if page[0] == "○"] == []


def test_what_only_the_course_can_run_is_refused():
    for page, (_, line) in zip(said_by_a_page(REFUSED), REFUSED, strict=True):
        assert page.startswith("○") and "run it in the course" in page, line
        assert "meant?" not in page, line  # of a name that it knows
    ((unfinished,), (unknown,)) = (
        said_by_a_page([("4.a", line)]) for line in ("-g * y**", "-g / x**2")
    )
    assert unfinished == "○ 4.a: the line ends where something must follow."
    assert (
        unknown
        == "○ 4.a: this page does not know `x`. It knows `g`, `y`, `torch`, `F`."
    )
    untouched = said_by_a_page([("1.a", "..."), ("1.a", " ")])
    assert untouched == ["○ 1.a: not attempted yet"] * 2


def test_the_front_page_marks_lines():
    pages = said_by_a_page([("front", line) for line in FRONT])
    said = dict(zip(FRONT, pages, strict=True))
    for line, expected in FRONT.items():
        mark, _, words = expected.partition(" ")
        assert said[line][0] == mark and words in said[line], line
    (patched,) = (text for line, text in said.items() if "nan=1.0" in line)
    assert "makes nan" not in patched
    assert "Everywhere" not in said["grad_output * (torch.sigmoid(x) + 1e-10)"]


def test_the_front_page_says_what_it_does_not_see():
    said = said_by_a_page([("front", line) for line in ONCE])
    unseen = (
        "can be differentiated again, this page cannot see",
        "derivative may be nan",
    )
    assert all(text[0] == "✓" and any(map(text.__contains__, unseen)) for text in said)


def test_the_gate_marks_lines():
    right = [
        "d_act * s + d_act * gate * s * (1 - s)",
        "grad_output * up * s * (1 + gate * (1 - s))",
        "d_act * (s + gate * torch.sigmoid(gate) * torch.sigmoid(-gate))",
    ]
    for folder, said in OF_GATE.items():
        pages = said_by_a_page([("gate", line) for line in OF_DOCTOR], folder)
        for page, line in zip(pages, OF_DOCTOR, strict=True):
            why = said["forgets"].get(line, said["why"])
            assert page[0] == "✗" and page.endswith(why)
        pages = said_by_a_page([("gate", line) for line in right], folder)
        assert pages == [f"✓ {said['right']}"] * 3
    # One of the table in other words, and others.
    wrong = ["s * d_act", "d_act * (1 - s)", "up * s", "d_act * act"]
    pages = said_by_a_page([("gate", line) for line in wrong])
    stored, other, apart, absent = pages
    assert [page for page in pages if "each term needs that factor" in page] == [apart]
    assert "not saved it" in absent
    why = OF_GATE["notebooks"]["why"]
    missing = "what comes through `sigmoid(gate)` is missing"
    assert missing in stored and other[0] == "✗" and why not in other
    assert " at gate = 0.6213, up = -1.205, grad_output = -0.6137, but" in other


def test_each_edition_names_what_people_write():
    for folder in SAID:
        said = said_by_a_page([("front", line) for line in WHY], folder)
        for page, (line, why) in zip(said, WHY.items(), strict=True):
            assert page[0] == "✗" and page.endswith(why[folder]), line


def test_each_edition_has_the_sentences():
    english, chinese = SAID.values()
    assert english.keys() == chinese.keys()
    for key, sentence in english.items():
        gaps = (set(GAP.findall(text)) for text in (sentence, chinese[key]))
        assert next(gaps) == next(gaps), key
    lines = [(number, drill(number).answer) for number in LINES]
    assert all(said.startswith("✓ ") for said in said_by_a_page(lines, "zh"))


def test_each_task_in_english_is_translated():
    sources = [
        "".join(cell["source"])
        for chapter in sorted((SITE.parent / "zh").glob("*.ipynb"))
        for cell in json.loads(chapter.read_bytes())["cells"]
    ]
    tasks = {task for source in sources for *_, task in ASKS.findall(source)}
    assert set(filter(ENGLISH.search, tasks)) == TASKS.keys()
