"""Whether the table sees each branch of an operation both ways, and each refusal.

A sample that never enters a branch lets it be wrong. Kernels in C++ and CUDA, and the
`if` of Python, are outside. A refusal is a `raise` of TypeError or ValueError in a
function; what a class refuses is outside.
"""

import ast
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
# (words of a refusal, where it is met)
REFUSED_ELSEWHERE = [
    ("target must be {known}", "reads numbers: test_target_out_of_range"),
    (
        "step and smooth must have one",
        "no function of the row: test_straight_through.py",
    ),
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


def ops_of(path):
    return [
        op for op in OPS.values() if inspect.getfile(op.wraps or op.function) == path
    ]


each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: Path(path).name)


@each_file
def test_each_branch_is_seen_both_ways(path):
    with Outcomes(path) as outcomes:
        for op in ops_of(path):
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


def refusals(path):
    """The `raise` statements of TypeError and ValueError in the functions of a file."""
    for function in ast.parse(Path(path).read_text(encoding="utf-8")).body:
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    if node.exc.func.id in ("TypeError", "ValueError"):
                        yield node


def lines_of_refusals(op):
    """The lines through which the rows of bad input come to their sentences."""
    for change, _ in op.bad:
        with pytest.raises((TypeError, ValueError)) as caught:
            op.function(**(op.good() | change))
        yield from ((str(entry.path), entry.lineno + 1) for entry in caught.traceback)


@each_file
def test_each_refusal_has_a_row_of_bad_input(path):
    met = {line for op in ops_of(path) for line in lines_of_refusals(op)}
    for node in refusals(path):
        source = ast.unparse(node)
        if not any(words in source for words, _ in REFUSED_ELSEWHERE):
            lines = range(node.lineno, node.end_lineno + 1)
            assert met & {(path, line) for line in lines}, (
                f"{Path(path).name}:{node.lineno}, {source}: no row of `bad` in table.py "
                "meets it; add one, or say where it is met in REFUSED_ELSEWHERE"
            )
