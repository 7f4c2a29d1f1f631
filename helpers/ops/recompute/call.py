"""One call of a function, and how to repeat it."""

import math
import random
import sys
import threading
import weakref
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from .reads import Reads, kind_of, version_of

A_TENSOR = object()  # where one stood among the inputs
LOCKS = weakref.WeakKeyDictionary()  # of modules with parameters or buffers of their own


class KeepTensors(torch.autograd.Function):
    """A node that only saves: so they are guarded against changes, and outer hooks see them."""

    @staticmethod
    def forward(ctx, anchor, *tensors):
        ctx.save_for_backward(*tensors)
        return anchor.clone()


def kept(*tensors):
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
        if hasattr(self.contexts[0], "respect_saved_tensors_hooks"):  # from torch 2.15
            self.contexts[0].respect_saved_tensors_hooks = False  # it is under ours
        leaves, self.structure = tree_flatten((args, kwargs))
        check_mode(filter(torch.is_tensor, leaves))
        self.leaves = [A_TENSOR if torch.is_tensor(leaf) else leaf for leaf in leaves]
        self.locks, self.thread = _locks_of(fn), None
        with _alone(self.locks["buffers"]), torch._C.DisableTorchFunction():
            self._keep(leaves)  # unseen by an outer call, which watches fn
        self.autocast = _autocast_now()
        self.tickets, self.kinds = [], []
        self.found, self.lock = weakref.WeakKeyDictionary(), threading.RLock()

    def _keep(self, leaves):
        # By backward a module may have other parameters, and has other statistics.
        has_its_own = isinstance(self.fn, torch.nn.Module) and not _is_sharded(self.fn)
        own = _each_place("parameters", self.fn) if has_its_own else {}
        tensors = [*filter(torch.is_tensor, leaves), *own.values()]
        # Of a leaf, the program may replace `data`, or freeze it, before backward.
        self.tensors = kept(*(tensor.detach() for tensor in tensors))
        self.need_grad = [tensor.requires_grad for tensor in tensors]
        self.own = {name: _identity(tensor) for name, tensor in own.items()}
        self.random = [(read, write, read()) for read, write in _random_sources(leaves)]
        self.buffers = self.named_buffers()
        self.copies = {name: buffer.clone() for name, buffer in self.buffers.items()}
        self.before = _versions(self.buffers)

    def named_buffers(self):
        return _each_place("buffers", self.fn) if isinstance(self.fn, torch.nn.Module) else {}

    def first(self, args, kwargs, start):
        """`fn(*args, **kwargs)`; in backward the first ticket calls `start`, and that `again`."""
        self.reads = Reads()
        self.reads.are_given(*filter(torch.is_tensor, tree_flatten((args, kwargs))[0]))
        hooks = saved_tensors_hooks(self.pack, partial(self.unpack, start))
        with _alone(self.locks["buffers"]):
            self.thread = threading.get_ident() if self.locks["buffers"] else None
            with self.contexts[0], hooks, self.reads:
                result = self.fn(*args, **kwargs)
            self.thread = None
            self.reads.end()
            if _is_sharded(self.fn):  # FSDP does something else in backward, and brings tensors
                self.reads.passing = math.inf
            with torch._C.DisableTorchFunction():
                self._forget()
        return result

    def _forget(self):
        """What the first run neither drew from nor changed."""
        self.random = [s for s in self.random if not _same(s[2], s[0]())]
        # Of all or of none: a batch norm changes its statistics, and leaves their versions.
        if not self.reads.unseen and self.before == _versions(self.named_buffers()):
            self.copies = {}

    def pack(self, tensor):
        ticket = Ticket()
        self.tickets.append(weakref.ref(ticket))
        self.kinds.append(self.reads.kind_of(tensor))
        return ticket

    def unpack(self, start, ticket):
        if self.thread not in (None, threading.get_ident()):  # it waits for us, and we would for it
            raise RuntimeError(
                "fn, a module with buffers, must not differentiate what it computes in another "
                "thread, as autograd does on a GPU"
            )
        with self.lock:  # for two threads that go back through one graph
            if ticket not in self.found:
                with torch.inference_mode(False):  # in which nothing would be saved
                    start()
            tensor, version = self.found.pop(ticket)  # freed as soon as its node is done
        if tensor._version != version:
            raise RuntimeError(
                f"{kind_of(tensor)} that fn saved for backward was changed in place by fn"
            )
        return tensor

    def again(self, *before, to_the_end=False):
        """`fn(*before, *args, **kwargs)`, recorded; None if it ends at the last saved tensor."""
        place, result, reads = 0, None, Reads(first=self.reads)

        def collect(tensor):
            nonlocal place
            kind = self.kinds[place] if place < len(self.kinds) else "none"
            if (now := reads.kind_of(tensor)) != kind:
                raise RuntimeError(
                    f"fn did something else when it ran again: it saved {now} where it had saved "
                    f"{kind}"
                )
            ticket = self.tickets[place]()
            with torch._C.DisableTorchFunction():  # what is done here is not what fn does
                # As it is, an output would hold its node, and that the output.
                saved = tensor.detach()
            if ticket is not None:
                self.found[ticket] = saved, saved._version
            place += 1
            # RReLU fills what it has saved: it must run, too.
            if place == len(self.tickets) and not to_the_end and "rrelu" not in kind.operation:
                raise EverythingIsThere
            return saved

        with (
            torch.enable_grad(),
            saved_tensors_hooks(collect, lambda tensor: tensor),
            suppress(EverythingIsThere),
            self.contexts[1],
        ):
            result = self.replay(*before, reads=reads)
        if place < len(self.tickets):
            raise RuntimeError(
                f"fn did something else when it ran again: it saved {place} tensors where it had"
                f" saved {len(self.tickets)}"
            )
        return result

    def replay(self, *before, reads=None):
        """`fn(*before, *args, **kwargs)`, as it was called first."""
        # First, because an outer call may have to run for them, which takes its own turn.
        tensors = map(_like_before, self.tensors(), self.need_grad)
        with _alone(self.locks["all"]):
            return self._replay(tensors, before, reads)

    def _replay(self, tensors, before, reads):
        leaves = [next(tensors) if leaf is A_TENSOR else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.structure)
        state = self._changed(dict(zip(self.own, tensors, strict=True)))
        reads = reads or Reads(first=self.reads)
        given = [tensor for name, tensor in state.items() if tensor is not self.buffers.get(name)]
        reads.are_given(*before, *filter(torch.is_tensor, leaves), *given)
        with _replayed(self.random), ExitStack() as stack:
            for context in (*self.autocast(), reads):
                stack.enter_context(context)
            if state:
                args = *before, *args
                return functional_call(self.fn, state, args, kwargs, tie_weights=False)
            return self.fn(*before, *args, **kwargs)

    def _changed(self, parameters):
        """What `fn` has to be given to be as it was: mostly nothing, for threads may share it."""
        now = _each_place("parameters", self.fn) if parameters else {}
        with torch._C.DisableTorchFunction():
            same = [name for name, before in self.own.items() if before == _identity(now.get(name))]
        now = self.named_buffers()
        state = {name: b for name, b in self.buffers.items() if b is not now.get(name)}
        state |= {name: p for name, p in parameters.items() if name not in same}
        return state | {name: buffer.clone() for name, buffer in self.copies.items()}


def _locks_of(fn):
    """Second runs exchange parameters and buffers, so threads take turns in them at each part of a
    module, which others may contain, too; where it has buffers, also in the first runs."""
    parts = fn.modules() if isinstance(fn, torch.nn.Module) else ()
    found = {"all": [], "buffers": []}
    for part in parts:
        if part._parameters or part._buffers:
            lock = LOCKS.setdefault(part, threading.RLock())
            found["all"].append(lock)
            found["buffers"] += [lock] if part._buffers else []
    return {kind: sorted(locks, key=id) for kind, locks in found.items()}


@contextmanager
def _alone(locks):
    with ExitStack() as stack:
        for lock in locks:  # in one order, or two threads would wait for each other
            stack.enter_context(lock)
        yield


def _identity(parameter):
    """What is not equal if it was changed, frozen or replaced, or its `data` was."""
    if type(parameter) is not torch.nn.Parameter:  # of others, not all have a place in memory
        return object()
    place = parameter.data_ptr(), parameter.shape, parameter.stride()
    return id(parameter), version_of(parameter), parameter.requires_grad, place


def _each_place(kind, module):
    """The parameters or buffers under one name for each place where one lies.

    `functional_call` does not put back what it swaps under two names of a module used twice.
    """
    found = {}
    for prefix, part in module.named_modules():
        found.update(getattr(part, f"named_{kind}")(prefix, recurse=False, remove_duplicate=False))
    return found


def check_mode(tensors):
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "recompute and ReversibleSequential do not work under torch.func (vmap, grad, jvp, "
            "jacrev, ...), which takes no saved-tensor hooks; use torch.autograd"
        )
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise RuntimeError(
            "recompute and ReversibleSequential have no forward mode, which keeps nothing: "
            "call the function itself"
        )


def _versions(buffers):
    return [(id(buffer), buffer._version) for buffer in buffers.values()]


def _is_sharded(fn):
    """Whether it is a module, and FSDP exchanges its parameters while it runs."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharded = (fsdp.FSDPModule, fsdp.FullyShardedDataParallel) if fsdp else ()
    return isinstance(fn, torch.nn.Module) and any(isinstance(m, sharded) for m in fn.modules())


def _like_before(tensor, needs_grad):
    return tensor.detach().requires_grad_(needs_grad)


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
