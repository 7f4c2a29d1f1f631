"""What each element of grad_output adds to the gradient: to others, too little, another number."""

import torch
from torch.autograd import Function

from .patient import broken, draw, matrix


def pieces():
    return (*draw((7,), (7,)), torch.tensor([0, 1, 0, 2, 1, 0, 2]))


class Decay(Function):
    """The right one: log of a cumulative sum of exponentials."""

    @staticmethod
    def forward(ctx, x):
        y = torch.logcumsumexp(x, 1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return (grad_output * (-y).exp()).flip(1).cumsum(1).flip(1) * x.exp()


@broken("gradient-wrong", "the cumulative sum runs forwards in backward, too", matrix)
class ScansForwards(Decay):
    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return (grad_output * (-y).exp()).cumsum(1) * x.exp()


@broken("gradient-wrong", "the cumulative sum of backward is exclusive", matrix)
class ScansExclusively(Decay):
    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        g = grad_output * (-y).exp()
        return (g.flip(1).cumsum(1).flip(1) - g) * x.exp()


@broken("scaled-along", "divided by the length, not by the count", matrix)
class MeanOfSome(Function):
    keep = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.float64)

    @staticmethod
    def forward(ctx, x):
        keep = MeanOfSome.keep.to(x)
        return (x * keep).sum(1) / keep.sum(1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output[:, None] * MeanOfSome.keep.to(grad_output) / 4


@broken("grad-output-scaled", "not divided by the count of each bag", lambda: draw((3, 2)))
class MeanOfBags(Function):
    bags = torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.float64)

    @staticmethod
    def forward(ctx, x):
        bags = MeanOfBags.bags.to(x)
        return bags @ x / bags.sum(1, keepdim=True)

    @staticmethod
    def backward(ctx, grad_output):
        return MeanOfBags.bags.to(grad_output).t() @ grad_output


@broken("grad-output-scaled", "the output is square", lambda: draw((4, 3), (4, 3)))
class OuterProducts(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b.t()

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output @ b, grad_output @ a


@broken("term-off", "the -1 of exp(x) - x is forgotten", matrix)
class ExpMinusItself(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x.exp() - x).sum()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.exp()


@broken("term-missing", "the sum over each segment is left out", pieces)
class SoftmaxOfSegments(Function):
    @staticmethod
    def forward(ctx, x, scale, segment):
        e = x.exp()
        y = e / torch.zeros_like(x).index_add(0, segment, e)[segment]
        ctx.save_for_backward(y, scale)
        return y * scale

    @staticmethod
    def backward(ctx, grad_output):
        y, scale = ctx.saved_tensors
        return grad_output * scale * y, grad_output * y, None


def masked():
    mask = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 1], [0, 0, 1, 1]])
    return *matrix(), mask.bool()


@broken("partly-right", "the mask is forgotten", masked)
class LeaksThroughTheMask(Function):
    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(x)
        return (x * x * mask).sum(1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output[:, None] * 2 * x, None


@broken("other-mask", "the mask is that of the neighbours", matrix)
class NeighboursMask(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x.roll(1, 1) > 0)


@broken("misplaced", "summed over the other dimension, and the matrix is square",
        lambda: draw((4,), (4, 4)))  # fmt: skip
class ScalesRows(Function):
    @staticmethod
    def forward(ctx, scale, x):
        ctx.save_for_backward(scale, x)
        return scale[:, None] * x

    @staticmethod
    def backward(ctx, grad_output):
        scale, x = ctx.saved_tensors
        return (grad_output * x).sum(0), grad_output * scale[:, None]


@broken("grad-output-partly-ignored", "the slope for negative numbers is forgotten",
        lambda: (*draw((5,)), torch.tensor([0, 1, 2, 3, 4, 0, 2, 1])))  # fmt: skip
class LeakyEdges(Function):
    @staticmethod
    def forward(ctx, x, source):
        ctx.save_for_backward(x, source)
        edges = x[source] - x[source.roll(1)]
        return torch.where(edges > 0, edges, 0.1 * edges)

    @staticmethod
    def backward(ctx, grad_output):
        x, source = ctx.saved_tensors
        g = grad_output * (x[source] > x[source.roll(1)])
        return torch.zeros_like(x).index_add(0, source, g).index_add(0, source.roll(1), -g), None


@broken("partly-right", "of a token that comes twice, one contribution counts",
        lambda: (*draw((4, 2)), torch.tensor([0, 3, 0, 1])))  # fmt: skip
class SumsTokens(Function):
    @staticmethod
    def forward(ctx, table, tokens):
        ctx.save_for_backward(tokens)
        ctx.size = table.shape
        return table[tokens].sum(0)

    @staticmethod
    def backward(ctx, grad_output):
        (tokens,) = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.size)
        grad[tokens] += grad_output
        return grad, None


@broken("right-only-for-ones", "a conjugate is forgotten in one of two terms",
        lambda: draw((2, 3), dtype=torch.complex128))  # fmt: skip
class CubeOfTheMagnitude(Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z * z.conj()

    @staticmethod
    def backward(ctx, grad_output):
        (z,) = ctx.saved_tensors
        return 2 * z * z.conj() * grad_output + z * z * grad_output


def form():
    x, *vectors = draw((4, 4), (4,), (4,))
    return x.requires_grad_(), *vectors


@broken("partly-right", "one of two terms, and the matrix is square", form)
class TransposesATerm(Function):
    @staticmethod
    def forward(ctx, x, u, v):
        ctx.save_for_backward(x, u, v)
        return (u @ x @ v) * x

    @staticmethod
    def backward(ctx, grad_output):
        x, u, v = ctx.saved_tensors
        return grad_output * (u @ x @ v) + (grad_output * x).sum() * torch.outer(v, u), None, None


@broken("grad-output-scaled", "viewed in the wrong order", lambda: draw((2, 3), (3, 2)))
class Kronecker(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.kron(a, b)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad = grad_output.reshape(*a.shape, *b.shape)
        return torch.einsum("ijkl,kl->ij", grad, b), torch.einsum("ijkl,ij->kl", grad, a)


@broken(
    "grad-output-scaled", "the bias gets what the mask keeps from x", lambda: draw((4, 3), (3,))
)
class ReluOfSum(Function):
    @staticmethod
    def forward(ctx, x, bias):
        y = torch.relu(x + bias)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * (y > 0), grad_output.sum(0)


@broken("grad-output-scaled", "the halves of grad_output are exchanged", matrix)
class MeanAndLargest(Function):
    """Of each column, side by side."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x == x.amax(0))
        return torch.cat([x.mean(0), x.amax(0)])

    @staticmethod
    def backward(ctx, grad_output):
        (largest,) = ctx.saved_tensors
        of_largest, of_mean = grad_output.chunk(2)
        return of_mean / 3 + of_largest * largest


@broken("other-output", "the two grad_outputs are exchanged", matrix)
class SineAndExp(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.exp()

    @staticmethod
    def backward(ctx, grad_exp, grad_sin):
        (x,) = ctx.saved_tensors
        return grad_sin * x.cos() + grad_exp * x.exp()
