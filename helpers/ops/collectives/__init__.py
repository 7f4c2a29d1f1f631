r"""Collectives that gradients go through, and layers and a loss made of them.

A collective is linear: the vectors of all processes, one under the other, times a
matrix of zeros and ones. So its backward is the transpose, another collective, and so
are derivatives of every order:

    forward                       backward
    all_reduce  summed            all_reduce
    copy        replicated        all_reduce
    all_reduce  replicated        copy: the gradient as it is
    all_gather  summed            reduce_scatter
    reduce_scatter                all_gather
    all_gather  replicated        the process's own part
    all_to_all                    all_to_all, back
    halo_exchange                 the rows of the halo go home and are added

`loss` says what the result is used for, and no program can guess it:

    "replicated"  Every process goes on with the result in the same way and ends with
                  the *same* loss L. The result is one tensor that lies n times in
                  memory, and its gradient is one, too: y = x_0 + x_1 + ..., so
                  dL/dx_r = dL/dy, which every process has.
    "summed"      Every process goes on in its own way and ends with a loss L_r of its
                  own; what is differentiated is their sum. The results
                  y_s = x_0 + x_1 + ... are n tensors, and dL/dx_r is the sum of all
                  dL_s/dy_s: an all-reduce.

If the loss is the same, but each process goes on in its own way, as with the norm or
the softmax of features that are cut, write
`copy(all_reduce(x, loss="replicated"))`: the sum is one tensor, and each process uses
it for a part of the model of its own.

DDP averages the gradients of the parameters. A collective between the processes over
which it does so takes "summed", whether the losses are the same, as a contrastive one,
or not. "replicated" would leave a gradient too small by the number of processes.

The wrong one is off by a factor, or worse. Every process must call the same functions
in the same order, forward *and* backward: one whose loss does not depend on the result
leaves the others waiting, until the time-out of the group.

Before anything is sent, the processes compare what they have: an all-gather of some 200
bytes, and an error on every one of them, which names the rank, instead of a deadlock.
`check=False` saves it (with NCCL alone also the wait for its answer;
`torch.compile(fullgraph=True)` needs it), and takes shapes to be the same everywhere.
Without `check`, all of them compile in one graph on torch 2.13.

Tensors: float64, float32, bfloat16 or float16, of any strides, which may differ between
processes. Derivatives of every order, in backward mode; forward mode raises.
`torch.vmap` sends the whole batch at once, also around `torch.autograd.grad`, of which
`is_grads_batched` raises RuntimeError. The size of the batch must be the same on all
processes, which nothing checks. If `torch.distributed` is not initialised, all
functions raise ValueError; in a single process all of them work, and nothing is sent.

Sources: Shoeybi et al., Megatron-LM, https://arxiv.org/abs/1909.08053, section 3
(`copy` is its f, `all_reduce` its g);
https://docs.pytorch.org/docs/2.15/distributed.html

Needs torch 2.10 or later.

>>> import torch
>>> import torch.distributed as dist
>>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
>>> strip = torch.ones(1, 1, 2, 3, requires_grad=True)  # rows of an image
>>> halo_exchange(strip, 1, dim=2).shape  # and one of each neighbour
torch.Size([1, 1, 4, 3])
>>> all_gather(strip, dim=2, loss="summed").sum().backward()
>>> strip.grad.sum()
tensor(6.)
>>> def softmax(x):  # over features that are cut: the last dimension
...     largest = x.detach().amax(-1, keepdim=True).contiguous()
...     dist.all_reduce(largest, dist.ReduceOp.MAX)
...     shares = (x - largest).exp()
...     return shares / copy(
...         all_reduce(shares.sum(-1, keepdim=True), loss="replicated"))
>>> softmax(torch.zeros(2, 4))[0]
tensor([0.2500, 0.2500, 0.2500, 0.2500])
>>> dist.destroy_process_group()

The files: `functional.py` has the functions to call; `agreement.py` compares what the
processes have; `maps.py` has the maps and their Function; `modules.py` the linear
layers; `cross_entropy.py` the loss of logits whose classes are cut.
"""

from .cross_entropy import vocab_parallel_cross_entropy
from .functional import (
    all_gather,
    all_reduce,
    all_to_all,
    copy,
    halo_exchange,
    reduce_scatter,
)
from .maps import Collective, shares
from .modules import ColumnParallelLinear, RowParallelLinear

__all__ = [
    "Collective",
    "ColumnParallelLinear",
    "RowParallelLinear",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "copy",
    "halo_exchange",
    "reduce_scatter",
    "shares",
    "vocab_parallel_cross_entropy",
]
