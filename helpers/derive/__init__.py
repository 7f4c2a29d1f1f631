"""From a plain forward to the source of a Function, with a backward that one can read.

Needs torch 2.10 or later, and none of its private parts.

>>> import torch
>>> from helpers.derive import derive
>>> from helpers.derive.example import swish
>>> print(derive(swish, torch.randn(4, 6)).split("    @staticmethod\\n")[3], end="")
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        sigmoid_x = torch.sigmoid(x)  # (*N, D)
        grad_x = grad_output * sigmoid_x * (1 + x * (1 - sigmoid_x))  # (*N, D)
        return grad_x
<BLANKLINE>
<BLANKLINE>
def check_swish(x):
...
"""

from .derive import derive
from .rules import Refused

__all__ = ["Refused", "derive"]
