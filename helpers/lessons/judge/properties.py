"""Properties that exercises share, besides being like a reference.

A property is called with the answer and yields sentences on what is wrong with it, or
None for what is right. A check ends at the first sentence, so that what comes later may
rely on what came before.
"""

import contextlib
import inspect
import tracemalloc

import torch
from torch.utils._pytree import tree_leaves

from helpers.lessons.judge.numbers import alike, as_tuple, copies
from helpers.lessons.language import N_, _, at
from helpers.lessons.memory import Alive, storage_of


def random(*shape, dtype=torch.float64, seed=0):
    """The same random tensor at every call."""
    return torch.randn(
        shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)
    )


def with_zeros(*shape, **options):
    """The same, every seventh element being 0: where a kernel may divide, or skip."""
    numbers = random(*shape, **options)
    numbers.flatten()[3::7] = 0
    return numbers


def each(cases, check):
    """A property: check(attempt, *case) holds for each of {where: case}.

    A case of one argument need not be a tuple.
    """

    def sentences(attempt):
        for where, case in cases.items():
            yield from (
                at(_(where), wrong) for wrong in check(attempt, *as_tuple(case))
            )

    return sentences


def each_of(cases, check, where):
    """The same, where `where` has gaps: they are called like the arguments of `check`."""
    gaps = [*inspect.signature(check).parameters][1:]

    def sentences(attempt):
        for case in cases:
            filled = _(where, **dict(zip(gaps, case, strict=True)))
            yield from each({filled: case}, check)(attempt)

    return sentences


def instances_apart(first, second, x, says):
    """An instance of `first` stays as it is when `second` makes another."""

    def results(one, *others):
        (leaf,) = copies([x])
        output = one(leaf)
        for other in others:
            other(leaf)
        return output, torch.autograd.grad(output.square().sum(), leaf)[0]

    def sentences(attempt):
        alone, apart = (
            results(attempt(*first)),
            results(attempt(*first), attempt(*second)),
        )
        if not alike(alone, apart):
            yield _(says)

    return sentences


def slips(slip, says, *inputs):
    """The gradient of the last input is not slip(grad_output, *inputs)."""

    def sentences(attempt):
        leaves = copies(inputs)
        with contextlib.suppress(Exception):  # What raises is said later
            output = attempt.apply(*leaves)
            g = random(*output.shape, seed=2)
            (given,) = torch.autograd.grad(output, leaves[-1], g)
            if alike(given, slip(g, *inputs)):
                yield _(says)

    return sentences


def bytes_hidden(apply, *inputs):
    """What a call leaves alive besides inputs and outputs: tensors, arrays, lists."""
    leaves = copies(inputs)
    with Alive():
        apply(*leaves)  # what the first call imports and caches does not count
    return min(_bytes_hidden(apply, leaves) for _ in range(2))


def _bytes_hidden(apply, leaves):
    with Alive() as alive:
        outputs = as_tuple(apply(*leaves))
    theirs = {storage_of(y): y.untyped_storage().nbytes() for y in outputs}
    for x in leaves:
        if torch.is_tensor(x):
            theirs.pop(storage_of(x), None)
    of_tensors = alive.now - sum(theirs.values())
    del outputs
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        outputs = apply(*leaves)  # without Alive, whose own lists grow  # noqa: F841
        of_python = tracemalloc.get_traced_memory()[0] - before
    finally:
        if started:
            tracemalloc.stop()
    return of_tensors + of_python


def no_tensor_on_ctx(*inputs):
    """What backward needs goes through `save_for_backward`, if it is a tensor."""

    def sentences(attempt):
        output = as_tuple(attempt.apply(*copies(inputs)))[0]
        for name, value in vars(output.grad_fn).items():
            if any(torch.is_tensor(leaf) for leaf in tree_leaves(value)):
                yield _(
                    "the gradient is right. But `ctx.{name}` holds a tensor outside "
                    "`save_for_backward`, so autograd neither notices when it "
                    "changes in place, nor frees it after backward.",
                    name=name,
                )

    return sentences


GOT = {  # by what is saved that should not be, and whether it is alone
    ("input", True): N_("`save_for_backward` got the input, not the output."),
    ("input", False): N_("`save_for_backward` got the input as well."),
    ("output", True): N_("`save_for_backward` got the output, not the input."),
    ("output", False): N_("`save_for_backward` got the output as well."),
}
COPIED = {
    "input": N_(
        "`save_for_backward` got the numbers of the input, but not the input itself: "
        "one is a copy, which takes more memory."
    ),
    "output": N_(
        "`save_for_backward` got the numbers of the output, but not the output "
        "itself: one is a copy, which takes more memory."
    ),
}


def keeps_only(what, *inputs):
    """Nothing is kept for backward but an input or an output itself.

    what: "inputs", "outputs", "inputs and outputs", with "positions" also integers and
          masks.
    inputs: of a call, large ones; without tensors, what follows a matrix.
    """
    if not any(map(torch.is_tensor, inputs)):
        inputs = random(100, 200), *inputs

    def sentences(attempt):
        kept, leaves = [], copies(inputs)
        hooks = lambda t: kept.append(t) or t, lambda t: t  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            outputs = as_tuple(attempt.apply(*leaves))
        tensors = [leaf for leaf in leaves if torch.is_tensor(leaf)]
        theirs = {"input": tensors, "output": outputs}
        positions = 0  # bytes
        for tensor in kept:
            itself = [
                name
                for name, others in theirs.items()
                if storage_of(tensor) in map(storage_of, others)
            ]
            if itself:
                if itself[0] not in what:
                    yield _(GOT[itself[0], len(kept) == 1])
                continue
            if "positions" in what and not tensor.is_floating_point():
                positions += tensor.untyped_storage().nbytes()
                continue
            for name, others in theirs.items():
                if any(
                    tensor.shape == o.shape and torch.equal(tensor, o) for o in others
                ):
                    yield _(COPIED[name])
            yield _(
                "`save_for_backward` got a tensor that is neither an input nor an "
                "output."
            )
        yield from no_tensor_on_ctx(*inputs)(attempt)
        elements = max(tensor.numel() for tensor in tensors)
        hidden = bytes_hidden(attempt.apply, *inputs) - positions
        if hidden > elements / 2:
            yield _(
                "besides inputs and outputs, {hidden:,} bytes stay alive for "
                "backward, where there are {elements:,} elements.",
                hidden=hidden,
                elements=elements,
            )

    return sentences


def gradients_fit(names, fed):
    """Backward gives each gradient its input's shape, without the engine's help.

    names: of the inputs, as a learner knows them.
    """

    def sentences(attempt):
        for where, inputs in fed.shaped():
            leaves = copies(inputs)
            output = attempt.apply(*leaves)
            with torch.no_grad():
                gradients = as_tuple(output.grad_fn.apply(output.detach()))
            for name, leaf, given in zip(names, leaves, gradients, strict=False):
                if given is not None and given.shape != leaf.shape:
                    yield at(
                        where,
                        _(
                            "`backward` returns a gradient of shape {given} for "
                            "`{name}`, whose shape is {right}; only the engine made "
                            "it fit.",
                            name=name,
                            given=tuple(given.shape),
                            right=tuple(leaf.shape),
                        ),
                    )

    return sentences
