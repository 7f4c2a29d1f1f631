"""Expressions that are missing, or stand in the place of another; and state that is not on ctx."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import Function

from helpers.doctor import examine
from helpers.doctor.changes import Change
from helpers.doctor.expressions import groups, stacked
from helpers.doctor.repair import Known, Repair, expressed, length
from tests.common import random
from tests.doctor.test_doctor_edits import errors, made

HEAD = """
import torch
from torch.autograd import Function

def unit(t):
    return t / t.norm(dim=-1, keepdim=True)

def through_unit(t, g):
    u = unit(t)
    return (g - u * (g * u).sum(-1, keepdim=True)) / t.norm(dim=-1, keepdim=True)

class Layer(Function):
    @staticmethod
    def forward(ctx, x, w, a):
"""
BACKWARD = "\n\n    @staticmethod\n    def backward(ctx, g):\n"
MISSING = {  # what is wrong: (forward, backward, what is said)
    "the slope of another function": (
        """        y = x.neg().exp_().neg_().exp_()
        ctx.save_for_backward(y, w)
        return y * w""",
        """        y, w = ctx.saved_tensors
        return g * w * y * (1 - y), g * y, None""",
        "-`y.log()` stood in place of `1 - y`",
    ),
    "all but the diagonal of a softmax": (
        """        p = x.softmax(-1)
        ctx.save_for_backward(p, w)
        return p * w""",
        """        p, w = ctx.saved_tensors
        gp = g * w
        return gp * p * (1 - p), g * p, None""",
        "`p * (gp - (gp * p).sum(-1, keepdim=True))` stood in place of `gp * p * (1 - p)`",
    ),
    "a number": (
        """        ctx.save_for_backward(x, w)
        ctx.a = a
        return (x * w) / (a - 1)""",
        """        x, w = ctx.saved_tensors
        a = ctx.a
        parts = torch.stack([g * w, g * x / (a - 1)])
        return parts[0], parts[1], None""",
        "`parts[0] / (a - 1)` stood",
    ),
    "a factor in each round of a loop": (
        """        ctx.save_for_backward(x, w)
        ends = 0, 1, x.shape[1]
        return sum(x[:, a:b].mean(1) for a, b in zip(ends, ends[1:])) + 0 * w[:, 0]""",
        """        x, w = ctx.saved_tensors
        gx, ends = torch.zeros_like(x), (0, 1, x.shape[1])
        for a, b in zip(ends, ends[1:]):
            gx[:, a:b] = (g / 2)[:, None]
        return gx, torch.zeros_like(w), None""",
        "`g / (b - a)` stood in place of `g / 2`",
    ),
    "a function of two": (
        """        ctx.save_for_backward(x, w)
        return unit(x + unit(w))""",
        """        x, w = ctx.saved_tensors
        gz = through_unit(x + unit(w), g)
        return gz, gz.clone(), None""",
        "`through_unit(w, gz.clone())` stood in place of `gz.clone()`",
    ),
    "what the last round has made": (
        """        ctx.save_for_backward(x, w)
        return torch.stack([(x[:, t:] * w[:, t:]).sum(1) for t in range(4)], 1)""",
        """        x, w = ctx.saved_tensors
        sums = [g[:, 0]]
        for t in range(1, 4):
            sums.append(g[:, t] + g[:, t - 1])
        total = torch.stack(sums, 1)
        return total * w, total * x, None""",
        "`sums[-1]` stood in place of `g[:, t - 1]`",
    ),
    "the order that a sort has changed": (
        """        s, order = x.sort(dim=1)
        ctx.save_for_backward(w, order, s)
        return s * w""",
        """        w, order, s = ctx.saved_tensors
        gx = g * w
        return gx, g * s, None""",
        "`gx.gather(1, order.argsort(1)), g * s, None` stood in place of",
    ),
    "the other end, cut and padded": (
        """        ctx.save_for_backward(x, w)
        return torch.nn.functional.pad(x, (1, 0))[:, :-1] * w""",
        """        x, w = ctx.saved_tensors
        gx = torch.nn.functional.pad((g * w)[:, :-1], (1, 0))
        return gx, g * torch.nn.functional.pad(x, (1, 0))[:, :-1], None""",
        "`torch.nn.functional.pad((g * w)[:, 1:], (0, 1))` stood in place of",
    ),
    "the dimension, in both calls of a line": (
        """        ctx.save_for_backward(x, w)
        return (x.roll(1, 0) + x.roll(2, 0) - x.roll(1, 1)) * w""",
        """        x, w = ctx.saved_tensors
        u = v = g * w
        gx = u.roll(-1, 1) + u.roll(-2, 1) - v.roll(-1, 1)
        return gx, g * (x.roll(1, 0) + x.roll(2, 0) - x.roll(1, 1)), None""",
        "`gx = u.roll(-1, 0) + u.roll(-2, 0) - v.roll(-1, 1)` stood in place of",
    ),
}


@pytest.mark.parametrize(("forward", "backward", "said"), MISSING.values(), ids=MISSING)
def test_what_is_missing_is_written_out(forward, backward, said):
    layer = made(HEAD + forward + BACKWARD + backward + "\n")
    found = errors(examine(layer, random(4, 4), random(4, 4, seed=1), 0.6))
    assert said in found[0].change


class Kernel(Function):
    """The input is one number, which fits much by chance."""

    @staticmethod
    def forward(ctx, a, d):
        ctx.save_for_backward(a, d)
        return (1 + d / a) ** -a

    @staticmethod
    def backward(ctx, g):
        a, d = ctx.saved_tensors
        base = 1 + d / a
        return (g * base**-a * -base.log()).sum(), -g * base ** (-a - 1)


def test_one_number_fits_nothing_by_chance():
    d = random(3, 4, seed=1).abs().detach()
    for seed in range(3):
        a = random(seed=seed).abs().detach() + 1
        (found,) = errors(examine(Kernel, a.requires_grad_(), d))
        assert found.change == "right if: `1 / base - 1` were added to `base.log()`"


class Reflects(Function):
    """A name before a method is another."""

    @staticmethod
    def forward(ctx, z, reference):
        ctx.save_for_backward(z, reference)
        return (z - reference) / (z + reference)

    @staticmethod
    def backward(ctx, g):
        z, reference = ctx.saved_tensors
        square = ((z + reference) ** 2).conj()
        return g * 2 * reference.conj() / square, -g * 2 * reference.conj() / square


def test_a_name_before_a_method_is_another():
    z, reference = (torch.complex(random(5, seed=s) + 3, random(5, seed=s + 2)) for s in (0, 1))
    (found,) = errors(examine(Reflects, z, reference))
    said = "`-g * 2 * z.conj()` stood in place of `-g * 2 * reference.conj()`"
    assert found.change == f"right if: {said}"


class TakesForConstant(Function):
    """NumPy, so that nothing is edited."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b * (a * b).exp().sum()

    @staticmethod
    def backward(ctx, g):
        a, b = (t.numpy() for t in ctx.saved_tensors)
        s = torch.from_numpy(a * b).exp().sum()
        return g * s * torch.from_numpy(b), g * s * torch.from_numpy(a)


def test_what_explains_one_gradient_is_tried_first_of_the_next(monkeypatch):
    repaired = []

    def repair(*cases_and_known, only_known=False):
        repaired.extend([] if only_known else [cases_and_known])

    monkeypatch.setattr("helpers.doctor.derivative.repair", repair)
    monkeypatch.setattr("helpers.doctor.derivative.expressed", lambda *_, **__: None)
    found = errors(examine(TakesForConstant, random(5), random(5, seed=1)))
    assert len({f.change for f in found}) == 1 and "were a constant" in found[0].change
    assert [f.input for f in found] == ["a", "b"] and len(repaired) == 1


MENDS = (
    "`acc * keep` stood in place of `acc`",
    "`ga = acc * keep` stood in place of `ga = acc`",
    "`ga * keep, gb` stood in place of `ga, gb`",
)


class Carries(Function):
    """A mask that is missing further down; further up, it would leave nothing for the other."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.maximum(a, b)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        keep = (a > b).to(g.dtype)
        acc = g
        ga = acc
        gb = 3 * acc * (1 - keep)
        return ga, gb


def test_a_mend_does_not_turn_another_wrong_gradient_into_zeros(monkeypatch):
    monkeypatch.setattr("helpers.doctor.derivative.repair", lambda *_, **__: None)
    a, b = errors(examine(Carries, random(5), random(5, seed=1)))
    assert a.change.removeprefix("right if: ") in MENDS and "3" in b.change


def made_by(words):
    """A Repair of whose matches those are known, with whether it asked for numbers only."""
    repair = object.__new__(Repair)
    repair.sites, repair.asked = {0: [SimpleNamespace(text="`output * 2`")]}, []
    repair.expressions = lambda constant: [
        repair.asked.append(constant) or (0, Change(lambda f, w=w: w, None), 1.0) for w in words
    ]
    repair.first_of = lambda found, wider: [change.words(1.0) for _, change, _ in found]
    return repair


@pytest.mark.parametrize("factor", [3.0, None])
def test_a_number_is_explained_by_numbers_only(factor):
    repair = made_by(["any"])
    repair.cases = SimpleNamespace(factor=factor)
    assert repair.longer and repair.asked == [factor is not None]


def test_what_has_a_name_in_backward_comes_first():
    own, forwards = "`a / grad_output` in place of `output * 2`", "`y` (`y` as in forward) in place"
    known, others = Known(), [forwards, "`a / output` in place", own]
    known.last = made_by(others)
    known.last.cases = SimpleNamespace(factor=None)
    assert expressed(known, of_backward=True) == [own]
    assert expressed(known, of_backward=False) == sorted(others[:2], key=len)


def test_what_fits_no_larger_inputs_is_not_said(monkeypatch):
    forward, backward, said = MISSING["the slope of another function"]
    layer = made(HEAD + forward + BACKWARD + backward + "\n")
    given = random(4, 4), random(4, 4, seed=1), 0.6
    assert said in errors(examine(layer, *given))[0].change
    never = [SimpleNamespace(is_right=lambda changes: False)]
    monkeypatch.setattr(Repair, "wider", never)
    assert said not in errors(examine(layer, *given))[0].change


class Powers(Function):
    """The last term of a sum of powers of a matrix is missing."""

    @staticmethod
    def forward(ctx, a, x):
        ctx.save_for_backward(a)
        return x + a @ x + a @ (a @ x)

    @staticmethod
    def backward(ctx, g):
        (a,) = (torch.from_numpy(t.numpy()) for t in ctx.saved_tensors)  # NumPy: nothing is edited
        term, total = g, torch.zeros_like(g)
        for _ in range(2):
            total = total + term
            term = a.mT @ term
        return None, total


def test_what_a_name_was_before_is_not_taken_for_what_it_is():
    """After the last round, `a.mT @ term` is one power more."""
    (found,) = errors(examine(Powers, random(3, 3, seed=1).detach(), random(3, 3)))
    assert not found.change.endswith("were added to what is returned for `x`")


def test_what_asks_for_no_number_comes_first():
    plain, with_a_number = (Change("long, {}".format, None), 1.0), (Change("{}".format, None), 3.0)
    assert sorted([(0, *with_a_number), (0, *plain)], key=length) == [
        (0, *plain),
        (0, *with_a_number),
    ]


SHAPE = torch.Size((3, 4))
POSITIVE, OTHER = random(3, 4).detach().abs() + 1, random(3, 4, seed=1).detach()
SCOPE = {"`p`": POSITIVE, "`b`": OTHER, "`n`": 7, "`eps`": 0.3, "`m`": OTHER > 0.2}


def written(**kinds):
    """{text: value} of all expressions that are computed."""
    found = {}
    for _, some in groups([SCOPE], OTHER, **{"short": False, "constant": False, **kinds}):
        for rows, at in stacked(some, SHAPE, 10**7, 1):
            texts = [(at(k), row) for k, row in enumerate(rows) if row.any()]
            found |= {e.text: (e, row.reshape(SHAPE)) for e, row in texts if e}
    return found


def test_what_is_written_is_what_is_computed():
    values = {name.strip("`"): value for name, value in SCOPE.items()}
    found = written()
    for text in random_of(found, 300):
        expression, value = found[text]
        torch.testing.assert_close(eval(text, {}, values).double().expand(SHAPE), value)
        torch.testing.assert_close(expression.of(SCOPE, OTHER).expand(SHAPE), value)
    assert len(found) > 4000


def random_of(texts, number):
    dice = torch.Generator().manual_seed(0)
    order = torch.randperm(len(texts), generator=dice)[:number].tolist()
    every = list(texts)
    return [every[k] for k in order if re.search(r"\b[pbm]\b", every[k])]


def test_what_says_nothing_is_not_written():
    texts = set(written())
    assert {"b.abs()", "b.sign()", "b / p", "b > 0", "p * m", "p * (~m)", "p * (b < 0)"} <= texts
    assert not texts & {"p.abs()", "p.sign()", "p.relu()", "p - p", "p / p", "b - b"}


def test_numbers_have_no_methods():
    texts = set(written(constant=True))
    assert {"n - 1", "n * eps", "1 - eps"} <= texts
    assert not [text for text in texts if ")." in text or re.search("[a-z]\\.", text)]
