"""What is printed is right where nobody tried it; what is not, is refused in a sentence."""

import math
import random
import subprocess
import sys

import pytest
import torch
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.special import expm1 as grow
from torch.utils._pytree import tree_leaves

from helpers.derive import Refused, derive
from helpers.derive.forward import Forward

from .forwards import FORWARDS, shapes

TENSOR, ONES = torch.ones(6), torch.ones(4, 6, dtype=torch.float64)


def example(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [
        0.5 + torch.rand(s, generator=generator, dtype=torch.float64) for s in shapes
    ]


X = example((4, 6))


@shapes((4, 6), (6,))
def sums_what_broadcasts(m, w):
    t = m - w
    t = t - t.sum(0, keepdim=True)
    return t.mean(0)


@shapes((3, 4), (5, 4), (5,))
def linear_steps(x, w, bias):
    both = torch.cat([x, torch.ones_like(x)]).unsqueeze(0)
    one, two = F.linear(both, w, bias).squeeze(0).chunk(2)
    scores = torch.einsum("ij,kj->ik", one, two).cumsum(-1)
    whole = scores.logsumexp(-1) * bias.expand_as(one).sum(1)
    return whole, scores.log_softmax(-1).amax(-1), scores.var(-1, correction=0)


@shapes((4, 6), (3, 6))
def cosines(x, y):
    one, other = F.normalize(x, dim=-1), F.normalize(y, p=2.0)
    return torch.einsum("...d,jd->...j", one, other)


@shapes((4, 6), (4, 6))
def losses(x, y):
    each = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    return each, F.mse_loss(x, y), F.mse_loss(x, y, reduction="sum")


@shapes((4, 6))
def extremes(x):
    values, places = (x * x).sin().max(-1)
    least = x.min(0, keepdim=True).values
    return (x - x.max()) * least, values * places


@shapes((5, 3), (5, 3))
def turned(x, y):
    return torch.cross(x, y, dim=1).exp() + torch.linalg.cross(y, x)


@shapes((4, 6))
def within(x):
    return x.clamp_min(0.8) * x.clamp_max(1.2) + x.clip(0.9, 1.1)


@shapes((4, 6))
def at_its_edges(x):
    return F.pad(x.exp(), (1, 2, 0, 3)) + F.pad(x, (2, 1, 3, 0)).square()


@shapes((4, 6), (6,))
def by_its_first(x, weight, share=0.5):
    first, _ = x.split([2, x.shape[-1] - 2], -1)
    return weight * x / (first.square().mean(-1, keepdim=True) + share)


@shapes((4, 6), (6,))
def in_order(x, y):
    order = torch.argsort(y, descending=True) - y.shape[0]
    _, last = (x * y).split([x.shape[-1] - 1, 1], -1)
    weights = torch.tensor([1.0, 3.0], dtype=x.dtype).sum() + y.new_zeros(2).sum()
    return (x[:, order].exp() * y)[1, None, :, None] * weights, last


@shapes((2, 3, 6), (4, 3, 3), (4,))
def smoothed(x, w, bias):
    return F.conv1d(x, w, bias, padding=1).sin()


@shapes((2, 3, 4))
def mean_of_rows(x):
    flat = x.flatten(1)
    return (flat * flat).sum(1).mean()


@shapes((4, 3, 5), (4,), ())
def biased_scores(x, slopes, scale):
    inside = (x < 2) & (x > 0.7)
    return (x + slopes[:, None, None]).masked_fill(inside, 0).exp() * scale


@shapes((2, 3, 6), (3, 1, 3))
def depthwise(x, w):
    hidden = x.sin()
    return F.conv1d(hidden, w, padding=1, groups=hidden.shape[1])


@shapes((4, 6))
def signs(x):
    return torch.sign(x) * torch.exp(x) + x.exp().sign()


@shapes(
    (4, 6), texts=["def backward(ctx, grad_y):", "grad_a = grad_y * torch.exp(a) / 2"]
)
def halves(x):
    a = x * 2
    y = torch.exp(a) / 2
    return y


@shapes((4, 6), texts=[" - grad_x_from_sub.mean(-1, keepdim=True)"])
def from_mean(x):
    return (x - x.mean(-1, keepdim=True)) ** 3


@shapes((4, 6), texts=["(x > 1).sum(-1, keepdim=True) / x.shape[-1]"])
def share_of_large(x):
    return x * ((x > 1).sum(-1, keepdim=True) / x.shape[-1])


@shapes(
    (4, 6),
    texts=[
        "exp_beta_x = torch.exp(ctx.beta * x)",
        "ctx.eps = eps",
        "grad_output / (1 + (exp_beta_x + ctx.eps)) * exp_beta_x",
    ],
)
def soft(x, beta=2.0, eps=1e-5):
    return torch.log1p(torch.exp(beta * x) + eps) / beta


@shapes(
    (4, 6),
    (6, 3),
    texts=["scale = x.shape[-1] ** -0.5", "1 + x.square() * 1e-5  # (N, D)"],
)
def scaled_sum(x, w):
    scale = x.shape[-1] ** -0.5
    total = 1 + x.square() * 1e-5
    return (total @ w * scale).sqrt()


@shapes((4, 6), texts=["grad_x = (\n            grad_a * (2 * x"])
def many(x):
    a = x.sin() + x.cos() + x.exp() + x.tanh() + x.sigmoid() + x.log() + x * x
    return a * 3


@shapes((4, 6), texts=[" * (torch.sin(x) + torch.sin(2 * x)) * "])
def hidden_calls(x):
    parts = []
    parts += [torch.sin(k * x) for k in (1, 2)]
    return sum(parts) * torch.exp(x)


@shapes(
    (4, 6),
    (4, 6),
    texts=["grad_norm_b = grad_norm_a_norm_b * norm_a", "grad_b_from_mul = "],
)
def cosine(a, b):
    dot = (a * b).sum(-1)
    norm_a = torch.sqrt((a * a).sum(-1))
    norm_b = torch.sqrt((b * b).sum(-1))
    return dot / (norm_a * norm_b)


@shapes((5, 5), texts=[".diag_embed() / norm_x", "x * grad_norm_x / norm_x"])
def unit(x):
    return (x / x.norm(dim=-1, keepdim=True)).diagonal()


@shapes((4, 6), texts=["norm_x_or_inf = norm_x.unsqueeze(-1).masked_fill("])
def shares(x):
    return x.norm(dim=-1) / x.norm(dim=(-2, -1))


@shapes((4, 6), (4, 6), texts=["** (ctx.gamma - 1)", "0.044715 * p**2"])
def focal(p, target, gamma=2.0):
    return ((p - target) ** gamma * (p < 1)).mean() + (0.044715 * p**3).sum()


@shapes((4, 6), (4, 6), texts=["mask_is_0 = mask == 0", ".masked_fill(mask_is_0, 0)"])
def hidden(x, mask):
    weights = torch.softmax(x.masked_fill(mask == 0, -1e9), -1)
    return weights * x


@shapes(
    (4, 6),
    (4, 6),
    texts=["torch.cos((1 - p) * weight)", "* (0.25 * p.log() - 0.75 * exp_shifted_p)"],
)
def entropy(p, weight):
    loss = 0.25 * weight * p.log() + 0.75 * (1 - weight) * (1 - p).exp()
    return loss + torch.sin((1 - p) * weight)


@shapes((4, 6))  # keeps nothing
def scaled(x, factor=2.0):
    return x * factor


@shapes((4, 6), texts=["torch.where(x < 0, "])
def above_zero(x):
    return F.elu(x) + 1


@shapes((4, 6), texts=["grad_x = grad_output * x.detach()"])
def half_detached(x):
    return x * x.detach()


@shapes((4, 6), (4, 6), texts=["grad_x = grad_output * gap  #"])
def half_square(x, target):
    gap = x - target
    return 0.5 * gap * gap


@shapes((4, 6), (4, 6), texts=["0 * grad_output"])
def only_second(x, w):
    return x - x + w.exp()


@shapes(
    (4, 6),
    (6, 6),
    texts=[
        "def jvp(ctx, tangent_x, tangent_w):",
        "tangent_gate = tangent_x @ w + x @ tangent_w",
    ],
)
def gated(x, w):
    gate = x @ w
    return x * torch.sigmoid(gate)


def built(source):
    names = {}
    exec(source, names)
    return next(v for v in names.values() if hasattr(v, "apply")).apply


def three_derivatives(f, tensors):
    """Of the outputs, and of their tangents."""
    tensors = [t.clone().requires_grad_() for t in tensors]
    found = torch.func.jvp(f, tuple(tensors), tuple(t.detach().cos() for t in tensors))
    found = tree_leaves(found)
    step = found
    for _ in range(3):
        weights = [torch.arange(t.numel()).reshape(t.shape).cos() for t in step]
        scalar = sum((t * w).sum() for t, w in zip(step, weights, strict=True))
        if not scalar.requires_grad:
            break
        step = grad(scalar, tensors, create_graph=True, materialize_grads=True)
        found = [*found, *step]
    return found


def elsewhere(shapes):
    """Sizes and ranks that derive was not given."""
    draw = random.Random(0)
    for _ in range(8):
        sizes = {size: draw.randint(1, 8) for shape in shapes for size in shape}
        yield [tuple(sizes[s] for s in shape) for shape in shapes]
    for factor in (2, 3):
        yield [tuple(factor * s for s in shape) for shape in shapes]
    yield [(3, *s) if s[:1] == shapes[0][:1] else s for s in shapes]
    yield [tuple(1 if draw.random() < 0.4 else s for s in shape) for shape in shapes]
    yield [shape[draw.random() < 0.5 :] for shape in shapes]


@pytest.mark.parametrize(
    ("function", "shapes", "texts"), FORWARDS, ids=lambda f: getattr(f, "__name__", "")
)
def test_it_reads_well_and_is_right_or_refuses_elsewhere(function, shapes, texts):
    source = derive(function, *example(*shapes), jvp=True)
    for text in texts:
        assert text in source
    if texts:
        lines = source[: source.index("def check_")].splitlines()
        assert max(map(len, lines)) <= 88
    apply, right = built(source), 0
    for sizes in [shapes, *elsewhere(shapes)]:
        tensors = example(*sizes)
        try:
            expected = three_derivatives(function, tensors)
        except (RuntimeError, ValueError, IndexError):
            continue  # the function itself takes no such sizes
        try:
            given = three_derivatives(apply, tensors)
        except (ValueError, IndexError):
            assert sizes != shapes
            continue
        for a, b in zip(given, expected, strict=True):
            assert a.shape == b.shape
            assert torch.allclose(
                a, b, 1e-6, 1e-9 * b.abs().max().item() + 1e-15, equal_nan=True
            )
        right += 1
    assert right >= 2


def gated_norms(x, weight, bias):
    first = F.layer_norm(x, weight.shape, weight, bias)
    second = F.rms_norm(F.glu(first), (x.shape[-1] // 2,), None, 1e-6)
    return second * torch.outer(second[:, 0], weight).sum()


def gated_norms_written_out(x, weight, bias):
    centered = x - x.mean(-1, keepdim=True)
    normal = centered / (centered.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
    value, gate = (normal * weight + bias).chunk(2, -1)
    gated = value * gate.sigmoid()
    second = gated / (gated.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    return second * (second[:, :1] * weight).sum()


def test_what_pytorch_calls_by_one_name_is_written_out():
    """The derivative of PyTorch's tangent is wrong for layer_norm, and missing for glu."""
    apply = built(derive(gated_norms, *example((4, 6), (6,), (6,)), jvp=True))
    for n, d in (4, 6), (6, 12):
        tensors = example((n, d), (d,), (d,))
        given, expected = (
            three_derivatives(f, tensors) for f in (apply, gated_norms_written_out)
        )
        for a, b in zip(given, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def recurrent(x, w, h):
    for t in range(x.shape[0]):
        h = x[t] * torch.tanh(x[t] + h @ w)
    return h + x.sum(0)


def test_the_gradients_of_the_rounds_are_stacked():
    given = example((3, 2, 4), (4, 4), (2, 4))
    source = derive(recurrent, *given, jvp=True)
    assert "torch.stack([" in source and "scatter" not in source
    found, right = (three_derivatives(f, given) for f in (built(source), recurrent))
    assert all(map(torch.allclose, found, right))


def places_by_number(q):
    return q[..., 0] * q[..., 1] - q[..., 2] * q[..., 3]


def test_a_size_that_is_filled_by_chance_stays_free():
    apply = built(derive(places_by_number, *example((4, 4)), jvp=True))
    (wider,) = example((6, 6))
    found, right = (three_derivatives(f, [wider]) for f in (apply, places_by_number))
    assert all(map(torch.allclose, found, right))


def margin(near, far):
    return torch.relu(near - far + 0.2)


def root(near, far):
    return torch.sqrt(near - far + 0.2)


def scaled_rows(bias):
    return 0.001 * bias.expand(4, 6)


def scaled_first(x, w):
    return w * (0.001 * x).sum(-1)


def scaled_last(x, w):
    return 0.001 * (x @ w)


@pytest.mark.parametrize(
    ("function", "shapes", "dtype", "numbers", "arriving"),
    [
        (margin, ((4, 6), (4, 6)), torch.bfloat16, (100, 100), 1),
        (root, ((4, 6), (4, 6)), torch.bfloat16, (100, 100), 1),
        (scaled_rows, ((6,),), torch.float16, (1,), 20_000),
        (scaled_first, ((4, 6), (4,)), torch.float16, (2e4, 1), 1),
        (scaled_last, ((4, 6), (6, 3)), torch.float16, (1, 100), 1000),
    ],
)
def test_terms_and_factors_keep_their_order(function, shapes, dtype, numbers, arriving):
    """Where they cancel or overflow, another order is another number."""
    gradients = []
    for f in (function, built(derive(function, *example(*shapes)))):
        tensors = [
            torch.full(shape, float(number), dtype=dtype, requires_grad=True)
            for shape, number in zip(shapes, numbers, strict=True)
        ]
        y = f(*tensors)
        gradients.append(grad(y, tensors, torch.full_like(y, arriving)))
    ours, right = gradients
    assert all(map(torch.equal, ours, right))
    assert all(gradient.isfinite().all() and gradient.any() for gradient in right)


def slopes(function, given, x, *others):
    """At x, of the Function that is derived from what is given, and of the function."""
    for f in (built(derive(function, *given)), function):
        leaf = x.detach().clone().requires_grad_()
        y = f(leaf, *others)
        yield grad(y, leaf, 1 + y.detach())[0]


GATED = gated, *example((4, 6), (6, 6))  # what derive takes


def power(x, p=2.0):
    return (1 - torch.sigmoid(x)) ** p


def in_halves(x):
    return x.view(x.shape[0], 2, x.shape[1] // 2).softmax(-1)


def widths(x):
    return x[:, 2:] * x[:, :2]


def twice_bound(x, w):
    hidden = x @ w
    hidden = hidden.tanh()
    return hidden.square()


@pytest.mark.parametrize(
    ("function", "name"), [(gated, "gate"), (twice_bound, "hidden")]
)
def test_saving_an_intermediate_refuses_the_second_derivative(function, name):
    inputs = [t.requires_grad_() for t in example((4, 6), (6, 6))]
    apply = built(derive(function, *inputs, save=(name,)))
    assert gradcheck(apply, inputs)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradgradcheck(apply, inputs)


def test_what_is_nearly_zero_keeps_its_digits():
    x = torch.full((4, 6), -10, dtype=torch.bfloat16)
    given, right = slopes(above_zero, X, x)
    assert given.allclose(right, rtol=0.01, atol=0)


def test_what_is_kept_is_counted_in_the_dtype_of_the_example():
    x, w = (t.float() for t in example((4, 6), (6, 6)))
    inputs, autograd = 24 + 36, 24 + 36 + 24  # and the sigmoid
    words = f"keeps {4 * inputs} bytes of its example, and autograd {4 * autograd}."
    assert words in derive(gated, x, w)


def grouped(x, groups, scale):
    return x.unflatten(-1, (groups, -1)).square().mean(-1) * scale


def test_what_is_fixed_is_said():
    assert "`grouped` with groups=3: keeps" in derive(grouped, *example((4, 6)), 3, 0.5)


def picked(logits, target):
    log_probs = torch.log_softmax(logits, -1)
    return -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1).mean()


LABELS = torch.tensor([5, 0, 3, 5])


def counted(x):
    return x * 2 if int(x.shape[0]).bit_length() < 4 else x * 3


def capped(x):
    return x[torch.arange(min(x.shape[0], 1600))].mean(0) * x.sum()


def rounded(x, share):
    return x.square() * round(share)


def of_dtype(x):
    return 2 * x if x.dtype == torch.float64 else 3 * x


def in_a_word(x):
    return 2 * x if "%d" % x.shape[1] == "20" else 3 * x  # noqa: UP031


def a_share(x):
    k = (x.shape[0] + 7) // 8
    return x[:, :k].square().mean(1)


def every_fourth(x):
    part = x[:, ::4]
    return part * 2 if part.numel() > 100 else part * 3


def by_count(q, k):
    scores = q @ k.mT
    mean = scores.square().sum() / scores.numel()
    return mean * 2 if 4096 / scores.numel() >= 8 else mean * 3


def above_a_power(x, bound=4.0):
    return x * 2 if bound > 1.0 + (-0.5) ** 2 else x * 3


def of_a_remainder(x):
    return x * 2 if torch.cat([x, x], -1).shape[-1] % 64 else x * 3


def in_pieces(x):
    return x * 2 if len(x.split(2)) == 30 else x * 3


def by_chance(x, w):
    part = x[:, ::4]
    scaled = part * w.sum()
    return scaled * 2 if part.shape[1] > 4 else scaled * 3


def by_rounds(x):
    for _ in range(x.shape[0] // 1500):
        x = x.sin()
    return x * 2


def of_six(x):
    return x.unflatten(1, (2, 3)).sum(1) ** 2


def truthy(x, factor=2.0):
    return x * factor if factor else x


def first_twenty(x):
    return x[:, :20].square().mean(-1)


def first_of_more(x, k):
    return x[:, : k + 20].std(-1)


def as_many(x, y):
    return x[: y.shape[0]].mean(0) * y.sum()


def every_twentieth(x):
    return x[:, ::20].square().mean(-1)


def of_rank(x):
    return x * 2 if len(x.shape) < 5 else x * 3


D = 6


def up_to(x):
    return x * 2 if x.shape[1] <= D else x * 3


def of_a_tensor(tensor, w):
    return (tensor * 2 if tensor.shape[0] > 2 else tensor * 3) * w.sum()


def powers(x, gamma):
    return (1 - x) ** (gamma - 1)


def times(x, N):
    return x * N


def without(x, off=1.0):
    return 3 * x if off is None else x + off


def switched(x, on=False):
    return 2 * x if on == 0 and on is not False else 3 * x


def kept_share(x, keep=0.5):
    if not 0 < keep < 1:
        raise ValueError("not derived")
    return x[..., : int(keep * x.shape[-1])].square()


def half_life(x, step=100.0):
    return x * x * 0.5 ** int(step / 1000.0)


def large_as_a_whole(x):
    flat = x.reshape(-1)
    return flat * 2 if flat.numel() > 5000 else flat * 3


def wide_together(x, y):
    both = torch.cat([x, y], 1)
    return both * 2 if 20 < both.shape[1] < 40 else both * 3


def from_a_list(x):
    return x * ([2.0] * 16 + [3.0] * 16)[x.shape[1]]


def of_leading(x):
    leading = x.shape[:-1]
    return x * 2 if len(leading) < 4 else x * 3


def of_rest(x):
    *leading, _ = x.shape
    return x * 2 if len(leading) < 4 else x * 3


def by_keyword(x):
    return x * 2 if x.size(dim=1) == 20 else x * 3


def far_root(x):
    return x * 2 if math.sqrt(x.reshape(-1).shape[0]) > 80 else x * 3


def from_a_slice(x):
    return x * ([2.0] * 16 + [3.0] * 16)[x.shape[1] :][0]


def of_longer(x):
    return x * 2 if len(x.shape + (1,)) < 6 else x * 3  # noqa: RUF005


def hopped(x):
    hop = 16 * 16
    return x[:, ::hop].square().mean(-1)


def far_hopped(x):
    return x[:, ::D_FAR].square().mean(-1)


def last_share(x):
    part = x[:, -(x.shape[1] // 2**8) :]
    return part.square().sum(1) / part.shape[1]


def rows_apart(x):
    return x[torch.arange(0, x.shape[0], 16 * 20)].square().mean(0)


def in_chunks(x):
    parts = x.chunk((x.shape[0] + D_FAR - 1) // D_FAR)
    return sum(part.square().mean() for part in parts)


def divided_twice(x):
    k = x.shape[1] // 16 // 20
    return x[:, : k + 1].square().mean(1)


def of_a_list(x):
    part = x.sum() * torch.arange(200)[: x.shape[1]]
    return part.sum() / part.shape[0]


def counted_on(x):
    total = torch.zeros_like(x)
    for k, part in enumerate([x], x.shape[0]):
        total = total + (part.sin() if k > 3000 else part.cos())
    return total


def times_apart(x, step=2.0):
    apart = torch.arange(0, 1, step, dtype=x.dtype)
    return (x.sum() * (apart + 1)).square().mean()


def beyond(x, y):
    return x[:, y.shape[1] :: 20].square().mean(1) * y.sum()


def maybe(x, w=None):
    return x.sin() if w is None else x * w


WIDE, D_FAR = example((2, 150), (2, 140)), 2048
FIVE_RANKS = (torch.ones(2, 2, 2, 4, 6),)


@pytest.mark.parametrize(
    ("function", "given", "other"),
    [
        (kept_share, (0.5,), (torch.ones(4, 6), 0.9)),
        (half_life, (100.0,), (torch.ones(4, 6), 2500.0)),
        (hopped, (), (torch.ones(4, 300),)),
        (far_hopped, (), (torch.ones(4, 3000),)),
        (last_share, (), (torch.ones(4, 600),)),
        (rows_apart, (), (torch.ones(400, 6),)),
        (in_chunks, (), (torch.ones(3000, 6),)),
        (divided_twice, (), (torch.ones(4, 330),)),
        (of_a_list, (), (torch.ones(4, 300),)),
        (counted_on, (), (torch.ones(3100, 6),)),
        (times_apart, (2.0,), (torch.ones(4, 6), 0.5)),
        (maybe, X, (torch.ones(4, 6), None)),
        (large_as_a_whole, (), (torch.ones(900, 6),)),
        (wide_together, example((4, 5)), (torch.ones(4, 14), torch.ones(4, 15))),
        (from_a_list, (), (torch.ones(4, 20),)),
        (by_keyword, (), (torch.ones(4, 20),)),
        (far_root, (), (torch.ones(90, 90),)),
        (from_a_slice, (), (torch.ones(4, 20),)),
        (of_longer, (), FIVE_RANKS),
        (of_leading, (), FIVE_RANKS),
        (of_rest, (), FIVE_RANKS),
        (power, (), (torch.ones(4, 6), 0.0)),  # its slope would be nan
        (picked, (LABELS,), (torch.ones(0, 6), LABELS[:0])),
        (capped, (), (torch.ones(1700, 6),)),
        (a_share, (), (torch.ones(20, 6),)),
        (every_fourth, (), (torch.ones(30, 20),)),
        (
            by_count,
            (torch.ones(5, 6).double(),),
            (torch.ones(30, 6), torch.ones(50, 6)),
        ),
        (above_a_power, (), (torch.ones(4, 6), 1.0)),
        (of_a_remainder, (), (torch.ones(4, 32),)),
        (in_pieces, (), (torch.ones(60, 6),)),
        (by_chance, (torch.ones(2).double(),), (torch.ones(4, 40), torch.ones(2))),
        (by_rounds, (), (torch.ones(1600, 6),)),
        (rounded, (0.5,), (torch.ones(4, 6), 0.6)),
        (of_dtype, (), (torch.ones(4, 6),)),
        (in_a_word, (), (torch.ones(4, 20),)),
        (of_six, (), (torch.ones(6, 4),)),
        (truthy, (), (torch.ones(4, 6), 3.0)),
        (first_twenty, (), (torch.ones(4, 30),)),
        (every_twentieth, (), (torch.ones(4, 50),)),
        (first_of_more, (1500,), (torch.ones(4, 1600), 1500)),
        (as_many, (torch.ones(5, 6).double(),), (torch.ones(7, 6), torch.ones(5, 6))),
        (of_rank, (), FIVE_RANKS),
        (times, (4,), (torch.ones(2, 6), 2)),
        (up_to, (), (torch.ones(4, 7),)),
        (of_a_tensor, (torch.ones(5).double(),), (torch.ones(2, 6), torch.ones(5))),
        (powers, (3.0,), (torch.ones(4, 6), 1.0)),
        (without, (1.0,), (torch.ones(4, 6), None)),
        (switched, (False,), (torch.ones(4, 6), 0)),
        (scaled, (2.0,), (torch.ones(4, 6), torch.ones(()))),
        (scaled, (2.0,), (torch.ones(4, 6, dtype=torch.complex64), 2.0)),
    ],
)
def test_what_a_trace_cannot_see_is_refused(function, given, other):
    apply = built(derive(function, *X, *given))
    with pytest.raises(ValueError, match="not derived|must be"):
        apply(*other)


def test_a_size_may_be_beyond_that_of_another():
    apply = built(derive(beyond, *WIDE))
    with pytest.raises(ValueError, match="must be"):
        apply(torch.ones(2, 200), torch.ones(2, 140))


def from_three(x):
    return (x - 3).norm(dim=-1)


def at_the_bound(x, y):
    return (x * y * 3).clamp(max=1.0)


def of_bytes(x, picture):
    return x * (picture * 2.0)


def hidden_by_infinity(x, mask):
    return x.masked_fill(mask, -math.inf).softmax(-1)


def keys(Q, K):  # noqa: N803
    return (Q @ K.mT).softmax(-1)


def of_labels(x, label):
    return x.log_softmax(-1).gather(dim=-1, index=label.unsqueeze(-1)).exp()


def own_names(x, w):
    grad_x = x * w
    return grad_x.tanh() * w.exp() + x.sin() * grad_x.cos()


def masked_by(token, h, mask):
    return h.masked_fill(mask, token).square()


def sloped_by(x, slope=0.01):
    if not 0.0 < slope < 1.0:
        raise ValueError("slope")
    return F.leaky_relu(x - 1, negative_slope=slope)


def shared(b, x, t=4.0):
    assert 0 < t < 10
    return torch.tanh(x + b / t)


def norm_of_one(x, p):
    return x.norm(dim=-1) - (x * p.log()).sum(-1)


def series(x):
    u, total = x - 1.0, torch.zeros_like(x)
    for k in range(3):
        total = total + 0.5 * u**k
    return total


exp_x, product = 2.0, 3.0  # as the backward would call what it computes


def own_globals(x, y):
    return (x.exp() * y * product).tanh() * exp_x


def between(x, factor, w):
    return x * x * factor * w


def share_of_rows(x):
    lengths = x.norm(dim=-1)
    return lengths / lengths.sum(-1, keepdim=True)


def segments(x, index, more):
    total = torch.zeros_like(more).index_add(0, index, x)
    return total * total.scatter_add(1, index[:, None].expand_as(x), x.sin())


AXIS = -1


def in_turn(x, power):
    return (x.square() * (-1.0) ** power).sum(AXIS)


def of_one_piece(x):
    return sum(part.square() for part in x.chunk(1)) + torch.mm(x, x.mT).sum()


NO_MASK, SOME = torch.zeros(4, 6, dtype=torch.bool), torch.tensor([0, 2, 0, 1])
ROWS = torch.ones(2, 3, 4, dtype=torch.float64)
ROWS[0, 1] = 0
BYTES, HALF = torch.full((4, 6), 200, dtype=torch.uint8), torch.arange(24).view(4, 6)
AT_THE_BOUND = torch.tensor(
    [[1.1750202148948197], [0.2836830627319643]], dtype=torch.float64
)


@pytest.mark.parametrize(
    ("function", "given", "other"),
    [
        (masked_by, [X[0].sum(), *X, NO_MASK], [ONES.sum(), ONES, ~NO_MASK]),
        (sloped_by, [*X, 0.01], [ONES - 1, 0.2]),
        (shared, [*example((6,), (4, 6)), 4.0], [*example((6,), (4, 6)), 5.0]),
        (norm_of_one, 2 * X, [ONES * (HALF > 5), ONES]),
        (series, X, [ONES]),
        (own_globals, 2 * X, [ONES, ONES]),
        (between, [*X, 2.0, *X], [ONES, 3.0, ONES]),
        (share_of_rows, example((2, 3, 4)), [ROWS]),
        (segments, [*X, SOME, *X], [ONES.sin(), SOME, ONES]),
        (in_turn, [*X, torch.tensor(1)], [ONES, torch.tensor(2)]),
        (of_one_piece, X, [ONES]),
        (power, example((3, 4)), [60 * torch.ones(5).double(), 3.0]),
        (in_halves, example((3, 12)), example((5, 2))),
        (in_halves, example((3, 8)), example((5, 10))),
        (widths, example((3, 4)), example((7, 4))),
        (scaled, X, [*X, 3.0]),
        (picked, [*X, LABELS], [X[0][:3, :4], LABELS[:3] % 4]),
        (from_three, X, [3 * ONES]),
        (at_the_bound, 2 * X, AT_THE_BOUND),
        (of_bytes, [*X, BYTES // 50], [ONES, BYTES]),
        (hidden_by_infinity, [*X, HALF > 9], [ONES, HALF > 9]),
        (keys, 2 * X, [ONES, ONES]),
        (of_labels, [*X, HALF[:, 0] % 6], [HALF.double().sin(), HALF[:, 1] % 6]),
        (own_names, 2 * X, [ONES, ONES]),
    ],
)
def test_it_is_right_where_nothing_was_tried(function, given, other):
    torch.testing.assert_close(*slopes(function, given, *other))


def bound_twice(x):
    h = x.sin()
    x = x.abs()
    return h * x


def test_what_is_saved_is_the_input():
    with pytest.raises(Refused, match="`x` must stay the input"):
        derive(bound_twice, *X, save=("h",))


def test_autocast_is_refused():
    with torch.autocast("cpu"), pytest.raises(ValueError, match="autocast"):
        built(derive(scaled, *X))(*X)


def approximate(x):
    return F.gelu(x, approximate="tanh")


def reads(x):
    return x * float(x.sum())


def sloped(x):
    return F.elu(x - 3, alpha=0.5)


def closes_over(x):
    return x * TENSOR


def changes(x):
    y = 2 * x
    y += 1
    return y


def writes_into(x):
    mask = x > -1
    torch.gt(x, -5, out=mask)
    return x * mask


def activates(x):
    gate = x.detach() * 2
    F.relu(gate, True)
    return x * gate


def keeps_more(x, to_save=2.0):
    return x * to_save


def repeats(x):
    for _ in range(100):
        x = torch.sin(x)
    return x


def waits(x, step=0.5):
    while step < 1:
        x, step = torch.sin(x), step + step
    return x


def force(F):  # noqa: N803
    return 2 * F


def largest(x):
    return torch.max(x, 2 - x)


def pairwise(x):
    return x**x


def swallows(x):
    try:
        return torch.sort(x)[0]
    except ValueError:
        return 2 * x


def sorts(x):
    return torch.sort(x)[0]


def same(x):
    return x * 2 if x is x.detach() else x * 3


def counts_threads(x):
    return x * torch.get_num_threads()


def far_off(x):
    return (x - 5).sqrt()


def on_device(x):
    return x * 2 if x.device.type == "cpu" else x * 3


def in_digits(x):
    return x * len(repr(x.shape[0]))


def after_softmax(x):
    return torch.softmax(x, -1).topk(2)[0]


def squeezes(x):
    return x.sum(1).squeeze(0).square()


def quietly(x):
    with torch.no_grad():
        scale = x.amax()
    return x / scale


def in_a_part(x):
    parts = [x, x]
    parts[0] = x.sin()
    return parts[0] * parts[1]


def by_a_rule(x):
    rule = lambda t: t.sin()  # noqa: E731
    return rule(x)


def by_range_of_dtype(x):
    return x.square() * round(4 - 1e5 / torch.finfo(x.dtype).max)


def of_a_number(x):
    return x[: torch.ones((), dtype=torch.long)].exp()


def constant(x):
    return x.exp(), x.detach()


def itself(x):
    return x


def root_and_more(x):
    """Without a gradient, the output of the root would make it nan."""
    return x.sqrt(), x.exp()


def of_some(x):
    kept = torch.arange(x.shape[0])[x.detach()[:, 0] > 0]
    return x[kept].mean(0)


def of_pairs(x):
    i, j = torch.where(x.detach() > 0)
    return x[i, j].var(0)


def up_to_a_number(x):
    return x.sum() / torch.arange(x.detach().sum()).shape[0]


def in_rounds(x):
    for _ in range((x > 1).sum()):
        x = x.sin()
    return x * 2


def chosen(x):
    return [x.sin(), x.cos()][torch.ones((), dtype=torch.long)] * 2


def counted_from(x):
    pairs = enumerate([x.sin()], torch.ones((), dtype=torch.long))
    return sum(k * part for k, part in pairs)


def widened(x):
    count = (x > 1).sum()
    return x.square() * torch.ones([2, (count + 1)]).shape[1]


def cut(x):
    return x.square().split((x > 1).sum())[0]


def added(x):
    return x.square() * (2 if math.fsum([(x > 1).sum()]) > 12 else 3)


def nowhere(x):
    return x[()].sin()


def shifted(x):
    return x * (1 << x.shape[0])


def in_half(x):
    return x.to(torch.float32).square()


def nothing_more(x):
    return x + 0


def renamed(x):
    return grow(x)


def by_place(x, /):
    return x.sin()


dtype = 3.5


def by_a_name(x):
    return x * 2 if x.mean(0).shape[0] / 2 < dtype else x * 3


def of_type(x, type=2.0):
    return x * type


def spectral(x):
    return 1e-23 * torch.linalg.norm(x, 2)


def imports(x):
    from math import exp

    return x * exp(1)


def twice_through(x):
    terms = (x.sin() * k for k in (1, 2))
    return sum(terms) * x + sum(terms)


def pairs_kept(x):
    pairs = [*enumerate([x]), enumerate([x])]
    return pairs[0][1] * x


def grows(x):
    parts = [x.sin()]
    parts *= 2
    return sum(parts)


def diagonals(x):
    return torch.stack([x.square()] * 4).diagonal()


DECIDES = "a tensor's numbers decide a shape or a Python value"


def tiny(x):
    return 1e-23 * x.square()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (of_some, "`getitem`: a tensor's numbers decide a shape"),
        (of_pairs, DECIDES),
        (up_to_a_number, DECIDES),
        (twice_through, "an iterator that is kept: make a list of it"),
        (pairs_kept, "an iterator that is kept: make a list of it"),
        (grows, "`parts \\*= 2` changes a list in place"),
        (diagonals, "`diagonal` of a batch"),
        (in_rounds, DECIDES),
        (chosen, DECIDES),
        (counted_from, DECIDES),
        (widened, "`ones`: a tensor's numbers decide"),
        (cut, "`split`: a tensor's numbers decide"),
        (added, DECIDES),
        (nowhere, "an index that does nothing"),
        (shifted, "`LShift`: not in the table"),
        (in_half, "`to` of what has a gradient"),
        (nothing_more, "an output is an input, or one plus 0"),
        (renamed, "`grow` is a global"),
        (by_place, "a signature with . or /"),
        (by_a_name, "`dtype` is a global"),
        (of_type, "`type` is a name that derive uses"),
        (spectral, "`norm`: not in the table"),
        (imports, "`from`: not in the table, write it above"),
        (approximate, "`gelu` with options: write out"),
        (sloped, "`elu` with options: write out"),
        (reads, DECIDES),
        (closes_over, "`TENSOR` is a global"),
        (changes, "`y \\+= 1` changes a tensor in place"),
        (writes_into, "`gt` changes a tensor in place"),
        (activates, "`relu` changes a tensor in place"),
        (keeps_more, "`to_save` is a name that PyTorch uses"),
        (repeats, "8 rounds"),
        (waits, "`while`: not in the table, but for is"),
        (force, "`F` is a name that derive uses"),
        (largest, "line [0-9]+: `max`: not in the table, but amax and maximum are"),
        (pairwise, "line [0-9]+: `pow` with a tensor"),
        (swallows, "`try`: not in the table"),
        (sorts, "`sort`: not in the table"),
        (same, "`is` of two values"),
        (counts_threads, "`get_num_threads`: not in the table"),
        (far_off, "nowhere finite"),
        (on_device, "`type`: not in the table"),
        (in_digits, "`repr`: not in the table"),
        (after_softmax, "`topk`: not in the table"),
        (squeezes, "`squeeze` of a size that is not 1"),
        (counted, "`bit_length`: not in the table"),
        (quietly, "for no_grad write x.detach"),
        (in_a_part, "`parts.0. =` changes it in place"),
        (by_a_rule, "`lambda`: not in the table"),
        (by_range_of_dtype, "a number of the dtype that is rounded"),
        (of_a_number, DECIDES),
        (itself, "an output is an input"),
        (root_and_more, "at zeros, of output 1 alone, off by nan"),
        (constant, "output 1 depends on no input"),
        (lambda x: x, "write a def"),
        (math.sqrt, "a plain function is needed"),
    ],
)
def test_what_it_cannot_write_is_refused_by_name(function, words):
    with pytest.raises(Refused, match=words):
        derive(function, *X)


def large(x):
    return x.square().masked_fill(x > 1, -1e30)


def test_a_wrong_rule_is_not_printed(monkeypatch):
    rules = sys.modules["helpers.derive.rules"].ELEMENTWISE
    monkeypatch.setitem(rules, "sigmoid", ["g * y"])
    monkeypatch.setitem(rules, "square", ["3 * g * a"])
    for given in (GATED, [tiny, *X], [large, *X]):
        with pytest.raises(Refused, match="not printed"):
            derive(*given)


def test_what_cannot_be_compared_is_not_printed(monkeypatch):
    def broken(self, f, tensors, wanted):
        raise TypeError("of its own")

    module = sys.modules["helpers.derive.derive"]
    monkeypatch.setattr(module.Derivation, "derivatives", broken)
    with pytest.raises(Refused, match="nothing to compare with, TypeError: of its own"):
        derive(*GATED)


def test_a_wrong_tangent_is_not_printed(monkeypatch):
    monkeypatch.setattr(Forward, "sum", lambda self, parts: parts[0])
    assert "def jvp" in derive(soft, *X, jvp=True)
    with pytest.raises(Refused, match="not printed"):
        derive(*GATED, jvp=True)


def test_what_is_saved_has_no_tangent():
    with pytest.raises(Refused, match="jvp with save"):
        derive(*GATED, save=["gate"], jvp=True)


def test_the_command(tmp_path):
    (tmp_path / "m.py").write_text("def f(x, w):\n    return (x @ w.T).cos()\n")
    command = [sys.executable, "-m", "helpers.derive", f"{tmp_path}/m.py:f"]
    said = subprocess.run(
        [*command, "--input", "4x6", "--input", "3x6"], capture_output=True, text=True
    )
    assert "class FFunction(torch.autograd.Function)" in said.stdout, said.stderr
    said = subprocess.run([*command, "--input", "4x6"], capture_output=True, text=True)
    assert "no backward of f: missing a required argument: 'w'" in said.stderr
