"""What edits of a backward would change, foreseen: no backward runs for each of them.

Backward runs once with all it assigns and returns recorded, and once more to compute, at each of
these places, what every edited expression would make there. How the gradient changes with what is
made at a place, autograd says: a few products of numbers show which edits may mend it.
"""

import ast
import contextlib
import functools
import itertools
import re

import torch

from .around import Around, Foreseen, Operands, is_linear_in, is_rare, is_reduced_in, key_of
from .changes import is_real
from .parts import CHANCE, PROBE, UNKNOWN, Part, Place, Rank, handed_in, probed
from .raised import forgiving, of_a_signal
from .repair import flat, projected
from .slopes import shaped
from .slots import is_value, slots_of
from .source import at, made_in

AT_ONCE, LOOKS = 500, 40_000
MOST, TURNS = 6000, 1000  # edits; of all parts together
CHANCES, PLAIN = 60, 300  # of a loop, whose rounds change each other
HARM = r"\w_\(|\b(append|extend|insert|next|pop|setdefault|update)\(|:="  # changes what is there


class Foresight:
    """source: of what is edited; run(function): (a gradient, or None; right ones)"""

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
        self.parts, self.codes, self.names = self.parts_of_places(), {}, {}
        self.turns = TURNS // max(1, len(self.parts))
        every = list(dict.fromkeys((*self.places, *self.parts.values())))
        if not any(self.is_recorded(case, probed) for probed in (every, self.places)):
            raise ValueError("it cannot be recorded")
        for number, place in enumerate(self.places):
            place.is_exact = place.is_recorded and self.is_linear(number)

    def parts_of_places(self):
        """{node: Part}"""
        found = {}
        for owner, key, node in slots_of(self.source):
            place = next((p for p in self.places if node in p.nodes), None)
            if place and is_value(self.source, node):
                if node is (root := at(place.owner, place.key)):
                    found[node] = place
                elif is_linear_in(self.source, node, root):
                    found[node] = Part(owner, key, place)
                    found[node].is_reduced = is_reduced_in(self.source, node, root)
        return found

    def is_recorded(self, case, probed):
        self.probed = probed
        with forgiving():
            try:
                self.record(case)
            except RuntimeError:  # something was changed in place that is needed
                with torch.autograd.graph.allow_mutation_on_saved_tensors():
                    self.record(case)
            return True
        return False

    def record(self, case):
        """The gradient, and how it changes with what is made at each place."""
        for place in self.probed:
            place.leaves, place.slopes, place.times = [], [], 0
        self.given, rights = self.gradients(self.recorded, enumerate(self.probed))
        if self.given is None or not self.given.requires_grad or not is_number(self.given):
            raise ValueError("nothing is recorded")
        off = (case.row(self.given) - case.given[0]).abs()
        if (off > case.limit[0].max()).any():
            raise ValueError("backward does something else when it is recorded")
        leaves = [leaf for place in self.probed for leaf in place.leaves]
        rows = [torch.autograd.grad(self.given, leaves, shaped(w, self.given), retain_graph=True,
                                    allow_unused=True)
                for w in self.weights]  # fmt: skip
        self.mark_shared(rights, leaves)
        of_leaves = iter(list(zip(*rows, strict=True)))
        for place in self.probed:
            for leaf in place.leaves:
                rows = [torch.zeros_like(leaf) if r is None else r for r in next(of_leaves)]
                place.slopes.append(torch.stack([flat([r]) for r in rows]))

    def mark_shared(self, rights, leaves):
        """Which places do right gradients depend on?"""
        rights = [t for t in rights if is_number(t) and t.requires_grad]
        if rights:
            total = sum((t * Moves().like(t)).sum().real for t in rights)
            rows = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
            rows = iter(rows)
            for place in self.probed:
                of_place = [next(rows) for _ in place.leaves]
                place.is_shared = any(row is not None and row.any() for row in of_place)

    def gradient(self, probe, places):
        return self.gradients(probe, places)[0]

    def gradients(self, probe, places):
        """What backward returns, if probe(number, value, variables) stands at each of these."""
        puts = [probed(number, place.owner, place.key) for number, place in places]
        with self.source.edited(puts):
            function = self.source.compiled({PROBE: probe})
        return self.run(function)

    def recorded(self, number, value, variables):
        place = self.probed[number]
        place.times += 1
        if not is_number(value) or isinstance(place, Part) and place.times > self.turns:
            return value
        leaf = torch.zeros_like(value, requires_grad=True)
        place.leaves.append(leaf)
        place.shape = value.shape
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
        """These edits: those that may mend it, None, others; not all of those that cannot.

        Without a loop, others come with what may mend it, unless there are edits around something.
        """
        times = max((place.times for place in self.places), default=0)
        lot, left = max(20, min(AT_ONCE, LOOKS // (8 * times or 1))), MOST
        edits, later = iter(edits), []
        while self.looks > 0 and left > 0 and (some := lot_of(edits, lot)):
            odd = []
            with forgiving():
                likely, odd, some = self.around(some)
                yield from likely
            odd.sort(key=first)
            yield from [edit for rank, edit in odd if rank < CHANCE][:CHANCES]
            plain = (edit for rank, edit in odd if not rank.is_part)
            yield from itertools.islice(plain, PLAIN)
            later += odd
            while some and self.looks > 0 and left > 0:
                likely, others = self.parted(some[:lot])
                some, left = some[lot:], left - lot
                yield from likely
                for rank, edit in others:
                    if times == 1 and not (rank.is_shared or self.names):
                        yield edit
                    else:
                        later.append((rank, edit))
            later += ((UNKNOWN, edit) for edit in some if not is_rare(edit))
        yield None
        later.sort(key=lambda pair: pair[0].is_shared)
        if times > 1:  # what changes in a loop, nobody foresees well: the simpler ones, in turn
            both = zip(sorted(later, key=first), later, strict=True)
            later = {id(pair[1]): pair for some in both for pair in some}.values()
        yield from (edit for _, edit in later)
        yield from itertools.filterfalse(is_rare, edits)

    def around(self, edits):
        """(those that may mend it; (how unlike it is, edit) of others; those of which who knows)"""
        mine = [edit for edit in edits if isinstance(edit, Around) and self.part_of(edit)]
        names = {name: k for k, name in enumerate(dict.fromkeys(edit.name for edit in mine))}
        self.names = self.names or names
        keys = dict.fromkeys(key_of(edit.template, edit.name) for edit in mine)
        parts = dict.fromkeys(self.part_of(edit) for edit in mine)
        seen = {part: Foreseen(keys, names, part) for part in parts}
        others = self.see(seen, names)
        likely, odd, rest = [], [], []
        for edit in edits:
            part = self.part_of(edit) if isinstance(edit, Around) else None
            found = seen[part].of(edit) if part else None
            if found:
                change, is_idle = found
                if (self.target - change).norm() <= self.limit:
                    likely.append(edit)
                elif not is_idle and part.times > 1:
                    odd.append((self.rank(part.place, change, edit), edit))
            elif part:
                if not is_rare(edit) and not seen[part].lacks(edit, others[part.place]):
                    rest.append(edit)
            elif not is_rare(edit) or self.is_open(edit):
                rest.append(edit)
        return likely, odd, sorted(rest, key=lambda edit: not self.is_open(edit))

    def see(self, seen, names):
        """What edits around these parts change; {place: the operands of its last turn}."""
        codes = [compile(name or "None", "<edited>", "eval") for name in names]
        parts, turns, others = list(seen), dict.fromkeys(seen, 0), {}

        def tried(number, value, variables):
            part = parts[number]
            if turns[part] == max(turns[p] for p in parts if p.place is part.place):
                others[part.place] = Operands(codes, {**self.source.fn.__globals__, **variables})
            seen[part].see(value, part.slopes[turns[part]], others[part.place])
            turns[part] += 1
            return value

        if seen:
            self.gradient(tried, enumerate(parts))
        return others

    def is_open(self, edit):
        """Is it in a place on which only wrong gradients depend?"""
        number = self.place_of(edit)
        return number is not None and not self.places[number].is_shared

    def part_of(self, edit):
        """The part that it is around, if all else depends on it linearly."""
        part = self.parts.get(edit.node)
        return part if part and part.is_recorded and part.place.is_exact else None

    def rank(self, place, change, edit):
        if isinstance(change, torch.Tensor) and change.norm() > 0:
            cosine = (change @ self.target / (change.norm() * self.target.norm())).item()
            plain = isinstance(edit, Around) and edit.node in self.parts and edit.plain
            return Rank(place.is_shared, round(1 - cosine, 1), not plain)
        return UNKNOWN._replace(is_shared=place.is_shared)

    def parted(self, edits):
        """(those that may mend it; (rank, edit) of the others)"""
        of_places, others = {}, []
        for order, edit in enumerate(edits):
            number = self.place_of(edit)
            if number is not None:
                trial = Trial(order, edit, self.code_of(edit, number))
                of_places.setdefault(number, []).append(trial)
            elif not is_rare(edit):
                others.append((order, UNKNOWN, edit))
        self.compute(of_places)
        likely = []
        for number, trials in of_places.items():
            self.find_surprises(number, trials)
            for trial in trials:
                rank = self.rank(self.places[number], trial.change, trial.edit)
                other = trial.order, rank, trial.edit
                if trial.is_odd:
                    others += [other] * (not is_rare(trial.edit))
                elif trial.change is not None and trial.moves:
                    if (self.target - trial.change).norm() <= self.limit:
                        likely.append(other)
                    elif not self.places[number].is_exact and not is_rare(trial.edit):
                        others.append(other)
        likely, others = (sorted(some, key=first) for some in (likely, others))
        return [edit for *_, edit in likely], [(rank, edit) for _, rank, edit in others]

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
        around = isinstance(edit, Around)
        nodes = [edit.node] if around else [at(*put[:2]) for put in edit.puts]
        for number, place in enumerate(self.places):
            if place.slopes and all(isinstance(n, ast.AST) and n in place.nodes for n in nodes):
                return number if len(place.slopes) == place.times else None
        return None

    def code_of(self, edit, number):
        """The whole expression, edited; one for all edits around a part of it."""
        if not isinstance(edit, Around):
            return self.compiled(edit.puts, number)
        if edit.node not in self.codes:
            put = probed(0, edit.owner, edit.key)
            self.codes[edit.node] = self.compiled([put], number)
        return self.codes[edit.node]

    def compiled(self, puts, number):
        place = self.places[number]
        with contextlib.suppress(Exception), self.source.edited(puts):
            return compile(ast.Expression(at(place.owner, place.key)), "<edited>", "eval")
        return None


def is_number(value):
    return is_real(value) or isinstance(value, torch.Tensor) and value.is_complex()


class Moves:
    """Something to add, about as large as what is there."""

    def __init__(self):
        self.dice = torch.Generator().manual_seed(9)

    def like(self, value):
        dtype = torch.complex128 if value.is_complex() else torch.float64
        more = torch.randn(value.shape, generator=self.dice, dtype=dtype)
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
        if isinstance(self.edit, Around):
            scope[PROBE] = functools.partial(self.edit.made, scope)
        try:
            new = eval(self.code, scope)
        except NameError:  # of a function within
            self.is_odd = True
        except Exception as error:
            if of_a_signal(error):
                raise
            self.change = None
        else:
            self.is_odd = not is_number(new) or new.shape != value.shape
            self.is_odd |= not self.is_odd and new.dtype != value.dtype
            if not self.is_odd:
                by = flat([new.detach()]) - old
                self.moves |= bool(by.any())
                self.change = self.change + slopes @ by


def first(pair):
    return pair[0]


def lot_of(edits, size):
    """So many of them, and those around something that stand between these."""
    lot = []
    for edit in edits:
        lot.append(edit)
        size -= not isinstance(edit, Around)
        if not size:
            break
    return lot
