r"""Call a function, keep its inputs, and run it again in backward: memory for time.

    y = fn(x)          saved for backward: x, and nothing from inside fn
    backward           fn(x) once more, then the usual chain rule

Autograd's graph is recorded as usual. Only the tensors saved in it are replaced by tickets; the
first ticket that backward hands in starts the second run, which gives back all of them.

Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016,
https://arxiv.org/abs/1604.06174; the saved-tensor hooks are those of
https://docs.pytorch.org/docs/2.13/autograd.html#saved-tensors-default-hooks

>>> import torch
>>> layers = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
>>> x = torch.ones(8, 4, requires_grad=True)
>>> recompute(layers, x).sum().backward()
>>> x.grad.shape, layers[0].weight.grad.shape
(torch.Size([8, 4]), torch.Size([64, 4]))
"""

import contextlib
import weakref
from functools import partial

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

A_TENSOR = object()  # where one stood among the inputs


class KeepInputs(torch.autograd.Function):
    """A node that only saves: so inputs are guarded against changes, and outer hooks see them."""

    @staticmethod
    def forward(ctx, anchor, *tensors):
        ctx.save_for_backward(*tensors)
        return anchor.clone()


class Ticket:
    """Stands in the graph for a tensor that is computed when it is needed."""


class EverythingIsThere(BaseException):
    """Ends a second run at the last tensor that the first one saved."""


class SecondRun:
    """One call of `fn`: what it takes to repeat it, and what the repetition saves."""

    def __init__(self, fn, inputs):
        self.fn = fn
        leaves, self.structure = tree_flatten(inputs)
        self.leaves = [A_TENSOR if torch.is_tensor(leaf) else leaf for leaf in leaves]
        self.is_module = isinstance(fn, torch.nn.Module)
        parameters = dict(fn.named_parameters() if self.is_module else ())
        self.parameters = list(parameters)
        tensors = *filter(torch.is_tensor, leaves), *parameters.values()
        self.node = KeepInputs.apply(torch.empty(0, requires_grad=True), *tensors).grad_fn
        self.random = _random_state()
        self.autocast = _autocast_state()
        self.buffers = self.named_buffers()
        self.copies = {name: buffer.clone() for name, buffer in self.buffers.items()}
        self.versions = self.versions_of_buffers()
        self.tickets, self.kinds = [], []
        self.found = weakref.WeakKeyDictionary()

    def named_buffers(self):
        return dict(self.fn.named_buffers() if self.is_module else ())

    def versions_of_buffers(self):
        return [(id(buffer), buffer._version) for buffer in self.named_buffers().values()]

    def first_run_is_over(self):
        """Forget what the first run neither drew from nor changed."""
        if all(map(torch.equal, self.random, _random_state())):
            self.random = None
        # Of all or of none: a batch norm changes its statistics without a trace, but it counts.
        if self.versions == self.versions_of_buffers():
            self.copies = {}

    def pack(self, tensor):
        ticket = Ticket()
        self.tickets.append(weakref.ref(ticket))
        self.kinds.append(_kind(tensor))
        return ticket

    def unpack(self, ticket):
        if ticket not in self.found:
            self.run()
        tensor, version = self.found.pop(ticket)  # freed as soon as its node is done
        if tensor._version != version:
            raise RuntimeError(
                f"a tensor {_kind(tensor)} that fn saved for backward was changed in place by fn"
            )
        return tensor

    def run(self):
        place = 0

        def collect(tensor):
            nonlocal place
            kind = self.kinds[place]
            if _kind(tensor) != kind:
                raise RuntimeError(
                    f"fn did something else when it ran again: it saved a tensor {_kind(tensor)}"
                    f" where it had saved one {kind}"
                )
            ticket = self.tickets[place]()
            saved = tensor.detach()  # as it is, an output would hold its node, and that the output
            if ticket is not None:
                self.found[ticket] = saved, saved._version
            place += 1
            if place == len(self.tickets):
                raise EverythingIsThere
            return saved

        tensors = iter(self.node.saved_tensors)
        leaves = [_like_new(next(tensors)) if leaf is A_TENSOR else leaf for leaf in self.leaves]
        inputs, options = tree_unflatten(leaves, self.structure)
        fn = self.fn
        if self.is_module:  # by now it may have other parameters, and has other statistics
            state = dict(zip(self.parameters, tensors, strict=True)) | self.buffers
            state |= {name: buffer.clone() for name, buffer in self.copies.items()}
            fn = partial(_with_state, fn, state)
        with (
            torch.enable_grad(),
            _with_random_state(self.random),
            _with_autocast_state(self.autocast),
            saved_tensors_hooks(collect, lambda tensor: tensor),
            contextlib.suppress(EverythingIsThere),
        ):
            fn(*inputs, **options)
        if place < len(self.tickets):
            raise RuntimeError(
                f"fn did something else when it ran again: it saved {place} tensors where it had"
                f" saved {len(self.tickets)}"
            )


def _with_state(module, state, *inputs, **options):
    return torch.func.functional_call(module, state, inputs, options)


def _kind(tensor):
    return f"{tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}"


def _like_new(tensor):
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _random_state():
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


@contextlib.contextmanager
def _with_random_state(state):
    if state is None:
        yield
        return
    with torch.random.fork_rng(range(len(state) - 1)):
        torch.set_rng_state(state[0])
        torch.cuda.set_rng_state_all(state[1:])
        yield


def _autocast_state():
    accelerator = torch.accelerator.current_accelerator()
    types = {"cpu"} | ({accelerator.type} if accelerator else set())
    return [
        (
            kind,
            torch.get_autocast_dtype(kind),
            torch.is_autocast_enabled(kind),
            torch.is_autocast_cache_enabled(),
        )
        for kind in types
        if torch.amp.is_autocast_available(kind)
    ]


@contextlib.contextmanager
def _with_autocast_state(state):
    with contextlib.ExitStack() as stack:
        for arguments in state:
            stack.enter_context(torch.autocast(*arguments))
        yield


def recompute(fn, /, *inputs, **kwargs):
    """`fn(*inputs, **kwargs)`, whose intermediate results are not kept for backward.

    fn: a function or a module that does the same when called again with the same arguments.
    inputs, kwargs: anything; tensors may stand in tuples, lists and dicts. They are kept, and so
        is what `fn` closes over.
    Returns what `fn` returns: tensors in any structure, some without a gradient if it so pleases.

    Backward calls `fn` once more, as soon as the first of its saved tensors is needed, up to the
    last, and frees each when it has been used. The numbers are those of `fn(*inputs, **kwargs)`,
    to the last bit. The second run sees the random state (CPU and CUDA) and the autocast state of
    the first, and leaves the random state of the program alone. If `fn` is a module, the second run
    has the parameters of the first, also those that `torch.func.functional_call` gave it, and
    copies of its buffers, so that these change once, not twice: a batch norm counts each batch
    once. Other side effects happen twice.

    Gradients to inputs, to parameters and to whatever `fn` closes over; derivatives of every order,
    `retain_graph`, calls within calls. Under `torch.compile` it is `torch.utils.checkpoint`, which
    the compiler knows. `torch.func` raises, since it does not take saved-tensor hooks.

    Raises TypeError if `fn` cannot be called. In backward, RuntimeError if an input, a parameter of
    the module `fn` or a tensor that `fn` saved was changed in place, or if the second run saves
    something else.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {type(fn).__name__}")
    if torch.compiler.is_compiling():
        return checkpoint(fn, *inputs, use_reentrant=False, **kwargs)
    if not torch.is_grad_enabled():
        return fn(*inputs, **kwargs)
    again = SecondRun(fn, (inputs, kwargs))
    with saved_tensors_hooks(again.pack, again.unpack):
        outputs = fn(*inputs, **kwargs)
    again.first_run_is_over()
    return outputs
