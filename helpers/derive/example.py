"""The forward of the docstring's example."""

import torch


def swish(x):
    return x * torch.sigmoid(x)
