"""A tape, walked backwards: steps, and then lines that one can read."""

import ast
import functools
import re

import torch

from .rules import BROADCASTS, SCALAR, Refused, gradients
from .simple import AS_IS, AsIs, Simple, broken, pretty
from .tape import SCOPE

OPERATIONS = ast.BinOp, ast.UnaryOp, ast.Call, ast.Compare, ast.Subscript
# What is written again rather than named: -a, 2 * a, 1 - a, a.unsqueeze(-1), a[:, 0].
CHEAP = re.compile(
    r"-?_\d+(\.unsqueeze\(\S+\)|\.m?T|\[[^_]*\])?|[\d.]+ [-+*] _\d+|_\d+ [-+*/] [\d.]+"
)
IDS = re.compile(r"\b_\d+\b")
SUMMED = re.compile(r"(_\d+)(\.sum(?:_to_size)?\(.*\))")
ADDED = re.compile(r"(_\d+)(\.(?:index_add|scatter_add|index_put)\(.+\))")


class Backward:
    """`steps` is what can be computed, each by its id; `results` the gradients of inputs."""

    kind = "grad"

    def __init__(self, tape, save):
        self.tape, self.results, self.seen = tape, {}, {}
        self.steps = {str(n): n.source for n in tape.nodes if n.source}
        self.made = {source: step for step, source in self.steps.items()}
        self.forward = {str(n) for n in tape.nodes}
        self.values = {str(n): n.value for n in tape.nodes}
        # `names` are settled, `hints` are for what gets a line of its own.
        self.names, self.hints = {}, {}
        for node in tape.nodes:
            if node.name:
                self.call(str(node), node.name)
        self.saved = [tape.variables.get(name) for name in save]
        self.given = {str(n) for n in tape.nodes if not n.source or n in self.saved}
        self.parts, self.grads = {}, []
        self.walk()

    def walk(self):
        for node in self.tape.outputs:
            step = self.new(torch.randn_like(node.value))
            named = self.names.get(str(node)) == node.name
            self.call(step, f"grad_{named and node.name or 'output'}")
            self.given.add(step)
            self.grads.append(step)
            self.parts[node] = [step]
        for node in reversed(self.tape.nodes):
            self.back(node)

    def call(self, step, name):
        """`name`, with a number if another step has it."""
        found, k = name, 2
        taken = {"ctx", "torch", "F", "math", *self.names.values()}
        words = self.tape.words.difference(self.tape.code.co_varnames)  # globals
        while found in taken | words:
            found, k = f"{name}{'_' * name[-1].isdigit()}{k}", k + 1
        self.names[step] = found

    def new(self, value):
        step = f"_{len(self.values)}"
        self.values[step] = value
        return step

    def value(self, source):
        if not isinstance(source, str):
            source = ast.unparse(source)
        if source not in self.seen:
            self.seen[source] = eval(source, self.tape.globals | SCOPE, self.values)
        return self.seen[source]

    def emit(self, source):
        """The id of the last step of `source`, made of one for each operation."""
        return self.step(ast.unparse(Emit(self).visit(ast.parse(source).body[0].value)))

    def step(self, source):
        """The id of what computes `source`; of the one that is there, if there is one."""
        if match := re.fullmatch(r"(_\d+)\.squeeze\((.+)\)", source):
            # Dimensions that a sum kept, and that are dropped now, it need not keep.
            summed, rank = self.steps.get(match[1], ""), self.values[match[1]].dim()
            kept = re.fullmatch(r"(.+\.sum\()(.+), keepdim=True\)", summed)
            if kept and places(kept[2], rank) == places(match[2], rank):
                return self.step(f"{kept[1]}{kept[2]})")
        if match := re.fullmatch(r"(torch|F)\.(\w+)\((_\d+)\)", source):
            source = self.made.get(f"{match[3]}.{match[2]}()", source)
        if not IDS.fullmatch(source) and source not in self.made:
            step = self.made[source] = self.new(self.value(source))
            self.steps[step] = source
        return self.made.get(source, source)

    def back(self, node):
        if any(piece in self.parts for piece in node.pieces):
            g = [self.total(p) or f"torch.zeros_like({p})" for p in node.pieces]
        elif node in self.parts and node.op != "piece":
            # A gradient without dimensions would take the dtype of what it meets.
            tensors = [a.value for a in node.args if isinstance(a, type(node))]
            mixed = any(t.is_floating_point() and not t.requires_grad for t in tensors)
            alone = not any(self.values[p].dim() for p in self.parts[node])
            fits = node.op in BROADCASTS or alone and node.op in SCALAR
            g = self.total(node, whole=mixed or not fits)
        else:
            return
        if node.op == "input":
            if g not in self.given and g not in self.results.values():
                self.call(g, f"grad_{node.name}")
            self.results[node] = g
            return
        try:
            for argument, source in gradients(node, g, self.tape):
                if isinstance(argument, type(node)) and argument.value.requires_grad:
                    step = self.fit(self.emit(source), argument, node)
                    if argument.name:
                        self.hints[step] = f"grad_{argument.name}_from_{node.op}"
                    self.parts.setdefault(argument, []).append(step)
        except Refused as reason:
            raise Refused(f"line {node.line}: {reason}") from None
        except Exception as error:  # of PyTorch, or of a call in another form
            why = f"`{node.op}`: called in a way that has no rule ({error})"
            raise Refused(f"line {node.line}: {why}") from error

    def total(self, node, whole=True):
        """The sum of what arrived, so that a tensor used twice gets both."""
        if node not in self.parts:
            return None
        step = self.step(self.sum(self.joined(node)))
        step = self.whole(step, node) if whole else step
        if step not in self.given and step not in self.names:
            name = self.names.get(str(node))
            if name and node.op != "input":
                total = "total_" * (node in self.tape.outputs)
                self.call(step, f"{total}grad_{name}")
            self.hints.setdefault(step, str(node))
        return step

    def joined(self, node):
        """The parts of its gradient; those that fill it, each in its place, are one."""
        parts, placed = self.parts[node], {}
        for part in parts:
            call = ast.parse(self.steps.get(part, part)).body[0].value
            name = getattr(getattr(call, "func", None), "attr", None)
            if name in ("select_scatter", "slice_scatter"):
                _, g, dim, *index = map(ast.unparse, call.args)
                place = tuple((k.arg, ast.unparse(k.value)) for k in call.keywords)
                if index:
                    place = self.value(index[0]) % node.shape[int(dim)]
                there = placed.setdefault((name, dim), {}).setdefault(place, [])
                there.append((g, part))
        for (name, dim), found in placed.items():
            order, how = sorted(found), "stack"
            # A text with all of x[0], x[1], x[2] holds for three of them only.
            fills = self.tape.exact and order == [*range(node.shape[int(dim)])]
            if name == "slice_scatter":
                how, order, end = "cat", [], None
                begins = {dict(place).get("start"): place for place in found}
                for _ in found:
                    order.append(begins.get(end, ()))
                    end = dict(order[-1]).get("end")
                fills = {*order} == {*found} and end is None
                fills = fills and "step" not in dict(sum(order, ()))
            if fills:
                pieces = (" + ".join(g for g, _ in found[place]) for place in order)
                whole = self.emit(f"torch.{how}([{', '.join(pieces)}], {dim})")
                gone = {part for those in found.values() for _, part in those}
                parts = [whole, *(part for part in parts if part not in gone)]
                if node.name:
                    self.hints[whole] = f"grad_{node.name}_from_getitem"
        return parts

    def sum(self, parts):
        terms, added, summed = [], [], {}
        for part in dict.fromkeys(parts):
            often = parts.count(part)
            to_zeros = ADDED.fullmatch(self.steps.get(part, ""))
            if to_zeros and often == 1 and len(parts) > 1:
                added.append(to_zeros.groups())
                continue
            like = SUMMED.fullmatch(self.steps.get(part, ""))
            if like and often == 1:
                alike = like[2], self.values[like[1]].shape
                summed.setdefault(alike, []).append((like[1], part))
            terms.append(self.emit(f"{often} * {part}") if often > 1 else part)
            if part in self.hints:
                self.hints[terms[-1]] = self.hints[part]
        for (how, _shape), pairs in summed.items():
            if len(pairs) > 1:  # a.sum(0) + b.sum(0) is (a + b).sum(0)
                inner, gone = zip(*pairs, strict=True)
                terms = [term for term in terms if term not in gone]
                terms.append(self.emit(f"({' + '.join(inner)}){how}"))
        total = " + ".join(terms)
        return self.with_added(total, added) if added else total

    def with_added(self, total, added):
        """zeros.index_add(…) + zeros.index_add(…) is zeros.index_add(…).index_add(…)."""
        zeros = added[0][0]
        if total and self.value(total).shape != self.values[zeros].shape:
            total = f"{zeros} + {total}"
        total = self.step(total or zeros)
        for _zeros, call in added:
            total = self.emit(f"{total}{call}")
        return total

    def whole(self, step, node):
        if self.values[step].shape == node.shape:
            return step
        return self.emit(f"{step}.expand({self.tape.sizes(node)})")

    def fit(self, step, argument, node):
        """Summed over what the operation broadcast."""
        want = argument.shape
        if node.op in BROADCASTS and want != node.shape:
            step = self.whole(step, node)
        have = self.values[step].shape
        if torch.broadcast_shapes(have, want) == want:
            return step
        if not want:
            return self.emit(f"{step}.sum()")
        if donor := self.tape.donor(argument):
            return self.emit(f"{step}.sum_to_size({donor}.shape)")
        lead = len(have) - len(want)
        if lead:
            dims = 0 if lead == 1 else tuple(range(lead))
            step = self.emit(f"{step}.sum({dims})")
        kept = [d - len(want) for d, s in enumerate(want) if s != have[lead + d]]
        if kept:
            dims = kept[0] if len(kept) == 1 else tuple(kept)
            step = self.emit(f"{step}.sum({dims}, keepdim=True)")
        return step

    @functools.cached_property
    def lines(self):
        """(name, source, the gradients that need it, id), in order."""
        need = self.needed()
        texts = self.inlined(need)
        for step in texts:
            if step not in self.names:
                self.call(step, self.name(step))
        lines = {
            step: (self.names[step], self.final(step, texts[step])) for step in texts
        }
        for node in self.tape.nodes:
            # a, b = x.chunk(2)
            parts = [str(piece) for piece in node.pieces]
            if parts[1:] and lines.keys() >= {*parts}:
                names = ", ".join(lines.pop(part)[0] for part in parts)
                lines[str(node)] = names, lines[str(node)][1]
        cut = {}  # a, b = g.split(sizes), too
        for step, (_, source) in lines.items():
            if found := re.fullmatch(r"(.+\.split\(\[.+\], -?\d+\))\[\d+\]", source):
                cut.setdefault(found[1], []).append(step)
        for source, parts in cut.items():
            if len(parts) == len(ast.parse(source).body[0].value.args[0].elts):
                need[parts[0]] = set().union(*(need[part] for part in parts))
                names = ", ".join([lines[part][0] for part in parts])
                lines[parts[0]] = names, source
                for part in parts[1:]:
                    del lines[part]
        return [(*line, need[step], step) for step, line in lines.items()]

    def needed(self):
        """The results that need each step, in the order of the steps."""
        need = {}
        for result in self.results.values():
            steps = [result]
            for step in steps:
                if step not in self.given and result not in need.setdefault(
                    step, set()
                ):
                    need[step].add(result)
                    steps += IDS.findall(self.steps[step])
        return {step: need[step] for step in self.values if step in need}

    def inlined(self, need):
        """The texts of the steps that keep a line; the others stand in those that use them."""
        texts, results = (
            {step: self.steps[step] for step in need},
            [*self.results.values()],
        )
        whole = {*self.names, *self.hints}

        def uses(step):
            return [*IDS.findall(" ".join(texts.values())), *results].count(step)

        for step in need:
            # A line is cut where a gradient is whole.
            left = {*texts} - {*(self.names if step in whole else whole)}
            if self.cheap(step) and uses(step) > 1:
                continue
            width = 76 if len({*results}) > len(need[step]) == 1 else 80
            while found := left.intersection(IDS.findall(texts[step])):
                other = min(found, key=lambda i: (len(texts[i]), i))
                left.remove(other)
                if uses(other) > 1 and not self.cheap(other):
                    continue
                as_is = AS_IS * self.is_as_it_is(other)
                put = f"{as_is}({texts[other]})"
                put = re.sub(rf"\b{other}\b", put, texts[step])
                if self.reads_well(step, put, texts[step], width):
                    texts[step] = ast.unparse(ast.parse(put))
                    if not uses(other):
                        del texts[other]
        return texts

    def is_as_it_is(self, step):
        """Does the forward do it, so that its terms must keep their order?"""
        free = re.fullmatch(r"-?_\d+(\.m?T)?|\S+ [*/] \S+", self.steps[step])
        return step in self.forward and not free

    def reads_well(self, step, put, now, width):
        now, put = (
            broken(f"{self.name(step)} = {self.final(step, source)}", width)
            for source in (now, put)
        )
        narrow = max(map(len, put)) <= width
        return narrow and (len(put) not in (3, 4) or len(put) <= len(now))

    def cheap(self, step):
        return step not in self.names and CHEAP.fullmatch(self.steps[step])

    def final(self, step, text):
        tree = ast.parse(text, mode="eval").body
        if step not in self.forward:
            tree = Simple(self.value).visit(tree)
        tree = AsIs().visit(tree)
        return IDS.sub(lambda m: self.name(m[0]), pretty(ast.unparse(tree)))

    def name(self, step):
        found = self.names.get(step) or self.hints.get(step) or self.called(step)
        if found in self.steps:
            found = f"{self.kind}_{self.names.get(found) or self.called(found, 14)}"
        return found

    def called(self, step, most=19):
        """By what is done to what: exp_x, a_over_b."""
        source = self.steps[step]
        tree = ast.parse(source, mode="eval").body
        ids = IDS.findall(source)
        words = [self.name(i).removeprefix("ctx.") for i in ids]
        op = type(getattr(tree, "op", getattr(tree, "ops", [tree])[0])).__name__
        alone, between, word = OPS.get(op, "part _ part").split()
        method = getattr(getattr(tree, "func", tree), "attr", "").removesuffix("_like")
        done = "rows_of" if method == "flatten" else method or alone
        name = f"{done}_{words[0]}" if words else method or word
        if method == "masked_fill" and source.endswith("math.inf)"):
            name = f"{words[0]}_or_inf"
        if method in ("mT", "T", "transpose", "unsqueeze") or op == "USub":
            name = words[0]
        right = getattr(getattr(tree, "comparators", [tree])[0], "value", "")
        if isinstance(right, int):
            name = f"{words[0]}{between}{right}"
        if len(words) > 1 and not method:
            name = between.join(words) if len({*ids}) > 1 else f"squared_{words[0]}"
        return name if len(name) <= most else method or word


# What is done to one, between two, and to what has a long name.
OPS = {
    "Mult": "scaled _ product",
    "MatMult": "scaled _ product",
    "Div": "scaled _over_ quotient",
    "Add": "shifted _plus_ total",
    "Sub": "shifted _minus_ difference",
    "Pow": "power _ power",
    "Invert": "not _ mask",
    "Eq": "mask _is_ mask",
    "NotEq": "mask _is_not_ mask",
    "Gt": "mask _above_ mask",
    "GtE": "mask _from_ mask",
    "Lt": "mask _below_ mask",
    "LtE": "mask _up_to_ mask",
}


def places(dims, rank):
    """The dimensions that a text names, from the first."""
    dims = ast.literal_eval(dims)
    return {d % rank for d in (dims if isinstance(dims, tuple) else (dims,))}


class Emit(ast.NodeTransformer):
    def __init__(self, backward):
        self.backward = backward

    def visit(self, tree):
        tree = self.generic_visit(tree)
        method = getattr(tree, "func", None)
        if getattr(method, "attr", "") == "unsqueeze":
            if not self.backward.value(method.value).dim():
                return method.value  # one number broadcasts as it is
        if isinstance(tree, OPERATIONS):
            if isinstance(self.backward.value(tree), torch.Tensor):
                return ast.Name(self.backward.step(ast.unparse(tree)))
        return tree
