r"""A layer that is defined by an equation: the z that f leaves where it is.

    z = f(z, x)        dL/dx = y · ∂f/∂x,   where y solves   y = dL/dz + y · ∂f/∂z

Backward is a fixed point, too, of the transposed Jacobian, whatever the steps were that led to z
(implicit function theorem). So nothing of them is kept, and a solver may stop, restart or begin at
the solution: the gradient is that of the equation. Unrolling would differentiate the steps.

Both are iterated plainly, z ← f(z, x). That converges where f contracts, and there backward does,
too, at the same rate, because a matrix and its transpose have the same eigenvalues. An accelerated
solver (Anderson's, say) takes fewer steps, but keeps several z, couples the samples of a batch, and
also finds points at which backward would not converge. To damp, hand over another f with the same
fixed points: lambda z, x: (z + f(z, x)) / 2.

Source: Bai, Kolter and Koltun, Deep Equilibrium Models (NeurIPS 2019),
https://arxiv.org/abs/1909.01377

Needs torch 2.10 or later. Private: `torch._C._are_functorch_transforms_active`.

>>> import torch
>>> a = torch.tensor([2.0, 9.0], dtype=torch.float64, requires_grad=True)
>>> root = fixed_point(lambda z, a: (z + a / z) / 2, torch.ones_like(a), a)
>>> root.sum().backward()
>>> a.grad.allclose(0.5 / a.sqrt())
True
"""

import math
from contextlib import nullcontext
from functools import partial

import torch
from torch.autograd import forward_ad


class NotConvergedError(RuntimeError):
    """An iteration ended without a fixed point; the message has its residual."""


def _largest(tensor):
    return tensor.abs().max().item() if tensor.numel() else 0.0


def _still_to_go(changes):
    """An estimate: where each step is ρ times the last, ρ + ρ² + … = ρ / (1 - ρ) times the last."""
    rate = math.sqrt(changes[-1] / changes[-3]) if len(changes) > 2 else 1.0
    if rate >= 1:
        return math.inf
    last = max(changes[-1], rate * changes[-2])  # some shrink by turns
    return last * rate / (1 - rate)


def _iterate(step, z, tol, max_steps, what):
    """z ← step(z), until a step, and what is still to go, are at most `tol` of its largest element.

    A step that is lost in rounding says nothing of the rate, so that it is always the last.
    """
    changes, rounding = [], 4 * torch.finfo(z.dtype).eps
    for number in range(1, max_steps + 1):
        before, z = z, step(z)
        change, size = _largest(z - before), _largest(z)
        if not math.isfinite(change):
            raise NotConvergedError(
                f"the {what} diverged: step {number} of the iteration changed it by {change}"
            )
        changes.append(change)
        if change <= tol * size and (
            change <= rounding * size or _still_to_go(changes) <= tol * size
        ):
            return z
    raise NotConvergedError(
        f"the {what} did not converge in {max_steps} steps: the last one changed it by "
        f"{change:.2g}, about {_still_to_go(changes):.2g} is still to go, and its largest element "
        f"is {size:.2g} (tol={tol})"
    )


def _variables(tensors):
    return [tensor.detach().requires_grad_() for tensor in tensors]


def _nodes(output):
    """The nodes of the graph behind a tensor."""
    found, new = set(), {output.grad_fn}
    while new:
        found |= new
        new = {following for node in new for following, _ in node.next_functions} - found - {None}
    return found


def _brought_along(f, z, tensors):
    """The leaves that f uses without being given them, such as a module's parameters.

    None if what f returns depends on nothing at all.
    """
    (first,), (second,) = (f(*_variables((z, *tensors))) for _ in range(2))
    if not first.requires_grad:
        return None
    shared = _nodes(first) & _nodes(second)  # the rest was made within one of the calls
    histories = [node.name() for node in shared if not hasattr(node, "variable")]
    if histories:
        raise ValueError(
            f"f uses a tensor with a history ({min(histories)}) that is not among its inputs, so "
            "its gradient would be lost; hand it to fixed_point as an input"
        )
    return [node.variable for node in shared]


def _pull_back(g, leaves, count, *tensors):
    """`count` gradients of what g returns, and its arguments -> the gradients of these and leaves.

    The arguments are variables that do not depend on each other.
    """
    weights, variables = tensors[:count], tensors[count:]
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        results = g(*variables)
    pairs = [(r, w) for r, w in zip(results, weights, strict=True) if r.requires_grad]
    if not pairs:
        return tuple(torch.zeros_like(t) for t in (*variables, *leaves))
    results, weights = zip(*pairs, strict=True)
    return torch.autograd.grad(
        results, (*variables, *leaves), weights, create_graph=recorded, materialize_grads=True
    )


class _Apart(torch.autograd.Function):
    """g(*tensors), differentiated as if none of the tensors depended on another."""

    @staticmethod
    def forward(ctx, g, count, *tensors_and_leaves):
        ctx.g, ctx.count = g, count
        ctx.save_for_backward(*tensors_and_leaves)
        return g(*_variables(tensors_and_leaves[:count]))

    @staticmethod
    def backward(ctx, *grad_outputs):
        leaves = ctx.saved_tensors[ctx.count :]
        pull_back = partial(_pull_back, ctx.g, leaves, len(grad_outputs))
        count = len(grad_outputs) + ctx.count
        return None, None, *_Apart.apply(pull_back, count, *grad_outputs, *ctx.saved_tensors)


class _Solution(torch.autograd.Function):
    """z, where z, = g(z, *tensors), as a function of the tensors, and of the leaves that g uses."""

    @staticmethod
    def forward(ctx, g, iterate, count, z, *tensors_and_leaves):
        ctx.g, ctx.iterate, ctx.count = g, iterate, count
        z = z.clone()
        ctx.save_for_backward(z, *tensors_and_leaves)
        return z

    @staticmethod
    def backward(ctx, grad_output):
        g, (z, *rest) = ctx.g, ctx.saved_tensors
        tensors, leaves = rest[: ctx.count], rest[ctx.count :]
        variables = _variables((z, *tensors))
        with torch.enable_grad():
            (output,) = g(*variables)

        def pulled(y, *inputs):
            return torch.autograd.grad(output, inputs, y, retain_graph=True, materialize_grads=True)

        def solve(grad_output):
            step = lambda y: grad_output + pulled(y, variables[0])[0]  # noqa: E731
            try:
                return ctx.iterate(step, grad_output, what="gradient")
            except NotConvergedError:
                scale = 2.0 ** math.frexp(_largest(grad_output))[1]
                if grad_output.dtype != torch.float16 or scale == 1:
                    raise
                # Near 1 only its end overflows, which a loss scaler waits for, too.
                return scale * solve(grad_output / scale)

        with torch.no_grad():
            if grad_output.isfinite().all():
                y = solve(grad_output)
            else:  # not of our making, and a loss scaler waits for it
                y = torch.full_like(grad_output, math.nan)
        if not torch.is_grad_enabled():
            return None, None, None, None, *pulled(y, *variables[1:], *leaves)

        def adjoint(y, grad_output, *variables):
            return (grad_output + _pull_back(g, leaves, 1, y, *variables)[0],)

        y = _Solution.apply(adjoint, ctx.iterate, ctx.count + 2, y, grad_output, z, *rest)
        pull_back = partial(_pull_back, g, leaves, 1)
        _, *gradients = _Apart.apply(pull_back, ctx.count + 2, y, z, *rest)
        return None, None, None, None, *gradients


def _check(f, z0, tol, max_steps):
    if not callable(f):
        raise TypeError(f"f must be callable, got {type(f).__name__}")
    if not isinstance(z0, torch.Tensor):
        raise TypeError(f"z0 must be a torch.Tensor, got {type(z0).__name__}")
    if not z0.is_floating_point():
        raise TypeError(f"z0 must be floating-point, got {z0.dtype}")
    if isinstance(tol, bool) or not isinstance(tol, (int, float)):
        raise TypeError(f"tol must be a Python number, got {type(tol).__name__}")
    resolution = torch.finfo(z0.dtype).eps
    if not resolution <= tol < 1:
        raise ValueError(
            f"tol must lie between {resolution:.1e}, the resolution of {z0.dtype}, and 1, got {tol}"
        )
    if isinstance(max_steps, bool) or not isinstance(max_steps, int):
        raise TypeError(f"max_steps must be an int, got {type(max_steps).__name__}")
    if max_steps < 1:
        raise ValueError(f"max_steps must be 1 or more, got {max_steps}")


def _checked(result, z):
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"f must return a torch.Tensor, got {type(result).__name__}")
    for what in ("shape", "dtype", "device"):
        given, asked = getattr(result, what), getattr(z, what)
        if given != asked:
            kind = TypeError if what == "dtype" else ValueError
            raise kind(f"f must return a tensor with the {what} of z, {asked}, got {given}")
    if forward_ad.unpack_dual(result).tangent is not None:
        raise NotImplementedError("fixed_point has no forward mode; use backward")
    return result


def _versions(*tensors):
    return [tensor._version for tensor in tensors if not tensor.is_inference()]


def _autocast_now(device_type):
    """A function that makes the autocast of this moment again, without its cache.

    What is cast for a step without grad would be reused, without a history, in the one with.
    """
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext
    return partial(
        torch.autocast,
        device_type,
        dtype=torch.get_autocast_dtype(device_type),
        enabled=torch.is_autocast_enabled(device_type),
        cache_enabled=False,
    )


def _solve(f, z0, inputs, iterate):
    positions = [n for n, i in enumerate(inputs) if isinstance(i, torch.Tensor) and i.requires_grad]
    tensors = [inputs[n] for n in positions]
    autocast = _autocast_now(z0.device.type)

    def g(z, *tensors):
        arguments = list(inputs)
        for n, tensor in zip(positions, tensors, strict=True):
            arguments[n] = tensor
        before = _versions(z, *tensors)
        with autocast():
            result = _checked(f(z, *arguments), z)
        if _versions(z, *tensors) != before:
            raise ValueError("f must not change z or its other arguments in place")
        return (result,)

    with torch.no_grad():  # and detached, because f may enable gradients to take one itself
        z = iterate(lambda z: g(z, *tensors)[0].detach(), z0, what="fixed point")
    if not torch.is_grad_enabled():
        return z
    leaves = _brought_along(g, z, tensors)
    if leaves is None:
        return z
    return _Solution.apply(g, iterate, len(tensors), z, *tensors, *leaves)


def fixed_point(f, z0, *inputs, tol=1e-6, max_steps=200):
    """The z for which z = f(z, *inputs), found from z0, differentiated by the implicit theorem.

    f: a function or module that returns a tensor with the shape, dtype and device of z; the same
    one for the same arguments, so no dropout; and that changes none of them in place.
    z0: a floating-point tensor, where the iteration begins. No gradient flows to it: where there
    are several solutions it chooses one, and does not move it.
    inputs: what else f is called with. Gradients flow to the tensors among them, to f's parameters
    if it is a module, and to every other leaf tensor that it uses.
    tol: the iteration ends when a step changes z by at most `tol` times its largest element, and
    the error that is left, estimated from the rate at which the last steps shrank, is no larger;
    that of the gradient likewise. A step within four roundings of that element is not questioned.
    At least the resolution of the dtype, so float16 and bfloat16 need more than 1e-6.
    max_steps: how many steps to take at most.
    Returns a tensor like z0. Kept for backward are z and the inputs, however many steps it took.

    Derivatives of every order: each is a fixed point itself. Autocast is the same in backward as
    around the call. `torch.compile` breaks the graph here and resumes after it; `fullgraph=True`
    and `torch.export` raise, because the number of steps depends on the numbers.
    Raises NotConvergedError if z, or in backward its gradient, does not converge; RuntimeError
    under the transforms of `torch.func` and in forward mode; ValueError or TypeError for other
    arguments, and where f uses a tensor whose gradient would be lost.
    """
    _check(f, z0, tol, max_steps)
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "fixed_point does not work under torch.func (vmap, grad, jvp, jacrev, ...): "
            "how many steps it takes depends on the numbers; use torch.autograd"
        )
    if torch.compiler.is_exporting():
        raise RuntimeError("fixed_point has no export: the number of steps depends on the numbers")
    solve = _solve
    if torch.compiler.is_compiling():  # only then, because it imports the compiler
        solve = torch.compiler.disable(_solve, reason="the number of steps depends on the numbers")
    return solve(f, z0, inputs, partial(_iterate, tol=tol, max_steps=max_steps))
