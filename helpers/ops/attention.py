r"""Softmax attention that makes only some rows of its matrix at a time, at every order.

    S = scale · Q Kᵀ + mask         (L, S) = (L, E) (E, S)        scores
    P = softmax(S) of each row      (L, S)                        weights
    O = P V                         (L, Ev) = (L, S) (S, Ev)

    dV = Pᵀ dO                      (S, Ev) = (S, L) (L, Ev)
    dP = dO Vᵀ                      (L, S) = (L, Ev) (Ev, S)
    dS = P ∘ (dP − rowsum(P ∘ dP))  (L, S); the row sum is also rowsum(dO ∘ O)
    dQ = scale · dS K               (L, E) = (L, S) (S, E)
    dK = scale · dSᵀ Q              (S, E) = (S, L) (L, E)

and for a second derivative, if Q', K', V' and mask' arrive for dQ, dK, dV and dmask:

    S' = scale · (Q' Kᵀ + Q K'ᵀ) + mask'
    P' = P ∘ (S' − rowsum(P ∘ S'))
    O' = P' V + P V'                the gradient of dO; the others are of sum(dO ∘ O')

A row of P needs one row of Q and all of K. So `ByBlocks` takes some rows of Q after the
others, and keeps nothing but its inputs. Its backward pass is `ByBlocks` again, on the
vector-Jacobian product of the function that it ran: by these formulas for the first two
orders, then by autograd. So a derivative of any order needs no more than some rows at a
time.

Source: Rabe and Staats, Self-attention Does Not Need O(n²) Memory,
https://arxiv.org/abs/2112.05682; for the gradient: Dao and others, FlashAttention,
appendix B, https://arxiv.org/abs/2205.14135

Needs torch 2.10 or later. Private: the forward mode's `_set_fwd_grad_enabled`.

With 8 heads of 64 in float32, on one thread of an AMD EPYC with AVX-512, from
`python -m tools.benchmark attention --threads 1`: the first derivative of 2,048 places
takes 1.3 to 1.4 of the time of `F.scaled_dot_product_attention` (1.5 to 1.6 on an Intel
Xeon); of 8 to 64 places, 1.0 to 1.2 of plain attention's. The second takes 0.5 to 0.8 of
the math backend's time, and 60 MiB where that needs 1,448. An input being 1, the peak is
at most 8 from 128 places on, 22 for the second derivative. The process itself grew by 5
to 6 at 8,192 places, and by 8 with `F.scaled_dot_product_attention`.

On an NVIDIA H200 with torch 2.11, the first derivative of 16,384 places takes 1.6 of the
time of `F.scaled_dot_product_attention`, and 1,760 MiB where that needs 194; with
chunk_size=1024, 1.8 and 352 MiB. In bfloat16 it takes 22 times that time, because the
products are of float32 here. The second derivative has not been measured there since it
has formulas; by autograd it took 1.8 of the math backend's time at 2,048 places.

>>> import torch
>>> query, key, value = torch.ones(3, 5, 4, dtype=torch.float64, requires_grad=True)
>>> (slope,) = torch.autograd.grad(attention(query, key, value).sum(), value)
>>> slope.sum(0)
tensor([5., 5., 5., 5.], dtype=torch.float64)
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, product
from numbers import Real

import torch
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual

# What the last two dimensions of a tensor are, and so which part of it a block takes:
QUERIES = "queries"  # (..., L, anything): some rows
KEYS = "keys"  # (..., S, anything): all rows, or the first, where the others are hidden
SCORES = "scores"  # (..., L, S): some rows, and the columns of these keys


@dataclass  # a frozen one does not compile on torch 2.11 under Python 3.12
class Blocks:
    """A function of tensors that is computed block by block: some queries of some heads.

    function:     (hidden, *parts of the tensors) -> the results of one block, iterable;
                  hidden is None, or True where a query must not see a key: (rows, keys)
    takes:        the kind of each tensor: of queries, of keys, then any, also for None.
                  All have as many dimensions; where a tensor has size 1, it is broadcast
    gives:        (kind, place) of each result: it has the shape and dtype of the tensor
                  at this place, or is the output. What blocks give for one row is added
    chunk_size:   how many rows of the scores are in a block, of one head or of several
    is_causal:    does each query see only the keys up to its own place?
    pull_backs:   (wanted, hidden, *parts, *grad_outputs) -> the gradients wanted, not
                  yet summed where a tensor was broadcast. The first is that of the
                  function, the second that of the first: before these, it gets which
                  gradients the first was asked for. After the last, autograd does it
    """

    function: Callable
    takes: tuple
    gives: tuple
    chunk_size: int
    is_causal: bool
    pull_backs: tuple = ()

    def __call__(self, *tensors):
        first, results = tensors[0], []
        wide = torch.promote_types(first.dtype, torch.float32)
        shapes = [tensor.shape[:-2] for tensor in tensors if tensor is not None]
        batch = torch.broadcast_shapes(*shapes)
        L, S = first.shape[-2], tensors[1].shape[-2]
        count = min(self.chunk_size, L, 1024)  # of one head
        most = self.chunk_size // count  # heads at a time
        dimensions = [ranges(L, count)]
        for size in reversed(batch):
            dimensions.insert(0, ranges(size, max(most, 1)))
            most //= size
        for *heads, rows in product(*dimensions):
            keys, hidden = (0, S), None
            if self.is_causal:  # what no query of the block sees is not computed
                keys = 0, min(sum(rows), S)
                hidden = later(rows, keys[1], first.device)
            last = {QUERIES: (rows,), KEYS: (keys,), SCORES: (rows, keys)}
            given = (
                None
                if tensor is None
                else widened(narrowed(tensor, (*heads, *last[kind])), wide)
                for tensor, kind in zip(tensors, self.takes, strict=True)
            )
            with without_autocast(first.device):
                for n, part in enumerate(self.function(hidden, *given)):
                    kind, place = self.gives[n]
                    if len(results) == n:  # of the first block
                        shape = *batch, L, part.shape[-1]
                        if place is not None:
                            shape = tensors[place].shape
                        results.append(part.new_zeros(shape))
                    sums = narrowed(results[n], (*heads, *last[kind]))
                    sums.add_(part.sum_to_size(sums.shape))
                    del part  # before the next one is made
        return tuple(
            result.to(tensors[place or 0].dtype)
            for result, (_, place) in zip(results, self.gives, strict=True)
        )

    def vector_jacobian_product(self, wanted):
        """(*tensors, *grad_outputs) -> the gradients of the tensors that are wanted."""
        by_hand = self.pull_backs or (partial(pulled_back, self.function),)
        return replace(
            self,
            function=partial(by_hand[0], wanted),
            takes=(*self.takes, *(kind for kind, _ in self.gives)),
            gives=tuple((kind, n) for n, kind in enumerate(self.takes) if wanted[n]),
            pull_backs=tuple(partial(again, wanted) for again in by_hand[1:]),
        )


def ranges(size, step):
    """Parts of a dimension: [(start, length), ...]."""
    return [(start, min(step, size - start)) for start in range(0, size, step)]


def narrowed(tensor, block):
    """The part of a tensor that is in a block, by `narrow`: slices stop a vmap."""
    for dim, part in enumerate(block):
        if tensor.shape[dim] not in (1, part[1]):
            tensor = tensor.narrow(dim, *part)
    return tensor


class ByBlocks(torch.autograd.Function):
    """`ByBlocks.apply(blocks, *tensors)` is blocks(*tensors), and keeps the tensors."""

    @staticmethod
    def forward(blocks, *tensors):
        return blocks(*tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.blocks, *tensors = inputs
        ctx.shapes = [result.shape for result in output]
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
        """The vjp of the vjp, which is linear in its grad_outputs: they can be zeros."""
        moved = [t is not None and t.is_floating_point() for t in tangents]
        blocks = ctx.blocks.vector_jacobian_product(moved)
        wanted = [False] * len(moved) + [True] * len(ctx.shapes)
        blocks = blocks.vector_jacobian_product(wanted)
        with _set_fwd_grad_enabled(True):  # for a jvp of it: pytorch issue 197867
            primals = [
                None if t is None else unpack_dual(t).primal for t in ctx.saved_tensors
            ]
            zeros = map(primals[0].new_zeros(()).expand, ctx.shapes)
            tangents = compress(tangents, moved)
            return ByBlocks.apply(blocks, *primals, *zeros, *tangents)

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


def pulled_back(function, wanted, hidden, *arguments):
    """The vector-Jacobian product of any function of a block, by autograd."""

    def of_wanted(*leaves):
        leaves = iter(leaves)
        given = (
            next(leaves) if want else arguments[n] for n, want in enumerate(wanted)
        )
        return tuple(function(hidden, *given))

    results, pull_back = torch.func.vjp(of_wanted, *compress(arguments, wanted))
    grad_outputs = arguments[len(wanted) :]  # of size 1 where a tensor was broadcast
    return pull_back(tuple(map(torch.Tensor.expand_as, grad_outputs, results)))


NAMES = "query", "key", "value", "attn_mask"
WHOLE = 64 * 64  # a matrix of so many weights is made at once, and kept


# Attention on a block, and its derivatives as in the formulas above


def weights(scale, hidden, query, key, mask):
    """The softmax of each row of the scores; zeros where a query sees no key."""
    if torch.compiler.is_compiling():  # grad(jvp(grad)) raises with the other one
        scores = scale * (query @ key.mT)
    else:
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


def attend(scale, hidden, query, key, value, mask=None):
    yield weights(scale, hidden, query, key, mask) @ value


def pull_back(scale, wanted, hidden, query, key, value, mask, grad_output):
    """The gradients of those of query, key, value and mask that are wanted."""
    P = weights(scale, hidden, query, key, mask)
    if wanted[0] or wanted[1] or wanted[3]:
        dS = centred(P, P * (grad_output @ value.mT))
    if wanted[0]:
        yield scale * (dS @ key)
    if wanted[1]:
        yield dS.mT @ (scale * query)
    if wanted[2]:
        yield P.mT @ grad_output
    if wanted[3]:
        yield dS


def pull_back_again(
    scale, had, wanted, hidden, query, key, value, mask, grad_output, *grad_outputs
):
    """The gradients of those of the arguments of `pull_back` that are wanted.

    had: which gradients `pull_back` was asked for; grad_outputs are theirs.
    """
    P = weights(scale, hidden, query, key, mask)
    given, others = iter(grad_outputs), (query, key, value, P[..., :1])
    q, k, v, m = (
        next(given) if want else torch.zeros_like(other)
        for want, other in zip(had, others, strict=True)
    )
    change = (scale * q) @ key.mT + (scale * query) @ k.mT + m
    change = change - (P * change).sum(-1, keepdim=True)
    if any(wanted[:4]):
        dS = centred(P, P * (grad_output @ value.mT))
        again = centred(P, dS * change + P * (grad_output @ v.mT))
    change = P * change
    if wanted[0]:
        yield scale * (again @ key + dS @ k)
    if wanted[1]:
        yield scale * (again.mT @ query + dS.mT @ q)
    if wanted[2]:
        yield change.mT @ grad_output
    if wanted[3]:
        yield again
    if wanted[4]:
        yield change @ value + P @ v


def centred(P, rows):
    """rows − P ∘ rowsum(rows): for rows = P ∘ d, the softmax's Jacobian times d."""
    return rows.addcmul(P, rows.sum(-1, keepdim=True), value=-1)


def later(rows, keys, device):
    """True where one of the first keys is behind the query: (rows, keys)."""
    every = torch.ones(rows[1], keys, dtype=torch.bool, device=device)
    return every.triu(rows[0] + 1)


def widened(tensor, dtype):
    return tensor if tensor.dtype in (dtype, torch.bool) else tensor.to(dtype)


def has_autocast(device):
    # torch 2.10 cannot trace whether there is an autocast on meta
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def without_autocast(device):
    if has_autocast(device):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


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
    chunk_size=None,
):
    """softmax(scale · query keyᵀ + mask) value: `F.scaled_dot_product_attention`.

    query: (..., L, E); key: (..., S, E); value: (..., S, Ev); of one floating-point
    dtype, on one device. The dimensions before broadcast. Returns (..., L, Ev).
    attn_mask:  None, or what broadcasts to (..., L, S): bool, True where a query sees a
                key; or numbers, which are added to the scores, of the dtype of query,
                or float32 if that has 16 bits
    is_causal:  query i sees keys 0 to i, also where there are more keys than queries, as
                with a cache: then pass a mask; attn_mask must be None
    scale:      a finite number without a gradient; None stands for 1 / sqrt(E)
    enable_gqa: key and value may have fewer heads, in dimension -3, than query
    chunk_size: how many rows of the scores exist at a time; None chooses, and makes the
                matrix whole if a head has at most 4,096 scores

    A query that sees no key gets zeros, and sends back zeros.

    Keeps nothing but its arguments, whatever their strides; what is made whole keeps
    its matrix. If query is `x.view(B, L, H, E).transpose(1, 2)`, the output lies in
    memory as query does. Derivatives of every order, in reverse and in forward mode.
    Right under `torch.func.grad`, `vmap`, `jvp`, `jacrev`, `jacfwd`, `hessian` and
    `linearize`, alone and inside `torch.compile(fullgraph=True)` (`linearize` raises
    there, for any function), and in a program from `torch.export`, trained further.
    What is compiled makes the whole matrix, because a compiler takes no Function with a
    jvp. In bfloat16 and float16, scores, softmax and sums are float32. Under autocast
    the arguments are cast as PyTorch's attention casts them.
    Not supported: dropout on the weights.
    Raises TypeError or ValueError for other arguments.
    """
    tensors = [query, key, value, *([] if attn_mask is None else [attn_mask])]
    for name, tensor in zip(NAMES, tensors, strict=False):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{name} must be a torch.Tensor, got {type(tensor).__name__}"
            )
        is_mask = name == "attn_mask"
        is_number = tensor.is_floating_point() and tensor.dtype.itemsize > 1
        if not is_number and not (is_mask and tensor.dtype == torch.bool):
            raise TypeError(
                f"{name} must be floating-point, of 16 bits or more, got {tensor.dtype}"
            )
        if tensor.layout is not torch.strided:
            raise TypeError(
                f"{name} must be dense (torch.strided), got {tensor.layout}"
            )
        if not is_mask and tensor.dim() < 2:
            raise ValueError(
                f"{name} must have two dimensions or more, got {tuple(tensor.shape)}"
            )
        if tensor.device != query.device:
            raise ValueError(
                f"{name} is on {tensor.device}, but query is on {query.device}"
            )
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask must be None if is_causal is True")
    if dropout_p != 0:
        raise ValueError(
            f"dropout_p must be 0, got {dropout_p}: put a dropout behind attention instead"
        )
    if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
        raise ValueError(f"chunk_size must be an int, 1 or more, got {chunk_size!r}")

    def shapes():
        got = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        return f"(..., L, E), (..., S, E), (..., S, Ev) and (..., L, S), got {got}"

    batch, *others = (tensor.shape[:-2] for tensor in tensors[:3])
    groups = 1
    if enable_gqa:
        heads, *fewer = (shape[-1] if shape else 0 for shape in (batch, *others))
        if 0 in (heads, *fewer) or any(heads % few for few in fewer):
            raise ValueError(
                f"with enable_gqa, heads of key and value must divide those of query: {shapes()}"
            )
        if fewer[0] == fewer[1]:
            groups = heads // fewer[0]
        else:
            for n, few in enumerate(fewer, 1):
                tensors[n] = tensors[n].repeat_interleave(heads // few, -3)
        others = [(*other[:-1], heads) for other in others]
    (L, E), S = query.shape[-2:], key.shape[-2]
    fit = 0 < E == key.shape[-1] and S == value.shape[-2]
    if fit and (attn_mask is not None or others != [batch, batch]):
        try:  # not `suppress`, which the compiler of torch 2.10 does not know
            batch = torch.broadcast_shapes(batch, *others)
            scores = *batch, L, S
            fit = scores == torch.broadcast_shapes(
                scores, *(tensor.shape for tensor in tensors[3:])
            )
        except RuntimeError:
            fit = False
    if not fit:
        raise ValueError(
            f"query, key, value and attn_mask must broadcast to {shapes()}"
        )
    if isinstance(scale, torch.Tensor) and not (scale.requires_grad or scale.dim()):
        scale = scale.item()
    if scale is None:
        scale = E**-0.5
    elif not isinstance(scale, Real) or not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale!r}")
    if has_autocast(query.device):
        # Out here autograd records the cast, so each gradient returns in its own dtype.
        dtype = torch.get_autocast_dtype(query.device.type)
        tensors = [
            t if t.dtype == torch.float64 else widened(t, dtype) for t in tensors
        ]
    dtype, dim = tensors[0].dtype, len(batch) + 2
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    for n, tensor in enumerate(tensors):
        if tensor.dtype not in (dtype, torch.bool, wide if n == 3 else dtype):
            raise TypeError(f"{NAMES[n]} is {tensor.dtype}, but query is {dtype}")
        while tensor.dim() < dim:
            tensor = tensor[None]
        if groups > 1:  # heads in two dimensions, (-1, groups)
            own = groups if tensor.shape[-3] == heads else 1
            tensor = tensor.unflatten(-3, (-1, own))
        tensors[n] = tensor
    made_whole = chunk_size is None and L * S <= WHOLE
    if torch.compiler.is_compiling() or made_whole or 0 in (*batch, L, S):
        # A compiler takes no Function with a jvp; for few scores, blocks take longer.
        given = [widened(t, wide) for t in tensors]
        hidden = later((0, L), S, query.device) if is_causal else None
        with without_autocast(query.device):
            (output,) = attend(scale, hidden, *given)
        output = output.to(dtype)
    else:
        if attn_mask is None:
            tensors.append(None)
        if chunk_size is None:
            most = 2**27  # scores in a block
            if query.device.type == "cpu":  # what the cache holds, or half a query
                most = min(2**19, math.prod(batch) * L * E * 5 // 8)
            chunk_size = max(32, most // S)
        blocks = Blocks(
            partial(attend, scale),
            (QUERIES, KEYS, KEYS, SCORES),
            ((QUERIES, None),),
            chunk_size,
            is_causal,
            (partial(pull_back, scale), partial(pull_back_again, scale)),
        )
        (output,) = ByBlocks.apply(blocks, *tensors)
    if groups > 1:
        output = output.flatten(-4, -3)
    if query.dim() > 2 and query.stride(-3) < query.stride(-2):
        output = output.transpose(-3, -2).contiguous().transpose(-3, -2)
    return output
