r"""Memory for time: what autograd would keep of a call is computed again in backward.

    recompute(fn, x)       y = fn(x)        kept: x; backward runs fn(x) once more

    ReversibleSequential   y1 = x1 + f(x2)  kept: y1 and y2 of the last block only;
                           y2 = x2 + g(y1)  backward computes, block by block,
                                            x2 = y2 - g(y1), x1 = y1 - f(x2)

The graph is recorded as usual, but a number, a ticket, stands in it for each tensor
that it would save. The first ticket that backward hands in starts the second run, which
saves the same tensors in the same order: the n-th tensor belongs to the n-th ticket.
PyTorch's own `checkpoint` does this, too; it lets a batch norm count each batch twice.

Forward and backward in float32, one thread of an AMD EPYC, from
`python -m tools.benchmark recompute` and `rednet`; peaks in MiB beyond the arguments,
and times as shares of the first row's:

              12 blocks, 4,096 x 256   12 blocks, 4 x 8   RedNet-26, 4 x 224 x 224
                 peak    time                time             peak    time
as they are       449    1                   1                 282    1
checkpoint         97    1.20                4.2
recompute          97    1.17                3.7               196    1.30

12 pairs of blocks f and g, 4,096 x 256, likewise, from
`python -m tools.benchmark reversible`, the best of seven rounds:

                         peak    time
as they are               440    1
checkpoint                 72    1.18
revtorch                   50    1.38
memcnn                     71    1.66
ReversibleSequential       48    1.29

On an H100, 12 blocks with a dropout, 8,192 x 1,024: both checkpoint and recompute need
848 MiB, where the blocks as they are need 3,816, and 1.34 times their time; the
gradients are the same, bit for bit. 12 reversible pairs of that width: 496 MiB in place
of 3,712, and 1.35 times the time.

Sources: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016,
https://arxiv.org/abs/1604.06174; Gomez et al., The Reversible Residual Network, 2017,
https://arxiv.org/abs/1707.04585, section 3; the hooks are those of
https://docs.pytorch.org/docs/2.15/autograd.html#torch.autograd.graph.saved_tensors_hooks

Needs torch 2.10 or later. Private: `torch.utils._pytree`, which finds the tensors in
nested inputs; `_are_functorch_transforms_active`.

>>> import torch
>>> from torch.nn import Linear, Sequential, Tanh
>>> layers = Sequential(Linear(4, 64), Tanh(), Linear(64, 4))
>>> x = torch.ones(8, 4, requires_grad=True)
>>> recompute(layers, x).sum().backward()
>>> x.grad.shape, layers[0].weight.grad.shape
(torch.Size([8, 4]), torch.Size([64, 4]))
>>> model = ReversibleSequential([(layers, Linear(4, 4)) for _ in range(3)])
>>> y1, y2 = model(x, x)
>>> torch.allclose(model.inverse(y1, y2)[0], x, atol=1e-5)
True
"""

from contextlib import ExitStack, contextmanager, suppress

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint


class KeepTensors(torch.autograd.Function):
    """A node that only saves: autograd notices changes in place, outer hooks see it."""

    @staticmethod
    def forward(ctx, anchor, *tensors):
        ctx.save_for_backward(*tensors)
        return anchor.clone()


def keep(tensors):
    """A function that returns these tensors, without their history."""
    anchor = torch.empty(0, requires_grad=True)
    result = KeepTensors.apply(anchor, *(tensor.detach() for tensor in tensors))
    return lambda: result.grad_fn.saved_tensors


class EverythingIsThere(BaseException):
    """Ends a second run at the last tensor that the first one saved."""


class Call:
    """A call of `fn`, and what it takes to repeat it."""

    def __init__(self, fn, args, kwargs):
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(
                "torch.func cannot run fn again in backward: call fn itself, or take "
                "torch.autograd.grad in place of torch.func"
            )
        self.fn = fn
        is_module = isinstance(fn, torch.nn.Module)
        self.leaves, self.structure = tree_flatten((args, kwargs))
        self.places = [
            place for place, leaf in enumerate(self.leaves) if torch.is_tensor(leaf)
        ]
        inputs = [self.leaves[place] for place in self.places]
        self.need_grad = [tensor.requires_grad for tensor in inputs]
        for place in self.places:
            self.leaves[place] = None
        parameters = fn.parameters() if is_module else ()
        self.tensors = keep([*inputs, *parameters])
        self.buffers = {}
        if is_module:
            self.buffers = {name: buffer.clone() for name, buffer in _buffers(fn)}
        self.random = {source: source.get_state() for source in _sources(self.leaves)}
        self.autocast = _autocast_now()
        self.kinds = []  # of each tensor that the first run saved
        self.found = {}  # {ticket: (the tensor that the second run saved, its version)}

    def first(self, args, kwargs, start):
        """`fn(*args, **kwargs)`; in backward, the first ticket calls `start`."""

        def pack(tensor):
            self.kinds.append(_kind(tensor))
            return len(self.kinds) - 1

        def unpack(ticket):
            if ticket not in self.found:
                start()
            tensor, version = self.found.pop(ticket)  # freed when its node is done
            if tensor._version != version:
                raise RuntimeError(
                    "a tensor that fn saved for backward was changed in place by fn"
                )
            return tensor

        with saved_tensors_hooks(pack, unpack):
            return self.fn(*args, **kwargs)

    def again(self, *before, to_the_end=False):
        """`fn(*before, *args, **kwargs)`; None if it ends at the last saved tensor."""
        tickets = iter(range(len(self.kinds)))

        def collect(tensor):
            ticket = next(tickets, None)
            if ticket is None or _kind(tensor) != self.kinds[ticket]:
                raise RuntimeError("fn saved other tensors when it ran again")
            # An output would hold its node, and that the output.
            saved = tensor.detach()
            self.found[ticket] = saved, saved._version
            if ticket == len(self.kinds) - 1 and not to_the_end:
                raise EverythingIsThere
            return saved

        result = None
        hooks = saved_tensors_hooks(collect, lambda saved: saved)
        with torch.enable_grad(), hooks, suppress(EverythingIsThere):
            result = self.replay(*before)
        if next(tickets, None) is not None:
            raise RuntimeError("fn saved fewer tensors when it ran again")
        return result

    def replay(self, *before):
        """`fn(*before, *args, **kwargs)`, under the circumstances of the first call."""
        leaves = [*self.leaves]
        # The parameters, which are kept behind the inputs, are the module's own.
        inputs = zip(self.places, self.tensors(), self.need_grad, strict=False)
        for place, tensor, needs_grad in inputs:
            leaves[place] = tensor.detach().requires_grad_(needs_grad)
        args, kwargs = tree_unflatten(leaves, self.structure)
        args = *before, *args
        with ExitStack() as stack:
            for context in (_drawing_from(self.random), *self.autocast):
                stack.enter_context(context)
            if not self.buffers:
                return self.fn(*args, **kwargs)
            copies = {name: buffer.clone() for name, buffer in self.buffers.items()}
            return functional_call(self.fn, copies, args, kwargs, tie_weights=False)


def recompute(fn, /, *inputs, **kwargs):
    """`fn(*inputs, **kwargs)`, whose intermediate results are not kept for backward.

    fn: a function or module that does the same when it is called again with the same
        arguments.
    inputs, kwargs: anything; tensors may stand in tuples, lists and dicts. The inputs
        are kept, and a copy of each buffer of a module.
    Returns what `fn` returns, to the last bit.

    Backward calls `fn` once more, up to the last tensor that it saves. That run has the
    autocast of the first and its random state: of PyTorch's generators, and of each
    `torch.Generator` among the inputs. NumPy and Python's `random` draw anew. A module
    also has copies of its buffers, so that a batch norm counts each batch once; inside
    any other function, a bound method included, it counts twice. Gradients to inputs,
    to parameters and to what `fn` closes over, of every order. Under `torch.compile` it
    is `checkpoint`.

    Raises TypeError if `fn` cannot be called. Backward raises RuntimeError if an input,
    or a parameter of a module, was changed in place, if `fn` changed what it had saved,
    or if the second run saves other tensors than the first.

    Not supported: what else `fn` reads must not change before backward. Nobody notices
    a change there, as under `checkpoint`. Where threads share a module, and under FSDP,
    `fully_shard` included, use `torch.utils.checkpoint`. `torch.func` raises, in `fn`
    too, and so does backward through a tangent of forward mode.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {type(fn).__name__}")
    if torch.compiler.is_compiling():  # the compiler knows that one
        return checkpoint(fn, *inputs, use_reentrant=False, **kwargs)
    if not torch.is_grad_enabled():
        return fn(*inputs, **kwargs)
    call = Call(fn, inputs, kwargs)
    return call.first(inputs, kwargs, start=call.again)


class ReversibleSequential(torch.nn.Module):
    """Blocks of y1 = x1 + f(x2), y2 = x2 + g(y1), one after the other.

    blocks: pairs (f, g) of modules; f(x2) returns a tensor of the shape of x1, g(y1)
        one of the shape of x2. None of them may change its input in place, or
        differentiate what it computes.
    Called with (x1, x2), floating-point tensors, it returns (y1, y2).

    Backward computes the inputs of each block from its outputs, and keeps nothing but
    (y1, y2), whatever the number of blocks. What comes back is off by the rounding of
    forward. The error grows with depth, in half precision soon beyond use.

    Second runs, gradients, errors and what is not supported are as with `recompute`.
    `torch.compile` breaks the graph here.
    """

    def __init__(self, blocks):
        super().__init__()
        pairs = [torch.nn.ModuleList(pair) for pair in blocks]
        if not pairs or any(len(pair) != 2 for pair in pairs):
            raise ValueError(f"blocks must be pairs (f, g) of modules, got {blocks!r}")
        self.blocks = torch.nn.ModuleList(pairs)

    def forward(self, x1, x2):
        walk = self._forward
        if torch.compiler.is_compiling():  # only then, because it imports the compiler
            walk = torch.compiler.disable(walk, reason="backward calls the parts again")
        return walk(x1, x2)

    def _forward(self, x1, x2):
        way = WayBack() if torch.is_grad_enabled() else None
        for part in (part for pair in self.blocks for part in pair):
            result = way.call(part, x2) if way else part(x2)
            is_tensor = torch.is_tensor(result)
            got = tuple(result.shape) if is_tensor else type(result).__name__
            if got != tuple(x1.shape):
                raise ValueError(
                    f"{type(part).__name__} must return a tensor of shape "
                    f"{tuple(x1.shape)}, got {got}"
                )
            x1, x2 = x2, x1 + result
        if way:
            way.ends = keep((x1, x2))
        return x1, x2

    def inverse(self, y1, y2):
        """The inputs, up to rounding. In eval mode, with dropout or batch norm."""
        for f, g in reversed(self.blocks):
            y2 = y2 - g(y1)
            y1 = y1 - f(y2)
        return y1, y2


class WayBack:
    """The calls of one forward pass, and how far the backward pass has come.

    Each call adds to one of two tensors what it makes of the other:
    (x, y) -> (y, x + part(y)).
    """

    def __init__(self):
        self.calls, self.place = [], 0

    def call(self, part, x):
        number, call = len(self.calls), Call(part, (), {})  # x will be computed
        self.calls.append((call, x.requires_grad))
        return call.first((x,), {}, start=lambda: self.back_to(number))

    def back_to(self, number):
        """Redo the calls from where backward stands to this one."""
        if self.place <= number:  # backward begins, or begins again
            self.place, self.pair = len(self.calls), self.ends()
        while self.place > number:
            self.place -= 1
            (call, needs_grad), (x, y) = self.calls[self.place], self.pair
            x = x.detach().requires_grad_(needs_grad)
            with torch.no_grad():
                # A call whose tickets backward has passed by needs no tensors.
                is_wanted = self.place == number
                result = call.again(x, to_the_end=True) if is_wanted else call.replay(x)
                self.pair = y - result, x.detach()


def _buffers(module):
    """The buffers under one name for each place: a part may stand in a module twice.

    Under two names of one part, `functional_call` would not put back what it swaps.
    """
    for prefix, part in module.named_modules():
        yield from part.named_buffers(prefix, recurse=False)


def _kind(tensor):
    return tensor.shape, tensor.dtype, tensor.device


def _sources(inputs):
    """All generators that `fn` may draw from."""
    yield torch.default_generator
    if torch.cuda.is_initialized():
        yield from torch.cuda.default_generators
    yield from (value for value in inputs if isinstance(value, torch.Generator))


@contextmanager
def _drawing_from(states):
    """Inside, generators draw from these states on; afterwards, from their own."""
    program = {source: source.get_state() for source in states}
    try:
        for source, state in states.items():
            source.set_state(state)
        yield
    finally:
        for source, state in program.items():
            source.set_state(state)


def _autocast_now():
    """Contexts that make the autocast of this moment again."""
    accelerator = torch.accelerator.current_accelerator()
    kinds = {"cpu", accelerator.type} if accelerator else {"cpu"}
    return [
        torch.autocast(
            kind,
            torch.get_autocast_dtype(kind),
            torch.is_autocast_enabled(kind),
            torch.is_autocast_cache_enabled(),
        )
        for kind in kinds
    ]
