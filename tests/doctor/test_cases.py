"""The doctor against the cases: what it says of whom, and which line it names."""

import ast
import functools
import re
from dataclasses import is_dataclass, replace
from unittest import mock

import pytest
import torch

from helpers.doctor import examine, words
from helpers.doctor.report import TEXTS, what_was
from helpers.lessons.cases import BROKEN, HEALTHY, layers
from helpers.lessons.judge.source import made_of, source_of
from helpers.lessons.language import VARIABLE, spaced, translation
from tests.doctor.common import errors
from tests.doctor.today import TODAY
from tests.lessons.test_chinese import BESIDE_CODE, BLANK, english

EVERY = BROKEN + HEALTHY + TODAY
ALL = [pytest.param(c, id=f"{c.code or 'right'}: {c.name}") for c in EVERY]
SLIPS = [pytest.param(c, id=c.name) for c in BROKEN if " -> " in c.name and c.line]
NOT_FOR_GRADCHECK = {
    "double-backward-wrong",
    "few-digits",
    "needs-input-grad-wrong",
    "not-linear",
}


def serious(report):
    """The errors, or the warnings where there is none."""
    return errors(report) or [f for f in report.findings if f.severity == "warning"]


# One examination is read in both languages, which saves 200 seconds: each sentence that it
# is made of stands there in English and in Chinese.
BOTH = "\1{}\2{}\3"
INNERMOST = re.compile("\1([^\1-\3]*)\2([^\1-\3]*)\3")
ENGLISH, CHINESE = r"\1", r"\2"


def read(found, language):
    """A report, a finding or a part of one, in this language."""
    if isinstance(found, str):
        read_once = INNERMOST.sub(language, found)
        return found if read_once == found else read(read_once, language)
    if isinstance(found, list | tuple):
        return type(found)(read(one, language) for one in found)
    if isinstance(found, dict):
        return {key: read(value, language) for key, value in found.items()}
    if is_dataclass(found):
        return replace(found, **read(vars(found), language))
    return found


@functools.cache  # by the method, for a case has no hash
def examined(examine, lines):
    def in_both(sentence):
        return BOTH.format(sentence, translation(sentence))

    with (
        mock.patch.dict("os.environ", {VARIABLE: "zh"}),
        mock.patch.object(words, "translate", in_both),
    ):
        return examine(lines=lines)


def report_of(case, language=ENGLISH):
    looks = case.line is not None or case.first is not None
    lines = case.options.get("lines", looks)
    return read(examined(case.examine, lines), language)


@pytest.mark.parametrize("case", ALL)
def test_what_is_said(case):
    report = report_of(case)
    found = serious(report)
    codes = list(dict.fromkeys(finding.code for finding in found))
    due = f"due is {case.codes or 'nothing'}: is its row above others that fit?"
    assert codes == case.codes.split(), f"{due}\n{report}"
    notes = [finding.code for finding in report.findings if finding.severity == "note"]
    assert case.note is None or case.note in notes, str(report)
    text = " ".join(str(report).split())
    assert all(words in text for words in case.says), text
    assert not any(words in text for words in case.never), text
    assert not any(f.meant and f.meant in f.message for f in found), text
    if case.line is not None:
        assert found[0].change and case.line in found[0].change, text
    if case.first is not None:
        assert case.first in found[0].first_wrong, text


@pytest.mark.parametrize("case", ALL)
def test_it_is_said_in_chinese(case, monkeypatch):
    monkeypatch.setenv(VARIABLE, "zh")
    monkeypatch.setattr(words, "spaced", spaced)
    report = report_of(case, CHINESE)
    said = [line for finding in report.findings for line in finding.lines()]
    said = "\n".join(map(words.finished, [*said, *what_was(report.judged)]))
    left = list(english(said))
    assert not left, f"{left}: translate it, or put code into backticks\n{said}"
    assert not BLANK.search(said) and not BESIDE_CODE.search(said), said


def test_every_code_has_a_case_and_every_case_a_code():
    # What ends a process, and what has no seconds left, is no case.
    differ = {case.code for case in BROKEN + HEALTHY if case.code} ^ set(TEXTS)
    differ -= {"crashed", "stopped-looking"}
    if not hasattr(torch.autograd.function.FunctionCtx, "input_grad_buffers"):
        differ -= {"another-user"}  # its case needs torch 2.15
    assert not differ, f"write a case, or a cause, for {differ}"
    assert len({case.name for case in BROKEN}) == len(BROKEN)


class Change(ast.NodeTransformer):
    """What the doctor says, done in the source."""

    def __init__(self, found):
        self.line, self.done = found.line, 0
        self.old = ast.unparse(ast.parse(found.old).body[0])
        self.new = ast.parse(found.new).body[0]

    def generic_visit(self, node):
        here = getattr(node, "lineno", None) == self.line
        if here and ast.unparse(node) == self.old:
            self.done += 1
            return self.new.value if isinstance(node, ast.expr) else self.new
        return super().generic_visit(node)


@pytest.mark.parametrize("case", SLIPS)
def test_what_is_said_to_stand_there_makes_the_gradient_right(case):
    if case.code not in NOT_FOR_GRADCHECK:
        assert case.gradcheck()
    tree, done = ast.parse(source_of(case.fn)), set()
    for found in errors(report_of(case)):
        if not found.old:
            return  # a change of another kind, such as an order of lines
        if (found.line, found.old) not in done:
            done.add((found.line, found.old))
            change = Change(found)
            tree = change.visit(tree)
            assert change.done == 1, str(found)
    source = ast.unparse(ast.fix_missing_locations(tree))
    cured = replace(case, fn=made_of(source, vars(layers), case.fn.__name__))
    assert cured.gradcheck() is None


ONLY_ON_A_CPU = {"numpy-detour", "output-detached", "ReadsMemory", "OneOfMany"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", BROKEN)
def test_the_same_is_found_on_cuda(case):
    if case.name in ONLY_ON_A_CPU:
        pytest.skip("made for a CPU")
    fn = case.fn.cuda() if isinstance(case.fn, torch.nn.Module) else case.fn
    inputs = (v.cuda() if isinstance(v, torch.Tensor) else v for v in case.inputs())
    report = examine(fn, *inputs, lines=False, **case.options)
    assert report.findings[0].code == case.code, str(report)
