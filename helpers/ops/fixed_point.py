r"""A layer that is defined by an equation: the z that f leaves where it is.

    z = f(z, x)        dL/dx = y · ∂f/∂x,   where y solves   y = dL/dz + y · ∂f/∂z

Backward is a fixed point, too, of the transposed Jacobian, whatever the steps were that led to z
(implicit function theorem). So nothing of them is kept, but one application of f at z, and a solver
may stop, restart or begin at the solution: the gradient is that of the equation. Unrolling would
differentiate the steps.

Both are iterated plainly, z ← f(z, x). That converges where f contracts, and there backward does,
too, at the same rate, because a matrix and its transpose have the same eigenvalues. An accelerated
solver (Anderson's, say) takes fewer steps, but keeps several z, couples the samples of a batch, and
also finds points at which backward would not converge. To damp, hand over another f with the same
fixed points: lambda z, x: (z + f(z, x)) / 2.

Forward and backward of z = tanh(0.8 W z + x), 512 x 256, float32, one thread of an AMD EPYC, from
`python -m tools.benchmark fixed_point`; the peak is beyond the arguments:

                              peak, MiB    time
unrolled, 60 steps                   47    1
torchdeq, its iteration               6    0.26
torchdeq, Anderson's                 15    1.22
fixed_point                           4    0.19

Source: Bai, Kolter and Koltun, Deep Equilibrium Models (NeurIPS 2019),
https://arxiv.org/abs/1909.01377

Needs torch 2.10 or later. Private: `torch._C._are_functorch_transforms_active`, `_backward_hooks`,
`torch._C.DisableTorchFunctionSubclass`, `torch._C._functorch.is_legacy_batchedtensor`, and the name
of the node that `fully_shard` leaves in a graph, `RegisterPostBackwardFunctionBackward`.

>>> import torch
>>> a = torch.tensor([2.0, 9.0], dtype=torch.float64, requires_grad=True)
>>> root = fixed_point(lambda z, a: (z + a / z) / 2, torch.ones_like(a), a)
>>> root.sum().backward()
>>> a.grad.allclose(0.5 / a.sqrt())
True
"""

import math
import threading
import weakref
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, repeat

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks


class NotConvergedError(RuntimeError):
    """An iteration ended without a fixed point; the message has its residual."""


def _largest(tensor):
    return tensor.abs().max().item() if tensor.numel() else 0.0


def _still_to_go(changes):
    """An estimate: where each step is ρ times the last, ρ + ρ² + … = ρ / (1 - ρ) times the last."""
    if len(changes) < 5 or not min(changes[-5:]):
        return math.inf
    # Some shrink by turns, of two to four steps.
    rate = max((changes[-1] / changes[-1 - n]) ** (1 / n) for n in (2, 3, 4))
    if rate >= 1:
        return math.inf
    last = max(rate**n * changes[-1 - n] for n in range(4))
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


class _Ticket:
    """Stands in a recorded graph for a tensor that it needs."""


class _Recorded:
    """What `function` returns for variables that do not depend on each other, and its graph.

    The tensors that the graph needs are held apart. So the node that stands for it can save them:
    then a change in place is an error, and hooks around the call see each of them once.
    """

    def __init__(self, function, tensors, within=None):
        """within: the record whose graph the function differentiates, so that this one needs it."""
        held = weakref.WeakKeyDictionary()  # not self is in the hooks: the graph holds them
        variables = [tensor.detach().requires_grad_() for tensor in tensors]
        self.within, self.held = within, [held, *(within.held if within else [])]
        # Where gradients arrive, also those of a leaf that is frozen or converted by then.
        with torch._C.DisableTorchFunctionSubclass():
            self.edges = [get_gradient_edge(variable) for variable in variables]
        self.lock = within.lock if within else threading.RLock()
        if within:
            self.edges += within.edges

        def pack(tensor):
            ticket = _Ticket()
            held[ticket], ticket.version = tensor.detach(), tensor._version
            return ticket

        with torch.enable_grad(), saved_tensors_hooks(pack, lambda ticket: held[ticket]):
            self.outputs = function(*variables)
        if any(tensor._version != ticket.version for ticket, tensor in held.items()):
            raise ValueError("f must not change in place what its gradient needs")

    def _holds(self):
        return [tensor for held in self.held for tensor in held.values()]

    def _hold(self, tensors):
        places = [(held, ticket) for held in self.held for ticket in list(held)]
        for (held, ticket), tensor in zip(places, tensors, strict=True):
            held[ticket] = tensor

    def hand_over(self):
        tensors, own = self._holds(), self.held[0]
        own.update(dict.fromkeys(list(own)))
        return tensors

    @contextmanager
    def with_its(self, tensors):
        with self.lock:  # for two threads that go back through one graph
            before = self._holds()
            self._hold(tensors)
            try:
                yield
            finally:
                self._hold(before)

    def pull_back(self, *weights, to=slice(None)):
        """The gradients of the outputs to all variables, or to some of them."""
        edges = self.edges[to]
        to = [edge.node.variable for edge in edges]
        if any(variable._backward_hooks for variable in to):
            words = "f uses a tensor that has a hook, which would be called more than once"
            raise RuntimeError(f"{words}; hand it to fixed_point as an input")
        pairs = [(o, w) for o, w in zip(self.outputs, weights, strict=True) if o.requires_grad]
        if not pairs:
            return [torch.zeros_like(variable) for variable in to]
        outputs, weights = zip(*pairs, strict=True)
        create = torch.is_grad_enabled()
        gradients = torch.autograd.grad(outputs, edges, weights, True, create, allow_unused=True)
        return [torch.zeros_like(v) if g is None else g for g, v in zip(gradients, to, strict=True)]


def _nodes(output):
    """The nodes of the graph behind a tensor, in an order that repeats itself."""
    found, new = {}, [output.grad_fn]
    while new:
        node = new.pop()
        if node is not None and node not in found:
            found[node] = True
            new += [following for following, _ in node.next_functions]
    return found


def _record(g, z, tensors):
    """One application of g, None if it depends on nothing; the leaves that are no inputs of it."""
    other, recorded = (_Recorded(g, (z, *tensors)) for _ in range(2))
    (output,) = recorded.outputs
    if not output.requires_grad:
        return None, []
    elsewhere, nodes = _nodes(other.outputs[0]), _nodes(output)
    if any(node.name() == "RegisterPostBackwardFunctionBackward" for node in nodes):
        raise ValueError(
            "f contains a module under fully_shard, which would lose its gradients; "
            "apply fully_shard to the module that calls fixed_point"
        )
    shared = [node for node in nodes if node in elsewhere]  # the rest was made within the call
    histories = [node.name() for node in shared if not hasattr(node, "variable")]
    if histories:
        raise ValueError(
            f"f uses a tensor with a history ({min(histories)}) that is not among its inputs, so "
            "its gradient would be lost; hand it to fixed_point as an input"
        )
    leaves = [node.variable for node in shared]
    recorded.edges += [GradientEdge(node, 0) for node in shared]
    return recorded, leaves


class _Apart(torch.autograd.Function):
    """What was recorded, as a function of the tensors that its variables stand for."""

    @staticmethod
    def forward(ctx, recorded, *tensors):
        ctx.recorded, ctx.count = recorded, len(tensors)
        ctx.save_for_backward(*tensors, *recorded.hand_over())
        return tuple(output.detach() for output in recorded.outputs)

    @staticmethod
    def backward(ctx, *grad_outputs):
        recorded, saved = ctx.recorded, ctx.saved_tensors
        with recorded.with_its(saved[ctx.count :]):
            if not torch.is_grad_enabled():
                return None, *recorded.pull_back(*grad_outputs)
            pull_back = _Recorded(recorded.pull_back, grad_outputs, recorded)
            return None, *_Apart.apply(pull_back, *grad_outputs, *saved[: ctx.count])


class _Solution(torch.autograd.Function):
    """z, for which recorded(z, *tensors) = z, as a function of the tensors."""

    @staticmethod
    def forward(ctx, recorded, iterate, *tensors):
        ctx.recorded, ctx.iterate, ctx.count = recorded, iterate, len(tensors)
        z = recorded.edges[0].node.variable.detach().clone()
        ctx.save_for_backward(z, *tensors, *recorded.hand_over())
        return z

    @staticmethod
    def backward(ctx, grad_output):
        if torch._C._functorch.is_legacy_batchedtensor(grad_output):
            raise RuntimeError(
                "the backward of fixed_point does not work under vmap (is_grads_batched, "
                "vectorize=True): how many steps it takes depends on the numbers; use a loop"
            )
        recorded, (z, *saved) = ctx.recorded, ctx.saved_tensors
        tensors, held = saved[: ctx.count], saved[ctx.count :]

        def solve(grad_output):
            step = lambda y: grad_output + recorded.pull_back(y, to=slice(1))[0]  # noqa: E731
            try:
                return ctx.iterate(step, grad_output, what="gradient")
            except NotConvergedError:
                scale = 2.0 ** math.frexp(_largest(grad_output))[1]
                if grad_output.dtype != torch.float16 or scale == 1:
                    raise
                # Near 1 only its end overflows, which a loss scaler waits for, too.
                return scale * solve(grad_output / scale)

        with recorded.with_its(held):
            with torch.no_grad():
                if grad_output.isfinite().all():
                    y = solve(grad_output)
                else:  # not of our making, and a loss scaler waits for it
                    y = torch.full_like(grad_output, math.nan)
            if not torch.is_grad_enabled():
                return None, None, *recorded.pull_back(y)[1:]

            def adjoint(y, grad_output):
                slope, *_ = recorded.pull_back(y)
                return (grad_output + slope,)

            step = _Recorded(adjoint, (y, grad_output), recorded)
            pull_back = _Recorded(recorded.pull_back, (y,), recorded)
            y = _Solution.apply(step, ctx.iterate, grad_output, z, *tensors)
            _, *gradients = _Apart.apply(pull_back, y, z, *tensors)
        return None, None, *gradients


def _check(f, z0, tol, max_steps):
    if not callable(f):
        raise TypeError(f"f must be callable, got {type(f).__name__}")
    if not isinstance(z0, torch.Tensor):
        raise TypeError(f"z0 must be a torch.Tensor, got {type(z0).__name__}")
    if not z0.is_floating_point():
        raise TypeError(f"z0 must be floating-point, got {z0.dtype}")
    if z0.itemsize == 1:
        raise TypeError(f"z0 must have a dtype of 16 bits or more, got {z0.dtype}")
    if z0.layout != torch.strided:
        raise TypeError(f"z0 must be dense, got {z0.layout}")
    if z0.is_meta:
        raise ValueError("z0 must hold numbers, got one on the device meta")
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


def _versions(*things):
    return [t._version for t in things if torch.is_tensor(t) and not t.is_inference()]


def _autocast_now(device_type):
    """Makes this autocast again without its cache: casts of a step without grad have no history."""
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
        before = _versions(z, *arguments)
        with autocast():
            result = _checked(f(z, *arguments), z)
        if _versions(z, *arguments) != before:
            raise ValueError("f must not change z or its other arguments in place")
        return (result,)

    constants = [tensor.detach() for tensor in tensors]
    modes = chain([torch.is_grad_enabled()], repeat(False))  # with it: what f caches has a history

    def step(z):
        with torch.set_grad_enabled(next(modes)):
            return g(z, *constants)[0].detach()  # because f may enable gradients to take one itself

    z = iterate(step, z0.detach().clone(), what="fixed point")
    recorded, leaves = _record(g, z, tensors) if torch.is_grad_enabled() else (None, [])
    return _Solution.apply(recorded, iterate, *tensors, *leaves) if recorded else z


def fixed_point(f, z0, *inputs, tol=1e-6, max_steps=200):
    """The z for which z = f(z, *inputs), found from z0, differentiated by the implicit theorem.

    f: a function or module that returns a tensor with the shape, dtype and device of z; the same
    one for the same arguments, so no dropout; and that changes in place none of them, and nothing
    that its gradient needs.
    z0: a floating-point tensor, where the iteration begins. No gradient flows to it: where there
    are several solutions it chooses one, and does not move it.
    inputs: what else f is called with. Gradients flow to the tensors among them, to f's parameters
    if it is a module, and to every other leaf tensor that it uses.
    tol: the iteration ends when a step changes z by at most `tol` times its largest element, and
    the error that is left, estimated from how the last five steps shrank, is no larger; that of
    the gradient likewise. It is an estimate: an iteration that nearly stands still for longer and
    then moves on passes for converged. A step within four roundings of that element is not
    questioned. tol is at least the resolution of the dtype: 1e-6 is too small for half precision.
    max_steps: how many steps to take at most.
    Returns a tensor like z0. Kept for backward are z, the inputs, and what autograd keeps of one
    application of f, however many steps it took. Backward does not call f: it has the parameters
    of the forward, also those that `torch.func.functional_call` gave it.

    Derivatives of every order: each is a fixed point itself. `torch.compile` breaks the graph here
    and resumes after it; `fullgraph=True` and `torch.export` raise, because the number of steps
    depends on the numbers. `fully_shard` may be applied to the module that calls fixed_point.

    Raises NotConvergedError if z, or in backward its gradient, is not seen to converge;
    RuntimeError under the transforms of `torch.func`, with `is_grads_batched`, and in forward mode,
    and in backward where a tensor that it needs was changed in place, or one that f uses, and is
    no input, has a hook; ValueError or TypeError for other arguments, and where f uses a tensor
    whose gradient would be lost.
    """
    _check(f, z0, tol, max_steps)
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "fixed_point does not work under torch.func (vmap, grad, jvp, jacrev, ...): "
            "how many steps it takes depends on the numbers; use torch.autograd"
        )
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        raise RuntimeError("fixed_point has no export: the number of steps depends on the numbers")
    solve = _solve
    if torch.compiler.is_compiling():  # only then, because it imports the compiler
        solve = torch.compiler.disable(_solve, reason="the number of steps depends on the numbers")
    return solve(f, z0, inputs, partial(_iterate, tol=tol, max_steps=max_steps))
