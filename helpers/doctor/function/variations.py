"""Functions that are applied in another way, in this thread, for a while; with other numbers."""

import copy
import functools
import inspect

import torch
from torch.autograd.function import Function

from .private import methods


def another(number):
    return 0.8 * number if isinstance(number, float) else number + 1


def with_another_number(fn, cls, k, *args, **kwargs):
    """fn(*args, **kwargs), but the Function receives another number as its argument k."""

    def changed(values):
        values = with_defaults(cls, values)
        return (*values[:k], another(values[k]), *values[k + 1 :])

    def forward(method, of, *given):
        if of is not cls:
            return method(*given)
        first = given[: takes_ctx(cls)]
        return method(*first, *changed(given[len(first) :]))

    def setup_context(method, of, ctx, inputs, output):
        return method(ctx, changed(inputs) if of is cls else inputs, output)

    with methods("forward", forward), methods("setup_context", setup_context):
        return fn(*args, **kwargs)


def numbers_of(do):
    """{(Function, k): number} of arguments of the Functions that do() applies."""
    found = {}

    def way(method, cls, *given):
        values = enumerate(with_defaults(cls, given[takes_ctx(cls) :]))
        found.update({(cls, k): value for k, value in values if type(value) in (float, int)})
        return method(*given)

    with methods("forward", way):
        do()
    return found


def takes_ctx(cls):
    """Is ctx the first argument of its forward?"""
    return inspect.unwrap(cls.setup_context) is Function.setup_context


def with_defaults(cls, args):
    forward = inspect.unwrap(cls.forward)
    defaults = getattr(forward, "__defaults__", None) or ()
    if defaults:
        missing = forward.__code__.co_argcount - len(args)
        missing -= takes_ctx(cls)
        args += defaults[len(defaults) - missing :] if missing <= len(defaults) else ()
    return args


def with_other_arguments(subject, whole=lambda: False):
    """The subject with another value of what is not differentiated; `what` says of which.

    Of each float, among its own arguments and its Functions', and of masks; whole(): of whole
    numbers, too? Only code that does nothing but compute may be given others.
    """

    def may(value):
        return type(value) is float or type(value) is int and whole()

    own = {name: value for name, value in subject.arguments.items() if may(value)}
    for name, value in own.items():
        other = copy.copy(subject)
        other.arguments = subject.arguments | {name: another(value)}
        other.what = f"`{name}` is {another(value):.3g}"
        other.numbers = subject.numbers | {f"`{name}`": another(value)}
        yield other
    for (cls, k), value in numbers_of(lambda: subject.run(subject.values)).items():
        if may(value) and value not in own.values():
            other = copy.copy(subject)
            other.fn = functools.partial(with_another_number, subject.fn, cls, k)
            other.what = f"`{cls.__name__}` is given {another(value):.3g}, not {value:.3g}"
            if "Generated" in cls.__name__:  # by PyTorch, for an operator
                other.what = f"{another(value):.3g} is given in place of {value:.3g}"
            vars(other).pop("numbers", None)
            yield other
    masks = [k for k, t in enumerate(subject.tensors) if k not in subject.examined and is_mask(t)]
    if masks:
        other = copy.copy(subject)
        other.tensors = [
            with_one_less(t) if k in masks else t for k, t in enumerate(subject.tensors)
        ]
        other.what = f"`{subject.names[masks[0]]}` has one element less"
        yield other


def with_other_buffers(subject):
    """The subject with other numbers in the buffers of its module that are all zeros, or ones."""
    other, first = copy.copy(subject), len(subject.tensors) - len(subject.state)
    other.tensors = [
        0.8 * t + 0.1 if k >= first and k not in subject.examined and is_of_one_kind(t) else t
        for k, t in enumerate(subject.tensors)
    ]
    if any(new is not t for new, t in zip(other.tensors, subject.tensors, strict=True)):
        yield other


def is_of_one_kind(t):
    return t.is_floating_point() and t.numel() > 0 and bool((t == 0).all() or (t == 1).all())


def of_fewer(subject, size=None):
    """The subject with one element less in each dimension of this size, if it is one of many.

    By default that of the rows, if all its inputs have as many.
    """
    own = subject.tensors[: len(subject.tensors) - len(subject.state)]
    rows = {len(t) for t in own if t.dim()}
    dense = not any(t.is_sparse for t in own)
    if size is None and len(rows) == 1:
        (size,) = rows
    if dense and size and size > 1:
        other = copy.copy(subject)
        fewer = [t[tuple(slice(n - (n == size)) for n in t.shape)] for t in own]
        other.tensors = fewer + subject.tensors[len(own) :]
        other.values = [other.tensors[k] for k in other.examined]
        yield other


def is_mask(tensor):
    """Is it true, or 1, in several places, and otherwise false, or 0?"""
    if tensor.layout is not torch.strided or tensor.dtype not in (torch.bool, torch.float64):
        return False
    return bool(((tensor == 0) | (tensor == 1)).all()) and tensor.sum().item() > 1


def with_one_less(mask):
    """The mask without its last element."""
    mask = mask.clone(memory_format=torch.contiguous_format)
    mask.view(-1)[mask.view(-1).nonzero()[-1]] = 0
    return mask
