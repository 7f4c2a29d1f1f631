"""Where a backward goes wrong first, told by forward itself under autograd.

Forward, or the reference beside it, runs once more while autograd records, which gives
the right gradient of each of its locals, and what each use of a local contributes to
it. Backward runs with its own locals watched, and the two are compared.

That values are alike proves nothing. What a local should hold is said only if putting
it there makes the wrong gradients right, at all points and sizes that are known, and
leaves the right ones alone.
"""

import ast
import collections
import contextlib
import functools
import inspect
import itertools
import operator
import re
import textwrap
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..function.isolation import forgiving
from ..function.private import FunctionCtx, methods, takes_ctx
from ..function.source import UnsuitableError, harmless, names_in, root
from ..function.subject import argument_names, graph
from ..function.tensors import as_vector, is_number
from ..measure.gradient import are_right, nearly_equal, right_under
from ..report import brief
from ..words import N_, _, listed
from .edits import WATCH, Code, parsed, rebuilt, watching
from .goals import backward_of, bound_by, codes_of, guard_of

PROOFS = 80  # interventions, at most
PATHS = 200  # through forward, at most
MOST_ELEMENTS = 1e6  # elements of one local, above which none is kept
USES = 6  # of one local, of which all parts are tried
BINDING = ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.For

FIRST = N_("first wrong: {what}")
BEFORE = N_("wrong here, or in {suspects}: {what}")
NOT_ALONE = N_("wrong here: {what}")
PART = N_(
    "{here} holds only a part of the gradient of {there}: what comes through {uses} is "
    "missing"
)
MULTIPLE = N_("{here} is {factor} times the gradient of {there}")
GRADIENT = N_("{here} should be the gradient of {there}")
OF_RIGHT = N_(
    "{here} should be the gradient of {there}: look at this line itself, for nothing that "
    "goes into it is known to be wrong"
)
SHARE = N_("{here} should be what comes to {there} through {uses}")
VALUE = N_("{here} is not what forward has as {there}")
OF_RUN = N_("{here} should be what {there} is in forward")
THE_ARGUMENT = N_("the argument `{name}`")
LOCAL = N_("`{name}` (line {line})")
OF_FORWARD = N_("`{name}` in line {line}")
OF_REFERENCE = N_("`{name}` in line {line} of `{function}`")
IN_A_RUN = N_("`{name}` (line {line}, run {run} of {runs})")
RETURNED = N_("what is returned for `{name}` (line {line})")
WHOLE_LINE = N_("line {line}, `{text}`")
OUTPUT = N_("the output itself")
ARGUMENT = N_("an argument of `{function}`")
IN_LINE = N_("`{operation}` in line {line}, `{text}`")
ONE_OF_LINE = N_("one `{operation}` in line {line}, `{text}`")
IN_RUN = N_("`{operation}` in run {run} of line {line}, `{text}`")
RIGHT = N_("{here} is the gradient of `{other}`")


# --- a function whose locals are watched ----------------------------------------------


@dataclass(frozen=True, eq=False)
class Binding:
    """Where a local is bound, or something returned, which has no name."""

    code: Code
    line: int
    name: str | None
    node: ast.stmt


class Key(NamedTuple):
    """Of which binding a value is, in which turn, and in a tuple which item."""

    binding: Binding
    turn: int
    item: int | None

    @property
    def name(self):
        """What the local is called there, or None of what is returned."""
        name = self.binding.name
        return name if self.item is None or name is None else f"{name}[{self.item}]"


def watched(code, bindings, returns, arguments):
    """Its tree, which calls the watch where a local is bound, or something returned.

    returns, arguments: of these, too? Arguments are made where it is called
    """
    own = {*code.fn.__code__.co_varnames, *code.fn.__code__.co_cellvars} - {"ctx"}
    inner = [n for n in code.nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))]

    def call(node, name, text):
        bindings.append(Binding(code, code.line(node), name, node))
        return f"{WATCH}({len(bindings) - 1}, {text})"

    def change(node, copy):
        if isinstance(node, ast.Return) and node.value and returns:
            return parsed(f"return {call(node, None, ast.unparse(node.value))}", node)
        if not isinstance(node, BINDING):
            return copy
        names, line = [x for x in bound_by(node) if x in own], head(node)
        watches = [parsed(f"{x} = {call(line, x, x)}", line) for x in names]
        if line is not node:
            copy.body[:0] = watches
            return copy
        return ast.If(ast.Constant(True), [copy, *watches], [])  # one statement

    within = {code.tree, *code.nodes}.difference(*map(ast.walk, inner))
    tree = rebuilt(code.tree, change, within)
    if arguments:
        tree.body[:0] = [parsed(call(code.tree, None, x), tree) for x in code.arguments]
    return ast.fix_missing_locations(tree)


def head(node):
    """Of a loop, its first line, as an assignment of what it runs over."""
    if not isinstance(node, ast.For):
        return node
    line = ast.copy_location(ast.Assign([node.target], node.iter), node)
    line.end_lineno, line.end_col_offset = (
        node.iter.end_lineno,
        node.iter.end_col_offset,
    )
    return line


class Method:
    """A method of a Function, or a reference, and what it calls: their locals are watched."""

    def __init__(self, method, cls, from_arguments=False):
        self.callee, method = method, lines_of(method)
        self.codes, self.bindings = codes_of([method], cls), []
        if not self.codes or self.codes[0].fn is not inspect.unwrap(method):
            raise UnsuitableError
        self.trees = {
            code: watched(code, self.bindings, not k, from_arguments and k)
            for k, code in enumerate(self.codes)
        }

    @contextlib.contextmanager
    def running(self, seen):
        """seen(key, value): what takes its place; key: a `Key`."""
        turns = {}

        def watch(number, value):
            turn = turns[number] = turns.get(number, -1) + 1
            binding = self.bindings[number]
            if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
                items = [seen(Key(binding, turn, k), x) for k, x in enumerate(value)]
                same = all(map(operator.is_, items, value))
                return value if same else type(value)(items)
            return seen(Key(binding, turn, None), value)

        with watching(self.trees, watch):
            yield

    def argument(self, k):
        """What argument k is called."""
        return argument_names(self.callee, k + 1)[k]


def lines_of(callee):
    """The function whose lines it runs."""
    if isinstance(callee, functools.partial):
        return callee.func
    method = getattr(callee, "forward", callee)  # of a module
    return getattr(method, "__func__", method)


# --- forward once more, while autograd records ----------------------------------------


@dataclass(frozen=True)
class Local:
    """A local of forward: its edge in the graph, its value and the right gradient.

    uses: (node, what it contributes) of each; the node is None for what is returned
    A constant has no edge.
    """

    name: str
    line: int
    edge: GradientEdge | None
    value: torch.Tensor
    gradient: torch.Tensor | None
    uses: tuple

    @property
    def parts(self):
        """The numbers of its uses, if they are several, and not too many."""
        n = len(self.uses)
        return range(n) if 1 < n <= USES else ()


def is_kept(value):
    """Is it a tensor, of which a copy is kept, or a number with a fraction?"""
    small = torch.is_tensor(value) and value.numel() <= MOST_ELEMENTS
    return small or isinstance(value, float)


def edge_of(tensor):
    """Where its gradient arrives, the same of each tensor that has it there."""
    return GradientEdge(*get_gradient_edge(tensor)[:2])


def copied(a):
    return a.detach().clone() if torch.is_tensor(a) else a


class Record:
    """What forward's own gradients are in one call, which is made again.

    bindings, turns: {node: the `Binding` that made it, in which run}; locals: a list of
    `Local`, its arguments first; others: values of masks, indices and factors;
    gradients: of each argument, or None; grads: what backward takes
    """

    def __init__(self, watched, grads, forward, ctx_too, arguments, random):
        self.bindings, found, last, constants = {}, [], {}, []
        self.others, self.turns = [], {}
        self.grads = [*filter(torch.is_tensor, grads)]

        def seen(key, value):
            binding, name = key.binding, key.name
            if torch.is_tensor(value) and value.grad_fn is not None:
                # The nodes that this line has made.
                new = graph([value], self.bindings)
                self.bindings |= dict.fromkeys(new, binding)
                self.turns |= dict.fromkeys(new, key.turn)
                edge = edge_of(value)
                if is_kept(value) and name and last.get(name) != edge:
                    last[name] = edge
                    found.append((name, binding.line, edge, copied(value)))
            elif is_number(value) and is_kept(value) and name:
                at = name, binding.line, None, copied(value)
                constants.append(Local(*at, gradient=None, uses=()))
            elif is_kept(value):
                self.others.append(copied(value))
            return value

        given, edges, ctx = [*map(copied, arguments)], {}, FunctionCtx()
        ctx.needs_input_grad = tuple(map(is_number, given))
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            for k, a in enumerate(given):
                if is_number(a):  # no leaf, for forward may change what it is given
                    given[k] = a.requires_grad_().clone()
                    edges[k] = edge_of(given[k])
            torch.set_rng_state(random)
            with watched.running(seen):
                outputs = forward(*([ctx] if ctx_too else []), *given)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        constant = getattr(ctx, "non_differentiable", ())
        of_arguments = [
            (watched.argument(k), 0, edge, arguments[k]) for k, edge in edges.items()
        ]
        pairs = [
            (out, grad)
            for out, grad in zip(outputs, grads, strict=False)
            if torch.is_tensor(out)
            and out.requires_grad
            and grad is not None
            and not any(out is c for c in constant)
        ]
        self.locals = self.differentiated(pairs, [*of_arguments, *found])
        pairs = zip(edges, self.locals, strict=False)
        rights = {k: local.gradient for k, local in pairs}
        self.gradients = tuple(map(rights.get, range(len(arguments))))
        self.locals += constants
        self.others += filter(is_kept, arguments)
        # For other sizes, a loop makes more locals of a line, or fewer.
        lines = [(local.name, local.line) for local in self.locals]
        self.marks = [(x, lines[k:].count(x)) for k, x in enumerate(lines)]

    def differentiated(self, pairs, found):
        """A `Local` of each that is found, for these pairs (output, its gradient)."""
        parts, edges = {}, [edge for _name, _line, edge, _value in found]
        hooks = [
            node.register_hook(
                lambda inputs, _grads, node=node: parts.update({node: inputs})
            )
            for node in self.bindings
        ]
        rights = [None] * len(edges)
        if pairs and edges:
            outs, vs = zip(*pairs, strict=True)
            rights = torch.autograd.grad(
                outs, edges, vs, allow_unused=True, retain_graph=True
            )
        for hook in hooks:
            hook.remove()
        uses = {}
        for node, given in parts.items():
            for following, part in zip(node.next_functions, given, strict=False):
                if part is not None:
                    uses.setdefault(GradientEdge(*following), []).append((node, part))

        def place(use):
            return self.bindings[use[0]].line, use[0].name()

        for of_edge in uses.values():
            of_edge.sort(key=place)
            if len(of_edge) > USES:
                of_edge[:] = self.over_all_runs(of_edge, place)
        for out, grad in pairs:
            uses.setdefault(edge_of(out), []).append((None, grad))
        return [
            Local(*one, right, tuple(uses.get(one[2], ())))
            for one, right in zip(found, rights, strict=True)
        ]

    def over_all_runs(self, uses, place):
        """The uses by a loop, one for each place, or if those are few, for each step."""
        found, numbers = {}, collections.Counter()
        for use in uses:
            at = place(use)
            run = at, self.turns[use[0]]
            found.setdefault((at, numbers[run]), []).append(use)
            numbers[run] += 1
        if len(found) > USES:
            found = {at: [*same] for at, same in itertools.groupby(uses, place)}
        return [(same[0][0], sum(part for _n, part in same)) for same in found.values()]

    def without(self, local, j, k):
        """The gradient of this local, but for what comes through use k of local j."""
        other, ends = self.locals[j], {"retain_graph": True, "allow_unused": True}
        share = other.uses[k][1]
        (part,) = torch.autograd.grad([other.edge], [local.edge], [share], **ends)
        return local.gradient - (0 if part is None else part)


# --- the chain ------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What a local of backward should hold, by the number of a local of forward.

    That is its gradient, or the sum of some of its uses, or its value.

    turned:  is it transposed?
    lost:    (j, k): of its gradient, what comes through use k of local j is left out
    skipped: in each run of a loop, the gradient of what forward assigned to this name in
             this line, the last first, but for so many; then of what had this name at
             first. None if there is no loop.
    beside:  (key, target) of what should be put in place together with it
    """

    local: int
    uses: tuple | None = None
    value: bool = False
    turned: bool = False
    lost: tuple | None = None
    skipped: int | None = None
    beside: tuple = ()

    def of(self, record, like, run=0):
        """It, in the shape of `like`; `like` itself in a run for which there is none."""
        local = record.locals[self.local]
        if self.skipped is not None:
            left = versions(record, local)[self.skipped + run :]
            if not left:
                return like
            local = left[0]
        found = local.value if self.value else local.gradient
        if self.uses is not None:
            found = sum(local.uses[k][1] for k in self.uses)
        if self.lost:
            found = record.without(local, *self.lost)
        found = (found.mT if self.turned else found).to(like.dtype)
        # The engine sums what broadcast, as far as the input's shape.
        return found.reshape_as(like) if found.numel() == like.numel() else found


def versions(record, local):
    """What had this name whenever this line of forward ran, the last first.

    Then what had it at first, as what a loop starts from has.
    """
    of_name = [
        other
        for other in record.locals
        if other.name == local.name and other.gradient is not None
    ]
    of_line = [other for other in of_name[1:] if other.line == local.line]
    return [*reversed(of_line), *of_name[:1]]


class Chain:
    """The forward and backward of one Function, each with its locals watched.

    A reference of the same arguments, if one is given, takes the place of forward.
    """

    def __init__(self, cls, reference=None):
        self.cls, self.reference, self.by_forward = cls, reference, takes_ctx(cls)
        self.forward = Method(reference or cls, cls, from_arguments=True)
        self.backward = Method(backward_of(cls), cls)
        # A kernel may take no memory but what its own code has prepared.
        if not all(harmless(code, cls) for code in self.backward.codes):
            raise UnsuitableError

    @contextlib.contextmanager
    def running(self, of_call):
        """For a while, of_call(record, backward, ctx, grads) runs as backward."""
        calls = {}

        def heard(method, cls, *args):
            if cls is self.cls:
                forward = self.reference or (method if self.by_forward else cls.forward)
                given = args[1:] if self.by_forward else args[1]
                ctx_too = self.by_forward and not self.reference
                random = torch.get_rng_state()
                calls[args[0]] = forward, ctx_too, [*map(copied, given)], random
            return method(*args)

        def back(method, cls, ctx, *grads):
            if ctx not in calls:
                return method(ctx, *grads)
            record = Record(self.forward, grads, *calls[ctx])
            return of_call(record, method, ctx, grads)

        name = "forward" if self.by_forward else "setup_context"
        with methods(name, heard), methods("backward", back):
            yield

    def instead(self):
        """forward's own gradients in place of those that backward returns."""
        return self.running(lambda record, *_others: record.gradients)

    def putting(self, key, target, known):
        """The same backward, but for one local, which holds what it should.

        known: the `Record` by whose numbers the target is given
        """
        every = target.skipped is not None

        def of_call(record, backward, ctx, grads):
            def number(local):
                return record.marks.index(known.marks[local])

            def here_too(one):
                lost = one.lost and (number(one.lost[0]), one.lost[1])
                return replace(one, local=number(one.local), lost=lost)

            puts = {k: here_too(one) for k, one in ((key, target), *target.beside)}

            def seen(here, value):
                put = puts.get(here._replace(turn=key.turn) if every else here)
                if not put or not torch.is_tensor(value):
                    return value
                # A copy, for backward may write into it.
                return copied(put.of(record, value, here.turn))

            with self.backward.running(seen):
                return backward(ctx, *grads)

        return self.running(of_call)

    def draw(self, wrong, turn):
        """({key: value} of the locals, record) of a backward pass's first call."""
        found = []

        def of_call(record, backward, ctx, grads):
            events, last = {}, {}

            def seen(key, value):
                here = (id(value), getattr(value, "_version", 0))
                is_new = last.get(key.name, 0) != here
                if is_new and (is_number(value) or is_kept(value)):
                    events[key] = copied(value)
                last[key.name] = here
                return value

            with self.backward.running(seen):
                result = backward(ctx, *grads)
            found.append((events, record))
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

    said: what is there, and what should be; right_so_far: what is right before it
    file, line, name: where it stands; is_part: is a path missing? is_cause: of all that
    is wrong? lines: its own and those that may be wrong in its place
    """

    said: str
    right_so_far: str
    file: str
    line: int
    name: str | None
    is_part: bool
    is_cause: bool
    lines: tuple

    def is_of_it(self, edit):
        """Does this edit add to what that line has made, where it is read?"""
        return self.is_part and getattr(edit.node, "id", None) == self.name

    def words(self):
        """As a `Finding` holds it."""
        names = "right_so_far", "file", "line"
        own = {name: getattr(self, name) for name in names}
        return {"first_wrong": self.said, **own}


def first_wrong(wrong, budget):
    """The `FirstWrong` of this `WrongGradient`, or None where nothing is proved."""
    subject = wrong.here.subject
    forwards = dict.fromkeys([None, subject.reference])
    for cls, reference in itertools.product(subject.functions, forwards):
        with contextlib.suppress(UnsuitableError), forgiving():
            chain = Chain(cls, reference)
            if right_under(chain.instead(), wrong.at):
                if found := Search(chain, wrong, budget).found():
                    return found
    return None


class Search:
    """The first local of backward that is wrong, as interventions prove."""

    def __init__(self, chain, wrong, budget):
        self.chain, self.wrong, self.budget = chain, wrong, budget
        # At other values, where there are some, or all that is no gradient is a constant.
        others = (*wrong.at[1:], *wrong.in_reverse, wrong.here)
        self.draws = [chain.draw(wrong.here, 0), chain.draw(others[0], 1)]
        (events, self.record), (others, other) = self.draws
        if outline(self.record) != outline(other):  # forward took another branch there
            self.draws[1] = chain.draw(wrong.here, 1)
        self.events = {key: events[key] for key in events if key in others}
        self.stay, self.proofs, self.paths = guard_of(wrong), 0, 0
        self.right = {}  # {key: the `Target` that it holds, as its name says}
        self.sums = {}  # by name: the last `Target` that is a sum of uses
        numbers = [key for key, value in self.events.items() if is_number(value)]
        self.held = {key: self.target_of(key) for key in numbers}

    def holds(self, key, target):
        """Does this local hold it, at both draws?"""
        pairs = ((events[key], record) for events, record in self.draws)
        return all(alike(value, target.of(record, value)) for value, record in pairs)

    def found(self):
        """The first local that is wrong.

        What it may be meant for by its value or its name is tried of all before
        anything else is.
        """
        wrong, of_runs, symptom = [], [], None
        for key, held in self.held.items():
            if held and held.uses is None and not self.is_of_another(key, held):
                self.right[key] = held
            elif not self.is_forwards(key):
                wrong.append(key)
            elif self.turns(key) > 1 and not is_filled(key.binding):
                # Perhaps it is what another run has.
                of_runs.append(key)
        # What is filled later is right so far only if it is right then, too.
        after = [(k, j) for k in self.right for j in self.filled_after(k)]
        for key in {k for k, j in after if j not in self.right}:
            del self.right[key]

        into = (k for key in self.right for k in self.going_into(key))
        proven = {(k.binding, k.turn) for k in into}  # other runs may be wrong
        left = [k for k in (*wrong, *of_runs) if (k.binding, k.turn) not in proven]
        self.suspects = {k for k in left if self.stays(k) or not self.is_taken(k)}
        own = self.chain.backward.codes[0]  # what is called often is tried last
        wrong.sort(key=lambda k: k.binding.code is not own and self.turns(k) > 1)
        others = self.events.keys() - self.held.keys()  # masks, indices, factors
        self.suspects |= {k for k in others if k.name and not self.is_known(k)}
        starts = [k for k in of_runs if not k.turn]
        tried = (
            (self.likely, wrong),
            (self.of_another_run, starts),
            (self.unlikely, wrong),
        )
        for candidates, keys in tried:
            for key in keys:
                told, target, relation = self.told(key, candidates)
                if told and told.is_cause:
                    before = () if relation else self.suspects_of(key)
                    earlier = (self.told(k, self.unlikely, target)[0] for k in before)
                    return next((t for t in earlier if t and t.is_cause), told)
                symptom = symptom or told
        return symptom

    def told(self, key, candidates, last=None):
        """(the `FirstWrong` of this local, target, relation) by the first that is proved.

        last: what a local that this one goes into should be: of several lines that make
              one gradient, nobody knows which is wrong
        """
        for target, relation in candidates(key):
            apart = not last or target.local != last.local
            if apart and self.proved(key, put := self.in_each_run(key, target)):
                return self.in_words(key, target, put, relation), target, relation
        return None, None, None

    def stays(self, key):
        """Does it hold in a loop what another line or run of it held already?"""
        return self.turns(key) > 1 and self.held[key] and key not in self.right

    def is_taken(self, key):
        """Is it one number, or are all its elements those of something right?"""
        value = self.events[key]
        right = [*self.record.grads, *(self.events[k] for k in self.right)]
        akin = [v for v in right if v.is_complex() == value.is_complex()]
        every = torch.cat([*map(as_vector, akin or right)])
        return is_flat(value) or bool(torch.isin(as_vector(value), every).all())

    def is_known(self, key):
        """Has forward the same mask, index or factor?"""
        value = self.events[key]
        akin = [x for x in self.record.others if type(x) is type(value)]
        if not torch.is_tensor(value):
            return value in akin
        return any(torch.equal(x, value) for x in akin if x.dtype == value.dtype)

    def before(self, key):
        """What was bound before this local."""
        return itertools.takewhile(lambda k: k != key, self.events)

    def after(self, key):
        """What was bound after this local."""
        later = itertools.dropwhile(lambda k: k != key, self.events)
        return itertools.islice(later, 1, None)

    def filled_after(self, key):
        """What this local is when a line after this one has changed it."""
        later = self.after(key)
        return [k for k in later if k.name == key.name and is_filled(k.binding)]

    def going_into(self, key):
        """What the names in the line of this local hold there."""
        last = {(k.binding.name, k.item): k for k in self.before(key)}
        node = key.binding.node
        items = getattr(getattr(node, "value", None), "elts", ())
        target = getattr(node, "targets", [None])[0]
        names = [*map(root, getattr(target, "elts", ()))]
        if not any(isinstance(x, ast.Starred) for x in items):
            if len(names) == len(items) and key.binding.name in names:
                node = items[names.index(key.binding.name)]
            elif items and key.item is not None:
                node = items[key.item]
        read = names_in(node)
        return [k for (name, _item), k in last.items() if name in read]

    def suspects_of(self, key):
        """What may be wrong of that which goes into this local."""
        return [k for k in self.going_into(key) if k in self.suspects]

    def is_forwards(self, key):
        """Is it right as it is, for forward has computed it, too, by no other name?

        Of a list, another name says that its items may be meant for something else.
        """
        of_forward = [local for local in self.record.locals if local.name == key.name]
        known = of_forward or (self.record.locals if key.item is None else ())
        return any(alike(self.events[key], local.value) for local in known)

    def is_of_another(self, key, held):
        """Does its name say that it should hold the gradient of another local?

        Or does another name hold this one already, another run of its loop, or in a
        loop another line, so that this one has not moved on?
        """
        name, holding = key.name, [k for k, t in self.held.items() if t == held]
        runs = [k for k in holding if k._replace(turn=key.turn) == key]
        lines = [k for k in holding if k.name == name and self.turns(k) > 1]
        bare = [local.name.partition("[")[0] for local in self.record.locals]
        moves_on = runs == [key] and (lines or [key])[0] == key
        if bare.count(bare[held.local]) > 1 and not moves_on:
            return True
        if name is None:
            x = self.chain.forward.argument(key.item or 0)
            own = (j for j, local in enumerate(self.record.locals) if local.name == x)
            return not any(self.holds(key, Target(j)) for j in itertools.islice(own, 1))
        if self.is_mate(name, held):
            return False
        known = {k.name for k, t in self.right.items() if t.local == held.local}
        mates = (self.is_mate(name, t) for t in self.targets(self.events[key]))
        return bool(known - {None, name}) or any(mates)

    def target_of(self, key):
        """The `Target` whose value this local holds at two draws, or None."""
        if is_flat(self.events[key]):
            return None
        name = key.name
        # One value may be the gradient of several locals, and a part of others.
        targets = sorted(
            self.targets(self.events[key]),
            key=lambda t: (t.uses is not None, not (name and self.is_mate(name, t))),
        )
        for target in (*targets, *self.next_sums(name)):
            if self.holds(key, target):
                if name and target.uses:
                    self.sums[name] = target
                return target
        return None

    def next_sums(self, name):
        """What a local that sums uses, one after the other, may hold next."""
        last = self.sums.get(name)
        bound = [b for b in self.chain.backward.bindings if b.name == name]
        if last and (len(bound) > 1 or any(map(is_filled, bound))):
            n = len(self.record.locals[last.local].uses)
            for k in range(n):
                if k not in last.uses and len(last.uses) + 1 < n:
                    yield replace(last, uses=(*last.uses, k))

    def targets(self, value):
        """The gradients of forward's locals, and their parts, of this many elements."""
        for j, local in enumerate(self.record.locals):
            right = local.gradient
            if (
                right is None
                or right.numel() != value.numel()
                or right.is_complex() != value.is_complex()
            ):
                continue
            turnable = right.dim() > 1 and right.mT.shape == value.shape != right.shape
            for turned in (True, False) if turnable else (False,):
                yield Target(j, turned=turned)
                for k in local.parts:
                    yield Target(j, (k,), turned=turned)

    def likely(self, key):
        """(target, relation) of what this local may be meant to hold.

        relation: how it differs from that: (template, what fills its gaps), or None
        """
        name, value = key.name, self.events[key]
        whole = [t for t in self.targets(value) if t.uses is None]
        telling = [] if is_flat(value) else whole
        for target in telling:
            if part := self.part_of(key, target):
                yield target, part
        yield from ((target, None) for target in self.next_sums(name))
        yield from self.less_a_path(key, telling)
        if not self.may_be_more(key):
            return
        for target in telling:
            if off := self.factor_of(key, target) or self.path_missing(key, target):
                yield target, off
        # What a loop fills is no gradient before its last turn.
        of_a_loop = [t for t in whole if self.record.locals[t.local].line]
        for target in whole if self.turns(key) == 1 else of_a_loop:
            if self.is_mate(name, target):
                yield target, None
        for j, local in enumerate(self.record.locals):
            if local.name == name and local.value.numel() == value.numel():
                yield Target(j, value=True), None

    def of_another_run(self, key):
        """The same of what forward has in one run of a loop, and another run needs.

        All that one line binds there is taken together.
        """
        line = [k for k in self.held if k.binding.node is key.binding.node]
        found = {k: self.run_of(k) for k in line if k.turn == key.turn}
        found = {k: run for k, run in found.items() if run}
        if [*found][:1] != [key]:
            return
        for steps in (0, 1):
            puts = {
                k: Target(j, value=True, skipped=run + steps)
                for k, (j, run) in found.items()
            }
            said = [*filter(None, itertools.starmap(self.differs, puts.items()))]
            if said:
                (_key, target), *others = puts.items()
                relation = "{each}", {"each": listed(said, last=_(", and "))}
                yield replace(target, beside=tuple(others)), relation

    def run_of(self, key):
        """(number of a local, which run, counted from the last) that it holds, or None."""
        for j, local in enumerate(self.record.locals):
            if local.line and local.gradient is not None:
                for run, x in enumerate(versions(self.record, local)):
                    if alike(self.events[key], x.value):
                        return j, run
        return None

    def differs(self, key, target):
        """In words, in which run this local first differs from what it should be."""
        due = versions(self.record, self.record.locals[target.local])
        runs = [k for k in self.events if k == key._replace(turn=k.turn)]
        numbers = range(len(due) - 1 - target.skipped, -1, -1)
        for k, right, run in zip(runs, due[target.skipped :], numbers, strict=False):
            if not alike(self.events[k], right.value):
                named = {"name": right.name, "line": right.line}
                there = _(THE_ARGUMENT, name=right.name)
                if right.line:
                    there = _(IN_A_RUN, run=run, runs=len(due) - 1, **named)
                return _(OF_RUN, here=self.here(k), there=there)
        return None

    def less_a_path(self, key, targets):
        """The same of what is returned, if only a path is missing."""
        returned = key.name is None and self.chain.forward.argument(key.item or 0)
        for target in targets:
            is_its = self.record.locals[target.local].name == returned
            if is_its and (part := self.path_missing(key, target)):
                yield target, part

    def unlikely(self, key):
        """The same of whatever has as many elements, in a loop what a loop has made."""
        value = self.events[key]
        if self.may_be_more(key) and not is_flat(value):
            alone, locals_ = self.turns(key) == 1, self.record.locals
            for target in self.targets(value):
                is_of_loop = locals_[target.local].line and target.uses is None
                if alone or is_of_loop:
                    yield target, None

    def may_be_more(self, key):
        """May it be meant for more than it holds?

        That what is returned should be the gradient says nothing; and what was handed
        over, or is a use, is what it is.
        """
        returned = key.name is None
        by_a_loop = any(self.turns(k) > 1 for k in self.filled_after(key))
        is_begun = by_a_loop and is_flat(self.events[key])  # as by zeros_like
        given = any(alike(self.events[key], g) for g in self.record.grads)
        is_use = self.held[key] and self.held[key].uses is not None
        is_right = key in self.right
        return not (returned or is_begun or given or is_use or is_right)

    def is_mate(self, name, target):
        bare = re.sub(r"^(grad|d|g)_?|_?(grad|bar)$", "", name, flags=re.I)
        other = self.record.locals[target.local].name
        return bare.lower().replace("_", "") == other.lower().replace("_", "")

    def part_of(self, key, target):
        """Which uses are missing, if it holds the sum of some but not all; or None."""
        local = self.record.locals[target.local]
        if self.is_term(key, local):
            return None
        for size in reversed(local.parts[1:]):
            for uses in itertools.combinations(local.parts, size):
                if self.holds(key, replace(target, uses=uses)):
                    lost = [k for k in local.parts if k not in uses]
                    due = [k for k in lost if not self.adds(key, local.uses[k][1])]
                    return PART, {"uses": self.through(local, due or lost)}
        return None

    def adds(self, key, part):
        """Does the next line that binds this name add only that, as a loop's next run?"""
        after = (k for k in self.after(key) if k.name == key.name)
        value, later = self.events[key], self.events.get(next(after, None))
        same = later is not None and later.shape == value.shape
        return same and alike(later - value, part)

    def is_term(self, key, local):
        """Is it, in each run of a loop, a term of a gradient that the loop adds up?"""
        node = key.binding.node
        again = key.name in names_in(getattr(node, "value", node))
        of_one = len(versions(self.record, local)) == 1
        return of_one and self.turns(key) > 1 and not (again or is_filled(key.binding))

    def path_missing(self, key, target):
        """The use of another local through which nothing comes to this one, or None."""
        if self.turns(key) > 1 or key.name and not self.is_mate(key.name, target):
            return None
        for j, local in enumerate(self.record.locals):
            for k in local.parts if j != target.local else ():
                if self.paths >= PATHS:
                    return None
                self.paths += 1
                if self.holds(key, replace(target, lost=(j, k))):
                    return PART, {"uses": self.through(local, [k], whole=False)}
        return None

    def factor_of(self, key, target):
        """The factor of the right gradient, the same at two draws, or None."""
        found = []
        for events, record in self.draws:
            value = events[key]
            right = target.of(record, value)
            size = right.norm() ** 2
            factor = (torch.vdot(right.flatten(), value.flatten()) / size).item()
            is_right = alike(value, right)  # in this run, if not in others
            if not factor or is_right or not alike(value, factor * right):
                return None
            found.append(factor)
        if abs(found[0] - found[1]) > 1e-6 * abs(found[0]):
            return None
        return MULTIPLE, {"factor": brief(found[0])}

    def proved(self, key, target):
        """Does this target mend the wrong gradients, and keep the right ones?"""
        if self.proofs >= PROOFS or self.budget.is_spent:
            return False
        self.proofs += 1
        self.budget.spent += 1
        # With other sizes, a loop takes other turns.
        others = self.wrong.in_reverse if self.turns(key) > 1 else self.wrong.others
        with forgiving(), self.chain.putting(key, target, self.record):
            return are_right(self.wrong.at) and self.stay() and are_right(others)
        return False

    def in_each_run(self, key, target):
        """The same for each run of the loop in which the local stands, if it can be."""
        local, name = self.record.locals[target.local], key.name
        if self.turns(key) == 1 or name is None or target.uses or target.value:
            return target
        of_name = versions(self.record, local)
        skipped = next(k for k, x in enumerate(of_name) if x is local) - key.turn
        return replace(target, skipped=skipped) if skipped >= 0 else target

    def turns(self, key):
        """How often this line ran."""
        return len({k.turn for k in self.events if k.binding is key.binding})

    # --- in words ---------------------------------------------------------------------

    def in_words(self, key, target, put, relation):
        putting = self.chain.putting(key, put, self.record)
        is_cause = right_under(putting, self.wrong.together)
        binding, locals_ = key.binding, self.record.locals
        local = locals_[target.local]
        gaps = {"here": self.here(key), "there": f"`{local.name}`"}
        if local.line:
            name = {"name": local.name, "line": local.line}
            gaps["there"] = _(OF_FORWARD, **name)
            if self.chain.reference:
                of = self.chain.forward.codes[0].fn.__qualname__.rpartition(">.")[2]
                gaps["there"] = _(OF_REFERENCE, function=of, **name)
        if target.uses is not None:
            relation = SHARE, {"uses": self.through(local, target.uses)}
        going = self.suspects_of(key)
        for k in going:  # and what goes into these, in its last run
            named = {j.binding for j in going}
            going += [j for j in self.suspects_of(k) if j.binding not in named]
        going = [k for k in self.events if k in going and k.binding is not binding]
        # A list as a whole.
        whole = (k._replace(item=None) if is_filled(k.binding) else k for k in going)
        suspects = dict.fromkeys(map(self.here, whole))
        names = [code.fn.__name__ for code in self.chain.backward.codes[1:]]
        for name in names_in(binding.node).intersection(names):
            suspects[f"`{name}`"] = None
        # In a loop, what is right for its run may be wrong for the next; and what is
        # filled may be wrong in a part that another line has filled.
        more_lines = self.turns(key) > 1 or is_filled(binding)
        plain = GRADIENT if suspects or more_lines else OF_RIGHT
        text, more = relation or (VALUE if target.value else plain, {})
        known = {k.name: k for k in self.before(key) if k in self.right}
        said = [
            _(RIGHT, here=self.here(k), other=locals_[self.right[k].local].name)
            for k in known.values()
            if k.name
        ]
        file = binding.code.fn.__code__.co_filename
        before = () if relation else self.suspects_of(key)
        places = [binding, *(k.binding for k in before)]
        lines = dict.fromkeys((b.code.fn.__code__.co_filename, b.line) for b in places)
        what = _(text, **gaps | more)
        lead = BEFORE if suspects else FIRST if is_cause else NOT_ALONE
        sentence = _(lead, what=what, suspects=listed([*suspects]))
        return FirstWrong(
            sentence,
            listed(said),
            file,
            binding.line,
            key.name,
            text is PART,
            is_cause,
            tuple(lines),
        )

    def enters(self, binding, nodes):
        """Does all that goes into this line of forward go into these nodes of it?"""
        bindings = self.record.bindings
        return all(
            n in nodes
            or all(bindings.get(f) is binding for f, _k in n.next_functions if f)
            for n in bindings
            if bindings[n] is binding
        )

    def here(self, key):
        """What backward holds there, in words."""
        line, name = key.binding.line, key.name
        if name is None:
            x = self.chain.forward.argument(key.item or 0)
            return _(RETURNED, name=x, line=line)
        runs = self.turns(key)
        if runs > 1 and not is_filled(key.binding):  # which is wrong as a whole
            return _(IN_A_RUN, name=name, line=line, run=key.turn + 1, runs=runs)
        return _(LOCAL, name=name, line=line)

    def through(self, local, uses, whole=True):
        """These uses in words: the lines of forward, or operations in them.

        whole: may all that comes through such a line be meant?
        """
        bindings, found = self.record.bindings, {}
        for k in uses:
            node = local.uses[k][0]
            found.setdefault(node and bindings[node], []).append(node)
        said = [_(OUTPUT)] if found.pop(None, ()) else []
        for binding, nodes in found.items():
            if binding.node is binding.code.tree:
                said.append(_(ARGUMENT, function=binding.code.fn.__name__))
                continue
            there = [n for n, _c in local.uses if n and bindings[n] is binding]
            text = binding.code.source_of(binding.node)
            text = textwrap.shorten(text, 70, placeholder=" …")
            gaps = {"line": binding.line, "text": text}
            is_whole = len(nodes) == len(there) and (
                whole or self.enters(binding, nodes)
            )
            # What is returned beside them does not come through them.
            is_end = isinstance(binding.node, ast.Return)
            is_whole &= not (is_end and any(n is None for n, _c in local.uses))
            for node in () if is_whole else nodes:
                operation = written(node, binding.code.source_of(binding.node))
                alike = [n for n in there if n.name() == node.name()]
                turn = self.record.turns[node]
                beside = [n for n in alike if self.record.turns[n] == turn]
                several, again = len(beside) > 1, len(alike) > len(beside)
                named = several and not again
                made = named and made_by(node, beside, local, binding, operation)
                one = ONE_OF_LINE if several else IN_RUN if again else IN_LINE
                one = OF_FORWARD if made else one
                filled = (made or gaps) | {"operation": operation, "run": turn + 1}
                said.append(_(one, **filled))
            if is_whole:
                every = self.chain.forward.bindings
                every = [b for b in every if b.node is binding.node]
                made = all(b in bindings.values() for b in every)  # each by a step
                one = OF_FORWARD if len(every) > 1 and made else WHOLE_LINE
                said.append(_(one, name=binding.name, **gaps))
        return listed(dict.fromkeys(said), last=_(" and "))


def written(node, text):
    """The operation of a node of the graph, as a line of forward calls it."""
    name = re.sub(r"Backward\d*$", "", node.name())
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    others = "einsum", "transpose", "mT", "T"  # of which it is a step
    called = (x for x in (name, *others) if re.search(rf"\b{x}\b", text))
    return next(called, name)


OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
INDEXING = "index", "select", "slice", "unsqueeze"


def made_by(node, beside, local, binding, operation):
    """The gaps of the expression that made this node, or None if that is not known.

    beside: the nodes that this run of the statement has made of the local by the same
            operation, as often as they use the local
    """

    def is_made_of(e):
        if isinstance(e, ast.Subscript):
            called, operands = operation if operation in INDEXING else None, [e.value]
        elif isinstance(e, ast.BinOp):
            called, operands = OPERATORS.get(type(e.op)), [e.left, e.right]
        else:
            called = getattr(e.func, "attr", getattr(e.func, "id", None))
            operands = [getattr(e.func, "value", None), *e.args]
        names = [getattr(x, "id", None) for x in operands]
        return called == operation and local.name in names

    def place(e):  # what is inside is computed first
        return e.end_lineno, e.end_col_offset, -e.lineno, -e.col_offset

    kinds = ast.BinOp, ast.Call, ast.Subscript
    found = [
        e for e in ast.walk(binding.node) if isinstance(e, kinds) and is_made_of(e)
    ]
    if len(found) != len(beside):
        return None
    number = sorted(beside, key=lambda n: n._sequence_nr()).index(node)
    found = sorted(found, key=place)[number]
    text = textwrap.shorten(binding.code.source_of(found), 70, placeholder=" …")
    return {"line": binding.code.line(found), "name": text}


def is_filled(binding):
    """Does its line change what has this name, as a list, rather than bind it anew?"""
    target = getattr(binding.node, "targets", [None])[0]
    changes = isinstance(binding.node, (ast.Expr, ast.AugAssign))
    return changes or isinstance(target, ast.Subscript)


def outline(record):
    """What two records of the same call must have in common."""
    return [(local.name, local.line, len(local.uses)) for local in record.locals]


def is_flat(value):
    """Does it say nothing: the same number everywhere, or a whole number alone?"""
    if value.numel() == 1:
        return value.is_complex() or bool(value == value.round())
    return bool((value == value.reshape(-1)[:1]).all())


def alike(value, right):
    """Are they the same but for rounding, and do they say anything?"""
    if value.shape != right.shape or value.dtype != right.dtype or is_flat(right):
        return False
    return nearly_equal(value, right)
