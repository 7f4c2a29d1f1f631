"""The function under examination: its calls, with other values and other arguments."""

import collections
import contextlib
import copy
import dataclasses
import functools
import inspect

import torch
from torch.autograd import Function

from .budget import calls_a_second
from .isolation import CallError, empty_is_nan, forgiving, phase, reseed
from .private import (
    BackwardCFunction,
    has_numbers,
    methods,
    on_ctx,
    self_test,
    takes_ctx,
    transforming,
)
from .source import closure, only_compute
from .tensors import (
    as_vector,
    attributes_of,
    carry,
    differentiable,
    equal,
    has_gradient,
    has_memory,
    is_dense,
    is_number,
    mapped,
    normalized_as,
    tensors,
    without_grads,
)

SLOW = 50  # calls a second, or fewer
LARGER = 20_000  # elements, of what is doubled
SIZES = 4  # that are changed, at most


# --- one forward pass, and its graph --------------------------------------------------


@dataclasses.dataclass
class Run:
    """One forward pass: differentiable outputs, and what went into it."""

    names: list
    outputs: list
    leaves: list  # one for each examined input
    passed: list  # what the function received instead of each tensor
    saved: list
    stale: bool  # was something saved changed before forward returned?
    returned: list  # pairs (name, tensor) of all outputs, also without a gradient
    state: list  # of the module, as forward has left it
    sums: list  # `Sums` of each leaf as it was passed
    freed: bool = False  # has backward freed the memory of what was saved?
    added: bool = False  # is that the gradient, or a part of it?

    @functools.cached_property
    def outside(self):
        """Other tensors to whose `.grad` backward adds, such as a closure's."""
        own = {id(leaf) for leaf in self.leaves}
        ends = [n for n in graph(self.outputs) if type(n).__name__ == "AccumulateGrad"]
        return [node.variable for node in ends if id(node.variable) not in own]

    def grads(self, outputs, vs, **options):
        """What backward leaves in the leaves' `.grad`; that of other tensors stays.

        This is not torch.autograd.grad, which some Functions refuse, and which misses
        what they add.
        """
        with without_grads((*self.leaves, *self.outside)):
            torch.autograd.backward(outputs, vs, **options)
            return [leaf.grad for leaf in self.leaves]


class Sums:
    """The attributes of a tensor to which backward may add its gradient.

    before: {name: (attribute, its value before backward)}, of `grad` and others
    main:   the name of the one that takes all of the gradient, as `main_grad` does; or
            None
    """

    def __init__(self, tensor, main):
        self.tensor, self.main, self.before = tensor, main, {}
        held = {"grad": tensor.grad} | vars(tensor) if tensor.requires_grad else {}
        for name, value in {} if tensor.retains_grad else held.items():
            if value is None:
                self.before[name] = None, None
            elif is_number(value) and value.shape == tensor.shape:
                copy = torch.zeros_like(value) if name == main else value.clone()
                self.before[name] = value, copy

    def put_back(self):
        """Give the attributes the values that they have before backward."""
        for name, (attribute, value) in self.before.items():
            if attribute is None:
                setattr(self.tensor, name, None)
            elif getattr(self.tensor, name, None) is not attribute or not equal(
                attribute, value
            ):
                setattr(self.tensor, name, attribute.copy_(value))

    def changes(self):
        """{name: by how much} of the attributes that backward has changed."""
        found = {}
        for name, (_attribute, value) in self.before.items():
            now = getattr(self.tensor, name, value)  # backward may delete it
            if is_number(now) and now.shape == self.tensor.shape:
                if value is None or not equal(now, value):
                    found[name] = now if value is None else now - value
        return found

    def gradient(self, returned):
        """What backward has left in `main`, or returned and added to `.grad`."""
        changed = self.changes()
        if self.main:
            return changed.get(self.main)
        parts = [g for g in (returned, changed.get("grad")) if g is not None]
        return sum(parts[1:], parts[0]) if parts else None


def noted(tensors):
    """[(tensor, version, copy)], by which `changed` knows whether one has changed."""
    return [(t, t._version, t.detach().clone()) for t in tensors]


def changed(noted):
    """Those of which the memory is still there, and another number in it."""
    return [
        t
        for t, version, copy in noted
        if has_memory(t) and (t._version != version or not equal(t, copy))
    ]


def parameters_held(fn, arguments, slots):
    """{number of the slot: (name, parameter)} of what a module beside it holds, too.

    Such a module computes with its parameters, not with copies of them.
    """
    around = {}
    if inspect.isfunction(fn):
        names = fn.__globals__.keys() & set(fn.__code__.co_names)
        around = {name: fn.__globals__[name] for name in names} | closure(fn)
    owners = {
        id(parameter): name
        for name, module in {**around, **arguments}.items()
        if isinstance(module, torch.nn.Module)
        for parameter in module.parameters()
    }
    numbered = enumerate(t for _name, t in slots)
    return {k: (owners[id(t)], t) for k, t in numbered if id(t) in owners}


def argument_names(fn, count):
    """The names of the first `count` positional arguments, without ctx.

    A name is `x`, `args[0]`, or `input 0`. fn: a function, or what has a `forward`
    """
    try:
        target = getattr(fn, "forward", fn)
        parameters = [*inspect.signature(target).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    if isinstance(fn, type(Function)) and takes_ctx(fn):
        parameters = parameters[1:]
    names = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD][:count]
    rest = [f"{p.name}[{{}}]" for p in parameters if p.kind == p.VAR_POSITIONAL]
    template = [*rest, "input {}"][0]
    return names + [template.format(k) for k in range(count - len(names))]


def graph(outputs, known=()):
    """All nodes that the tensors lead to but for these, in a fixed order."""
    queue, seen = [t.grad_fn for t in outputs], {}
    while queue:
        node = queue.pop()
        if node is not None and node not in seen and node not in known:
            seen[node] = True
            queue += [following for following, _ in node.next_functions]
    return list(seen)


def nodes_in_python(outputs):
    """Those that belong to Functions written in Python."""
    return [node for node in graph(outputs) if isinstance(node, BackwardCFunction)]


def name_of(node):
    """The name of a node of the graph, even where the user has set ctx.name."""
    return type(node).name(node)


@contextlib.contextmanager
def own_grads():
    """For a while, each backward receives its own copy of grad_output.

    Yields a list, to which those are added into which it writes.
    """
    written = []

    def way(method, cls, ctx, *grads):
        own = [None if grad is None else grad.clone() for grad in grads]
        result = method(ctx, *own)
        written.extend(grad for grad in own if grad is not None and grad._version)
        return result

    with methods("backward", way):
        yield written


# --- the function ---------------------------------------------------------------------


class Scope(torch.nn.Module):
    """A module around another, whose state is replaced for as long as `do` runs."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, do):
        return do()


class Subject:
    """The examined function; `but` and `with_…` return another one.

    fn, cls, scope: a copy of what was given; the Function, if it is one; around the
        module
    arguments: {name: what was given}; split: how many of them are positional
    names, original, tensors: of all tensors in these, and of the module's state: as
              given, and in the dtype of the examination
    examined: which of them are differentiated, by number
    shared_parameters: {number: (name, parameter)} of what the module of this name
              holds, too: with it, not with a copy, the function computes
    frozen:   which could be, but were given as constants beside others that require a
              gradient
    leaves:   the names of the leaves that required a gradient when they were given
    state:    the names of a module's parameters and buffers
    lower:    the dtype that was given, if it is below float64, and float64 is examined
              instead
    inner_eps: that of coarser numbers inside forward; saved_eps: of what is saved in
              fewer bits than were given; or 0
    reference: what computes the same, whose derivative is believed; or None
    only_phase: what all that it raises is said to come from, if it is the reference
    lay:      how a tensor is handed over
    records:  does it compute something else where nothing is recorded?
    protects: does backward change what it is handed?
    sums_in:  {number of a tensor: the `main` of its `Sums`}
    counts:   of calls, which all that are made of it share
    """

    only_phase = None

    def __init__(self, fn, args, kwargs, reference):
        self.reference, self.sums_in, self.counts = reference, {}, collections.Counter()
        self.lay, self.records, self.protects = torch.clone, False, False
        fn, args, kwargs = unfolded(fn, args, kwargs)
        owner = getattr(fn, "__self__", None)
        self.cls = owner if isinstance(owner, type(Function)) else None
        if self.cls:
            self_test()
        self.label = getattr(self.cls or fn, "__name__", type(fn).__name__)
        module = owner if isinstance(owner, torch.nn.Module) else fn
        self.is_module, state = isinstance(module, torch.nn.Module), []
        attributes = []  # which no copy of a module has
        if self.is_module:
            given = [*module.named_parameters(), *module.named_buffers()]
            attributes = [attributes_of(t) for _name, t in given]
            with contextlib.suppress(Exception):  # what cannot be copied is used itself
                module = copy.deepcopy(module)
            fn = module if owner is None else getattr(module, fn.__name__)
            self.scope = Scope(module)
            state = [*module.named_parameters(), *module.named_buffers()]
        self.fn, self.split = fn, len(args)
        names = argument_names(self.cls or fn, len(args))
        self.arguments = dict(zip(names, args, strict=True)) | kwargs
        slots = [
            slot
            for name, value in self.arguments.items()
            for slot in tensors(value, name)
        ]
        self.shared_parameters = parameters_held(fn, self.arguments, slots)
        free = {
            k: t for k, (_, t) in enumerate(slots) if k not in self.shared_parameters
        }
        chosen = any(t.requires_grad for t in free.values())
        moving = [k for k, t in free.items() if differentiable(t)]
        examined = [k for k in moving if free[k].requires_grad or not chosen]
        self.frozen = [k for k in moving if k not in examined]
        self.state = [name for name, _t in state]
        examined += [k for k, (_, t) in enumerate(state, len(slots)) if t.requires_grad]
        # To these, as to a parameter's `main_grad`, backward may add.
        self.attributes = [attributes_of(t) for _name, t in slots] + attributes
        slots += state
        self.names = [name for name, _t in slots]
        self.leaves = {name for name, t in slots if t.requires_grad and t.is_leaf}
        self.original = [t.detach() for _name, t in slots]
        self.tensors, self.examined = self.original, examined
        self.inner_eps = self.saved_eps = 0.0
        dtypes = (v.dtype.to_real() for v in self.values)
        self.lower = next((d for d in dtypes if torch.finfo(d).eps > 1e-10), None)

    # --- others like it ---------------------------------------------------------------

    def but(self, **changes):
        """The same, but for these attributes."""
        other, cls = object.__new__(type(self)), type(self)
        for name, value in vars(self).items():
            if not isinstance(getattr(cls, name, None), functools.cached_property):
                setattr(other, name, value)
        for name, value in changes.items():
            setattr(other, name, value)
        return other

    def with_inputs(self, examined):
        """It, differentiated with respect to the tensors of these numbers."""
        return self.but(examined=examined)

    def with_dtype(self, dtype):
        """It, in `dtype` and the complex type that belongs to it; None: as given."""
        tensors = self.original
        if dtype:
            wide = dtype.to_complex()
            tensors = [
                t.to(wide if t.is_complex() else dtype) if is_number(t) else t
                for t in tensors
            ]
        return self.but(tensors=tensors)

    @functools.cached_property
    def referred(self):
        """The reference, called and differentiated in the same way."""
        return self.but(fn=self.reference, sums_in={}, only_phase="reference")

    # --- what is known of it ----------------------------------------------------------

    @functools.cached_property
    def inputs(self):
        """The names of what is differentiated."""
        return [self.names[k] for k in self.examined]

    @functools.cached_property
    def values(self):
        """The tensors that are differentiated."""
        return [self.tensors[k] for k in self.examined]

    @functools.cached_property
    def eps(self):
        """That of the values, or inside forward."""
        return max(eps_of(self.values), self.inner_eps)

    @property
    def tolerance(self):
        """How far off differences, and what is saved coarsely, may be."""
        return max(tolerance(self.eps), 10 * self.saved_eps)

    calls_a_second = functools.cached_property(calls_a_second)

    @property
    def is_slow(self):
        """Does one call take so long that only the most necessary ones are made?"""
        return self.calls_a_second < SLOW

    @functools.cached_property
    def numbers(self):
        """{in words: value} of the numbers given, and of floats in modules and ctx."""
        held = [("", self.arguments)]
        for name, module in self.scope.module.named_modules() if self.is_module else ():
            held.append((f"{name}." if name else "", vars(module)))
        nodes = nodes_in_python(self.run().outputs)
        held += [("ctx.", vars(node)) for node in nodes]
        found = {}
        for owner, values in held:
            for name, n in values.items():
                if type(n) is float or type(n) is int and not owner:
                    found.setdefault(n, f"`{owner}{name}`")
        return {a: n for n, a in found.items() if 1e-99 < abs(n) < 1e99 and abs(n) != 1}

    @functools.cached_property
    def functions(self):
        """The Functions written in Python that it applies."""
        nodes = nodes_in_python(self.run().outputs)
        return list(dict.fromkeys(node._forward_cls for node in nodes))

    # --- its calls --------------------------------------------------------------------

    def phase(self, name):
        return phase(self.only_phase or name)

    def call(self, tensors):
        """(what the function returns, the state it leaves)."""
        self.counts["calls"] += 1
        supply = iter(tensors)
        values = mapped(self.arguments, "", lambda *_slot: next(supply))
        args = [values.pop(name) for name in [*values][: self.split]]
        return self.within(list(supply), lambda: self.fn(*args, **values))

    def outputs(self, given):
        """The outputs that can have a gradient, for copies of these tensors."""
        reseed(0)
        result, _state = self.call([t.clone() for t in given])
        return [t for _name, t in tensors(result) if has_gradient(t)]

    def within(self, state, do):
        """(do() with these tensors as the module's state, the state it leaves)."""
        if not self.is_module:
            return do(), []
        state = {f"module.{name}": t for name, t in zip(self.state, state, strict=True)}
        result = torch.func.functional_call(self.scope, state, (do,))
        # functional_call puts here what the module put there.
        return result, list(state.values())

    def run(self, values=None, needs=True, seed=0):
        """One forward pass, with its own values or these.

        needs: whether each examined input requires a gradient
        """
        values = self.values if values is None else values
        needs = [needs] * len(values) if isinstance(needs, bool) else needs
        leaves = [
            v.detach().clone().requires_grad_() if need else v.detach()
            for v, need in zip(values, needs, strict=True)
        ]
        given = [*self.tensors]
        for k, leaf in zip(self.examined, leaves, strict=True):
            given[k] = leaf
        # Clones, not leaves: a function may rightly change its input in place.
        passed = [self.lay(t) if is_dense(t) else t.clone() for t in given]
        for one, held in zip(passed, self.attributes, strict=True):
            carry(one, held)
        for k, (_owner, parameter) in self.shared_parameters.items():
            passed[k] = parameter
        saved = []

        def saves(method, ctx, *tensors):
            given = [] if transforming() else filter(torch.is_tensor, tensors)
            saved.extend(noted(filter(has_numbers, given)))  # or it is traced
            return method(ctx, *tensors)

        reseed(seed)
        watch = on_ctx("save_for_backward", saves)
        with self.phase("forward"), watch if any(needs) else contextlib.nullcontext():
            result, left = self.call(passed)
        everything = tensors(result, "output")
        found = [(name, t) for name, t in everything if has_gradient(t)]
        names = [
            "the output" if name == "output" else f"`{name}`" for name, _t in found
        ]
        return Run(
            names,
            [t for _name, t in found],
            leaves,
            passed,
            [t for t, *_before in saved],
            bool(changed(saved)),
            everything,
            left,
            [Sums(passed[k], self.sums_in.get(k)) for k in self.examined],
        )

    def forward(self, values=None):
        """The outputs as vectors of float64."""
        return [as_vector(t) for t in self.run(values, needs=self.records).outputs]

    def backward(self, run, vs, retain=False, create=False, seed=1):
        """Gradients of sum(v · output), one for each examined input, or None."""
        pairs = zip(run.outputs, vs, strict=True)
        pairs = [(o, v) for o, v in pairs if v is not None and o.requires_grad]
        if not pairs or not any(leaf.requires_grad for leaf in run.leaves):
            return [None] * len(run.leaves)
        if run.freed:  # reading it would crash Python
            raise CallError(
                "backward", RuntimeError("backward has freed what forward saved")
            )
        outputs, vs = zip(*pairs, strict=True)
        copies = [o.detach().clone() for o in outputs]
        for sums in run.sums:
            sums.put_back()
        held = [t for t in run.saved if has_memory(t)]
        options = {"retain_graph": retain or create, "create_graph": create}
        reseed(seed)
        with (
            self.phase("backward"),
            own_grads() if self.protects else contextlib.nullcontext(),
        ):
            grads, _state = self.within(
                run.state, lambda: run.grads(outputs, vs, **options)
            )
        for o, copy_of_o in zip(outputs, copies, strict=True):
            if not has_memory(o):
                o.data = copy_of_o
        run.freed = not all(map(has_memory, held))
        if not create:
            pairs = zip(run.sums, grads, strict=True)
            full = [sums.gradient(returned) for sums, returned in pairs]
            run.added |= any(a is not b for a, b in zip(grads, full, strict=True))
            grads = full
        return [g.to_dense() if g is not None and g.is_sparse else g for g in grads]

    def with_sums(self):
        """It, with the attributes that take a gradient, as `main_grad` does.

        For an optimizer that reads them, backward returns None, zeros, or what is not
        filled.
        """
        found = {}
        held = [v for k in self.examined for v in self.attributes[k].items()]
        if not any(v is None or is_number(v) for name, v in held if name != "grad"):
            return self
        with contextlib.suppress(CallError), empty_is_nan():
            run = self.run()
            grads = self.for_ones(run)
            for k, g, sums in zip(self.examined, grads, run.sums, strict=True):
                if g is None or not g.any() or g.isnan().all():
                    if names := sums.changes().keys() - {"grad"}:
                        found[k] = min(names)
        return self.but(sums_in=found)

    def gradients(self, vs, values=None, create=False):
        return self.backward(self.run(values), vs, create=create)

    def for_ones(self, run=None):
        """The gradients where each grad_output is ones."""
        run = run or self.run()
        return self.backward(run, [torch.ones_like(o) for o in run.outputs])


def eps_of(values):
    """That of the coarsest."""
    return max((torch.finfo(v.dtype).eps for v in values), default=0.0)


def tolerance(eps):
    """How far off differences may be, as a part of a gradient, at this eps."""
    return 1e-5 if eps < 1e-10 else 5e-3 if eps < 1e-5 else 3e-2


def unfolded(fn, args, kwargs):
    """The same call without partials, and without a Function that is not applied."""
    while isinstance(fn, functools.partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    return fn.apply if isinstance(fn, type(Function)) else fn, args, kwargs


# --- the same with other arguments ----------------------------------------------------


def with_other_arguments(subject):
    """Yields the subject with another value of each number that it was given.

    Whole numbers change only where the code does nothing but compute.
    """
    for name, value in subject.arguments.items():
        is_int = type(value) is int and only_compute(subject.functions)
        if is_int or type(value) is float:
            new = value + 1 if is_int else 0.8 * value
            yield subject.but(arguments=subject.arguments | {name: new})


def of_sizes(subject, few, places=None):
    """Yields the subject with some elements of each tensor, if forward takes them.

    few: {size: another size}, everywhere or in these places (tensor, dimension) alone.
         What the inputs share stays: of equal halves, both change.
    The state of a module stays as it is.
    """
    own = without_state(subject)
    chosen = {n: indices(own, n, m) for n, m in few.items()}
    with forgiving():
        for k, t in enumerate(own):
            here = [d for d in range(t.dim()) if places is None or (k, d) in places]
            if not is_dense(t) or not here:
                continue
            cut = t
            for d in (d for d in here if t.shape[d] in few):
                cut = cut.index_select(d, chosen[t.shape[d]].to(t.device))
            ends = [n for n in few if is_index(t) and (t < n).all()]
            if ends and few[min(ends)] < min(ends):  # perhaps into what is smaller now
                cut = cut % few[min(ends)]
            own[k] = cut if is_index(t) else normalized_as(t, cut)
        own = [t.contiguous() for t in own] + subject.tensors[len(own) :]
        other = subject.but(tensors=own)
        if all(y.numel() and y.isfinite().all() for y in other.forward()):
            yield other


def without_state(subject):
    """Its tensors, but for those of a module's own."""
    return subject.tensors[: len(subject.tensors) - len(subject.state)]


def indices(tensors, n, m):
    """Which m of n indices: the first, of each half if the halves of one are equal."""
    index = torch.arange(m) % n
    if n % 2 == m % 2 == 0:
        for t in filter(is_dense, tensors):
            for d in [d for d in range(t.dim()) if t.shape[d] == n]:
                if torch.equal(*t.chunk(2, d)) and t.any():
                    first = torch.arange(m // 2) % (n // 2)
                    return torch.cat([first, first + n // 2])
    return index


def resized(subject):
    """Yields the subject for inputs of other sizes.

    They have about half as many rows, or columns, of a few sizes; then twice as many.
    An even size stays even, as forward may need pairs.
    """
    # What is pointed at stays, for of a permutation the rest would be none.
    least = max(pointed_at(subject), default=2)
    sizes = dict.fromkeys(n for t in subject.values for n in sorted(t.shape) if n > 1)
    sizes = [*sizes][: 1 if subject.is_slow else SIZES]
    for n in sizes:
        half = max(least, n // 2)
        half += half % 2 if n % 2 == 0 else 0
        yield from of_sizes(subject, {n: half}) if half < n else ()
    pointing = {
        t.shape[d]
        for t in filter(is_index, subject.tensors)
        for d in range(t.dim())
        if (t.sort(d).values.diff(dim=d) != 0).all()  # perhaps a permutation
    }
    for n in sizes:
        if n not in pointing and 2 * n * subject.values[0].numel() < LARGER:
            yield from of_sizes(subject, {n: 2 * n})
    if subject.tensors[0].shape[:1] == (1,):  # a batch of one
        yield from of_sizes(subject, {1: 2}, {(0, 0)})
    for n in sizes:
        for places in equal_by_chance(without_state(subject), n):
            yield from of_sizes(subject, {n: n - 1 if n > 2 else n + 1}, places)


def equal_by_chance(tensors, n):
    """Yields places (tensor, dimension) of this size, apart from which it may be another.

    They are those of one tensor, then those of one dimension.
    """
    places = [
        (k, d) for k, t in enumerate(tensors) for d, m in enumerate(t.shape) if m == n
    ]
    for which in range(2):
        several = dict.fromkeys(place[which] for place in places)
        for one in [*several][:SIZES] if len(several) > 1 else ():
            yield {place for place in places if place[which] == one}


def of_one(subject):
    """Yields the subject for inputs of one row, one column and so on."""
    least = max(pointed_at(subject), default=1)
    sizes = dict.fromkeys(n for t in subject.values for n in t.shape if n > 1)
    for n in [*sizes][:SIZES] if least == 1 and not subject.is_slow else ():
        yield from of_sizes(subject, {n: 1})


def pointed_at(subject):
    """The least size that holds what each tensor of whole numbers points at."""
    return [int(t.max()) + 1 for t in subject.tensors if is_index(t)]


def is_index(t):
    """Is it a tensor of whole numbers, which may point at something?"""
    return not (is_number(t) or t.dtype is torch.bool) and t.numel()
