"""Tensors in, numbers out: copies of inputs, gradients, and where two tensors differ most."""

from dataclasses import dataclass

import torch

from helpers.lessons.said import Said, Wrong

# rtol and atol, this for the largest number: in float64 what float32 touched is not right
TOLERANCE, SINGLE = (1e-10, 1e-11), (1e-5, 1e-6)
# where digits cancel in PyTorch's own second and third derivatives
LOOSE, LOOSE_SINGLE = (1e-6, 1e-7), (1e-4, 1e-5)


@dataclass(frozen=True)
class Worst:
    """Where two tensors differ most: the number `given` there, the one that is right, the place."""

    given: object
    right: object
    place: object = ""


class Rounded(float):
    """A number that is shown with so many digits."""

    def __new__(cls, value, digits):
        self = super().__new__(cls, value + 0.0)  # no -0
        self.digits = digits
        return self

    def __format__(self, spec):
        return format(float(self), f".{self.digits}g")


NEARLY = "Nearly: is something rounded to float32, clamped, added, or stopped early?"


def differ(worst, template="{what} is {given}{place}, but {right} is right.", near=NEARLY, **gaps):
    """A sentence on two numbers, with as many digits as it takes to see the difference.

    template: its gaps are {given}, {right}, {place}, and those of `gaps`
    near:     what follows if the two are nearly the same
    """
    given, right = worst.given, worst.right
    if not (isinstance(given, float) and isinstance(right, float)):
        return Wrong(template, given=given, right=right, place=worst.place, **gaps)
    digits = next((d for d in range(4, 17) if f"{given:.{d}g}" != f"{right:.{d}g}"), 17)
    given, right = Rounded(given, digits), Rounded(right, digits)
    wrong = Wrong(template, given=given, right=right, place=worst.place, **gaps)
    return wrong.and_then(Said(near) if 0 < abs(given - right) < 1e-5 * abs(right) else None)


def copies(inputs):
    """Leaves of their own, laid out alike, for the tensors among `inputs`."""

    def copy(x):
        memory = x.detach().untyped_storage().clone()
        alike = x.new_empty(0).set_(memory, x.storage_offset(), x.shape, x.stride())
        return alike.requires_grad_(x.is_floating_point())

    return [copy(value) if isinstance(value, torch.Tensor) else value for value in inputs]


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def leaves_of(values):
    return [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]


def weights_for(outputs, generator, size=1):
    """What stands for the grad_output of each: random numbers of this size."""
    return [size * torch.randn(y.shape, dtype=y.dtype, generator=generator) for y in outputs]


def gradients_of(outputs, inputs, weights):
    """For each leaf among the inputs; the graph is kept."""
    weights, leaves = [weight.clone() for weight in weights], leaves_of(inputs)
    return torch.autograd.grad(outputs, leaves, weights, allow_unused=True, retain_graph=True)


def alike(given, right, within=1e-10):
    """Are these tensors, or tuples of them, the same: structure, shapes, dtypes, numbers?"""
    try:
        torch.testing.assert_close(given, right, rtol=within, atol=within)
    except AssertionError:
        return False
    return True


def missed(given, right, misses, otherwise, **gaps):
    """What is said of a value that is not `right`; None if it is.

    misses: {sentence: value, or a list of values}: the first one that it is instead says why
    gaps:   of the sentences, and of `otherwise`, which is said of any other value
    """
    if alike(given, right):
        return None
    for sentence, values in misses.items():
        values = values if isinstance(values, list) else [values]
        if any(alike(given, value) for value in values):
            return Wrong(sentence, **gaps)
    return Wrong(otherwise, **gaps).and_then(NEARLY if alike(given, right, 1e-5) else None)


def changed(**pairs):
    """What is said of the first tensor that is not what it was; pairs: name=(now, before)."""
    for name, (now, before) in pairs.items():
        if not torch.equal(now.nan_to_num(), before.nan_to_num()):
            return Wrong("it changes `{name}` in place.", name=name)
    return None


def worst_of(value, right, *terms, of=None, loose=False):
    """Where two tensors differ most, as `Worst`; None if they agree.

    terms: what `right` is the sum of; where they cancel, their rounding is left.
    of: the input that they are gradients of, if its number there is to be said, too.
    """
    value = value.to_dense() if value.is_sparse else value
    double, single = (LOOSE, LOOSE_SINGLE) if loose else (TOLERANCE, SINGLE)
    rtol, atol = double if right.dtype in (torch.float64, torch.complex128) else single
    known = right.isfinite()  # nothing is asked where PyTorch's own numbers overflow
    value, right, *terms = (torch.where(known, t, 0) for t in (value, right, *terms))
    if right.numel():
        atol *= max(1, *(t.abs().max().item() for t in (right, *terms)))
    if torch.allclose(value, right, rtol=rtol, atol=atol):
        return None
    distance = (value - right).abs().nan_to_num(nan=torch.inf)
    index = distance.flatten().argmax()
    where = [int(i) for i in torch.unravel_index(index, right.shape)]
    place = Said(" at {index}", index=where) if where else ""
    if of is not None:
        x = f"{of.flatten()[index].item():.4g}"
        place = Said("{place}, where the input is {x}", place=place, x=x)
    return Worst(value.flatten()[index].item(), right.flatten()[index].item(), place)


RAISES = "it raises {kind}: {message}"


def raises(error, template=RAISES):
    """What an exception is called, and the first line of what it says."""
    return Wrong(template, kind=type(error).__name__, message=first_line(error))


def first_line(error):
    """The first line of an exception's message; its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
