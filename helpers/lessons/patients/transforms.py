"""What a Function declares beyond backward: a jvp for forward mode, a rule for vmap."""

import torch
from torch.autograd import Function

from .patient import Double, broken, draw, healthy, matrix, slip, vector

# --- forward mode ---------------------------------------------------------------------------------


@healthy("a jvp beside backward, and a generated rule for vmap", vector)
class Cube(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x**2

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * 3 * x**2


slip("CubeWithAThirdOfATangent", "jvp-wrong", "the factor 3 is forgotten in forward mode only",
     Cube, vector, {"tangent * 3": "tangent"})  # fmt: skip


@broken("jvp-wrong", "the slope instead of the slope times the tangent", vector,
        "does not change with that of `x`")  # fmt: skip
class ForgottenTangent(Cube):
    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2


slip("NothingSavedForForward", "jvp-fails", "nothing was saved for forward mode", Cube, vector,
     {"        ctx.save_for_forward(*inputs)\n": ""})  # fmt: skip


class Halve(Function):
    """x / 2, whose gradient is reversed."""

    @staticmethod
    def forward(ctx, x):
        return 0.5 * x

    @staticmethod
    def backward(ctx, grad_output):
        return -0.5 * grad_output

    @staticmethod
    def jvp(ctx, tangent):
        return 0.5 * tangent


@healthy("deliberate, and the same in both modes", vector, "unfaithful", faithful=False)
class ReversesBoth(Halve):
    @staticmethod
    def jvp(ctx, tangent):
        return -0.5 * tangent


class Axpy(Function):
    """2x + y, where None arrives for what does not move."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        return 2 * x + y

    @staticmethod
    def backward(ctx, grad_output):
        return None if grad_output is None else 2 * grad_output, grad_output

    @staticmethod
    def jvp(ctx, x, y):
        if x is None or y is None:
            return y if x is None else 2 * x
        return 2 * x + y


healthy("None is answered in forward mode", lambda: draw((6,), (6,)))(Axpy)


@broken("jvp-wrong", "right for each input, wrong for both", lambda: draw((6,), (6,)))
class OneTangentOfTwo(Axpy):
    @staticmethod
    def jvp(ctx, x, y):
        return y if x is None else 2 * x


@healthy("another Function ends forward mode", vector)
def doubled_cube(x):
    return Double.apply(Cube.apply(x))


# --- vmap -----------------------------------------------------------------------------------------


@healthy("a rule that asks where the batch is", matrix)
class SoftmaxOfRows(Function):
    @staticmethod
    def forward(x):
        return torch.softmax(x, -1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return y * (grad_output - (grad_output * y).sum(-1, keepdim=True))

    @classmethod
    def vmap(cls, info, in_dims, x):
        return cls.apply(x.movedim(in_dims[0], 0)), 0


slip("SoftmaxOverTheBatch", "vmap-wrong", "the last dimension may be that of the batch",
     SoftmaxOfRows, matrix, {"x.movedim(in_dims[0], 0)), 0": "x), in_dims[0]"})  # fmt: skip


slip("BatchElsewhere", "vmap-wrong", "the batch was moved to the front",
     SoftmaxOfRows, matrix, {"0)), 0": "0)), in_dims[0]"})  # fmt: skip


class Hadamard(Function):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * y, grad_output * x

    @classmethod
    def vmap(cls, info, in_dims, *tensors):
        tensors = [
            t if d is None else t.movedim(d, 0) for t, d in zip(tensors, in_dims, strict=True)
        ]
        return cls.apply(*(t.expand(info.batch_size, *t.shape[-2:]) for t in tensors)), 0


healthy("a rule for one batch or two", lambda: draw((3, 4), (3, 4)))(Hadamard)


@broken("vmap-wrong", "dimension 0 is taken for None", lambda: draw((3, 4), (3, 4)))
class ZeroTakenForNone(Hadamard):
    @staticmethod
    def vmap(info, in_dims, x, y):
        x_dim, y_dim = in_dims
        x = x.movedim(x_dim, -1) if x_dim else x.unsqueeze(-1)
        y = y.movedim(y_dim, -1) if y_dim else y.unsqueeze(-1)
        x, y = torch.broadcast_tensors(x, y)
        return Hadamard.apply(x, y).movedim(-1, 0), 0


@broken("vmap-fails", "None stands for no batch", lambda: draw((3, 4), (3, 4)))
class EveryArgumentHasABatch(Hadamard):
    @classmethod
    def vmap(cls, info, in_dims, x, y):
        return cls.apply(x.movedim(in_dims[0], 0), y.movedim(in_dims[1], 0)), 0


@broken("vmap-wrong", ".data in the rule cuts the graph", lambda: draw((3, 4), (3, 4)),
        "another gradient of `x` than a loop")  # fmt: skip
class DetachedByTheRule(Hadamard):
    @classmethod
    def vmap(cls, info, in_dims, x, y):
        return super().vmap(info, in_dims, x.data, y)


@healthy("a rule that refuses openly", lambda: draw((3, 4), (3, 4)))
class RefusesABatch(Hadamard):
    @classmethod
    def vmap(cls, info, in_dims, x, y):
        if in_dims[1] is not None:
            raise NotImplementedError("y has no batch")
        return super().vmap(info, in_dims, x, y)
