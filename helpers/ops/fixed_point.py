r"""A layer that is defined by an equation: the z that f leaves where it is.

    z = f(z, x)    dL/dx = y · ∂f/∂x,   where y solves   y = dL/dz + y · ∂f/∂z

Backward is a fixed point, too, of the transposed Jacobian, whatever the steps were that
led to z (implicit function theorem). So nothing of them is kept, but one application of
f at z, and a solver may stop, restart or begin at the solution: the gradient is that of
the equation. A derivative of higher order is the derivative of backward's fixed point.

Both are iterated plainly, z ← f(z, x). That converges where f contracts, and there
backward does, too, at the same rate, because a matrix and its transpose have the same
eigenvalues. To damp, hand over another f with the same fixed points:
lambda z, x: (z + f(z, x)) / 2.

Forward and backward of z = tanh(0.8 W z + x), 512 x 256, float32, one thread of an
AMD EPYC, from `python -m tools.benchmark fixed_point`; the peak is beyond the arguments:

                              peak, MiB    time
unrolled, 60 steps                   47    1
torchdeq, its iteration               6    0.22
torchdeq, Anderson's                 16    0.82
fixed_point                           4    0.16

Source: Bai, Kolter and Koltun, Deep Equilibrium Models (NeurIPS 2019),
https://arxiv.org/abs/1909.01377

Needs torch 2.10 or later. Private: `_backward_hooks`,
`_are_functorch_transforms_active`; `torch.utils._pytree`, for nested inputs.

>>> import torch
>>> a = torch.tensor([2.0, 9.0], dtype=torch.float64, requires_grad=True)
>>> root = fixed_point(lambda z, a: (z + a / z) / 2, torch.ones_like(a), a)
>>> root.sum().backward()
>>> a.grad.allclose(0.5 / a.sqrt())
True
"""

import math
from functools import partial
from numbers import Real

import torch
from torch.autograd import grad
from torch.utils._pytree import tree_flatten, tree_unflatten


class NotConvergedError(RuntimeError):
    """An iteration ended without a fixed point; the message has its residual."""


class _Solution(torch.autograd.Function):
    """z, for which step(z, *inputs) = z, as a function of the inputs and of parameters.

    pull_back: y -> y · ∂step/∂(z, inputs, parameters), or a slice of these.
    """

    @staticmethod
    def forward(ctx, step, iterate, pull_back, count, z, *tensors):
        ctx.step, ctx.iterate, ctx.pull_back, ctx.count = (
            step,
            iterate,
            pull_back,
            count,
        )
        z = z.clone()
        ctx.save_for_backward(z, *tensors)
        return z

    @staticmethod
    def backward(ctx, grad_output):
        z, *tensors = ctx.saved_tensors
        inputs, parameters = tensors[: ctx.count], tensors[ctx.count :]
        nothing = None, None, None, None, None
        if not grad_output.isfinite().all():  # a loss scaler waits for that
            return *nothing, *(torch.full_like(t, math.nan) for t in tensors)
        if not torch.is_grad_enabled():
            if any(parameter._backward_hooks for parameter in parameters):
                raise RuntimeError(
                    "f uses a tensor that has a hook, which would be called twice; "
                    "hand it to fixed_point as an input"
                )
            y = ctx.iterate(
                lambda y: grad_output + ctx.pull_back(y, slice(1))[0],
                grad_output,
                "gradient",
            )
            return *nothing, *ctx.pull_back(y, slice(1, None))
        if parameters:
            raise RuntimeError(
                "a second derivative needs all that f uses among its inputs"
            )
        y = fixed_point(
            partial(_adjoint_step, ctx.step),
            grad_output.detach(),
            grad_output,
            z,
            *inputs,
            **ctx.iterate.keywords,
        )
        return *nothing, *_pull_back(ctx.step, y, z, *inputs)[1:]


def fixed_point(f, z0, *inputs, tol=1e-6, max_steps=200):
    """The z for which z = f(z, *inputs), found from z0, with the theorem's gradient.

    f: a function or module that returns a tensor like z; the same one for the same
        arguments, so no dropout, and no `spectral_norm` in training mode. It changes
        none of its arguments in place.
    z0: a floating-point tensor, where the iteration begins. No gradient flows to it.
        Where there are several solutions, z0 chooses one, and does not move it.
    inputs: what else f is called with; tensors may stand in tuples, lists and dicts.
        Gradients of every order flow to them; of first order, also to parameters and
        other leaves behind what f uses.
    tol: the iteration ends when a step changes z by at most `tol` times its largest
        element, and the error that is left, estimated from how the last five steps
        shrank, is no larger; that of the gradient likewise. A step within four
        roundings of that element is not questioned. For 16 bits it must be given.
    max_steps: how many steps to take at most.

    Kept for backward are z, the inputs and the graph of one step, however many steps it
    took. `torch.compile` breaks the graph here. Under autocast, and only there, what f
    returns is cast to the dtype of z0, and converges as far as autocast's dtype lets
    it: choose `tol` accordingly. A gradient that arrives as inf or nan leaves as nan.

    Raises TypeError or ValueError for other arguments, and NotConvergedError if z, or
    in backward its gradient, is not seen to converge. Backward raises RuntimeError if a
    leaf that f uses beside its inputs has a hook, or shall have a second derivative.

    Not supported: `torch.func`, forward mode, a module in f under `fully_shard`, and a
    hook on a computed tensor, or on a module, before f: let it be an input.
    """
    if not isinstance(z0, torch.Tensor):
        raise TypeError(f"z0 must be a torch.Tensor, got {type(z0).__name__}")
    if not isinstance(tol, Real):
        raise TypeError(f"tol must be a number, got {type(tol).__name__}")
    if not isinstance(max_steps, int):
        raise TypeError(f"max_steps must be an int, got {type(max_steps).__name__}")
    if not callable(f):
        raise TypeError(f"f must be callable, got {type(f).__name__}")
    if not z0.is_floating_point():
        raise TypeError(f"z0 must be floating-point, got {z0.dtype}")
    resolution = torch.finfo(z0.dtype).eps
    if not resolution <= tol < 1:
        raise ValueError(
            f"tol must lie between {resolution:.1e}, the resolution of {z0.dtype}, and "
            f"1, got {tol}"
        )
    if max_steps < 1:
        raise ValueError(f"max_steps must be 1 or more, got {max_steps}")
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "fixed_point does not work under torch.func, whose tensors do not say when "
            "to stop: take torch.autograd.grad, and one call for each sample"
        )
    solve = _solve
    if torch.compiler.is_compiling():  # only then, because it imports the compiler
        reason = "the number of steps depends on the numbers"
        solve = torch.compiler.disable(_solve, reason=reason)
    return solve(f, z0, inputs, partial(_iterate, tol=tol, max_steps=max_steps))


def _solve(f, z0, inputs, iterate):
    autocast = _autocast_now(z0.device.type)
    leaves, structure = tree_flatten(inputs)
    places = [
        place
        for place, value in enumerate(leaves)
        if isinstance(value, torch.Tensor) and value.requires_grad
    ]

    def step(z, *tensors):
        arguments = [*leaves]
        for place, tensor in zip(places, tensors, strict=True):
            arguments[place] = tensor
        with autocast():
            result = f(z, *tree_unflatten(arguments, structure))
            if not isinstance(result, torch.Tensor):
                raise TypeError(f"f must return a tensor, got {type(result).__name__}")
            # A Linear returns autocast's dtype.
            if torch.is_autocast_enabled(z.device.type):
                result = result.to(z.dtype)
        return result

    tensors = [leaves[place] for place in places]
    with torch.no_grad():
        start = z0.detach().clone()
        z = iterate(lambda z: step(z, *tensors), start, "fixed point")
    if not torch.is_grad_enabled():
        return z
    variables = [tensor.detach().requires_grad_() for tensor in (z, *tensors)]
    output = step(*variables)
    if not output.requires_grad:
        return z
    parameters = [
        leaf
        for leaf in _leaves_behind(output)
        if not any(leaf is variable for variable in variables)
    ]

    def pull_back(y, to):
        return grad(
            output,
            [*variables, *parameters][to],
            y,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )

    return _Solution.apply(
        step, iterate, pull_back, len(tensors), z, *tensors, *parameters
    )


def _adjoint_step(step, y, grad_output, z, *inputs):
    return grad_output + _pull_back(step, y, z, *inputs)[0]


def _pull_back(step, y, *tensors):
    """The gradients of step(*tensors) for y, as a function of y and the tensors."""
    is_recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        variables = [
            t.view_as(t) if t.requires_grad else t.detach().requires_grad_()
            for t in tensors
        ]
        return grad(
            step(*variables),
            variables,
            y,
            create_graph=is_recorded,
            allow_unused=True,
            materialize_grads=True,
        )


def _leaves_behind(output):
    """The leaf tensors in the graph of a tensor, in an order that repeats itself."""
    found, new = {}, [output.grad_fn]
    while new:
        node = new.pop()
        if node is not None and node not in found:
            found[node] = getattr(node, "variable", None)
            new += [following for following, _ in node.next_functions]
    return [leaf for leaf in found.values() if leaf is not None]


def _iterate(step, z, what, tol, max_steps):
    """z ← step(z), until a step, and what is still to go, are small enough.

    Small enough is at most `tol` of the largest element of z. A step that is lost in
    rounding says nothing of the rate, so that it is always the last.
    """
    changes, rounding = [], 4 * torch.finfo(z.dtype).eps
    for number in range(1, max_steps + 1):
        before, version = z, z._version
        z = step(z)
        if before._version != version:
            raise ValueError("f must not change z in place")
        if (z.shape, z.dtype) != (before.shape, before.dtype):
            raise ValueError(
                f"f must return a tensor like z, {tuple(before.shape)} of "
                f"{before.dtype}, got {tuple(z.shape)} of {z.dtype}"
            )
        change, size = _largest(z - before), _largest(z)
        if not math.isfinite(change):
            raise NotConvergedError(
                f"the {what} diverged: step {number} of the iteration changed it by "
                f"{change}"
            )
        changes.append(change)
        still_to_go = _still_to_go(changes)
        if change <= rounding * size or max(change, still_to_go) <= tol * size:
            return z
    raise NotConvergedError(
        f"the {what} did not converge in {max_steps} steps: the last one changed it by "
        f"{change:.2g}, about {still_to_go:.2g} is still to go, and its largest "
        f"element is {size:.2g} (tol={tol})"
    )


def _largest(tensor):
    return tensor.abs().max().item() if tensor.numel() else 0.0


def _still_to_go(changes):
    """If each step is ρ times the one before, ρ + ρ² + … = ρ / (1 - ρ) last steps."""
    if len(changes) < 5 or not min(changes[-5:]):
        return math.inf
    # Some shrink by turns, of two to four steps.
    rate = max((changes[-1] / changes[-1 - n]) ** (1 / n) for n in (2, 3, 4))
    if rate >= 1:
        return math.inf
    last = max(rate**n * changes[-1 - n] for n in range(4))
    return last * rate / (1 - rate)


def _autocast_now(device_type):
    """Makes this autocast again, without its cache.

    In the cache, a weight that a step without gradients has cast has no history.
    """
    return partial(
        torch.autocast,
        device_type,
        dtype=torch.get_autocast_dtype(device_type),
        enabled=torch.is_autocast_enabled(device_type),
        cache_enabled=False,
    )
