"""Real data that comes with installed packages: nothing is downloaded."""

import torch


def digits(dtype=torch.float32):
    """The 1,797 handwritten digits of scikit-learn's `load_digits`, in a fixed split.

    Returns train_x (1437, 64), train_y (1437), test_x (360, 64), test_y (360): pixels
    in [0, 1] of `dtype`, row by row from an 8 × 8 scan; labels 0 to 9 as int64.
    Source: https://archive.ics.uci.edu/dataset/80
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    parts = train_test_split(x, y, test_size=360, random_state=0, stratify=y)
    train_x, test_x = (torch.tensor(part / 16, dtype=dtype) for part in parts[:2])
    train_y, test_y = (torch.tensor(part, dtype=torch.int64) for part in parts[2:])
    return train_x, train_y, test_x, test_y
