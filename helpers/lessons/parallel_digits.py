"""A classifier of digits whose layers are cut across processes, of one machine or many.

    torchrun --nproc-per-node 4 -m helpers.lessons.parallel_digits
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint HOST:29400 -m helpers.lessons.parallel_digits
"""

import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn import functional as F

from helpers.lessons.data import digits
from helpers.lessons.processes import Team
from helpers.ops.collectives import ColumnParallelLinear, RowParallelLinear


def network(column=ColumnParallelLinear, row=RowParallelLinear):
    torch.manual_seed(0)  # the same on every process
    return nn.Sequential(column(64, 128), nn.Tanh(), row(128, 10))


def losses(net, x, y):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    found = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def main():
    """Train for a few steps, and compare.

    Returns what there is to say, as sentences.
    """
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


def launch(processes):
    """Run `main` as `torchrun` does, without a command line.

    Returns {rank: what it returned}.
    """
    kept = {
        name: signal.getsignal(getattr(signal, name)) for name in ("SIGINT", "SIGTERM")
    }
    configuration = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id="parallel_digits",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # a port that is free
        start_method=Team.start_method,
        signals_to_handle=",".join(kept),
    )
    try:
        return elastic_launch(configuration, main)()
    finally:
        for name, handler in kept.items():  # they are for a command line
            signal.signal(getattr(signal, name), handler)


if __name__ == "__main__":
    said = main()
    if dist.get_rank() == 0:
        print("\n".join(said))
    dist.destroy_process_group()
