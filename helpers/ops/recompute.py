r"""Memory for time: what autograd would keep of a call is computed again in backward.

    recompute(fn, x)       y = fn(x)        kept: x          backward runs fn(x) once more
    ReversibleSequential   y1 = x1 + f(x2)  kept: y1 and y2  backward computes x2 = y2 - g(y1),
                           y2 = x2 + g(y1)  of the last      x1 = y1 - f(x2), block by block
                                            block only

The graph is recorded as usual. Only the tensors saved in it are replaced by tickets; the first
ticket that backward hands in starts the second run, which saves the same tensors in the same order.
f and g need not be invertible.

Sources: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016,
https://arxiv.org/abs/1604.06174; Gomez et al., The Reversible Residual Network: Backpropagation
Without Storing Activations, 2017, https://arxiv.org/abs/1707.04585, section 3; the hooks are those
of https://docs.pytorch.org/docs/2.13/autograd.html#saved-tensors-default-hooks

Needs torch 2.10 or later. Private: `torch.utils._pytree`, which takes nested inputs apart.

>>> import torch
>>> layers = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
>>> x = torch.ones(8, 4, requires_grad=True)
>>> recompute(layers, x).sum().backward()
>>> x.grad.shape, layers[0].weight.grad.shape
(torch.Size([8, 4]), torch.Size([64, 4]))
>>> model = ReversibleSequential([(layers, torch.nn.Linear(4, 4)) for _ in range(3)])
>>> y1, y2 = model(x, x)
>>> torch.allclose(model.inverse(y1, y2)[0], x, atol=1e-5)
True
"""

import random
import sys
import weakref
from collections.abc import Iterable
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

A_TENSOR = object()  # where one stood among the inputs


class KeepTensors(torch.autograd.Function):
    """A node that only saves: so they are guarded against changes, and outer hooks see them."""

    @staticmethod
    def forward(ctx, anchor, *tensors):
        ctx.save_for_backward(*tensors)
        return anchor.clone()


def _kept(*tensors):
    result = KeepTensors.apply(torch.empty(0, requires_grad=True), *tensors)
    return lambda: result.grad_fn.saved_tensors  # on torch 2.10 a node forgets them without result


class Ticket:
    """Stands in the graph for a tensor that is computed when it is needed."""


class EverythingIsThere(BaseException):
    """Ends a second run at the last tensor that the first one saved."""


class Call:
    """One call of `fn`: what it takes to repeat it, and what the repetition saves."""

    def __init__(self, fn, args, kwargs, context_fn=None):
        self.fn, self.contexts = fn, context_fn() if context_fn else (nullcontext(),) * 2
        leaves, self.structure = tree_flatten((args, kwargs))
        self.leaves = [A_TENSOR if torch.is_tensor(leaf) else leaf for leaf in leaves]
        # By backward a module may have other parameters, and has other statistics.
        own = dict(fn.named_parameters() if _has_its_own_parameters(fn) else ())
        self.names = list(own)
        self.tensors = _kept(*filter(torch.is_tensor, leaves), *own.values())
        self.random = [(read, write, read()) for read, write in _random_sources(leaves)]
        self.autocast = _autocast_now()
        self.buffers = self.named_buffers()
        self.copies = {name: buffer.clone() for name, buffer in self.buffers.items()}
        self.before = self.versions()
        self.tickets, self.kinds = [], []
        self.found = weakref.WeakKeyDictionary()

    def named_buffers(self):
        return dict(self.fn.named_buffers() if isinstance(self.fn, torch.nn.Module) else ())

    def versions(self):
        return [(id(buffer), buffer._version) for buffer in self.named_buffers().values()]

    def first(self, args, kwargs, start):
        """`fn(*args, **kwargs)`; in backward the first ticket calls `start`, and that `again`."""
        with self.contexts[0], saved_tensors_hooks(self.pack, partial(self.unpack, start)):
            result = self.fn(*args, **kwargs)
        # Forget what this run neither drew from nor changed.
        self.random = [s for s in self.random if not _same(s[2], s[0]())]
        # Of all or of none: a batch norm changes its statistics without a trace, but it counts.
        if self.before == self.versions():
            self.copies = {}
        return result

    def pack(self, tensor):
        ticket = Ticket()
        self.tickets.append(weakref.ref(ticket))
        self.kinds.append(_kind(tensor))
        return ticket

    def unpack(self, start, ticket):
        if ticket not in self.found:
            start()
        tensor, version = self.found.pop(ticket)  # freed as soon as its node is done
        if tensor._version != version:
            raise RuntimeError(
                f"{_kind(tensor)} that fn saved for backward was changed in place by fn"
            )
        return tensor

    def again(self, *before, to_the_end=False):
        """`fn(*before, *args, **kwargs)`, recorded; None if it ends at the last saved tensor."""
        place, result = 0, None

        def collect(tensor):
            nonlocal place
            kind = self.kinds[place] if place < len(self.kinds) else "none"
            if _kind(tensor) != kind:
                raise RuntimeError(
                    f"fn did something else when it ran again: it saved {_kind(tensor)}"
                    f" where it had saved {kind}"
                )
            ticket = self.tickets[place]()
            saved = tensor.detach()  # as it is, an output would hold its node, and that the output
            if ticket is not None:
                self.found[ticket] = saved, saved._version
            place += 1
            if place == len(self.tickets) and not to_the_end:
                raise EverythingIsThere
            return saved

        with (
            torch.enable_grad(),
            saved_tensors_hooks(collect, lambda tensor: tensor),
            suppress(EverythingIsThere),
            self.contexts[1],
        ):
            result = self.replay(*before)
        if place < len(self.tickets):
            raise RuntimeError(
                f"fn did something else when it ran again: it saved {place} tensors where it had"
                f" saved {len(self.tickets)}"
            )
        return result

    def replay(self, *before):
        tensors = iter(self.tensors())
        leaves = [_like_new(next(tensors)) if leaf is A_TENSOR else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.structure)
        state = dict(zip(self.names, tensors, strict=True))
        state |= self.buffers | {name: buffer.clone() for name, buffer in self.copies.items()}
        with _replayed(self.random), ExitStack() as stack:
            for context in self.autocast():
                stack.enter_context(context)
            if state:
                return torch.func.functional_call(self.fn, state, (*before, *args), kwargs)
            return self.fn(*before, *args, **kwargs)


def _has_its_own_parameters(fn):
    """Whether it is a module, and not FSDP exchanges its parameters while it runs."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharded = (fsdp.FSDPModule, fsdp.FullyShardedDataParallel) if fsdp else ()
    return isinstance(fn, torch.nn.Module) and not any(isinstance(m, sharded) for m in fn.modules())


def _kind(tensor):
    return f"a tensor {tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}"


def _like_new(tensor):
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _random_sources(inputs):
    """How to read and to write the state of each generator that may be drawn from."""
    yield torch.get_rng_state, torch.set_rng_state
    yield random.getstate, random.setstate
    if torch.cuda.is_initialized():
        yield torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all
    for generator in inputs:
        if isinstance(generator, torch.Generator):
            yield generator.get_state, generator.set_state


def _same(state, other):
    if isinstance(state, list):  # one for each CUDA device
        return all(map(torch.equal, state, other))
    return torch.equal(state, other) if torch.is_tensor(state) else state == other


@contextmanager
def _replayed(sources):
    program = [(write, read()) for read, write, _ in sources]
    try:
        for _, write, state in sources:
            write(state)
        yield
    finally:
        for write, state in program:
            write(state)


def _autocast_now():
    """A function that gives the contexts which make the autocast of this moment again."""
    accelerator, cache = torch.accelerator.current_accelerator(), torch.is_autocast_cache_enabled()
    state = [
        (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cache)
        for kind in {"cpu", accelerator.type if accelerator else "cpu"}
        if torch.amp.is_autocast_available(kind)
    ]
    return lambda: [torch.autocast(*arguments) for arguments in state]


def recompute(fn, /, *inputs, context_fn=None, **kwargs):
    """`fn(*inputs, **kwargs)`, whose intermediate results are not kept for backward.

    fn: a function or a module that does the same when called again with the same arguments.
    inputs, kwargs: anything; tensors may stand in tuples, lists and dicts. They are kept, and so
        is what `fn` closes over.
    context_fn: returns two contexts, for the first and for the second run, as
        `torch.utils.checkpoint.checkpoint` takes it. With a policy that says which operations keep
        their results, `partial(create_selective_checkpoint_contexts, policy)`, from there.
    Returns what `fn` returns: tensors in any structure, not all of which need a gradient.

    Backward calls `fn` once more, as soon as the first of its saved tensors is needed, up to the
    last, and frees each when it has been used. The numbers are those of `fn(*inputs, **kwargs)`,
    to the last bit. The second run sees the autocast state of the first, and the states of all
    generators: PyTorch's (CPU and CUDA), Python's `random`, and each `torch.Generator` among the
    inputs; those of the program are left alone. If `fn` is a module, the second run has the
    parameters of the first, also those that `torch.func.functional_call` gave it, and copies of its
    buffers, so that these change once, not twice: a batch norm counts each batch once. Inside any
    other function it counts twice, and all other side effects happen twice.

    Gradients to inputs, to parameters and to whatever `fn` closes over; derivatives of every order,
    `retain_graph`, calls within calls, DDP, FSDP2 around or inside a module. Under `torch.compile`
    it is `torch.utils.checkpoint`, which the compiler knows. `torch.func` raises, since it does not
    take saved-tensor hooks.

    Raises TypeError if `fn` cannot be called. In backward, RuntimeError if an input, a parameter of
    the module `fn` was changed in place, or `fn` changed what it had saved, or the second run saves
    fewer tensors or others. Not seen: what it would save after the last of the first, and a change
    of what else `fn` reads; make that an input. Another thread's random draws change a mask.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {type(fn).__name__}")
    if torch.compiler.is_compiling():
        contexts = {"context_fn": context_fn} if context_fn else {}
        return checkpoint(fn, *inputs, use_reentrant=False, **contexts, **kwargs)
    if not torch.is_grad_enabled():
        return fn(*inputs, **kwargs)
    call = Call(fn, inputs, kwargs, context_fn)
    return call.first(inputs, kwargs, start=call.again)


class WayBack:
    """The calls of one forward, and how far backward has come back from what the last returned.

    Each call adds to one of two tensors what it makes of the other: x, y -> x, y + fn(x).
    """

    def __init__(self):
        self.calls, self.place = [], 0

    def call(self, module, x, args, kwargs):
        number, call = len(self.calls), Call(module, args, kwargs)
        self.calls.append((call, x.requires_grad))
        return call.first((x, *args), kwargs, start=lambda: self.back_to(number))

    def ends(self, *pair):
        self.kept = _kept(*(y.detach() for y in pair))  # without their nodes, which hold this

    def back_to(self, number):
        if self.place <= number:  # backward has begun, or begins again
            self.place, self.pair = len(self.calls), self.kept()
        while self.place > number:
            self.place -= 1
            (call, needs_grad), (x, y) = self.calls[self.place], self.pair
            x = x.detach().requires_grad_(needs_grad)
            with torch.no_grad():
                wanted = self.place == number  # and not passed by backward without a ticket
                result = call.again(x, to_the_end=True) if wanted else call.replay(x)
                self.pair = (y - result, x.detach()) if self.place else None


class ReversibleSequential(torch.nn.Module):
    """Blocks of y1 = x1 + f(x2), y2 = x2 + g(y1), one after the other.

    blocks: pairs (f, g) of modules; f(x2, ...) returns a tensor of the shape of x1, g(y1, ...) one
        of the shape of x2. None of them may change its input in place.
    dim: None, or the dimension along which one tensor is split into x1 and x2.
    Called with (x1, x2), tensors of one floating-point dtype on one device, it returns (y1, y2);
    with `dim`, it is called with one tensor and returns one. What else it is called with is handed
    to every f and g.

    Backward computes the inputs of each block from its outputs, as often as f and g are called once
    more in all, and keeps nothing but (y1, y2), whatever the number of blocks. What comes back is
    off by the rounding of forward, and the error grows with depth, in half precision soon beyond
    use. The second calls see what those of `recompute` see, so a dropout repeats itself and a batch
    norm counts a batch once.

    Gradients to the inputs, to parameters and to whatever f and g use; derivatives of every order,
    DDP, FSDP2 around each f and g or the whole. `torch.compile` breaks the graph here and resumes
    after it; `fullgraph=True` and `torch.func` raise. Raises TypeError or ValueError for other
    arguments, and RuntimeError if f or g changes its input in place.
    """

    def __init__(self, blocks, dim=None):
        super().__init__()
        pairs = []
        if not isinstance(blocks, Iterable):
            raise TypeError(f"blocks must be pairs of modules in a list, got {blocks!r}")
        for number, block in enumerate(blocks):
            pair = block if isinstance(block, (tuple, list, torch.nn.ModuleList)) else ()
            if len(pair) != 2 or not all(isinstance(part, torch.nn.Module) for part in pair):
                raise TypeError(f"block {number} must be a pair of modules, got {block!r}")
            pairs.append(torch.nn.ModuleList(pair))
        if not pairs:
            raise ValueError("blocks must hold at least one pair of modules, got none")
        if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int)):
            raise TypeError(f"dim must be an int or None, got {type(dim).__name__}")
        self.blocks, self.dim = torch.nn.ModuleList(pairs), dim

    def forward(self, *inputs, **kwargs):
        walk = self._forward
        if torch.compiler.is_compiling():  # only then, because it imports the compiler
            walk = torch.compiler.disable(walk, reason="backward calls the parts again")
        return self._on_a_pair(walk, ("x1", "x2"), inputs, kwargs)

    def inverse(self, *outputs, **kwargs):
        """The inputs of the outputs, up to rounding. In eval mode, with dropout or batch norm."""
        return self._on_a_pair(self._inverse, ("y1", "y2"), outputs, kwargs)

    def _on_a_pair(self, walk, names, inputs, kwargs):
        tensors = dict(zip(names if self.dim is None else ("x",), inputs, strict=False))
        if len(tensors) < (2 if self.dim is None else 1):
            raise TypeError(f"two tensors are needed, or one and dim=..., got {len(tensors)}")
        _check(**tensors)
        args = inputs[len(tensors) :]
        if self.dim is None:
            return walk(*tensors.values(), args, kwargs)
        return torch.cat(walk(*inputs[0].tensor_split(2, self.dim), args, kwargs), self.dim)

    def _forward(self, x1, x2, args, kwargs):
        way = WayBack() if torch.is_grad_enabled() else None
        for number, block in enumerate(self.blocks):
            for part, x, module in zip("fg", ("x1", "x2"), block, strict=True):
                version = _version(x2)
                result = way.call(module, x2, args, kwargs) if way else module(x2, *args, **kwargs)
                if _version(x2) != version:
                    raise RuntimeError(f"{type(module).__name__} changes its input in place")
                _check_result(f"{part} of block {number}", result, x, x1)
                x1, x2 = x2, x1 + result
        if way:
            way.ends(x1, x2)
        return x1, x2

    def _inverse(self, y1, y2, args, kwargs):
        for f, g in reversed(self.blocks):
            y2 = y2 - g(y1, *args, **kwargs)
            y1 = y1 - f(y2, *args, **kwargs)
        return y1, y2


def _version(tensor):
    return None if tensor.is_inference() else tensor._version


def _check(**tensors):
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating-point, got {tensor.dtype}")
    names, given = " and ".join(tensors), tensors.values()
    for what, error in (("dtype", TypeError), ("device", ValueError)):
        first, *others = (getattr(tensor, what) for tensor in given)
        if others not in ([], [first]):
            raise error(f"{names} must have one {what}, got {first} and {others[0]}")


def _check_result(what, result, name, x):
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"{what} must return a torch.Tensor, got {type(result).__name__}")
    if result.shape != x.shape:
        raise ValueError(
            f"{what} must return the shape of {name}, {tuple(x.shape)}, got {tuple(result.shape)}"
        )
    if torch.promote_types(result.dtype, x.dtype) != x.dtype:
        raise TypeError(f"{what} returns {result.dtype}, which would change {name} of {x.dtype}")
