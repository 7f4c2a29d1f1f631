"""The functions to call: they check, agree and choose the two maps."""

from functools import partial

import torch.distributed as dist

from .agreement import LOSSES, agree, wrong_dim, wrong_loss, wrong_sizes
from .maps import (
    Collective,
    add,
    cloned,
    exchange,
    gather,
    halo_sent_home,
    own_part,
    same,
    scatter_sum,
    shares,
    with_halo,
)


def copy(input, *, group=None, check=True):
    """`input`, whose gradients are added: for a model in parts, one a process.

    input: the same tensor on every process, as the whole model would have it.
    Raises TypeError or ValueError on every process, if shapes or dtypes differ between
    them.
    """
    agree("copy", input, group, check)
    return Collective.apply(input, cloned, partial(add, group=group))


def all_reduce(input, *, loss, group=None, check=True):
    """The sum of the `input` of all processes, on each of them.

    input: of one shape and dtype on all processes.
    loss: "replicated", and backward is the identity; or "summed", and it is an
    all-reduce, too.
    Raises TypeError or ValueError on every process, if shapes or dtypes differ between
    them.
    """
    problem = wrong_loss(loss)
    numbers = () if problem else (LOSSES.index(loss),)
    agree(
        "all_reduce",
        input,
        group,
        check,
        problem,
        *numbers,
        needs_grad=loss == "summed",
    )
    there = partial(add, group=group)
    return Collective.apply(input, there, there if loss == "summed" else same)


def all_gather(input, dim=0, *, loss, group=None, check=True):
    """The tensors of all processes, one after another along `dim`, on each of them.

    input: of one dtype, and of one shape except along `dim`.
    loss: "replicated", and backward is the process's own part of the gradient; or
        "summed", and it is a reduce-scatter. Between processes over which DDP averages,
        as in a contrastive loss, "summed": DDP divides by their number once more, and
        "replicated" leaves a gradient that is too small by that number.
    Raises TypeError or ValueError on every process, if what they have does not fit
    together.
    """
    problem = wrong_loss(loss) or wrong_dim("dim", dim, input)
    numbers = () if problem else (LOSSES.index(loss), dim % input.dim())
    needs_grad = loss == "summed"
    shapes = agree(
        "all_gather",
        input,
        group,
        check,
        problem,
        *numbers,
        free=dim,
        needs_grad=needs_grad,
    )
    how = {
        "dim": dim % input.dim(),
        "sizes": [shape[dim] for shape in shapes],
        "group": group,
    }
    back = scatter_sum if loss == "summed" else own_part
    return Collective.apply(input, partial(gather, **how), partial(back, **how))


def reduce_scatter(input, dim=0, *, sizes=None, group=None, check=True):
    """This process's part, along `dim`, of the sum of the `input` of all processes.

    input: of one shape and dtype on all processes.
    sizes: of the part of each process; like those of `torch.tensor_split` if None.
    Raises TypeError or ValueError on every process, if what they have does not fit
    together.
    """
    problem = wrong_dim("dim", dim, input) or wrong_sizes(sizes, dim, input, group)
    sizes = (
        [] if problem else sizes or shares(input.shape[dim], dist.get_world_size(group))
    )
    dim = dim if problem else dim % input.dim()
    agree("reduce_scatter", input, group, check, problem, dim, *sizes)
    how = {"dim": dim, "sizes": list(sizes), "group": group}
    return Collective.apply(input, partial(scatter_sum, **how), partial(gather, **how))


def all_to_all(input, split_dim, concat_dim, *, sizes=None, group=None, check=True):
    """Send a piece along `split_dim` to each process; join those that come.

    A tensor that was cut across processes along `concat_dim` is cut along `split_dim`
    afterwards.

    input: of one dtype, and of one shape except along `concat_dim`.
    sizes: of the pieces; like those of `torch.tensor_split` if None.
    Raises TypeError or ValueError on every process, if what they have does not fit
    together.
    """
    problem = (
        wrong_dim("split_dim", split_dim, input)
        or wrong_dim("concat_dim", concat_dim, input)
        or wrong_sizes(sizes, split_dim, input, group)
    )
    if not problem:
        split_dim, concat_dim = split_dim % input.dim(), concat_dim % input.dim()
        if split_dim == concat_dim:
            problem = ValueError(
                f"split_dim and concat_dim must differ, got {split_dim} twice"
            )
    sizes = (
        []
        if problem
        else sizes or shares(input.shape[split_dim], dist.get_world_size(group))
    )
    shapes = agree(
        "all_to_all",
        input,
        group,
        check,
        problem,
        split_dim,
        concat_dim,
        *sizes,
        free=concat_dim,
    )
    dims, sizes = (
        (split_dim, concat_dim),
        (list(sizes), [shape[concat_dim] for shape in shapes]),
    )
    there, back = (
        partial(
            exchange,
            split_dim=a,
            concat_dim=b,
            split_sizes=s,
            concat_sizes=t,
            group=group,
        )
        for a, b, s, t in ((*dims, *sizes), (*dims[::-1], *sizes[::-1]))
    )
    return Collective.apply(input, there, back)


def halo_exchange(input, width, dim, *, group=None, check=True):
    """`input` between the rows that border on it in the neighbours' inputs.

    The processes hold strips of one tensor, in the order of their ranks, cut along
    `dim`. At its two ends the halo is zero, as the padding of a convolution. Backward
    adds to the rows of this process the gradients that its neighbours computed for
    them.

    input: of one dtype, and of one shape except along `dim`.
    width: rows of the halo, or a pair: (before, after). No strip may have fewer rows
    than either.
    Returns a tensor of `before + input.shape[dim] + after` rows.
    Raises TypeError or ValueError on every process, if what they have does not fit
    together.
    """
    problem = wrong_dim("dim", dim, input)
    pair = tuple(width) if isinstance(width, (tuple, list)) else (width, width)
    if len(pair) != 2 or any(
        isinstance(w, bool) or not isinstance(w, int) for w in pair
    ):
        problem = problem or TypeError(
            f"width must be an int or a pair of ints, got {width!r}"
        )
    elif not 0 <= min(pair) <= max(pair) <= 2**40:
        problem = problem or ValueError(f"width must be from 0 to 2**40, got {width!r}")
    numbers = () if problem else (dim := dim % input.dim(), *pair)
    shapes = agree("halo_exchange", input, group, check, problem, *numbers, free=dim)
    for rank, shape in enumerate(shapes):
        if shape[dim] < max(pair):
            raise ValueError(
                f"halo_exchange: width is {width}, but the strip of rank {rank} is only"
                f" {shape[dim]} high"
            )
    how = {"before": pair[0], "after": pair[1], "dim": dim, "group": group}
    return Collective.apply(
        input, partial(with_halo, **how), partial(halo_sent_home, **how)
    )
