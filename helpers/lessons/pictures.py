"""A photograph, and how to show a picture."""

import matplotlib.pyplot as plt
import torch
from matplotlib import cbook


def photograph():
    """A photograph that matplotlib ships: (1, 3, 150, 128), float32 in [0, 1].

    Rear Admiral Grace Hopper, photographed for the US Navy; in the public domain.
    """
    with cbook.get_sample_data("grace_hopper.jpg") as file:
        pixels = torch.tensor(plt.imread(file)).float() / 255
    return torch.nn.functional.avg_pool2d(pixels.permute(2, 0, 1)[None], 4)


def show(ax, picture, title):
    """Draw (1, 3, H, W) or (H, W) into `ax`."""
    ax.imshow(
        picture[0].permute(1, 2, 0).clamp(0, 1) if picture.dim() == 4 else picture
    )
    ax.set_title(title)
    ax.axis("off")
