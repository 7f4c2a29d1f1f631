"""Trials of backward under other circumstances: what it is handed, and for which inputs."""

import contextlib
import inspect
import re

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..function.budget import Work
from ..function.private import Mode
from ..function.source import computes
from ..function.subject import graph, name_of
from ..function.surroundings import CallError, of_a_signal, phase, reseed
from ..function.tensors import Dice, has_gradient, mapped, tensors
from ..name.exceptions import told
from ..report import error, warning
from .examination import Trials
from .kept import dicts_kept, dicts_of, kept_by
from .reached import functions

trial = Trials()
STATE = ("backward-not-deterministic", "state-between-calls")  # is not to be told apart here


def gradients(exam, vs):
    return exam.subject.gradients(exam.subject.values, vs)


@trial(unless=("error", *STATE))
def reaches_every_line(exam):
    """Watches from here on, for what came before has made the same calls many times."""
    if not exam.of_a_program:
        exam.reached.watch(functions(exam.run.outputs))
    near = [exam.dice.nearby(v) for v in exam.subject.values]
    for values in (exam.subject.values, near, [-v for v in near]) if exam.reached.wait else ():
        with contextlib.suppress(CallError):
            exam.subject.gradients(values, exam.vs)
    yield from ()


GRAD_OUTPUT_LAYOUT = error(
    "grad-output-layout",
    "Backward {fails} a grad_output that is {layout}.",
    look="code that reads memory directly (.view, data_ptr, kernels), and assertions",
)


@trial(unless=STATE)
def layouts_of_grad_output(exam):
    outputs = exam.run.outputs
    ones = [torch.ones_like(o, memory_format=torch.contiguous_format) for o in outputs]
    expected = gradients(exam, ones)
    expanded = [o.new_ones(()).expand(o.shape) for o in outputs]
    # With the dimensions in another order in memory, and gaps, so that no .view is possible.
    back = [tuple(range(v.dim()))[::-1] for v in exam.vs]
    turned = [v.permute(order).contiguous() for v, order in zip(exam.vs, back, strict=True)]
    stepped = [torch.stack([v, v], -1)[..., 0] for v in turned]
    strided = [v.permute(order) for v, order in zip(stepped, back, strict=True)]
    words = {"layout": "an expanded view, as `.sum()` makes it"}
    fine = yield from exam.compare(
        GRAD_OUTPUT_LAYOUT, lambda: gradients(exam, expanded), expected, **words
    )
    if fine:
        words = {"layout": "not contiguous"}
        yield from exam.compare(GRAD_OUTPUT_LAYOUT, lambda: gradients(exam, strided), **words)


NONE_NOT_HANDLED = error(
    "none-not-handled",
    "Backward {fails} None, which arrives for an output that is not used.",
    look="set_materialize_grads(False) demands an answer to None",
)


def has_own_nodes(exam):
    """Is a Function involved, or are all nodes PyTorch's own, which are right in these respects?"""
    names = [name_of(node) for node in graph(exam.run.outputs)]
    return not all(re.search(r"Backward\d+$|AccumulateGrad$|CopySlices$", name) for name in names)


class Nothing(torch.autograd.Function):
    """The identity, through which no gradient flows back: the node before it receives None."""

    @staticmethod
    def forward(ctx, output):
        return output.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return None


@trial(unless=STATE)
def unused_outputs(exam):
    def with_all_used(exam):
        """An edit may not spoil what is right where all outputs are used."""
        yield from of_unused_outputs(exam)
        yield from exam.compare(NONE_NOT_HANDLED, lambda: gradients(exam, exam.vs))

    yield from exam.with_line(of_unused_outputs, "backward", with_all_used)


def of_unused_outputs(exam):
    subject, outputs, n = exam.subject, exam.run.outputs, len(exam.run.outputs)
    if not has_own_nodes(exam):
        return

    def none():
        run = subject.run(subject.values)
        run.outputs = [Nothing.apply(o) for o in run.outputs]
        return [None for _ in subject.backward(run, exam.vs)]

    fine = yield from exam.compare(NONE_NOT_HANDLED, none, [None] * len(subject.values))
    for k in range(n) if fine and n > 1 else ():
        alone = [v if j == k else None for j, v in enumerate(exam.vs)]
        zeros = [v if j == k else torch.zeros_like(v) for j, v in enumerate(exam.vs)]
        if outputs[k].requires_grad:
            expected, wrong = gradients(exam, zeros), exam.has("error")

            def found(vs=alone, expected=expected, wrong=wrong):
                grads = gradients(exam, vs)
                return expected if wrong else grads  # may be right, beside what is wrong for zeros

            yield from exam.compare(NONE_NOT_HANDLED, found, expected)


NEEDS_INPUT_GRAD_WRONG = error(
    "needs-input-grad-wrong",
    "Backward {fails} {x} as the only input that requires a gradient.",
    look="the use of ctx.needs_input_grad",
)
NEEDS_INPUT_GRAD_IGNORED = warning(
    "needs-input-grad-ignored",
    "When only {x} requires a gradient, backward still computes that of {others}.",
    look="ctx.needs_input_grad",
)


class Used(Mode):
    """Notes of which tensors something is computed."""

    def __init__(self):
        super().__init__()
        self.keys = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.keys.update(key(t) for t in args if isinstance(t, torch.Tensor))
        return func(*args, **(kwargs or {}))


def key(tensor):
    return StorageWeakRef(tensor.untyped_storage())


@trial(unless=(*STATE, "swapped"))
def only_one_input(exam):
    def with_all_wanted(exam):
        """An edit may not spoil what is right where all gradients are wanted."""
        yield from (f for f in of_only_one_input(exam) if f.severity == "error")
        yield from exam.compare(NEEDS_INPUT_GRAD_WRONG, lambda: gradients(exam, exam.vs))

    yield from exam.with_line(of_only_one_input, "backward", with_all_wanted)


def of_only_one_input(exam):
    subject, n = exam.subject, len(exam.subject.values)
    if n < 2 or not has_own_nodes(exam):
        return

    def counted(needs):
        """Gradients, those returned that no other was made of, and the number of operations."""
        run = subject.run(subject.values, needs)
        with Work() as work, Used() as used, exam.watched() as (_, returned):
            grads = subject.backward(run, exam.vs)
        returned = {x: g for x, g in returned.items() if key(g) not in used.keys}
        # Where no output requires a gradient, as of a reentrant checkpoint, PyTorch itself warns.
        severity = None if any(o.requires_grad for o in run.outputs) else "warning"
        return grads, returned, work.flops, severity

    total, said = counted(True)[2], False
    for i, name in enumerate(subject.inputs):
        try:
            grads, returned, spent, severity = counted([j == i for j in range(n)])
        except CallError as raised:
            if raised.phase == "backward":  # else forward itself asks for a gradient
                severity = None if subject.cls and not exam.of_a_program else "warning"
                yield told(subject, raised, NEEDS_INPUT_GRAD_WRONG, name, severity=severity)
            return
        expected = [grad if j == i else None for j, grad in enumerate(exam.first.grads)]
        text, found = NEEDS_INPUT_GRAD_WRONG, lambda grads=grads: grads
        if not (yield from exam.compare(text, found, expected, name, severity=severity)):
            return
        vain = [x for x in returned if x != name]
        if vain and spent == total > 0 and not said:
            said = True
            seen = {f"operations for `{name}` alone": spent, "for all inputs": total}
            others = " and ".join(f"`{x}`" for x in vain)
            yield NEEDS_INPUT_GRAD_IGNORED(name, seen=seen, others=others)


STALE = error(
    "stale",
    "Forward does not notice that its inputs were changed in place, as an optimiser does: its "
    "output is another for copies of them.",
    look="caches whose key is id() or data_ptr(), or what is made in the first call and kept",
)
CACHED = error(  # a warning where the module does not train, as what is merged for inference
    "parameter-cached",
    "{x} gets {what} without what an earlier call has kept, the output follows it{how}.",
    look="caches: what forward makes of {x} once, and keeps{where}",
)


@trial(unless=("error", "coarse-inside", "input-freed", *STATE))
def changes_in_place_are_noticed(exam):
    subject = exam.subject
    if subject.records:  # it asks for a graph, which what is changed does not have
        return
    near = [Dice().nearby(v) for v in subject.values]
    before, after = subject.tensors, list(subject.tensors)
    for k, value in zip(subject.examined, near, strict=True):
        after[k] = value
    given = [t.clone() for t in before]
    with contextlib.suppress(CallError), phase("forward"):
        for news in (before, after):
            for t, new in zip(given, news, strict=True):
                t.copy_(new)
            reseed(0)
            made = [t for _, t in tensors(subject.call(given)) if has_gradient(t)]
        if not all(map(exam.same, made, subject.forward(near))):
            yield STALE()


GRAPH_KEPT = error(
    "graph-kept",
    "After a backward pass, that of the next call fails: the module keeps a tensor with the graph "
    "of the call before.",
    look="what forward keeps on self for the next call: .detach() it",
)


@trial(unless=("error", *STATE))
def calls_follow_each_other(exam):
    """As a training step does, with the module's own parameters and buffers."""
    subject, module = exam.subject, exam.subject.fn
    if not subject.is_module or module is not subject.scope.module or subject.is_slow:
        return
    if module is exam.given[0]:  # it could not be copied
        return
    try:
        for _ in range(2):
            given = [mapped(v, "", lambda _, t: t.detach().clone())
                     for v in subject.arguments.values()]  # fmt: skip
            names = list(subject.arguments)[subject.split :]
            made = module(*given[: subject.split],
                          **dict(zip(names, given[subject.split :], strict=True)))  # fmt: skip
            outputs = [t for _, t in tensors(made) if has_gradient(t) and t.requires_grad]
            torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    except Exception as raised:
        if of_a_signal(raised):
            raise
        if "through the graph a second time" in str(raised):
            yield GRAPH_KEPT()


@trial()
def nothing_is_kept_of_parameters(exam):
    """Is what forward makes of a parameter made again once that has changed?"""
    subject = exam.subject
    where = kept_by(exam) if subject.is_module else ""
    partly = where and not exam.has("error", *STATE)
    for i, (x, grad) in enumerate(zip(subject.inputs, exam.first.grads, strict=True)):
        values = [*subject.values[:i], Dice().nearby(subject.values[i]), *subject.values[i + 1 :]]
        words = {"what": "no gradient, but", "how": ""}
        if grad is not None:
            words = {"what": "only a part of its gradient:", "how": " in another way"}
        if subject.is_module and (grad is None or partly and x in subject.state):
            with contextlib.suppress(CallError):
                subject.forward(subject.values)  # it keeps what it has made, of this dtype
                anew = exam.before_calls().forward(values)
                if not all(map(exam.same, anew, subject.forward(values))):
                    severity = None if subject.scope.module.training else "warning"
                    yield CACHED(x, severity=severity, where=where, **words)
        elif grad is None and inspect.isfunction(subject.fn) and computes(subject.fn, caches=True):
            caches = dicts_of([subject.fn])
            with contextlib.suppress(CallError), dicts_kept(caches.values()):
                after = subject.forward(values)
                for cache in caches.values():
                    cache.clear()
                if not all(map(exam.same, after, subject.forward(values))):
                    yield CACHED(x, where=f": {', '.join(caches)}", **words)
