"""What edits would change, foreseen by autograd, so that few of them need be run.

Backward runs once with every expression recorded: the value that it has each time, and how the
gradient changes with that value. To first order, an edit changes the gradient by that slope times
what it changes of the value. Where nothing but linear steps follow, as mostly in a backward, that
is exact.
"""

import ast
import contextlib
import inspect
import math

import torch

from ..function.private import methods
from ..function.raised import forgiving
from .edits import Edit, running
from .grammar import AROUND, Site, fit, operands

WATCH, TURNS = "the_doctor_watches", 40  # times that an expression is recorded
EXACT = 1e-5  # of what is to change
EVALUATED = 2500  # edits, at most
HOPELESS, AROUND_ROW = 0.9, 100  # left to mend; the number of the first of AROUND


class Watched:
    """An expression: its values, and the slopes of three projections of the gradient, each time."""

    def __init__(self, code, node):
        self.code, self.node, self.root = code, node, code.root(node)
        self.times, self.values, self.leaves, self.slopes, self.scopes = 0, [], [], [], []

    @property
    def is_known(self):
        return 0 < len(self.slopes) == self.times


class Foresight:
    """The record of one run; `ranked` sorts edits by how well they would mend the gradient.

    run(): the gradient of the measured input, with its graph; codes: those of the functions
    """

    def __init__(self, codes, measurement, run):
        self.m, self.run, self.evaluated = measurement, run, 0
        nodes = [(code, n) for code in codes for n in code.values if is_watched(code, n)]
        self.watched = {node: Watched(code, node) for code, node in nodes}
        self.sites, self.moves = list(self.watched.values()), {}
        self.exact, self.known = {}, {}
        rows, dice = measurement.expected[0] - measurement.sampled[0], torch.Generator()
        rows = torch.where(measurement.trusted, rows, 0)
        dice.manual_seed(5)
        self.weights = torch.randn(3, len(rows), generator=dice, dtype=torch.float64).to(rows)
        self.target = self.projected(rows)
        self.hands = {}
        if not any(self.is_recorded(codes, every) for every in (True, False)):
            self.watched = {}

    def projected(self, rows):
        return (self.weights.conj() * rows).sum(1).real

    def is_recorded(self, codes, every):
        """every: all expressions, not only what is assigned and returned?"""
        if not every:
            self.sites = [site for site in self.sites if site.node is site.root]
        with forgiving():
            self.record(codes)
            return True
        return False

    def record(self, codes):
        for site in self.sites:
            site.__init__(site.code, site.node)
        grad = self.gradient(codes)
        row = self.m.row(grad)[self.m.elements]
        known = self.m.trusted
        if ((row - self.m.sampled[0]).abs() > self.m.limit[0])[known].any():
            raise ValueError("it does something else when it is recorded")
        leaves = [leaf for site in self.sites for leaf in site.leaves]
        slopes = []
        for weights in self.weights:
            w = torch.zeros_like(self.m.row(grad)).index_copy(0, self.m.elements, weights)
            w = w.reshape(grad.shape).to(grad.dtype)
            found = torch.autograd.grad(grad, leaves, w, retain_graph=True, allow_unused=True)
            pairs = zip(leaves, found, strict=True)
            slopes.append([torch.zeros_like(x) if g is None else g for x, g in pairs])
        of_leaves = iter(list(zip(*slopes, strict=True)))
        for site in self.sites:
            site.slopes = [torch.stack(next(of_leaves)) for _ in site.leaves]
            if site.node is site.root and site.scopes:
                self.hands[site.node] = hand_of(site.code, site.scopes[0])

    def gradient(self, codes):
        """What run() gives, with every expression under watch."""
        with contextlib.ExitStack() as stack:
            for code in codes:
                text = instrumented(code, self.sites)
                made = code.compiled(text, **{WATCH: self.watch})
                stack.enter_context(running(code.fn, made))
            stack.enter_context(methods("backward", recorded))
            return self.run()

    def watch(self, number, value, scope=None):
        site = self.sites[number]
        site.times += 1
        if scope is not None and site.times <= TURNS:
            site.scopes.append({**site.code.fn.__globals__, **scope})
        if number in self.moves:
            value = value + self.moves[number].setdefault(site.times, move_like(value))
        if not is_number(value) or site.times > TURNS:
            return value
        leaf = torch.zeros_like(value, requires_grad=True)
        site.leaves.append(leaf)
        site.values.append(value.detach().clone())
        return value + leaf

    # --- what edits would change ------------------------------------------------------------------

    def ranked(self, edits):
        """(how much would be left to mend, edit), of 0 to 1; None if nobody knows."""
        for edit in edits:
            site = self.watched.get(edit.code.root(edit.node))
            if not (site and site.is_known) or self.evaluated > EVALUATED:
                yield None, edit
            else:
                change = self.change_by(site, edit)
                if change is not None:
                    yield self.left_by(change, site), edit

    def left_by(self, change, site):
        if isinstance(change, str):
            return None
        left = ((self.target - change).norm() / self.target.norm()).item()
        if left > EXACT and (self.is_exact(site) or not math.isfinite(left)):
            return 1.0
        return left

    def change_by(self, site, edit):
        """Of the projections; None if the edit raises or changes nothing, else "another shape"."""
        start, end = site.code.span(site.node)
        if any(a < start or b > end for a, b, _ in edit.puts):
            return "elsewhere"
        text = site.code.bytes[start:end]
        for a, b, new in sorted(edit.puts, reverse=True):
            text = text[: a - start] + new.encode() + text[b - start :]
        total, moves = 0, False
        self.evaluated += 1
        try:
            made = compile(b"(" + text + b")", "<edited>", "eval")
            for value, slopes, scope in zip(site.values, site.slopes, site.scopes, strict=True):
                new = eval(made, scope)
                if not is_number(new) or new.shape != value.shape or new.dtype != value.dtype:
                    return "another shape" if is_number(new) else None
                by = new.detach() - value
                moves |= bool(by.any())
                total = total + (slopes.conj() * by).reshape(3, -1).sum(1).real
        except Exception:
            return None
        return total if moves else None

    def is_exact(self, site):
        """Does the gradient change as the slopes say, when something is added here?"""
        if site.node not in self.exact:
            self.exact[site.node] = site.times == 1 and self.moves_as_foreseen(site)
        return self.exact[site.node]

    def moves_as_foreseen(self, site):
        number, before = self.sites.index(site), [dict(vars(s)) for s in self.sites]
        slopes, foreseen = site.slopes[0], False
        with forgiving():
            self.moves = {number: {}}
            for s in self.sites:
                s.__init__(s.code, s.node)
            grad = self.gradient({s.code: None for s in self.sites})
            by = self.projected(self.m.row(grad.detach())[self.m.elements] - self.m.sampled[0])
            said = (slopes.conj() * self.moves[number][1]).reshape(3, -1).sum(1).real
            foreseen = bool((by - said).norm() <= 1e-7 * said.norm() + 1e-12)
        self.moves = {}
        for s, kept in zip(self.sites, before, strict=True):
            vars(s).update(kept)
        return foreseen

    def around(self, code):
        """(what would be left, edit) for what is put around each expression, with what is at hand.

        That is a factor or a term; a few products of tensors foresee all of them at once.
        """
        sites = [s for s in self.sites if s.code is code and s.is_known and s.root in self.hands]
        for site in sites:
            texts, operands = self.at_hand(self.watched[site.root], site.values)
            changes = dict.fromkeys(AROUND, 0)
            for value, slopes, others in zip(site.values, site.slopes, operands, strict=True):
                slopes, others = slopes.conj().reshape(3, -1), others.to(value.dtype)
                products = slopes * value.flatten()
                changes["{} * {}"] += (products @ (others - 1).T).real
                changes["{} / {}"] += (products @ (1 / others - 1).T).real
                changes["{} + {}"] += (slopes @ others.T).real
                changes["{} - {}"] -= (slopes @ others.T).real
            at = Site(code, site.node, {})
            for order, (template, change) in enumerate(changes.items()):
                left = (self.target[:, None] - change).norm(dim=0) / self.target.norm()
                for k in (left < HOPELESS).nonzero()[:, 0].tolist() if texts else ():
                    new = fit(template.format(at.atom, texts[k]), at)
                    puts = ((*code.span(site.node), new),)
                    yield left[k].item(), Edit(code, site.node, puts, row=AROUND_ROW + order)

    def at_hand(self, root, values):
        """Texts, and for each time their values, expanded to the shape of these: (texts, numel)."""
        texts, rows, shape = [], [[] for _ in values], values[0].shape
        if len(values) != len(root.scopes) or any(v.shape != shape for v in values):
            return [], [v.new_zeros(0, v.numel()) for v in values]
        for text, found in self.operands(root):
            with contextlib.suppress(RuntimeError):
                some = [v.expand(shape).flatten() for v in found]
                if values[0].is_complex() or not any(v.is_complex() for v in some):
                    texts.append(text)
                    for row, v in zip(rows, some, strict=True):
                        row.append(v.to(values[0].dtype))
        return texts, [torch.stack(row) if row else values[0].new_zeros(0, 1) for row in rows]

    def operands(self, root):
        """(text, its value each time) of what the expression may be multiplied by."""
        if root.node not in self.known:
            found = self.known[root.node] = []
            for text in operands(root.code, self.hands[root.node]):
                with contextlib.suppress(Exception):
                    made = compile(text, "<edited>", "eval")
                    values = [eval(made, scope) for scope in root.scopes]
                    if all(is_operand(v) for v in values):
                        found.append((text, [torch.as_tensor(v).detach() for v in values]))
        return self.known[root.node]


def recorded(method, cls, ctx, *grads):
    """A backward of which autograd keeps a graph, though it may be differentiable only once."""
    with torch.enable_grad():
        return inspect.unwrap(method)(ctx, *grads)


def is_number(value):
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def is_operand(value):
    return isinstance(value, (torch.Tensor, int, float)) and not isinstance(value, bool)


def hand_of(code, scope):
    """{text: value} of the variables, and of what is on ctx."""
    own = {*code.fn.__code__.co_varnames, *code.fn.__code__.co_freevars}
    own |= {n.id for n in code.nodes if isinstance(n, ast.Name)}
    found = {name: v for name, v in scope.items() if name in own}
    found |= {f"ctx.{name}": v for name, v in getattr(scope.get("ctx"), "__dict__", {}).items()}
    return {n: v for n, v in found.items() if isinstance(v, (torch.Tensor, int, float))}


def is_watched(code, node):
    """Not what is changed in place, an index, or within another function."""
    up = code.up[node]
    if isinstance(up, ast.Attribute):
        caller = code.up.get(up)
        if up.attr.endswith("_") and isinstance(caller, ast.Call):
            return False
        if up.attr in ("shape", "dtype", "device", "ndim"):
            return False
    within = node
    while within in code.up and not isinstance(within, ast.stmt):
        within = code.up[within]
        if isinstance(within, ast.Subscript) and node is not within.value:
            if code.span(node)[0] >= code.span(within.slice)[0]:
                return False
        if isinstance(within, (ast.Starred, ast.keyword, ast.JoinedStr)):
            return False
    return code.root(node) is not None and not isinstance(node, ast.Constant)


def instrumented(code, sites):
    """The text in which every watched expression is handed to the watch."""
    events = []
    for number, site in enumerate(sites):
        if site.code is code:
            start, end = code.span(site.node)
            scope = ", locals()" if site.node is site.root else ""
            events.append((start, 1, -end, f"{WATCH}({number}, ("))
            events.append((end, 0, -start, f"){scope})"))
    text = code.bytes
    for at, _, _, new in sorted(events, reverse=True):
        text = text[:at] + new.encode() + text[at:]
    return text.decode()


def move_like(value):
    dice = torch.Generator().manual_seed(9)
    dtype = torch.complex128 if value.is_complex() else torch.float64
    more = torch.randn(value.shape, generator=dice, dtype=dtype)
    return more.to(value) * (value.detach().abs().amax() + 1)
