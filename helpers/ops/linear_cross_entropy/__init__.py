r"""Cross-entropy of a linear layer whose logits never exist whole.

    z = x Wᵀ + b                                  (N, V), made for a few rows at a time
    loss of a row = Σ q · (log Σ exp(z) - z)      q: 1 at the target, or smoothed, or given
    dz = share · (Σ q · softmax(z) - q)           share: dL/d(loss of the row), 0 where ignored
    dx = dz · W        dW = dzᵀ · x        db = sum of dz over N

Under a sum or a mean, the share of each row is known up to one factor for all rows. So the
gradients are made in forward, while the logits of the rows are there, and backward only multiplies
them by that factor.

Forward and backward of the mean, 4,096 rows of 512 features, 32,768 classes, float32, two threads
on two cores of an Intel Xeon, in one run of `python -m tools.benchmark linear_cross_entropy`; the
peak is beyond the arguments, and 72 MiB of it are the two gradients:

                                      peak, MiB   seconds   share
F.cross_entropy(F.linear(...))            1,536      3.37    1
F.linear_cross_entropy(options=...)         144      4.42    1.31
linear_cross_entropy                        144      2.33    0.69

Source: Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models (what logits cost),
https://arxiv.org/abs/2411.09009; Hsu et al., Liger Kernel (chunks, gradients in forward),
https://arxiv.org/abs/2410.10989

Needs torch 2.10 or later. Private: `_are_functorch_transforms_active`, `_set_fwd_grad_enabled`.

>>> import torch
>>> x, weight = torch.zeros(6, 3), torch.ones(4, 3, requires_grad=True)
>>> loss = linear_cross_entropy(x, weight, torch.tensor([0, 1, 2, 3, 0, -100]), chunk_size=2)
>>> loss.backward()
>>> round(loss.item(), 4), weight.grad.shape
(1.3863, torch.Size([4, 3]))

The files: `functional.py` has the function to call and its layer; `operator.py` the operator, which
goes through the chunks; `derivatives.py` its derivatives.
"""

from .functional import LinearCrossEntropyLoss, linear_cross_entropy

__all__ = ["LinearCrossEntropyLoss", "linear_cross_entropy"]
