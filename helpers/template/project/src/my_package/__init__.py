"""A linear recurrence as a differentiable operator of PyTorch, with kernels in C++ and CUDA."""

from .operator import COMPILED, recurrence

__all__ = ["COMPILED", "recurrence"]
