"""Tensors, wherever they stand: found, measured, drawn at random."""

import contextlib
import copy
import dataclasses
import itertools
import math

import torch


def mapped(obj, name, visit):
    """`obj` with every tensor in it replaced by visit(name, tensor).

    In it are those of its tuples, lists, dicts and dataclasses, however deep.
    """
    if torch.is_tensor(obj):
        return visit(name, obj)
    if isinstance(obj, (tuple, list)):
        items = [mapped(item, f"{name}[{k}]", visit) for k, item in enumerate(obj)]
        return type(obj)(*items) if hasattr(obj, "_fields") else type(obj)(items)
    if isinstance(obj, dict):
        return {
            key: mapped(item, f"{name}[{key!r}]", visit) for key, item in obj.items()
        }
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        result = copy.copy(obj)
        for field in dataclasses.fields(obj):
            item = mapped(getattr(obj, field.name), f"{name}.{field.name}", visit)
            object.__setattr__(result, field.name, item)  # frozen, perhaps
        return result
    return obj


def tensors(obj, name=""):
    """(name, tensor) of each tensor in `obj`; name: of `obj` itself."""
    found = []
    mapped(obj, name, lambda path, tensor: found.append((path, tensor)))
    return found


def attributes_of(tensor):
    """{name: value} of what a tensor carries, such as `main_grad`, and its `.grad`.

    One of these makes a copy of a parameter a parameter, too, for `isinstance`.
    """
    carried = dict(vars(tensor))
    if isinstance(tensor, torch.nn.Parameter):
        carried["_is_param"] = True
    if tensor.is_leaf and tensor.grad is not None:
        carried["grad"] = tensor.grad
    return carried


def carry(tensor, attributes):
    """Give a tensor copies of these attributes, in its dtype."""
    for name, value in attributes.items():
        if torch.is_tensor(value):
            is_sum = is_number(value) and value.shape == tensor.shape
            if name == "grad" and not is_sum:  # of another size
                continue
            dtype = tensor.dtype if is_sum else value.dtype
            value = value.detach().to(dtype, copy=True)
        setattr(tensor, name, value)


@contextlib.contextmanager
def without_grads(tensors):
    """For a while, their `.grad` is None."""
    before = [(t, t.grad) for t in tensors]
    for tensor, _grad in before:
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, grad in before:
            tensor.grad = grad


def is_dense(tensor):
    if tensor.is_nested or tensor.is_meta or has_own_operations(tensor):
        return False
    return tensor.layout is torch.strided


def has_own_operations(tensor):
    """Is it of a class that answers operations, such as one that wraps others?"""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def differentiable(tensor):
    """Can autograd differentiate with respect to it, and differences, too?"""
    return is_dense(tensor) and tensor.numel() > 0 and is_number(tensor)


def is_number(value):
    return torch.is_tensor(value) and (value.is_floating_point() or value.is_complex())


def has_gradient(output):
    return differentiable(output) and output.dtype.itemsize > 1  # float8 has none


def has_memory(tensor):
    """Is its memory still there?"""
    return is_dense(tensor) and tensor.untyped_storage().nbytes() > 0


def equal(one, other):
    """Are all numbers the same, nan included? What is not dense is not looked at."""
    if not is_dense(one) or torch.equal(one, other):
        return True
    pair = (as_vector(t).nan_to_num() for t in (one, other))  # they may hold nan
    return is_number(one) and torch.equal(*pair)


def as_vector(tensor):
    """As a vector of float64; a complex number becomes two."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.to(torch.float64).reshape(-1)


def shaped(vector, tensor):
    """The inverse of `as_vector`, in the shape and dtype of `tensor`."""
    if tensor.is_complex() and not vector.is_complex():
        vector = torch.view_as_complex(vector.reshape(-1, 2).clone())
    return vector.reshape(tensor.shape).to(tensor.dtype)


def largest(tensor):
    """The largest absolute value of its finite elements; 0 if there are none."""
    size = tensor.abs().max().item() if tensor.numel() else 0.0
    return size if math.isfinite(size) else largest(tensor[tensor.isfinite()])


def position(k, shape):
    """The indices of element k of a tensor of this shape."""
    return [int(n) for n in torch.unravel_index(torch.tensor(int(k)), tuple(shape))]


def element(k, tensors):
    """As evidence: element k of each of {name: tensor}, which have the same shape."""
    seen = {}
    for name, t in tensors.items():
        seen |= {"at": position(k, t.shape), name: t.reshape(-1)[k].item()}
    return seen


def worst(given, expected):
    """As evidence: the shapes, if they differ, or the element that is off by most."""
    if given.shape != expected.shape:
        return {"shape": list(given.shape), "expected": list(expected.shape)}
    off = (given.to(expected.dtype) - expected).abs().nan_to_num(torch.inf).reshape(-1)
    k = int((off >= 0.99 * off.max()).nonzero()[0])
    return element(k, {"given": given, "expected": expected})


def scale(tensor):
    """How far each element may be moved: by its size, but at least 5 % of the rms."""
    size = tensor.abs().to(torch.float64).nan_to_num(posinf=0.0)
    rms = size.square().mean().sqrt().item()
    return size.clamp(min=0.05 * rms) if rms > 0 else torch.ones_like(size)


class Dice:
    """Random tensors from a generator of our own, the same ones on every device."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def uniform(self, like):
        return torch.rand(like.shape, generator=self.generator, dtype=torch.float64).to(
            like.device
        )

    def normal(self, like):
        vector = torch.randn(
            as_vector(like).shape, generator=self.generator, dtype=torch.float64
        )
        return shaped(vector.to(like.device), like)

    def direction(self, tensor, symmetric=False):
        """A change of every element.

        symmetric: only along symmetric matrices, if it is one
        """
        draw = self.uniform(tensor)
        step = scale(tensor) * torch.where(draw < 0.5, draw - 1.0, draw)
        if tensor.is_complex():
            step = torch.polar(step.abs(), 2 * math.pi * self.uniform(tensor))
        step = (step + step.mH) / 2 if symmetric and is_symmetric(tensor) else step
        return step.to(tensor.dtype)

    def nearby(self, tensor):
        """Another point, where every element is smaller by a random share."""
        moved = tensor * (0.7 + 0.28 * self.uniform(tensor))
        moved = torch.where(tensor == 0, 0.1 + 0.3 * self.uniform(tensor), moved)
        return of_the_same_kind(tensor, moved).to(tensor.dtype)


def is_symmetric(a):
    """Is it a symmetric matrix, or a batch of such, apart from rounding?"""
    square = a.dim() > 1 and a.shape[-1] == a.shape[-2] > 1
    return square and largest(a - a.mH) <= 1e-6 * largest(a)


def of_the_same_kind(tensor, moved):
    """`moved`, but symmetric or normalized where `tensor` is, as forward may demand."""
    if is_symmetric(tensor) and tensor.any():
        return 0.8 * tensor  # positive definite, too, if it was
    return normalized_as(tensor, moved)


def normalized_as(tensor, moved):
    """`moved`, but of shares, or of unit vectors, where `tensor` consists of these."""
    for d, order in itertools.product(range(tensor.dim()), (1, 2)):
        if tensor.is_floating_point() and tensor.shape[d] > 1:
            if ((tensor.norm(order, d) - 1).abs() < 1e-6).all():
                return moved / moved.norm(order, d, keepdim=True)
    return moved


def has_unit_part(tensor):
    """Does some part of every row have the norm 1, as the quaternion of a pose has?"""
    if not tensor.is_floating_point() or not tensor.dim() or tensor.shape[-1] > 16:
        return False  # of a longer row, some part may have it by chance
    sums = torch.nn.functional.pad(tensor.square().cumsum(-1), (1, 0))
    parts = (sums[..., None, :] - sums[..., None]).reshape(-1, *[sums.shape[-1]] * 2)
    return bool(((parts - 1).abs() < 1e-6).all(0).triu(2).any())
