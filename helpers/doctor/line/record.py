"""Forward, or the reference beside it, once more while autograd records.

That gives the right gradient of each of its locals, and what each use of a local
contributes to it.
"""

import collections
import itertools
from dataclasses import dataclass

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..function.private import FunctionCtx
from ..function.subject import graph
from ..function.tensors import is_number

MOST_ELEMENTS = 1e6  # elements of one local, above which none is kept
USES = 6  # of one local, of which all parts are tried


@dataclass(frozen=True)
class Local:
    """A local of forward: its edge in the graph, its value and the right gradient.

    uses: (node, what it contributes) of each; the node is None for what is returned
    A constant has no edge; what no output depends on has an edge and no gradient.
    """

    name: str
    line: int
    edge: GradientEdge | None
    value: torch.Tensor
    gradient: torch.Tensor | None
    uses: tuple

    @property
    def is_item(self):
        """Of a list, say, in which a loop keeps what each run has made."""
        return self.name.endswith("]")

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


def with_gradient(outputs, grads, ctx):
    """(output, its gradient) of each output that has one."""
    constant = getattr(ctx, "non_differentiable", ())
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for out, grad in zip(outputs, grads, strict=False):
        is_constant = any(out is c for c in constant)
        if grad is not None and torch.is_tensor(out) and not is_constant:
            if out.requires_grad:
                yield out, grad


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
                is_new = last.get(name) != edge
                if binding.is_argument:  # made in the call, or a local of the caller's
                    is_new = edge not in {*edges.values(), *(one[2] for one in found)}
                if is_kept(value) and name and is_new:
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
        of_arguments = [
            (watched.argument(k), 0, edge, arguments[k]) for k, edge in edges.items()
        ]
        pairs = [*with_gradient(outputs, grads, ctx)]
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

    @property
    def outline(self):
        """What two records of the same call must have in common."""
        return [(local.name, local.line, len(local.uses)) for local in self.locals]

    def versions(self, local):
        """What had this name whenever this line of forward ran, the last first.

        Then what had it at first, as what a loop starts from has. Of a list that a loop
        fills, its items, the last first.
        """
        if local.is_item:
            a_list = local.name.partition("[")[0] + "["
            items = [x for x in self.locals if x.name.startswith(a_list)]
            return [x for x in reversed(items) if x.edge]
        of_name = [
            other for other in self.locals if other.name == local.name and other.edge
        ]
        of_line = [other for other in of_name[1:] if other.line == local.line]
        return [*reversed(of_line), *of_name[:1]]
