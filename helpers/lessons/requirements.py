"""What an answer must do besides being like something: the properties that exercises share.

A property is called with the answer and yields sentences on what is wrong with it, or None for
what is right. A check ends at the first sentence, so that what comes later may rely on what came
before.
"""

import torch
from torch.utils._pytree import tree_leaves

from helpers.lessons.verdicts import as_tuple, copies


def random(*shape, dtype=torch.float64, seed=0):
    """The same random tensor at every call."""
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def of_shapes(*shapes, says="with an input of shape"):
    """Samples of one random tensor each, under the names that a verdict begins with."""
    return {f"{says} {shape}": [random(*shape)] for shape in shapes}


def at(where, sentence):
    """The sentence, and where it is true; None if there is nothing to say."""
    return f"{where}: {sentence}" if where and sentence else sentence


def calls_apart(answer, first, second, says):
    """The gradient of a call with the inputs `first` must survive a call with `second`."""

    def gradient(apply):
        leaves = copies(first)
        outputs = as_tuple(apply(*leaves))
        apply(*copies(second))
        return torch.autograd.grad(sum(output.sum() for output in outputs), leaves[0])[0]

    def sentences(attempt):
        if not torch.allclose(gradient(attempt.apply), gradient(answer.apply)):
            yield says

    return sentences


def instances_apart(first, second, x, says):
    """An instance made of `first` must not change when one is made of `second` and called."""

    def results(one, *others):
        (leaf,) = copies([x])
        output = one(leaf)
        for other in others:
            other(leaf)
        return output, torch.autograd.grad(output.square().sum(), leaf)[0]

    def sentences(attempt):
        alone, apart = results(attempt(*first)), results(attempt(*first), attempt(*second))
        if not all(a.shape == b.shape and a.allclose(b) for a, b in zip(alone, apart, strict=True)):
            yield says

    return sentences


def saved_by(apply, *inputs):
    """What a call hands to `save_for_backward`, and its outputs."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        return kept, as_tuple(apply(*copies(inputs)))


def no_tensor_on_ctx(*inputs):
    """What backward needs goes through `save_for_backward`, if it is a tensor."""

    def sentences(attempt):
        (output, *_) = as_tuple(attempt.apply(*copies(inputs)))
        for name, value in vars(output.grad_fn).items():
            if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value)):
                yield (
                    f"the gradient is right. But `ctx.{name}` holds a tensor outside "
                    "`save_for_backward`, so autograd neither notices when it changes in place, "
                    "nor frees it after backward."
                )

    return sentences


def gradients_fit(names, samples):
    """Backward itself gives each gradient the shape of its input, before the engine makes it fit.

    names: of the inputs, as a learner knows them.
    """

    def sentences(attempt):
        for where, inputs in samples.items():
            leaves = copies(inputs)
            output = attempt.apply(*leaves)
            with torch.no_grad():
                gradients = as_tuple(output.grad_fn.apply(output.detach()))
            for name, leaf, given in zip(names, leaves, gradients, strict=False):
                if given.shape != leaf.shape:
                    yield (
                        f"{where}: `backward` returns a gradient of shape {tuple(given.shape)} "
                        f"for `{name}`, whose shape is {tuple(leaf.shape)}; only the engine made "
                        "it fit."
                    )

    return sentences
