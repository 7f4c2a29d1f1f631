"""`Kept`, which counts memory.

What `Alive` counts is printed, and compared, in chapter 12.
"""

import weakref

import torch

from helpers.lessons.memory import Kept


def test_kept_counts_each_storage_once_and_holds_nothing():
    x, weight = (
        torch.ones(10, 10, requires_grad=True),
        torch.ones(10, 10, requires_grad=True),
    )
    with Kept(but=[weight]) as kept:
        y = (x * weight).tanh()
        z = y[0] * y[1:2].exp()
    # x, the result of tanh, twice a part of it, and the result of exp, twice
    assert kept.total == 400 + 400 + 40
    assert kept.shapes.count((10, 10)) == 2
    reference = weakref.ref(y.untyped_storage())
    del y, z
    assert reference() is None
