"""The function under examination: its calls, with other values."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import re

import torch

from .budget import calls_a_second, tell
from .private import BackwardCFunction, FunctionCtx, methods
from .raised import CallError, phase
from .source import only_compute
from .surroundings import reseed
from .tensors import as_vector, differentiable, has_gradient, has_memory, mapped, tensors

SLOW = 50  # calls a second, or fewer


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


@dataclasses.dataclass
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
    state: list  # of the module, as forward has left it
    freed: bool = False  # has backward freed the memory of what was saved?


class Scope(torch.nn.Module):
    """A module around another, whose state is replaced for as long as `do` runs."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, do):
        return do()


REFUSES_GRAD = r"\.grad\(\)|`?inputs`? (?:parameter|argument)|checkpoint.*valid"


def grads_of(subject, outputs, leaves, vs, retain, create):
    """torch.autograd.grad, of a Function, too, that refuses it or adds to `.grad` by itself."""
    for leaf in leaves:
        leaf.grad = None
    options = {"create_graph": create}
    if not subject.refuses_grad:
        unknown = subject.refuses_grad is None  # it may have freed a part of the graph before
        try:
            grads = torch.autograd.grad(
                outputs, leaves, vs, retain or unknown, allow_unused=True, **options
            )
            subject.refuses_grad = False
        except RuntimeError as refusal:
            if not unknown or not re.search(REFUSES_GRAD, str(refusal)):
                raise
            subject.refuses_grad = True
    if subject.refuses_grad:
        with others_kept(outputs, leaves):
            torch.autograd.backward(outputs, vs, retain, **options)
        grads = [None] * len(leaves)
    added = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    pairs = zip(grads, added, strict=True)
    return [more if grad is None else grad if more is None else grad + more for grad, more in pairs]


@contextlib.contextmanager
def others_kept(outputs, leaves):
    """Afterwards the `.grad` of tensors that a closure holds is what it was."""
    nodes = [node for node in graph(outputs) if hasattr(node, "variable")]
    kept = [
        (n.variable, n.variable.grad) for n in nodes if not any(n.variable is x for x in leaves)
    ]
    for tensor, _ in kept:
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, grad in kept:
            tensor.grad = grad


def graph(outputs):
    """All nodes that the tensors lead to, in a fixed order."""
    queue, seen = [t.grad_fn for t in outputs], {}
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen[node] = True
            queue += [following for following, _ in node.next_functions]
    return list(seen)


class Subject:
    """The examined function, callable with other values for the inputs that are differentiated.

    own: of a module, are only its parameters differentiated, if no input requires a gradient?
    """

    def __init__(self, fn, args, kwargs, own=False):
        while isinstance(fn, functools.partial):
            fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
        if isinstance(fn, type) and issubclass(fn, torch.autograd.Function):
            fn = fn.apply
        owner = getattr(fn, "__self__", None)
        is_function = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
        self.cls = owner if is_function else None
        self.label = (self.cls or (fn if hasattr(fn, "__name__") else type(fn))).__name__
        module = owner if isinstance(owner, torch.nn.Module) else fn
        self.is_module, self.of_state = isinstance(module, torch.nn.Module), {}
        if self.is_module:
            state = [*module.named_parameters(), *module.named_buffers()]
            self.of_state = {name: dict(t._backward_hooks) for name, t in state
                             if t._backward_hooks}  # fmt: skip
            with contextlib.suppress(Exception):  # what cannot be copied is used itself
                module = copy.deepcopy(module)
            fn = module if fn is not owner and owner is None else getattr(module, fn.__name__)
            self.scope = Scope(module)
        self.fn, self.split, self.state, self.left, self.calls = fn, len(args), [], [], 0
        self.records = False  # does it compute something else where nothing is recorded?
        self.recalls = True  # does backward ask for the state of a module?
        self.protects = False  # does backward change what it is handed?
        self.restores = False  # does it free its outputs?
        self.refuses_grad = None  # may it only be asked by `.backward()`? None: who knows?
        self.arguments = dict(zip(self.argument_names(len(args)), args, strict=True)) | kwargs
        slots = [slot for name, value in self.arguments.items() for slot in tensors(value, name)]
        chosen = own and self.is_module or any(t.requires_grad for _, t in slots)
        examined = [differentiable(t) and (t.requires_grad or not chosen) for _, t in slots]
        if self.is_module:
            state = [*module.named_parameters(), *module.named_buffers()]
            if any(torch.nn.parameter.is_lazy(t) for _, t in state):
                raise ValueError("fn has parameters without a shape: call it once before")
            self.state = [name for name, _ in state]
            slots += state
            examined += [t.requires_grad for _, t in state]
        self.names = [name for name, _ in slots]
        self.leaves = {name for name, t in slots if t.requires_grad and t.is_leaf}
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

    def hooks(self):
        """(name, hooks) of its parameters, which no copy of them has, and of all modules."""
        yield from self.of_state.items()
        for name, module in self.scope.module.named_modules() if self.is_module else ():
            for hooks in (module._backward_hooks, module._backward_pre_hooks):
                yield name or self.label, hooks

    calls_a_second = functools.cached_property(calls_a_second)

    @property
    def is_slow(self):
        """Does one call take so long that only the most necessary ones are made?"""
        return self.calls_a_second < SLOW

    @functools.cached_property
    def numbers(self):
        """{in words: value} of the numbers that it was given, and of floats in modules and ctx."""
        held = [("", self.arguments)]
        for name, module in self.scope.module.named_modules() if self.is_module else ():
            held.append((f"{name}." if name else "", vars(module)))
        nodes = graph(self.run(self.values).outputs)
        held += [("ctx.", vars(node)) for node in nodes if isinstance(node, BackwardCFunction)]
        found = {}
        for owner, values in held:
            for name, n in values.items():
                if type(n) in ((float,) if owner else (int, float)) and n not in found.values():
                    found[f"`{owner}{name}`"] = n
        return {a: n for a, n in found.items() if 1e-99 < abs(n) < 1e99 and abs(n) != 1}

    @functools.cached_property
    def only_computes(self):
        """Do the Functions that it applies nothing but compute?"""
        return only_compute(self.applied)

    @functools.cached_property
    def applied(self):
        """The Functions in Python that it applies."""
        nodes = graph(self.run(self.values).outputs)
        return {n._forward_cls for n in nodes if isinstance(n, BackwardCFunction)}

    def use(self, dtype):
        """Work in `dtype` (and the complex type that belongs to it), or as given if None."""
        self.tensors = [
            t.to(dtype.to_complex() if t.is_complex() else dtype)
            if dtype and (t.is_floating_point() or t.is_complex()) else t
            for t in self.original
        ]  # fmt: skip
        self.values = [self.tensors[k] for k in self.examined]
        self.eps = max((torch.finfo(v.dtype).eps for v in self.values), default=0.0)

    def call(self, tensors):
        self.calls += 1
        tell(self)
        supply = iter(tensors)
        values = [mapped(v, "", lambda *_: next(supply)) for v in self.arguments.values()]
        args = tuple(values[: self.split])
        kwargs = dict(zip(list(self.arguments)[self.split :], values[self.split :], strict=True))
        return self.within(list(supply), lambda: self.fn(*args, **kwargs))

    def within(self, state, do):
        """do(), with these tensors as the state of the module, which backward may ask for, too."""
        if not self.is_module:
            return do()
        state = {f"module.{name}": t for name, t in zip(self.state, state, strict=True)}
        result = torch.func.functional_call(self.scope, state, (do,))
        self.left = list(state.values())  # functional_call puts here what the module put there
        return result

    def again(self, run, do):
        """do(), with the state of that run."""
        return self.within(run.state, do) if self.recalls else do()

    def run(self, values, needs=True, seed=0):
        """One forward pass. needs: whether each examined input requires a gradient."""
        needs = [needs] * len(values) if isinstance(needs, bool) else needs
        leaves = [
            v.detach().clone().requires_grad_() if need else v.detach()
            for v, need in zip(values, needs, strict=True)
        ]
        given = dict(enumerate(self.tensors)) | dict(zip(self.examined, leaves, strict=True))
        # Clones, not leaves: a function may rightly change its input in place.
        passed, saved, marked = [t.clone() for t in given.values()], [], []
        for name, t in zip(self.names, passed, strict=True) if self.of_state else ():
            for hook in self.of_state.get(name, {}).values() if t.requires_grad else ():
                t.register_hook(hook)

        def saves(ctx, *tensors):
            saved.extend((t, t._version) for t in tensors if isinstance(t, torch.Tensor))

        def marks(ctx, *tensors):
            marked.extend(tensors)

        reseed(seed)
        with (
            phase("forward"), announced(FunctionCtx, "save_for_backward", saves),
            announced(FunctionCtx, "mark_non_differentiable", marks),
        ):  # fmt: skip
            result = self.call(passed)
        everything = tensors(result, "output")
        others = [t for _, t in everything if not has_gradient(t)]
        found = [(name, t) for name, t in everything if has_gradient(t)]
        names = ["the output" if name == "output" else f"`{name}`" for name, _ in found]
        stale = any(t._version != version for t, version in saved)
        saved = [t for t, _ in saved]
        return Run(
            names, [t for _, t in found], leaves, passed, saved, stale, marked, others, self.left
        )

    def forward(self, values):
        """The outputs as vectors of float64; nothing is noted, for this is what runs most often."""
        if self.records:
            return [as_vector(t) for t in self.run(values).outputs]
        given = self.tensors.copy()
        for k, value in zip(self.examined, values, strict=True):
            given[k] = value
        reseed(0)
        with phase("forward"):
            result = self.call([t.detach().clone() for t in given])
        return [as_vector(t) for _, t in tensors(result) if has_gradient(t)]

    def backward(self, run, vs, retain=False, create=False, seed=1):
        """Gradients of sum(v · output), one for each examined input; None where there is none."""
        pairs = [(o, v) for o, v in zip(run.outputs, vs, strict=True) if v is not None]
        pairs = [(o, v) for o, v in pairs if o.requires_grad]
        leaves = [leaf for leaf in run.leaves if leaf.requires_grad]
        if not pairs or not leaves:
            return [None] * len(run.leaves)
        if run.freed:  # to read it would end Python
            raise CallError("backward", RuntimeError("backward has freed what forward saved"))
        outputs, vs = zip(*pairs, strict=True)
        held = [t for t in run.saved if has_memory(t)]
        kept = [o.detach().clone() for o in outputs] if self.restores else outputs
        reseed(seed)
        with phase("backward"), own_grads() if self.protects else contextlib.nullcontext():
            do = functools.partial(grads_of, self, outputs, leaves, vs, retain or create, create)
            grads = self.again(run, do)
        for o, copy_of_o in zip(outputs, kept, strict=True):
            if o.numel() and not has_memory(o):
                self.restores = True
                o.data = torch.zeros_like(o) if copy_of_o is o else copy_of_o
        run.freed = not all(map(has_memory, held))
        grads = iter(g.to_dense() if g is not None and g.is_sparse else g for g in grads)
        return [next(grads) if leaf.requires_grad else None for leaf in run.leaves]

    def gradients(self, values, vs):
        return self.backward(self.run(values), vs)


def own_grads():
    """For a while, no backward is handed what others are handed, too."""

    def way(method, cls, ctx, *grads):
        return method(ctx, *(None if grad is None else grad.clone() for grad in grads))

    return methods("backward", way)
