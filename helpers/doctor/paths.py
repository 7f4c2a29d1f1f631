"""Of which other forward would a wrong gradient be right?

Autograd differentiates forward call by call, as if it stood in no Function. If its gradient is the
right one, what differs from backward's is sought in the derivatives of these calls: one that is
left out, or that belongs to other numbers, another tensor, another function.
"""

import itertools

import torch
import torch.nn.functional as F

from . import changes as of_steps
from .changes import Change
from .plain import as_plain_code
from .raised import forgiving
from .repair import places_of, tidy
from .slopes import largest
from .through import Through, is_plain
from .ways import at_another_place, deriving, exchanging, weighing, weighing_said

LARGEST, ENOUGH = 500_000, 20_000  # elements of all inputs and outputs; of those that are fitted
RUNS, LOOKS, TRIED = 200, 3500, 30  # at most: changes that are made; looked at; made in a loop
SLOW = 8  # times as long as by itself, about, a forward takes that is watched
PROBES = 5
NUMBERS = of_steps.with_another_number, of_steps.with_another_float
SIMPLE = {0, -1, 2, 0.5}
ALIKE = (  # functions that are taken for each other
    (torch.softmax, torch.log_softmax),
    (torch.mean, torch.sum, torch.amax, torch.logsumexp),
    (torch.max, torch.mean, torch.min),
    (torch.maximum, torch.minimum),
    (
        torch.sigmoid, torch.tanh, torch.relu, F.softplus, F.silu, F.gelu, F.elu, torch.erf,
        torch.exp, torch.expm1, torch.log, torch.log1p, torch.sqrt, torch.rsqrt, torch.square,
        torch.reciprocal, torch.abs, torch.sin, torch.cos, torch.tan, torch.atan, torch.sinh,
        torch.cosh, torch.asinh, torch.acosh, torch.asin, torch.acos, torch.atanh, torch.digamma,
        torch.lgamma,
    ),
)  # fmt: skip


def other_forward(cases, known, only_known=False):
    """The words for the forward whose gradient this wrong one is, or None.

    known: what was found for other gradients, which comes first; what is found is added
    only_known: is nothing else tried, as of a gradient of zeros, which is that of many?
    """
    case = cases[0]
    size = sum(t.numel() for t in (*case.point.values, *case.point.outputs))
    if case.none or size > LARGEST or only_known and not known:
        return None
    with forgiving():
        return OtherForward(cases, known).found(only_known)
    return None


class OtherForward:
    def __init__(self, cases, known):
        self.cases, self.case, self.known, case = cases, cases[0], known, cases[0]
        share = 1 if not cases.all or cases is cases.all[0] else 8  # others have had their chance
        self.runs = min(RUNS, case.subject.calls_a_second // 16) // share
        self.looks = LOOKS // share
        self.recorded, run = {}, None
        for each in reversed(cases):
            mode = Through()
            run = self.forward(each, mode, each.point.values)
            self.recorded[id(each)] = mode.sites
        self.sites, self.given = mode.sites, mode.numbers
        self.steps = [s for s in mode.steps if s.value is not None]
        edges, rows = [step.edge for step in self.steps], []
        self.slopes = {id(step): [] for step in self.steps}
        for v in case.vs[:2]:
            grad, *slopes = torch.autograd.grad(
                run.outputs[case.o], [run.leaves[case.i], *edges], v, retain_graph=True,
                allow_unused=True,
            )  # fmt: skip
            rows.append(case.row(grad))
            for step, slope in zip(self.steps, slopes, strict=True):
                self.slopes[id(step)].append(slope)
        self.rows = torch.stack(rows)
        off = (self.rows[:, case.elements] - case.expected[:2]).abs() > case.limit[:2]
        if off[:, case.trusted].any():
            raise ValueError("autograd does not see all of forward")
        dice = torch.Generator().manual_seed(8)
        self.some = torch.randperm(case.x.numel(), generator=dice)[:ENOUGH].to(case.x.device)
        self.enough = len(cases) > 1 or case.x.numel() > 2  # one number fits by chance
        self.off, self.size = case.given[:2] - self.rows, largest(case.given[:2])

    def forward(self, case, mode, values):
        with as_plain_code(mode.call, mode):
            return case.subject.run(values)

    def gradients(self, case, changes, count=None):
        """Those of forward with these changes, for so many v."""
        run = self.forward(case, Through(changes, self.recorded[id(case)]), case.point.values)
        return itertools.islice(case.rows_of(run), count)

    def holds(self, changes):
        """Is the gradient, at each point, that of the changed forward?"""
        self.runs -= 1
        if self.runs < 0:
            return False
        with forgiving():
            return all(
                (row - given).abs().max() <= 1e-6 * largest(given)
                for case in self.cases
                for row, given in zip(self.gradients(case, changes), case.given, strict=True)
            )
        return False

    def holds_elsewhere(self, changes):
        """And with other arguments, and other sizes, as far as forward does the same there?"""
        for case in self.cases.others:
            with forgiving():
                if id(case) not in self.recorded:
                    mode = Through()
                    self.forward(case, mode, case.point.values)
                    self.recorded[id(case)] = mode.sites
                (row,) = self.gradients(case, changes, 1)
                if (row - case.given[0]).abs().max() > 1e-6 * largest(case.given[0]):
                    return False
        return True

    def found(self, only_known):
        for changes, words in self.known:
            if self.holds(changes):
                return words
        if only_known:
            return None
        levels = (
            self.weighed(), self.numbers(), self.otherwise(), self.whole(), self.exchanged(),
            self.weighed_in_pairs(), self.in_loops(),
        )  # fmt: skip
        for changes, said, *steps in itertools.chain(*levels):
            of_sites = not any(key in self.given for key in changes)  # another number is another
            if self.holds(changes) and (not of_sites or self.holds_elsewhere(changes)):
                words = {"change": f"as if: {said}", "place": places_of(steps)}
                self.known.append((changes, words))
                return words
        return None

    def weighed(self):
        """What passes a call through one of its arguments counts otherwise, or not at all."""
        self.ways, most = [], max(4, self.case.subject.calls_a_second // SLOW)
        for site, steps in reversed(self.sites.items()):
            twice = [(where,) for part in steps[-1].parts if part[1:] for where in part]
            for part in (*steps[-1].parts, *twice):
                self.runs, most = self.runs - 0.5, most - 1
                if most < 0:
                    break
                with forgiving():
                    cut = {site: weighing(part, 0)}
                    passes = self.rows - torch.stack([*self.gradients(self.case, cut, 2)])
                    if passes.norm() > 1e-9 * self.rows.norm():
                        self.ways.append((site, part, passes[:, self.some], steps[-1]))
        yield from self.fitting(1)

    def weighed_in_pairs(self):
        yield from self.fitting(2)

    def fitting(self, n):
        """So many of the ways count otherwise."""
        for some in itertools.combinations(self.ways, n):
            passes = torch.stack([as_reals(way[2]) for way in some], 1)
            off = as_reals(self.off[:, self.some])[:, None]
            factors = torch.linalg.lstsq(passes, off).solution
            rest = off - passes @ factors
            factors = [tidy(f) for f in (1 + factors).reshape(-1).tolist()]
            if rest.abs().max() <= 1e-6 * self.size and 1 not in factors:
                if set(factors) <= SIMPLE or (n == 1 and self.enough):
                    sites, parts, _, steps = zip(*some, strict=True)
                    changes = dict(zip(sites, map(weighing, parts, factors), strict=True))
                    yield changes, ", and ".join(map(weighing_said, steps, parts, factors)), *steps

    def numbers(self):
        """Forward has another number as an argument."""
        for argument, old in self.given.items():
            beside = (old - 1, old + 1) if isinstance(old, int) else ()
            for new in dict.fromkeys((0, 1, -old, *beside)):
                if new != old:
                    yield {argument: type(old)(new)}, f"`{argument[1]}` were {new}"

    def otherwise(self):
        """The derivative of one call is another."""
        if self.case.subject.calls_a_second < 2 * PROBES * SLOW:
            return
        tangents, wanted = self.tangents(), self.project(self.off)
        levels = of_its_own, with_another_function, *NUMBERS, of_steps.with_another_tensor
        for level in (*levels, of_another_round, of_steps.multiplied):
            for site, steps in reversed(self.sites.items()):
                for change in level(steps[-1]) if steps[-1].value is not None else ():
                    self.looks -= len(steps)
                    if self.looks < 0:
                        return
                    effect = None
                    with forgiving():
                        effect = sum(self.effect(step, change, tangents) for step in steps)
                    if effect is None or not effect.isfinite().all():
                        continue
                    factor = 1.0
                    if change.keeps and effect.any():
                        factor = tidy((effect * wanted).sum().item() / effect.square().sum().item())
                    fits = (wanted - factor * effect).norm() <= 1e-4 * wanted.norm()
                    if fits and (self.enough or not change.keeps):
                        yield {site: deriving(change, factor)}, change.words(factor), steps[-1]

    def project(self, rows):
        return (rows.conj() @ self.directions.T).real

    def tangents(self):
        """By differences, how each call's arguments change with the input, in a few directions."""
        case, dice, found = self.case, torch.Generator().manual_seed(6), []
        drawn = torch.randn(PROBES, case.x.numel(), generator=dice, dtype=self.off.dtype)
        self.directions = drawn.to(case.x.device)
        h = 1e-5 * case.point.scales[case.i].mean().item()
        for direction in self.directions:
            sides = []
            for move in (h * direction, -h * direction):
                values = list(case.point.values)
                values[case.i] = case.x + move.to(case.x.dtype).reshape(case.shape)
                mode = Through()
                self.forward(case, mode, values)
                sides.append([s for s in mode.steps if s.value is not None])
                if [s.site for s in sides[-1]] != [s.site for s in self.steps]:
                    raise ValueError("it takes another way")
            found.append([
                [(a.argument(p[0]) - b.argument(p[0])).detach() / (2 * h) for p in a.parts]
                for a, b in zip(*sides, strict=True)
            ])  # fmt: skip
        return {id(step): of_step for step, *of_step in zip(self.steps, *found, strict=True)}

    def effect(self, step, change, tangents):
        """How such a change of the derivative shows in the gradient, as `project` gives it."""
        local, leaves = step.of_leaves()
        way = change.direction(local).expand(local.value.shape)
        effect = self.off.real.new_zeros(len(self.off), PROBES)
        for row, slope in zip(effect, self.slopes[id(step)], strict=True):
            if slope is not None:
                news = grads(way, leaves, slope)
                olds = [0] * len(news) if change.keeps else grads(local.value, leaves, slope)
                for p, of_parts in enumerate(tangents[id(step)]):
                    triples = zip(news, olds, of_parts, strict=True)
                    row[p] = sum(((new - old).conj() * t).sum().real for new, old, t in triples)
        return effect

    def whole(self):
        """Forward computes something else, and the gradient is that of this."""
        for level in (left_out, with_another_function, *NUMBERS):
            for site, (*_, step) in reversed(self.sites.items()):
                for change in level(step) if step.value is not None else ():
                    if not change.keeps:
                        words = change.words(1).replace(step.text, step.whole)
                        yield {site: change.direction}, words, step

    def exchanged(self):
        """Two pieces are taken for each other, on the way back."""
        for site, (step, *_) in self.sites.items():
            for pair in itertools.combinations(step.pieces, 2):
                said = f"the gradients of pieces {pair[0]} and {pair[1]} of {step.whole}"
                yield {site: exchanging(*pair)}, f"{said} were exchanged", step
        slices = [
            (site, step)
            for site, (step, *_) in self.sites.items()
            if getattr(step.func, "__name__", "") == "__getitem__" and step.value is not None
        ]
        for (one, a), (other, b) in itertools.combinations(slices, 2):
            if a.value.shape == b.value.shape and a.args[0] is b.args[0]:
                changes = {one: at_another_place(b), other: at_another_place(a)}
                yield changes, f"the gradients of {a.whole} and {b.whole} were exchanged", a, b

    def in_loops(self):
        """In each round, or in some; as rounds act on each other, nothing is looked at before."""
        for site, (*others, step) in self.sites.items():
            if not others:
                continue
            for part in step.parts:
                for said, chosen in ROUNDS.items():
                    words = f"{step.written_as(part)} were a constant in {step.whole}, in {said}"
                    yield {site: weighing(part, 0, chosen)}, words, step
            if step.value is None:
                continue
            levels = of_its_own, with_another_function, *NUMBERS, of_steps.with_another_tensor
            changes = itertools.chain(*(level(step) for level in (of_another_round, *levels)))
            for change in itertools.islice(changes, TRIED):
                if not change.keeps:
                    yield {site: deriving(change, 1.0)}, change.words(1), step


ROUNDS = {
    "the first round": lambda n, last: n == 0,
    "the last round": lambda n, last: n == last,
    "all rounds but the first": lambda n, last: n > 0,
    "all rounds but the last": lambda n, last: n < last,
}


def as_reals(t):
    return (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t).reshape(-1)


def grads(value, leaves, slope):
    if not value.requires_grad:
        return [torch.zeros_like(t) for t in leaves]
    found = torch.autograd.grad(value, leaves, slope, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)]


def of_its_own(step):
    """The derivative with respect to an argument were 1."""
    for part in step.parts:
        if step.argument(part[0]).shape == step.value.shape:
            name, one = step.written_as(part), len(step.parts) == 1
            what = step.text if one and is_plain(name) else f"{step.text} with respect to {name}"

            def direction(step, part=part):
                t = step.argument(part[0])
                others = {where: step.argument(where).detach() for where in part}
                return step.call(others) + t - t.detach()

            yield Change(lambda f, what=what: f"{what} were 1", direction, factors=(1,))


def of_another_round(step):
    for part in step.parts if len(step.rounds) > 1 else ():
        name = step.written_as(part)
        for n, word in ((-1, "before"), (1, "after")):
            yield Change(
                lambda f, name=name, word=word: (
                    f"{name} were that of the round {word} in {step.text}"
                ),
                lambda s, k=part[0], n=n: s.with_argument(k, s.in_round(s.round + n, k)),
                factors=(1,),
            )


def with_another_function(step):
    name = getattr(step.func, "__name__", "")
    for group in ALIKE:
        for other in group if name in [f.__name__ for f in group] else ():
            if other.__name__ != name:
                words = f"`{other.__name__}` stood in place of `{name}` in {step.text}"
                yield Change(
                    lambda f, words=words: words,
                    lambda s, other=other: first(other(*s.args, **along(s.kwargs))),
                    factors=(1,),
                )


def first(made):
    return made if torch.is_tensor(made) else made[0]


def along(kwargs):
    return {name: value for name, value in kwargs.items() if name in ("dim", "keepdim")}


def left_out(step):
    for part in step.parts:
        if step.argument(part[0]).shape == step.value.shape:
            yield Change(
                lambda f, part=part: f"{step.written_as(part)} stood in place of {step.text}",
                lambda s, part=part: s.argument(part[0]),
                factors=(1,),
            )
