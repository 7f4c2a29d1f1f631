"""The trial of second order: is the gradient's derivative right, or refused openly?"""

import contextlib
import copy
import functools
import inspect
import itertools
import re

import torch

from ..causes.exceptions import as_finding
from ..function.isolation import CallError
from ..function.precision import Grain
from ..function.private import is_a_users
from ..function.source import closure, nodes_of, place_of, saving
from ..function.subject import eps_of, graph, name_of, tolerance
from ..function.tensors import Dice, as_vector, is_number, largest, shaped
from ..measure.screening import Screening
from ..measure.slopes import moved_by
from ..report import CUT_OFF, error, note, warning
from ..words import N_, _, listed, quoted

REFUSED = (
    r"once_differentiable|twice|second[- ](order|derivative)|double[- ]backward"
    r"|derivative for \S+ is not implemented"
)
WRONG = error(
    "double-backward-wrong",
    "The derivative of the gradient of {which} with respect to {by} is silently wrong.",
)
IN_BACKWARD = N_(
    "what backward takes for a constant: an intermediate that is kept on ctx, or saved "
    "and not returned; .data, .detach(), no_grad, NumPy; a Function that it applies, "
    "and whose own backward is wrong"
)
APPLIED = N_("{these}, which backward applies: `examine` it alone")
SAVED = N_(
    "{these}: what is saved, and not returned with a gradient, is a constant to "
    "autograd; recompute it in backward, or return it from forward"
)
MISSING = warning(
    "double-backward-missing",
    "There is no second derivative: {how}.",
    look="NumPy, .data, .detach(), kernels and changes in place in backward; "
    "once_differentiable refuses where grad_output has a history",
)
REFUSE = N_(
    "{remedy}; or once_differentiable, which refuses where grad_output has a history"
)
NOT_FINITE = error(
    "double-backward-not-finite",
    "The derivative of the gradient of {which} with respect to {by} is nan or inf, where "
    "the gradient changes smoothly.",
    look="where the formula divides by 0 or takes a root or an acos at its edge; "
    "torch.where, with a harmless argument for what is not chosen",
)
RAISES = N_("backward raises when it is differentiated")
LEAVES = N_(
    "backward leaves autograd, so that what is differentiated through the gradient "
    "silently loses it"
)
ROUGH_EPS = 1e-5  # an eps with which differences of a gradient show only much
SECOND_UNSURE = N_("its derivative cannot be compared with differences")
OPENLY_REFUSED = note(
    "double-backward-refused",
    "Backward refuses to be differentiated.{more}",
)
OF_A_FUNCTION = N_(
    " What once_differentiable refuses can still "
    "be silently wrong: where grad_output has no history, and where grad takes another "
    "path to the inputs."
)


class Gradients:
    """The gradients as a function of the inputs and of graded outputs' grad_outputs.

    values: the point at which it is examined: the inputs, then the grad_outputs
    which:  the numbers of the inputs that have a gradient; eps: the coarsest on the way
            to them; both are known once it was `recorded`
    """

    def __init__(self, exam):
        self.subject, self.count = exam.subject, len(exam.subject.values)
        self.graded = exam.graded
        self.values = [*exam.subject.values, *(exam.vs[k] for k in self.graded)]
        self.which, self.dice = [], exam.dice

    def at(self, values, create=False):
        """The gradients there, what they depend on, and the run of which they are."""
        run = self.subject.run(values[: self.count])
        leaves = [
            v.detach().clone().requires_grad_(create) for v in values[self.count :]
        ]
        graded = dict(zip(self.graded, leaves, strict=True))
        vs = [graded.get(k) for k in range(len(run.outputs))]
        return self.subject.backward(run, vs, create=create), run.leaves + leaves, run

    def recorded(self):
        """Those that there are, with their graph."""
        with Grain(self.values) as watch:
            grads = self.at(self.values, create=True)[0]
        self.which = [i for i, grad in enumerate(grads) if grad is not None]
        some = [grads[i] for i in self.which]
        self.eps = max([self.subject.eps, *filter(None, watch.of(some))])
        self.tolerance = 10 * tolerance(self.eps)
        return some

    def forward(self, values):
        grads = self.at(values)[0]
        return [as_vector(grads[i]) for i in self.which]

    @functools.cached_property
    def y0(self):
        return self.forward(self.values)

    def vjp(self, ws):
        """Their derivatives, for {o: w}: by autograd through backward."""
        grads, leaves, run = self.at(self.values, create=True)
        pairs = [(grads[self.which[o]], w) for o, w in ws.items()]
        pairs = [
            (g, shaped(w, g)) for g, w in pairs if g is not None and g.requires_grad
        ]
        if not pairs:
            return list(map(torch.zeros_like, leaves))
        outputs, ws = zip(*pairs, strict=True)
        differentiated = functools.partial(
            torch.autograd.grad, outputs, leaves, ws, materialize_grads=True
        )
        with self.subject.phase("double backward"):
            return self.subject.within(run.state, differentiated)[0]

    def beside_reference(self):
        """{(j, o): whether the derivative of gradient o by j is the reference's}."""
        reference, found = copy.copy(self), {}
        reference.subject = self.subject.referred
        for o, y in enumerate(self.y0):
            ws = {o: self.dice.normal(y)}
            given, right = self.vjp(ws), reference.vjp(ws)
            floor = 1e-9 * largest(torch.cat([y, *map(as_vector, right)]))
            for j, (a, b) in enumerate(zip(given, right, strict=True)):
                limit = floor + self.tolerance * largest(b)
                found[j, o] = "right" if largest(a - b) <= limit else "wrong"
        return found

    def judged(self):
        """{(j, o): verdict} by differences; what the reference gives is right, too."""
        found = Screening(self, floor=1e-9).verdict
        if self.subject.reference and "wrong" in found.values():
            beside = self.beside_reference()
            found |= {pair: "right" for pair in found if beside[pair] == "right"}
        return found

    def constant_though_they_move(self):
        """{(j, o): "wrong"} where gradient o moves with input j underivably.

        So it is where backward reads a rounded copy that forward saved: its steps hide
        what differences would show. A move of many steps shows it.
        """
        found = {}
        for (o, here), j in itertools.product(enumerate(self.y0), range(self.count)):
            if not self.vjp({o: here})[j].any():
                moved = [0.7 * v if k == j else v for k, v in enumerate(self.values)]
                change = self.forward(moved)[o] - here
                if change.norm() > 0.1 * here.norm():
                    found[j, o] = "wrong"
        return found


def second_derivative(exam):
    """Is the derivative of the gradient right, or refused openly?"""
    subject = exam.subject
    if eps_of(exam.run.outputs) > 100 * subject.eps:
        return  # in coarser numbers than those of the differences
    if exam.run.added:
        return  # no graph leads to what is added
    try:
        of = Gradients(exam)
        if (unrecorded := not_recorded(of.recorded(), subject)) is not None:
            yield from unrecorded
            return
        judge = of.judged
        verdicts = judge()
        if of.eps > ROUGH_EPS:
            verdicts |= of.constant_though_they_move()
        count_second(exam, verdicts, of.which)
        yield from not_finite(exam, of, verdicts)
    except CallError as raised:
        if raised.phase in (
            "forward",
            "reference",
        ):  # as near the point, where it was not judged
            return
        by_will = isinstance(raised.error, NotImplementedError)
        refused = by_will or re.search(REFUSED, str(raised.error))
        text = OPENLY_REFUSED if refused else MISSING
        yield as_finding(subject, raised, text, how=_(RAISES), **about(subject, text))
        return
    wrong = [pair for pair, verdict in verdicts.items() if verdict == "wrong"]

    def is_right():
        found = judge()
        return {"right"} == {found[p] for p in wrong} and "wrong" not in found.values()

    if wrong:
        yield from accused(exam, of, wrong, is_right)


def about(subject, text):
    """What this text says of a user's Function only."""
    if any(map(is_a_users, subject.functions)):
        return {"more": _(OF_A_FUNCTION)}
    return {"more": "", "remedy": _(text.look and CUT_OFF)}


def not_recorded(grads, subject):
    """Findings on gradients of which autograd has no graph, or None."""
    if not any(grad.requires_grad for grad in grads):
        if not any(grad.any() for grad in grads):
            return []
        return [MISSING(how=_(LEAVES), **about(subject, MISSING))]
    # once_differentiable leaves a node that raises, but to which no input is connected.
    if any(name_of(node).endswith("::Error") for node in graph(grads)):
        return [OPENLY_REFUSED(**about(subject, OPENLY_REFUSED))]
    return None


def not_finite(exam, of, verdicts):
    """The finding that a second derivative is nan or inf, where differences are not."""
    unsure = [pair for pair, verdict in verdicts.items() if verdict == "unsure"]
    for j, o in (pair for pair in unsure if pair[0] < of.count):
        if of.vjp({o: torch.ones_like(of.y0[o])})[j].isfinite().all():
            continue
        move = {j: exam.dice.direction(of.values[j])}
        if changes_smoothly(functools.partial(moved_by, of, move), o):
            x, by = exam.subject.inputs[of.which[o]], exam.subject.inputs[j]
            yield NOT_FINITE(x, which=f"`{x}`", by=f"`{by}`")
            return


def changes_smoothly(at, o):
    """Are the slopes to both sides the same, and no larger where one is nearer?"""
    here, found = at(0.0)[o], []
    for h in (1e-5, 1e-7):
        ahead, behind = (at(h)[o] - here) / h, (here - at(-h)[o]) / h
        found.append(max(ahead.norm(), behind.norm()).item())
        if not (ahead - behind).norm() <= 1e-3 * found[-1]:
            return False
    return found[1] <= 1.1 * found[0]


def accused(exam, of, wrong, is_right):
    """The findings for the pairs (j, o) that are wrong."""
    inputs, groups, of_input = exam.subject.inputs, {}, {}
    names = [f"`{name}`" for name in inputs] + ["grad_output"] * len(of.graded)
    for j, o in wrong:
        of_input.setdefault(inputs[of.which[o]], {})[names[j]] = None
    for x, by in of_input.items():
        groups.setdefault((*by,), []).append(x)
    own = exam.subject.functions
    # It is an error only where a user has written the backward.
    is_users = any(map(is_a_users, own))
    severity = None if is_users else "note" if own else "warning"
    change = exam.line and exam.line.uncut_if(exam.subject, is_right)
    remedy = _(IN_BACKWARD) if is_users else exam.cut_off
    if own:
        remedy = constants_saved(exam) or applied(own) or remedy
    if is_users:
        remedy = _(REFUSE, remedy=remedy)
    for by, xs in groups.items():
        yield WRONG(
            xs[0],
            which=quoted(xs),
            by=listed(by, last=" and "),
            severity=severity,
            change=change,
            remedy=remedy,
        )


def applied(functions):
    """The Functions that the backward of these applies, in words, or None."""
    found = {}
    for fn in (inspect.unwrap(cls.backward) for cls in functions):
        scope = fn.__globals__ | closure(fn)
        asked = [n for n in nodes_of(fn) if getattr(n, "attr", None) == "apply"]
        for name in (getattr(node.value, "id", None) for node in asked):
            if isinstance(scope.get(name), type) and is_a_users(scope[name]):
                found[f"`{name}`"] = None
    return found and _(APPLIED, these=listed(found))


def constants_saved(exam):
    """What forward saves that moves with its inputs without a history, or None."""

    def saved(values):
        found = []

        def noted(tensors, frame):
            names = {id(value): name for name, value in frame.f_locals.items()}
            for k, t in enumerate(tensors):
                name = names.get(id(t), f"saved_tensors[{k}]")
                found.append((t, name, place_of(frame)))
            return tensors

        with saving(noted), contextlib.suppress(CallError):
            exam.subject.run(values)
        return found

    here, there = saved(exam.subject.values), saved(exam.nearby(Dice()))
    moving = {}  # by place
    for (t, name, place), (other, *_more) in zip(here, there, strict=False):
        is_constant = not t.requires_grad or t.is_leaf and t._is_view()  # of an input
        if is_number(t) and is_constant and not torch.equal(t, other):
            moving.setdefault(place, []).append(name)
    these = [
        _("{names} ({place})", names=quoted(xs), place=at) for at, xs in moving.items()
    ]
    return _(SAVED, these=listed(these)) if these else None


def count_second(exam, verdicts, which):
    """Note in the report of which gradients the derivative was judged."""
    for o, i in enumerate(which):
        x = exam.subject.inputs[i]
        of_this = {verdict for (_j, p), verdict in verdicts.items() if p == o}
        if of_this <= {"right", "wrong"}:
            exam.note_judged(x, order=2)
        else:
            exam.note_judged(x, why=exam.judged[x].why or _(SECOND_UNSURE))
