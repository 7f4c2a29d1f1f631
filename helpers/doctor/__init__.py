"""The gradient doctor: what is wrong with a gradient.

    report = examine(MyFunction.apply, x, weight, bias)  # a callable or a module
    print(report)                                        # or leave it to the notebook
    report.ok                                            # False if there is an error
    report.raise_if_wrong()                              # in a test

    with rounds() as found:                              # every Function of a program
        train_step(model, batch)
    print(found)

How it knows. The function runs in float64, at the given point and at two more. For
random v and u, the product v · J · u is formed twice: with v · J from backward, and
with J · u from differences of the forward pass. Where the two disagree, the gradient is
computed element by element (a sample of elements if there are many) by differences.
Causes are tried on it, the simplest first: negated? scaled? transposed? that of another
input? Then the source of backward is edited until its gradient is right. Other trials
repeat the same backward under other circumstances: with an expanded grad_output, a
second time, for one of the inputs only, and so on. A jvp is compared with differences,
too, and a rule for vmap with a loop over the batch.

It does not examine tensors that a closure holds, sparse and nested tensors, hooks on
parameters, branches that its calls do not take, or whether forward computes what it
should.

Sources of the ideas
- v · J · u instead of Jacobians: gradcheck's fast mode,
  https://docs.pytorch.org/docs/stable/notes/gradcheck.html and
  https://github.com/pytorch/pytorch/issues/53876; the random direction of JAX's
  `check_grads`,
  https://docs.jax.dev/en/latest/_autosummary/jax.test_util.check_grads.html; the
  dot-product test of linear operators,
  https://pylops.readthedocs.io/en/v2.6.0/tutorials/dottest.html
- central differences at two steps, extrapolated (Richardson), and their disagreement as
  an error bar: numdifftools, https://github.com/pbrod/numdifftools
- not the complex step, which is more exact but needs a forward that is analytic and
  takes complex numbers:
  https://blogs.mathworks.com/cleve/2013/10/14/complex-step-differentiation/
- kinks: "Gradient checks" in https://cs231n.github.io/neural-networks-3/
- the gradient of a complex input:
  https://docs.pytorch.org/docs/stable/notes/autograd.html
- jvp and vmap: what they promise,
  https://docs.pytorch.org/docs/2.15/notes/extending.func.html
- grad_output non-contiguous, expanded or undefined: gradcheck's check_undefined_grad,
  and the tests that PyTorch runs over its OpInfo database,
  torch/testing/_internal/opinfo/core.py

SPDX-License-Identifier: BSD-3-Clause
Copyright (c) 2026, the authors of "Extending PyTorch, one gradient at a time"
"""

import torch
from torch.nn.parameter import is_lazy

from .function.budget import Budget
from .function.isolation import undisturbed
from .program.found import Found
from .program.rounds import rounds
from .report import Finding, Report, WrongGradientError
from .trials import TRIALS
from .trials.examination import Examination

__all__ = [
    "Budget",
    "Finding",
    "Found",
    "Report",
    "WrongGradientError",
    "examine",
    "rounds",
]
__version__ = "2.0"


def examine(fn, *inputs, faithful=True, lines=True, reference=None, **kwargs):
    """Examine the gradient of fn(*inputs, **kwargs); returns a `Report`.

    fn:       a callable, a `torch.autograd.Function` or its `apply`, or a
              `torch.nn.Module`, whose parameters are inputs, too. Its outputs may be
              nested in tuples, lists and dicts.
    inputs, kwargs: what it takes. Tensors of any shape, device and dtype; those of
              lower precision than float64 are examined as a float64 copy. All
              floating-point and complex ones are differentiated, but those that are
              sparse or nested. If only some require a gradient, None for another one
              makes it a constant; otherwise its gradient is judged, too.
    faithful: False accepts a gradient that is not the derivative of forward (a
              straight-through estimator, gradient reversal, clipping), and examines
              neither its derivative nor its jvp; the rest is still examined. With {"x":
              False}, only that of the input x. Of one that is random, as of rounding in
              few bits, nothing more is examined.
    lines:    False does not look for the line to change, which takes most of the time;
              a `Budget(runs, seconds)` says how long to look, by default 2000 runs and
              60 seconds.
    reference: a callable that computes the same from the same arguments in plain
              PyTorch, and whose derivative by autograd is right by definition: for a
              kernel, C++ or Triton, or with `detach` where a gradient is meant to be
              another one. Its outputs are compared with those of fn, and its gradients
              take the place of differences; a jvp is not compared. Beside a Function,
              a plain one gives the right gradients of its locals, too.

    What backward adds to the `.grad` of an argument counts as its gradient. So does what
    it puts into another attribute, such as `main_grad`, where it returns none, zeros, or
    a tensor that is not filled; beside a gradient, such an attribute is not judged.

    The report lists in `judged`, for each input, at how many points and to which order
    its gradient was compared with differences, and why not at more.

    An exception of `fn` becomes a finding. The inputs, their `.grad`, the random state
    and the settings of PyTorch stay as they were. What `fn` prints is dropped, for it
    is called many times. Raises TypeError if `fn` cannot be called, and RuntimeError if
    the doctor sees no Functions on this version of PyTorch.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {type(fn).__name__}")
    if reference is not None and not callable(reference):
        got = type(reference).__name__
        raise TypeError(f"reference must be callable, or None, got {got}")
    if reference is not None and isinstance(fn, torch.nn.Module):
        raise TypeError(
            "reference stands beside a function or a Function, not a module"
        )
    lazy = isinstance(fn, torch.nn.Module) and any(map(is_lazy, fn.parameters()))
    if lazy:
        raise ValueError(f"{type(fn).__name__} has no sizes yet: call it once before")
    with undisturbed():
        options = {"lines": lines, "reference": reference}
        return Examination(fn, inputs, kwargs, faithful, **options).report(TRIALS)
