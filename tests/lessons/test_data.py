"""The digits."""

import torch

from helpers.lessons.data import digits


def test_digits_are_split_without_loss():
    train_x, train_y, test_x, test_y = digits(torch.float64)
    assert [tuple(t.shape) for t in (train_x, train_y, test_x, test_y)] == [
        (1437, 64), (1437,), (360, 64), (360,)
    ]  # fmt: skip
    assert train_x.dtype == test_x.dtype == torch.float64
    assert train_x.min() == 0
    assert train_x.max() == 1
    assert torch.bincount(test_y, minlength=10).min() >= 34  # every digit, about equally often
