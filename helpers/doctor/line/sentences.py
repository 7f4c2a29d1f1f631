"""What is known of a wrong local, in words: what it holds, and through which lines."""

import ast
import re
import textwrap

from ..function.source import names_in
from ..words import N_, _, listed
from .matches import alike

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
LOOP = N_("the loop in line {line}")
OF_FORWARD = N_("`{name}` in line {line}")
OF_REFERENCE = N_("`{name}` in line {line} of `{function}`")
IN_A_RUN = N_("`{name}` (line {line}, run {run} of {runs})")
RETURNED = N_("what is returned for `{name}` (line {line})")
WHOLE_LINE = N_("line {line}, `{text}`")
OUTPUT = N_("the output itself")
ARGUMENT = N_("the argument `{name}` of `{function}`")
IN_LINE = N_("`{operation}` in line {line}, `{text}`")
ONE_OF_LINE = N_("one `{operation}` in line {line}, `{text}`")
IN_RUN = N_("`{operation}` in run {run} of line {line}, `{text}`")
RIGHT = N_("{here} is the gradient of `{other}`")


class Sentences:
    """About the locals of these `Matches`."""

    def __init__(self, matches):
        self.matches, self.chain, self.record = matches, matches.chain, matches.record

    def right_so_far(self, key):
        """What is right before this local."""
        right, locals_ = self.matches.right, self.record.locals
        known = {k.name: k for k in self.matches.before(key) if k in right and k.name}
        said = [
            _(RIGHT, here=self.here(k), other=locals_[right[k].local].name)
            for k in known.values()
        ]
        return listed(said)

    def first_wrong(self, key, target, relation, is_cause):
        """That this local should hold that target."""
        local = self.record.locals[target.local]
        if target.uses is not None:
            relation = SHARE, {"uses": self.through(local, target.uses)}
        with_loops = not relation or relation[1].get("by_a_loop")
        suspects = self.suspects(key, with_loops)
        # In a loop, what is right for its run may be wrong for the next; and what is
        # filled may be wrong in a part that another line has filled.
        more_lines = self.matches.turns(key) > 1 or key.binding.fills
        plain = GRADIENT if suspects or more_lines else OF_RIGHT
        text, gaps = relation or (VALUE if target.value else plain, {})
        what = _(text, here=self.here(key), there=self.there(local), **gaps)
        lead = BEFORE if suspects else FIRST if is_cause else NOT_ALONE
        return _(lead, what=what, suspects=listed(suspects))

    def suspects(self, key, with_loops):
        """What may be wrong of all that goes into this local.

        with_loops: as may a loop that does not run as often as it should
        """
        going = self.matches.suspects_of(key)
        for k in going:  # and what goes into these, in its last run
            named = {j.binding for j in going}
            more = self.matches.suspects_of(k)
            going += [j for j in more if j.binding not in named]
        going = [k for k in self.matches.values if k in going]
        own = key.binding.loops
        near = [*going, *self.matches.going_into(key)]
        loops = [x for k in near for x in k.binding.loops if x not in own]
        loops += own if key.binding.fills else ()
        # A list as a whole.
        whole = (
            k._replace(item=None) if k.binding.fills else k
            for k in going
            if k.binding is not key.binding
        )
        called = [code.fn.__name__ for code in self.chain.backward.codes[1:]]
        called = names_in(key.binding.node).intersection(called)
        said = [*map(self.here, whole), *(f"`{x}`" for x in called)]
        said += [_(LOOP, line=line) for line in loops if with_loops]
        return [*dict.fromkeys(said)]

    def here(self, key):
        """A local of backward."""
        line, name = key.binding.line, key.name
        if name is None:
            x = self.chain.forward.argument(key.item or 0)
            return _(RETURNED, name=x, line=line)
        runs = self.matches.turns(key)
        if runs > 1 and not key.binding.fills:  # which is wrong as a whole
            return _(IN_A_RUN, name=name, line=line, run=key.turn + 1, runs=runs)
        return _(LOCAL, name=name, line=line)

    def there(self, local):
        """A local of forward, or of the reference."""
        if not local.line:
            return f"`{local.name}`"
        if self.chain.reference:
            of = self.chain.forward.codes[0].fn.__qualname__.rpartition(">.")[2]
            return _(OF_REFERENCE, function=of, name=local.name, line=local.line)
        return _(OF_FORWARD, name=local.name, line=local.line)

    def missing(self, local, uses, whole=True):
        """What fills the gaps of PART; by_a_loop: has a loop of forward made these uses?"""
        nodes = (local.uses[k][0] for k in uses)
        by_a_loop = any(self.record.bindings[n].loops for n in nodes if n)
        return {"uses": self.through(local, uses, whole), "by_a_loop": by_a_loop}

    # --- uses -------------------------------------------------------------------------

    def through(self, local, uses, whole=True):
        """These uses: the lines of forward, or operations in them.

        whole: may all that comes through such a line be meant?
        """
        bindings, found = self.record.bindings, {}
        for k in uses:
            node = local.uses[k][0]
            found.setdefault(node and bindings[node], []).append(node)
        said = [_(OUTPUT)] if found.pop(None, ()) else []
        for binding, nodes in found.items():
            if binding.is_argument:
                of = binding.code.fn.__name__
                said.append(_(ARGUMENT, name=binding.name, function=of))
            elif self.is_whole(binding, nodes, local, whole):
                said.append(self.line(binding))
            else:
                said += [self.step(node, local, binding) for node in nodes]
        return listed(dict.fromkeys(said), last=_(" and "))

    def of_line(self, local, binding):
        """The nodes of its uses that this line has made."""
        bindings = self.record.bindings
        return [n for n, _part in local.uses if n and bindings[n] is binding]

    def is_whole(self, binding, nodes, local, whole):
        """Are these nodes all by which this line uses the local?"""
        if len(nodes) < len(self.of_line(local, binding)):
            return False
        # What is returned beside them does not come through them.
        is_end = isinstance(binding.node, ast.Return)
        if is_end and any(node is None for node, _part in local.uses):
            return False
        bindings = self.record.bindings
        return whole or all(  # then all that goes into the line goes into them
            n in nodes
            or all(bindings.get(f) is binding for f, _k in n.next_functions if f)
            for n in bindings
            if bindings[n] is binding
        )

    def line(self, binding):
        """A whole line of forward, or what it makes of one name."""
        gaps = {"line": binding.line, "text": source_of(binding, binding.node)}
        every = [b for b in self.chain.forward.bindings if b.node is binding.node]
        made = all(b in self.record.bindings.values() for b in every)  # each by a step
        one = OF_FORWARD if len(every) > 1 and made else WHOLE_LINE
        return _(one, name=binding.name, **gaps)

    def step(self, node, local, binding):
        """An operation in a line of forward."""
        operation = written(node, binding.code.source_of(binding.node))
        turns = self.record.turns
        same = [n for n in self.of_line(local, binding) if n.name() == node.name()]
        beside = [n for n in same if turns[n] == turns[node]]
        several, again = len(beside) > 1, len(same) > len(beside)
        part = dict(local.uses)
        twins = [n for n in beside if n is node or alike(part[n], part[node])]
        if several and not again and twins == [node]:
            if made := made_by(node, beside, local, binding, operation):
                line, text = binding.code.line(made), source_of(binding, made)
                return _(OF_FORWARD, name=text, line=line)
        one = ONE_OF_LINE if several else IN_RUN if again else IN_LINE
        gaps = {"line": binding.line, "text": source_of(binding, binding.node)}
        return _(one, operation=operation, run=turns[node] + 1, **gaps)


def source_of(binding, node):
    return textwrap.shorten(binding.code.source_of(node), 70, placeholder=" …")


TURNS = "t", "transpose", "permute"
ALIASES = {"pow": ["square"], "clamp": ["clip"]}
OF_EINSUM = *TURNS, "mul", "mm", "bmm", "sum", "squeeze", "unsqueeze", "view", "reshape"


def written(node, text):
    """The operation of a node of the graph, as a line of forward calls it."""
    name = re.sub(r"Backward\d*$", "", node.name())
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    turns = ("transpose", "mT", "T") if name in TURNS else ()
    others = *turns, *ALIASES.get(name, ()), *(["einsum"] if name in OF_EINSUM else [])
    called = (name, *others, *name.split("_"))  # `norm` is linalg_vector_norm
    return next((x for x in called if re.search(rf"\b{x}\b", text)), name)


OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
INDEXING = "index", "select", "slice", "unsqueeze"


def made_by(node, beside, local, binding, operation):
    """The expression that made this node, or None if that is not known.

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
    every = [e for e in ast.walk(binding.node) if isinstance(e, kinds)]
    found = sorted(filter(is_made_of, every), key=place)
    if len(found) != len(beside):
        return None
    return found[sorted(beside, key=lambda n: n._sequence_nr()).index(node)]
