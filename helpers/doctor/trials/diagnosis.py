"""What a wrong gradient is called, and what makes it right."""

import contextlib
from dataclasses import dataclass, replace

import torch

from ..causes.cause import SHARP, VAGUE, named
from ..causes.exceptions import SAVED_MODIFIED
from ..causes.whole import grad_output_ignored
from ..function.private import methods
from ..function.source import place_of, saving
from ..function.tensors import as_vector, has_unit_part, normalized_as
from ..measure.gradient import in_a_corner, right_under
from ..report import DRAWN, MEANT, TEXTS, Change, Text, note
from ..words import N_, _, followed, listed, quoted
from .again import STATE_BETWEEN_CALLS

UNFAITHFUL = note(
    "unfaithful",
    "The gradient of {x} is not the derivative of forward, which faithful=False "
    "accepts.",
)
AS_BEFORE = N_(
    "Backward takes it for what it was before, so what is returned for {these} is wrong."
)
IN_PLACE = "input-modified", "in-place-leaf"
SMALL = 5000  # elements
SEEDS, DIRECTIONS = 100, 4  # over which an estimator is averaged
STAYS = 0.1  # of the square of its error, at most, in the mean; noise leaves 1 / SEEDS


@dataclass(frozen=True)
class Diagnosis:
    """A wrong gradient's name, before it is known through which outputs.

    words: further keyword arguments of the text
    change, mends_all, first_wrong: what `line.find` finds
    """

    text: Text
    input: str
    words: dict
    change: Change | None = None
    mends_all: bool = False
    first_wrong: object = None

    @property
    def has_line(self):
        return bool(self.change or self.first_wrong)

    @property
    def said(self):
        """What must be the same for all outputs, if it is to be said once."""
        change = self.change and self.change.change
        if self.text.kind == SHARP:
            change = None
        return self.text, change, self.words.get("other"), self.words.get("what")


def diagnosis(exam, wrong):
    """The `Diagnosis` of a wrong gradient."""
    here = wrong.here
    if not exam.is_faithful(here.input):
        return accepted(exam, wrong)
    if not here.wrong.any():
        return Diagnosis(TEXTS["gradient-wrong"], here.input, {"nameless": ""})
    if known := elsewhere(exam, here):
        return known
    text, gaps = named(wrong)
    sharp, corner, further = text.kind == SHARP, None, []
    change = mends_all = first_wrong = None
    size = sum(t.numel() for t in (*here.point.values, *here.point.outputs))
    if not sharp and (here.sparse or size > SMALL):
        corner = in_a_corner(wrong)
    if corner and here.sparse and text.kind == VAGUE:
        there, its_gaps = named(corner)
        if there.kind != VAGUE:
            here, text, gaps = corner.here, there, its_gaps
            shape = tuple(here.shape)
            further = [_("Seen in a corner of shape {shape}.", shape=shape)]
    drawn = DRAWN if text.kind == VAGUE and exam.draws else ""
    subject, x = exam.subject, exam.subject.values[here.i]
    # What a constant gets, or what lies on a sphere, may be somebody's choice.
    on_sphere = normalized_as(x, x) is not x or has_unit_part(x)
    chosen = subject.examined[here.i] in subject.frozen or on_sphere
    gaps = {"meant": MEANT if chosen or here.is_identity else drawn, **gaps}
    if exam.line and text.code != "straight-through":
        sharp &= text.code != "gradient-none" or not exam.has_own_nodes
        found = exam.line.find(corner or wrong, exam.lines, few=sharp)
        change, mends_all, first_wrong, more = found
        gaps |= more
    if first_wrong and first_wrong.is_part and text.code == "few-digits":
        text = TEXTS["gradient-wrong"]  # that few are lost is chance
    elif text.code == "few-digits" and exam.line and not (change or first_wrong):
        # No line is wrong: forward may approximate, so that its differences do.
        gaps |= {"severity": gaps["severity"] or "warning"}
    evidence = {"values": here.evidence, "further": further}
    return Diagnosis(text, here.input, evidence | gaps, change, mends_all, first_wrong)


def accepted(exam, wrong):
    """What there is to say of a gradient that need not be the derivative of forward."""
    if wrong.here.given.any() and grad_output_ignored(wrong):
        return Diagnosis(TEXTS["grad-output-ignored"], wrong.here.input, {"only": ""})
    if all(here.none for here in wrong.at) and any(
        g is not None for g in exam.first_gradients
    ):
        none = TEXTS["gradient-none"]
        return Diagnosis(none, wrong.here.input, {"severity": "warning"})
    return Diagnosis(UNFAITHFUL, wrong.here.input, {})


def right_at_rest(exam, here):
    """Is it right in eval() of a module whose output in training depends on calls?"""
    subject, values = exam.subject, here.point.values
    run, own = subject.run(values), len(subject.tensors) - len(subject.state)
    later = subject.but(tensors=[*subject.tensors[:own], *run.state])
    if exam.all_same(later.run(values).outputs, run.outputs):
        return False
    training = [m for m in subject.scope.module.modules() if m.training]
    subject.scope.module.eval()
    try:
        there = here.of_each([subject], values)
        return [one.wrong.any() for one in there] == [False]
    finally:
        for module in training:
            module.training = True


def elsewhere(exam, here):
    """The diagnosis of a gradient that is right under another circumstance.

    It is right where copies are saved of what is changed in place, where no other call
    has left anything, or where a module does not train.
    """
    places = {}

    def copies(saved, frame):
        places[place_of(frame)] = None
        return [None if t is None else t.clone() for t in saved]

    if exam.run.stale and right_under(saving(copies), [here]):
        which = _(
            " and before forward returned, so the gradient of `{x}` is wrong",
            x=here.input,
        )
        copied = _("right if: `save_for_backward` saved copies")
        change = Change(copied, listed(places, last=", and "))
        words = {"values": here.evidence, "which": which}
        return Diagnosis(SAVED_MODIFIED, None, words, change)
    if exam.state.changed() and right_under(exam.state.as_before(), [here]):
        when = _("one, the right one, where no other call has left anything")
        words = {"values": here.evidence, "when": when}
        return Diagnosis(STATE_BETWEEN_CALLS, here.input, words)
    if right_at_rest(exam, here):  # as of an iteration that goes one step at each call
        words = {"values": here.evidence, "severity": "warning", "nameless": ""}
        words["meant"] = MEANT
        return Diagnosis(TEXTS["gradient-wrong"], here.input, words)
    return None


# --- what explains a wrong gradient by itself ---


def but_for_in_place(exam, wrong):
    """Wrong gradients that no changed argument of forward explains."""
    finding = next((f for f in exam.findings if f.code in IN_PLACE), None)
    # What was saved too early is mended by copies, but for a leaf.
    if not finding or (exam.run.stale and finding.code == "input-modified"):
        return wrong
    rest = {
        io: one
        for io, one in wrong.items()
        if not exam.is_faithful(one.here.input)
        or not right_under(arguments_as_handed(), one.at)
    }
    told = dict.fromkeys(wrong[io].here.input for io in wrong if io not in rest)
    if told:
        exam.findings[exam.findings.index(finding)] = replace(
            finding,
            severity="error",
            message=followed(finding.message, _(AS_BEFORE, these=quoted(told))),
            also_wrong=tuple(told),
        )
    return rest


@contextlib.contextmanager
def arguments_as_handed():
    """For a while, each argument is saved for backward as it was handed to forward."""
    before = {}

    def heard(method, cls, *args):
        given = filter(torch.is_tensor, args)
        before.update({id(t): (t, t.detach().clone()) for t in given})
        return method(*args)

    def handed(saved, frame):
        return [before.get(id(t), (t, t))[1] for t in saved]

    with methods("forward", heard), saving(handed):
        yield


def is_estimator(exam, wrong, found):
    """Does forward draw, and is backward right on average?

    A name that says what is wrong, as of a mask that is drawn anew, is better than
    that.
    """
    if not exam.draws:
        return False
    # Where another gradient is that of this draw, so should be one that is not zero.
    accused = {i for i, _o in wrong}
    exact = [g for i, g in enumerate(exam.first_gradients) if i not in accused]
    is_exact = any(g is not None and g.any() for g in exact)

    def is_noise(io, text):
        noisy = text.kind == VAGUE or text.code == "few-digits"
        return noisy and not is_exact and right_on_average(wrong[io].here)

    return all(
        one.text.code == "straight-through" or is_noise(io, one.text)
        for io, one in found.items()
    )


def right_on_average(here):
    """Does the error along some directions vanish in the mean over seeds?"""
    vs = torch.stack([as_vector(v) for v in here.vs])
    us, off = [here.point.dice.direction(here.x) for _ in range(DIRECTIONS)], []

    def output(move, seed):
        moved = [
            v + move if i == here.i else v for i, v in enumerate(here.point.values)
        ]
        return as_vector(here.subject.run(moved, seed=seed).outputs[here.o])

    for seed in range(SEEDS):
        rows = torch.stack([*here.rows(seed)])
        along = [
            (rows.conj() @ here.row(u)).real
            - vs @ (output(1e-5 * u, seed) - output(-1e-5 * u, seed)) / 2e-5
            for u in us
        ]
        off.append(torch.stack(along))
    off = torch.stack(off)
    stays, all_of_it = off.mean(0).square().sum(), off.square().mean(0).sum()
    return bool(stays < STAYS * all_of_it)
