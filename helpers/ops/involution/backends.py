"""What runs on which device: `cuda.py`, `cpu.py`, or `plain.py` everywhere else."""

from typing import NamedTuple

import torch

from . import cpu, plain


def implementation(device):
    """The module with `forward`, `grad_input` and `grad_weight` for a device."""
    if device.type == "cuda":
        from . import cuda  # needs CuPy, but only here

        return cuda
    return cpu if device.type == "cpu" and cpu.available() else plain


class Backend(NamedTuple):
    name: str
    reason: str


def backend(device="cpu"):
    """What `involution2d` runs on a device: (name, reason).

    name: "cpu kernel", "cuda kernel" or "plain". The first call for a CPU builds the kernel.
    """
    module = implementation(torch.device(device))
    if module is plain:
        is_cpu = torch.device(device).type == "cpu"
        return Backend("plain", cpu.reason() if is_cpu else f"there is no kernel for {device}")
    if module is cpu:
        return Backend("cpu kernel", cpu.reason())
    return Backend("cuda kernel", "kernels.cu and fast_kernels.cu, compiled and launched by CuPy")
