"""Where a backward goes wrong first, told by forward itself under autograd.

Forward runs once more while autograd records, which gives the right gradient of each of
its locals, and what each use of a local contributes to it. Backward runs with its own
locals watched, and the two are compared.

That values are alike proves nothing. What a local should hold is said only if putting
it there makes the wrong gradients right, at all points and sizes that are known, and
leaves the right ones alone.
"""

import ast
import contextlib
import copy
import inspect
import itertools
import operator
import re
import textwrap
from dataclasses import dataclass, replace

import torch
from torch.autograd import Function
from torch.autograd.graph import get_gradient_edge

from ..function.isolation import forgiving
from ..function.private import methods, takes_ctx
from ..function.source import UnsuitableError, harmless
from ..function.tensors import is_number, largest
from ..measure.gradient import are_right
from ..report import brief
from ..words import N_, _, listed
from .edits import Code, running
from .goals import codes_of, guard_of

WATCH = "the_doctor_watches"
PROOFS = 80  # interventions, at most
PATHS = 200  # through forward, at most
LARGE = 1e6  # elements of one local, above which none is kept
USES = 6  # of one local, of which all parts are tried
EXACT = 1e-9  # of the largest element: rounding

FIRST = N_("first wrong: {what}")
NOT_ALONE = N_("wrong here: {what}")
PART = N_(
    "{here} holds only a part of the gradient of {there}: what comes through {uses} is "
    "missing"
)
MULTIPLE = N_("{here} is {factor} times the gradient of {there}")
GRADIENT = N_(
    "{here} should be the gradient of {there}: look at what goes into it, too"
)
SHARE = N_("{here} should be what comes to {there} through {uses}")
VALUE = N_("{here} is not what forward computes as {there}")
LOCAL = N_("`{name}` (line {line})")
OF_FORWARD = N_("`{name}` in line {line}")
IN_A_RUN = N_("`{name}` (line {line}, run {run} of {runs})")
RETURNED = N_("what is returned for `{name}` (line {line})")
WHOLE_LINE = N_("line {line}, `{text}`")
OUTPUT = N_("the output itself")
IN_LINE = N_("`{operation}` in line {line}, `{text}`")
RIGHT = N_("{here} is the gradient of `{other}`")


# --- a function whose locals are watched ----------------------------------------------


@dataclass(frozen=True, eq=False)
class Binding:
    """Where a local is bound, or something returned.

    `name` is that of the local, or None.
    """

    code: Code
    line: int
    name: str | None
    node: ast.stmt


class Watching(ast.NodeTransformer):
    """Calls the watch where a local is bound, or something returned."""

    def __init__(self, code, bindings, returns):
        self.code, self.bindings, self.returns = code, bindings, returns
        self.own = {*code.fn.__code__.co_varnames, *code.fn.__code__.co_cellvars}

    def binding(self, node, name):
        self.bindings.append(Binding(self.code, self.code.line(node), name, node))
        return len(self.bindings) - 1

    def statement(self, node):
        watches = [
            f"{name} = {WATCH}({self.binding(node, name)}, {name})"
            for name in bound_by(node)
            if name in self.own and name != "ctx"
        ]
        made = [ast.parse(text).body[0] for text in watches]
        return [node, *(ast.copy_location(each, node) for each in made)]

    visit_Assign = visit_AugAssign = statement  # noqa: N815
    visit_AnnAssign = visit_Expr = statement  # noqa: N815

    def visit_Return(self, node):  # noqa: N802
        if node.value is None or not self.returns:
            return node
        returned = copy.copy(node)
        call = ast.parse(f"{WATCH}({self.binding(node, None)}, 0)", mode="eval").body
        call.args[1] = node.value
        returned.value = call
        return returned

    def visit_FunctionDef(self, node):  # noqa: N802
        return node if node is not self.tree else self.generic_visit(node)

    visit_Lambda = visit_ClassDef = visit_FunctionDef  # noqa: N815

    def watched(self):
        self.tree = copy.deepcopy(self.code.tree)
        return ast.fix_missing_locations(self.visit(self.tree))


def bound_by(node):
    """The names of the locals that a line binds, or whose tensors it changes."""
    if isinstance(node, ast.Expr):
        call = node.value
        if not isinstance(call, ast.Call):
            return []
        changed = [k.value for k in call.keywords if k.arg == "out"]
        if isinstance(call.func, ast.Attribute) and call.func.attr[-1] == "_":
            changed.append(call.func.value)
        targets = changed
    else:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is None:
            return []
    found = []
    while targets:
        target, *targets = targets
        if isinstance(target, (ast.Tuple, ast.List)):
            targets = [*target.elts, *targets]
        while isinstance(target, (ast.Subscript, ast.Starred)):
            target = target.value
        if isinstance(target, ast.Name):
            found.append(target.id)
    return list(dict.fromkeys(found))


class Method:
    """A method of a Function, and what it calls, whose locals can be watched."""

    def __init__(self, method, cls):
        self.codes, self.bindings, self.trees = codes_of([method], cls), [], []
        if not self.codes or self.codes[0].fn is not inspect.unwrap(method):
            raise UnsuitableError
        for code in self.codes:
            watching = Watching(code, self.bindings, returns=code is self.codes[0])
            self.trees.append(watching.watched())

    @contextlib.contextmanager
    def running(self, seen):
        """seen((number of the binding, turn, item), value): what takes its place."""
        turns = {}

        def watch(number, value):
            turn = turns[number] = turns.get(number, -1) + 1
            if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
                items = [seen((number, turn, k), item) for k, item in enumerate(value)]
                same = all(map(operator.is_, items, value))
                return value if same else type(value)(items)
            return seen((number, turn, None), value)

        with contextlib.ExitStack() as stack:
            for code, tree in zip(self.codes, self.trees, strict=True):
                made = code.compiled(tree, **{WATCH: watch})
                stack.enter_context(running(code.fn, made))
            yield

    def argument(self, k):
        """What argument k is called."""
        code = self.codes[0].fn.__code__
        more = k - code.co_argcount
        name = code.co_varnames[min(k, code.co_argcount + code.co_kwonlyargcount)]
        return name if more < 0 else f"{name}[{more}]"

    def name(self, key):
        """What the local is called there, or None of what is returned."""
        name, item = self.bindings[key[0]].name, key[2]
        return name if item is None or name is None else f"{name}[{item}]"


def text_of(binding):
    """Its statement, in short."""
    return textwrap.shorten(binding.code.source_of(binding.node), 70, placeholder=" …")


# --- forward once more, while autograd records ----------------------------------------


class StandIn:
    """What forward takes for ctx when the doctor calls it."""

    def __init__(self, needs):
        self.needs_input_grad, self.saved_tensors, self.constant = needs, (), ()

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors):
        self.constant = tensors

    def save_for_forward(self, *tensors):
        pass

    def mark_dirty(self, *tensors):
        pass

    def set_materialize_grads(self, value):
        pass


@dataclass(frozen=True)
class Local:
    """A local of forward: its edge in the graph, its value and the right gradient.

    Uses: (node, what it contributes) of each; None for what is returned.
    """

    name: str
    line: int
    edge: tuple
    value: torch.Tensor
    gradient: torch.Tensor | None = None
    uses: tuple = ()


class RecordedCall:
    """One call of a Function, as it was made, to be made again."""

    def __init__(self, arguments):
        self.arguments = [copied(a) for a in arguments]
        self.random = torch.get_rng_state()

    def again(self, forward, ctx_too):
        """(leaves, {position: edge} of arguments, outputs, ctx) of a recorded call."""
        needs = tuple(
            isinstance(a, torch.Tensor) and is_number(a) for a in self.arguments
        )
        leaves = [
            a.detach().clone().requires_grad_() if need else a
            for a, need in zip(self.arguments, needs, strict=True)
        ]
        ctx = StandIn(needs)
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            # Clones, for forward may change what it is given.
            given = [
                a.clone() if need else copied(a)
                for a, need in zip(leaves, needs, strict=True)
            ]
            edges = {k: edge_of(given[k]) for k, need in enumerate(needs) if need}
            torch.set_rng_state(self.random)
            outputs = forward(ctx, *given) if ctx_too else forward(*given)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return leaves, edges, outputs, ctx


def edge_of(tensor):
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def copied(a):
    return a.detach().clone() if isinstance(a, torch.Tensor) else a


class Record:
    """What forward's own gradients are in one call.

    `locals`: a list of `Local`, its arguments first.
    """

    def __init__(self, call, forward, ctx_too, watched, grads):
        self.bindings, found, last = {}, [], {}

        def seen(key, value):
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                binding, name = watched.bindings[key[0]], watched.name(key)
                self.note(value, binding)
                edge = edge_of(value)
                if value.numel() <= LARGE and name and last.get(name) != edge:
                    last[name] = edge
                    held = value.detach().clone()
                    found.append(Local(name, binding.line, edge, held))
            return value

        with watched.running(seen):
            leaves, edges, outputs, ctx = call.again(forward, ctx_too)
        arguments = [
            Local(watched.argument(ctx_too + k), 0, edge, leaves[k].detach())
            for k, edge in edges.items()
        ]
        pairs = [
            (out, grad)
            for out, grad in zip(outputs, grads, strict=False)
            if isinstance(out, torch.Tensor)
            and out.requires_grad
            and grad is not None
            and not any(out is c for c in ctx.constant)
        ]
        self.differentiate(leaves, pairs, [*arguments, *found])

    def note(self, value, binding):
        """The nodes that this line has made."""
        queue = [value.grad_fn]
        while queue:
            node = queue.pop()
            if node is not None and node not in self.bindings:
                self.bindings[node] = binding
                queue += [following for following, _nr in node.next_functions]

    def differentiate(self, leaves, pairs, found):
        parts, hooks = {}, []
        outputs = [(edge_of(out), grad) for out, grad in pairs]
        for node in self.bindings:
            hooks.append(
                node.register_hook(
                    lambda inputs, _grads, node=node: parts.update({node: inputs})
                )
            )
        wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
        edges = [torch.autograd.graph.GradientEdge(*local.edge) for local in found]
        rights = [None] * (len(wanted) + len(edges))
        if pairs and rights:
            outs, vs = zip(*pairs, strict=True)
            rights = torch.autograd.grad(
                outs, [*wanted, *edges], vs, allow_unused=True, retain_graph=True
            )
        for hook in hooks:
            hook.remove()
        own = iter(rights)
        self.gradients = tuple(
            next(own) if isinstance(x, torch.Tensor) and x.requires_grad else None
            for x in leaves
        )
        self.locals = []
        for local, right in zip(found, own, strict=True):
            uses = [
                (node, given[k])
                for node, given in parts.items()
                for k, edge in enumerate(node.next_functions)
                if edge == local.edge and given[k] is not None
            ]
            uses.sort(key=lambda use: (self.bindings[use[0]].line, use[0].name()))
            uses += [(None, grad) for edge, grad in outputs if edge == local.edge]
            made = Local(
                local.name, local.line, local.edge, local.value, right, tuple(uses)
            )
            self.locals.append(made)

    def without(self, target, path):
        """The gradient of this local, but for what comes through one use of another."""
        local, other = self.locals[target], self.locals[path[0]]
        edges = [torch.autograd.graph.GradientEdge(*x.edge) for x in (other, local)]
        share = other.uses[path[1]][1]
        (part,) = torch.autograd.grad(
            edges[:1], edges[1:], [share], retain_graph=True, allow_unused=True
        )
        return None if part is None else local.gradient - part


# --- the chain ------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What a local of backward should hold.

    The gradient of a local of forward, the sum of some of its uses, or its value;
    turned: transposed.
    """

    local: int
    uses: tuple | None = None
    value: bool = False
    turned: bool = False

    def of(self, record, like, _run=0):
        """It, in the shape of `like`."""
        local = record.locals[self.local]
        found = local.value if self.value else local.gradient
        if self.uses is not None:
            found = sum(local.uses[k][1] for k in self.uses)
        found = found.mT if self.turned else found
        return found.reshape(like.shape).to(like.dtype)


@dataclass(frozen=True)
class EachRun:
    """What a local that a loop of backward assigns should hold: gradients, in turn.

    Of what forward assigned to one name in one line, the last first, but for some that
    are skipped; then of the argument of this name.
    """

    name: str
    line: int
    skipped: int

    def of(self, record, like, run):
        """The one for this run, in the shape of `like`; itself if there is none."""
        found = versions(record, self.name, self.line)
        last_first = found[::-1][self.skipped + run :]
        right = last_first[0].gradient if last_first else like
        return right.reshape(like.shape).to(like.dtype)


def versions(record, name, line):
    """The locals of forward of this name, one for each time that this line ran."""
    named = [x for x in record.locals if x.name == name and x.line in (0, line)]
    return [x for x in named if x.gradient is not None]


@dataclass(frozen=True)
class Path:
    """One use of a local of forward, by which a gradient goes further back."""

    local: int
    use: int


class Chain:
    """The forward and backward of one Function, each with its locals watched."""

    def __init__(self, cls):
        self.cls, self.ctx_too = cls, takes_ctx(cls)
        backward = cls.vjp if cls.backward is Function.backward else cls.backward
        self.forward, self.backward = Method(cls.forward, cls), Method(backward, cls)
        # A kernel may take no memory but what its own code has prepared.
        if not all(harmless(code, cls) for code in self.backward.codes):
            raise UnsuitableError

    @contextlib.contextmanager
    def running(self, of_call):
        """For a while, of_call(record, backward, ctx, grads) runs as backward."""
        calls = {}

        def heard(method, cls, *args):
            if cls is self.cls and self.ctx_too:
                calls[args[0]] = method, RecordedCall(args[1:])
            elif cls is self.cls:
                calls[args[0]] = cls.forward, RecordedCall(args[1])
            return method(*args)

        def back(method, cls, ctx, *grads):
            if cls is not self.cls or ctx not in calls:
                return method(ctx, *grads)
            forward, call = calls[ctx]
            record = Record(call, forward, self.ctx_too, self.forward, grads)
            return of_call(record, method, ctx, grads)

        name = "forward" if self.ctx_too else "setup_context"
        with methods(name, heard), methods("backward", back):
            yield

    def instead(self):
        """forward's own gradients in place of those that backward returns."""
        return self.running(lambda record, *_others: record.gradients)

    def putting(self, key, target):
        """The same backward, but for one local, which holds what it should."""
        line, run, place = key
        every = isinstance(target, EachRun)

        def of_call(record, backward, ctx, grads):
            def seen(here, value):
                is_here = here == (line, here[1] if every else run, place)
                if not is_here or not isinstance(value, torch.Tensor):
                    return value
                return target.of(record, value, here[1])

            with self.backward.running(seen):
                return backward(ctx, *grads)

        return self.running(of_call)

    def events(self, wrong, turn):
        """(record, {key: value}) of the locals of a backward pass's first call."""
        found = []

        def of_call(record, backward, ctx, grads):
            events, last = {}, {}

            def seen(key, value):
                name = self.backward.name(key)
                here = (id(value), getattr(value, "_version", 0))
                if is_number(value) and last.get(name, 0) != here:
                    events[key] = value.detach().clone()
                last[name] = here
                return value

            with self.backward.running(seen):
                result = backward(ctx, *grads)
            found.append((record, events, grads))
            return result

        with self.running(of_call):
            # All outputs together, so that no path is silent.
            vs = [vs[turn] for vs in wrong.point.vs]
            run = wrong.subject.run(wrong.point.values)
            wrong.subject.backward(run, vs)
        return found[0]


@dataclass(frozen=True)
class FirstWrong:
    """Where a backward goes wrong first.

    first_wrong: what is there, and what should be; right_so_far: what is right before it
    file, line: where it stands; is_part: is a path missing? is_cause: of all that is wrong?
    """

    first_wrong: str
    right_so_far: str
    file: str
    line: int
    is_part: bool
    is_cause: bool

    def is_at(self, edit):
        """Is this edit made in that line?"""
        code = edit.code
        line = code.line(code.statement(edit.node))
        return (code.fn.__code__.co_filename, line) == (self.file, self.line)

    def words(self):
        """As a `Finding` holds it."""
        names = "first_wrong", "right_so_far", "file", "line"
        return {name: getattr(self, name) for name in names}


def first_wrong(wrong, budget):
    """The `FirstWrong` of this `WrongGradient`, or None where nothing is proved."""
    for cls in wrong.first.subject.functions:
        with contextlib.suppress(UnsuitableError), forgiving():
            chain = Chain(cls)
            with chain.instead():
                agrees = are_right(wrong.at)
            if agrees and (found := Search(chain, wrong, budget).found()):
                return found
    return None


class Search:
    """The first local of backward that is wrong, as interventions prove."""

    def __init__(self, chain, wrong, budget):
        self.chain, self.wrong, self.budget = chain, wrong, budget
        self.record, self.events, grads = chain.events(wrong.first, 0)
        self.again, self.events_again, _grads = chain.events(wrong.at[-1], 1)
        self.stay, self.proofs, self.paths = guard_of(wrong), 0, 0
        self.sums = {}  # by name: the last `Target` that is a sum of uses
        self.grads = [g for g in grads if isinstance(g, torch.Tensor)]
        self.draws = (
            (self.events, self.record),
            (self.events_again, self.again),
        )
        self.held = {key: self.target_of(key) for key in self.events}

    def name(self, key):
        return self.chain.backward.name(key)

    def holds(self, key, target):
        """Does this local hold it, at both draws?"""
        pairs = ((events[key], record) for events, record in self.draws)
        return all(alike(value, target.of(record, value)) for value, record in pairs)

    def found(self):
        """The first local that is wrong.

        What it may be meant for by its value or its name is tried of all before
        anything else is.
        """
        right, wrong = {}, {}
        for key, value in self.events.items():
            held = self.held[key]
            whole = held and held.uses is None
            if whole and not self.is_of_another(key, held):
                right[key] = held
            elif key in self.events_again and not self.is_forwards(key, value):
                wrong[key] = value
        for candidates in (self.likely, self.unlikely):
            for key, value in wrong.items():
                for target, relation in candidates(key, value):
                    if self.proved(key, target):
                        return self.told(key, target, relation, right)
        return None

    def is_forwards(self, key, value):
        """Is it right as it is, for forward has computed it, too, by no other name?"""
        name = self.name(key)
        of_forward = [local for local in self.record.locals if local.name == name]
        known = of_forward or self.record.locals
        return any(alike(value, local.value) for local in known)

    def is_of_another(self, key, held):
        """Does its name say that it should hold the gradient of another local?"""
        name = self.name(key)
        if name is None or self.is_mate(name, held):
            return False
        return any(self.is_mate(name, t) for t in self.targets(self.events[key]))

    def target_of(self, key):
        """The `Target` whose value this local holds at two draws, or None."""
        if key not in self.events_again or is_flat(self.events[key]):
            return None
        name = self.name(key)
        for target in (*self.targets(self.events[key]), *self.next_sums(name)):
            if self.holds(key, target):
                if name and target.uses:
                    self.sums[name] = target
                return target
        return None

    def next_sums(self, name):
        """What a local that sums uses, one after the other, may hold next."""
        if last := self.sums.get(name):
            n = len(self.record.locals[last.local].uses)
            for k in range(n):
                if k not in last.uses and len(last.uses) + 1 < n:
                    yield replace(last, uses=(*last.uses, k))

    def targets(self, value):
        """The gradients of forward's locals, and their parts, of this many elements."""
        for j, local in enumerate(self.record.locals):
            right = local.gradient
            if right is None or j >= len(self.again.locals):
                continue
            if (
                right.numel() != value.numel()
                or right.is_complex() != value.is_complex()
            ):
                continue
            ways = {False}
            if right.shape != value.shape and right.dim() > 1:
                ways = {right.mT.shape == value.shape, False}
            for turned in sorted(ways, reverse=True):
                yield Target(j, turned=turned)
                if 1 < len(local.uses) <= USES:
                    for k in range(len(local.uses)):
                        yield Target(j, (k,), turned=turned)

    def likely(self, key, value):
        """(target, relation) of what this local may be meant to hold."""
        name, fitting = self.name(key), [*self.targets(value)]
        whole = [t for t in fitting if t.uses is None]
        for target in () if is_flat(value) else whole:
            if there := self.part_of(key, target):
                yield target, there
        yield from ((target, None) for target in self.next_sums(name))
        if not self.may_be_more(key, value):
            return
        for target in () if is_flat(value) else whole:
            if factor := self.factor_of(key, target) or self.path_missing(key, target):
                yield target, factor
        # What a loop fills is no gradient before its last turn.
        of_a_loop = [t for t in whole if self.record.locals[t.local].line]
        for target in whole if self.turns(key) == 1 else of_a_loop:
            if self.is_mate(name, target):
                yield target, None
        for j, local in enumerate(self.record.locals):
            if local.name == name and local.value.numel() == value.numel():
                yield Target(j, value=True), None

    def unlikely(self, key, value):
        """The same of whatever has as many elements."""
        alone = self.turns(key) == 1
        if alone and self.may_be_more(key, value) and not is_flat(value):
            yield from ((t, None) for t in self.targets(value))

    def may_be_more(self, key, value):
        """That what is returned should be the gradient says nothing.

        And what was handed over, or is a use, is what it is.
        """
        returned = self.name(key) is None
        given = any(alike(value, g) for g in self.grads)
        held = self.held[key]
        right = held and not self.is_of_another(key, held)
        return not (returned or given or right)

    def is_mate(self, name, target):
        bare = re.sub(r"^(grad|d|g)_?|_?(grad|bar)$", "", name, flags=re.I)
        other = self.record.locals[target.local].name
        return bare.lower().replace("_", "") == other.lower().replace("_", "")

    def part_of(self, key, target):
        """The uses, some but not all, of which this local holds the sum; or None."""
        n = len(self.record.locals[target.local].uses)
        if not 1 < n <= USES or len(self.again.locals[target.local].uses) != n:
            return None
        for size in range(n - 1, 0, -1):
            for uses in itertools.combinations(range(n), size):
                if self.holds(key, replace(target, uses=uses)):
                    return uses
        return None

    def path_missing(self, key, target):
        """The `Path` through which nothing comes to this local, or None."""
        name = self.name(key)
        if self.turns(key) > 1 or not self.is_mate(name, target):
            return None
        for j, local in enumerate(self.record.locals):
            uses = range(len(local.uses) if 1 < len(local.uses) <= USES else 0)
            for path in [(j, k) for k in uses if j != target.local]:
                if self.paths >= PATHS:
                    return None
                self.paths += 1
                if all(self.lacks(*pair, key, target, path) for pair in self.draws):
                    return Path(*path)
        return None

    def lacks(self, events, record, key, target, path):
        """Is this local the gradient without what comes by that path?"""
        if path[0] >= len(record.locals) or path[1] >= len(record.locals[path[0]].uses):
            return False
        rest, value = record.without(target.local, path), events[key]
        if rest is None:
            return False
        rest = rest.mT if target.turned else rest
        return alike(value, rest.reshape(value.shape).to(value.dtype))

    def factor_of(self, key, target):
        """The factor of the right gradient, the same at two draws, or None."""
        found = []
        for events, record in self.draws:
            value = events[key]
            right = target.of(record, value)
            size = right.norm() ** 2
            factor = (torch.vdot(right.flatten(), value.flatten()) / size).item()
            if not factor or not alike(value, factor * right):
                return None
            found.append(factor)
        return found[0] if abs(found[0] - found[1]) <= 1e-6 * abs(found[0]) else None

    def proved(self, key, target):
        """Does this target mend the wrong gradients, and keep the right ones?

        In a loop, if it is put there in each run.
        """
        target = self.in_each_run(key, target) or target
        if self.proofs >= PROOFS or self.budget.is_spent:
            return False
        self.proofs += 1
        self.budget.spent += 1
        # With other sizes, a loop takes other turns.
        again = self.wrong.again if self.turns(key) > 1 else self.wrong.others
        with forgiving(), self.chain.putting(key, target):
            return are_right(self.wrong.at) and self.stay() and are_right(again)
        return False

    def in_each_run(self, key, target):
        """The same for each run of the loop in which the local stands, or None."""
        local, name = self.record.locals[target.local], self.name(key)
        if self.turns(key) == 1 or name is None or target.uses or target.value:
            return None
        of_name = versions(self.record, local.name, local.line)[::-1]
        skipped = next(k for k, x in enumerate(of_name) if x is local) - key[1]
        return EachRun(local.name, local.line, skipped) if skipped >= 0 else None

    def turns(self, key):
        """How often this line ran."""
        return len({turn for number, turn, _k in self.events if number == key[0]})

    # --- in words ---------------------------------------------------------------------

    def told(self, key, target, relation, right):
        is_cause, put = False, self.in_each_run(key, target) or target
        with forgiving(), self.chain.putting(key, put):
            is_cause = are_right(self.wrong.together)
        binding, local = (
            self.chain.backward.bindings[key[0]],
            self.record.locals[target.local],
        )
        gaps = {"here": self.here(key), "there": f"`{local.name}`"}
        if local.line:
            gaps["there"] = _(OF_FORWARD).format(name=local.name, line=local.line)
        text = VALUE if target.value else GRADIENT
        if target.uses is not None:
            text, gaps["uses"] = SHARE, self.through(local, target.uses)
        elif isinstance(relation, Path):
            other = self.record.locals[relation.local]
            text, gaps["uses"] = PART, self.through(other, [relation.use])
        elif isinstance(relation, tuple):
            lost = [k for k in range(len(local.uses)) if k not in relation]
            text, gaps["uses"] = PART, self.through(local, lost)
        elif relation is not None:
            text, gaps["factor"] = MULTIPLE, brief(relation)
        before = itertools.takewhile(lambda k: k != key, self.events)
        known = {k[0]: (k, right[k]) for k in before if k in right}  # its last turn
        said = [
            _(RIGHT).format(here=self.here(k), other=self.record.locals[t.local].name)
            for k, t in known.values()
            if self.name(k)
        ]
        file = binding.code.fn.__code__.co_filename
        what = _(text).format(**gaps)
        sentence = _(FIRST if is_cause else NOT_ALONE).format(what=what)
        return FirstWrong(
            sentence, listed(said), file, binding.line, text is PART, is_cause
        )

    def here(self, key):
        """What backward holds there, in words."""
        line, name = (
            self.chain.backward.bindings[key[0]].line,
            self.name(key),
        )
        if name is None:
            x = self.chain.forward.argument(self.chain.ctx_too + (key[2] or 0))
            return _(RETURNED).format(name=x, line=line)
        if (runs := self.turns(key)) > 1:
            return _(IN_A_RUN).format(name=name, line=line, run=key[1] + 1, runs=runs)
        return _(LOCAL).format(name=name, line=line)

    def through(self, local, uses):
        """These uses in words: the lines of forward, or operations in them."""
        bindings, found = self.record.bindings, {}
        for k in uses:
            node = local.uses[k][0]
            found.setdefault(node and bindings[node], []).append(node)
        said = [_(OUTPUT)] if found.pop(None, ()) else []
        for binding, nodes in found.items():
            there = [n for n, _c in local.uses if n and bindings[n] is binding]
            gaps = {"line": binding.line, "text": text_of(binding)}
            for node in nodes if len(nodes) < len(there) else ():
                operation = re.sub(r"Backward\d*$", "", node.name())
                operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).lower()
                said.append(_(IN_LINE).format(operation=operation, **gaps))
            if len(nodes) == len(there):
                said.append(_(WHOLE_LINE).format(**gaps))
        return listed(dict.fromkeys(said), last=_(" and "))


def is_flat(value):
    return value.numel() < 2 or bool((value == value.reshape(-1)[0]).all())


def alike(value, right):
    """Are they the same but for rounding, and do they say anything?"""
    if value.shape != right.shape or value.dtype != right.dtype or is_flat(right):
        return False
    return bool(((value - right).abs() <= EXACT * (largest(right) + 1e-300)).all())
