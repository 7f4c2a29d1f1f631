"""Memory, counted instead of timed: the same numbers on every machine."""

import os
import weakref

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):
    """Counts the bytes of the storages that were made inside it and are alive.

        with Alive() as alive:
            loss = model(x)
            loss.backward()
        alive.now, alive.peak, alive.history, alive.operations, alive.results

    history has the bytes after each operation, operations the names of these, results
    the pairs (shape, operation) of all that was floating-point. What a kernel takes and
    gives back before it returns is not seen, nor is what is older than the `with`. What
    is compiled runs in eager mode inside it.
    """

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.history, self.operations, self.results = [], [], set()
        self._known = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        before = {
            storage_of(t) for t in tree_leaves((args, kwargs)) if torch.is_tensor(t)
        }
        results, name = (
            function(*args, **(kwargs or {})),
            function.overloadpacket.__name__,
        )
        for result in filter(torch.is_tensor, tree_leaves(results)):
            if storage_of(result) not in before:
                self._count(result.untyped_storage())
            if result.is_floating_point():
                self.results.add((tuple(result.shape), name))
        self.history.append(self.now)
        self.operations.append(name)
        return results

    def _count(self, storage):
        if storage not in self._known:
            self._known.add(storage)
            self._add(storage.nbytes())
            weakref.finalize(storage, self._add, -storage.nbytes()).atexit = False

    def _add(self, size):
        self.now += size
        self.peak = max(self.peak, self.now)


class Kept(saved_tensors_hooks):
    """Counts what autograd keeps: `total` bytes, each storage once, and `shapes`.

        with Kept(but=model.parameters()) as kept:
            y = model(x)

    but: tensors that would be there anyway.
    """

    def __init__(self, but=()):
        super().__init__(self._pack, lambda tensor: tensor)
        self._others = {storage_of(tensor) for tensor in but}
        self._sizes, self.shapes = {}, []

    def __enter__(self):
        super().__enter__()
        return self

    def _pack(self, tensor):
        if storage_of(tensor) not in self._others:
            self._sizes[storage_of(tensor)] = tensor.untyped_storage().nbytes()
            self.shapes.append(tuple(tensor.shape))
        # An output as it is would hold its node, and that the output.
        return tensor.detach()

    @property
    def total(self):
        return sum(self._sizes.values())


def storage_of(tensor):
    """What identifies the memory of a tensor, and of its views."""
    return tensor.untyped_storage()._cdata


def peak_bytes(function, device):
    """The most memory that `function` held at once, beyond what was there."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        results = function()  # noqa: F841 (kept until the peak is read)
        return torch.cuda.max_memory_allocated() - before
    # Or the profiler writes two lines a run.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(profile_memory=True) as profiler:
        results = function()  # noqa: F841
    events = [
        e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"
    ]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()  # negative when memory is freed
        peak = max(peak, now)
    return peak
