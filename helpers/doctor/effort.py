"""How much work an examination may be; counted, not timed, so that a report is always the same."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

PER_ELEMENT = 7  # calls of forward, at least
AN_OPERATION = 2000  # takes as long as so many elements of its output


class Work(TorchDispatchMode):
    """Counts as FlopCounterMode does, but leaves modules alone, which backward may call."""

    def __init__(self):
        super().__init__()
        self.flops = self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        size = result.numel() if isinstance(result, torch.Tensor) else 0
        self.elements += AN_OPERATION + size
        return result


def calls_allowed(subject):
    """So many calls of forward a diagnosis may take: three times those until then, or a second."""
    with Work() as work:
        subject.forward(subject.values)
    return int(max(3 * subject.calls, 3e8 / (work.elements + work.flops / 10)))


def shared(calls, inputs):
    """How many of so many inputs are examined element by element, and how many elements of each."""
    inputs = max(1, min(inputs, calls // (16 * PER_ELEMENT)))
    return inputs, min(512, max(16, calls // (PER_ELEMENT * inputs)))
