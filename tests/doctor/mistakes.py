"""Functions with one mistake each, in one place."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Attention(Function):
    """Softmax's correction is missing behind a product, and there are three lines after it."""

    @staticmethod
    def forward(ctx, q, k, v):
        p = (q @ k.mT).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        q, k, v, p = ctx.saved_tensors
        dp = grad_output @ v.mT
        ds = p * dp
        return ds @ k, ds.mT @ q, p.mT @ grad_output


class Gate(Function):
    """One of the two paths is left out."""

    @staticmethod
    def forward(ctx, x, h, w):
        z = torch.sigmoid(x @ w)
        ctx.save_for_backward(x, h, w, z)
        return z * h + (1 - z) * x

    @staticmethod
    def backward(ctx, grad_output):
        x, h, w, z = ctx.saved_tensors
        da = grad_output * (h - x) * z * (1 - z)
        dx = da @ w.mT
        return dx, grad_output * z, x.mT @ da


class Rotary(Function):
    """A sign inside, which leaves some elements right."""

    @staticmethod
    def forward(ctx, x, angle):
        c, s = angle.cos(), angle.sin()
        ctx.save_for_backward(c, s)
        a, b = x.chunk(2, -1)
        return torch.cat((a * c - b * s, a * s + b * c), -1)

    @staticmethod
    def backward(ctx, grad_output):
        c, s = ctx.saved_tensors
        a, b = grad_output.chunk(2, -1)
        return torch.cat((a * c + b * s, b * c + a * s), -1), None


class Scale(Function):
    """The wrong tensor is read: x for what was normalized."""

    @staticmethod
    def forward(ctx, x, weight):
        normal = x / x.norm(dim=1, keepdim=True)
        ctx.save_for_backward(x, weight, normal)
        return normal * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, normal = ctx.saved_tensors
        g = grad_output * weight
        dx = (g - normal * (normal * g).sum(1, keepdim=True)) / x.norm(dim=1, keepdim=True)
        return dx, (grad_output * x).sum(0)


class RowSums(Function):
    """The wrong dimension of a square."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor[:, None]

    @staticmethod
    def backward(ctx, grad_output):
        x, factor = ctx.saved_tensors
        return grad_output * factor[:, None], (grad_output * x).sum(0)


class Leaky(Function):
    """Another slope behind an index."""

    @staticmethod
    def forward(ctx, x, index):
        picked = x[index]
        ctx.save_for_backward(x, index, picked)
        return torch.where(picked > 0, picked, 0.3 * picked)

    @staticmethod
    def backward(ctx, grad_output):
        x, index, picked = ctx.saved_tensors
        slope = torch.where(picked > 0, 1.0, 0.1).to(x)
        return torch.zeros_like(x).index_add(0, index, grad_output * slope), None


class Temperature(Function):
    """A number that the call was given is left out."""

    @staticmethod
    def forward(ctx, x, tau):
        ctx.tau = tau
        y = (x / tau).softmax(-1)
        ctx.save_for_backward(y)
        return x + y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        inner = grad_output - (grad_output * y).sum(-1, keepdim=True)
        return grad_output + y * inner, None


class Segments(Function):
    """A softmax in segments, without its correction."""

    @staticmethod
    def forward(ctx, x, segment):
        e = x.exp()
        p = e / torch.zeros_like(x).index_add(0, segment, e)[segment]
        ctx.save_for_backward(p, segment)
        return p

    @staticmethod
    def backward(ctx, grad_output):
        p, segment = ctx.saved_tensors
        dx = p * grad_output
        return dx, None


class Adapter(Function):
    """The path through two matrices is left out."""

    @staticmethod
    def forward(ctx, x, w, a, b):
        ctx.save_for_backward(x, w, a, b)
        return x @ w + x @ a @ b

    @staticmethod
    def backward(ctx, grad_output):
        x, w, a, b = ctx.saved_tensors
        inner = grad_output @ b.mT
        dx = grad_output @ w.mT
        return dx, x.mT @ grad_output, x.mT @ inner, (x @ a).mT @ grad_output


class Recomputed(Function):
    """From the wrong tensor, behind a tanh."""

    @staticmethod
    def forward(ctx, x, shift, w):
        ctx.save_for_backward(x, shift, w)
        return ((x + shift) @ w).tanh()

    @staticmethod
    def backward(ctx, grad_output):
        x, shift, w = ctx.saved_tensors
        moved = x + shift
        t = (x @ w).tanh()
        inner = (grad_output * (1 - t * t)) @ w.mT
        return inner, inner, moved.mT @ (grad_output * (1 - (moved @ w).tanh() ** 2))


class Steps(Function):
    """In a loop: each step lacks the same factor."""

    @staticmethod
    def forward(ctx, x, weights):
        ctx.save_for_backward(x, weights)
        return sum(w * x**k for k, w in enumerate(weights, 1))

    @staticmethod
    def backward(ctx, grad_output):
        x, weights = ctx.saved_tensors
        dx = torch.zeros_like(x)
        for k, w in enumerate(weights):  # noqa: B007 (that is the mistake)
            term = (k + 1) * x**k
            dx.add_(grad_output * term)
        dw = [(grad_output * x ** (k + 1)).sum() for k in range(len(weights))]
        return dx, torch.stack(dw)


class InPlace(Function):
    """What is changed in place is too large by a half."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x * x + x.sin()) @ w

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        inner = grad_output @ w.mT
        dx = inner * x.cos()
        dx += (inner * x).mul_(3.0)
        return dx, (x * x + x.sin()).mT @ grad_output


class Scan(Function):
    """The cumulative sum is not reversed, between two factors."""

    @staticmethod
    def forward(ctx, x):
        y = x.logcumsumexp(-1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        total = (grad_output * (-y).exp()).cumsum(-1)
        return x.exp() * total


class Masked(Function):
    """What is saved is from before the mask."""

    @staticmethod
    def forward(ctx, q, k):
        s = q @ k.mT
        p = s.masked_fill(torch.ones_like(s).triu(1) > 0, -torch.inf).softmax(-1)
        ctx.save_for_backward(q, k, s.softmax(-1))
        return p

    @staticmethod
    def backward(ctx, grad_output):
        q, k, p = ctx.saved_tensors
        ds = p * (grad_output - (grad_output * p).sum(-1, keepdim=True))
        return ds @ k, ds.mT @ q


class Reversed(Function):
    """What is computed again starts from the wrong tensor, with autograd inside."""

    @staticmethod
    def forward(ctx, x, y, w):
        a = x + (y @ w).tanh()
        ctx.save_for_backward(a, y, w)
        return a, y + a.sin()

    @staticmethod
    def backward(ctx, grad_a, grad_b):
        a, y, w = ctx.saved_tensors
        with torch.enable_grad():
            start = a.detach().requires_grad_()
            again, used = (start @ w.detach()).tanh(), start
        grad_a = grad_a + grad_b * a.cos()
        (dy,) = torch.autograd.grad(again, used, grad_a)
        slope = 1 - (y @ w).tanh() ** 2
        return grad_a, dy + grad_b, y.mT @ (grad_a * slope)


class Shared(Function):
    """One step is used twice, and only for one of them something is missing."""

    @staticmethod
    def forward(ctx, x, y, w):
        t = x.tanh()
        ctx.save_for_backward(x, y, w, 1 - t * t)
        return x @ w + t + 2 * (y @ w)

    @staticmethod
    def backward(ctx, grad_output):
        x, y, w, slope = ctx.saved_tensors
        both = grad_output @ w.mT
        return both, 2 * both, (x + 2 * y).mT @ grad_output


class Planes(Function):
    """Both means run over one dimension, where there are two."""

    @staticmethod
    def forward(ctx, x):
        centred = x - x.mean((1, 2), keepdim=True)
        y = centred / centred.square().mean((1, 2), keepdim=True).sqrt()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        size = x.var((1, 2), correction=0, keepdim=True).sqrt()
        g = grad_output
        return (g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True)) / size


class Channels(Function):
    """One mean runs over another dimension, of another size."""

    @staticmethod
    def forward(ctx, x):
        y = x / x.square().mean(1, keepdim=True).sqrt()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        size = x.square().mean(1, keepdim=True).sqrt()
        return (grad_output - y * (grad_output * y).mean(2, keepdim=True)) / size


class Summed(Function):
    """grad_output is summed, as if the output were."""

    @staticmethod
    def forward(ctx, x):
        y = torch.sigmoid(x)
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return 2 * grad_output.sum() * y * y * (1 - y)


class Weights(Function):
    """A projection whose weights are p, which should be their roots."""

    @staticmethod
    def forward(ctx, x):
        p = x.softmax(-1)
        ctx.save_for_backward(p)
        return p.sqrt().cumsum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        (r,) = ctx.saved_tensors
        g = grad_output.flip(-1).cumsum(-1).flip(-1) / 2
        return r * g - r * r * (r * g).sum(-1, keepdim=True)


class Cubed(Function):
    """The input is saved after it was changed in place."""

    @staticmethod
    def forward(ctx, x):
        x.pow_(3)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x.clone())
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 3 * x * x * grad_output
