"""The gradient once more with one thing changed, compared with the first.

To add such a change: a trial that hands what it changed to `Examination.compare`, its
row in the table of `__init__.py`, and a patient.
"""

import ast
import contextlib
import functools
import inspect
import itertools
from dataclasses import replace

import torch

from ..causes.exceptions import as_finding
from ..function.budget import Work
from ..function.isolation import CallError
from ..function.source import Source, UnsuitableError
from ..function.subject import graph, resized, with_other_arguments
from ..function.tensors import Dice, is_number
from ..report import error, warning
from ..words import N_, _

NOT_DETERMINISTIC = error(
    "backward-not-deterministic",
    "The same backward gives another gradient {when}.",
    look="what backward changes, draws or adds to; what forward drew must be saved",
)
STATE_BETWEEN_CALLS = error(
    "state-between-calls",
    "The gradient of {x} is another {when}.",
    look="what is kept outside ctx, and memory never filled, as of torch.empty",
)
LAYOUT = error(
    "grad-output-layout",
    "Backward gives another gradient for a grad_output that is {when}.",
    "code that reads memory directly (.view, data_ptr, kernels), and assertions",
    N_("Backward fails with a grad_output that is {when}."),
    N_("Backward gives no gradient for a grad_output that is {when}."),
)
INPUT_LAYOUT = error(
    "input-layout",
    "{what} is another where the inputs are {when}.",
    look="code that reads memory directly: as_strided, data_ptr, kernels",
)
NONE_NOT_HANDLED = error(
    "none-not-handled",
    "Backward gives another gradient for None than for zeros; None arrives for an "
    "output that is not used, or when what follows passes no gradient on.",
    "set_materialize_grads(False) demands an answer to None",
    N_(
        "Backward fails with None, which arrives for an output that is not used, or when "
        "what follows passes no gradient on."
    ),
    N_(
        "Backward gives no gradient for None, which arrives for an output that is not "
        "used, or when what follows passes no gradient on."
    ),
)
COPY_ASKED = N_(
    "ctx.needs_input_grad, in place of `{code}` (line {line}, in `{function}`): inside "
    "forward, nothing is recorded, so a copy never requires a gradient"
)
ONLY_ONCE = warning(
    "backward-only-once",
    "Backward fails the second time, under retain_graph=True.",
    look="what backward deletes or changes",
)
NOT_ASKED = warning(
    "needs-input-grad-ignored",
    "`ctx.needs_input_grad` is not asked.",
)
SHARED = error(
    "another-user",
    "The gradient of {x} is another where {x} is used elsewhere, too, and what comes "
    "from there arrives first.",
    look="what backward adds to: ctx.input_grad_buffers, .grad",
)
ONLY_ONE = error(
    "needs-input-grad-wrong",
    "Backward gives another gradient for {x} as the only input that requires one.",
    "the use of ctx.needs_input_grad",
    N_("Backward fails with {x} as the only input that requires a gradient."),
    N_("Backward gives no gradient for {x} as the only input that requires one."),
)


# --- once more, and in other calls ----------------------------------------------------


def second_time(exam, seed=1):
    """The same backward, after it has run once, through the same graph."""
    return exam.subject.backward(exam.run, exam.vs, retain=True, seed=seed)


def calls_between(exam):
    """With other inputs, other signs, fewer rows and other arguments."""
    subject, near = exam.subject, exam.nearby()
    run = exam.subject.run()
    few = itertools.islice(resized(subject), FEW)
    for other, values in (
        (subject, near),
        (subject, [-v.flip(tuple(range(v.dim()))) for v in near]),
        *((other, other.values) for other in few),
        *((other, near) for other in with_other_arguments(subject)),
    ):
        with contextlib.suppress(CallError):
            other.run(values, seed=3)
    try:
        return subject.backward(run, exam.vs)
    except CallError:  # with what another call has left
        return [None] * len(subject.values)


REPEATED = (  # text, when, gradients
    (NOT_DETERMINISTIC, N_("the second time"), second_time),
    (
        NOT_DETERMINISTIC,
        N_("for another random state, because it draws random numbers"),
        functools.partial(second_time, seed=2),
    ),
    (
        STATE_BETWEEN_CALLS,
        N_("in a later call with the same inputs"),
        lambda exam: exam.subject.gradients(exam.vs),
    ),
    (
        STATE_BETWEEN_CALLS,
        N_("if forward runs once more, with other inputs, before backward"),
        calls_between,
    ),
)


def repeated(exam):
    """Is the gradient the same once more, and in other calls?"""
    for text, when, changed in REPEATED:
        raising = ONLY_ONCE if text is NOT_DETERMINISTIC else None
        changed = functools.partial(changed, exam)
        for finding in exam.compare(text, changed, raising=raising, when=_(when)):
            random = finding.code == NOT_DETERMINISTIC.code
            if random and not exam.is_faithful(finding.input):
                finding = replace(finding, severity="note")
                these = itertools.filterfalse(exam.is_faithful, exam.subject.inputs)
                exam.not_judged(_("it is another each time"), *these, meant=True)
            yield finding
            return


# --- what backward is handed, and what is wanted of it --------------------------------


def expanded(t):
    return t.new_ones(()).expand(t.shape)


def laid(t, order=list, gap=None, wide=False):
    """The same numbers otherwise in memory.

    order: that of the dimensions, which is its own inverse; gap: one after each index of
    this dimension; wide: as a part of a wider tensor
    """
    if not t.dim():
        return t.clone()
    order = order([*range(t.dim())])
    # A copy, for forward may change it in place.
    there = t.permute(order).clone(memory_format=torch.contiguous_format)
    if gap is not None:
        gap = gap % t.dim() + 1
        there = torch.stack([there, there], gap).select(gap, 0)
    if wide:
        beside, n = torch.zeros_like(there), there.shape[-1]
        there = torch.cat([beside, there, beside], -1).narrow(-1, n, n)
    return there.permute(order)


def reverse(dims):
    return dims[::-1]


def first_swapped(dims):
    return [*dims[1::-1], *dims[2:]]


FEW = 6  # calls with other sizes between two
ODD = {
    N_("not contiguous"): functools.partial(laid, order=reverse, gap=-1),
    N_("a slice of a wider tensor"): functools.partial(laid, wide=True),
    N_("transposed in its first two dimensions"): functools.partial(
        laid, order=first_swapped
    ),
    N_("every second row of a longer tensor"): functools.partial(laid, gap=0),
}
EXPANDED = N_("an expanded view, as `.sum()` makes it")


def layouts(exam):
    """Does backward take whatever grad_output may be?"""
    for when, lay in {EXPANDED: expanded, **ODD}.items():
        vs = [lay(v) for v in exam.vs]
        dense = [v.clone(memory_format=torch.contiguous_format) for v in vs]
        changed = functools.partial(exam.subject.gradients, vs)
        found = exam.compare(
            LAYOUT, changed, exam.subject.gradients(dense), when=_(when)
        )
        if not (yield from found):
            return


def one_row():
    return lambda t: t[:1].expand_as(t) if t.dim() and is_number(t) else t


def one_tensor():
    known = {}
    return lambda t: known.setdefault((t.shape, t.dtype), t) if t.requires_grad else t


SAME = {  # which changes the numbers, too
    N_("an expanded view of one row"): one_row,
    N_("one and the same tensor"): one_tensor,
}


def in_layouts(exam):
    """(when, found, expected, floors) for each layout that it takes."""

    def handed(lay, noise=None):
        """Outputs and gradients; noise: in memory of its own, but for this noise."""
        dice = Dice()

        def laid(t):
            if noise is None or not is_number(t):
                return lay(t.clone())
            return lay(t) * (1 + noise * dice.normal(t))

        other = exam.subject.but(lay=laid)
        run = other.run()
        return [*run.outputs, *other.backward(run, exam.vs)]

    floors = [0.0] * len(exam.run.outputs) + exam.floors
    for when, lay in ODD.items():
        with contextlib.suppress(CallError):
            yield when, handed(lay), [*exam.run.outputs, *exam.first_gradients], floors
    # What is in one memory must not be changed in place, nor added to.
    alone = exam.run.added or exam.has("input-modified", "in-place-leaf")
    alone |= exam.subject.is_module or not exam.has_own_nodes
    for when, make in {} if alone else SAME.items():
        with contextlib.suppress(CallError):
            expected, noisy = (handed(make(), n) for n in (0.0, 1e3 * exam.subject.eps))
            # Where rounding does not decide.
            if all(map(exam.same, noisy, expected, floors)):
                yield when, handed(make()), expected, floors


def input_layouts(exam):
    """The same of inputs, unless it refuses them."""
    subject = exam.subject
    names = [None] * len(exam.run.outputs) + subject.inputs
    for when, *found in () if exam.draws else in_layouts(exam):
        for x, *pair in zip(names, *found, strict=True):
            if not exam.same(*pair):
                of_x = x and _("The gradient of `{x}`", x=x)
                words = {"what": of_x or _("The output"), "when": _(when)}
                yield INPUT_LAYOUT(x, remedy=copy_asked(subject), **words)
                return


def copy_asked(subject):
    """Where forward asks a tensor whether it requires a gradient, in words; or None."""
    for cls in subject.functions:
        with contextlib.suppress(UnsuitableError):
            source = Source(inspect.unwrap(cls.forward))
            for node in source.nodes:
                if isinstance(node, ast.Attribute) and node.attr == "requires_grad":
                    gaps = {"code": ast.unparse(node), "line": source.line(node)}
                    return _(COPY_ASKED, function=source.fn.__name__, **gaps)
    return None


def another_user(exam):
    """Is the gradient the same where another use of each input has come first?"""
    if not exam.has_own_nodes or exam.run.added:
        return
    run = exam.subject.run()
    passed = [sums.tensor for sums in run.sums]
    if any(t._version for t in passed):  # changed in place: it is an output
        return
    others = [1 * t for t in passed]  # made last, so they go back first
    expected = [
        torch.ones_like(v) if grad is None else grad + 1
        for v, grad in zip(exam.subject.values, exam.first_gradients, strict=True)
    ]

    def gradients():
        run.outputs = [*run.outputs, *others]
        return exam.subject.backward(run, [*exam.vs, *map(torch.ones_like, others)])

    yield from exam.compare(SHARED, gradients, expected)


class Nothing(torch.autograd.Function):
    """The identity, through which no gradient flows back.

    The node before it receives None.
    """

    @staticmethod
    def forward(ctx, output):
        return output.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return None


def unused_outputs(exam):
    """None, then each alone is used: the same as if zeros arrived for the others."""
    several = len(exam.vs) > 1 and not exam.has("error")
    alone = [[k] for k in exam.graded if several]
    for used in ([], *alone) if exam.has_own_nodes else ():
        zeros = [v if k in used else torch.zeros_like(v) for k, v in enumerate(exam.vs)]
        changed = functools.partial(with_none, exam, used)
        found = exam.compare(NONE_NOT_HANDLED, changed, exam.subject.gradients(zeros))
        if not (yield from found):
            return


def with_none(exam, used):
    """The gradients where None arrives for all outputs but these."""
    run = exam.subject.run()
    run.outputs = [
        o if k in used else Nothing.apply(o) for k, o in enumerate(run.outputs)
    ]
    return exam.subject.backward(run, exam.vs)


def in_vain(exam, x, returned):
    """Did backward return more than this gradient and steps on the way to it?"""
    steps, nodes, run = (), {}, exam.subject.run()
    with contextlib.suppress(CallError), exam.watched() as (_handed, recorded):
        exam.subject.backward(run, exam.vs, create=True)
        steps = graph([recorded[x]]) if x in recorded else ()
        nodes = {name: t.grad_fn for name, t in recorded.items()}
    return any(nodes.get(name) not in steps for name in returned if name != x)


def with_other_flag(exam, finding):
    """The finding, with the flag that would be right in place of the one asked for."""
    change = exam.line and exam.line.other_flag(exam.subject)
    return replace(finding, **vars(change)) if change else finding


def one_input(exam):
    """Each as the only one to require a gradient: the same gradient, with less work."""
    if len(exam.subject.values) == 1 or not exam.has_own_nodes:
        return
    subject, ignored = exam.subject, []

    def alone(which):
        """(gradients, what backward returned, operations, is a gradient required?)."""
        run = exam.subject.run(needs=which)
        with Work() as work, exam.watched() as (_handed, returned):
            grads = subject.backward(run, exam.vs)
        return grads, returned, work.flops, any(o.requires_grad for o in run.outputs)

    *_rest, total, _graded = alone(True)
    for i, x in enumerate(subject.inputs):
        try:
            grads, returned, spent, graded = alone(
                [j == i for j in range(len(subject.values))]
            )
        except CallError as raised:
            if raised.phase == "backward":  # else forward itself asks for a gradient
                severity = None if subject.cls and not exam.of_a_program else "warning"
                found = as_finding(subject, raised, ONLY_ONE, x, severity=severity)
                yield with_other_flag(exam, found)
            return
        expected = [
            grad if j == i else None for j, grad in enumerate(exam.first_gradients)
        ]
        # Where no output requires one, as of a reentrant checkpoint, PyTorch itself
        # warns.
        severity = None if graded else "warning"
        due = ONLY_ONE, lambda grads=grads: grads, expected, x
        for found in exam.compare(*due, severity=severity):
            yield with_other_flag(exam, found)
            return
        if spent == total > 0 and in_vain(exam, x, returned):
            ignored.append(x)
    if ignored == subject.inputs:
        yield NOT_ASKED()
