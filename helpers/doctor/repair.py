"""The one change of what backward computes that would make a gradient right, and its line.

Backward runs once, watched. How the gradient changes with what a step makes, autograd says; so for
each of thousands of changes a few products of numbers show whether it may be the one. Those that
may are made, and backward runs again with them.
"""

import collections
import contextlib
import functools
import itertools
import re

import torch

from .changes import FIRST, THEN, is_simple
from .expressions import OF_A_SITE, TRIED, matches
from .gradient import Case, Point
from .raised import CallError, forgiving
from .saved import others_stay
from .slopes import Dice, as_vector, of_the_same_kind
from .steps import STEPS, Return, Watch, watching

LARGEST = 20000  # elements of all inputs and outputs
CHANGES, RUNS = 10000, 300  # at most
PROBES = 5
FEW = 20  # runs of a long backward
MANY, POINTS, MATCHES = 12, 4, 1000  # elements that fit by no chance; more points; found, at most
ELEMENTS, SHARE = 12_000_000, 6  # of all expressions that are computed; others' share of that


class Known(list):
    """The changes that made a gradient right, as ({site: change}, words, numbers of dimensions).

    left, runs: how many more may be looked at, and how many tried, for all gradients together
    later: (number, what gives the words for a change by it), where nothing says where it comes from
    last: the repair that was tried last; first: the case that was the first
    vain: was all of it, and more, tried for another gradient in vain?
    """

    left, runs, later, last, first, vain = CHANGES, RUNS, (), None, None, False


def repair(cases, known, only_known=False):
    """The words for the one change that makes this gradient right, or None.

    known: those that made another one right, which come first; what is found is added
    only_known: is nothing else tried?
    """
    case, known.later, known.last = cases[0], [], None
    size = size_of(case)
    if case.none or case.x.is_complex() or case.y.is_complex() or size > LARGEST:
        return None
    if only_known and not known:
        return None
    with forgiving():
        known.first = known.first or case
        known.last = Repair(cases, known)
        return known.last.found(only_known)
    return None


def expressed(known, of_backward):
    """The words for a longer expression that makes the gradient right that was tried last.

    of_backward: by what has a name in backward, or by other things, too?
    """
    with forgiving():
        last = known.last
        some = [match for match in last.longer if last.is_of_backward(match) == of_backward]
        return last.first_of(some, wider=True)
    return None


def size_of(case):
    return sum(t.numel() for t in (*case.point.values, *case.point.outputs))


def at_last(known, only=lambda number: True):
    """The words for a change by some number, which explains little; only: by which numbers"""
    with forgiving():
        found = (tried() for number, tried in known.later if only(number))
        return next(filter(None, found), None)
    return None


class Backward:
    """Backward at one point, as often as it is asked for."""

    def __init__(self, case):
        self.case, watch = case, Watch()
        with watch:
            self.run = case.subject.run(case.point.values)
        self.of_forward = watch.codes
        self.names = watch.names | {f"forward's {name}": t for name, t in watch.made_in().items()}
        inputs = zip(case.subject.inputs, case.point.values, strict=True)
        self.names |= {f"`{name}`": value for name, value in inputs}
        self.names |= dict(zip(case.point.names, case.point.outputs, strict=True))

    def gradients(self, v, records=False, changes=None, through=None):
        """(the gradients of all inputs, the watch); v is the grad_output of the one output."""
        case, one = self.case, self.case.o if through is None else through
        vs = [v if o == one else torch.zeros_like(t) for o, t in enumerate(case.point.outputs)]
        returns = (changes or {}).get("return")
        with watching(Watch(self.names, records, None if returns else changes)) as watch:
            grads = case.subject.backward(self.run, vs, retain=True, create=records)
        if returns:
            last = Return(watch.steps[-1], watch, case.input, grads[case.i])
            grads[case.i] = returns(last)
        return grads, watch

    def is_right(self, changes):
        rows = (self.gradients(v, changes=changes)[0][self.case.i] for v in self.case.vs)
        return self.case.fits_rows(map(self.case.row, rows))


class Repair:
    def __init__(self, cases, known):
        self.backwards, self.cases, self.case = [Backward(c) for c in cases], cases, cases[0]
        case, self.known = self.case, known
        grads, watch = self.backwards[0].gradients(case.vs[0], records=True)
        self.grad = grads[case.i]
        if self.backwards[0].run.freed:
            raise ValueError("there is nothing left to differentiate")
        if (case.row(self.grad) - case.given[0]).abs().max() > case.limit[0].max():
            raise ValueError("backward does something else when it is watched")
        if len(watch.steps) >= STEPS:  # not all of a long loop are known, and each run takes long
            known.runs = min(known.runs, FEW)
        self.sites = {"return": [Return(watch.steps[-1], watch, case.input, self.grad)]}
        for step in watch.steps:
            self.sites.setdefault(step.site, []).append(step)
        self.probe()

    def probe(self):
        """What is to change, in a few random projections, and how that changes with each step."""
        case = self.case
        self.weights, self.target, self.limit = projected(case)
        edges = [s.edge for steps in self.sites.values() for s in steps if s.edge]
        of_edges = [[None] * PROBES] * len(edges)
        if edges and self.grad.requires_grad:
            rows = [torch.autograd.grad(self.grad, edges, w.reshape(case.shape).to(self.grad.dtype),
                                        retain_graph=True, allow_unused=True)
                    for w in self.weights]  # fmt: skip
            of_edges = list(zip(*rows, strict=True))
        of_edges, self.slopes = iter(of_edges), {"return": self.weights}
        for site, steps in list(self.sites.items())[1:]:
            parts = []
            for step in steps:
                rows = next(of_edges) if step.edge else [None] * PROBES
                rows = [torch.zeros_like(step.value) if r is None else r for r in rows]
                parts.append(torch.stack([flat([r.detach()]) for r in rows]))
            self.slopes[site] = torch.cat(parts, 1)

    def found(self, only_known=False):
        """The first that makes it right: the simpler changes first, the later steps first."""
        for changes, words, dims in self.known:
            if self.dims(changes) == dims and self.holds(changes):
                return words
        if only_known:
            return None
        return self.by_level(FIRST) or self.first_of(self.short) or self.by_level(THEN)

    def by_level(self, levels):
        for level in levels:
            for site, steps in reversed(self.sites.items()):
                if self.slopes[site].any():
                    for change in level(steps[0]):
                        if self.known.left < 0 or self.known.runs < 0:
                            return None
                        if words := self.tried(site, steps, change):
                            return words
        return None

    @functools.cached_property
    def short(self):
        """What may be mended by a name, or a product of two: (site, change, factor)."""
        return sorted(self.expressions(short=True), key=asks_for_a_number)

    @functools.cached_property
    def longer(self):
        """What may be mended by another expression."""
        constant = self.cases.factor is not None
        return sorted(self.expressions(constant=constant), key=length)

    def expressions(self, **kinds):
        groups = {}
        for site, steps in reversed(self.sites.items()):
            shapes = {step.value.shape for step in steps}
            if len(shapes) == 1 and self.slopes[site].any():
                code = site if len(steps) > 1 or site == "return" else site[0]
                groups.setdefault((code, *shapes), {})[site] = steps
        room = ELEMENTS // max(1, len(groups)) // (1 if self.known.first is self.case else SHARE)
        return [match for sites in groups.values() for match in self.matches(sites, room, **kinds)]

    @functools.cached_property
    def wider(self):
        """The same for larger inputs, or none, lest much that is tried should fit by chance."""
        case = self.case
        with contextlib.suppress(CallError, RuntimeError):
            moved = [2.3 * v + 0.1 * v.roll(1) for v in case.point.values]
            values = [of_the_same_kind(v, t) for v, t in zip(case.point.values, moved, strict=True)]
            other = Case(Point(case.subject, values, Dice()), case.i, case.o, case.tolerance)
            return [Backward(other)] if other.trusted.any() else []
        return []

    def holds_wider(self):
        with forgiving():
            return all(b.is_right(self.held) for b in self.wider)
        return False

    def first_of(self, found, wider=False):
        """The words for the first of these that makes the gradient right."""
        tried = collections.Counter()
        for site, change, _ in found:
            tried[site] += 1
            if tried.total() > TRIED:
                return None
            if tried[site] <= OF_A_SITE and (words := self.tried(site, self.sites[site], change)):
                if not wider or self.holds_wider():
                    return words
                self.known.pop()
        return None

    def is_of_backward(self, match):
        """Is it written by what has a name in backward?"""
        site, change, factor = match
        words = change.words(factor).replace(self.sites[site][0].text, "")
        return not re.search(r"\b(forward|output)\b", words)

    def matches(self, sites, room, **kinds):
        """(site, change, factor); the last site comes first here: it has all at hand."""
        few = min(self.case.x.numel(), next(iter(sites.values()))[0].value.numel()) < MANY
        points = [self, *(self.elsewhere_in_steps if few else ())]
        points = [p for p in points if all(
            [s.value.shape for s in p.sites.get(site, ())] == [s.value.shape for s in steps]
            for site, steps in sites.items())]  # fmt: skip
        dice = torch.Generator().manual_seed(6)
        mix = torch.randn(PROBES, PROBES * len(points), generator=dice, dtype=torch.float64)
        mix = mix.to(self.target.device) / mix.norm(dim=1).mean()
        sites = {site: [s for p in points for s in p.sites[site]] for site in sites}
        slopes = {site: mix @ torch.block_diag(*(p.slopes[site] for p in points)) for site in sites}
        target = mix @ torch.cat([p.target for p in points])
        limit = sum(p.limit for p in points) / len(points) ** 0.5
        found = matches(sites, slopes, target, limit, room, **kinds)
        return itertools.islice(found, MATCHES)

    @functools.cached_property
    def elsewhere_in_steps(self):
        """The same at other points, lest an expression of few elements should fit by chance."""
        found = []
        for case in itertools.islice((*self.cases[1:], *self.cases.others), POINTS):
            with forgiving():
                found.append(Repair([case], self.known))
        return found

    def tried(self, site, steps, change):
        """The words for this change, if it makes the gradient right."""
        factor, step = self.factor(site, steps, change), steps[0]
        if factor is None:
            return None
        plain, meant = (change.words(factor), factor), [*change.names(factor, step)]
        tidied = is_simple(factor)
        for said, by in (*meant, plain) if tidied else meant:
            if self.holds({site: change.by(by)}):
                return self.words(said, step)
        if not tidied:
            said, changes = plain[0], {site: change.by(plain[1])}
            tried = functools.partial(self.if_it_holds, changes, said, step)
            self.known.later.append((factor, tried))
        return None

    def if_it_holds(self, changes, said, step):
        return self.holds(changes) and self.words(said, step)

    def holds(self, changes):
        """Is the gradient right with these changes, everywhere, and no other one touched?"""
        self.known.runs -= 1
        if self.known.runs < 0:
            return False
        with forgiving():
            if not all(b.is_right(changes) for b in (*self.backwards, *self.elsewhere)):
                return False

            def gradients(o, v):
                return self.backwards[0].gradients(v, changes=changes, through=o)[0]

            if others_stay(self.cases, gradients):
                self.held = changes
                return True
        return False

    @functools.cached_property
    def elsewhere(self):
        return [Backward(c) for c in self.cases.others]

    def words(self, said, *steps):
        """What was found, which is noted."""
        words = {"change": f"right if: {said}", "place": places_of(steps)}
        if any(step.site[0] in self.backwards[0].of_forward for step in steps):
            words["place"] += ", when backward calls it, not forward"
        self.known.append((self.held, words, self.dims(self.held)))
        return words

    def dims(self, changes):
        """Of what is changed, which may be made in a function for tensors of several shapes."""
        return [self.sites[site][0].value.dim() for site in changes if site in self.sites]

    def factor(self, site, steps, change):
        """By what the direction of this change must be multiplied; None if nothing makes it fit."""
        self.known.left -= 1
        ways = None
        if self.known.left >= 0:
            with forgiving():  # a call of PyTorch with what does not fit
                ways = flat([change.direction(s).expand_as(s.value) for s in steps])
        if ways is None:
            return None
        slopes = self.slopes[site]
        by_ways, target = slopes @ ways, self.target
        if not change.keeps:
            target = target + slopes @ flat([step.value for step in steps])
        size = by_ways.norm()
        if not size.isfinite() or size == 0:
            return None
        factor = tidy((by_ways @ target / size**2).item())
        fits = change.factors is None or factor in change.factors
        return factor if fits and (target - factor * by_ways).norm() <= self.limit else None


def projected(case):
    """(weights, target, limit): what is to change, in a few random projections.

    Of a complex number, the real and the imaginary part are two elements.
    """
    known, dice = case.trusted, torch.Generator().manual_seed(5)
    parts = 2 if case.x.is_complex() else 1
    drawn = torch.randn(PROBES, parts * int(known.sum()), generator=dice, dtype=torch.float64)
    drawn = drawn.to(case.x.device)
    weights = drawn.new_zeros(PROBES, case.x.numel(), parts)
    weights[:, case.elements[known]] = drawn.reshape(PROBES, -1, parts)
    target = drawn @ flat([(case.expected[0] - case.sampled[0])[known]])
    allowed = drawn.abs() @ case.limit[0][known].repeat_interleave(parts)
    return weights.flatten(1), target, 1e-4 * target.norm() + allowed.norm()


def asks_for_a_number(match):
    return not is_simple(match[2])


def length(match):
    """What asks for no number comes first, then what is said shortly."""
    _, change, factor = match
    return abs(factor) != 1, len(change.words(factor))


def places_of(steps):
    lines = (f"line {s.line}, " * bool(s.line) for s in steps)
    places = (f"{line}in `{s.name}`" for line, s in zip(lines, steps, strict=True))
    return ", and ".join(dict.fromkeys(places))


def tidy(number):
    """The fraction that is meant, if one is near."""
    if abs(number) < 1e-6:
        return 0
    for n in range(1, 13):
        if round(number * n) and abs(number * n - round(number * n)) < 1e-4:
            return round(number * n) / n
    return number


def flat(tensors):
    return torch.cat([as_vector(t) for t in tensors])
