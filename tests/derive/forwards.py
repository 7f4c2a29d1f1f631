"""Forwards of the forty that were written before `derive` was run on any (16d28d77)."""

import math

import torch

FORWARDS = []


def shapes(*sizes, texts=()):
    """Of the tensors that a forward takes, and texts that its Function holds."""

    def keep(function):
        FORWARDS.append((function, sizes, texts))
        return function

    return keep


@shapes((4, 6), (6,))
def rms_norm(x, weight):
    mean_square = x.pow(2).mean(-1, keepdim=True)
    scale = torch.rsqrt(mean_square + 1e-6)
    return x * scale * weight


@shapes((4, 6), (6,), (6,))
def layer_norm(x, weight, bias):
    mean = x.mean(-1, keepdim=True)
    centered = x - mean
    variance = (centered * centered).mean(-1, keepdim=True)
    normal = centered / torch.sqrt(variance + 1e-5)
    return normal * weight + bias


@shapes((2, 4, 3, 3), (4,), (4,))
def group_norm(x, weight, bias):
    n, c, h, w = x.shape
    groups = x.reshape(n, 2, c // 2 * h * w)
    mean = groups.mean(2, keepdim=True)
    variance = groups.var(2, keepdim=True, unbiased=False)
    normal = (groups - mean) / torch.sqrt(variance + 1e-5)
    normal = normal.reshape(n, c, h, w)
    scale = weight.reshape(1, c, 1, 1)
    shift = bias.reshape(1, c, 1, 1)
    return normal * scale + shift


@shapes((4, 6), (8, 6), (8, 6), (6, 8))
def swiglu(x, w_gate, w_up, w_down):
    gate = x @ w_gate.T
    up = x @ w_up.T
    hidden = gate * torch.sigmoid(gate) * up
    return hidden @ w_down.T


@shapes((4, 12), (4, 3))
def lstm_cell(gates, cell):
    i, f, g, o = gates.chunk(4, 1)
    i = torch.sigmoid(i)
    f = torch.sigmoid(f + 1)
    g = torch.tanh(g)
    o = torch.sigmoid(o)
    forgotten = f * cell
    written = i * g
    new_cell = forgotten + written
    hidden = o * torch.tanh(new_cell)
    return hidden, new_cell


@shapes(
    (2, 4, 6),
    (2, 5, 6),
    (2, 5, 3),
    texts=[
        "weights = torch.softmax(scores, -1)",
        "grad_weights = grad_output @ v.mT",
        "grad_v = weights.mT @ grad_output if needs_v else None",
        "needs_q, needs_k, needs_v = ctx.needs_input_grad",
        "- (grad_weights * weights).sum(-1, keepdim=True)",
        "/ math.sqrt(q.shape[-1])",
    ],
)
def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores, -1)
    return weights @ v


@shapes(
    (2, 4, 9),
    (4, 3),
    (4, 3),
    texts=[
        "grad_turned_first, grad_turned_second, grad_rest = (",
        "cat([grad_first, grad_second, grad_rest], -1)",
    ],
)
def rotary(x, cos, sin):
    half = cos.shape[-1]
    first = x[..., :half]
    second = x[..., half : 2 * half]
    rest = x[..., 2 * half :]
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    return torch.cat([turned_first, turned_second, rest], -1)


@shapes((4, 6), (3, 6), texts=['pairs."""\n        check_cosines(x, y)\n'])
def cosines(x, y):
    """The cosines of all pairs."""
    x_norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    y_norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
    return (x / x_norm) @ (y / y_norm).mT


@shapes((5, 3), texts=[".index_add(0, "])
def mirrored(x):
    rows = torch.arange(len(x)).flip(0)
    return x.square() * x.index_select(0, rows)


@shapes((3, 4, 4))
def newton_schulz(g):
    x = g / (g.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(3):
        a = x @ x.transpose(1, 2)
        b = -4.775 * a + 2.0315 * (a @ a)
        x = 3.4445 * x + b @ x
    size = g.shape[-1]
    scale = math.sqrt(max(1, size / 4))
    out = x * scale
    return out


@shapes((5, 3))
def lennard_jones(position):
    difference = position[:, None, :] - position[None, :, :]
    squared = (difference**2).sum(-1)
    eye = torch.eye(position.shape[0])
    safe = squared + eye
    inverse = 1 / safe
    sixth = inverse**3
    pair = 4 * (sixth**2 - sixth) * (1 - eye)
    return 0.5 * pair.sum()


@shapes((6, 6), (6, 6))
def heat_step(temperature, conductivity):
    up = torch.roll(temperature, 1, 0)
    down = torch.roll(temperature, -1, 0)
    left = torch.roll(temperature, 1, 1)
    right = torch.roll(temperature, -1, 1)
    laplacian = up + down + left + right - 4 * temperature
    flux = conductivity.clamp(min=0.0) * laplacian
    new = temperature + 0.1 * flux
    energy = new.square().sum()
    return new, energy


@shapes((4, 6), (3, 6), (3,))
def mixture_log_likelihood(x, mean, log_scale):
    difference = x.unsqueeze(1) - mean
    scale = log_scale.exp()
    scaled = difference / scale.unsqueeze(-1)
    squared = (scaled**2).sum(-1)
    size = x.shape[1]
    log_density = -0.5 * squared - size * log_scale
    log_density = log_density - 0.5 * size * math.log(2 * math.pi)
    evidence = torch.logsumexp(log_density, 1)
    share = torch.softmax(log_density, 1)
    return -evidence.mean(), share
