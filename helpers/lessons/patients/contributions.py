"""What each element of grad_output adds to the gradient: to others, too little, another number."""

import torch
from torch.nn import functional as F

from .patient import draw, matrix, wrong


def decayed(x):
    return torch.logcumsumexp(x, 1)


def exclusive(t):
    return t.flip(1).cumsum(1).flip(1) - t


wrong(
    "ScansForwards", "gradient-wrong", "the cumulative sum runs forwards in backward, too", matrix,
    decayed, lambda g, x: (g * (-decayed(x)).exp()).cumsum(1) * x.exp(),
)  # fmt: skip
wrong(
    "ScansExclusively", "gradient-wrong", "the cumulative sum of backward is exclusive", matrix,
    decayed, lambda g, x: exclusive(g * (-decayed(x)).exp()) * x.exp(),
)  # fmt: skip


wrong(
    "OuterProducts", "grad-output-scaled", "the output is square", lambda: draw((4, 3), (4, 3)),
    lambda a, b: a @ b.t(), lambda g, a, b: (g @ b, g @ a),
    "right if grad_output were transposed before",
)  # fmt: skip


def masked():
    mask = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 1], [0, 0, 1, 1]])
    return *matrix(), mask.bool()


wrong("LeaksThroughTheMask", "partly-right", "the mask is forgotten", masked,
      lambda x, mask: (x * x * mask).sum(1), lambda g, x, mask: g[:, None] * 2 * x,
      "where `mask` is False, it should be zero")  # fmt: skip
wrong("NeighboursMask", "other-mask", "the mask is that of the neighbours", matrix,
      lambda x: x.clamp(min=0), lambda g, x: g * (x.roll(1, 1) > 0))  # fmt: skip
wrong(
    "ScalesRows", "misplaced", "summed over the other dimension, and the matrix is square",
    lambda: draw((4,), (4, 4)),
    lambda scale, x: scale[:, None] * x, lambda g, scale, x: ((g * x).sum(0), g * scale[:, None]),
    "The gradient of `scale` adds the right contributions in the wrong places",
)  # fmt: skip


def differences(x, source):
    return x[source] - x[source.roll(1)]


def of_edges(g, x, source):
    g = g * (differences(x, source) > 0)
    return torch.zeros_like(x).index_add(0, source, g).index_add(0, source.roll(1), -g)


wrong(
    "LeakyEdges", "grad-output-partly-ignored", "the slope for negative numbers is forgotten",
    lambda: (*draw((5,)), torch.tensor([0, 1, 2, 3, 4, 0, 2, 1])),
    lambda x, source: F.leaky_relu(differences(x, source), 0.1), of_edges,
    "grad_output: those where the output is below 0",
)  # fmt: skip
wrong(
    "SumsTokens", "partly-right", "of a token that comes twice, one contribution counts",
    lambda: (*draw((4, 2)), torch.tensor([0, 3, 0, 1])), lambda table, tokens: table[tokens].sum(0),
    lambda g, table, tokens: torch.zeros_like(table).index_put((tokens,), g),
    "at index 0 of dimension 0 it is multiplied by 0.5",
)  # fmt: skip


def form():
    x, *vectors = draw((4, 4), (4,), (4,))
    return x.requires_grad_(), *vectors


wrong(
    "TransposesATerm", "partly-right", "one of two terms, and the matrix is square", form,
    lambda x, u, v: (u @ x @ v) * x,
    lambda g, x, u, v: g * (u @ x @ v) + (g * x).sum() * torch.outer(v, u),
)  # fmt: skip
wrong(
    "ReluOfSum", "grad-output-scaled", "the bias gets what the mask keeps from x",
    lambda: draw((4, 3), (3,)),
    lambda x, bias: torch.relu(x + bias), lambda g, x, bias: (g * (x + bias > 0), g.sum(0)),
    "set to zero wherever the output is not above 0 before.",
)  # fmt: skip
wrong("SineAndExp", "other-output", "the two grad_outputs are exchanged", matrix,
      lambda x: (x.sin(), x.exp()), lambda exp, sin, x: sin * x.cos() + exp * x.exp(),
      "gradient of `x` through `output[0]` is that through `output[1]`.")  # fmt: skip
