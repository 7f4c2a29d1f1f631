"""What a finding and a report hold, and how they are shown."""

import html
import json
import re

import pytest
import torch

from helpers.doctor import WrongGradientError, examine
from helpers.doctor.report import SEVERITIES
from helpers.doctor.said import Said, listed
from helpers.lessons.cases import PATIENTS
from helpers.lessons.cases.case import function, vector
from tests.doctor.common import ones

HALF = PATIENTS["HalfSquare"].fn


def test_evidence_is_measured():
    """The numbers at the worst element and the Jacobians, against PyTorch's own derivative."""
    (x,) = vector()
    found = examine(HALF, x, lines=False).findings[0]
    assert found.code == "scaled" and found.evidence["ratio"] == pytest.approx(0.5)
    given, expected = found.evidence["given"], found.evidence["expected"]
    assert given == pytest.approx(0.5 * expected) and expected != 0
    jacobian = torch.autograd.functional.jacobian(torch.square, x)
    torch.testing.assert_close(found.evidence["expected_jacobian"], jacobian)
    torch.testing.assert_close(found.evidence["given_jacobian"], jacobian / 2)
    assert found.evidence["angle"] == "0°"


def exp_of_norms(x):
    return x.square().sum(1).sqrt().exp() * x[:, 0]


@pytest.mark.parametrize(
    ("forward", "shape"),
    [
        (lambda x: x.sin() * x.sum(), (3, 4)),
        (lambda x: torch.sin(50 * x), (4,)),
        (lambda x: (x.float().sin() * 2).double(), (4,)),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x) * x[:, :5], n=8), (2, 8)),
        (exp_of_norms, (5, 3)),
        (lambda x: 1e8 + x.exp(), (4,)),
    ],
)
def test_what_is_expected_is_the_derivative(forward, shape):
    """By differences or by autograd, against the Jacobian in closed form, in the finding."""
    x = torch.linspace(0.2, 1.4, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
    found = examine(function(forward, lambda g, x: x * g.sum()), x, lines=False).findings[0]
    assert found.severity == "error"
    jacobian = torch.autograd.functional.jacobian(forward, x).reshape(-1, x.numel())
    limit = 1e-6 if "float" not in str(forward) and forward(x).max() < 1e7 else 1e-3
    torch.testing.assert_close(found.evidence["expected_jacobian"], jacobian, rtol=1e-3, atol=limit)


def test_operations_are_counted():
    """Two products of 3 · 5 · 4 multiplications and as many additions, whoever asks."""
    seen = {"operations": 240, "for all inputs": 240}
    assert PATIENTS["NeverAsks"].examine(lines=False).findings[0].evidence == seen


def test_both_slopes_of_a_kink_are_seen():
    (note,) = examine(torch.abs, torch.tensor([1.0, 0.0], dtype=torch.float64)).findings
    assert (note.code, note.severity) == ("kink", "note")
    assert note.evidence["at"] == [1] and str(note.evidence["slopes"]) == "-1 and 1"


def test_names_of_inputs_and_outputs():
    def fn(first, *rest, scale):
        return {"a": [first.detach() * scale, rest[1].detach()]}

    report = examine(fn, ones(2), ones(2), ones(2), scale=3 * ones(2), lines=False)
    named = {(f.input, f.output) for f in report.findings}
    assert named == {("first", "`output['a'][0]`"), ("rest[1]", "`output['a'][1]`")}
    module = PATIENTS["ModuleWithTwoOutputs"].examine(lines=False)
    assert module.findings[0].input == "offset"


def test_what_is_said_is_data():
    """A finding says as data what its sentence is made of."""
    found = PATIENTS["MasksTwice"].examine(lines=False).findings[0]
    assert (found.code, found.input) == ("factor-missing", "x")
    gaps = found.sentence.gaps
    assert gaps["what"] == "`y`" and gaps["lacks"] in found.message
    told = json.loads(PATIENTS["MeanOverBatch"].examine().to_json())["findings"][0]
    assert told["sentence"]["gaps"]["n"] == 3 and "1/3 of what it should be" in told["message"]
    what = told["clause"]["what"]
    assert what["template"] == "right if: {what}" and "mean" in what["gaps"]["what"]["gaps"]["old"]
    assert told["change"].startswith("right if: `") and told["place"].startswith("line ")


def test_a_translator_may_be_passed_in():
    """It is asked for templates, also for those of clauses, and never for what fills a gap."""
    german = {
        "error": "Fehler",
        "{n} error": "{n} Fehler",
        "The gradient of {x} {what}.{may}": "Der Gradient von {x} {what}.{may}",
        "is right in part: {where}, it {how}": "stimmt zum Teil: {where} ist er {how}",
        "where {what} is below 0": "wo {what} unter 0 liegt,",
        "is zero": "null",
        "look at: {remedy}": "siehe: {remedy}",
        "masks, branches and bounds, and the formula there": "Masken, Zweige und Grenzen",
    }
    report = PATIENTS["LeakyReLU"].examine(lines=False)
    text = report.text(lambda template: german.get(template, template))
    first = "error (partly-right): The gradient of `x` is right in part: where `x` is below 0, it"
    assert first in str(report)
    for words in (
        "LeakyReLU: 1 Fehler\n",
        "Fehler (partly-right): Der Gradient von `x` stimmt zum Teil: wo `x` unter 0 liegt, ist er",
        "siehe: Masken, Zweige und Grenzen\n",
    ):
        assert words in text, text
    assert "siehe: Masken" in report.html(lambda template: german.get(template, template))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Said("{a} and {b}", a=1, b=Said("no {c}", c="c")), "1 and no c"),
        (Said("{1} of {0}", **{"0": 2, "1": 3}), "3 of 2"),
        (Said("a set {x}"), "a set {x}"),  # without gaps, braces are braces
        (listed(["{x}", Said("no {c}", c=3)], " or "), "{x} or no 3"),
        (listed([1, 2, 3], last=" and "), "1, 2 and 3"),
        (listed([]), ""),
    ],
)
def test_a_template_is_filled(made, words):
    assert str(made) == words and made == Said(made.template, **made.gaps)
    assert made != Said(made.template, more=1, **made.gaps)


def test_a_report_is_html_in_a_notebook_and_the_same_text_elsewhere():
    bad = examine(HALF, *vector(), lines=False)
    assert repr(bad) == str(bad)
    assert str(bad).startswith("HalfSquare: 1 error\n  error (scaled): ")
    page = bad._repr_html_()
    assert (
        re.search("<code[^>]*>x</code>", page) and page.count("<div") == page.count("</div>") == 2
    )
    assert SEVERITIES["error"] in page and SEVERITIES["note"] not in page
    shown = re.sub(r"<div[^>]*>|<br>", " ", page)
    text = html.unescape(re.sub(r"<[^>]+>", "", shown))
    assert text.split() == str(bad).replace("`", "").split()
    assert "&lt;lambda&gt;" in examine(lambda x: x.detach(), ones(2))._repr_html_()


def test_names_are_set_as_code():
    page = PATIENTS["SavesANumber"].examine(lines=False)._repr_html_()
    assert re.search(r"<code[^>]*>(ctx\.)?save_for_backward</code> was handed", page)


def test_numbers_that_differ_look_different():
    off = function(lambda x: x * x, lambda g, x: g * 2.0004 * x)
    seen = str(examine(off, *vector(), lines=False)).split("seen: ")[1]
    given, expected = (re.search(f"{word} (\\S+),", seen)[1] for word in ("given", "expected"))
    assert given != expected and "ratio 1.0" in seen


def test_what_is_wrong_can_be_raised():
    good, bad = examine(torch.sin, ones(2)), examine(HALF, *vector(), lines=False)
    assert good.ok and good.raise_if_wrong() is good and "nothing found" in str(good)
    with pytest.raises(WrongGradientError, match="multiplied by 0.5"):
        bad.raise_if_wrong()
    with pytest.raises(TypeError, match="fn must be callable, got int"):
        examine(3, ones(2))
