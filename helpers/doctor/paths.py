"""Of which other forward would a wrong gradient be right? And what, in forward, cuts it?

Autograd differentiates forward call by call, as if it stood in no Function. If its gradient is the
right one, what differs from backward's is sought in the derivatives of these calls: one that is
left out, or that belongs to other numbers, another tensor, another function.
"""

import contextlib
import itertools
import threading

import torch
import torch.nn.functional as F
from torch.autograd.function import FunctionCtx, _SingleLevelFunction
from torch.autograd.graph import get_gradient_edge

from .calls import is_a_users
from .changes import (
    Change, is_real, multiplied, with_another_number, with_another_tensor,
)  # fmt: skip
from .effort import calls_a_second
from .repair import forgiving, places_of, tidy
from .report import brief
from .slopes import largest
from .steps import STEPS, Step, Watch, frame_of_a_step, held, source

RUNS, LOOKS = 150, 8000  # at most: changes that are made, and that are looked at
PROBES = 5
LARGEST = 100_000  # elements of all inputs and outputs
CUTS = (torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__)
ALIKE = (  # functions that are taken for each other
    (torch.softmax, torch.log_softmax),
    (torch.sum, torch.mean, torch.amax, torch.logsumexp),
    (torch.maximum, torch.minimum),
    (
        torch.sigmoid, torch.tanh, torch.relu, F.softplus, F.silu, F.gelu, F.elu, torch.erf,
        torch.exp, torch.expm1, torch.log, torch.log1p, torch.sqrt, torch.rsqrt, torch.square,
        torch.reciprocal, torch.abs, torch.sin, torch.cos, torch.tan, torch.atan, torch.sinh,
        torch.cosh, torch.digamma, torch.lgamma,
    ),
)  # fmt: skip


class ForwardStep(Step):
    """One call of PyTorch in forward; what is changed is its derivative, or all of it.

    parts: which of its arguments have a gradient, each a tuple of places: a tensor may stand twice
    before: the same call in the round before, if it stands in a loop
    """

    def __init__(self, frame, scope, func, args, kwargs, names):
        super().__init__(frame, scope, func, args, kwargs)
        self.whole, self.text = self.text, f"the derivative of {self.text}"
        places = [*range(len(args)), *kwargs]
        graded = [w for w in places if is_real(a := self.argument(w)) and a.requires_grad]
        self.parts = {}
        for where in graded:
            self.parts.setdefault(id(self.argument(where)), []).append(where)
        self.parts = [tuple(part) for part in self.parts.values()]
        self.named_parts = [names(self.argument(part[0])) for part in self.parts]

    def calls(self, new):
        """The call with other arguments, {place: argument}."""
        args = [new.get(k, a) for k, a in enumerate(self.args)]
        return self.func(*args, **{k: new.get(k, a) for k, a in self.kwargs.items()})

    def but(self, *kept):
        """{place: constant} for all arguments but those in these places."""
        constant = (w for part in self.parts for w in part if w not in kept)
        return {where: self.argument(where).detach() for where in constant}

    def of_the_round_before(self, where):
        if self.before is None:
            return torch.zeros_like(self.argument(where))
        return self.before.argument(where)

    def with_argument(self, where, new):
        """The derivative with another argument in this place, and that to the one which was there.

        Its value is that of the call with the other argument.
        """
        made = self.calls({where: new.detach() if torch.is_tensor(new) else new})
        if not is_real(made) or made.dim() > self.value.dim():
            raise ValueError("what follows could not use it")
        if any(where in part for part in self.parts):
            own = self.calls(self.but(where))
            made = made + own - own.detach()
        return made.expand(self.value.shape)


class Through(Watch):
    """Sees through forward: notes its calls, of which autograd makes a graph, or changes some.

    changes: {site: change}, what is computed in the place of the calls of these sites
    """

    def __init__(self, changes=None):
        super().__init__({}, changes=changes)
        self.last = {}

    def name_of(self, frame):
        def name(t):
            near = itertools.chain(held(frame), self.texts.items())
            return next((name for name, held in near if held is t), "an operand")

        return name

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, frame = kwargs or {}, frame_of_a_step()
        with torch.enable_grad():
            if func in CUTS and is_real(args[0]):
                return args[0].view_as(args[0])
            site = frame and (frame.f_code, frame.f_lasti)
            if frame is None or not (self.changes is None or site in self.changes):
                return self.seen(frame, func(*args, **kwargs))
            graded = (t.requires_grad for t in (*args, *kwargs.values()) if is_real(t))
            if not any(graded) or len(self.steps) >= STEPS:
                return self.seen(frame, func(*args, **kwargs))
            call = ForwardStep(frame, self.scope(frame), func, args, kwargs, self.name_of(frame))
            call.before, self.last[site] = self.last.get(site), call
            if self.changes is not None:
                return self.seen(frame, self.changes[site](call))
            value = func(*args, **kwargs)
            if is_real(value) and value.requires_grad and value is not args[0]:
                call.made(value)
                call.edge = get_gradient_edge(value)
                self.steps.append(call)
            return self.seen(frame, value)

    def seen(self, frame, value):
        if frame is not None and is_real(value):
            self.texts[source(frame)] = value
        return value


@contextlib.contextmanager
def as_plain_code(mode):
    """In this thread, what a Function's forward computes is differentiated by autograd."""
    here, before, inside = threading.get_ident(), vars(_SingleLevelFunction).get("apply"), []

    def apply(cls, *args, **kwargs):
        if threading.get_ident() != here or not is_a_users(cls):
            return super(_SingleLevelFunction, cls).apply(*args, **kwargs)
        ctx = FunctionCtx()
        ctx.needs_input_grad = tuple(torch.is_tensor(a) and a.requires_grad for a in args)
        first = () if cls.setup_context is not torch.autograd.Function.setup_context else (ctx,)
        inside.append(cls)
        with torch.enable_grad(), mode if len(inside) == 1 else contextlib.nullcontext():
            try:
                return cls.forward(*first, *args, **kwargs)
            finally:
                inside.pop()

    _SingleLevelFunction.apply = classmethod(apply)
    try:
        yield
    finally:
        if before is None:
            del _SingleLevelFunction.apply
        else:
            _SingleLevelFunction.apply = before


def other_forward(cases, known):
    """The words for the forward whose gradient this wrong one is, or None.

    known: what was found for other gradients, which comes first; what is found is added
    """
    case = cases[0]
    size = sum(t.numel() for t in (*case.point.values, *case.point.outputs))
    if case.none or case.x.is_complex() or case.y.is_complex() or size > LARGEST:
        return None
    with forgiving():
        return Paths(cases, known).found()
    return None


class Paths:
    def __init__(self, cases, known):
        self.cases, self.case, self.known, case = cases, cases[0], known, cases[0]
        self.runs, self.looks, mode = min(RUNS, calls_a_second(case.subject) // 4), LOOKS, Through()
        run = self.forward(case, mode, case.point.values)
        self.calls, self.sites = mode.steps, {}
        for call in mode.steps:
            self.sites.setdefault(call.site, []).append(call)
        leaf, edges = run.leaves[case.i], [call.edge for call in mode.steps]
        rows, self.slopes = [], []
        for v in case.vs[:2]:
            grad, *slopes = torch.autograd.grad(
                run.outputs[case.o], [leaf, *edges], v, retain_graph=True, allow_unused=True
            )
            rows.append(case.row(grad))
            self.slopes.append(slopes)
        if not all((row[case.elements] - e).abs().le(limit)[case.trusted].all()
                   for row, e, limit in zip(rows, case.expected, case.limit, strict=False)):  # fmt: skip
            raise ValueError("autograd does not see all of forward")
        self.rows = torch.stack(rows)
        self.off, self.size = case.given[:2] - self.rows, largest(case.given[:2])

    def forward(self, case, mode, values):
        with as_plain_code(mode):
            return case.subject.run(values)

    def gradients(self, case, changes, count=None):
        """changes: {site: change}, and {name: number} for arguments of the function"""
        subject, arguments = case.subject, case.subject.arguments
        numbers = {name: new for name, new in changes.items() if isinstance(name, str)}
        subject.arguments = arguments | numbers
        try:
            run = self.forward(case, Through(changes), case.point.values)
        finally:
            subject.arguments = arguments
        for v in case.vs[:count]:
            vs = [v if o == case.o else torch.zeros_like(t) for o, t in enumerate(run.outputs)]
            yield case.row(subject.backward(run, vs, retain=True)[case.i])

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

    def found(self):
        for changes, words in self.known:
            if self.holds(changes):
                return words
        levels = self.cut(), self.numbers(), self.otherwise(), self.whole(), self.weighing_of(2)
        for changes, said, *calls in itertools.chain(*levels):
            if self.holds(changes):
                words = {"change": f"as if: {said}", "place": places_of(calls)}
                self.known.append((changes, words))
                return words
        return None

    def cut(self):
        """What passes a call through one of its arguments counts otherwise, or not at all."""
        ways = []
        for site, (call, *_) in reversed(self.sites.items()):
            for k in range(len(call.parts)):
                self.runs -= 0.5
                with forgiving():
                    cut = {site: weighing(k, 0)}
                    passes = self.rows - torch.stack([*self.gradients(self.case, cut, 2)])
                    if passes.norm() > 1e-9 * self.rows.norm():
                        ways.append((site, k, passes, call))
        self.ways = ways
        yield from self.weighing_of(1)

    def weighing_of(self, n):
        """So many of these ways count otherwise."""
        for some in itertools.combinations(self.ways, n):
            passes = torch.stack([way[2].reshape(-1) for way in some], 1)
            factors = torch.linalg.lstsq(passes, self.off.reshape(-1, 1)).solution
            rest = self.off.reshape(-1, 1) - passes @ factors
            factors = [tidy(f) for f in (1 + factors).reshape(-1).tolist()]
            if rest.abs().max() <= 1e-6 * self.size and 1 not in factors:
                if len(some) == 1 or set(factors) <= {0, -1, 2, 0.5}:
                    sites, parts, _, calls = zip(*some, strict=True)
                    changes = dict(zip(sites, map(weighing, parts, factors), strict=True))
                    said = map(weighed, calls, parts, factors)
                    yield changes, ", and ".join(said), *calls

    def numbers(self):
        """The function has another number as an argument."""
        for name, old in self.case.subject.arguments.items():
            if isinstance(old, (int, float)) and not isinstance(old, bool):
                for new in dict.fromkeys((0, 1, -old, *([old - 1, old + 1] * isinstance(old, int)))):
                    if new != old:
                        yield {name: type(old)(new)}, f"`{name}` were {new}"

    def otherwise(self):
        """The derivative of a call is another."""
        tangents = self.tangents()
        wanted = self.project(self.off)
        for level in (of_its_own, with_another_function, with_another_number, with_another_tensor,
                      of_the_round_before, multiplied):  # fmt: skip
            for site, calls in reversed(self.sites.items()):
                for change in level(calls[-1]):
                    self.looks -= 1
                    if self.looks < 0:
                        return
                    effect = None
                    with forgiving():
                        effect = self.effect(calls, change, tangents)
                    if effect is None or not effect.isfinite().all():
                        continue
                    factor = 1.0
                    if change.keeps and effect.any():
                        factor = tidy((effect * wanted).sum().item() / effect.square().sum().item())
                    if (wanted - factor * effect).norm() <= 1e-4 * wanted.norm():
                        yield {site: deriving(change, factor)}, change.words(factor), calls[0]

    def project(self, rows):
        return rows @ self.directions.T

    def tangents(self):
        """By differences, how each call's arguments change with the input, in a few directions."""
        case, dice = self.case, torch.Generator().manual_seed(6)
        n = case.x.numel()
        self.directions = torch.randn(PROBES, n, generator=dice, dtype=torch.float64)
        self.directions = self.directions.to(case.x.device)
        step, found = 1e-5 * case.point.scales[case.i].mean().item(), []
        for direction in self.directions:
            sides = []
            for sign in (1, -1):
                values = list(case.point.values)
                move = (sign * step * direction).to(case.x.dtype).reshape(case.shape)
                values[case.i] = values[case.i] + move
                mode = Through()
                self.forward(case, mode, values)
                if [c.site for c in mode.steps] != [c.site for c in self.calls]:
                    raise ValueError("it takes another way")
                sides.append(mode.steps)
            found.append([
                {p: (a.argument(p[0]) - b.argument(p[0])).detach() / (2 * step) for p in a.parts}
                for a, b in zip(*sides, strict=True)
            ])  # fmt: skip
        return {id(c): [one[k] for one in found] for k, c in enumerate(self.calls)}

    def effect(self, calls, change, tangents):
        """How such a change of the derivative shows in the gradient, as `project` gives it."""
        total = 0
        for call in calls:
            local, leaves = of_leaves(call)
            way = change.direction(local).expand(local.value.shape)
            k = next(k for k, c in enumerate(self.calls) if c is call)
            for o, slopes in enumerate(self.slopes):
                if slopes[k] is None:
                    continue
                new = grads(way, leaves, slopes[k])
                old = [0] * len(new) if change.keeps else grads(local.value, leaves, slopes[k])
                for part, a, b in zip(call.parts, new, old, strict=True):
                    row = [((a - b) * tangent[part]).sum() for tangent in tangents[id(call)]]
                    effect = torch.zeros(len(self.slopes), PROBES, dtype=torch.float64)
                    effect[o] = torch.stack(row).to("cpu", torch.float64)
                    total = total + effect
        return None if isinstance(total, int) else total.to(self.off.device)

    def whole(self):
        """Forward computes something else, and the gradient is that of this."""
        for level in (left_out, with_another_function, with_another_number):
            for site, calls in reversed(self.sites.items()):
                for change in level(calls[0]):
                    if not change.keeps:
                        words = change.words(1).replace(calls[0].text, calls[0].whole)
                        yield {site: change.direction}, words, calls[0]


def weighing(k, factor):
    """A change: what passes through part k of a call is multiplied by this factor."""

    def change(call):
        t = call.argument(call.parts[k][0])
        new = t.detach() + factor * (t - t.detach()) if factor else t.detach()
        return call.calls(dict.fromkeys(call.parts[k], new))

    return change


def weighed(call, k, factor):
    name = call.named_parts[k]
    if len(call.parts) == 1:
        what, alone = call.text, call.whole
    else:
        what, alone = f"{call.text} with respect to {name}", None
    if factor == 0:
        return f"{alone} were a constant" if alone else f"{name} were a constant in {call.whole}"
    if factor == -1:
        return f"{what} were negated"
    for said, value in call.scope.items():
        if not torch.is_tensor(value) and value not in (0, 1):
            for how, meant in (("multiplied", value), ("divided", 1 / value)):
                if abs(factor - meant) < 1e-6 * abs(factor):
                    return f"{what} were {how} by {said}"
    return f"{what} were multiplied by {brief(float(factor))}"


def deriving(change, factor):
    """The value of a call as it is, with another derivative."""

    def makes(call):
        call.value = call.func(*call.args, **call.kwargs)
        way = factor * change.direction(call).expand(call.value.shape)
        way = way + call.value if change.keeps else way
        return call.value.detach() + way - way.detach()

    return makes


def of_leaves(call):
    """The same call, of leaves; and these."""
    local = object.__new__(type(call))
    vars(local).update(vars(call))
    leaves = [call.argument(part[0]).detach().clone().requires_grad_() for part in call.parts]
    new = {where: t for part, t in zip(call.parts, leaves, strict=True) for where in part}
    local.args = tuple(new.get(k, a) for k, a in enumerate(call.args))
    local.kwargs = {k: new.get(k, a) for k, a in call.kwargs.items()}
    with torch.enable_grad():
        local.value = local.func(*local.args, **local.kwargs)
    return local, leaves


def grads(value, leaves, slope):
    if not value.requires_grad:
        return [torch.zeros_like(t) for t in leaves]
    found = torch.autograd.grad(value, leaves, slope, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)]


def of_its_own(call):
    """The derivative to one of its arguments were 1."""
    for part, name in zip(call.parts, call.named_parts, strict=True):
        if call.argument(part[0]).shape == call.value.shape:
            what = call.text if len(call.parts) == 1 else f"{call.text} with respect to {name}"

            def direction(call, part=part):
                t = call.argument(part[0])
                others = {where: call.argument(where).detach() for where in part}
                return call.calls(others) + t - t.detach()

            yield Change(lambda f, what=what: f"{what} were 1", direction, factors=(1,))


def of_the_round_before(call):
    for part, name in zip(call.parts, call.named_parts, strict=True) if call.before else ():
        yield Change(
            lambda f, name=name: f"{name} were that of the round before in {call.text}",
            lambda c, part=part: c.with_argument(part[0], c.of_the_round_before(part[0])),
            factors=(1,),
        )


def with_another_function(call):
    name = getattr(call.func, "__name__", "")
    for group in ALIKE:
        if name in [f.__name__ for f in group]:
            for other in group:
                if other.__name__ != name:
                    words = f"`{other.__name__}` stood in place of `{name}` in {call.text}"
                    yield Change(
                        lambda f, words=words: words,
                        lambda c, other=other: other(*c.args, **along(c.kwargs)),
                        factors=(1,),
                    )


def along(kwargs):
    return {name: value for name, value in kwargs.items() if name in ("dim", "keepdim")}


def left_out(call):
    for part, name in zip(call.parts, call.named_parts, strict=True):
        if call.argument(part[0]).shape == call.value.shape:
            yield Change(
                lambda f, name=name: f"{name} stood in place of {call.text}",
                lambda c, part=part: c.argument(part[0]),
                factors=(1,),
            )
