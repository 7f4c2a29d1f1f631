"""The function under examination: its calls, with other values, and undisturbed surroundings."""

import contextlib
import copy
import inspect
import io
import random
import sys
import warnings
from dataclasses import dataclass

import torch
from torch.autograd.function import FunctionCtx

from .slopes import as_vector


class CallError(Exception):
    """The examined function raised `error` in `phase`."""

    def __init__(self, phase, error):
        self.phase, self.error = phase, error


@contextlib.contextmanager
def phase(name):
    try:
        yield
    except Exception as error:
        raise CallError(name, error) from error


def generators():
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [torch.default_generator, *cuda]


def reseed(seed):
    for generator in generators():
        generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


@contextlib.contextmanager
def undisturbed():
    """Whatever happens to the random state and to global settings is undone."""
    numpy = sys.modules.get("numpy")
    states = [(generator.set_state, generator.get_state()) for generator in generators()]
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
def announced(cls, name, note):
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


def mapped(obj, name, visit):
    """`obj` with every tensor in its tuples, lists and dicts replaced by visit(name, tensor)."""
    if isinstance(obj, torch.Tensor):
        return visit(name, obj)
    if isinstance(obj, (tuple, list)) and not isinstance(obj, torch.Size):
        items = [mapped(item, f"{name}[{k}]", visit) for k, item in enumerate(obj)]
        return type(obj)(*items) if hasattr(obj, "_fields") else type(obj)(items)
    if isinstance(obj, dict):
        return {key: mapped(item, f"{name}[{key!r}]", visit) for key, item in obj.items()}
    return obj


def tensors(obj, name=""):
    found = []
    mapped(obj, name, lambda path, tensor: found.append((path, tensor)))
    return found


def differentiable(tensor):
    return tensor.numel() > 0 and (tensor.is_floating_point() or tensor.is_complex())


@dataclass
class Run:
    """One forward pass: outputs that are floating-point or complex, and what went into it."""

    names: list
    outputs: list
    leaves: list  # one for each examined input
    passed: list  # what the function received in the place of each tensor
    saved: list
    stale: bool  # was something saved changed before forward returned?
    marked: list
    others: list  # outputs that have no gradient


class Subject:
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
        slots = [slot for name, value in self.arguments.items() for slot in tensors(value, name)]
        chosen = any(t.requires_grad for _, t in slots)
        examined = [differentiable(t) and (t.requires_grad or not chosen) for _, t in slots]
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
        low = [v.dtype.to_real() for v in self.values if torch.finfo(v.dtype).eps > 1e-10]
        self.lower = low[0] if low else None  # the dtype, if that of an input is below float64

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
            if dtype and differentiable(t) else t
            for t in self.original
        ]  # fmt: skip
        self.values = [self.tensors[k] for k in self.examined]
        self.eps = max((torch.finfo(v.dtype).eps for v in self.values), default=0.0)

    def call(self, tensors):
        supply = iter(tensors)
        values = [mapped(v, "", lambda *_: next(supply)) for v in self.arguments.values()]
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

        reseed(0)
        with (
            phase("forward"), announced(FunctionCtx, "save_for_backward", saves),
            announced(FunctionCtx, "mark_non_differentiable", marks),
        ):  # fmt: skip
            result = self.call(passed)
        everything = tensors(result, "output")
        others = [t for _, t in everything if not differentiable(t)]
        found = [(name, t) for name, t in everything if differentiable(t)]
        names = ["the output" if name == "output" else f"`{name}`" for name, _ in found]
        stale = any(t._version != version for t, version in saved)
        saved = [t for t, _ in saved]
        return Run(names, [t for _, t in found], leaves, passed, saved, stale, marked, others)

    def forward(self, values):
        """The outputs as vectors of float64."""
        return [as_vector(t) for t in self.run(values, needs=False).outputs]

    def backward(self, run, vs, retain=False, create=False, seed=1):
        """Gradients of sum(v · output), one for each examined input; None where there is none."""
        pairs = [(o, v) for o, v in zip(run.outputs, vs, strict=True) if v is not None]
        pairs = [(o, v) for o, v in pairs if o.requires_grad]
        leaves = [leaf for leaf in run.leaves if leaf.requires_grad]
        if not pairs or not leaves:
            return [None] * len(run.leaves)
        reseed(seed)
        with phase("backward"):
            grads = torch.autograd.grad(
                [o for o, _ in pairs], leaves, [v for _, v in pairs],
                allow_unused=True, retain_graph=retain or create, create_graph=create,
            )  # fmt: skip
        grads = iter(g.to_dense() if g is not None and g.is_sparse else g for g in grads)
        return [next(grads) if leaf.requires_grad else None for leaf in run.leaves]

    def gradients(self, values, vs):
        return self.backward(self.run(values), vs)
