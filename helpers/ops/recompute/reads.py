"""What the operations of a run read besides what it is given, and whether a second run may."""

import weakref
from typing import NamedTuple

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch.overrides import TorchFunctionMode

# What reads a shape, a dtype and the like. "__get__" is that of all properties.
OF_NO_NUMBERS = set(
    "__get__ __len__ _is_view dim is_floating_point is_inference numel size stride".split()
)


class Kind(NamedTuple):
    """What a tensor is, and which operation saved it, if that is known."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    operation: str = ""

    def __str__(self):
        words = f"a tensor {tuple(self.shape)} of {self.dtype} on {self.device}"
        return f"{words} in {self.operation}" if self.operation else words


def kind_of(tensor, operation=""):
    return Kind(tensor.shape, tensor.dtype, tensor.device, operation)


def version_of(tensor):
    return None if tensor.is_inference() else tensor._version


def _tensors_in(thing):
    if isinstance(thing, torch.Tensor):
        return [thing]
    if isinstance(thing, dict):
        thing = thing.values()
    elif not isinstance(thing, (tuple, list)):
        return []
    return [tensor for part in thing for tensor in _tensors_in(part)]


def _changes_unseen(function, name, kwargs):
    """Whether it may change a tensor, a buffer above all, and leave its version as it is."""
    if name == "batch_norm":
        return kwargs.get("training", False)
    of_data = getattr(function, "__self__", None) is torch.Tensor.data
    return of_data or name == "fused_moving_avg_obs_fake_quant"  # of quantization-aware training


class Tensors:
    """A weak set of tensors: by identity, where == would compare their elements."""

    def __init__(self):
        self.references = {}

    def add(self, *tensors):
        for tensor in tensors:
            self.references[id(tensor)] = weakref.ref(tensor)

    def __contains__(self, tensor):
        reference = self.references.get(id(tensor))
        return reference is not None and reference() is tensor

    def __len__(self):
        return len(self.references)

    def forget_the_dead(self):
        self.references = {n: ref for n, ref in self.references.items() if ref() is not None}


class Reads(TorchFunctionMode):
    """Watches a run: each tensor that its operations take, but that none of them has made.

    If there was a `first` run, this one must read the same tensors, in the same versions.
    """

    def __init__(self, first=None):
        super().__init__()
        self.first, self.operation = first, ""
        self.made, self.outside = Tensors(), Tensors()
        self.versions = {}  # of those from outside, by id, once one is read, not only written
        # those from outside that do not outlive the run: something made them unseen
        self.passing = 0
        self.strangers = 0  # those that the first run has not met
        self.unseen = False  # whether a tensor may have changed that is at its old version
        self.start = torch._C._autograd._get_sequence_nr()

    def are_given(self, *tensors):
        self.made.add(*tensors)

    def kind_of(self, tensor):
        return kind_of(tensor, self.operation)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # what it compiles is not to contain this
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        self.unseen = self.unseen or _changes_unseen(function, name, kwargs)
        if name in OF_NO_NUMBERS:
            result = function(*args, **kwargs)
            if not isinstance(result, torch.Tensor):  # a shape, not `x.T`
                return result
        read = _tensors_in((args, {**kwargs, "out": None}))  # into `out` it only writes
        taken = [(t, version_of(t)) for t in read if self._is_outside(t)]
        for tensor, version in taken:
            self._meet(tensor, version)
        self.operation = name
        result = function(*args, **kwargs)
        self.operation = ""  # an autograd.Function saves after the operations in it
        for tensor, version in taken:
            if version == version_of(tensor):
                self.versions.setdefault(id(tensor), version)
        for tensor in _tensors_in(result):
            if tensor not in self.outside:  # as what an operation in place returns
                self.made.add(tensor)
        return result

    def _is_outside(self, tensor):
        if tensor in self.made:
            return False
        # The results of an autograd.Function come unseen.
        return tensor.grad_fn is None or tensor.grad_fn._sequence_nr() < self.start

    def _meet(self, tensor, version):
        number, first = id(tensor), self.first
        if tensor not in self.outside:
            self.outside.add(tensor)
            self.versions.pop(number, None)
            self.passing += 1
            if first and not (tensor in first.outside or tensor in first.made):
                self._meet_a_stranger(tensor)
        if first and number not in self.versions and tensor in first.outside:
            before = first.versions.get(number)
            if before is not None and before != version:
                raise RuntimeError(
                    f"{kind_of(tensor)} that fn reads has been modified by an inplace operation: "
                    f"it is at version {version}; expected version {before} instead"
                )

    def _meet_a_stranger(self, tensor):
        self.strangers += 1
        if self.strangers > self.first.passing or tensor.is_leaf and tensor.requires_grad:
            raise RuntimeError(
                f"fn did something else when it ran again: it read {kind_of(tensor)} that it had "
                "not read before; what changes must be an input, and a module whose parameters "
                "are swapped must be fn itself"
            )

    def end(self):
        """Forget what did not outlive the run."""
        self.outside.forget_the_dead()
        self.made.forget_the_dead()
        self.passing -= len(self.outside)


# Where a compiled module runs a part as it is, the compiler would compile this, and take the result
# for one property of a tensor, such as `real`, for that of the next, `imag`.
set_code_exec_strategy(
    Reads.__torch_function__.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
)
