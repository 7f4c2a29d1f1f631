"""A classifier of digits whose layers are cut across processes, on one machine or on many:

torchrun --nproc-per-node 4 -m helpers.lessons.parallel_digits
torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 -m ...
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from helpers.lessons.data import digits
from helpers.ops.collectives import ColumnParallelLinear, RowParallelLinear


def network(column=ColumnParallelLinear, row=RowParallelLinear, hidden=128):
    torch.manual_seed(0)  # the same on every process
    return nn.Sequential(column(64, hidden), nn.Tanh(), row(hidden, 10))


def losses(net, x, y, steps=20):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def main():
    """Train for a few steps, and compare. Returns what there is to say, as sentences."""
    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    has_gpus = torch.cuda.device_count() >= here and dist.is_nccl_available()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if has_gpus else "gloo")
    device = torch.device("cuda", local) if has_gpus else torch.device("cpu")
    if has_gpus:
        torch.cuda.set_device(device)
    x, y, test_x, test_y = (tensor.to(device) for tensor in digits())
    net = network().to(device)
    cut = losses(net, x, y)
    whole = losses(network(nn.Linear, nn.Linear).to(device), x, y)
    with torch.no_grad():
        accuracy = (net(test_x).argmax(1) == test_y).float().mean().item()
    worst = max(abs(a - b) for a, b in zip(cut, whole, strict=True))
    said = [
        f"{dist.get_world_size()} processes, {tuple(net[0].weight.shape)} and"
        f" {tuple(net[2].weight.shape)} of the weights on each",
        f"loss {cut[0]:.2f} -> {cut[-1]:.2f}; in one process the same: {worst < 1e-3}",
        f"right on the test part: over 90 %: {accuracy > 0.9}",
    ]
    return said


if __name__ == "__main__":
    said = main()
    if dist.get_rank() == 0:
        print("\n".join(said))
    dist.destroy_process_group()
