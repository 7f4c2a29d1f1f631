r"""Involution: a kernel of its own for each pixel, shared by the channels of a group.

    output[n, c, h, w] = sum over kh, kw of
        weight[n, g(c), kh, kw, h, w]
        * input[n, c, h * stride - padding + kh * dilation,
                      w * stride - padding + kw * dilation]

with g(c) = c // (C / G), and input zero outside its borders. A convolution is the other
way round: one kernel for all pixels, and a kernel of its own for each channel.

Source: Li et al., Involution: Inverting the Inherence of Convolution for Visual
Recognition, CVPR 2021, https://arxiv.org/abs/2103.06255

Needs torch 2.10 or later. Private: what the dispatcher's rules in `operator.py` lean
on.

>>> import torch
>>> image = torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(1, 1, 2, 4)
>>> weight = torch.zeros(1, 1, 1, 3, 2, 4)  # a 1 x 3 kernel for each pixel
>>> weight[..., 0, 0, :] = 1.0  # in the upper row: take the left neighbour
>>> weight[..., 2, 1, :] = 1.0  # in the lower row: take the right neighbour
>>> involution2d(image, weight, padding=(0, 1))
tensor([[[[0., 1., 2., 3.],
          [2., 3., 4., 0.]]]])

The files: `functional.py` is the function to call; `geometry.py` checks sizes, shapes
and dtypes, and says which two arrays make the third; `operator.py` registers it with
PyTorch and differentiates it; `dtensor.py` does so for tensors on several processes;
`backends.py` chooses what runs: `cpu_kernels.cpp`, built and called by `cpu.py`;
`kernels.cu`, readable and for every case, or `fast_kernels.cu`, made for one window
each, whose launch is in `launch.py` and `cuda.py`; or `plain.py`, PyTorch alone.
`compiler.py` finds a C++ compiler; `modules.py` has the layer of the paper, `rednet.py`
its networks; `python -m helpers.lessons.involution_benchmark` measures. On a new GPU,
`python -m tools.involution_first_gpu_run` tries the kernels, and compares their
times with what was predicted.
"""

from . import dtensor  # noqa: F401
from .backends import backend
from .functional import involution2d
from .modules import Involution2d
from .rednet import Bottleneck, RedNet

__all__ = [
    "Bottleneck",
    "Involution2d",
    "RedNet",
    "backend",
    "involution2d",
]
