"""Functions whose gradient is that of another forward."""

import torch
from torch.autograd import Function


class Mish(Function):
    """The derivative of softplus is forgotten."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        s = torch.nn.functional.softplus(x)
        return x * s.tanh()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        t = torch.log1p(x.exp()).tanh()
        return grad_output * (t + x * (1 - t * t))


class Energy(Function):
    """One of the two terms behind a sum is lost."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        pairs = x[1:] - x[:-1]
        bends = x.sin()
        return (pairs**4).sum() + (bends * bends).sum()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        found = torch.zeros_like(x)
        found[1:] += 4 * (x[1:] - x[:-1]) ** 3
        found[:-1] -= 4 * (x[1:] - x[:-1]) ** 3
        return grad_output * found


class OneSided(Energy):
    """Each difference acts on its right end only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        down = x[1:] - x[:-1]
        right = x[:, 1:] - x[:, :-1]
        return (down**4).sum() + (right**4).sum()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        found = torch.zeros_like(x)
        found[1:] += 4 * (x[1:] - x[:-1]) ** 3
        found[:, 1:] += 4 * (x[:, 1:] - x[:, :-1]) ** 3
        return grad_output * found


class Smoothed(Function):
    """The loss is smoothed, its gradient is not."""

    @staticmethod
    def forward(ctx, x, target, eps):
        logs = x.log_softmax(1)
        ctx.save_for_backward(logs, target)
        hard = logs.gather(1, target[:, None]).sum()
        return -(1 - eps) * hard - eps * logs.mean(1).sum()

    @staticmethod
    def backward(ctx, grad_output):
        logs, target = ctx.saved_tensors
        p = logs.exp()
        p[torch.arange(len(p)), target] -= 1
        return grad_output * p, None, None


class Ramp(Function):
    """The sum for the bias forgets the mask."""

    @staticmethod
    def forward(ctx, x, b):
        ctx.save_for_backward(x + b)
        return torch.relu(x + b)

    @staticmethod
    def backward(ctx, grad_output):
        (z,) = ctx.saved_tensors
        return grad_output * (z > 0), grad_output.sum(0)


class Mixed(Function):
    """Backward recomputes another function."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        t = torch.tanh(x)
        return t @ w + t @ w**2

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        t = torch.sigmoid(x)
        g = grad_output @ (w + w**2).mT
        return g * t * (1 - t), t.mT @ grad_output * (1 + 2 * w)


class Normal(Function):
    """The density has another width than the distribution."""

    @staticmethod
    def forward(ctx, x, mu):
        ctx.save_for_backward(x, mu)
        z = x - mu
        return z * torch.erf(z / 2)

    @staticmethod
    def backward(ctx, grad_output):
        x, mu = ctx.saved_tensors
        z = x - mu
        g = grad_output * (torch.erf(z) + z * 2 / torch.pi**0.5 * torch.exp(-z * z))
        return g, -g.sum(0)


class Form(Function):
    """x.mT (a + a.mT) x, of which one half is taken twice."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x, a)
        y = x @ a
        return (y * x).sum(1)

    @staticmethod
    def backward(ctx, grad_output):
        x, a = ctx.saved_tensors
        g = grad_output[:, None]
        return 2 * g * (x @ a), x.mT @ (g * x)


class Sums(Function):
    """A running sum, along another dimension on the way back."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cumsum(1).exp()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        g = grad_output * x.cumsum(1).exp()
        turned = torch.zeros_like(g)
        for k in range(len(g)):
            turned[k] = g[k:].sum(0)
        return turned


class Gated(Function):
    """One factor is that of the other branch."""

    @staticmethod
    def forward(ctx, x, u, v):
        ctx.save_for_backward(x, u, v)
        a = x * u
        b = x * v
        return (a.sin() * b).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        x, u, v = ctx.saved_tensors
        g = grad_output[:, None]
        s, c = (x * u).sin(), (x * u).cos()
        return g * (c * u * x * u + s * v), g * c * x * x * v, g * s * x


class Weighted(Function):
    """The weight of a group is applied twice, inside."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        inner = (x * w).sin()
        return (inner + x.exp()).tanh().sum()

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        t = ((x * w).sin() + x.exp()).tanh()
        return grad_output * (1 - t * t) * ((x * w).cos() * w * w + x.exp()), None


class Recurrent(Function):
    """q meets the state of the round before."""

    @staticmethod
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        state, out = torch.zeros_like(k[0]), []
        for t in range(len(k)):
            state = 0.5 * state + k[t]
            out.append(q[t] * state)
        return torch.stack(out)

    @staticmethod
    def backward(ctx, grad_output):
        q, k = ctx.saved_tensors
        states, dk, later = [torch.zeros_like(k[0])], torch.zeros_like(k), 0
        for t in range(len(k)):
            states.append(0.5 * states[-1] + k[t])
        for t in reversed(range(len(k))):
            later = 0.5 * later + grad_output[t] * q[t]
            dk[t] = later
        return grad_output * torch.stack(states[:-1]), dk


class Filled(Function):
    """A result that is written row by row, one of them of nothing."""

    @staticmethod
    def forward(x, w):
        y = torch.empty_like(x)
        y[:1] = x[:1]
        y[1:] = w * x[1:].detach().exp() + x[1:] ** 2
        return y.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        inner = torch.cat((x[:1], w * x[1:].exp() + x[1:] ** 2))
        g = grad_output * inner.cos()
        dx = torch.cat((g[:1], g[1:] * w * x[1:].exp()))
        return dx, (g[1:] * x[1:].exp()).sum(0)


class Pieces(Function):
    """Input and forget gate are taken for each other on the way back."""

    @staticmethod
    def forward(ctx, gates, c):
        ctx.save_for_backward(gates, c)
        i, f, g = gates.chunk(3, 1)
        return c * f.sigmoid() + i.sigmoid() * g

    @staticmethod
    def backward(ctx, grad_output):
        gates, c = ctx.saved_tensors
        i, f, g = gates.chunk(3, 1)
        s, t = i.sigmoid(), f.sigmoid()
        parts = grad_output * c * t * (1 - t), grad_output * g * s * (1 - s), grad_output * s
        return torch.cat(parts, 1), grad_output * t


class Slices(Pieces):
    """The halves are taken for each other."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[:, :2].exp() * x[:, 3:].sin() + x[:, 2:3]

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        a, b = grad_output * x[:, :2].exp() * x[:, 3:].sin(), x[:, :2].exp() * x[:, 3:].cos()
        return torch.cat((grad_output * b, grad_output.sum(1, keepdim=True), a), 1)


class Pooled(Function):
    """The gradient goes to the whole window."""

    @staticmethod
    def forward(ctx, x):
        ctx.size = x.shape[-1]
        found = x.exp().max(-1)
        ctx.save_for_backward(x, found.indices)
        return found.values * 2

    @staticmethod
    def backward(ctx, grad_output):
        x, _ = ctx.saved_tensors
        return grad_output[:, None] * 2 * x.exp() / ctx.size


class Chunked(Function):
    """Each round overwrites the gradient of w."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        sums = []
        for k in range(3):
            sums.append((x[k] * w).sum())
        return torch.stack(sums).logsumexp(0)

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        shares = grad_output * (x @ w).softmax(0)
        dx = torch.empty_like(x)
        for k in range(3):
            dx[k], dw = shares[k] * w, shares[k] * x[k]
        return dx, dw


class Decay(Function):
    """The gradient of a meets the state that it made."""

    @staticmethod
    def forward(ctx, a, x):
        states = [torch.zeros_like(x[0])]
        for t in range(len(x)):
            states.append(a[t] * states[-1] + x[t])
        ctx.save_for_backward(a, torch.stack(states))
        return torch.stack(states[1:])

    @staticmethod
    def backward(ctx, grad_output):
        a, states = ctx.saved_tensors
        da, dx, later = torch.zeros_like(a), torch.zeros_like(a), 0
        for t in reversed(range(len(a))):
            later = later + grad_output[t]
            da[t], dx[t] = later * states[t + 1], later
            later = later * a[t]
        return da, dx


class Carried(Decay):
    """What is carried is not multiplied by a, in each of the rounds."""

    @staticmethod
    def backward(ctx, grad_output):
        a, states = ctx.saved_tensors
        dx = grad_output.flip(0).cumsum(0).flip(0)
        return dx * states[:-1], dx


class Inner(Function):
    """Its backward is right, and forward of another Function."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.cos()


class Outer(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Inner.apply(x) * x.exp()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.exp() * (x.sin() + 1)


class Power(Function):
    """The slope is that of the power below."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        return x.sin() ** n

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (ctx.n - 1) * x.sin() ** (ctx.n - 2) * x.cos(), None


class Phase(Function):
    """The angle is taken for a constant."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * torch.cos(z.angle())

    @staticmethod
    def backward(ctx, grad_output):
        (z,) = ctx.saved_tensors
        return grad_output * torch.cos(z.angle())


class Twice(Function):
    """Of a product of a matrix with itself, only one factor has a gradient."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.kron(a, a)

    @staticmethod
    def backward(ctx, grad_output):
        (a,) = ctx.saved_tensors
        n = len(a)
        return (grad_output.reshape(n, n, n, n).permute(0, 2, 1, 3) * a).sum((-2, -1))


class Migrated(Function):
    """What is divided here is multiplied there; only the second counts."""

    @staticmethod
    def forward(ctx, s, x):
        ctx.save_for_backward(s, x)
        return (x / s) @ (x * s).mT

    @staticmethod
    def backward(ctx, grad_output):
        s, x = ctx.saved_tensors
        return (grad_output.mT @ (x / s) * x).sum(0), None
