"""Residual blocks whose inputs are computed from their outputs."""

import threading
from collections.abc import Iterable

import torch

from .call import Call, check_mode, kept
from .reads import version_of


class WayBack:
    """The calls of one forward, and how far backward has come back from what the last returned.

    Each call adds to one of two tensors what it makes of the other: x, y -> x, y + fn(x).
    """

    def __init__(self):
        self.calls, self.place, self.lock = [], 0, threading.RLock()
        self.kept = None

    def call(self, module, x, args, kwargs):
        check_mode([x])  # which is no input of the call: it will be computed
        number, call = len(self.calls), Call(module, args, kwargs)
        self.calls.append((call, x.requires_grad))
        return call.first((x, *args), kwargs, start=lambda: self.back_to(number))

    def ends(self, *pair):
        self.kept = kept(*(y.detach() for y in pair))  # without their nodes, which hold this

    def back_to(self, number):
        with self.lock:  # for two threads that go back through one graph
            self._back_to(number)

    def _back_to(self, number):
        if self.kept is None:
            raise RuntimeError(
                "f and g must not differentiate what they compute: until the last of them has run, "
                "there is no output to compute their inputs from"
            )
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
    after it; `fullgraph=True`, `torch.func` and forward mode raise. Raises TypeError or ValueError
    for other arguments, and RuntimeError if f or g changes its input in place; in backward, where
    `recompute` does.
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
        if not -inputs[0].ndim <= self.dim < inputs[0].ndim:
            (name,), shape = tensors, tuple(inputs[0].shape)
            raise ValueError(f"{name} must have the dimension dim={self.dim}, got shape {shape}")
        return torch.cat(walk(*inputs[0].tensor_split(2, self.dim), args, kwargs), self.dim)

    def _forward(self, x1, x2, args, kwargs):
        way = WayBack() if torch.is_grad_enabled() else None
        for number, block in enumerate(self.blocks):
            for part, x, module in zip("fg", ("x1", "x2"), block, strict=True):
                version = version_of(x2)
                result = way.call(module, x2, args, kwargs) if way else module(x2, *args, **kwargs)
                if version_of(x2) != version:
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
