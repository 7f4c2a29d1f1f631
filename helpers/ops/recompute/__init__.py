r"""Memory for time: what autograd would keep of a call is computed again in backward.

    recompute(fn, x)       y = fn(x)        kept: x          backward runs fn(x) once more
    ReversibleSequential   y1 = x1 + f(x2)  kept: y1 and y2  backward computes x2 = y2 - g(y1),
                           y2 = x2 + g(y1)  of the last      x1 = y1 - f(x2), block by block
                                            block only

The graph is recorded as usual. Only the tensors saved in it are replaced by tickets; the first
ticket that backward hands in starts the second run, which saves the same tensors in the same order.
f and g need not be invertible.

Watching both runs costs 0.2 to 0.3 ms of Python a call more than `checkpoint`, which only tiny
functions feel. Forward and backward in float32, one thread of an AMD EPYC, from
`python -m tools.benchmark recompute` and `rednet`; peaks in MiB beyond the arguments, and times as
shares of the first row's:

              12 blocks, 4,096 x 256    12 blocks, 4 x 8    RedNet-26, 4 images of 224 x 224
                 peak    time                 time             peak    time
as they are       449    1                    1                 282    1
checkpoint         69    1.17                 3.9
recompute          69    1.19                 5.7               196    1.29

12 pairs of blocks f and g, 4,096 x 256, likewise, from `python -m tools.benchmark reversible`, the
better of two rounds:

                         peak    time
as they are               440    1
checkpoint                 56    1.1
revtorch                   34    1.2
memcnn                     55    1.4
ReversibleSequential       31    1.2

Sources: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016,
https://arxiv.org/abs/1604.06174; Gomez et al., The Reversible Residual Network: Backpropagation
Without Storing Activations, 2017, https://arxiv.org/abs/1707.04585, section 3; the hooks are those
of https://docs.pytorch.org/docs/2.15/autograd.html#torch.autograd.graph.saved_tensors_hooks

Needs torch 2.10 or later. Private: `torch.utils._pytree`, which takes nested inputs apart;
`torch._C._autograd._get_sequence_nr` and `grad_fn._sequence_nr`, which tell what a run has made;
`torch._C._are_functorch_transforms_active`; `torch._C.DisableTorchFunction`; and what keeps the
compiler out of the watching, `set_code_exec_strategy` of `torch._C._dynamo.eval_frame`.

>>> import torch
>>> layers = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
>>> x = torch.ones(8, 4, requires_grad=True)
>>> recompute(layers, x).sum().backward()
>>> x.grad.shape, layers[0].weight.grad.shape
(torch.Size([8, 4]), torch.Size([64, 4]))
>>> model = ReversibleSequential([(layers, torch.nn.Linear(4, 4)) for _ in range(3)])
>>> y1, y2 = model(x, x)
>>> torch.allclose(model.inverse(y1, y2)[0], x, atol=1e-5)
True

The files: `functional.py` has the function to call; `reversible.py` the blocks; `call.py` runs a
function and runs it again; `reads.py` watches both runs.
"""

from .functional import recompute
from .reversible import ReversibleSequential

__all__ = ["ReversibleSequential", "recompute"]
