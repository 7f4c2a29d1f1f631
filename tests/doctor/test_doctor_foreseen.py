"""What an edit would change, foreseen; Functions within what is examined, each by itself."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import Function

from helpers.doctor import examine
from helpers.doctor.cases import Cases
from helpers.doctor.edited import each
from helpers.doctor.foreseen import Foresight
from helpers.doctor.gradient import Case, Point
from helpers.doctor.omissions import omissions
from helpers.doctor.parts import Place
from helpers.doctor.rewritten import Mended, Rewritten, returned
from helpers.doctor.slips import slips
from helpers.doctor.slopes import Dice, as_vector, slopes_along
from helpers.doctor.source import Source, backward_by, in_place_of
from helpers.doctor.subject import Subject
from tests.common import random
from tests.doctor.test_doctor_edits import errors, made

HEAD = """
import torch
from torch.autograd import Function

class Layer(Function):
    @staticmethod
    def forward(ctx, x, w):
"""
BACKWARD = "\n\n    @staticmethod\n    def backward(ctx, g):\n"
WRONG = {  # (forward, backward); one gradient is examined, that of x
    "straight on": (
        """        ctx.save_for_backward(x, w)
        return x.tanh() * w""",
        """        x, w = ctx.saved_tensors
        t = x.tanh()
        slope = 1 + t * t
        gx = g * w * slope
        return gx, g * t""",
    ),
    "a sum over rounds": (
        """        ctx.save_for_backward(x, w)
        return sum(x[k] * w[k] ** 2 for k in range(3)) + x.sum()""",
        """        x, w = ctx.saved_tensors
        gx, parts = torch.zeros_like(x), []
        gx += g
        for k in range(3):
            parts.append(2 * g * x[k] * w[k])
            gx[k] += g * w[k]
        return gx, torch.cat([torch.stack(parts), torch.zeros_like(w[3:])])""",
    ),
    "each round by the one before": (
        """        ctx.save_for_backward(x, w)
        h = 0.0
        for k in range(4):
            h = (w[k] * h + x[k]).sin()
        return h""",
        """        x, w = ctx.saved_tensors
        gx, gw, h, hs = torch.zeros_like(x), torch.zeros_like(w), torch.zeros_like(x[0]), []
        for k in range(4):
            hs.append(h)
            h = (w[k] * h + x[k]).sin()
        for k in reversed(range(4)):
            g = g * (w[k] * hs[k] + x[k]).cos()
            gx[k] = g
            gw[k] = g * hs[k]
            g = g * w[0]
        return gx, gw""",
    ),
    "changed in place, and needed": (
        """        ctx.save_for_backward(x, w)
        return (x * x * w).cumsum(0)""",
        """        x, w = ctx.saved_tensors
        both = x * w
        gw = (both * both).sqrt() / w.abs() * x.abs()
        both *= x
        both /= x
        rest = g.flip(0).cumsum(0).flip(0)
        return rest * both + 0 * gw, rest * gw""",
    ),
}  # fmt: skip


def foreseen(forward, backward):
    """(the Function, its source, the case of x, its node, what foresees it)"""
    layer = made(HEAD + forward + BACKWARD + backward + "\n")
    inputs = [random(5, seed=k).requires_grad_() for k in range(2)]
    subject = Subject(layer.apply, inputs, {})
    case = Case(Point(subject, subject.values, Dice()), 0, 0, 1e-5)
    node = subject.run(subject.values).outputs[0].grad_fn
    source = Source(inspect.unwrap(layer.backward), layer)

    def run(function):
        return returned(function, node, [case.vs[0].clone()], records=True)[0], []

    return layer, source, case, Foresight(source, run, case)


def values_of(source, case):
    values = {}
    layer = case.subject.cls
    with in_place_of(layer, "backward", source.kept(values)):
        case.subject.gradients(case.point.values, [case.vs[0]])
    return source.within() | values


@pytest.mark.filterwarnings("ignore::UserWarning")  # of edits that nobody would write
@pytest.mark.parametrize(("forward", "backward"), WRONG.values(), ids=WRONG)
def test_nothing_that_mends_is_left_out(forward, backward):
    layer, source, case, sight = foreseen(forward, backward)
    assert case.wrong.any()
    values, mending, left_out = values_of(source, case), 0, 0
    given = [v.clone() for v in case.vs]
    for kind in (slips, omissions):
        edits = [edit for _, edit in zip(range(6000), kind(source, values), strict=False)]
        kept = {id(edit) for edit in sight.ordered(edits)}
        for edit in edits:
            with source.edited(edit.puts):
                try:
                    function = source.compiled()
                except (SyntaxError, TypeError, ValueError):
                    continue
            try:
                with in_place_of(layer, "backward", function):
                    right = Cases([case])[0].fits_rows(
                        case.rows_of(case.subject.run(case.point.values))
                    )
            except Exception:
                right = False
            for v, before in zip(case.vs, given, strict=True):
                v.copy_(before)  # some edits change grad_output in place
            mending += right
            left_out += id(edit) not in kept
            assert not right or id(edit) in kept, edit
    assert mending and left_out > 100


def test_what_mends_comes_first():
    _, source, case, sight = foreseen(*WRONG["straight on"])
    edits = list(slips(source, values_of(source, case)))
    likely, others = sight.parted(edits)
    others = [edit for _, edit in others]
    (gx,) = [p for p in sight.places if "slope" in {getattr(n, "id", "") for n in p.nodes}]
    assert isinstance(gx, Place) and gx.is_exact and gx.times == 1
    kept = [edit for edit in (*likely, *others) if edit.node in gx.nodes]
    assert 0 < 3 * len(kept) < len([edit for edit in edits if edit.node in gx.nodes])
    in_order = list(sight.ordered(edits))
    assert likely and in_order[: len(likely)] == likely


class Cell(Function):
    """One step of a recurrent layer, whose new state is taken for the old one in backward."""

    @staticmethod
    def forward(ctx, gates, c):
        i, f = gates.sigmoid().chunk(2, -1)
        new = f * c + i
        ctx.save_for_backward(i, f, c, new)
        return new.tanh(), new

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gh, gc):
        i, f, c, new = ctx.saved_tensors
        gc = gc + gh * (1 - new.tanh() ** 2)
        gates = torch.cat([gc * i * (1 - i), gc * new * f * (1 - f)], -1)
        return gates, gc * f


class Unnamed(Cell):
    """Wrong in no way that one edit would mend."""

    @staticmethod
    def backward(ctx, gh, gc):
        i, f, c, new = ctx.saved_tensors
        gates = torch.cat([gc * (i.cos() + 0.31), (gh + gc) * (f + new).exp()], -1)
        return gates, gc * new.sin() + gh


class Recurrent(nn.Module):
    def __init__(self, cell):
        super().__init__()
        torch.manual_seed(3)
        self.cell, self.gates = cell, nn.Linear(5, 4)

    def forward(self, x):
        h = c = x.new_zeros(len(x), 2)
        for k in range(x.shape[1]):
            h, c = self.cell.apply(self.gates(torch.cat([x[:, k], h], -1)), c)
        return h


def test_a_function_within_is_mended_by_itself(monkeypatch):
    found = errors(examine(Recurrent(Cell).double(), random(3, 4, 3)))
    assert {f.input for f in found} == {"x", "gates.weight", "gates.bias"}
    said = {f.change for f in found}
    assert len(said) == 1 and "`gc * c` stood in place of `gc * new`" in said.pop()


def test_a_function_within_that_nothing_mends_is_named():
    found = errors(examine(Recurrent(Unnamed).double(), random(3, 4, 3)))
    vague = [f for f in found if f.code == "gradient-wrong"]
    assert vague and all(f.remedy.startswith("`Unnamed`, which is wrong by itself") for f in vague)


class Selfish(Function):
    """Asks for a gradient through itself."""

    depth = 0

    @staticmethod
    def forward(ctx, x):
        ctx.y = x * 2
        return ctx.y

    @staticmethod
    def backward(ctx, g):
        Selfish.depth += 1
        if Selfish.depth > 3:
            raise ValueError("without end")
        return torch.autograd.grad(ctx.y, ctx.x, g)[0]


def test_a_backward_may_not_run_within_itself():
    Selfish.depth = 0
    x = random(3).requires_grad_()
    y = Selfish.apply(x)
    y.grad_fn.y, y.grad_fn.x = y, x
    with backward_by(lambda method, node, *grads: method(node, *grads)):
        with pytest.raises(RuntimeError, match="runs within itself"):
            y.sum().backward()


def test_an_edit_is_tried_although_the_graph_was_used_up():
    layer, _, case, _ = foreseen(*WRONG["straight on"])
    cases = Cases([case])
    cases.all, cases.whole = [cases], []
    trial = Rewritten(cases, Mended(), slips)
    torch.autograd.grad(trial.run.outputs[0].sum(), trial.run.leaves)
    assert trial.fits_first(inspect.unwrap(layer.backward)) is False


class SharesMemory(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        array = y.numpy()
        ctx.save_for_backward(y)
        result = torch.from_numpy(np.sin(array))
        array[...] = 0.5
        return result

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y.cos()


def test_what_numpy_overwrites_is_noticed():
    (found,) = errors(examine(SharesMemory, random(5)))
    assert found.code == "saved-modified"
    assert found.change == "right if: `save_for_backward` saved copies"


TAPS = {}


def taps(width, n):
    if n not in TAPS:
        TAPS[n] = torch.exp(-(torch.arange(n) ** 2) / width.item())
    return TAPS[n]


def smooth(x, width):
    return x * taps(width, len(x)).to(x.dtype).sum()


def test_what_a_function_keeps_in_a_dict_is_noticed():
    TAPS.clear()
    x, width = random(4).requires_grad_(), torch.tensor(2.0, dtype=torch.float64).requires_grad_()
    (found,) = errors(examine(smooth, x, width))
    assert (found.code, found.input) == ("parameter-cached", "width")
    assert found.remedy.endswith(": `TAPS`")


class DrawsAgain(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.dice = torch.Generator().manual_seed(1)
        return x * torch.rand(x.shape, generator=ctx.dice, dtype=x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g * torch.rand(g.shape, generator=ctx.dice, dtype=g.dtype)


def test_what_backward_draws_is_pointed_at():
    found = errors(examine(DrawsAgain, random(5)))
    assert found[0].code == "backward-not-deterministic"
    assert found[0].remedy.startswith("what backward draws: `torch.rand(g.shape")


class Held(Function):
    mask = None

    @staticmethod
    def forward(ctx, x):
        Held.mask = x > 0
        return x.relu()

    @staticmethod
    def backward(ctx, g):
        return g * Held.mask


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x):
        return Held.apply(self.second(Held.apply(self.first(x))))


def test_what_another_call_leaves_is_not_what_backward_changes():
    found = errors(examine(TwoLayers(), random(9, 3)))
    assert found[0].code == "state-between-calls"
    assert "`Held.mask` (line " in found[0].remedy


class Runs(Function):
    """Divides by what is kept on ctx, which the module then changes in place."""

    @staticmethod
    def forward(ctx, x, mean):
        ctx.mean = mean
        y = x / mean
        mean.mul_(0.9).add_(0.1 * x.detach().abs().mean())
        return y

    @staticmethod
    def backward(ctx, g):
        return g / ctx.mean, None


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(2.0))

    def forward(self, x):
        return Runs.apply(x, self.mean)


def test_what_is_on_ctx_and_changed_since_is_named():
    found = errors(examine(Running(), random(5)))
    assert [f.code for f in found] == ["state-replaced"]
    assert "with the `mean` of the time of forward" in found[0].message


SCALES = {}


class Cached(Function):
    @staticmethod
    def forward(ctx, x, w):
        key = tuple(x.shape)
        if key not in SCALES:
            SCALES[key] = x.cos()
        ctx.key = key
        ctx.save_for_backward(x, w)
        return x.sin() * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w * SCALES[ctx.key], g * x.sin()


def test_what_the_first_call_has_left_in_a_dict_is_named():
    SCALES.clear()
    found = errors(examine(Cached, random(5), random(5, seed=1)))
    assert [(f.code, f.input) for f in found] == [("first-call-kept", "x")]
    assert found[0].remedy.startswith("what is made once, and kept: `SCALES`; a key must tell")
    before = {key: t.clone() for key, t in SCALES.items()}
    examine(Cached, random(5), random(5, seed=1))
    assert all(torch.equal(SCALES[key], t) for key, t in before.items())


class Halves(Function):
    @staticmethod
    def forward(ctx, x):
        return 1e6 * x

    @staticmethod
    def backward(ctx, g):
        return 1e6 * (1e6 * g).half().to(g.dtype)


def test_where_half_precision_overflows():
    (found,) = errors(examine(Halves, random(4)))
    assert found.code == "backward-not-finite"
    assert "half precision first: `(1000000.0 * g).half()` (line " in found.remedy


class Filters(Function):
    """Its output is rounded as its largest element is, though most do not depend on one input."""

    @staticmethod
    def forward(ctx, x, h):
        n = x.shape[-1]
        ctx.save_for_backward(h)
        return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(h, n=n), n=n)

    @staticmethod
    def backward(ctx, g):
        (h,) = ctx.saved_tensors
        n = g.shape[-1]
        return torch.fft.irfft(torch.fft.rfft(g) * torch.fft.rfft(h, n=n), n=n), None


def test_what_rounding_moves_is_no_kink():
    x, h = random(2, 300), random(7)

    def forward(values):
        return [as_vector(Filters.apply(*values))]

    for k in range(12):
        one = torch.zeros_like(x).index_fill_(1, torch.tensor(25 * k), 1.0)
        (slope,) = slopes_along(forward, [x, h], {0: one}, forward([x, h]), 2e-16)
        assert slope.trusted.all()
    found = errors(examine(Filters, random(2, 300).requires_grad_(), random(7)))[0]
    assert "`torch.fft.rfft(h, n=n).conj()` stood in place of" in found.change


class Views(Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g.view(-1).view(3, 4)


def test_where_a_layout_is_refused():
    found = errors(examine(Views, random(3, 4)))
    (layout,) = [f for f in found if f.code == "grad-output-layout"]
    assert "`return g.view(-1).view(3, 4)` (line " in layout.remedy
    assert layout.remedy.endswith("in `backward`)")


LAUNCHED = []


def launch(t):
    LAUNCHED.append(t.shape)
    return t.cos()


def halves(t):
    return t / 2


class Launches(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.launch = Launches.launch
        ctx.save_for_backward(x, w)
        return x.sin() * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * ctx.launch(x) * w.square(), g * x.sin()


@pytest.mark.parametrize(("held", "edited"), [(launch, False), (torch.cos, True), (halves, True)])
def test_only_what_is_plain_is_called_with_anything(monkeypatch, held, edited):
    monkeypatch.setattr(Launches, "launch", staticmethod(held), raising=False)
    x, w = (random(5, seed=k).requires_grad_() for k in range(2))

    def run():
        Launches.apply(x, w).sum().backward()

    assert any(each(Launches, "backward", None, slips, run)) == edited


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_reentrant_checkpoint_is_not_accused(dtype):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.within, self.after = (nn.Linear(3, 3) for _ in range(3))

        def forward(self, x):
            h = torch.utils.checkpoint.checkpoint(self.within, self.before(x), use_reentrant=True)
            return self.after(h)

    report = examine(Checkpointed().to(dtype), random(4, 3).to(dtype))
    assert report.ok and "not-in-double" not in [f.code for f in report.findings]


class Refuses(Function):
    @staticmethod
    def forward(ctx, x):
        assert x.dtype == torch.float32
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


def test_what_says_nothing_of_where_to_look_has_no_place():
    found = [f for f in examine(Refuses, random(3).float()).findings if f.code == "not-in-double"]
    assert found and found[0].remedy == ""


class Chain(nn.Module):
    """So many parameters that not all of their gradients are examined."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.Sequential(*(nn.Linear(3, 3) for _ in range(12)))
        self.w = nn.Parameter(torch.rand(3) + 0.5)

    def forward(self, x):
        return Squashes.apply(self.layers(x), self.w)


class Squashes(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.tanh() * w

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w * (1 - x.tanh() ** 3), g * x.tanh()


def test_gradients_that_are_not_examined_may_change_with_the_mend():
    found = errors(examine(Chain().double(), random(4, 3)))
    assert found and "x.tanh() ** 2" in found[0].change, found
