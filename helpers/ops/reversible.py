r"""Residual blocks whose inputs are computed back from their outputs: memory constant in depth.

    forward            inverse            gradients, from the last block to the first
    y1 = x1 + f(x2)    x2 = y2 - g(y1)    dx1 = dy1 + (dg/dy1)ᵀ dy2
    y2 = x2 + g(y1)    x1 = y1 - f(x2)    dx2 = dy2 + (df/dx2)ᵀ dx1

f and g need not be invertible. Only the outputs of the last block are kept.

Source: Gomez et al., The Reversible Residual Network: Backpropagation Without Storing
Activations, 2017, https://arxiv.org/abs/1707.04585, section 3

>>> import torch
>>> blocks = [(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)) for _ in range(3)]
>>> model = ReversibleSequential(blocks)
>>> x1, x2 = torch.randn(8, 4), torch.randn(8, 4)
>>> y1, y2 = model(x1, x2)
>>> (y1 + y2).sum().backward()
>>> torch.allclose(model.inverse(y1, y2)[0], x1, atol=1e-5)
True
"""

import contextlib
from collections.abc import Iterable

import torch


class Reversible(torch.autograd.Function):
    """`Reversible.apply(blocks, x1, x2, *parameters)`; prefer `ReversibleSequential`.

    blocks: pairs of modules f and g; parameters: theirs, f before g, block after block.
    """

    @staticmethod
    def forward(ctx, blocks, x1, x2, *parameters):
        ctx.calls = []
        for number, (f, g) in enumerate(blocks):
            result, again = _call(f, x2)
            _check(f"f of block {number}", result, "x1", x1)
            x1 = x1 + result
            ctx.calls.append((f, again))
            result, again = _call(g, x1)
            _check(f"g of block {number}", result, "x2", x2)
            x2 = x2 + result
            ctx.calls.append((g, again))
        ctx.save_for_backward(x1, x2, *parameters)
        return x1, x2

    @staticmethod
    def backward(ctx, d1, d2):
        y1, y2, *parameters = ctx.saved_tensors
        gradients = []
        for module, again in reversed(ctx.calls):
            names = [name for name, _ in module.named_parameters()]
            first = len(parameters) - len(names)
            own = {name: parameters[first + i] for i, name in enumerate(names)}
            result, to_x, to_own = _pull_back(again, y1, own, d2)
            # What was called last changed the second tensor. The one before it changed the first.
            y1, y2 = y2 - result, y1
            d1, d2 = d2, d1 if to_x is None else d1 + to_x
            parameters, gradients = parameters[:first], to_own + gradients
        return None, d1, d2, *gradients


def _call(module, x):
    """`module(x)`, and a function that calls it again as if for the first time.

    Again with the same random numbers, autocast state and buffers, but other tensors for its
    parameters.
    """
    random, autocast = _random_state(), _autocast_state()
    buffers = dict(module.named_buffers())
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    versions = [(id(buffer), buffer._version) for buffer in module.buffers()]
    version = x._version
    result = module(x)
    if x._version != version:
        raise RuntimeError(f"{type(module).__name__} changes its input in place")
    if all(map(torch.equal, random, _random_state())):
        random = None
    # Of all or of none: a batch norm changes its statistics without a trace, but it counts.
    if versions == [(id(buffer), buffer._version) for buffer in module.buffers()]:
        before = {}

    def again(parameters, x):
        copies = {name: buffer.clone() for name, buffer in before.items()}
        with _with_random_state(random), _with_autocast_state(autocast):
            return torch.func.functional_call(module, parameters | buffers | copies, (x,))

    return result, again


def _pull_back(again, x, parameters, grad_output):
    """`again(parameters, x)`, and the gradients to `x` and to the parameters.

    With create_graph these are recorded. What they are taken for then are views, so that x is an
    input, though x itself was computed from other parameters, or even the same.
    """
    recorded = torch.is_grad_enabled()

    def own(tensor, requires_grad):
        return tensor.view_as(tensor) if recorded else tensor.detach().requires_grad_(requires_grad)

    x = own(x, True)
    parameters = {name: own(p, p.requires_grad) for name, p in parameters.items()}
    with torch.enable_grad():
        # A view, since counters of operations put hooks on what a module gets, and a leaf of a
        # backward within a backward takes none.
        result = again(parameters, x.view_as(x))
    if not result.requires_grad:
        return result, None, [None] * len(parameters)
    wanted = [tensor for tensor in (x, *parameters.values()) if tensor.requires_grad]
    gradients = iter(
        torch.autograd.grad(
            result,
            wanted,
            grad_output,
            create_graph=recorded,
            allow_unused=True,
        )
    )
    to_x = next(gradients)
    return result, to_x, [next(gradients) if p.requires_grad else None for p in parameters.values()]


def _check(what, result, name, x):
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"{what} must return a torch.Tensor, got {type(result).__name__}")
    if result.shape != x.shape:
        raise ValueError(
            f"{what} must return the shape of {name}, {tuple(x.shape)}, got {tuple(result.shape)}"
        )
    if torch.promote_types(result.dtype, x.dtype) != x.dtype:
        raise TypeError(f"{what} returns {result.dtype}, which would change {name} of {x.dtype}")


def _check_pair(**tensors):
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating-point, got {tensor.dtype}")
    (one, first), (other, second) = tensors.items()
    if first.dtype != second.dtype:
        raise TypeError(
            f"{one} and {other} must have one dtype, got {first.dtype} and {second.dtype}"
        )
    if first.device != second.device:
        raise ValueError(
            f"{one} and {other} must be on one device, got {first.device} and {second.device}"
        )


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


class ReversibleSequential(torch.nn.Module):
    """Blocks of y1 = x1 + f(x2), y2 = x2 + g(y1), one after the other.

    blocks: pairs (f, g) of modules that take one tensor and return one; f(x2) has the shape of x1,
        g(y1) that of x2. None of them may change its input in place.
    Called with (x1, x2), tensors of one floating-point dtype on one device; returns (y1, y2).

    Backward computes the inputs of each block from its outputs, as often as f and g are called once
    more in all, and keeps nothing but (y1, y2), whatever the number of blocks. What comes back is
    off by the rounding of forward, and the error grows with depth, in half precision soon beyond
    use. Gradients to x1, x2 and all parameters; derivatives of every order, at the memory of the
    plain model. The second calls see the random state (CPU and CUDA), the autocast state and the
    buffers of the first, so a dropout repeats itself and a batch norm counts a batch once.

    `torch.compile` breaks the graph here and goes on behind; `fullgraph=True` and `torch.func`
    raise. Raises TypeError or ValueError for other arguments, and RuntimeError if f or g changes
    its input in place.
    """

    def __init__(self, blocks):
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
        self.blocks = torch.nn.ModuleList(pairs)

    def forward(self, x1, x2):
        _check_pair(x1=x1, x2=x2)
        parameters = [p for block in self.blocks for part in block for p in part.parameters()]
        apply = Reversible.apply
        if torch.compiler.is_compiling():  # only then, because it imports the compiler
            apply = torch.compiler.disable(apply, reason="backward calls the parts again")
        return apply(self.blocks, x1, x2, *parameters)

    def inverse(self, y1, y2):
        """(x1, x2) of (y1, y2), up to rounding. In eval mode, if there is dropout or batch norm."""
        _check_pair(y1=y1, y2=y2)
        for f, g in reversed(self.blocks):
            y2 = y2 - g(y1)
            y1 = y1 - f(y2)
        return y1, y2
