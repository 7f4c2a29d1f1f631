"""The trial of the second derivative: is the gradient differentiated rightly, or openly not?"""

import functools
import re

import torch

from ..function.calls import Call, heard_by
from ..function.private import is_a_users
from ..function.subject import graph
from ..function.surroundings import CallError, forgiving, phase
from ..function.tensors import as_vector, shaped
from ..function.watched import Grain
from ..measure.slopes import screen
from ..name.exceptions import told
from ..report import CUT_OFF, error, note, warning
from .examination import Trials, tolerance
from .forward import name_of
from .kept import nodes

trial = Trials()
REFUSED = (
    r"once_differentiable|twice|second[- ](order|derivative)|double[- ]backward"
    r"|derivative for \S+ is not implemented"
)
WRONG = error(
    "double-backward-wrong",
    "The gradient of {x} is right, but its own derivative with respect to {by} is silently wrong."
    "{why}",
    look="{look}",
)
IN_BACKWARD = (
    "what backward takes for a constant: {kept}an intermediate that is kept on ctx, or saved and "
    "not returned; .data, .detach(), no_grad, NumPy"
)
RAISES = "backward raises when it is differentiated"
LEAVES = (
    "backward leaves autograd, so that what is differentiated through the gradient loses it "
    "without a word"
)
MISSING = warning(
    "double-backward-missing",
    "There is no second derivative: {how}.",
    look="NumPy, .data, .detach() and kernels in backward; once_differentiable says so openly",
)
OPENLY_REFUSED = note(
    "double-backward-refused", "Backward refuses to be differentiated, and says so."
)
NOISY = (
    "unfaithful", "gradient-none", "gradient-dtype", "output-dtype", "singular", "input-not-finite",
    "forward-not-finite", "too-coarse",
)  # fmt: skip


@trial(unless=("error", *NOISY))
def second_derivative(exam):
    """Is the derivative of the gradient right, or refused openly?"""
    subject, n = exam.subject, len(exam.subject.values)
    graded = [k for k, o in enumerate(exam.run.outputs) if o.requires_grad]

    def gradients(values, create=False):
        """The gradients at values[:n] for grad_outputs values[n:], and what they depend on."""
        run, vs = subject.run(values[:n]), [None] * len(exam.vs)
        leaves = [v.detach().clone().requires_grad_(create) for v in values[n:]]
        for k, leaf in zip(graded, leaves, strict=True):
            vs[k] = leaf
        return subject.backward(run, vs, create=create), run.leaves + leaves, run

    def forward(values):
        grads, *_ = gradients(values)
        return [as_vector(grads[i]) for i in which]

    def vjp(ws):
        grads, leaves, run = gradients(values, create=True)
        pairs = [(grads[which[o]], w) for o, w in ws.items() if grads[which[o]].requires_grad]
        if not pairs:
            return [None] * len(leaves)
        outputs, ws = zip(*[(grad, shaped(w, grad)) for grad, w in pairs], strict=True)
        with phase("double backward"):
            return subject.again(
                run, lambda: torch.autograd.grad(outputs, leaves, ws, allow_unused=True)
            )

    if any(torch.finfo(o.dtype).eps > 100 * subject.eps for o in exam.run.outputs):
        return  # in coarser numbers than those of the differences
    values = [*subject.values, *(exam.vs[k] for k in graded)]
    try:
        with Grain(values) as watch:
            grads, *_ = gradients(values, create=True)
        which = [i for i, grad in enumerate(grads) if grad is not None]
        if not any(grads[i].requires_grad for i in which):
            if any(grads[i].any() for i in which):
                yield MISSING(how=LEAVES)
            return
        # once_differentiable leaves a node that raises, but to which no input is connected.
        if any(name_of(node).endswith("::Error") for node in graph([grads[i] for i in which])):
            yield OPENLY_REFUSED()
            return
        eps = max([subject.eps, *filter(None, watch.of([grads[i] for i in which]))])
        limit = 10 * tolerance(eps)
        symmetric = exam.has("one-triangle", "symmetric-only")
        judge = functools.partial(screen, forward, vjp, values, exam.dice, floor=1e-9)
        try:
            verdicts, *_ = judge(eps, limit, symmetric=symmetric)
        except CallError:  # where nothing but what is symmetric is taken
            symmetric = True
            verdicts, *_ = judge(eps, limit, symmetric=symmetric)
    except CallError as raised:
        by_will = isinstance(raised.error, NotImplementedError)
        refused = by_will or re.search(REFUSED, str(raised.error))
        yield told(subject, raised, OPENLY_REFUSED if refused else MISSING, how=RAISES)
        return
    names = [f"`{name}`" for name in subject.inputs] + ["grad_output"] * len(graded)
    pairs = [(which[o], names[j]) for (j, o), verdict in verdicts.items() if verdict == "wrong"]

    def is_right():
        return "wrong" not in judge(eps, limit, symmetric=symmetric)[0].values()

    words = reason(exam, is_right) if pairs else {}
    for i, by in pairs:
        yield WRONG(subject.inputs[i], by=by, **words)


def reason(exam, is_right):
    """Words for why a second derivative is wrong: a cut, another Function, or what is kept.

    is_right(): is it right now? An error is only what somebody has written a backward for.
    """
    own = {node._forward_cls for node in nodes(exam)}
    severity = None if any(map(is_a_users, own)) else "note" if own else "warning"
    words = {"severity": severity, "why": "", "look": CUT_OFF}
    if exam.line and (change := exam.line.uncut_if(exam.subject, is_right)):
        return words | {"look": ""} | change
    calls = []
    with heard_by(lambda cls, args: calls.append(Call.of(cls, args, {}, 0))), forgiving():
        run = exam.subject.run(exam.subject.values)
        calls.clear()
        exam.subject.backward(run, [v.clone().requires_grad_() for v in exam.vs], create=True)
    for call in calls:
        fn, args, kwargs = call.again()
        for f in type(exam)(fn, args, kwargs, True, lines=exam.lines).report(exam.trials).findings:
            if f.severity == "error":
                why = f" In `{call.cls.__name__}`, which backward applies: {f.message}"
                return words | {"why": why, "look": f.remedy, "change": f.change, "place": f.place}
    kept = [f"`{f.message.split('`')[1]}`, " for f in exam.findings if f.code == "tensor-on-ctx"]
    return words | {"look": IN_BACKWARD.format(kept="".join(kept))} if own else words
