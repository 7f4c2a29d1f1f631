"""What edits of a backward would change, foreseen: no backward runs for each of them.

Backward runs once with all it assigns and returns recorded, and once more to compute, at each of
these places, what every edited expression would make there. How the gradient changes with what is
made at a place, autograd says: a few products of numbers show which edits may mend it.
"""

import ast
import contextlib
import itertools
import re

import torch

from .changes import is_real
from .edits import parsed
from .repair import flat, forgiving, projected
from .source import at, made_in
from .subject import of_a_signal

PROBE, AT_ONCE, LOOKS = "what_the_doctor_probes", 500, 40_000
MOST = 6000  # edits
HARM = r"\w_\(|\b(append|extend|insert|next|pop|setdefault|update)\(|:="  # changes what is there


class Place:
    """An expression that is assigned or returned; slopes: of the projections, each time."""

    def __init__(self, owner, key):
        self.owner, self.key, self.nodes = owner, key, set(ast.walk(at(owner, key)))
        self.leaves, self.slopes, self.times, self.is_exact = [], [], 0, False


def handed_in(nodes):
    """(owner, key) of what is handed to a method that is called for what it does."""
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(), args=args)):
                yield from ((args, k) for k in range(len(args)))


class Foresight:
    """source: of what is edited; run(function): the gradient that it returns, or None"""

    def __init__(self, source, run, case):
        self.source, self.run, self.looks = source, run, LOOKS
        slots = [*made_in(source.body), *handed_in(source.body)]
        nodes = [(*slot[:2], at(*slot[:2])) for slot in slots]
        self.places = [
            Place(owner, key) for owner, key, node in nodes
            if not isinstance(node, (ast.Starred, ast.Constant, type(None)))
            and not re.search(HARM, ast.unparse(node))
        ]  # fmt: skip
        self.weights, self.target, self.limit = projected(case)
        try:
            self.record(case)
        except RuntimeError:  # something was changed in place that is needed
            with torch.autograd.graph.allow_mutation_on_saved_tensors():
                self.record(case)
        for number, place in enumerate(self.places):
            place.is_exact = len(place.leaves) == place.times > 0 and self.is_linear(number)

    def record(self, case):
        """The gradient, and how it changes with what is made at each place."""
        for place in self.places:
            place.leaves, place.slopes, place.times = [], [], 0
        self.given = self.gradient(self.recorded)
        if self.given is None or not self.given.requires_grad or not is_real(self.given):
            raise ValueError("nothing is recorded")
        off = (case.row(self.given) - case.given[0]).abs()
        if (off > case.limit[0].max()).any():
            raise ValueError("backward does something else when it is recorded")
        leaves = [leaf for place in self.places for leaf in place.leaves]
        rows = [torch.autograd.grad(self.given, leaves, w.reshape(case.shape).to(self.given.dtype),
                                    retain_graph=True, allow_unused=True)
                for w in self.weights]  # fmt: skip
        of_leaves = iter(list(zip(*rows, strict=True)))
        for place in self.places:
            for leaf in place.leaves:
                rows = [torch.zeros_like(leaf) if r is None else r for r in next(of_leaves)]
                place.slopes.append(torch.stack([flat([r]) for r in rows]))

    def gradient(self, probe, places=None):
        """What backward returns, if probe(number, value, variables) stands at each place."""
        chosen = enumerate(self.places) if places is None else places
        puts = []
        for number, place in chosen:
            call = parsed(f"{PROBE}({number}, 0, locals())")
            call.args[1] = at(place.owner, place.key)
            puts.append((place.owner, place.key, call))
        with self.source.edited(puts):
            function = self.source.compiled({PROBE: probe})
        return self.run(function)

    def recorded(self, number, value, variables):
        place = self.places[number]
        place.times += 1
        if not is_real(value):
            return value
        leaf = torch.zeros_like(value, requires_grad=True)
        place.leaves.append(leaf)
        return value + leaf

    def is_linear(self, number):
        """Does the gradient change as its slopes say, when something is added here?"""
        place, dice, moves = self.places[number], Moves(), []

        def moved(_, value, variables):
            moves.append(dice.like(value))
            return value + moves[-1]

        with forgiving():
            found = self.gradient(moved, [(number, place)])
            change = self.weights @ flat([found.detach() - self.given.detach()])
            foreseen = sum(s @ flat([m]) for s, m in zip(place.slopes, moves, strict=True))
            return bool((change - foreseen).norm() <= 1e-7 * foreseen.norm() + 1e-12)
        return False

    def ordered(self, edits):
        """These edits, those first that may mend it; some without those that cannot."""
        edits, later = itertools.islice(edits, MOST), []
        times = max((place.times for place in self.places), default=0)
        last, lot = times > 1, max(20, min(AT_ONCE, LOOKS // (8 * times or 1)))
        while self.looks > 0 and (some := list(itertools.islice(edits, lot))):
            likely, others = self.parted(some)
            yield from likely
            if last:
                later += others
            else:
                yield from others
        yield from itertools.chain(later, edits)

    def parted(self, edits):
        """(those that may mend it, the others)"""
        of_places, others = {}, []
        for order, edit in enumerate(edits):
            number = self.place_of(edit)
            if number is None:
                others.append((order, edit))
            else:
                trial = Trial(order, edit, self.compiled(edit, number))
                of_places.setdefault(number, []).append(trial)
        self.compute(of_places)
        likely = []
        for number, trials in of_places.items():
            self.find_surprises(number, trials)
            for trial in trials:
                pair = trial.order, trial.edit
                if trial.is_odd:
                    others.append(pair)
                elif trial.change is not None and trial.moves:
                    if (self.target - trial.change).norm() <= self.limit:
                        likely.append(pair)
                    elif not self.places[number].is_exact:
                        others.append(pair)
        return [[edit for _, edit in sorted(some, key=first)] for some in (likely, others)]

    def compute(self, of_places, moves=None):
        """What each trial changes; moves: of what is made at these places, for the next turns."""
        turns = dict.fromkeys(of_places, 0)
        self.looks -= sum(self.places[n].times * len(trials) for n, trials in of_places.items())
        within = []

        def tried(number, value, variables):
            if within:  # a function of its own, which a trial calls
                return value
            slopes, old = self.places[number].slopes[turns[number]], flat([value])
            turns[number] += 1
            scope = {**self.source.fn.__globals__, **variables}
            within.append(True)
            for trial in of_places[number]:
                trial.in_place_of(value, scope, slopes, old)
            within.clear()
            return value + moves.like(value) if moves else value

        with forgiving():
            self.gradient(tried, [(number, self.places[number]) for number in of_places])
            return
        for trial in itertools.chain(*of_places.values()):
            trial.is_odd = True

    def find_surprises(self, number, trials):
        """What changes more, or less, once it has been made otherwise before, nobody foresees."""
        if self.places[number].is_exact and self.places[number].times > 1:
            again = [Trial(trial.order, trial.edit, trial.code) for trial in trials]
            self.compute({number: again}, Moves())
            for trial, other in zip(trials, again, strict=True):
                if trial.change is not None and not trial.is_odd:
                    alike = other.change is not None and not other.is_odd
                    alike = alike and (trial.change - other.change).norm() <= self.limit
                    trial.is_odd = not alike and (self.target - trial.change).norm() > self.limit

    def place_of(self, edit):
        """The number of the place whose value is all that this edit changes, or None."""
        nodes = [at(*put[:2]) for put in edit.puts]
        for number, place in enumerate(self.places):
            if place.slopes and all(isinstance(n, ast.AST) and n in place.nodes for n in nodes):
                return number if len(place.slopes) == place.times else None
        return None

    def compiled(self, edit, number):
        place = self.places[number]
        with contextlib.suppress(Exception), self.source.edited(edit.puts):
            return compile(ast.Expression(at(place.owner, place.key)), "<edited>", "eval")
        return None


class Moves:
    """Something to add, about as large as what is there."""

    def __init__(self):
        self.dice = torch.Generator().manual_seed(9)

    def like(self, value):
        more = torch.randn(value.shape, generator=self.dice, dtype=torch.float64)
        return more.to(value) * (value.detach().abs().amax() + 1)


class Trial:
    """An edited expression.

    moves: does it make anything else? change: of the projections, None if it raises; is_odd: is
    what becomes of that unknown?
    """

    def __init__(self, order, edit, code):
        self.order, self.edit, self.code = order, edit, code
        self.change, self.is_odd, self.moves = (None if code is None else 0), False, False

    def in_place_of(self, value, scope, slopes, old):
        if self.change is None or self.is_odd:
            return
        try:
            new = eval(self.code, scope)
        except NameError:  # of a function within
            self.is_odd = True
        except Exception as error:
            if of_a_signal(error):
                raise
            self.change = None
        else:
            self.is_odd = not is_real(new) or new.shape != value.shape
            if not self.is_odd:
                by = flat([new.detach()]) - old
                self.moves |= bool(by.any())
                self.change = self.change + slopes @ by


def first(pair):
    return pair[0]
