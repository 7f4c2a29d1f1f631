"""Whether the samples of the table see each branch of an operation both ways.

A sample that never enters a branch lets it be wrong. Kernels in C++ and CUDA, and the
`if` of Python, are outside.
"""

import inspect
import linecache
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.ops.table import OPS

COMPARISONS = "eq", "ne", "lt", "le", "gt", "ge"
CONDITION = {"where": 0, "masked_fill": 1}  # its place among the arguments
MOVES = {"clamp": {-1, 0, 1}, "clamp_min": {0, 1}, "relu": {0, 1}, "clamp_max": {-1, 0}}
KEYS = torch._C.DispatchKey.CPU, torch._C.DispatchKey.CompositeExplicitAutograd
# (words of a line, why the table sees it one way only)
ONE_WAY = [
    ("target < classes", "a target out of range raises: test_target_out_of_range"),
    ("is_some", "nan, if there is no target: test_all_ignored"),
]
FILES = sorted({inspect.getfile(op.wraps or op.function) for op in OPS.values()})


class Outcomes(TorchDispatchMode):
    """seen: {(line of the file, operation): {True, False}, or how clamps move numbers}."""

    def __init__(self, path):
        super().__init__()
        self.path, self.seen = path, defaultdict(set)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "extending_pytorch":  # written in Python
            key = next(k for k in KEYS if function.has_kernel_for_dispatch_key(k))
            with self:
                return function._op_dk(key, *args, **(kwargs or {}))
        name, outcome = function.overloadpacket.__name__.rstrip("_"), None
        before = args[0].clone() if name in MOVES else None
        result = function(*args, **(kwargs or {}))
        if name in COMPARISONS:
            outcome = result
        elif name in CONDITION:
            outcome = args[CONDITION[name]]
        elif name in MOVES:
            outcome = result.sub(before).sign()
        frame = sys._getframe(1)
        while frame and frame.f_code.co_filename != self.path:
            frame = frame.f_back
        if frame and outcome is not None:
            self.seen[frame.f_lineno, name].update(outcome.unique().tolist())
        return result


@pytest.mark.parametrize("path", FILES, ids=lambda path: Path(path).name)
def test_each_branch_is_seen_both_ways(path):
    ops = [
        op for op in OPS.values() if inspect.getfile(op.wraps or op.function) == path
    ]
    with Outcomes(path) as outcomes:
        for op in ops:
            for arguments in op.samples(torch.float64).values():
                leaves = [a for a in arguments if getattr(a, "requires_grad", False)]
                y = op.function(*arguments).sum()
                torch.autograd.grad(y, leaves, create_graph=True)
    for (number, name), seen in outcomes.seen.items():
        line = linecache.getline(path, number).strip()
        if not any(words in line for words, _ in ONE_WAY):
            assert seen == MOVES.get(name, {True, False}), (
                f"{Path(path).name}:{number}, {line}: the samples of its row see "
                f"{name} only as {seen}; add one, or say why not in ONE_WAY"
            )
