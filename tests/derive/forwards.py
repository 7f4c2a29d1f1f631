"""Forty forwards, written before `derive` was run on any of them.

Each is a plain function with the shapes of its tensors. Half have eight lines or more.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812

FORWARDS = []


def shapes(*sizes):
    def keep(function):
        FORWARDS.append((function, sizes))
        return function

    return keep


# Losses


@shapes((6, 5), (6, 5))
def dice_loss(logits, target):
    probability = torch.sigmoid(logits)
    overlap = (probability * target).sum(-1)
    total = probability.sum(-1) + target.sum(-1)
    score = (2 * overlap + 1) / (total + 1)
    return (1 - score).mean()


@shapes((6, 5), (6, 5))
def focal_loss(logits, target):
    """Binary, in the stable form."""
    p = torch.sigmoid(logits)
    positive = F.softplus(-logits)
    negative = F.softplus(logits)
    cross_entropy = target * positive + (1 - target) * negative
    hit = p * target + (1 - p) * (1 - target)
    modulator = (1 - hit) ** 2
    weight = 0.25 * target + 0.75 * (1 - target)
    return (weight * modulator * cross_entropy).sum()


@shapes((6, 5), (6, 5))
def distillation(student, teacher):
    temperature = 2.0
    log_p = F.log_softmax(student / temperature, -1)
    log_q = F.log_softmax(teacher / temperature, -1)
    q = log_q.exp()
    divergence = (q * (log_q - log_p)).sum(-1)
    return divergence.mean() * temperature**2


@shapes((5, 8), (5, 8))
def info_nce(a, b):
    a = a / a.norm(dim=-1, keepdim=True)
    b = b / b.norm(dim=-1, keepdim=True)
    logits = a @ b.T / 0.5
    rows = logits.logsumexp(1)
    columns = logits.logsumexp(0)
    match = (a * b).sum(-1) / 0.5
    loss = 0.5 * (rows + columns) - match
    return loss.mean()


@shapes((6, 4), (6, 4), (6, 4))
def gaussian_nll(mean, log_variance, target):
    variance = torch.exp(log_variance)
    squared = (target - mean) ** 2
    loss = 0.5 * (log_variance + squared / variance)
    return loss.mean()


# Norms


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


@shapes((3, 4, 5), (4,), (4,))
def instance_norm(x, weight, bias):
    mean = x.mean(dim=2, keepdim=True)
    deviation = x.std(dim=2, keepdim=True)
    y = (x - mean) / (deviation + 1e-5)
    return y * weight[:, None] + bias[:, None]


# Gates and activations


@shapes((4, 6), (8, 6), (8, 6), (6, 8))
def swiglu(x, w_gate, w_up, w_down):
    gate = x @ w_gate.T
    up = x @ w_up.T
    hidden = gate * torch.sigmoid(gate) * up
    return hidden @ w_down.T


@shapes((4, 6))
def gelu_tanh(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(inner))


@shapes((4, 8))
def glu_halves(x):
    value, gate = x.chunk(2, dim=-1)
    return value * gate.sigmoid()


@shapes((4, 5), (4, 6), (6, 5), (6, 6), (6,))
def minimal_gated_unit(x, h, w, u, bias):
    update = torch.sigmoid(x @ w.T + h @ u.T + bias)
    candidate = torch.tanh(x @ w.T + (update * h) @ u.T)
    keep = (1 - update) * h
    fresh = update * candidate
    return keep + fresh


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


@shapes((4, 5), (4, 3), (9, 5), (9, 3))
def gru_cell(x, h, w_input, w_hidden):
    from_input = x @ w_input.T
    from_hidden = h @ w_hidden.T
    size = h.shape[1]
    xr, xz, xn = from_input.split(size, 1)
    hr, hz, hn = from_hidden.split(size, 1)
    reset = torch.sigmoid(xr + hr)
    update = torch.sigmoid(xz + hz)
    candidate = torch.tanh(xn + reset * hn)
    new = (1 - update) * candidate + update * h
    return new


@shapes((5, 4), (5,))
def squeeze_gate(x, temperature):
    soft = torch.softmax(x / temperature[:, None], dim=-1)
    hard = soft.detach()
    return x * soft - hard


# Attention


@shapes((2, 4, 6), (2, 5, 6), (2, 5, 3))
def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores, -1)
    return weights @ v


@shapes((2, 4, 6), (2, 4, 6), (2, 4, 6))
def causal_attention(q, k, v):
    length = q.shape[1]
    scores = torch.einsum("bqd,bkd->bqk", q, k)
    scores = scores * q.shape[-1] ** -0.5
    row = torch.arange(length).unsqueeze(1)
    column = torch.arange(length).unsqueeze(0)
    scores = scores.masked_fill(column > row, float("-inf"))
    weights = scores.softmax(dim=-1)
    out = torch.einsum("bqk,bkd->bqd", weights, v)
    return out


@shapes((2, 4, 6), (6, 6), (6, 6), (6, 6), (6, 6))
def multi_head(x, w_q, w_k, w_v, w_o):
    heads = 2
    b, t, c = x.shape
    q = (x @ w_q).reshape(b, t, heads, c // heads).transpose(1, 2)
    k = (x @ w_k).reshape(b, t, heads, c // heads).transpose(1, 2)
    v = (x @ w_v).reshape(b, t, heads, c // heads).transpose(1, 2)
    scores = q @ k.transpose(2, 3) / (c // heads) ** 0.5
    weights = scores.softmax(-1)
    mixed = (weights @ v).transpose(1, 2).reshape(b, t, c)
    return mixed @ w_o


@shapes((2, 5, 4), (2, 5, 4), (2, 5, 3))
def linear_attention(q, k, v):
    q = F.elu(q) + 1
    k = F.elu(k) + 1
    state = k.transpose(1, 2) @ v
    total = k.sum(dim=1)
    numerator = q @ state
    denominator = (q * total.unsqueeze(1)).sum(-1, keepdim=True)
    return numerator / (denominator + 1e-6)


@shapes((2, 4, 6), (2, 5, 6), (2, 5, 3))
def capped_attention(q, k, v):
    cap = 20.0
    scores = q @ k.mT
    scores = cap * torch.tanh(scores / cap)
    top = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - top)
    weights = weights / weights.sum(-1, keepdim=True)
    out = weights @ v
    return out, weights


@shapes((2, 4, 6), (6,), (4, 5), (4, 5))
def additive_attention(keys, score_vector, projection, query):
    hidden = torch.tanh(
        keys.transpose(1, 2) @ projection + query[:2, None, :].mean(1, keepdim=True)
    )
    energy = score_vector @ hidden
    weights = energy.softmax(-1)
    entropy = -(weights * torch.log(weights)).sum(-1)
    context = (hidden * weights.unsqueeze(1)).sum(-1)
    return context, entropy


@shapes((2, 4, 6), (4, 3), (4, 3))
def rotary(x, cos, sin):
    half = x.shape[-1] // 2
    first = x[..., :half]
    second = x[..., half:]
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    return torch.cat([turned_first, turned_second], -1)


# Short loops


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


@shapes((5, 4))
def sinkhorn(cost):
    log_kernel = -cost / 0.5
    for _ in range(4):
        rows = log_kernel.logsumexp(1, keepdim=True)
        log_kernel = log_kernel - rows
        columns = log_kernel.logsumexp(0, keepdim=True)
        log_kernel = log_kernel - columns
    plan = log_kernel.exp()
    transport = (plan * cost).sum()
    return transport, plan


@shapes((4, 6), (6, 6), (6,))
def unrolled_rnn(x, weight, bias):
    h = torch.zeros_like(x)
    total = 0
    for _ in range(3):
        h = torch.tanh(x + h @ weight + bias)
        total = total + (h**2).sum()
    penalty = 0.01 * total
    energy = (weight**2).sum()
    loss = h.mean() + penalty + energy
    return loss


@shapes((6,))
def horner(x):
    coefficients = (0.5, -1.0, 2.0, 0.25)
    y = torch.zeros_like(x)
    for c in coefficients:
        y = y * x + c
    return y


# Small physics


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


@shapes((5, 2), (5, 2))
def leapfrog(position, velocity):
    step = 0.1
    for _ in range(3):
        radius = position.norm(dim=-1, keepdim=True)
        force = -position / radius**3
        velocity = velocity + 0.5 * step * force
        position = position + step * velocity
        radius = position.norm(dim=-1, keepdim=True)
        velocity = velocity - 0.5 * step * position / radius**3
    kinetic = 0.5 * (velocity**2).sum(-1)
    return position, velocity, kinetic


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


# Longer ones


@shapes((6, 4), (6, 4))
def concordance(prediction, target):
    mean_p = prediction.mean(0)
    mean_t = target.mean(0)
    centered_p = prediction - mean_p
    centered_t = target - mean_t
    variance_p = (centered_p**2).mean(0)
    variance_t = (centered_t**2).mean(0)
    covariance = (centered_p * centered_t).mean(0)
    gap = (mean_p - mean_t) ** 2
    score = 2 * covariance / (variance_p + variance_t + gap)
    return 1 - score.mean()


@shapes((3, 5, 4), (3, 5, 4))
def box_iou_like(a, b):
    top = torch.maximum(a[..., 0], b[..., 0])
    left = torch.maximum(a[..., 1], b[..., 1])
    height = torch.sigmoid(a[..., 2] + b[..., 2] - top)
    width = torch.sigmoid(a[..., 3] + b[..., 3] - left)
    overlap = height * width
    area_a = a[..., 2].exp() * a[..., 3].exp()
    area_b = b[..., 2].exp() * b[..., 3].exp()
    union = area_a + area_b - overlap
    iou = overlap / union
    return (1 - iou).sum(-1), iou


@shapes((4, 5), (5, 7), (7, 5), (5,), (5,))
def transformer_mlp(x, w_in, w_out, gain, shift):
    mean = x.mean(-1, keepdim=True)
    variance = x.var(-1, keepdim=True, correction=0)
    normal = (x - mean) * torch.rsqrt(variance + 1e-5)
    normal = normal * gain + shift
    hidden = normal @ w_in
    hidden = F.gelu(hidden)
    update = hidden @ w_out
    x = x + update
    return x


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


@shapes((4, 3), (4, 3))
def damped_pendulum(angle, speed):
    step, damping = 0.05, 0.3
    losses = 0.0
    for _ in range(2):
        k1 = -torch.sin(angle) - damping * speed
        middle_angle = angle + 0.5 * step * speed
        middle_speed = speed + 0.5 * step * k1
        k2 = -torch.sin(middle_angle) - damping * middle_speed
        angle = angle + step * middle_speed
        speed = speed + step * k2
        losses = losses + damping * (speed**2).mean()
    return angle, speed, losses


@shapes((2, 6, 4), (2, 6, 4), (4,))
def selective_scan(u, delta, decay):
    state = torch.zeros_like(u[:, 0])
    outputs = []
    rate = -torch.exp(decay)
    for t in range(3):
        step = F.softplus(delta[:, t])
        keep = torch.exp(step * rate)
        state = keep * state + step * u[:, t]
        outputs.append(state)
    return torch.stack(outputs, 1)


# What may well be refused


@shapes((6, 4))
def trimmed_mean(x):
    ordered, _ = torch.sort(x, dim=0)
    return ordered[1:-1].mean(0)


@shapes((4, 6))
def dropout_residual(x):
    return x + F.dropout(torch.relu(x), 0.5)


@shapes((2, 3, 8), (4, 3, 3))
def convolved_gate(x, weight):
    h = F.conv1d(x, weight, padding=1)
    return h * torch.sigmoid(h)


@shapes((5, 4))
def clipped_by_norm(x):
    norm = x.norm().item()
    if norm > 1.0:
        x = x / norm
    return x
