"""The gradient doctor: says what is wrong with a gradient where `gradcheck` says that it is wrong.

    from helpers.doctor import examine

    report = examine(MyFunction.apply, x, weight, bias)   # a callable, a Function or a module
    print(report)                                         # or leave it to the notebook
    report.ok                                             # False if there is an error
    report.raise_if_wrong()                               # in a test

    python -m helpers.doctor module.py:MyFunction --input 3x4 --input 5x4

How it knows. The function runs in float64, at the given point and at two more. For random v and u,
the product v · J · u is formed twice: with v · J from backward, and with J · u from differences of
the forward pass. Where the two disagree, the gradient is computed element by element (a sample of
elements if there are many), and hypotheses are tried on it, the simplest first: negated? scaled?
transposed? that of another input? Other trials repeat the same backward under other circumstances:
with an expanded grad_output, a second time, for one of the inputs only, and so on.

It does not examine tensors that a closure holds, nor whether forward computes what it should.

Sources of the ideas
- v · J · u instead of Jacobians: gradcheck's fast mode,
  https://docs.pytorch.org/docs/stable/notes/gradcheck.html and
  https://github.com/pytorch/pytorch/issues/53876; the random direction of JAX's `check_grads`,
  https://docs.jax.dev/en/latest/_autosummary/jax.test_util.check_grads.html; the dot-product test
  of linear operators, https://pylops.readthedocs.io/en/v2.6.0/tutorials/dottest.html
- central differences at h, h/2, h/4, extrapolated (Richardson), and their disagreement as an error
  bar: numdifftools, https://github.com/pbrod/numdifftools
- not the complex step, which is more exact but needs a forward that is analytic and takes complex
  numbers: https://blogs.mathworks.com/cleve/2013/10/14/complex-step-differentiation/
- kinks: "Gradient checks" in https://cs231n.github.io/neural-networks-3/
- the gradient of a complex input: https://docs.pytorch.org/docs/stable/notes/autograd.html
- grad_output non-contiguous, expanded or undefined: gradcheck's check_undefined_grad, and the tests
  that PyTorch runs over its OpInfo database, torch/testing/_internal/opinfo/core.py
"""

import argparse
import contextlib
import copy
import difflib
import functools
import html
import importlib.util
import inspect
import io
import itertools
import math
import os
import random
import re
import sys
import textwrap
import traceback
import warnings
from dataclasses import dataclass, field

import torch
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["Finding", "Report", "WrongGradientError", "examine"]


# --- the report -----------------------------------------------------------------------------------

SEVERITIES = {"error": "#d55e00", "warning": "#e69f00", "note": "#0072b2"}


class WrongGradientError(AssertionError):
    """Raised by `Report.raise_if_wrong`; its text is the report."""


@dataclass
class Finding:
    """One thing that was found.

    code:     a short name, a key of FINDINGS, such as "transposed"
    severity: "error", "warning" (the gradient is right, but it will hurt) or "note"
    message:  what is the matter, in one or two sentences
    remedy:   where to look
    input, output: the names of those concerned, or None
    evidence: what was measured: numbers, lists of indices, strings; for a wrong gradient of few
              elements also "given_jacobian" and "expected_jacobian", of shape (outputs, inputs)
    """

    code: str
    severity: str
    message: str
    remedy: str = ""
    input: str | None = None
    output: str | None = None
    evidence: dict = field(default_factory=dict)

    def lines(self):
        """Message, remedy and evidence, as far as there are any."""
        seen = [(k, v) for k, v in self.evidence.items() if not isinstance(v, torch.Tensor)]
        yield f"{self.severity} ({self.code}): {self.message}"
        if self.remedy:
            yield f"look at: {self.remedy}"
        if seen:
            yield "seen: " + ", ".join(f"{key} {_text(value)}" for key, value in seen)


@dataclass
class Report:
    """What `examine` found, as text (`print`) and as HTML (in a notebook)."""

    name: str
    findings: list

    @property
    def ok(self):
        return all(finding.severity != "error" for finding in self.findings)

    @property
    def summary(self):
        counts = [(s, sum(f.severity == s for f in self.findings)) for s in SEVERITIES]
        found = ", ".join(f"{n} {s}{'s' * (n > 1)}" for s, n in counts if n)
        return f"{self.name}: {found or 'nothing found'}"

    def __str__(self):
        lines = [self.summary]
        for finding in self.findings:
            for indent, line in zip(("  ", "      ", "      "), finding.lines(), strict=False):
                lines += textwrap.wrap(
                    line, 96, initial_indent=indent, subsequent_indent=indent + "  ",
                    break_long_words=False, break_on_hyphens=False,
                )  # fmt: skip
        return "\n".join(lines)

    def _repr_html_(self):
        rows = [f"<b>{html.escape(self.summary)}</b>"]
        for finding in self.findings:
            first, *rest = (html.escape(line) for line in finding.lines())
            first = re.sub(r"`(.+?)`", r"<code>\1</code>", first)
            rows.append(
                f'<div style="border-left: 4px solid {SEVERITIES[finding.severity]}; '
                f'padding-left: 8px; margin: 6px 0">{first}'
                + "".join(f"<br><small>{line}</small>" for line in rest)
                + "</div>"
            )
        return "".join(rows)

    def raise_if_wrong(self):
        """Raise WrongGradientError if there is an error; otherwise return the report."""
        if not self.ok:
            raise WrongGradientError(str(self))
        return self


def _text(value):
    if isinstance(value, complex):
        return f"{_text(value.real)}{'-' if value.imag < 0 else '+'}{_text(abs(value.imag))}i"
    if isinstance(value, float):
        return "0" if abs(value) < 1e-12 else f"{value:.3g}"
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return str(value)


# --- what can be found ----------------------------------------------------------------------------
#
# code: (severity, message, where to look). {x} is the input, {y} the output, {meant} is MEANT where
# forward is the identity, for nobody writes one for its forward. The last words go into messages.

MEANT = " If that is meant, `examine(..., faithful=False)` accepts it."
IN_PLACE = "methods that end in an underscore, and +="

FINDINGS = {
    # the gradient is not the derivative of forward
    "gradient-none": ("error", "The gradient of {x} is None, but {y} depends on {x}.",
        "what backward returns in the place of {x}; if it is meant as a constant, give "
        "requires_grad=True to the other inputs only"),
    "gradient-zero": ("error", "The gradient of {x} is zero everywhere, but {y} depends on {x}.",
        "how the gradient of {x} is filled in"),
    "straight-through": ("error", "{y} does not change with {x} here, so the true gradient is "
        "zero; backward {what}." + MEANT,
        "which gradient this is, if no straight-through gradient is intended"),
    "grad-output-ignored": ("error", "The gradient of {x} does not depend on grad_output{only}.",
        "where grad_output enters the gradient of {x}"),
    "negated": ("error", "The gradient of {x} is right, but negated.{meant}", "the sign"),
    "scaled": ("error", "The gradient of {x} is right, but multiplied by {factor}.{meant}",
        "constant factors, in forward and in backward"),
    "factor-missing": ("error", "The gradient of {x} {lacks} the factor {what}{rest}.{meant}",
        "where {what} enters the gradient of {x}"),
    "mean-for-sum": ("error", "The gradient of {x} is 1/{n} of what it should be, and {n} is the "
        "size of {what}: a mean where a sum belongs?", "how the gradient of {x} is reduced"),
    "sum-for-mean": ("error", "The gradient of {x} is {n} times too large, and {n} is the size of "
        "{what}: a sum where a mean belongs?", "how the gradient of {x} is reduced"),
    "conjugate": ("error", "The gradient of {x} is right for real numbers, but a conjugate is "
        "missing or one too many.",
        "PyTorch multiplies grad_output by the conjugate of the derivative"),
    "imaginary-lost": ("error", "The gradient of {x} has lost its imaginary part.",
        "casts to a real dtype"),
    "transposed": ("error", "The gradient of {x} is right, but {how}.",
        "the order of the factors, and every transpose"),
    "swapped": ("error", "The gradient returned for {x} is that of `{other}`.",
        "the order in which backward returns its gradients"),
    "reversed": ("error", "The gradient of {x} is right, but reversed along dimension {d}.",
        "flips and index arithmetic"),
    "shifted": ("error", "The gradient of {x} is right, but shifted by {by} along dimension {d}.",
        "index arithmetic: bounds that are off by one, or the direction (backward shifts the other "
        "way than forward)"),
    "inner-derivative-forgotten": ("error", "The gradient of {x} is grad_output itself; the "
        "derivative of {y} with respect to {x} is not multiplied in." + MEANT,
        "the chain rule: grad_output times a derivative"),
    "jacobian-transposed": ("error", "The gradient of {x} is the Jacobian times grad_output; the "
        "transposed Jacobian belongs there.",
        "the transpose of the matrix that multiplies grad_output"),
    "not-linear": ("error", "The gradient of {x} is not proportional to grad_output{how}",
        "terms without grad_output as a factor, and what is done to grad_output itself"),
    "right-only-for-ones": ("error", "The gradient of {x} is right only when grad_output is all "
        "ones, as it is after `.sum()`.",
        "what is done to grad_output: a sum, a mean or an index mixes its elements"),
    "partly-right": ("error", "The gradient of {x} is right in part: {where} it {how}.{may}",
        "masks, branches and bounds"),
    "derivative-wrong": ("error", "The gradient of {x} is off by another factor at each element, "
        "whatever grad_output is.", "the formula of the derivative"),
    "misplaced": ("error", "The gradient of {x} has the right numbers in the wrong places.",
        "gather against scatter, a permutation against its inverse"),
    "grad-output-partly-ignored": ("error", "The gradient of {x} takes no notice of some elements "
        "of grad_output.", "indices and reductions"),
    "contribution-lost": ("error", "The gradient of {x} lacks contributions: where several "
        "elements of {y} depend on one of {x}, not all are added up.",
        "repeated indices (assignment keeps one contribution, and so does an indexed +=), and the "
        "means, norms and sums of forward, through which elements act on one another"),
    "term-missing": ("error", "The error of the gradient of {x} is the same all along dimension "
        "{d}{times}, as when a sum or a mean over it is missing, or has a wrong factor.",
        "reductions in backward"),
    "gradient-wrong": ("error", "The gradient of {x} is wrong, in no way that has a name.",
        "the formula, term by term, at the element shown"),
    "right-here-only": ("error", "The gradient of {x} is right at the given point but wrong at "
        "others.", "constants that belong to one input, and branches"),
    "unfaithful": ("note", "The gradient of {x} is not the derivative of forward, which "
        "faithful=False accepts.", ""),
    "kink": ("note", "Forward has a kink or a jump in {x} at the given point, where differences "
        "prove nothing; the other elements were judged.", ""),
    "not-judged": ("note", "At some elements of {x}, differences of forward are lost in rounding, "
        "or there is a kink nearby; the other elements were judged.", ""),
    "low-precision": ("error", "The gradient of {x} is right in float64 but not in {dtype}{made}.",
        "overflow, cancellation and long sums in the formula"),
    # numbers
    "input-not-finite": ("warning", "{x} itself has nan or inf.", ""),
    "forward-not-finite": ("warning", "Forward makes nan or inf in {y} from finite "
        "inputs{precision}.",
        "overflow, division by zero, log and sqrt at the edge of their domain"),
    "backward-not-finite": ("error", "Backward makes nan or inf in the gradient of {x}, where the "
        "slope is finite.", "0/0, 0 times inf, and overflow in the formula"),
    "singular": ("note", "The gradient of {x} is infinite at the edge of the domain.", ""),
    # forward
    "nothing-to-examine": ("error", "No input is a floating-point or complex tensor with elements.",
        ""),
    "no-output": ("error", "Forward returned no floating-point or complex tensor, so there is no "
        "gradient.", "the return statement of forward"),
    "only-integers": ("note", "Forward returns only integers, or nothing, which has no gradient.",
        ""),
    "forward-not-deterministic": ("error", "The same input and the same random seed give another "
        "output the second time.",
        "counters, caches, generators of its own, uninitialised memory, races"),
    "output-detached": ("error", "{y} requires no gradient, though it changes with {x}: forward "
        "has left autograd.", "detach, .data, .item(), NumPy and torch.no_grad in forward"),
    "marked-non-differentiable": ("note", "{y} is marked as non-differentiable, though it changes "
        "with {x}.", ""),
    "output-dtype": ("warning", "Forward returns {dtype} for inputs of higher precision.",
        "casts in forward"),
    "input-modified": ("error", "Forward changes {x} in place without telling autograd.",
        "ctx.mark_dirty, or work on a copy"),
    "input-returned": ("note", "Forward returns {x} itself: autograd refuses to change such an "
        "output in place (`y += 1` raises).", "a copy, if callers may do that"),
    "view-returned": ("note", "Forward returns a view of {x}: autograd refuses to change such an "
        "output in place (`y += 1` raises).", "a copy, if callers may do that"),
    "tensor-on-ctx": ("warning", "`{path}` holds {what} outside `save_for_backward`, so autograd "
        "does not notice when it changes in place{also}.", "{instead}"),
    "reference-cycle": ("error", "`{path}` holds an output: output and ctx refer to each other, so "
        "their memory waits for Python's garbage collector.", "ctx.save_for_backward"),
    # what backward returns
    "gradient-count": ("error", "Backward returned {1} gradient(s), but forward has {0} "
        "argument(s) besides ctx.",
        "one gradient for each argument of forward, None for those without one, as a tuple; a "
        "forgotten return, and a list, count as one"),
    "gradient-for-constant": ("error", "Backward returned a gradient for argument {0} of forward, "
        "which is no tensor.", "the place where None belongs"),
    "gradient-for-index": ("warning", "Backward returns a gradient for {x}, which is of {dtype}.",
        "the place where None belongs"),
    "gradient-shape": ("error", "The gradient of {x} has shape ({got}), but ({wanted}) belongs "
        "there.", "reductions and transposes, with the shapes written beside each step"),
    "gradient-device": ("error", "Backward returned a gradient on {1} for an input on {0}.",
        "tensors made inside backward"),
    "gradient-type": ("error", "Backward returned {0} where a tensor or None belongs.",
        "the return statement of backward"),
    "gradient-dtype": ("warning", "Backward returns {dtype} for {x}, which is of higher precision.",
        "casts in backward, and tensors made with a fixed dtype"),
    "complex-for-real": ("error", "Backward returned a complex gradient for a real input.",
        "the real part"),
    "engine-sums": ("note", "Backward returns shape {got} for {x} of shape {wanted}; the engine "
        "sums it.", "a sum over the broadcast dimensions"),
    # the protocol of backward
    "saved-modified": ("error", "A tensor was changed in place after it had been saved for "
        "backward{which}.", IN_PLACE),
    "grad-output-modified": ("error", "Backward changes grad_output in place, which other parts of "
        "the graph may share.", IN_PLACE),
    "backward-not-deterministic": ("error", "The same backward gives another gradient the second "
        "time{why}.", "what backward changes, draws or adds to; what forward drew must be saved"),
    "backward-only-once": ("warning", "Backward fails the second time, under retain_graph=True.",
        "what backward deletes or changes"),
    "state-between-calls": ("error", "The gradient of {x} is another if forward runs once more, "
        "with other inputs, before backward.",
        "what is kept outside ctx: class attributes, globals, self; and memory never filled, as of "
        "torch.empty"),
    "grad-output-layout": ("error", "Backward {fails} a grad_output that is {layout}.",
        "code that reads memory directly (.view, data_ptr, kernels), and assertions"),
    "none-not-handled": ("error", "Backward {fails} None, which arrives for an output that is not "
        "used.", "set_materialize_grads(False) demands an answer to None"),
    "needs-input-grad-wrong": ("error", "Backward {fails} {x} as the only input that requires a "
        "gradient.", "the use of ctx.needs_input_grad"),
    "needs-input-grad-ignored": ("warning", "When only {x} requires a gradient, backward still "
        "computes that of {others}.", "ctx.needs_input_grad"),
    # the second derivative
    "double-backward-wrong": ("error", "The gradient of {x} is right, but its own derivative with "
        "respect to {by} is silently wrong.",
        "what backward takes for a constant: an intermediate kept on ctx, or saved and not "
        "returned; .data, NumPy"),
    "double-backward-missing": ("warning", "There is no second derivative: it raises, or counts as "
        "zero without a word.",
        "NumPy, .data, .detach() and kernels in backward; once_differentiable says so openly"),
    "double-backward-refused": ("note", "Backward refuses to be differentiated, and says so.",
        ""),
    # exceptions, told by their message
    "in-place-leaf": ("error", "{phase} failed: an input that requires a gradient is changed in "
        "place.", IN_PLACE),
    "dirty-not-returned": ("error", "Forward marks an input as dirty but does not return it.",
        "ctx.mark_dirty"),
    "not-static": ("error", "forward and backward of a Function must be static methods.",
        "@staticmethod"),
    "method-missing": ("error", "The Function lacks a method.",
        "the names of its methods, and their indentation"),
    "saved-no-tensor": ("error", "save_for_backward was handed something that is no tensor.",
        "its arguments: one tensor after the other, not in a list; what is no tensor goes on ctx"),
    "attribute-missing": ("error", "ctx has no `{0}`: forward did not put it there.{close}",
        "what forward stores on ctx"),
    "saved-count": ("error", "{phase} unpacks another number of values than there is.",
        "save_for_backward against saved_tensors"),
    "backward-arguments": ("error", "Backward must take ctx and one gradient for each output of "
        "forward.", "the arguments of backward"),
    "numpy-detour": ("error", "{phase} handed a tensor that autograd records to NumPy.",
        "the detour by NumPy"),
    "dtype-mix": ("error", "{phase} failed: dtypes do not fit.",
        "tensors made with a fixed dtype"),
    "shapes-do-not-fit": ("error", "{phase} failed: shapes do not fit.",
        "transposes and reductions, with the shapes written beside each step"),
    "layout": ("error", "{phase} failed: a contiguous tensor was expected.",
        ".view, data_ptr and kernels"),
    "raised": ("error", "{phase} raised {error}.", "{line}"),
    # how it was examined
    "double-copy": ("note", "Examined in float64, as differences need; the input is {dtype}.",
        ""),
    "not-in-double": ("note", "It does not run in float64, so it was examined in {dtype}, where "
        "only errors of some percent show.", ""),
}  # fmt: skip

# pattern of an exception's message: code. Its groups go into the message.
EXCEPTIONS = {
    r"incorrect number of gradients \(expected (\d+), got (\d+)\)": "gradient-count",
    r"gradient different than None at position (\d+)": "gradient-for-constant",
    r"expected device (\S+) but got (\S+)": "gradient-device",
    r"expected Variable or None \(got (\w+)\)": "gradient-type",
    r"input_is_complex == grad_is_complex": "complex-for-real",
    r"modified by an inplace operation": "saved-modified",
    r"leaf Variable that requires grad": "in-place-leaf",
    r"marked as dirty during the forward method were not returned": "dirty-not-returned",
    r"Legacy autograd function with non-static": "not-static",
    r"You must implement": "method-missing",
    r"save_for_backward can only save variables": "saved-no-tensor",
    r"Backward' object has no attribute '(\w+)'": "attribute-missing",
    r"values to unpack": "saved-count",
    r"backward\(\) (?:takes|missing) \d+": "backward-arguments",
    r"numpy\(\) on Tensor that requires grad": "numpy-detour",
    r"expected scalar type|same dtype|dtype": "dtype-mix",
    r"cannot be multiplied|size of tensor|must match|expand\(|for input of size|Expected size":
        "shapes-do-not-fit",
    r"contiguous|view size is not compatible": "layout",
}  # fmt: skip
OF_CTX = ["saved_tensors", "save_for_backward", "needs_input_grad", "mark_dirty"]
SHAPE = r"gradient at index (\d+) - got \[(.*?)\] but expected shape compatible with \[(.*?)\]"
REFUSED = r"once_differentiable|twice|second[- ](order|derivative)|double[- ]backward"


# --- running the function -------------------------------------------------------------------------


class _CallError(Exception):
    """The examined function raised `error` in `phase`."""

    def __init__(self, phase, error):
        self.phase, self.error = phase, error


@contextlib.contextmanager
def _phase(name):
    try:
        yield
    except Exception as error:
        raise _CallError(name, error) from error


def _generators():
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [torch.default_generator, *cuda]


def _seed(seed):
    for generator in _generators():
        generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


@contextlib.contextmanager
def _undisturbed():
    """Whatever happens to the random state and to global settings is undone."""
    numpy = sys.modules.get("numpy")
    states = [(generator.set_state, generator.get_state()) for generator in _generators()]
    states += [(random.setstate, random.getstate())]
    states += [(torch.set_default_dtype, torch.get_default_dtype())]
    states += [(numpy.random.set_state, numpy.random.get_state())] if numpy else []
    try:
        with (
            warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()),
            torch.inference_mode(False), torch.enable_grad(),
            torch.autograd.set_detect_anomaly(False),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            yield
    finally:
        for restore, state in states:
            restore(state)


@contextlib.contextmanager
def _before(cls, name, note):
    """For a while, calls of the method cls.name are announced: note(*args) runs first.

    What note returns, if it can be called, is then told the result.
    """
    method = getattr(cls, name)

    def noted(*args):
        tell = note(*args)
        result = method(*args)
        if callable(tell):
            tell(result)
        return result

    setattr(cls, name, noted)
    try:
        yield
    finally:
        setattr(cls, name, method)


def _line(error):
    """The last line of the user's own code on the way to `error`, or None."""
    libraries = os.path.dirname(os.path.dirname(torch.__file__))
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.line for f in frames if f.line and not f.filename.startswith((libraries, __file__))]
    while len(lines) > 1 and lines[-1].startswith("raise "):  # who called for it says more
        lines.pop()
    return lines[-1] if lines else None


def _map(obj, name, visit):
    """`obj` with every tensor in its tuples, lists and dicts replaced by visit(name, tensor)."""
    if isinstance(obj, torch.Tensor):
        return visit(name, obj)
    if isinstance(obj, (tuple, list)) and not isinstance(obj, torch.Size):
        items = [_map(item, f"{name}[{k}]", visit) for k, item in enumerate(obj)]
        return type(obj)(*items) if hasattr(obj, "_fields") else type(obj)(items)
    if isinstance(obj, dict):
        return {key: _map(item, f"{name}[{key!r}]", visit) for key, item in obj.items()}
    return obj


def _tensors(obj, name=""):
    found = []
    _map(obj, name, lambda path, tensor: found.append((path, tensor)))
    return found


def _differentiable(tensor):
    return tensor.numel() > 0 and (tensor.is_floating_point() or tensor.is_complex())


@dataclass
class _Run:
    """One forward pass: outputs that are floating-point or complex, and what went into it."""

    names: list
    outputs: list
    leaves: list  # one for each examined input
    passed: list  # what the function received in the place of each tensor
    saved: list
    marked: list
    others: list  # outputs that have no gradient


class _Subject:
    """The examined function, callable with other values for the inputs that are differentiated."""

    def __init__(self, fn, args, kwargs):
        if isinstance(fn, type) and issubclass(fn, torch.autograd.Function):
            fn = fn.apply
        owner = getattr(fn, "__self__", None)
        is_function = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
        self.cls = owner if is_function else None
        self.is_module = isinstance(fn, torch.nn.Module)
        label = self.cls or (fn if hasattr(fn, "__name__") else type(fn))
        self.label = label.__name__
        if self.is_module:
            with contextlib.suppress(Exception):  # what cannot be copied is used itself
                fn = copy.deepcopy(fn)
        self.fn, self.split = fn, len(args)
        self.arguments = dict(zip(self.argument_names(len(args)), args, strict=True)) | kwargs
        slots = [slot for name, value in self.arguments.items() for slot in _tensors(value, name)]
        chosen = any(t.requires_grad for _, t in slots)
        examined = [_differentiable(t) and (t.requires_grad or not chosen) for _, t in slots]
        if self.is_module:
            state = [*fn.named_parameters(), *fn.named_buffers()]
            self.state = [name for name, _ in state]
            slots += state
            examined += [t.requires_grad for _, t in state]
        self.names = [name for name, _ in slots]
        self.original = [t.detach() for _, t in slots]
        self.examined = [k for k, wanted in enumerate(examined) if wanted]
        self.inputs = [self.names[k] for k in self.examined]
        self.use(None)

    def argument_names(self, count):
        target = self.cls.forward if self.cls else getattr(self.fn, "forward", self.fn)
        try:
            parameters = list(inspect.signature(target).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        if self.cls and self.cls.setup_context is torch.autograd.Function.setup_context:
            parameters = parameters[1:]  # ctx
        names = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD][:count]
        rest = [f"{p.name}[{{}}]" for p in parameters if p.kind == p.VAR_POSITIONAL] + ["input {}"]
        return names + [rest[0].format(k) for k in range(count - len(names))]

    def use(self, dtype):
        """Work in `dtype` (and the complex type that belongs to it), or as given if None."""
        self.tensors = [
            t.to(dtype.to_complex() if t.is_complex() else dtype)
            if dtype and _differentiable(t) else t
            for t in self.original
        ]  # fmt: skip
        self.values = [self.tensors[k] for k in self.examined]
        self.eps = max((torch.finfo(v.dtype).eps for v in self.values), default=0.0)

    def call(self, tensors):
        supply = iter(tensors)
        values = [_map(v, "", lambda *_: next(supply)) for v in self.arguments.values()]
        args = tuple(values[: self.split])
        kwargs = dict(zip(list(self.arguments)[self.split :], values[self.split :], strict=True))
        if self.is_module:
            state = dict(zip(self.state, supply, strict=True))
            return torch.func.functional_call(self.fn, state, args, kwargs)
        return self.fn(*args, **kwargs)

    def run(self, values, needs=True):
        """One forward pass. needs: whether each examined input requires a gradient."""
        needs = [needs] * len(values) if isinstance(needs, bool) else needs
        leaves = [
            v.detach().clone().requires_grad_() if need else v.detach()
            for v, need in zip(values, needs, strict=True)
        ]
        given = dict(enumerate(self.tensors)) | dict(zip(self.examined, leaves, strict=True))
        # Clones, not leaves: a function may rightly change its input in place.
        passed, saved, marked = [t.clone() for t in given.values()], [], []

        def saves(ctx, *tensors):
            saved.extend((t, t._version) for t in tensors if isinstance(t, torch.Tensor))

        def marks(ctx, *tensors):
            marked.extend(tensors)

        _seed(0)
        with (
            _phase("forward"), _before(FunctionCtx, "save_for_backward", saves),
            _before(FunctionCtx, "mark_non_differentiable", marks),
        ):  # fmt: skip
            result = self.call(passed)
        everything = _tensors(result, "output")
        others = [t for _, t in everything if not _differentiable(t)]
        found = [(name, t) for name, t in everything if _differentiable(t)]
        names = ["the output" if name == "output" else f"`{name}`" for name, _ in found]
        return _Run(names, [t for _, t in found], leaves, passed, saved, marked, others)

    def forward(self, values):
        """The outputs as vectors of float64."""
        return [_real(t) for t in self.run(values, needs=False).outputs]

    def backward(self, run, vs, retain=False, create=False, seed=1):
        """Gradients of sum(v · output), one for each examined input; None where there is none."""
        pairs = [(o, v) for o, v in zip(run.outputs, vs, strict=True) if v is not None]
        pairs = [(o, v) for o, v in pairs if o.requires_grad]
        leaves = [leaf for leaf in run.leaves if leaf.requires_grad]
        if not pairs or not leaves:
            return [None] * len(run.leaves)
        _seed(seed)
        with _phase("backward"):
            grads = torch.autograd.grad(
                [o for o, _ in pairs], leaves, [v for _, v in pairs],
                allow_unused=True, retain_graph=retain or create, create_graph=create,
            )  # fmt: skip
        grads = iter(g.to_dense() if g is not None and g.is_sparse else g for g in grads)
        return [next(grads) if leaf.requires_grad else None for leaf in run.leaves]

    def gradients(self, values, vs):
        return self.backward(self.run(values), vs)


# --- numerical derivatives ------------------------------------------------------------------------


def _real(tensor):
    """As a vector of float64; a complex number becomes two."""
    tensor = tensor.detach()
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor.to(torch.float64).reshape(-1)


def _like(vector, tensor):
    """The inverse of `_real`, in the shape and dtype of `tensor`."""
    if tensor.is_complex():
        return torch.view_as_complex(vector.reshape(*tensor.shape, 2)).to(tensor.dtype)
    return vector.reshape(tensor.shape).to(tensor.dtype)


def _largest(tensor):
    finite = tensor[tensor.isfinite()].abs()
    return finite.max().item() if finite.numel() else 0.0


def _index(k, shape):
    return [int(n) for n in torch.unravel_index(torch.tensor(int(k)), tuple(shape))]


def _scale(tensor):
    """How far each element may be moved: as far as its size, but not less than 5 % of the rms."""
    size = tensor.abs().to(torch.float64).nan_to_num(posinf=0.0)
    rms = size.square().mean().sqrt().item() if size.numel() else 0.0
    return size.clamp(min=0.05 * rms) if rms > 0 else torch.ones_like(size)


class _Dice:
    """Random tensors from a generator of our own, the same ones on every device."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def uniform(self, like):
        return torch.rand(like.shape, generator=self.generator, dtype=torch.float64).to(like.device)

    def normal(self, like):
        vector = torch.randn(_real(like).shape, generator=self.generator, dtype=torch.float64)
        return _like(vector.to(like.device), like)

    def direction(self, tensor):
        draw = self.uniform(tensor)
        step = _scale(tensor) * torch.where(draw < 0.5, draw - 1.0, draw)
        if tensor.is_complex():
            step = torch.polar(step.abs(), 2 * math.pi * self.uniform(tensor))
        return step.to(tensor.dtype)

    def nearby(self, tensor):
        """Another point: every element is smaller by a random share, so that its sign stays."""
        moved = tensor * (0.7 + 0.28 * self.uniform(tensor))
        return torch.where(tensor == 0, 0.1 + 0.3 * self.uniform(tensor), moved).to(tensor.dtype)


@dataclass
class _Slope:
    """J · u for one output: value, error bar, which elements to believe, and one-sided slopes."""

    value: torch.Tensor
    error: torch.Tensor
    trusted: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor


def _slopes(f, values, i, u, y0, eps):
    """J · u for every output of `f`, where u is a change of input i.

    Central differences at h, h/2 and h/4 are extrapolated; smaller h are tried where the three do
    not agree. A kink at the point itself shows in one-sided slopes whose difference does not shrink
    with h.
    """

    def at(t):
        return f([v + t * u if k == i else v for k, v in enumerate(values)])

    best, settled, moved = [None] * len(y0), [None] * len(y0), [False] * len(y0)
    # Steps must be larger where numbers are coarser, perhaps only inside of f.
    probe = at(1e-3)
    if any((y != t).any() and (t == t.float()).all() for y, t in zip(y0, probe, strict=True)):
        eps = max(eps, torch.finfo(torch.float32).eps)
    for h in (1e-3, 1e-5, 1e-7) if eps < 1e-10 else (3e-2, 1e-2):
        steps = (h, h / 2, h / 4)
        plus, minus = [at(t) for t in steps], [at(-t) for t in steps]
        for o, y in enumerate(y0):
            p, m = [side[o] for side in plus], [side[o] for side in minus]
            d = [(a - b) / (2 * t) for a, b, t in zip(p, m, steps, strict=True)]
            first, second = (4 * d[1] - d[0]) / 3, (4 * d[2] - d[1]) / 3
            value = (16 * second - first) / 15
            moves = (p[0] != y) | (m[0] != y)
            moved[o] = moved[o] | moves
            noise = 16 * eps * torch.maximum(p[2].abs(), y.abs()) / h * moved[o]
            wide, narrow = (p[0] + m[0] - 2 * y).abs() / h, (p[2] + m[2] - 2 * y).abs() / steps[2]
            kink = (narrow > 0.5 * wide) & (narrow > 1e-4 * value.abs() + 16 * noise)
            error = (value - second).abs() + noise
            floor = 1e-9 * _largest(y)
            fine = error <= 1e-6 * value.abs() + 1e-7 * _largest(value) + 2 * noise + floor
            lost = moved[o] & ~moves  # in rounding
            error = torch.where(kink | lost | ~value.isfinite(), torch.inf, error)
            new = _Slope(value, error, None, (y - m[2]) / steps[2], (p[2] - y) / steps[2])
            if old := best[o]:
                better = error < old.error
                new.value = torch.where(better, value, old.value)
                new.error = torch.where(better, error, old.error)
                fine = torch.where(better, fine, settled[o])
            best[o], settled[o] = new, fine & new.error.isfinite()
        if all(fine.all() for fine in settled):
            break
    for slope, y in zip(best, y0, strict=True):
        size = slope.value.abs() + 0.1 * _largest(slope.value) + 1e-5 * _largest(y)
        slope.trusted = slope.error <= 1e-3 * size
    return best


def _is_large(values):
    """Too large, or too many, for more than the most necessary?"""
    return len(values) > 4 or sum(v.numel() for v in values) > 1e5


def _screen(f, vjp, values, dice, eps, tolerance):
    """Which derivatives are wrong, by v · J · u; vjp(o, v) gives the gradients of output o.

    Returns {(i, o): "right", "wrong" or "unsure"} for input i and output o, and the inputs in which
    there are elements that cannot be judged.
    """
    y0, doubts = f(values), set()
    verdict = {(i, o): "right" for i in range(len(values)) for o in range(len(y0))}
    for _ in range(1 if _is_large(values) else 2):
        moves = [dice.direction(v) for v in values]
        slopes = [_slopes(f, values, i, u, y0, eps) for i, u in enumerate(moves)]
        doubts |= {i for i, found in enumerate(slopes) for s in found
                   if (~s.trusted & s.value.isfinite()).any()}  # fmt: skip
        for o, y in enumerate(y0):
            trusted = torch.stack([of_input[o].trusted for of_input in slopes]).all(0)
            if not trusted.any():
                verdict |= {(i, o): "unsure" for i in range(len(values))}
                continue
            v = torch.where(trusted, dice.normal(y), 0.0)
            for i, grad in enumerate(vjp(o, v)):
                slope = slopes[i][o]
                expected = torch.where(trusted, v * slope.value, 0.0)
                given = y.new_zeros(1) if grad is None else _real(grad) * _real(moves[i])
                error = torch.where(trusted, v.abs() * slope.error, 0.0).sum()
                floor = 1e-11 * torch.where(trusted, v * y, 0.0).norm()
                size = max(expected.norm().item(), given.norm().item())
                limit = 10 * error + tolerance * size + floor
                if not abs(expected.sum().item() - given.sum().item()) <= limit.item():
                    verdict[i, o] = "wrong"
    return verdict, doubts


# --- one gradient, element by element -------------------------------------------------------------


class _Point:
    """The function at one point, with three v for every output: two random, one of ones."""

    def __init__(self, subject, values, dice):
        self.subject, self.values, self.dice = subject, values, dice
        run = subject.run(values)
        self.names, self.outputs = run.names, [o.detach() for o in run.outputs]
        self.y0 = [_real(o) for o in self.outputs]
        self.vs = [[dice.normal(o), dice.normal(o), torch.ones_like(o)] for o in self.outputs]
        self.known, self.returned = {}, {}  # by input, by output
        self.limit = min(512, max(16, int(7e6 / sum(len(_real(t)) for t in self.outputs + values))))

    def vjp(self, o, v):
        """All gradients of sum(v · output o); the other outputs receive zeros, not None."""
        vs = [torch.zeros_like(t) for t in self.outputs]
        vs[o] = v if v.shape == vs[o].shape and v.dtype == vs[o].dtype else _like(v, vs[o])
        return self.subject.gradients(self.values, vs)

    def slopes(self, i, u):
        args = (self.subject.forward, self.values, i, u.reshape(self.values[i].shape), self.y0)
        return _slopes(*args, self.subject.eps)

    def units(self, i, s):
        """The moves of element s of input i alone, and of its imaginary part; and their size."""
        value = self.values[i]
        step = _scale(value).reshape(-1)[s].item()
        for unit in (1, 1j) if value.is_complex() else (1,):
            u = torch.zeros(value.numel(), dtype=value.dtype, device=value.device)
            u[s] = step * unit
            yield unit, u, step

    def expected(self, i):
        """Elements of input i (a sample, if many), and for each output what its gradients are.

        That is (value, error, trusted, Jacobian or None), the first two of shape (3, elements).
        """
        if i in self.known:
            return self.known[i]
        n = self.values[i].numel()
        elements = list(range(n))
        if n > self.limit:
            drawn = torch.randint(n, (self.limit,), generator=self.dice.generator).tolist()
            wrong = [self.suspect(i, o) for o in range(len(self.outputs))]
            elements = sorted({*drawn, *wrong, 0, n - 1})
        weights = [torch.stack([_real(v) for v in vs]) for vs in self.vs]
        columns = [[] for _ in self.outputs]
        for s in elements:
            sums = [[0, 0, True, None] for _ in self.outputs]
            for unit, u, step in self.units(i, s):
                for o, slope in enumerate(self.slopes(i, u)):
                    w = weights[o]
                    error = 10 * (w.abs() @ slope.error) + 1e-11 * (w * self.y0[o]).norm(dim=1)
                    sums[o][0] = sums[o][0] + unit * (w @ slope.value) / step
                    sums[o][1] = sums[o][1] + error / step
                    sums[o][2] &= bool(slope.trusted.all())
                    sums[o][3] = slope.value / step if n * len(slope.value) <= 4096 else None
            for column, total in zip(columns, sums, strict=True):
                column.append(total)
        found = []
        for column in columns:
            value, error, trusted, jacobian = zip(*column, strict=True)
            jacobian = torch.stack(jacobian, 1) if jacobian[0] is not None else None
            trusted = torch.tensor(trusted, device=value[0].device)
            found.append((torch.stack(value, 1), torch.stack(error, 1), trusted, jacobian))
        self.known[i] = torch.tensor(elements, device=self.values[i].device), found
        return self.known[i]

    def given(self, o):
        """The gradients of the three v of output o: three lists, one entry for each input."""
        if o not in self.returned:
            self.returned[o] = [self.vjp(o, v) for v in self.vs[o]]
        return self.returned[o]

    def suspect(self, i, o):
        """By bisection, an element of input i whose gradient is wrong, if one is."""
        value, v = self.values[i], _real(self.vs[o][0])
        grad = self.given(o)[0][i]
        given = _real(value) * 0 if grad is None else _real(grad)
        move = self.dice.direction(value).reshape(-1)
        low, high = 0, value.numel()
        while high - low > 1:
            middle = (low + high) // 2
            u = torch.zeros_like(move)
            u[low:middle] = move[low:middle]
            slope = self.slopes(i, u)[o]
            expected = torch.where(slope.trusted, v * slope.value, 0.0)
            products = given * _real(u)
            error = torch.where(slope.trusted, v.abs() * slope.error, 0.0).sum()
            limit = 10 * error.item() + 1e-5 * max(products.norm().item(), expected.norm().item())
            wrong = abs(expected.sum().item() - products.sum().item()) > limit
            low, high = (low, middle) if wrong else (middle, high)
        return low


class _Case:
    """The gradient of output o with respect to input i at one point, as given and as expected.

    given: (3, all elements of the input), a row for each v; sampled: the same for those elements
    that `expected` and `limit` have.
    """

    def __init__(self, point, i, o, tolerance):
        self.point, self.i, self.o, self.tolerance = point, i, o, tolerance
        self.x, self.y, self.vs = point.values[i], point.outputs[o], point.vs[o]
        self.subject, self.shape = point.subject, tuple(self.x.shape)
        self.input, self.output = self.subject.inputs[i], point.names[o]
        rows = [grads[i] for grads in point.given(o)]
        self.none = all(row is None for row in rows)
        self.given = torch.stack([self.flat(row) for row in rows])
        self.elements, found = point.expected(i)
        self.expected, error, trusted, self.jacobian = found[o]
        self.sampled = self.given[:, self.elements]
        self.trusted = trusted & (self.sampled.isfinite() & self.expected.isfinite()).all(0)
        # A change too small to show beside numbers of the size of 1 may be lost inside forward.
        change = self.sampled.abs() * _scale(self.x).reshape(-1)[self.elements]
        self.trusted &= ~((self.expected == 0) & (change > 0) & (change < 1e-14)).any(0)
        self.sparse = len(self.elements) < self.x.numel()
        self.whole = not self.sparse and bool(self.trusted.all())
        self.limit = error + tolerance * _largest(self.expected[:, self.trusted])
        self.right = self.trusted & ((self.sampled - self.expected).abs() <= self.limit).all(0)
        self.wrong = self.trusted & ~self.right
        self.identity = self.shape == tuple(self.y.shape) and bool((self.x == self.y).all())

    def flat(self, grad):
        dtype = torch.complex128 if self.x.is_complex() else torch.float64
        grad = torch.zeros_like(self.x) if grad is None else grad.detach()
        return grad.to(self.x.device, dtype).reshape(-1)

    def vjp(self, v):
        return self.flat(self.point.vjp(self.o, v)[self.i])

    def fits(self, candidate, mask=True):
        """Is `candidate`, of shape (3, sample), what is expected?"""
        near = ((candidate - self.expected).abs() <= self.limit).all(0)
        mask = self.trusted & mask
        return bool(mask.any()) and bool(near[mask].all())

    @functools.cached_property
    def passes(self):
        """Is the gradient grad_output itself, summed or expanded to the input's shape?"""
        try:
            vs = [v.expand(self.shape) if v.dim() < len(self.shape) or v.numel() < self.x.numel()
                  else v.sum_to_size(self.shape) for v in self.vs]  # fmt: skip
        except RuntimeError:
            return False
        return all(_same(row, self.flat(v)) for row, v in zip(self.given, vs, strict=True))

    def evidence(self):
        """The worst element and the angle; both Jacobians, if they are small."""
        off = torch.where(self.trusted, (self.sampled - self.expected).abs(), -1.0)
        # The first of those that are about the worst, lest rounding should choose.
        k, s = divmod(int((off >= 0.99 * off.max()).reshape(-1).nonzero()[0]), off.shape[1])
        given, expected = self.sampled[k, s].item(), self.expected[k, s].item()
        expected = expected if abs(expected) > self.limit[k, s] else 0.0
        seen = {"at": _index(self.elements[s], self.shape), "given": given, "expected": expected}
        if expected:
            seen["ratio"] = given / expected
        a, b = self.sampled[:, self.trusted].reshape(-1), self.expected[:, self.trusted].reshape(-1)
        if a.any() and b.norm() > self.limit.max():
            cosine = (torch.vdot(a, b).real / (a.norm() * b.norm())).clamp(-1, 1).item()
            seen["angle"] = f"{math.degrees(math.acos(cosine)):.0f}°"
        if self.jacobian is not None and not self.x.is_complex() and not self.y.is_complex():
            one_hot = torch.eye(self.y.numel(), dtype=self.y.dtype, device=self.y.device)
            rows = [self.vjp(row.reshape(self.y.shape)) for row in one_hot]
            seen |= {"given_jacobian": torch.stack(rows), "expected_jacobian": self.jacobian}
        return seen


def _same(a, b):
    return bool(((a - b).abs() <= 1e-9 * _largest(b) + 1e-300).all())


# --- hypotheses -----------------------------------------------------------------------------------
#
# Each takes the cases of one gradient that is wrong, one for each point, and returns None or
# (code, words for the message). They are tried in this order: the simplest first.


def _no_gradient(cases):
    if any(c.given.any() for c in cases):
        return None
    return ("gradient-none" if all(c.none for c in cases) else "gradient-zero"), {}


def _flat(cases):
    if not all((c.expected.abs() <= c.limit)[:, c.trusted].all() for c in cases):
        return None
    passed = "passes grad_output straight through"
    return "straight-through", {"what": passed if cases[0].passes else "does not return zero"}


def _ignores_grad_output(cases):
    if not all(_same(c.given[0], c.given[1]) and _same(c.given[0], c.given[2]) for c in cases):
        return None
    ones = all(c.fits(torch.stack([*c.expected[:2], c.sampled[2]])) for c in cases)
    return "grad-output-ignored", {"only": ", so it is right only for ones" if ones else ""}


def _scaled(cases):
    factors = []
    for c in cases:
        g, e = c.sampled[:, c.trusted].reshape(-1), c.expected[:, c.trusted].reshape(-1)
        factors.append((torch.vdot(e, g) / e.norm() ** 2).item())
        if factors[-1] == 0 or not c.fits(c.sampled / factors[-1]):
            return None
    c, f = cases[0], factors[0]
    if any(abs(other - f) > 1e-4 * abs(f) for other in factors):
        return None
    if abs(f + 1) < 1e-4:
        return "negated", {}
    for name, value in c.subject.arguments.items():
        if isinstance(value, (int, float)) and value not in (0, 1, -1):
            for power, lacks in ((-1, "lacks"), (1, "has once too often")):
                if abs(f - value**power) < 1e-4 * abs(f):
                    what = f"`{name}` = {_text(value)}"
                    return "factor-missing", {"lacks": lacks, "what": what, "rest": ""}
    sizes = [(n, f"dimension {d} of {c.output}") for d, n in enumerate(c.y.shape)]
    sizes += [(n, f"dimension {d} of `{c.input}`") for d, n in enumerate(c.shape)]
    sizes += [(c.y.numel(), f"{c.output}"), (c.x.numel(), f"`{c.input}`")]
    for n, what in sizes:
        if n > 2 and abs(f * n - 1) < 1e-4:
            return "mean-for-sum", {"n": n, "what": what}
        if n > 2 and abs(f / n - 1) < 1e-4:
            return "sum-for-mean", {"n": n, "what": what}
    return "scaled", {"factor": _text(f)}


def _conjugated(cases):
    if not any(c.x.is_complex() or c.y.is_complex() for c in cases):
        return None
    for c in cases:
        flipped = torch.stack([c.vjp(v.conj().resolve_conj()) for v in c.vs]).conj()
        if not (c.fits(flipped[:, c.elements]) or c.fits(c.sampled.conj())):
            break
    else:
        return "conjugate", {}
    real = all(c.fits(c.sampled.real + 1j * c.expected.imag) for c in cases)
    return ("imaginary-lost", {}) if real and not any(c.given.imag.any() for c in cases) else None


def _moved(cases, order, inner=None):
    """Is what belongs at each element found where `order` says? inner: where that is asked."""
    for c in cases:
        mask = True if inner is None else inner[c.elements]
        if not (c.expected.abs() > c.limit)[:, c.trusted & mask].any():
            return False
        if not c.fits(c.given[:, order[c.elements]], mask):
            return False
    return True


def _transposed(cases):
    c = cases[0]
    dims = range(len(c.shape))
    for order in itertools.permutations(dims) if len(dims) <= 4 else ():
        places = torch.arange(c.x.numel(), device=c.x.device)
        places = places.reshape([c.shape[order.index(d)] for d in dims]).permute(order)
        if order != tuple(dims) and _moved(cases, places.reshape(-1)):
            how = f"its dimensions are permuted as by permute{order}"
            return "transposed", {"how": "transposed" if len(dims) == 2 else how}
    return None


def _swapped(cases):
    for j, name in enumerate(cases[0].subject.inputs):
        if j != cases[0].i and all(
            c.whole and c.point.values[j].shape == c.x.shape and _belongs_to(c, j) for c in cases
        ):
            return "swapped", {"other": name}
    return None


def _belongs_to(c, j):
    other = c.point.expected(j)[1][c.o][0]
    return bool(((c.sampled - other).abs() <= c.limit.max()).all()) and bool(other.any())


def _shifted(cases):
    c = cases[0]
    places = torch.arange(c.x.numel(), device=c.x.device).reshape(c.shape)
    for d, n in enumerate(c.shape):
        if n > 1 and _moved(cases, places.flip(d).reshape(-1)):
            return "reversed", {"d": d}
        index = torch.arange(n, device=c.x.device)
        index = index.reshape([-1] + [1] * (len(c.shape) - d - 1)).expand(c.shape).reshape(-1)
        for by in (1, -1, 2, -2) if n > 3 else ():
            inner = (index + by >= 0) & (index + by < n)
            if _moved(cases, places.roll(-by, d).reshape(-1), inner):
                return "shifted", {"by": by, "d": d}
    return None


def _inner_forgotten(cases):
    if any(c.identity or not c.passes for c in cases):
        return None
    return "inner-derivative-forgotten", {}


def _jacobian_transposed(cases):
    for c in cases:
        if c.x.shape != c.y.shape or c.x.numel() < 2 or c.x.is_complex() or c.y.is_complex():
            return None
        step = _scale(c.x).min().item()
        for v, given in zip(c.vs[:2], c.given, strict=False):
            slope = c.point.slopes(c.i, v.to(c.x.dtype) * step)[c.o]
            off = (slope.value / step - given).abs()[slope.trusted]
            if not off.numel() or off.max() > c.tolerance * _largest(given):
                return None
    return "jacobian-transposed", {}


def _not_linear(cases):
    c = cases[0]
    limit = 1e-6 * _largest(c.given)
    if _largest(c.vjp(torch.zeros_like(c.y))) > limit:
        return "not-linear", {"how": ": it is not even zero where grad_output is zero."}
    total, large = c.vjp(c.vs[0] + c.vs[1]), c.vjp(-1000 * c.vs[0]) / 1000
    if max(_largest(total - c.given[0] - c.given[1]), _largest(large + c.given[0])) <= limit:
        return None
    return "not-linear", {"how": ", as a clip, a sign or a power makes it." + MEANT}


def _only_ones(cases):
    for c in cases:
        if c.y.numel() < 2 or not c.fits(torch.stack([*c.expected[:2], c.sampled[2]])):
            return None
    return "right-only-for-ones", {}


def _partly_right(cases):
    c = cases[0]
    matters = (c.expected.abs() > c.limit).any(0)
    if not (c.right & matters).any() or 10 * c.right.sum() < c.trusted.sum() or not c.wrong.any():
        return None
    given, expected = c.sampled[:, c.wrong], c.expected[:, c.wrong]
    ratio = given / expected
    first, may = ratio.reshape(-1)[0], ""
    if not given.any():
        how = "is zero"
    elif (expected.abs() <= c.limit[:, c.wrong]).all():
        how, may = "should be zero", MEANT
    elif ((ratio - first).abs() > 1e-4 * first.abs()).any():
        how = "is wrong"
    else:
        how = "is negated" if abs(first + 1) < 1e-4 else f"is multiplied by {_text(first.item())}"
    return "partly-right", {"where": _where(c), "how": how, "may": may}


def _where(c):
    """In words, at which elements the gradient is wrong."""
    if c.wrong.sum() == 1:
        return f"at {_index(c.elements[c.wrong].item(), c.shape)}"
    x = c.x.reshape(-1)[c.elements]
    for what, size in ((f"`{c.input}`", x.real), (f"the magnitude of `{c.input}`", x.abs())):
        for word, sign in (("above", 1), ("below", -1)):
            good, bad = (sign * size)[c.right].max(), (sign * size)[c.wrong].min()
            if good < bad:
                edge = 0.0 if good <= 0 <= bad else (good + bad).item() / 2
                return f"where {what} is {word} {_text(sign * edge)},"
    for d, places in enumerate(torch.unravel_index(c.elements, c.shape) if c.shape else ()):
        bad, good = sorted(set(places[c.wrong].tolist())), set(places[c.right].tolist())
        if not good.intersection(bad):
            run = len(bad) > 2 and bad == list(range(bad[0], bad[-1] + 1))
            which = f"{bad[0]} to {bad[-1]}" if run else ", ".join(map(str, bad[:6]))
            return f"at index {which} of dimension {d}"
    return f"at {int(c.wrong.sum())} of {int(c.trusted.sum())} elements examined"


def _factor(cases):
    """Off by a factor that differs from element to element, but is the same for every v."""
    ratios, kept = [], []
    for c in cases:
        zero = (c.expected.abs() <= c.limit).all(0)
        keep = c.trusted & (c.expected.abs() > 1e-3 * _largest(c.expected)).all(0)
        ratio = c.sampled[:, keep] / c.expected[:, keep]
        if not keep.any() or ((ratio - ratio[0]).abs() > 1e-3 * _largest(ratio)).any():
            return None
        if not ratio.any() or (c.sampled.abs() > c.limit)[:, c.trusted & zero].any():
            return None
        ratios.append(ratio[0])
        kept.append(c.elements[keep])
    c = cases[0]
    for name in (c.input, *c.subject.names, c.output):
        for power, lacks in ((-1, "lacks"), (1, "has once too often"), (-2, "lacks twice")):
            rest = [_without(*of, name, power) for of in zip(cases, ratios, kept, strict=True)]
            if any(r is None for r in rest):
                continue
            rest = torch.cat(rest)
            if len(rest) < 2 or ((rest - rest[0]).abs() > 1e-4 * rest[0].abs()).any():
                continue
            also = f", and is multiplied by {_text(rest[0].item())}"
            what = name if name == c.output else f"`{name}`"
            also = "" if abs(rest[0] - 1) < 1e-4 else also
            return "factor-missing", {"lacks": lacks, "what": what, "rest": also}
    return "derivative-wrong", {}


def _without(c, ratio, elements, name, power):
    """ratio / t**power, where t is the tensor called `name`, if it has a value at each element."""
    subject, t = c.subject, c.y
    if name != c.output:
        k = subject.names.index(name)
        at = subject.examined.index(k) if k in subject.examined else None
        t = subject.tensors[k] if at is None else c.point.values[at]
    try:
        return ratio / c.flat(t.expand(c.shape))[elements] ** power
    except RuntimeError:
        return None


def _misplaced(cases):
    for c in cases:
        if not c.whole or c.x.is_complex() or c.x.numel() < 2:
            return None
        off = c.given.sort(1).values - c.expected.sort(1).values
        if (off.abs() > c.limit.max()).any():
            return None
    return "misplaced", {}


def _lost(cases):
    """Some entries of the Jacobian are missing, the others are right."""
    seen = cases[0].evidence()
    if "given_jacobian" not in seen or not cases[0].whole:
        return None
    given, expected = seen["given_jacobian"], seen["expected_jacobian"]
    limit = cases[0].tolerance * _largest(expected)
    there = expected.abs() > limit
    missing = there & (given.abs() <= limit)
    if not missing.any() or ((given - expected).abs() > limit)[~missing].any():
        return None
    hit = missing.any(0)
    if not (there & ~missing).any(0)[hit].all():
        return None  # nothing is left of some gradients, which is simpler to say
    rows = missing.any(1)
    ignored = hit.all() and torch.equal(missing[rows], there[rows])
    return ("grad-output-partly-ignored" if ignored else "contribution-lost"), {}


def _term_missing(cases):
    """The error is the same along a dimension, perhaps after division by an input or the output."""
    c = cases[0]
    if not c.whole or c.x.is_complex():
        return None
    inputs = [(f"`{n}`", t) for n, t in zip(c.subject.inputs, c.point.values, strict=True)]
    for name, t in [("", torch.ones_like(c.x)), (c.output, c.y), *inputs]:
        if t.shape != c.x.shape or not t.all() or t.is_complex():
            continue
        rest = ((c.given - c.expected) / c.flat(t)).reshape(3, *c.shape)
        for d, n in enumerate(c.shape):
            spread = _largest(rest - rest.select(d + 1, 0).unsqueeze(d + 1))
            if n > 2 and spread < 1e-4 * _largest(rest):
                return "term-missing", {"d": d, "times": f", times {name}" if name else ""}
    return None


def _just_wrong(cases):
    return "gradient-wrong", {}


HYPOTHESES = (
    _no_gradient, _flat, _ignores_grad_output, _scaled, _conjugated, _not_linear, _transposed,
    _swapped, _shifted, _misplaced, _lost, _partly_right, _jacobian_transposed, _term_missing,
    _inner_forgotten, _only_ones, _factor, _just_wrong,
)  # fmt: skip


# --- the examination ------------------------------------------------------------------------------


class _Nothing(torch.autograd.Function):
    """The identity, through which no gradient flows back: the node before it receives None."""

    @staticmethod
    def forward(ctx, output):
        return output.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return None


def _graph(tensors):
    """All nodes that the tensors lead to, in a fixed order."""
    queue, seen = [t.grad_fn for t in tensors], {}
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen[node] = True
            queue += [following for following, _ in node.next_functions]
    return list(seen)


class _Examination:
    def __init__(self, fn, args, kwargs, faithful):
        self.subject, self.faithful = _Subject(fn, args, kwargs), faithful
        self.findings, self.dice = [], _Dice()

    def add(self, code, x=None, y=None, seen=None, severity=None, **words):
        default, message, remedy = FINDINGS[code]
        words = {"x": f"`{x}`", "y": y, "meant": "", "precision": "", **words}
        through = words.pop("through", "")  # which output, if not all are concerned
        message = message.replace("gradient of {x}", "gradient of {x}" + through, 1)
        known = [f for f in self.findings if (f.code, f.input) == (code, x)]
        if known and not through:
            return
        message = message.format(*words.pop("groups", ()), **words)
        message = message[:1].upper() + message[1:] if y and message.startswith(y) else message
        if any(f.message == message for f in known):
            return
        remedy = remedy.format(**words)
        severity = severity or default
        self.findings.append(Finding(code, severity, message, remedy, x, y, seen or {}))

    def add_raised(self, raised, code=None, x=None, **words):
        """An exception as a finding: `code`, or what its message says."""
        text = re.sub(r"0x[0-9a-f]+", "0x...", str(raised.error).strip() or "(no message)")
        text = text.splitlines()[0][:200]
        seen = {"message": f"{type(raised.error).__name__}: {text}"}
        if "written-to tensor" in text:  # an expanded grad_output, which has one element
            return self.add("grad-output-modified", seen=seen)
        if code:
            return self.add(code, x, seen=seen, fails="fails with", **words)
        if shape := re.search(SHAPE, text):
            return self.wrong_shape(*shape.groups(), seen)
        words = {"phase": raised.phase.capitalize(), "error": type(raised.error).__name__}
        for pattern, code in EXCEPTIONS.items():
            if found := re.search(pattern, text):
                groups, close = found.groups(), ""
                if code == "attribute-missing":
                    close = difflib.get_close_matches(groups[0], OF_CTX, 1)
                    close = f" Did you mean `{close[0]}`?" if close else ""
                if code == "gradient-type":
                    article = "an" if groups[0][0] in "aeiou" else "a"
                    groups = (f"{article} {groups[0]}",)
                words |= {"which": "", "close": close}
                return self.add(code, seen=seen, groups=groups, **words)
        line = _line(raised.error)
        return self.add("raised", seen=seen, line=f"`{line}`" if line else "the call", **words)

    def wrong_shape(self, index, got, wanted, seen):
        own = self.subject.cls and int(index) < len(self.subject.names)
        x = self.subject.names[int(index)] if own else f"tensor {index} of a Function"
        if got.split(", ")[::-1] == wanted.split(", ") and got != wanted:
            how = f"transposed: its shape is ({got}), not ({wanted})"
            return self.add("transposed", x, seen=seen, how=how)
        return self.add("gradient-shape", x, seen=seen, got=got, wanted=wanted)

    def has(self, *codes):
        return any(f.code in codes for f in self.findings)

    @property
    def errors(self):
        return [f for f in self.findings if f.severity == "error"]

    def report(self):
        steps = (
            self.first_forward, self.outputs, self.left_behind, self.first_backward, self.again,
            self.derivatives, self.other_grad_outputs, self.subsets, self.second_derivatives,
            self.low_precision,
        )  # fmt: skip
        try:
            any(step() for step in steps)  # True: what was found makes the next steps pointless
        except _CallError as raised:
            self.add_raised(raised)
        self.findings.sort(key=lambda f: list(SEVERITIES).index(f.severity))
        return Report(self.subject.label, self.findings)

    # Forward

    def first_forward(self):
        subject = self.subject
        if not subject.values:
            self.add("nothing-to-examine")
            return True
        low = [v.dtype.to_real() for v in subject.values if torch.finfo(v.dtype).eps > 1e-10]
        self.low = low[0] if low else None
        if self.low:
            subject.use(torch.float64)
            try:
                self.try_out()
                self.add("double-copy", dtype=_text(self.low))
            except _CallError as raised:
                subject.use(None)
                self.try_out()
                self.add_raised(raised, "not-in-double", dtype=_text(self.low))
                self.low = None
        self.run = subject.run(subject.values)
        self.tolerance = 1e-5 if subject.eps < 1e-10 else 3e-2

    def try_out(self):
        run = self.subject.run(self.subject.values)
        self.subject.backward(run, [torch.ones_like(o) for o in run.outputs])

    def same(self, a, b, floor=0.0):
        """Are two tensors the same but for rounding? None is zero."""
        if a is None or b is None:
            return all(t is None or _largest(_real(t)) <= floor for t in (a, b))
        a, b = _real(a), _real(b)
        limit = (1e-7 if self.subject.eps < 1e-10 else 1e-3) * _largest(b) + floor
        both = a.isfinite() & b.isfinite()
        fine = torch.equal(a.isfinite(), b.isfinite())
        return fine and bool(((a - b)[both].abs() <= limit).all())

    def outputs(self):
        subject, run = self.subject, self.run
        for name, value in zip(subject.inputs, subject.values, strict=True):
            if not value.isfinite().all():
                self.add("input-not-finite", name)
        if not run.outputs:
            self.add("no-output" if not run.others else "only-integers")
            return True
        again = subject.run(subject.values).outputs
        if len(again) != len(run.outputs) or not all(map(self.same, again, run.outputs)):
            self.add("forward-not-deterministic")
            return True
        for name, output in zip(run.names, run.outputs, strict=True):
            given = torch.finfo(self.low).eps if self.low else subject.eps
            if torch.finfo(output.dtype).eps > given:
                self.add("output-dtype", y=name, dtype=_text(output.dtype))
            if not output.isfinite().all() and not self.has("input-not-finite"):
                k = int((~output.isfinite()).reshape(-1).nonzero()[0])
                seen = {"output at": _index(k, output.shape), "value": output.reshape(-1)[k].item()}
                for x, value in zip(subject.inputs, subject.values, strict=True):
                    if value.shape == output.shape:
                        seen[f"`{x}` there"] = value.reshape(-1)[k].item()
                self.add("forward-not-finite", y=name, seen=seen)

    def nodes(self, run):
        """The nodes of Functions written in Python, between outputs and inputs."""
        return [node for node in _graph(run.outputs) if isinstance(node, BackwardCFunction)]

    def left_behind(self):
        """What forward did to its inputs, returned of them, and keeps on ctx."""
        subject, run, nodes = self.subject, self.run, self.nodes(self.run)
        self.stale = any(t._version != version for t, version in run.saved)
        before = list(subject.tensors)
        for k, leaf in zip(subject.examined, run.leaves, strict=True):
            before[k] = leaf
        for k, (name, t) in enumerate(zip(subject.names, run.passed, strict=True)):
            tracked = t.grad_fn is not None and "Clone" not in t.grad_fn.name()  # mark_dirty
            is_state = subject.is_module and name in subject.state  # running statistics
            if tracked or is_state:
                continue
            if not self.same(t, before[k]):
                self.add("input-modified", name, severity=None if k in subject.examined else "note")
            for y, output in zip(run.names, run.outputs, strict=True):
                if nodes and output._is_view() and output._base is t:
                    whole = output.shape == t.shape and output.stride() == t.stride()
                    self.add("input-returned" if whole else "view-returned", name, y)
        for node in nodes:
            for path, t in _tensors(vars(node), "ctx"):
                path = re.sub(r"^ctx\['(\w+)'\]", r"ctx.\1", path)
                seen = {"shape": list(t.shape)}
                if t.grad_fn is node:
                    self.add("reference-cycle", path=path, seen=seen)
                    continue
                given = any(t is p for p in run.passed)
                if given or _differentiable(t):
                    also = "" if given else ", and a second derivative takes it for a constant"
                    what = "an input" if given else "a tensor"
                    instead = "ctx.save_for_backward"
                    if not given:
                        instead += " for the one; to compute it anew in backward, or to return it "
                        instead += "from forward, for both"
                    words = {"what": what, "also": also, "instead": instead}
                    self.add("tensor-on-ctx", path=path, seen=seen, **words)

    # Backward, once and under other circumstances

    def first_backward(self):
        subject, run = self.subject, self.run
        self.vs = [torch.where(o.isfinite(), self.dice.normal(o), 0) for o in run.outputs]
        for k, output in enumerate(run.outputs):
            if not output.requires_grad:
                self.detached(k)
        if not any(o.requires_grad for o in run.outputs):
            return True
        saved = [(t, t._version) for t, _ in run.saved]
        with self.watched() as (handed, returned):
            grads = subject.backward(run, self.vs, retain=True)
        self.base = [None if grad is None else grad.clone() for grad in grads]
        # What a gradient may be by rounding alone: changes of the output relative to the input.
        pairs = zip(run.outputs, self.vs, strict=True)
        size = sum(_largest(v * o) * o.numel() ** 0.5 for o, v in pairs)
        self.floors = [1e-10 * size / (_largest(value) or 1.0) for value in subject.values]
        if any(not torch.equal(g.nan_to_num(), before.nan_to_num()) for g, before in handed):
            self.add("grad-output-modified")
        if any(t._version != version for t, version in saved):
            self.add("saved-modified", which=", by backward itself")
        for x, grad in returned.items():
            t = subject.arguments[x]
            if not _differentiable(t):
                self.add("gradient-for-index", x, dtype=_text(t.dtype))
            elif not _differentiable(grad) or torch.finfo(grad.dtype).eps > subject.eps:
                self.add("gradient-dtype", x, dtype=_text(grad.dtype))
            if grad.shape != t.shape:
                self.add("engine-sums", x, got=tuple(grad.shape), wanted=tuple(t.shape))
        for i, grad in enumerate(self.base):
            if grad is not None and not grad.isfinite().all():
                self.not_finite(i, grad)

    @contextlib.contextmanager
    def watched(self):
        """What backward is handed (with copies), and what it returns before the engine corrects it.

        Yields a list and a dict from the examined Function's arguments to their gradients.
        """
        handed, returned = [], {}

        def calls(node, *grads):
            handed.extend((grad, grad.clone()) for grad in grads if grad is not None)
            return returns if node._forward_cls is self.subject.cls else None

        def returns(grads):
            grads = grads if isinstance(grads, tuple) else (grads,)
            pairs = zip(self.subject.arguments.items(), grads, strict=False)
            tensors = [(x, t, g) for (x, t), g in pairs if isinstance(g, torch.Tensor)]
            returned.update({x: g for x, t, g in tensors if isinstance(t, torch.Tensor)})

        with _before(BackwardCFunction, "apply", calls):
            yield handed, returned

    def detached(self, k):
        subject, run = self.subject, self.run
        point = _Point(subject, subject.values, self.dice)
        for i, value in enumerate(subject.values):
            slope = point.slopes(i, self.dice.direction(value))[k]
            if (slope.value.abs() > 1e-6 * _largest(point.y0[k]))[slope.trusted].any():
                marked = any(run.outputs[k] is t for t in run.marked)
                code = "marked-non-differentiable" if marked else "output-detached"
                return self.add(code, subject.inputs[i], run.names[k])

    def not_finite(self, i, grad):
        subject, name = self.subject, self.subject.inputs[i]
        bad = ~grad.isfinite() & subject.values[i].isfinite()
        for output in self.run.outputs:  # where forward failed, backward may
            bad &= output.isfinite() if output.shape == grad.shape else output.isfinite().all()
        if not bad.any():
            return
        k = int(bad.reshape(-1).nonzero()[0])
        value = subject.values[i].reshape(-1)[k].item()
        seen = {"at": _index(k, grad.shape), f"`{name}` there": value}
        seen["given"] = grad.reshape(-1)[k].item()
        point = _Point(subject, subject.values, self.dice)
        slopes = [slope for _, u, _ in point.units(i, k) for slope in point.slopes(i, u)]
        fine = all(slope.trusted.all() for slope in slopes)
        self.add("backward-not-finite" if fine else "singular", name, seen=seen)

    def trial(self, code, gradients, expected=None, **words):
        """Are the gradients that gradients() returns those of the first backward?"""
        try:
            found = gradients()
        except _CallError as raised:
            self.add_raised(raised, code, **words)
            return False
        expected = expected or self.base
        for x, *pair in zip(self.subject.inputs, found, expected, self.floors, strict=True):
            if not self.same(*pair):
                self.add(code, words.pop("x", x), fails="gives another gradient for", **words)
                return False
        return True

    def again(self):
        """The same backward twice; and forward with other inputs before backward."""
        subject, run, code = self.subject, self.run, "backward-not-deterministic"
        if self.has("saved-modified"):
            return
        try:
            second = subject.backward(run, self.vs, retain=True)
            drawn = subject.backward(run, self.vs, retain=True, seed=2)
        except _CallError as raised:
            return self.add_raised(raised, "backward-only-once")
        why = ", because it draws random numbers"
        if self.trial(code, lambda: second, why="") and self.trial(code, lambda: drawn, why=why):
            self.trial("state-between-calls", self.after_another_call)

    def after_another_call(self):
        subject = self.subject
        run = subject.run(subject.values)
        with contextlib.suppress(_CallError):
            subject.run([self.dice.nearby(v) for v in subject.values])
        return subject.backward(run, self.vs)

    def other_grad_outputs(self):
        """The layouts that grad_output may have, and None."""
        subject, outputs, code = self.subject, self.run.outputs, "grad-output-layout"
        values = subject.values

        def gradients(vs):
            return subject.gradients(values, vs)

        ones = [torch.ones_like(o, memory_format=torch.contiguous_format) for o in outputs]
        expanded = [o.new_ones(()).expand(o.shape) for o in outputs]
        strided = [torch.stack([v, v], -1)[..., 0] for v in self.vs]
        layout = "an expanded view, as `.sum()` makes it"
        expected = gradients(ones)
        if self.trial(code, lambda: gradients(expanded), expected, layout=layout):
            self.trial(code, lambda: gradients(strided), layout="not contiguous")

        def none():
            run = subject.run(values)
            run.outputs = [_Nothing.apply(o) for o in run.outputs]
            return [None for _ in subject.backward(run, self.vs)]

        fine = self.trial("none-not-handled", none, [None] * len(values))
        for k in range(len(outputs)) if fine and len(outputs) > 1 else ():
            alone = [v if j == k else None for j, v in enumerate(self.vs)]
            zeros = [v if j == k else torch.zeros_like(v) for j, v in enumerate(self.vs)]
            if outputs[k].requires_grad:
                expected = gradients(zeros)
                self.trial("none-not-handled", lambda vs=alone: gradients(vs), expected)

    def subsets(self):
        """Only one of the inputs requires a gradient."""
        subject, n = self.subject, len(self.subject.values)
        if n < 2:
            return
        run = subject.run(subject.values)
        with FlopCounterMode(display=False) as counter:
            subject.backward(run, self.vs)
        total = counter.get_total_flops()
        for i, name in enumerate(subject.inputs):
            computed, spent = [], []

            def gradients(i=i, computed=computed, spent=spent):
                run = subject.run(subject.values, [j == i for j in range(n)])
                with FlopCounterMode(display=False) as counter, self.watched() as (_, returned):
                    grads = subject.backward(run, self.vs)
                computed.extend(returned)
                spent.append(counter.get_total_flops())
                return grads

            expected = [grad if j == i else None for j, grad in enumerate(self.base)]
            if not self.trial("needs-input-grad-wrong", gradients, expected, x=name):
                return
            vain = [x for x in computed if x != name]
            if vain and spent == [total] and total > 0 and not self.has("needs-input-grad-ignored"):
                seen = {"multiplications and additions": f"{total}, as for all gradients"}
                others = " and ".join(f"`{x}`" for x in vain)
                self.add("needs-input-grad-ignored", name, seen=seen, others=others)

    # Is the gradient the derivative of forward?

    def derivatives(self):
        subject = self.subject
        if self.has("backward-not-deterministic", "state-between-calls", "backward-not-finite"):
            return
        points = [subject.values]
        for _ in range(1 if _is_large(points[0]) else 2):
            other = [self.dice.nearby(v) for v in subject.values]
            with contextlib.suppress(_CallError):
                if all(y.isfinite().all() for y in subject.forward(other)):
                    points.append(other)
        wrong = {}
        for p, values in enumerate(points):
            point = _Point(subject, values, self.dice)
            verdicts, doubts = _screen(
                subject.forward, point.vjp, values, self.dice, subject.eps, self.tolerance
            )
            for (i, o), verdict in verdicts.items():
                if verdict == "right" or not self.run.outputs[o].requires_grad:
                    continue
                if len(wrong.get((i, o), ())) < 2:
                    case = _Case(point, i, o, self.tolerance)
                    # If not all elements are examined, the wrong one may not be among them.
                    if case.wrong.any() or (verdict == "wrong" and case.sparse):
                        wrong.setdefault((i, o), {})[p] = case
            for i in doubts if p == 0 else ():
                self.kink(point, i)
        found = {io: self.diagnosis(cases, len(points)) for io, cases in wrong.items()}
        graded = sum(o.requires_grad for o in self.run.outputs)
        for (i, o), (code, x, seen, words) in found.items():
            same = [other[0] == code for (j, _), other in found.items() if j == i]
            y = self.run.names[o]
            through = "" if len(same) == graded and all(same) else f" through {y}"
            self.add(code, x, y, seen, through=through, **words)

    def diagnosis(self, cases, points):
        """(code, input, evidence, words) for a wrong gradient."""
        case = next(iter(cases.values()))
        if not self.faithful:
            return "unfaithful", case.input, {}, {}
        if not case.wrong.any():
            return "gradient-wrong", case.input, {}, {}
        seen = case.evidence()
        if self.stale:
            which = f" and before forward returned, so the gradient of `{case.input}` is wrong"
            return "saved-modified", None, seen, {"which": which}
        if 0 not in cases and points > 1:
            return "right-here-only", case.input, seen, {}
        found = (hypothesis(list(cases.values())) for hypothesis in HYPOTHESES)
        code, words = next(answer for answer in found if answer)
        return code, case.input, seen, {"meant": MEANT if case.identity else "", **words}

    def kink(self, point, i):
        """Say where differences prove nothing: the one-sided slopes differ, or are lost."""
        x = self.subject.inputs[i]
        for s in range(min(point.values[i].numel(), point.limit)):
            _, u, step = next(point.units(i, s))
            for slope in point.slopes(i, u):
                sides = torch.stack([slope.left, slope.right]) / step
                apart = (sides[0] - sides[1]).abs() > 1e-3 * sides.abs().amax(0)
                if (apart & ~slope.trusted).any():
                    k = int((apart & ~slope.trusted).nonzero()[0])
                    sides = " and ".join(_text(side) for side in sorted(sides[:, k].tolist()))
                    seen = {"at": _index(s, point.values[i].shape), "slopes": sides}
                    return self.add("kink", x, seen=seen)
        self.add("not-judged", x)

    # The derivative of the derivative

    def second_derivatives(self):
        subject, n = self.subject, len(self.subject.values)
        noisy = ("gradient-dtype", "output-dtype", "singular")
        if self.errors or self.has(*noisy, "input-not-finite", "forward-not-finite"):
            return
        graded = [k for k, o in enumerate(self.run.outputs) if o.requires_grad]

        def gradients(values, create=False):
            """The gradients at values[:n] for grad_outputs values[n:], and what they depend on."""
            run, vs = subject.run(values[:n]), [None] * len(self.vs)
            leaves = [v.detach().clone().requires_grad_(create) for v in values[n:]]
            for k, leaf in zip(graded, leaves, strict=True):
                vs[k] = leaf
            return subject.backward(run, vs, create=create), run.leaves + leaves

        def forward(values):
            grads, _ = gradients(values)
            return [_real(grads[i]) for i in which]

        def vjp(o, w):
            grads, leaves = gradients(values, create=True)
            grad = grads[which[o]]
            if not grad.requires_grad:
                return [None] * len(leaves)
            with _phase("double backward"):
                return torch.autograd.grad(grad, leaves, _like(w, grad), allow_unused=True)

        values = [*subject.values, *(self.vs[k] for k in graded)]
        try:
            grads, _ = gradients(values, create=True)
            which = [i for i, grad in enumerate(grads) if grad is not None]
            if not any(grads[i].requires_grad for i in which):
                if any(grads[i].any() for i in which):
                    self.add("double-backward-missing")
                return
            # once_differentiable leaves a node that raises, but to which no input is connected.
            if any(node.name().endswith("::Error") for node in _graph([grads[i] for i in which])):
                return self.add("double-backward-refused")
            limit = 10 * self.tolerance
            verdicts, _ = _screen(forward, vjp, values, self.dice, subject.eps, limit)
        except _CallError as raised:
            by_will = isinstance(raised.error, NotImplementedError)
            refused = by_will or re.search(REFUSED, str(raised.error))
            code = "double-backward-refused" if refused else "double-backward-missing"
            return self.add_raised(raised, code)
        names = [f"`{name}`" for name in subject.inputs] + ["grad_output"] * len(graded)
        for (j, o), verdict in verdicts.items():
            if verdict == "wrong":
                self.add("double-backward-wrong", subject.inputs[which[o]], by=names[j])

    # The dtype that was given, against the double copy

    def draws(self):
        """Has the run that has just ended drawn random numbers? (Each starts from one seed.)"""
        after = [generator.get_state() for generator in _generators()]
        _seed(0)
        before = [generator.get_state() for generator in _generators()]
        return any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))

    def low_precision(self):
        subject, dtype = self.subject, self.low
        if not dtype or self.errors:
            return
        subject.use(None)
        try:
            run = subject.run(subject.values)
            if self.draws():
                return  # other numbers in another dtype, so nothing can be compared
            vs = [v.to(o.dtype) for o, v in zip(run.outputs, self.vs, strict=True)]
            low = subject.backward(run, vs)
        except _CallError as raised:
            return self.add_raised(raised)
        for y, o, exact in zip(run.names, run.outputs, self.run.outputs, strict=True):
            if exact.isfinite().all() and not o.isfinite().all():
                self.add("forward-not-finite", y=y, precision=f" of {_text(dtype)}")
        subject.use(torch.float64)
        vs = [v.to(w.dtype) for v, w in zip(vs, self.vs, strict=True)]
        high = subject.gradients(subject.values, vs)
        # How far would the gradients be off if only the inputs were rounded?
        eps = torch.finfo(dtype).eps
        rounded = [v + eps * self.dice.direction(v) for v in subject.values]
        rounded = subject.gradients(rounded, vs)
        limit = {torch.float32: 1e-2, torch.float16: 1e-1}.get(dtype, 3e-1)
        # A gradient that is exactly zero, as that of a bias before batch norm, is a sum of terms
        # that cancel. What rounding leaves of them is measured by the other gradients.
        scale = max((_largest(g) for g in high if g is not None), default=0.0)
        for x, a, b, c, floor in zip(subject.inputs, low, high, rounded, self.floors, strict=True):
            if a is None or b is None or not b.isfinite().all():
                continue
            off = (a.to(b.dtype) - b).abs().reshape(-1).nan_to_num(nan=torch.inf)
            size = _largest(b) if _largest(b) > 1e-9 * scale else scale
            if off.max() > limit * size + 30 * _largest(c - b) + 1e11 * eps * floor:
                k = int((off >= 0.99 * off.max()).nonzero()[0])
                given, expected = a.reshape(-1)[k].item(), b.reshape(-1)[k].item()
                seen = {"at": _index(k, b.shape), "given": given, "expected": expected}
                made = "" if a.isfinite().all() else ": backward makes nan or inf"
                if not all(o.isfinite().all() for o in run.outputs):
                    made = ": forward makes nan or inf"
                self.add("low-precision", x, seen=seen, dtype=_text(dtype), made=made)


def examine(fn, *inputs, faithful=True, **kwargs):
    """Examine the gradient of fn(*inputs, **kwargs); returns a `Report`.

    fn:       a callable, a `torch.autograd.Function` or its `apply`, or a `torch.nn.Module`, whose
              parameters are inputs, too. Its outputs may be nested in tuples, lists and dicts.
    inputs, kwargs: what it takes. Tensors of any shape, device and dtype; those of lower precision
              than float64 are examined as a float64 copy. If some require a gradient, only these
              are differentiated, otherwise all floating-point and complex ones.
    faithful: False accepts a gradient that is not the derivative of forward (a straight-through
              estimator, gradient reversal, clipping); everything else is still examined.

    An exception of `fn` becomes a finding. The inputs, their `.grad`, the random state and the
    settings of PyTorch stay as they were. What `fn` prints is dropped, for it is called many times.
    Raises TypeError if `fn` cannot be called.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {type(fn).__name__}")
    with _undisturbed():
        return _Examination(fn, inputs, kwargs, faithful).report()


# --- the command line -----------------------------------------------------------------------------


def _tensor(text):
    """A random tensor from "3x4" or "3x4:float32"."""
    match = re.fullmatch(r"(\d+(?:x\d+)*)?(?::(\w+))?", text)
    dtype = getattr(torch, (match and match[2]) or "float32", None)
    if not match or not isinstance(dtype, torch.dtype):
        raise argparse.ArgumentTypeError(f"write sizes as 3x4 or 3x4:int64, got {text!r}")
    shape = [int(n) for n in (match[1] or "").split("x") if n]
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(0, 2, shape, generator=generator, dtype=dtype)


def _number(text):
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"write a number, got {text!r}") from None


def _load(target):
    """What "module.py:name" or "package.module:name" names; a module class is instantiated."""
    path, _, name = target.rpartition(":")
    if not path:
        raise ValueError(f"target must be module.py:name or package.module:name, got {target!r}")
    if path.endswith(".py"):
        spec = importlib.util.spec_from_file_location("examined", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(path)
    fn = getattr(module, name)
    return fn() if isinstance(fn, type) and issubclass(fn, torch.nn.Module) else fn


def main(argv=None):
    """Examine what the command line names; returns the exit status, 1 if there is an error.

    What cannot be examined (no such file, name or shape) ends with status 2 and one sentence.
    """
    parser = argparse.ArgumentParser(
        prog="python -m helpers.doctor",
        description="Examine the gradient of a function. Exit status: 0 right, 1 wrong, 2 not run.",
        epilog="example: python -m helpers.doctor mine.py:Scale --input 3x4 --value 2.5",
    )
    parser.add_argument("target", help="module.py:name or package.module:name")
    parser.add_argument(
        "--input",
        dest="inputs",
        action="append",
        type=_tensor,
        default=[],
        metavar="3x4[:dtype]",
        help="a random tensor, in the order of arguments",
    )
    parser.add_argument(
        "--value",
        dest="inputs",
        action="append",
        type=_number,
        metavar="2.5",
        help="a number, in the order of arguments",
    )
    parser.add_argument("--unfaithful", action="store_true", help="faithful=False")  # fmt: skip
    options = parser.parse_args(argv)
    if not any(isinstance(value, torch.Tensor) for value in options.inputs):
        parser.error("give at least one --input, such as --input 3x4")
    try:
        fn = _load(options.target)
    except Exception as error:
        parser.error(f"{options.target} cannot be loaded: {type(error).__name__}: {error}")
    report = examine(fn, *options.inputs, faithful=not options.unfaithful)
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
