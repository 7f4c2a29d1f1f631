"""The trial on which the others wait: is the gradient the derivative of forward?"""

import contextlib
import functools

import torch

from ..function.budget import calls_allowed, shared
from ..function.frames import is_float
from ..function.grain import dtype_of
from ..function.raised import CallError, forgiving
from ..function.saved import is_overwritten
from ..function.tensors import Dice, as_vector, is_symmetric
from ..measure.corner import CORNER, FEWER, in_a_corner
from ..measure.kinks import KINK, kink
from ..measure.measurement import Measurement, Point
from ..measure.screen import agrees, is_large, screen
from ..name.causes import CAUSES
from ..name.exceptions import SAVED_MODIFIED
from ..name.factors import grad_output_ignored, gradient_out_of_place
from ..name.measurements import Measurements
from ..report import CUT_OFF, MEANT, TEXTS, brief, error, note
from .apart import apart
from .examination import Trials
from .forward import NOT_EXAMINED
from .handed import has_own_nodes
from .kept import idle, kept_outside, of_caches, of_the_first_call, replaced, right_with_copies

trial = Trials()

UNFAITHFUL = note(
    "unfaithful",
    "The gradient of {x} is not the derivative of forward, which faithful=False accepts.",
)
ONE_TRIANGLE = note(
    "one-triangle",
    "Forward reads one triangle of {x}, which is symmetric; the gradient is right for symmetric "
    "changes.",
)


NOISY = (
    "backward-not-deterministic", "state-between-calls", "backward-not-finite", "too-coarse",
)  # fmt: skip


STORED_COARSELY = note(
    "stored-coarsely",
    "Forward saves in {dtype}, so the gradient of {x} is right to its digits only.",
)
REPLACED = error(
    "state-replaced",
    "The gradient of {x} is right with the {names} of the time of forward, but backward reads "
    "what has been put there since.",
    look="{places}save what forward used, or a copy if that is changed in place: "
    "ctx.save_for_backward",
)
FIRST_CALL_KEPT = error(
    "first-call-kept",
    "The gradient of {x} is right only while nothing is kept of another call: it follows what that "
    "one has left.",
    look="what is made once, and kept{where}",
)
SYMMETRIC_ONLY = note(
    "symmetric-only",
    "The gradient of {x}, which is symmetric, is right for symmetric changes, not for others.",
)
RAISES = "forward raises near the given point, so that there are no differences"


@trial(unless=NOISY)
def derivative_of_forward(exam):
    subject, outputs = exam.subject, exam.run.outputs
    points, wrong, suspects, to_judge, others = points_of(exam), {}, {}, [], 0
    symmetric, unknown = set(), set()
    for p, values in enumerate(points):
        try:
            point = Point(subject, values, exam.dice, suspects)
            judge = functools.partial(
                screen, subject.forward, point.vjp, values, exam.dice, subject.eps, exam.tolerance,
                point.y0, 1 if p else 2,
            )  # fmt: skip
            try:
                verdicts, doubts, factors = judge()
            except CallError:
                symmetric |= {i for i, v in enumerate(values) if is_symmetric(v)}
                verdicts, doubts, factors = judge(symmetric=True)
        except CallError as raised:
            if p == 0 and raised.phase != "forward":
                raise
            if p == 0:
                yield NOT_EXAMINED(what="The gradient is", why=RAISES)
                return
            continue  # it does not take what lies near the given point
        if exam.loud > 1 and "wrong" not in verdicts.values():
            verdicts = dict.fromkeys(verdicts, "wrong")
            factors = [torch.full_like(w, exam.loud) for w in factors]
        louder = functools.partial(Point, subject, values, exam.dice, suspects, factors)
        graded = [(io, v) for io, v in verdicts.items() if outputs[io[1]].requires_grad]
        to_judge += [(p, point, louder, *pair) for pair in graded if pair[1] in ("wrong", "unsure")]
        for i in doubts if p == 0 else ():
            point.limit = min(point.limit, shared(calls_allowed(subject), len(doubts))[1])
            with contextlib.suppress(CallError):
                yield kink(point, i)
        unknown |= {io for io, verdict in verdicts.items() if verdict == "unknown"}
        others = len({i for (i, _), verdict in verdicts.items() if verdict == "unknown"})
        if others:
            break
    right_here = {(i, o) for i in range(len(points[0])) for o in range(len(outputs))}
    right_here -= {io for p, _, _, io, _ in to_judge if p == 0}
    inputs = sorted({i for _, _, _, (i, _), _ in to_judge})
    if inputs:
        at_once = 1 if is_large(points[0]) or subject.is_slow else min(2, len(points))
        number, limit = shared(calls_allowed(subject) // at_once, len(inputs))
        others += len(inputs[number:])
    for p, point, louder, (i, o), verdict in to_judge:
        if len(wrong.get((i, o), ())) < at_once and i in inputs[:number]:
            point.limit = min(point.limit, limit)
            try:
                case = Measurement(point, i, o, exam.tolerance)
            except CallError as raised:
                if raised.phase != "forward":
                    raise
                if verdict == "wrong":  # along what is symmetric, and it takes nothing else
                    yield TEXTS["gradient-wrong"](subject.inputs[i], exam.run.names[o])
                return
            if verdict == "wrong" and not (case.wrong.any() or case.sparse):
                case = Measurement(louder(), i, o, exam.tolerance)
            if is_symmetric(case.x) and right_if_symmetric(point, case):
                symmetric.add(i)
                continue
            if case.wrong.any() and not adds_up(point, case):
                yield KINK(subject.inputs[i])
                continue
            if p == 0 and not case.wrong.any() and case.whole:
                right_here.add((i, o))
            # If not all elements are examined, the wrong one may not be among them.
            if case.wrong.any() or (verdict == "wrong" and case.sparse):
                wrong.setdefault((i, o), {})[p] = case
    for i in symmetric:
        text = ONE_TRIANGLE if reads_one_triangle(exam, i) else SYMMETRIC_ONLY
        yield text(subject.inputs[i])
    if others and wrong:
        what = f"{others} more gradient{'s are' if others > 1 else ' is'}"
        advice = "; mend this one" if exam.faithful else ""
        yield NOT_EXAMINED(what=what, why=f"element by element, that would take long{advice}")
    found, within = {}, None
    known_wrong = {io for *_, io, verdict in to_judge if verdict == "wrong"} | set(wrong) | unknown
    of_all = {io: Measurements(by_point.values()) for io, by_point in wrong.items()}
    # What explains a gradient that is not zero may explain that another one is.
    for io, cases in sorted(of_all.items(), key=lambda item: not item[1][0].given.any()):
        cases.elsewhere = io in right_here and len(points) > 1
        cases.returned, cases.wrong = exam.first.returned, {i for i, _ in wrong}
        cases.wrong_through, cases.all = known_wrong, list(of_all.values())
        if within is None:
            within = apart(exam, derivative_of_forward)
        found[io] = diagnosis(exam, cases, within)
    graded = sum(o.requires_grad for o in outputs)
    # A gradient that is out of place is the cause of what is found in that place.
    in_order = sorted(of_all, key=lambda io: found[io][0].code != "out-of-place")
    for i, o in in_order:
        text, x, seen, words = found[i, o]
        of_this = [(t, w) for (j, _), (t, _, _, w) in found.items() if j == i]
        sharp = text.code not in VAGUE
        said = [(t, not sharp and w.get("change"), w.get("other")) for t, w in of_this]
        everywhere = len(said) == graded and len(set(said)) == 1
        everywhere &= graded == 1 or text.code != "derivative-wrong"  # another for each output
        if everywhere and len({w.get("change") for _, w in of_this}) > 1:
            words = {**words, "change": "", "place": ""}
        y = exam.run.names[o]
        words["through"] = "" if everywhere else y
        finding = text(x, y, seen, **words)
        if IN_A_CORNER in seen:
            message = finding.message[0].lower() + finding.message[1:]
            finding.message = f"{IN_A_CORNER.capitalize()} {seen[IN_A_CORNER]}, {message}"
        if finding.remedy and "within" in words and text.code in (*VAGUE, "gradient-none"):
            finding.remedy = words["within"]
        elif finding.remedy and not has_own_nodes(exam):
            finding.remedy = CUT_OFF
        elif finding.remedy and not finding.change:
            finding.remedy += idle(exam)
        yield finding


def adds_up(point, case):
    """Is the slope along all elements at once the sum of theirs, as of what is differentiable?"""
    if not case.whole or case.x.is_complex():
        return True
    u = Dice().direction(case.x).reshape(-1)
    slope, vs = point.slopes(case.i, u)[case.o], torch.stack([as_vector(v) for v in case.vs])
    apart = (vs @ slope.value - case.expected @ as_vector(u)).abs()
    limit = 100 * vs.abs() @ slope.error + 1e-3 * case.expected.abs() @ as_vector(u).abs()
    return bool((apart <= limit).all() or not slope.trusted.all())


def reads_one_triangle(exam, i):
    """Does forward take for granted that this matrix, or each of a batch, is symmetric?"""
    subject, a = exam.subject, exam.subject.values[i]
    expected = subject.forward(subject.values)
    for part in (a.tril(), a.triu()) if torch.tril(a, -1).any() else ():
        values = [part if k == i else v for k, v in enumerate(subject.values)]
        with contextlib.suppress(CallError):
            if all(map(exam.same, subject.forward(values), expected)):
                return True
    return False


def right_if_symmetric(point, case):
    """Is v · J · u right for a symmetric u, and is the gradient not just transposed?"""
    turned = case.given.reshape(-1, *case.shape).mT.reshape(case.given.shape)
    if case.wrong.any() and case.fits(turned[:, case.elements]):
        return False
    u = point.dice.direction(case.x, symmetric=True)
    slope, v = point.slopes(case.i, u)[case.o], as_vector(case.vs[0])
    given = as_vector(point.given(case.o)[0][case.i])
    products, floor = given * as_vector(u), max(1e-11, point.subject.eps)
    return agrees(v, slope, products, case.tolerance, point.y0[case.o], floor)


def points_of(exam):
    """The given point, and others near it where forward is finite."""
    points = [exam.subject.values]
    for _ in range(1 if is_large(points[0]) else 2):
        other = [exam.dice.nearby(v) for v in exam.subject.values]
        with contextlib.suppress(CallError):
            if all(y.isfinite().all() for y in exam.subject.forward(other)):
                points.append(other)
    return points


def diagnosis(exam, cases, within):
    """(text, input, evidence, words) for a wrong gradient; within: of a Function that is part of it"""
    case = cases[0]
    if not exam.faithful:
        if case.given.any() and grad_output_ignored(cases):
            return TEXTS["grad-output-ignored"], case.input, {}, {"only": ""}
        if words := gradient_out_of_place(cases, faithful=False):
            return TEXTS["out-of-place"], case.input, {}, words
        if all(c.none for c in cases) and any(g is not None for g in exam.first.grads):
            return TEXTS["gradient-none"], case.input, {}, {"severity": "warning"}
        return UNFAITHFUL, case.input, {}, {}
    if not case.wrong.any():
        return TEXTS["gradient-wrong"], case.input, {}, {}
    eps = max([torch.finfo(t.dtype).eps for t in exam.run.saved if is_float(t)], default=0.0)
    if eps > exam.precision and all(c.fits_to(10 * eps) for c in cases):
        return STORED_COARSELY, case.input, {}, {"dtype": brief(dtype_of(eps))}
    stale = exam.run.stale or is_overwritten(exam.subject)
    if stale and case.evidence and (place := right_with_copies(exam, case)):
        which = f" and before forward returned, so the gradient of `{case.input}` is wrong"
        words = {"which": which, "change": "right if: `save_for_backward` saved copies"}
        return SAVED_MODIFIED, None, case.evidence, words | {"place": place}
    if has_own_nodes(exam) and (names := replaced(case)):
        places = "".join(f"{place}; " for place in kept_outside(exam))
        names = [name for name in names if f".{name}`" in places] or names
        names = " and ".join(f"`{name}`" for name in names)
        return REPLACED, case.input, case.evidence, {"names": names, "places": places}
    if names := of_caches(case):
        where = f": {' and '.join(names)}; a key must tell apart all that is kept under it"
        return FIRST_CALL_KEPT, case.input, case.evidence, {"where": where}
    text, words = named(cases)
    if text.code == "right-here-only" and exam.subject.is_module:
        with forgiving():
            if kept := of_the_first_call(exam, case):
                return FIRST_CALL_KEPT, case.input, case.evidence, kept
    slow = exam.subject.calls_a_second < QUICK and size_of(case) > FEW_ELEMENTS
    corner, seen, whole = None, {}, cases
    if text.code in VAGUE and (case.sparse or slow or size_of(case) > SMALL):
        corner = in_a_corner(exam, case, FEWER if slow else CORNER)
        corner = corner and part_of(whole, corner)
    if corner and case.sparse:
        there, its_words = named(corner)
        if text.code in COARSE and there.code not in COARSE:
            cases, case, text, words = corner, corner[0], there, its_words
            seen = {IN_A_CORNER: list(case.shape)}
    words = {"meant": MEANT if case.identity else "", **words}
    sharp = text.code not in VAGUE and not (text.code == "gradient-none" and has_own_nodes(exam))
    if exam.line:
        words |= exam.line.find(corner or cases, exam.budget, few=sharp)
    if within and "change" not in words:
        of, finding = within
        words["within"] = f"`{of}`, which is wrong by itself: {finding.message}"
        words |= {"change": finding.change, "place": finding.place} if finding.change else {}
    if words.get("change"):
        words["nameless"] = ""
    return text, case.input, seen | case.evidence, words


def size_of(case):
    return sum(t.numel() for t in (*case.point.values, *case.point.outputs))


def part_of(whole, corner):
    """The cases of this corner."""
    cases = Measurements([corner])
    cases.wrong, cases.wrong_through = whole.wrong, whole.wrong_through
    cases.all, cases.whole = [cases], whole
    return cases


QUICK, FEW_ELEMENTS, SMALL = 800, 100, 5000
IN_A_CORNER = "in a corner of shape"
COARSE = ("gradient-wrong", "derivative-wrong", "partly-right")  # where not all elements are known
VAGUE = (  # which say what the gradient is, but not what to write
    *COARSE, "contribution-lost", "cross-terms-lost", "factor-missing", "few-digits",
    "gradient-zero", "grad-output-partly-ignored", "grad-output-scaled",
    "inner-derivative-forgotten", "jacobian-transposed", "mean-for-sum", "misplaced",
    "operand-turned", "other-mask", "other-output", "others-term", "outputs-scaled",
    "right-only-for-ones", "scaled", "scaled-along", "shifted", "sum-for-mean", "swapped",
    "term-missing", "term-off",
)  # fmt: skip


def named(cases):
    """The text and the words of the first cause that fits."""
    for cause in CAUSES:
        if words := cause.test(cases):
            return cause.text, {} if words is True else words


FLAT = note(
    "flat",
    "Forward is flat in {x}: it changes by jumps only, as by rounding or a comparison, so the "
    "gradient is zero, and nothing is learned through it.",
)


@trial(unless=("error", *NOISY))
def forward_is_not_flat(exam):
    subject = exam.subject
    for i, (x, grad) in enumerate(zip(subject.inputs, exam.first.grads, strict=True)):
        if grad is None or grad.any():
            continue
        value = subject.values[i]
        points = [
            [*subject.values[:i], v.to(value.dtype), *subject.values[i + 1 :]]
            for v in (value, -2.5 * value + 0.37, value + 0.71 * exam.dice.direction(value))
        ]
        with contextlib.suppress(CallError):
            slopes = [s for p in points for s in Point(subject, p, exam.dice).slopes(i, value + 1)]
            ys = [torch.cat(subject.forward(values)) for values in points]
            if any((y != ys[0]).any() for y in ys) and not any(s.value.any() for s in slopes):
                yield FLAT(x)
