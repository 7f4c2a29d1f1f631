"""The one change of what backward computes that would make a gradient right, and its line.

Backward runs once, watched: each call of PyTorch that its code makes is a step. How the gradient
changes with what a step makes, autograd says; so for each of thousands of changes a few products of
numbers show whether it may be the one. Those that may are made, and backward runs again with them.
"""

import contextlib
import functools
import itertools
import linecache
import os
import re
import sys

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from .changes import BY_TRIAL, LEVELS, is_real
from .subject import of_a_signal

LARGEST = 20000  # elements of all inputs and outputs
STEPS, CHANGES, RUNS = 300, 20000, 100  # at most
PROBES = 5
TORCH, HERE = (os.path.dirname(os.path.abspath(f)) + os.sep for f in (torch.__file__, __file__))
STATEMENT = r"^(return |[\w, ]+ [-+*/@]?= )"
LEFT_ALONE = ("detach", "grad", "backward", "requires_grad")  # autograd cannot see through them


class Known(list):
    """The changes that made a gradient right, as (site, change, factor, step).

    left, runs: how many more may be looked at, and how many tried, for all gradients together
    """

    left, runs = CHANGES, RUNS


def repair(cases, known):
    """The words for the one change that makes this gradient right, or None.

    known: those that made another one right, which come first; what is found is added
    """
    case = cases[0]
    size = sum(t.numel() for t in (*case.point.values, *case.point.outputs))
    if case.none or case.x.is_complex() or case.y.is_complex() or size > LARGEST:
        return None
    with forgiving():  # code that does not bear to be watched
        return Repair(cases, known).found()
    return None


@contextlib.contextmanager
def forgiving():
    """What is raised inside does not matter, unless a caller's time limit raised it."""
    try:
        yield
    except Exception as error:
        if of_a_signal(error):
            raise


def frame_of_a_step():
    """The frame that called PyTorch, unless it is a module's of PyTorch, or ours."""
    frame = sys._getframe(2)
    while frame and frame.f_code.co_filename.startswith(TORCH):
        if frame.f_code.co_name == "_call_impl":
            return None
        frame = frame.f_back
    return None if frame is None or frame.f_code.co_filename.startswith(HERE) else frame


def source(frame):
    return source_at(frame.f_code, frame.f_lasti, frame.f_lineno)


@functools.lru_cache(STEPS)
def source_at(code, instruction, line):
    """The expression that is computed there; before Python 3.11, that of the whole line."""
    text = linecache.getline(code.co_filename, line)
    if hasattr(code, "co_positions"):
        places = itertools.islice(code.co_positions(), instruction // 2, None)
        first, last, start, end = next(places)
        if first == last == line and start is not None:
            return f"`{text.encode()[start:end].decode()}`"
    return f"`{re.sub(STATEMENT, '', text.strip()).rstrip(',')}`"


def held(frame):
    """(name, value) of the variables of a frame, of what is in its lists, and of its ctx."""
    for name, value in list(frame.f_locals.items()):
        if isinstance(value, (list, tuple)) and len(value) < 9:
            yield from ((f"`{name}[{k}]`", item) for k, item in enumerate(value))
        elif isinstance(value, BackwardCFunction):
            yield from ((f"`{name}.{k}`", item) for k, item in list(vars(value).items()))
        else:
            yield f"`{name}`", value


class Step:
    """One call of PyTorch in backward.

    scope: name -> value of what its code could have used; before: its first argument, as it was
    """

    def __init__(self, frame, scope, func, args, kwargs):
        self.func, self.args, self.kwargs, self.scope = func, args, kwargs, scope
        self.site, self.text = (frame.f_code, frame.f_lasti), source(frame)
        self.line, self.name = frame.f_lineno, frame.f_code.co_name
        self.before = args[0].detach().clone() if args and is_real(args[0]) else None
        self.edge = None

    def made(self, value, edge=False):
        self.value, self.in_place = value.detach().clone(), value is next(iter(self.args), None)
        if edge and value.requires_grad:
            self.edge = get_gradient_edge(value)

    def argument(self, where):
        return self.kwargs[where] if isinstance(where, str) else self.args[where]

    def with_argument(self, where, new):
        """What the step makes of another argument in this place."""
        args, kwargs = list(self.args), dict(self.kwargs)
        if self.in_place:
            args[0] = self.before.clone()
        (kwargs if isinstance(where, str) else args)[where] = new
        made = self.func(*args, **kwargs)
        if not is_real(made) or made.shape != self.value.shape:
            raise ValueError("what follows could not use it")
        return made

    def named(self, name, leading=False):
        """What has this name, expanded to the shape of what is made, from its last dimension on.

        leading: from its first dimension on.
        """
        t, like = self.scope[name], self.value
        if leading:
            t = t.reshape(*t.shape, *[1] * (like.dim() - t.dim()))
        return t.to(like.dtype).expand(like.shape)


class Return(Step):
    """What backward returns for one input, as if it were made in a last step."""

    def __init__(self, last, texts, input, grad):
        self.func, self.args, self.kwargs, self.scope = None, (), {}, last.scope | texts
        self.site, self.text = "return", f"what is returned for `{input}`"
        self.line, self.name, self.edge = last.line, last.name, None
        self.value = grad.detach().clone()


class Watch(TorchFunctionMode):
    """Notes the steps of backward, and before, the names of forward.

    records: shall autograd record each step? changes: {site: change}, which are made
    """

    def __init__(self, names=None, records=False, changes=None):
        super().__init__()
        self.names = {} if names is None else names
        self.records, self.changes, self.backward = records, changes, names is not None
        self.steps, self.texts, self.copies = [], {}, {}

    def copy(self, t):
        """A copy of the tensor as it is now; the same one for as long as nothing changes it."""
        key = id(t), t._version
        if key not in self.copies:
            self.copies[key] = t, t.detach().clone()
        return self.copies[key][1]

    def scope(self, frame):
        found = {}
        for name, value in itertools.chain(held(frame), self.texts.items(), self.names.items()):
            if isinstance(value, torch.Tensor):
                if 0 < value.numel() <= LARGEST and not value.is_complex():
                    found.setdefault(name, self.copy(value))
            elif isinstance(value, (int, float)):
                found.setdefault(name, value)
        return found

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, frame = kwargs or {}, frame_of_a_step()
        if frame is None or len(self.steps) >= STEPS:
            return func(*args, **kwargs)
        site = frame.f_code, frame.f_lasti
        if self.backward and (self.changes is None or site in self.changes):
            return self.step(Step(frame, self.scope(frame), func, args, kwargs))
        value = func(*args, **kwargs)
        if is_real(value):
            self.texts[source(frame)] = value
        if not self.backward:
            self.names.update((f"forward's {name}", t) for name, t in held(frame))
        return value

    def step(self, step):
        left_alone = getattr(step.func, "__name__", "").strip("_") in LEFT_ALONE
        with torch.enable_grad() if self.records else contextlib.nullcontext():
            value = step.func(*step.args, **step.kwargs)
            if not is_real(value) or not value.numel():
                return value
            if self.records and not (left_alone or value.requires_grad or value._is_view()):
                value = value.detach().requires_grad_().clone()
        step.made(value, self.records and not left_alone)
        self.texts[step.text] = value
        self.steps.append(step)
        if self.changes is None:
            return value
        with torch.no_grad():
            new = self.changes[step.site](step).to(value.dtype)
            return value.copy_(new) if step.in_place else new


@contextlib.contextmanager
def watching(watch):
    """The backward of every Function in Python is watched."""
    method = BackwardCFunction.apply

    def apply(node, *grads):
        with watch:
            return method(node, *grads)

    BackwardCFunction.apply = apply
    try:
        yield watch
    finally:
        BackwardCFunction.apply = method


class Backward:
    """Backward at one point, as often as it is asked for."""

    def __init__(self, case):
        self.case, watch = case, Watch()
        with watch:
            self.run = case.subject.run(case.point.values)
        self.names = watch.names | {f"forward's {name}": t for name, t in watch.texts.items()}
        inputs = zip(case.subject.inputs, case.point.values, strict=True)
        self.names |= {f"`{name}`": value for name, value in inputs}
        self.names |= dict(zip(case.point.names, case.point.outputs, strict=True))

    def gradients(self, v, records=False, changes=None):
        """(the gradients of all inputs, the watch); v is the grad_output of the one output."""
        case = self.case
        vs = [v if o == case.o else torch.zeros_like(t) for o, t in enumerate(case.point.outputs)]
        returns = (changes or {}).get("return")
        with watching(Watch(self.names, records, None if returns else changes)) as watch:
            grads = case.subject.backward(self.run, vs, retain=True, create=records)
        if returns:
            last = Return(watch.steps[-1], watch.texts, case.input, grads[case.i])
            grads[case.i] = returns(last)
        return grads, watch

    def is_right(self, changes):
        rows = (self.gradients(v, changes=changes)[0][self.case.i] for v in self.case.vs)
        return self.case.fits_rows(map(self.case.row, rows))


class Repair:
    def __init__(self, cases, known):
        self.backwards, self.case = [Backward(c) for c in cases], cases[0]
        case, self.wrong, self.known = self.case, cases.wrong, known
        grads, watch = self.backwards[0].gradients(case.vs[0], records=True)
        self.grad, self.grads = grads[case.i], grads
        if (case.row(self.grad) - case.given[0]).abs().max() > case.limit[0].max():
            raise ValueError("backward does something else when it is watched")
        self.sites = {"return": [Return(watch.steps[-1], watch.texts, case.input, self.grad)]}
        for step in watch.steps:
            self.sites.setdefault(step.site, []).append(step)
        self.probe()

    def probe(self):
        """What is to change, in a few random projections, and how that changes with each step."""
        case, known = self.case, self.case.trusted
        dice = torch.Generator().manual_seed(5)
        drawn = torch.randn(PROBES, int(known.sum()), generator=dice, dtype=torch.float64)
        self.weights = torch.zeros(PROBES, case.x.numel(), dtype=torch.float64)
        self.weights[:, case.elements[known]] = drawn
        self.target = drawn @ (case.expected[0] - case.sampled[0])[known]
        allowed = drawn.abs() @ case.limit[0][known]
        self.limit = 1e-4 * self.target.norm() + allowed.norm()
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

    def found(self):
        """The first that makes it right: the simpler changes first, the later steps first."""
        for site, *change in self.known:
            if self.holds(site, change[0].by(change[1])):
                return self.words(*change)
        for level in LEVELS:
            for site, steps in reversed(self.sites.items()):
                if self.slopes[site].any():
                    for change in level(steps[0]):
                        factor = self.factor(site, steps, change)
                        if factor is not None and self.holds(site, change.by(factor)):
                            self.known.append((site, change, factor, steps[0]))
                            return self.words(change, factor, steps[0])
        return self.tried()

    def words(self, change, factor, step):
        return {"change": change.words(factor), "place": f"line {step.line}, in `{step.name}`"}

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

    def holds(self, site, change):
        """Is the gradient right with this change, everywhere, and no other one touched?"""
        changes = {site: change}
        with forgiving():
            grads, _ = self.backwards[0].gradients(self.case.vs[0], changes=changes)
            for j, (grad, before) in enumerate(zip(grads, self.grads, strict=True)):
                if j not in self.wrong and before is not None:
                    if not torch.allclose(grad, before, rtol=1e-6, atol=1e-9):
                        return False
            return site in self.sites and all(b.is_right(changes) for b in self.backwards)
        return False

    def tried(self):
        """The same by trial, where the gradient does not depend in a straight line on a step."""
        sites = [(site, steps) for site, steps in self.sites.items()
                 if not self.straight(site, steps)]  # fmt: skip
        changes = (
            (site, steps[0], change)
            for level in BY_TRIAL
            for site, steps in sites
            for change in level(steps[0])
            if change.factors or not change.keeps
        )
        for site, step, change in itertools.islice(changes, self.known.runs):
            self.known.runs -= 1
            if self.holds(site, change.by(1.0)):
                self.known.append((site, change, 1.0, step))
                return self.words(change, 1.0, step)
        return None

    def straight(self, site, steps):
        """Does the gradient change in a straight line with what is made here?"""
        if site == "return":
            return True
        with forgiving():
            grads, _ = self.backwards[0].gradients(
                self.case.vs[0], changes={site: lambda step: 2 * step.value}
            )
            change = self.weights @ (self.case.row(grads[self.case.i]) - self.case.row(self.grad))
            expected = self.slopes[site] @ flat([step.value for step in steps])
            return bool(expected.any()) and torch.allclose(change, expected, rtol=1e-6)
        return False


def tidy(number):
    """The fraction that is meant, if one is near."""
    if abs(number) < 1e-6:
        return 0
    for n in range(1, 13):
        if round(number * n) and abs(number * n - round(number * n)) < 1e-4:
            return round(number * n) / n
    return number


def flat(tensors):
    return torch.cat([t.to(torch.float64).reshape(-1) for t in tensors])
