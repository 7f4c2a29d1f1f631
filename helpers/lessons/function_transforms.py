"""What `torch.func` does to an operation, for chapter 10 and for the tests."""

import warnings
from itertools import product

import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vmap


def loss(f):
    """A number, so that there is a gradient; not linear, so that there is a second."""
    return lambda *tensors: f(*tensors).square().sum()


def along(f):
    """The derivative of `f` in the direction of the tensors themselves."""
    return lambda *tensors: jvp(f, tensors, tensors)[1]


def linearized(f):
    def derivative(*tensors):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on constants that it folds
            return linearize(f, *tensors)[1](*tensors)

    return derivative


def by_all(transform):
    """`transform` by every argument, whatever their number."""
    return lambda f: lambda *tensors: transform(f, tuple(range(len(tensors))))(*tensors)


def everywhere(count):
    """in_dims for each of `count` tensors alone and for several."""
    return list(product((None, 0, -1), repeat=count))[1:]


def turn_and_turn_about(count):
    """One of them: behind, in front, behind."""
    return [tuple((-1, 0)[place % 2] for place in range(count))]


def over_a_batch(f, choice):
    def mapped(*tensors):
        return [
            vmap(f, in_dims)(
                *(
                    tensor if dim is None else torch.stack([tensor, tensor / 2], dim)
                    for tensor, dim in zip(tensors, in_dims, strict=True)
                )
            )
            for in_dims in choice(len(tensors))
        ]

    return mapped


def transforms(choice):
    """Each makes of a function of tensors another function of the same tensors."""
    return {
        "grad": lambda f: by_all(grad)(loss(f)),
        "vmap": lambda f: over_a_batch(f, choice),
        "vmap(grad)": lambda f: over_a_batch(by_all(grad)(loss(f)), choice),
        "jvp": along,
        "jvp(jvp)": lambda f: along(along(f)),
        "jacrev": by_all(jacrev),
        "jacfwd": by_all(jacfwd),
        "hessian": lambda f: by_all(hessian)(loss(f)),
        "linearize": linearized,
    }


TRANSFORMS = transforms(everywhere)
# Compiling takes a while, so no more than needed. torch 2.15.0 compiles `linearize` of
# nothing.
COMPILABLE = transforms(turn_and_turn_about)
del COMPILABLE["linearize"], COMPILABLE["jvp(jvp)"]


def together(*calls):
    """Several operations as one function of a number, to be compiled once.

    calls: (function, its tensors), all of one dtype; the number scales every tensor.
    """
    return lambda scale: torch.cat(
        [
            function(*(scale * tensor for tensor in tensors)).flatten()
            for function, tensors in calls
        ]
    )
