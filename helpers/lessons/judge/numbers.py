"""Tensors in, numbers out: copies of inputs, gradients, and where two differ most."""

from typing import NamedTuple

import torch

from helpers.lessons.language import N_, _, followed

# rtol and atol, this for the largest number: in float64 what float32 touched is not
# right
TOLERANCE, SINGLE = (1e-10, 1e-11), (1e-5, 1e-6)
# where digits cancel in PyTorch's own second and third derivatives
LOOSE, LOOSE_SINGLE = (1e-6, 1e-7), (1e-4, 1e-5)


class Difference(NamedTuple):
    """Where two tensors differ most: `given` there, the right number, the place."""

    given: object
    right: object
    place: str = ""


NEARLY = N_(
    "Nearly: is something rounded to float32, clamped, added, or stopped early?"
)


def in_numbers(difference, sentence, near=NEARLY, **gaps):
    """A sentence on two numbers, with as many digits as it takes to see the difference.

    sentence: its gaps are {given}, {right}, {place}, and those of `gaps`
    near:     what follows if the two are nearly the same
    """
    given, right, place = difference
    nearly = False
    if isinstance(given, float) and isinstance(right, float):
        digits = next(
            (d for d in range(4, 17) if f"{given:.{d}g}" != f"{right:.{d}g}"), 17
        )
        nearly = 0 < abs(given - right) < 1e-5 * abs(right)
        # No -0.
        given, right = (f"{number + 0.0:.{digits}g}" for number in (given, right))
    said = sentence.format(given=given, right=right, place=place, **gaps)
    return followed(said, _(near) if nearly else None)


def copies(inputs):
    """Leaves of their own, laid out alike, for the tensors among `inputs`."""

    def copy(x):
        memory = x.detach().untyped_storage().clone()
        alike = x.new_empty(0).set_(memory, x.storage_offset(), x.shape, x.stride())
        return alike.requires_grad_(x.is_floating_point())

    return [copy(value) if torch.is_tensor(value) else value for value in inputs]


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def leaves_of(values):
    return [v for v in values if torch.is_tensor(v) and v.requires_grad]


def weights_for(outputs, generator, size=1):
    """What stands for the grad_output of each: random numbers of this size."""
    return [
        size * torch.randn(y.shape, dtype=y.dtype, generator=generator) for y in outputs
    ]


def gradients_of(outputs, inputs, weights):
    """For each leaf among the inputs; the graph is kept."""
    weights, leaves = [weight.clone() for weight in weights], leaves_of(inputs)
    return torch.autograd.grad(
        outputs, leaves, weights, allow_unused=True, retain_graph=True
    )


def alike(given, right, within=1e-10):
    """Have these, tensors or tuples of them, one structure, shapes, dtypes, numbers?"""
    try:
        torch.testing.assert_close(given, right, rtol=within, atol=within)
    except (AssertionError, TypeError):  # a number of something else
        return False
    return True


def wrong_element(given, right, within):
    """ "y[1, 2] is …, but … is right." for the element that is most wrong, or None."""
    if alike(given, right, within):
        return None
    said = _("{name}{place} is {given}, but {right} is right.")
    return in_numbers(_worst(given, right), said, name="y")


def _worst(given, right):
    """Where two tensors differ most, as `Difference`, whose place is an index."""
    index = (given - right).abs().nan_to_num(nan=torch.inf).argmax()
    numbers = (tensor.flatten()[index].item() for tensor in (given, right))
    place = [int(i) for i in torch.unravel_index(index, right.shape)]
    return Difference(*numbers, place)


def near_miss(given, right, misses, otherwise="", **gaps):
    """What is said of a value that is not `right`; None if it is.

    misses: {sentence: value, or a list of values}: the first one that it is instead
            says why
    gaps:   of the sentences, and of `otherwise`, which is said of any other value; an
            empty one says nothing
    """
    if alike(given, right):
        return None
    for sentence, values in misses.items():
        values = values if isinstance(values, list) else [values]
        if any(alike(given, value) for value in values):
            return sentence.format(**gaps)
    return otherwise and followed(
        otherwise.format(**gaps), _(NEARLY) if alike(given, right, 1e-5) else None
    )


def changed_in_place(**pairs):
    """What is said of the first tensor that is not what it was.

    pairs: name=(now, before)
    """
    for name, (now, before) in pairs.items():
        if not torch.equal(now.nan_to_num(), before.nan_to_num()):
            return _("it changes `{name}` in place.", name=name)
    return None


def largest_difference(value, right, *terms, of=None, loose=False):
    """Where two tensors differ most, as `Difference`; None if they agree.

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
    *numbers, where = _worst(value, right)
    place = _(" at {index}", index=where) if where else ""
    if of is not None:
        x = f"{of[tuple(where)].item():.4g}"
        place = _("{place}, where the input is {x}", place=place, x=x)
    return Difference(*numbers, place)


def first_difference(given, right, **how):
    """The `largest_difference` of the first pair of tensors that differ, or None."""
    pairs = zip(given, right, strict=True)
    found = (largest_difference(one, other, **how) for one, other in pairs)
    return next(filter(None, found), None)


def raises(error, sentence=""):
    """What an exception is called, and the first line of what it says."""
    sentence = sentence or _("it raises {kind}: {message}")
    return sentence.format(kind=type(error).__name__, message=first_line(error))


def first_line(error):
    """The first line of an exception's message; its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
