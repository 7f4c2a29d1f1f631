"""What runs on which device: `cuda.py`, `cpu.py`, or `plain.py` everywhere else."""

from typing import NamedTuple

import torch

from . import cpu, plain


def implementation(device):
    """The module with `forward`, `grad_input` and `grad_weight` for a device."""
    if device.type == "cuda" and not torch.version.hip:
        from . import cuda  # needs CuPy, but only here

        return cuda
    return cpu if device.type == "cpu" and cpu.available() else plain


class Backend(NamedTuple):
    name: str
    reason: str


def backend(device="cpu"):
    """What `involution2d` runs on a device: (name, reason).

    name: "cpu kernel", "cuda kernel", "plain", or "none" where there is no such device
        or CuPy is missing. The first call for a CPU builds the kernel.
    """
    device = torch.device(device)
    module = implementation(device)
    if module is plain:
        on = "an AMD GPU" if device.type == "cuda" else device
        no_kernel = f"there is no kernel for {on}"
        return Backend("plain", cpu.reason() if device.type == "cpu" else no_kernel)
    if module is cpu:
        return Backend("cpu kernel", cpu.reason())
    if not torch.cuda.is_available():
        return Backend("none", "this torch finds no CUDA device")
    try:
        module.find_cupy()
    except ImportError as error:
        return Backend("none", str(error))
    return Backend(
        "cuda kernel", "kernels.cu and fast_kernels.cu, compiled and launched by CuPy"
    )
