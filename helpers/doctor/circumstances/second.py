"""The trial of the second derivative."""

import functools
import re

import torch

from ..function.calls import Call, heard_by
from ..function.frames import is_float, variables_of
from ..function.grain import Grain
from ..function.private import BackwardCFunction
from ..function.raised import CallError, forgiving, phase
from ..function.saved import saving
from ..function.subject import graph
from ..function.tensors import as_vector, shaped
from ..measure.screen import screen
from ..name.exceptions import told
from ..report import CUT_OFF, error, note, warning
from .examination import Trials, tolerance
from .forward import nodes

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
IN_BACKWARD = "what backward takes for a constant: {kept}.data, .detach(), no_grad, NumPy"
KEPT = "an intermediate kept on ctx, or saved and not returned; "
NOT_FINITE = error(
    "double-backward-not-finite",
    "The gradient of {x} is right, but its own derivative with respect to {by} is nan or inf, "
    "where it should be finite.",
    look="sqrt, division and norms in backward, whose derivatives are infinite at 0",
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
NOISY = ("gradient-dtype", "output-dtype", "singular", "input-not-finite", "forward-not-finite",
         "too-coarse")  # fmt: skip


@trial(unless=("error", *NOISY))
def second_derivative(exam):
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
        if any(node.name().endswith("::Error") for node in graph([grads[i] for i in which])):
            yield OPENLY_REFUSED()
            return
        if len(values) > 4:  # where it refuses, better before all those slopes
            vjp({o: torch.ones_like(as_vector(grads[i])) for o, i in enumerate(which)})
        eps = max([subject.eps, *filter(None, watch.of([grads[i] for i in which]))])
        limit = 10 * tolerance(eps)
        symmetric = exam.has("one-triangle", "symmetric-only")
        judge = functools.partial(screen, forward, vjp, values, exam.dice, floor=1e-9)
        verdicts, *_ = judge(eps, limit, symmetric=symmetric)
    except CallError as raised:
        by_will = isinstance(raised.error, NotImplementedError)
        refused = by_will or re.search(REFUSED, str(raised.error))
        yield told(subject, raised, OPENLY_REFUSED if refused else MISSING, how=RAISES)
        return
    used = {node._forward_cls.__module__.startswith("torch.") for node in nodes(exam)}
    # A reentrant checkpoint is PyTorch's own, and there may be many inputs.
    words = {"severity": "note" if used == {True} else None, "why": ""}
    wrong = "wrong" in verdicts.values()

    def right():
        return "wrong" not in judge(eps, limit, symmetric=symmetric)[0].values()

    words |= {"look": CUT_OFF} if not used else reason(exam, values[:n], right) if wrong else {}
    names = [f"`{name}`" for name in subject.inputs] + ["grad_output"] * len(graded)
    lies = {f"`{f.input}`" for f in exam.findings if f.code in ("unfaithful", "gradient-none")}
    if lies and not exam.faithful:
        return  # what is the derivative of what nobody knows
    for (j, o), verdict in verdicts.items():
        if {names[j], names[which[o]]} & lies:
            continue
        if verdict == "wrong":
            yield WRONG(subject.inputs[which[o]], by=names[j], **words)
            if words["severity"]:
                return
        elif verdict == "not finite":
            yield NOT_FINITE(subject.inputs[which[o]], by=names[j])


def reason(exam, values, right):
    """Words for why a second derivative is wrong: a cut, another Function, or what is kept.

    right(): is it right now?
    """
    if exam.line and (words := exam.line.uncut_if(exam.subject, right)):
        return {"look": ""} | words
    calls = []
    with heard_by(lambda cls, args: calls.append(Call.of(cls, args, {}, 0))), forgiving():
        run = exam.subject.run(values)
        calls.clear()
        vs = [v.clone().requires_grad_() for v in exam.vs]
        exam.subject.backward(run, vs, create=True)
    for call in calls:
        fn, args, kwargs = call.again()
        for f in type(exam)(fn, args, kwargs, True, lines=exam.lines).report(exam.trials).findings:
            if f.severity == "error":
                why = f" In `{call.cls.__name__}`, which backward applies: {f.message}"
                return {"why": why, "look": f.remedy, "change": f.change, "place": f.place}
    kept = ", ".join(kept_of_forward(exam, values))
    kept = f"{kept}, which forward made and kept; " if kept else KEPT
    return {"look": IN_BACKWARD.format(kept=kept)}


def kept_of_forward(exam, values):
    """What is neither an input nor an output, but known to backward."""
    found = {}

    def looks(saved, frame):
        found.update({name: t for name, t in variables_of(frame) if any(t is s for s in saved)})
        return saved

    with saving(looks):
        run = exam.subject.run(values)
    for node in graph(run.outputs):
        if isinstance(node, BackwardCFunction):
            found.update({f"`ctx.{name}`": t for name, t in vars(node).items()})
    known = {t.data_ptr() for t in (*run.passed, *run.outputs)}
    return [name for name, t in found.items() if is_float(t) and t.data_ptr() not in known]
