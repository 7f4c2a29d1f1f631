"""What PyTorch or Python refuses: numbers, shapes and types of gradients, exceptions."""

import torch

from .patient import (
    Double,
    Linear,
    Square,
    affine,
    broken,
    draw,
    linear,
    matrix,
    slip,
    vector,
    wrong,
)

# --- shapes, dtypes, numbers, exceptions ----------------------------------------------------------


wrong(
    "SqueezedBias", "gradient-shape", "squeeze removes the only feature",
    lambda: draw((3, 4), (1, 4), (1,)), linear,
    lambda g, input, weight, bias: (g @ weight, g.t() @ input, g.sum(0).squeeze(0)),
    "The gradient of `bias` has shape (), but (1,) belongs there.",
)  # fmt: skip


slip("TooFewGradients", "gradient-count", "no gradient for the bias", Linear, affine,
     {"tuple(grads)": "tuple(grads[:2])"},
     "returned 2 gradient(s), but forward has 3 argument(s)")  # fmt: skip


wrong(
    "GradientForNumber", "gradient-for-constant", "a gradient for a Python number",
    lambda: (*vector(), 3.0),
    lambda x, constant: x * constant, lambda g, x, constant: (g * constant, g.sum()),
)  # fmt: skip
wrong(
    "GradientForIndex", "gradient-for-index", "a gradient for an integer tensor",
    lambda: (*vector(), torch.tensor([0, 3])), lambda x, index: x[index],
    lambda g, x, index: (torch.zeros_like(x).index_add(0, index, g), torch.zeros(2).double()),
)  # fmt: skip
wrong("CastsToFloat", "gradient-dtype coarse-backward", "backward works in float32", vector,
      lambda x: x * x, lambda g, x: g.float() * 2 * x.float())  # fmt: skip
wrong("WrongDevice", "gradient-device", "a gradient on another device", vector,
      lambda x: x * x, lambda g, x: torch.empty_like(g, device="meta"))  # fmt: skip
wrong("NumberForGradient", "gradient-type", "a number instead of a tensor", vector,
      lambda x: x * x, lambda g, x: 2.0)  # fmt: skip
wrong("ArrayForGradient", "gradient-type", "an array instead of a tensor", vector,
      lambda x: x * x, lambda g, x: g.numpy() * 2 * x.numpy())  # fmt: skip
wrong("ImaginaryGradient", "complex-for-real", "a factor i", vector,
      lambda x: 2 * x, lambda g, x: 2j * g)  # fmt: skip


slip("MissingAttribute", "attribute-missing", "forward did not store it", Square, vector,
     {"2 * x": "ctx.factor * x"})  # fmt: skip


slip("UnpacksTooMuch", "saved-count", "two tensors are unpacked, one was saved", Square, vector,
     {"(x,) =": "x, y ="})  # fmt: skip


slip("OneGradOutput", "backward-arguments", "two outputs, but backward takes one gradient",
     Double, vector, {"return 2 * x": "return 2 * x, 3 * x"})  # fmt: skip


wrong(
    "MissingTranspose", "shapes-do-not-fit", "a transpose is missing", affine, linear,
    lambda g, input, weight, bias: (g @ weight.t(), g.t() @ input, g.sum(0)),
)  # fmt: skip


slip("NoBackward", "method-missing", "there is no backward", Square, vector,
     {"def backward": "def backwards"})  # fmt: skip


@broken("not-static", "called as in 2017", vector)
def called_as_in_2017(x):
    return Square()(x)


slip("SavesANumber", "saved-no-tensor", "a number is saved", Square, vector,
     {"save_for_backward(x)": "save_for_backward(x, 2)"})  # fmt: skip


slip("DirtyAndCopied", "dirty-not-returned", "changed in place, and a copy is returned",
     Double, vector, {"return 2 * x": "ctx.mark_dirty(x.mul_(2)); return x.clone()"})  # fmt: skip


@broken("in-place-leaf", "a parameter is changed in place", vector)
def changes_a_leaf(x):
    return x * torch.ones(6, requires_grad=True).add_(1)


@broken("dtype-mix", "a matrix is made in float32", matrix)
def single_matrix(x):
    return x @ torch.ones(4, 2, device=x.device)


@broken("layout", "a transposed view of the memory is asked for", matrix)
def views_a_transpose(x):
    return x.t().view(-1)


@broken("numpy-detour", "NumPy is handed what autograd records", vector)
def recorded_to_numpy(x):
    return torch.from_numpy(x.numpy())


@broken("no-output", "the return is forgotten", vector)
def returns_nothing(x):
    torch.sin(x)


@broken("nothing-to-examine", "integers have no gradient", lambda: (torch.tensor([1, 2]),))
def of_integers(x):
    return 2 * x


@broken("raised", "a name that does not exist", vector)
def misspelt(x):
    return torch.sinus(x)


@broken("output-detached", "forward goes through NumPy", vector)
def through_numpy(x):
    return torch.from_numpy(x.detach().numpy() ** 2)


@broken(
    "in-place-leaf", "adds to its input, which is a leaf", lambda: (vector()[0].requires_grad_(),)
)
def adds_to_its_input(x):
    x.add_(1)
    return x * x


@broken("input-modified", "adds to its input, which is the caller's", vector)
def adds_to_what_it_is_given(x):
    x.add_(1)
    return x * x
