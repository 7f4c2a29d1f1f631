"""A slip in right code: its name, and the line that undoes it."""

import ast

import pytest
import torch

from helpers.doctor import examine
from helpers.doctor.line.edits import RIGHT_IF, STANDS
from tests.doctor.cases import errors, made
from tests.doctor.layers import HEAD, layers

LAYERS = layers()
SLIPS = [
    pytest.param(name, *slip, id=f"{name}: {slip[0]} -> {slip[1]}"[:60].replace("\n", " "))
    for name, (_, _, slips) in LAYERS.items()
    for slip in slips
]
HARMLESS = {"double-backward-refused", "needs-input-grad-ignored"}
NOT_FOR_GRADCHECK = {  # right for the given arguments, after the engine, for unit vectors
    "arguments-ignored", "double-backward-wrong", "engine-sums", "few-digits", "not-linear",
    "needs-input-grad-wrong",
}  # fmt: skip


def gradcheck(layer, inputs):
    return torch.autograd.gradcheck(layer.apply, inputs, fast_mode=True)


def slip(name, old, new):
    """The source with the slip, the inputs, and the numbers of the lines that differ."""
    text, inputs, _ = LAYERS[name]
    assert text.count(old) == 1
    wrong = HEAD + text.replace(old, new)
    before, after = (HEAD + text).splitlines(), wrong.splitlines()
    same = next(k for k, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
    last = next(
        k for k, (a, b) in enumerate(zip(before[::-1], after[::-1], strict=False)) if a != b
    )
    return wrong, inputs(), range(same + 1, max(len(after) - last, same + 1) + 1)


@pytest.mark.parametrize("name", LAYERS)
def test_the_layers_are_right(name):
    text, inputs, _ = LAYERS[name]
    layer = made(HEAD + text)
    report = examine(layer, *inputs())
    assert all(f.code in HARMLESS for f in report.findings), str(report)
    assert gradcheck(layer, inputs())


def line_of(finding):
    return finding.clause.place.gaps["line"]


class Change(ast.NodeTransformer):
    """What the doctor says, done in the source."""

    def __init__(self, finding):
        what = finding.clause.what.gaps["what"].gaps
        self.new, old = (ast.parse(what[name]).body[0] for name in ("new", "old"))
        self.line, self.old, self.done = line_of(finding), ast.unparse(old), 0

    def generic_visit(self, node):
        if getattr(node, "lineno", None) == self.line and ast.unparse(node) == self.old:
            self.done += 1
            return self.new.value if isinstance(node, ast.expr) else self.new
        return super().generic_visit(node)


def undone(text, findings):
    """The source with all changes of these findings, or None if one is of another kind."""
    tree, known = ast.parse(text), set()
    for finding in findings:
        what = finding.clause and finding.clause.what
        if not what or (what.template, what.gaps["what"].template) != (RIGHT_IF, STANDS):
            return None
        if finding.clause not in known:
            known.add(finding.clause)
            change = Change(finding)
            tree = change.visit(tree)
            assert change.done == 1, finding
    return ast.unparse(ast.fix_missing_locations(tree))


@pytest.mark.parametrize(("name", "old", "new", "codes", "said"), SLIPS)
def test_a_slip_is_named_and_undoing_what_is_said_makes_the_gradient_right(
    name, old, new, codes, said
):
    text, inputs, lines = slip(name, old, new)
    layer = made(text)
    codes = {codes} if isinstance(codes, str) else codes
    if not codes & NOT_FOR_GRADCHECK:
        with pytest.raises(Exception):  # noqa: B017 (whatever it is)
            gradcheck(layer, inputs)
    report = examine(layer, *inputs, lines=said is not None)
    assert report.findings[0].code in codes, str(report)
    if said is None:
        return
    found = errors(report)
    assert found[0].change and said in found[0].change, found[0]
    assert not said or line_of(found[0]) in lines, found[0].place
    right = undone(text, found)
    if right and found[0].code not in NOT_FOR_GRADCHECK:
        assert gradcheck(made(right), inputs)
