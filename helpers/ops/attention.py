r"""Softmax attention that makes only some rows of its matrix at a time, at every order.

    S = scale · Q Kᵀ + mask         (L, S) = (L, E) (E, S)        scores
    P = softmax(S) of each row      (L, S)                        weights
    O = P V                         (L, Ev) = (L, S) (S, Ev)

    dV = Pᵀ dO                      (S, Ev) = (S, L) (L, Ev)
    dP = dO Vᵀ                      (L, S) = (L, Ev) (Ev, S)
    dS = P ∘ (dP − rowsum(P ∘ dP))  (L, S); the row sum is also rowsum(dO ∘ O)
    dQ = scale · dS K               (L, E) = (L, S) (S, E)
    dK = scale · dSᵀ Q              (S, E) = (S, L) (L, E)

A row of P needs one row of Q and all of K. So `ByBlocks` takes some rows of Q after the
others, and keeps nothing but its inputs. Its backward pass is `ByBlocks` again, on the
vector-Jacobian product of the function that it ran. So a derivative of any order needs
no more than some rows at a time.

Source: Rabe and Staats, Self-attention Does Not Need O(n²) Memory,
https://arxiv.org/abs/2112.05682; for the gradient: Dao and others, FlashAttention,
appendix B, https://arxiv.org/abs/2205.14135

Needs torch 2.10 or later. Private: the forward mode's `_set_fwd_grad_enabled`.

With 8 heads of 2,048 x 64 in float32, on one thread of an AMD EPYC; the best time of
seven rounds as a share of the first way's, from
`python -m tools.benchmark attention --threads 1 --rounds 7`:

                                                     peak, MiB    time
    first derivative   F.scaled_dot_product_attention       25    1.00
                       with its matrix                     388    2.10
                       attention                            30    1.72
    second derivative  with its matrix                   1,440    1.00
                       attention                            81    1.10

On a GPU, blocks of 48 rows are too small: take a `chunk_size` as large as memory
allows. On an H100, for the first derivative of 8 heads of 16,384 x 64 in float32:

                                         peak, MiB    milliseconds
    F.scaled_dot_product_attention             194              56
    with its matrix                         32,800              78
    attention                                  240             541
    attention, chunk_size=256                  640             167
    attention, chunk_size=1024               2,176             105

>>> import torch
>>> query, key, value = torch.ones(3, 5, 4, dtype=torch.float64, requires_grad=True)
>>> (slope,) = torch.autograd.grad(attention(query, key, value).sum(), value)
>>> slope.sum(0)
tensor([5., 5., 5., 5.], dtype=torch.float64)
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import compress

import torch
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual

# What the last two dimensions of a tensor are, and so which part of it a block takes:
QUERIES = "queries"  # (..., L, anything): some rows
KEYS = "keys"  # (..., S, anything): all rows, or the first, where the others are hidden
SCORES = "scores"  # (..., L, S): some rows, and the columns of these keys


@dataclass  # a frozen one does not compile on torch 2.11 under Python 3.12
class Blocks:
    """A function of tensors that is computed for some queries after the others.

    function:     (hidden, *parts of the tensors) -> the results of one block, iterable;
                  hidden is None, or True where a query must not see a key: (rows, keys)
    takes:        the kind of each tensor; any but the first may be None
    gives:        the kind of each result; what blocks give for the same row is added
    chunk_size:   how many queries are in a block
    is_causal:    does each query see only the keys up to its own place?
    pull_back:    (wanted, hidden, *parts, *grad_outputs) -> the gradients wanted
    push_forward: (hidden, *parts, *tangents) -> the tangents of the results
    Without these two, autograd differentiates the function.
    """

    function: Callable
    takes: tuple
    gives: tuple
    chunk_size: int
    is_causal: bool
    pull_back: Callable | None = None
    push_forward: Callable | None = None

    def __call__(self, *tensors):
        first, results = tensors[0], []
        wide = torch.promote_types(first.dtype, torch.float32)
        L, S = (tensors[self.takes.index(kind)].shape[-2] for kind in (QUERIES, KEYS))
        for start in range(0, max(L, 1), self.chunk_size):
            rows, keys = slice(start, min(start + self.chunk_size, L)), slice(0, S)
            hidden = None
            if self.is_causal:  # what no query of the block sees is not computed
                keys = slice(0, min(rows.stop, S))
                hidden = later(rows, keys, first.device)
            of_block = {
                QUERIES: (..., rows, slice(None)),
                KEYS: (..., keys, slice(None)),
                SCORES: (..., rows, keys),
            }
            given = (
                None if tensor is None else widened(tensor[of_block[kind]], wide)
                for tensor, kind in zip(tensors, self.takes, strict=True)
            )
            with without_autocast(first.device):
                for place, part in enumerate(self.function(hidden, *given)):
                    kind = self.gives[place]
                    if start == 0:
                        *batch, _, last = part.shape
                        size = {QUERIES: (L, last), KEYS: (S, last), SCORES: (L, S)}
                        results.append(part.new_zeros(*batch, *size[kind]))
                    results[place][of_block[kind]] += part
                    del part  # before the next one is made
        return tuple(result.to(first.dtype) for result in results)

    def vector_jacobian_product(self, wanted):
        """(*tensors, *grad_outputs) -> the gradients of the tensors that are wanted."""
        return Blocks(
            partial(self.pull_back or partial(pulled_back, self.function), wanted),
            self.takes + self.gives,
            tuple(compress(self.takes, wanted)),
            self.chunk_size,
            self.is_causal,
        )

    def jacobian_vector_product(self):
        """(*tensors, *tangents) -> the tangents of the results."""
        return Blocks(
            self.push_forward or partial(pushed_forward, self.function),
            self.takes + self.takes,
            self.gives,
            self.chunk_size,
            self.is_causal,
        )


class ByBlocks(torch.autograd.Function):
    """`ByBlocks.apply(blocks, *tensors)` is blocks(*tensors), and keeps the tensors."""

    @staticmethod
    def forward(blocks, *tensors):
        return blocks(*tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.blocks, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx, *grad_outputs):
        wanted = ctx.needs_input_grad[1:]
        blocks = ctx.blocks.vector_jacobian_product(wanted)
        found = iter(ByBlocks.apply(blocks, *ctx.saved_tensors, *grad_outputs))
        return None, *(next(found) if want else None for want in wanted)

    @staticmethod
    def jvp(ctx, _, *tangents):
        with _set_fwd_grad_enabled(True):  # for a jvp of it: pytorch issue 197867
            primals = [
                None if t is None else unpack_dual(t).primal for t in ctx.saved_tensors
            ]
            tangents = (
                tangent if primal is not None and primal.is_floating_point() else None
                for primal, tangent in zip(primals, tangents, strict=True)
            )
            blocks = ctx.blocks.jacobian_vector_product()
            return ByBlocks.apply(blocks, *primals, *tangents)

    @staticmethod
    def vmap(info, in_dims, blocks, *tensors):
        def batched(tensor, dim):
            if tensor is None:
                return None
            if dim is None:
                return tensor.expand(info.batch_size, *tensor.shape)
            return tensor.movedim(dim, 0)

        results = ByBlocks.apply(blocks, *map(batched, tensors, in_dims[1:]))
        return results, (0,) * len(results)


# The derivatives of any function of a block, by autograd, ready for the next order


def pulled_back(function, wanted, hidden, *arguments):
    """The vector-Jacobian product of a block, for the tensors that are wanted."""
    tensors, grad_outputs = arguments[: len(wanted)], arguments[len(wanted) :]
    recorded = torch.is_grad_enabled()  # not where `ByBlocks` runs it
    with torch.enable_grad():
        leaves = [
            leaf(t) if want else t for t, want in zip(tensors, wanted, strict=True)
        ]
        results = function(hidden, *leaves)
        return vjp(results, compress(leaves, wanted), grad_outputs, recorded)


def pushed_forward(function, hidden, *arguments):
    """The Jacobian-vector product of a block: the vjp of its vjp, which is linear."""
    half = len(arguments) // 2
    tensors, tangents = arguments[:half], arguments[half:]
    moved = [tangent is not None for tangent in tangents]
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [
            leaf(t) if moves else t for t, moves in zip(tensors, moved, strict=True)
        ]
        results = tuple(function(hidden, *leaves))
        grad_outputs = [torch.zeros_like(t, requires_grad=True) for t in results]
        products = vjp(results, compress(leaves, moved), grad_outputs, True)
        return vjp(products, grad_outputs, compress(tangents, moved), recorded)


def leaf(tensor):
    """The same tensor, as one with respect to which a block can be differentiated."""
    if tensor.requires_grad:
        return tensor.view_as(tensor)
    return tensor.detach().requires_grad_()


def vjp(results, leaves, grad_outputs, create_graph):
    """`torch.autograd.grad`, also if some or all of the results depend on no leaf."""
    leaves = tuple(leaves)
    depend = [
        pair
        for pair in zip(results, grad_outputs, strict=True)
        if pair[0].requires_grad
    ]
    if not depend:
        return tuple(map(torch.zeros_like, leaves))
    results, grad_outputs = zip(*depend, strict=True)
    return torch.autograd.grad(
        results, leaves, grad_outputs, create_graph=create_graph, materialize_grads=True
    )


# Attention on a block, and its derivatives as in the formulas above


def weights(scale, hidden, query, key, mask):
    """The softmax of each row of the scores; zeros where a query sees no key."""
    scores = (scale * query) @ key.mT
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    if mask is None:
        return scores.softmax(-1)
    if mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    else:
        scores = scores + mask
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)


def attend(scale, hidden, query, key, value, mask):
    yield weights(scale, hidden, query, key, mask) @ value


def pull_back(scale, wanted, hidden, query, key, value, mask, grad_output):
    """The gradients of those of query, key, value and mask that are wanted."""
    P = weights(scale, hidden, query, key, mask)
    if wanted[0] or wanted[1] or wanted[3]:
        dP = grad_output @ value.mT
        row_sum = (P * dP).sum(-1, keepdim=True)
        dS = P * (dP - row_sum)
        del dP
    if wanted[0]:
        yield scale * (dS @ key)
    if wanted[1]:
        yield dS.mT @ (scale * query)
    if wanted[2]:
        yield P.mT @ grad_output
    if wanted[3]:
        yield dS.sum_to_size(mask.shape)


def push_forward(scale, hidden, query, key, value, mask, dQ, dK, dV, dmask):
    """The tangent of the output, from those of query, key, value and mask."""
    P = weights(scale, hidden, query, key, mask)
    dS = (scale * dQ) @ key.mT + (scale * query) @ dK.mT
    if dmask is not None:
        dS = dS + dmask
    dP = P * (dS - (P * dS).sum(-1, keepdim=True))
    yield dP @ value + P @ dV


def later(rows, keys, device):
    """True where the place of a key is behind that of the query: (rows, keys)."""
    places = torch.arange(max(rows.stop, keys.stop), device=device)
    return places[keys] > places[rows, None]


def widened(tensor, dtype):
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def without_autocast(device):
    if device.type == "meta":
        return nullcontext()  # torch 2.10 cannot trace whether there is an autocast
    return torch.autocast(device.type, enabled=False)


def attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    *,
    scale=None,
    enable_gqa=False,
    chunk_size=48,
):
    """softmax(scale · query keyᵀ + mask) value: `F.scaled_dot_product_attention`.

    query: (..., L, E); key: (..., S, E); value: (..., S, Ev); of one floating-point
    dtype, on one device. The dimensions before broadcast. Returns (..., L, Ev).
    attn_mask:  None, or what broadcasts to (..., L, S): bool, True where a query sees a
                key; or numbers of the dtype of query, which are added to the scores
    is_causal:  each query sees the keys up to its own place; attn_mask must be None
    scale:      a finite Python number; None stands for 1 / sqrt(E)
    enable_gqa: key and value may have fewer heads, in dimension -3, than query
    chunk_size: how many rows of the scores exist at a time; on a GPU, take more

    A query that sees no key gets zeros, and sends back zeros.

    Keeps nothing but its arguments. Derivatives of every order, in reverse and in
    forward mode. Right under `torch.func.grad`, `vmap`, `jvp`, `jacrev`, `jacfwd`,
    `hessian` and `linearize`, alone and inside `torch.compile(fullgraph=True)`
    (`linearize` raises there, for any function), and in a program from `torch.export`,
    trained further. What is compiled makes the whole matrix, because a compiler takes
    no Function with a jvp. In bfloat16 and float16, scores, softmax and sums are
    float32. Under autocast the arguments are cast as PyTorch's attention casts them.
    Not supported: dropout.
    Raises TypeError or ValueError for other arguments.
    """
    tensors = {"query": query, "key": key, "value": value}
    if attn_mask is not None:
        tensors["attn_mask"] = attn_mask
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, query)
    if not isinstance(is_causal, bool) or not isinstance(enable_gqa, bool):
        got = f"{type(is_causal).__name__} and {type(enable_gqa).__name__}"
        raise TypeError(f"is_causal and enable_gqa must be bools, got {got}")
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask must be None if is_causal is True")
    if dropout_p != 0:
        raise ValueError(f"dropout_p must be 0: not supported, got {dropout_p}")
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int):
        raise TypeError(f"chunk_size must be an int, got {type(chunk_size).__name__}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be 1 or more, got {chunk_size}")

    def shapes():
        return ", ".join(str(tuple(tensor.shape)) for tensor in (query, key, value))

    (L, E), S = query.shape[-2:], key.shape[-2]
    if E == 0 or key.shape[-1] != E:
        raise ValueError(
            f"query and key must end in one size, 1 or more, got {shapes()}"
        )
    if value.shape[-2] != S:
        raise ValueError(f"key and value must have one size at -2, got {shapes()}")
    if scale is None:
        scale = E**-0.5
    elif isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale must be a Python number, got {type(scale).__name__}")
    elif not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    if enable_gqa:
        heads, *fewer = (t.shape[-3] if t.dim() > 2 else 0 for t in (query, key, value))
        if fewer[0] != fewer[1] or not fewer[0] or heads % fewer[0]:
            raise ValueError(
                "with enable_gqa, key and value must have one number of heads, at -3, "
                f"which divides that of query, got {shapes()}"
            )
        key, value = (t.repeat_interleave(heads // fewer[0], -3) for t in (key, value))
    try:
        batch = torch.broadcast_shapes(*(t.shape[:-2] for t in (query, key, value)))
    except RuntimeError:
        raise ValueError(
            f"query, key and value must broadcast before dimension -2, got {shapes()}"
        ) from None
    if attn_mask is not None and not fits(attn_mask.shape, (*batch, L, S)):
        raise ValueError(
            f"attn_mask must broadcast to the scores, {(*batch, L, S)}, "
            f"got {tuple(attn_mask.shape)}"
        )
    if not query.is_meta and torch.is_autocast_enabled(query.device.type):
        # Out here autograd records the cast, so each gradient returns in its own dtype.
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value, attn_mask = (
            t if t is None or t.dtype in (torch.float64, torch.bool) else t.to(dtype)
            for t in (query, key, value, attn_mask)
        )
    for name, tensor in {"key": key, "value": value, "attn_mask": attn_mask}.items():
        if tensor is not None and tensor.dtype not in (torch.bool, query.dtype):
            raise TypeError(f"{name} is {tensor.dtype}, but query is {query.dtype}")
    if attn_mask is not None:
        ones = (1,) * (len(batch) + 2 - attn_mask.dim())
        attn_mask = attn_mask.reshape(*ones, *attn_mask.shape)
        attn_mask = attn_mask.expand(*attn_mask.shape[:-2], L, S)
    query, key, value = (
        t.expand(*batch, *t.shape[-2:]).contiguous() for t in (query, key, value)
    )
    plain = torch.compiler.is_compiling() or not (L and S)
    blocks = Blocks(
        partial(attend, scale),
        (QUERIES, KEYS, KEYS, SCORES),
        (QUERIES,),
        max(L, 1) if plain else chunk_size,
        is_causal,
        partial(pull_back, scale),
        partial(push_forward, scale),
    )
    run = blocks if plain else partial(ByBlocks.apply, blocks)
    (output,) = run(query, key, value, attn_mask)
    return output


def fits(shape, larger):
    """Does the shape broadcast to the larger one?"""
    pairs = zip(shape[::-1], larger[::-1], strict=False)
    return len(shape) <= len(larger) and all(a in (1, b) for a, b in pairs)


def _check_tensor(name, tensor, query):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if name == "attn_mask" and tensor.dtype == torch.bool:
        pass
    elif not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating-point, got {tensor.dtype}")
    elif tensor.dtype.itemsize == 1:
        raise TypeError(
            f"{name} must have numbers of 16 bits or more, got {tensor.dtype}"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} must be dense (torch.strided), got {tensor.layout}")
    if tensor.device != query.device:
        raise ValueError(
            f"{name} is on {tensor.device}, but query is on {query.device}"
        )
    if name != "attn_mask" and tensor.dim() < 2:
        raise ValueError(
            f"{name} must have two dimensions or more, got {tuple(tensor.shape)}"
        )
