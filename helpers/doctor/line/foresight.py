"""What edits would change, foreseen by autograd, so that few of them need be run.

Backward runs once with every expression recorded: the value that it has each time, and
how the gradient changes with that value. To first order, an edit changes the gradient
by that slope times what it changes of the value. Where only linear steps follow, as
mostly in a backward, that is all.
"""

import ast
import contextlib
import functools
import inspect
import itertools

import torch
from torch.autograd.graph import allow_mutation_on_saved_tensors

from ..function.isolation import forgiving
from ..function.private import methods
from ..function.source import names_in
from ..function.tensors import is_number
from .edits import WATCH, Edit, parsed, rebuilt, watching
from .grammar import AROUND, of, operands, terms

TURNS = 40  # times that an expression is recorded
EVALUATED = 5000  # edits, at most
HOPELESS = 0.9  # so much would be left to mend
EXACT = 1e-9  # of it is rounding
LIKELY = 1e-4  # of what is to mend may be left
LARGEST = 2e7  # elements of all terms of one expression together


class Expression:
    """An expression, its values, slopes of three projections, and variables.

    Each is a list, with one item for each time that it is computed.
    """

    def __init__(self, code, node):
        self.code, self.node, self.root, self.times = code, node, code.root(node), 0
        self.values, self.leaves, self.slopes, self.scopes = [], [], [], []

    @property
    def is_known(self):
        return 0 < len(self.slopes) == self.times

    @functools.cached_property
    def hand(self):
        """{text: value} of the tensors and numbers among the variables, and on ctx."""
        scope = self.scopes[0] if self.scopes else {}
        own = names_in(*self.code.tree.body)
        own |= {arg.arg for arg in self.code.tree.args.args}
        found = {name: v for name, v in scope.items() if name in own}
        found |= {
            f"ctx.{name}": v
            for name, v in getattr(scope.get("ctx"), "__dict__", {}).items()
        }
        return {
            n: v for n, v in found.items() if isinstance(v, (torch.Tensor, int, float))
        }

    @functools.cached_property
    def operands(self):
        """{text: its value each time} of what may stand around it."""
        return self.valued(operands(self.code, self.hand))

    @functools.cached_property
    def terms(self):
        """The same of terms that may be missing in its line."""
        size = max(v.numel() for v in (*self.values, torch.empty(1)))
        return self.valued(
            itertools.islice(terms(self.code, self.hand), int(LARGEST // size))
        )

    def valued(self, texts):
        found = {}
        for text in texts:
            with contextlib.suppress(Exception):
                made = compile(text, "<edited>", "eval")
                values = [torch.as_tensor(eval(made, scope)) for scope in self.scopes]
                found[text] = [v.detach() for v in values]
        return found


class Foresight:
    """The record of a run of backward, which foresees what an edit would mend.

    codes: of the functions that may be edited; wrong: the `Gradient` that is to be
           mended
    hands: {expression that is assigned or returned: {text: value} of what is at hand
           there}
    """

    def __init__(self, codes, wrong, budget):
        self.codes, self.wrong, self.budget, self.evaluated = codes, wrong, budget, 0
        dice = torch.Generator().manual_seed(5)
        off = torch.where(wrong.trusted, wrong.expected[0] - wrong.sampled[0], 0)
        self.weights = torch.randn(3, len(off), generator=dice, dtype=off.dtype).to(
            off.device
        )
        self.target = (self.weights.conj() * off).sum(1).real
        nodes = [(c, n) for c in codes for n in c.values if is_watched(c, n)]
        # All of them, or if that cannot be recorded, what is assigned and returned
        # only.
        if not self.is_recorded(nodes) and not self.is_recorded(
            [p for p in nodes if is_root(*p)]
        ):
            self.sites = []
        self.watched = {site.node: site for site in self.sites}
        self.hands = {site.node: site.hand for site in self.sites if site.scopes}

    def is_recorded(self, nodes):
        self.sites = [Expression(*pair) for pair in nodes]
        trees = {code: instrumented(code, self.sites) for code in self.codes}
        with (
            forgiving(),
            watching(trees, self.watch),
            methods("backward", recorded),
            allow_mutation_on_saved_tensors(),
        ):
            self.record()
            return True
        return False

    def watch(self, number, value, scope=None):
        """Stands around each expression.

        scope: the variables there, of those that are roots
        """
        site = self.sites[number]
        site.times += 1
        if site.times > TURNS:
            return value
        if scope is not None:
            site.scopes.append({**site.code.fn.__globals__, **scope})
        if not is_number(value):
            return value
        site.leaves.append(torch.zeros_like(value, requires_grad=True))
        site.values.append(value.detach().clone())
        return value + site.leaves[-1]

    def record(self):
        one = self.wrong
        v = one.vs[0].clone()  # an edit that is tried may write into it
        grad = one.point.vjp({one.o: v}, create=True)[one.i]
        row = one.row(grad)
        off = (row[one.elements] - one.sampled[0]).abs()
        if (off > one.limit[0])[one.trusted].any():
            raise ValueError("it does something else when it is recorded")
        leaves, rows = [leaf for site in self.sites for leaf in site.leaves], []
        for weights in self.weights:
            w = torch.zeros_like(row).index_copy(0, one.elements, weights)
            w = w.reshape(grad.shape).to(grad.dtype)
            rows.append(
                torch.autograd.grad(
                    grad, leaves, w, retain_graph=True, materialize_grads=True
                )
            )
        slopes = map(torch.stack, zip(*rows, strict=True))
        for site in self.sites:
            site.slopes = [next(slopes).conj().reshape(3, -1) for _ in site.leaves]

    @property
    def is_spent(self):
        return self.evaluated > EVALUATED or self.budget.is_spent

    def left_by(self, change):
        left = (self.target[:, None] - change.reshape(3, -1)).norm(
            dim=0
        ) / self.target.norm()
        return left.nan_to_num(1.0)

    def ranked(self, edits):
        """(how much would be left, of 0 to 1, edit); None for that if nobody knows."""
        for edit in edits:
            if edit.is_in_place:  # such methods are few
                yield 0.0, edit
                continue
            sites = {self.watched.get(edit.code.root(node)) for node in edit.puts}
            known = not self.is_spent and all(s and s.is_known for s in sites)
            changes = (
                [self.change_by(site, edit) for site in sites] if known else [None]
            )
            if any(change is None for change in changes):
                yield None, edit
            elif (change := sum(changes)).any():
                yield self.left_by(change).item(), edit

    def change_by(self, site, edit):
        """What the projections change by.

        That is zeros if it raises, and None if the shape is another.
        """
        total = torch.zeros_like(self.target)
        self.evaluated += 1
        try:
            tree = ast.Expression(edit.made_in(site.node))
            made = compile(tree, "<edited>", "eval")
            for value, slopes, scope in zip(
                site.values, site.slopes, site.scopes, strict=True
            ):
                new = eval(made, scope)
                if not is_number(new):
                    return 0 * total
                if new.shape != value.shape or new.dtype != value.dtype:
                    # What the engine would have to sum is no mend.
                    is_returned = isinstance(site.code.beyond(site.node), ast.Return)
                    is_grad = is_returned and value.shape == self.wrong.shape
                    return 0 * total if is_grad else None
                total = total + (slopes @ moved(value, new.detach()).flatten()).real
        except Exception:
            return 0 * total
        return total

    def around(self, code, lacks_a_term):
        """(what would be left, edit) for a factor or a term put around each expression.

        A few products of tensors foresee all that are at hand at once. Factors come
        before terms, which may fit for one value of an argument only. More terms are
        tried where lacks_a_term(edit) of the expression is true.
        """
        found, sizes = [], {}
        for site in self.sites:
            sizes[site.node] = len(of(site.node))
            known = site.code is code and site.is_known and not self.is_spent
            at_hand = self.at_hand(site, "operands") if known else {}
            simple = {*at_hand}
            if simple and lacks_a_term(Edit(code, site.node, {})):
                at_hand = self.at_hand(site, "terms") | at_hand
            if not at_hand:
                continue
            others = map(torch.stack, zip(*at_hand.values(), strict=True))
            turns = list(zip(site.values, site.slopes, others, strict=True))
            for template, made in AROUND.items():
                change = sum(
                    slopes
                    @ moved(value, made(value, others)).reshape(len(at_hand), -1).T
                    for value, slopes, others in turns
                )
                for left, text in zip(
                    self.left_by(change.real).tolist(), at_hand, strict=True
                ):
                    if left < HOPELESS:
                        put = {site.node: template.format(of(site.node), text)}
                        rank = (template[3] in "+-") + (text not in simple)
                        found.append((rank, left, Edit(code, site.node, put)))

        def order(triple):
            rank, left, edit = triple  # a factor, a term, a term of several
            node, root = edit.node, code.root(edit.node)
            size = sizes[node] * (1 if rank else -1)
            if left > LIKELY:
                return rank, round(left, 9), size, len(edit.puts[node])
            # As a person would write it: few brackets; a factor of a whole product, a
            # term beside the other terms.
            news, olds = ast.unparse(edit.made_in(root)), ast.unparse(root)
            of_name = not rank and isinstance(node, ast.Name)
            last = of_name, news.count("(") - olds.count("("), size, len(news)
            return rank, max(left, EXACT), *last

        return [pair for _, *pair in sorted(found, key=order)]

    def at_hand(self, site, kind):
        """{text: its values, of the site's shape} of the root's operands, or terms."""
        root, found, like = self.watched.get(site.root), {}, site.values[0]
        if not root or len(root.scopes) != len(site.values):
            return {}
        for text, values in getattr(root, kind).items():
            with contextlib.suppress(RuntimeError):
                values = [
                    v.expand_as(own) for v, own in zip(values, site.values, strict=True)
                ]
                if like.is_complex() or not values[0].is_complex():
                    found[text] = [v.to(like.dtype) for v in values]
        return found


def moved(value, new):
    """By how much; an infinity that stays does not move."""
    return torch.where(new == value, 0, new - value)


def recorded(method, cls, ctx, *grads):
    """A backward with a graph, though it may be differentiable only once."""
    with torch.enable_grad():
        return inspect.unwrap(method)(ctx, *grads)


def is_root(code, node):
    return node is code.root(node)


def is_watched(code, node):
    """Not what is assigned to or changed in place, an index, a keyword, a lambda's."""
    up = code.up[node]
    if isinstance(up, ast.Attribute) and (
        up.attr[-1] == "_" or up.attr in ("shape", "dtype")
    ):
        return False
    if code.root(node) is None or isinstance(node, ast.Constant):
        return False
    while not isinstance(node, ast.stmt):
        up = code.up[node]
        if isinstance(up, (ast.Starred, ast.keyword)):
            return False
        is_target = isinstance(getattr(up, "ctx", None), ast.Store)
        if node is getattr(up, "slice", None) or is_target:
            return False
        node = up
    return True


def instrumented(code, sites):
    """The tree in which every watched expression is handed to the watch."""
    numbers = {
        site.node: number for number, site in enumerate(sites) if site.code is code
    }

    def watched(node, copy):
        if node not in numbers:
            return copy
        scope = ", locals()" if is_root(code, node) else ""
        call = parsed(f"{WATCH}({numbers[node]}, _{scope})", node)
        call.args = [call.args[0], copy, *call.args[2:]]
        return call

    return rebuilt(code.tree, watched, {*code.up, *code.up.values()})
