"""Drawings of graphs, references, layers, decisions, verdicts and messages.

The look of all figures is in figures.mplstyle beside this.
"""

import math
from itertools import pairwise

import matplotlib.pyplot as plt
import networkx as nx
import torch

from helpers.lessons.language import N_  # a figure looks up its words itself

OURS, THEIRS, LEAF, OUTPUT = "#D55E00", "#0072B2", "#009E73", "#555555"
VERDICTS = {N_("right"): "#cfe8f7", N_("raises"): "#F0C566", N_("wrong"): OURS}


def graph(ax=None, title=None, inputs=None, **outputs):
    """Draw the graph that autograd recorded and print its edges, one node a line.

    outputs: tensors by name, such as y=y; inputs: a dict of leaves by name. Backward
    walks along the arrows, downwards. Nodes of custom Functions are orange, PyTorch's
    own blue, leaves green.
    ax: where to draw; without it, a figure of its own.
    """
    nodes = _walk(
        outputs, {id(tensor): name for name, tensor in (inputs or {}).items()}
    )
    for node, data in nodes.nodes(data=True):
        following = [nodes.nodes[other]["label"] for other in nodes.successors(node)]
        if following:
            print(f"{data['label']} → {', '.join(following)}")
    places, chains = _layout(nodes)
    if ax is None:
        columns = (
            1 + max(x for x, _ in places.values()) - min(x for x, _ in places.values())
        )
        rows = 1 - min(y for _, y in places.values())
        _, ax = plt.subplots(figsize=(min(1.9 * columns, 11), 0.55 * rows))
    if title:
        ax.set_title(title)
    _paint(ax, nodes, places, chains)


def _walk(outputs, names):
    """The graph behind `outputs`, as a networkx DiGraph with labels and colours."""
    found, numbers = nx.DiGraph(), {}

    def visit(node):
        if node in numbers:
            return numbers[node]
        if hasattr(node, "variable"):
            label, colour = names.get(id(node.variable), "AccumulateGrad"), LEAF
        else:
            ours = isinstance(node, torch.autograd.function.BackwardCFunction)
            label, colour = type(node).__name__, OURS if ours else THEIRS
        same = sum(
            data["label"].split(" #")[0] == label for _, data in found.nodes(data=True)
        )
        numbers[node] = len(found)
        found.add_node(
            numbers[node],
            label=f"{label} #{same + 1}" if same else label,
            colour=colour,
        )
        for following, _ in node.next_functions:
            if following is not None:
                found.add_edge(numbers[node], visit(following))
        return numbers[node]

    for name, tensor in outputs.items():
        found.add_node(name, label=name, colour=OUTPUT)
        found.add_edge(name, visit(tensor.grad_fn))
    return found


def _layout(nodes):
    """Places by node, and for every edge the points that it runs through."""
    layers = [list(layer) for layer in nx.topological_generations(nodes)]
    row = {node: number for number, layer in enumerate(layers) for node in layer}
    parents = {node: list(nodes.predecessors(node)) for node in nodes}
    chains = []
    for start, end in nodes.edges:
        # An edge over several rows gets a place of its own in each of them, like a
        # node.
        chain = [
            start,
            *((start, end, between) for between in range(row[start] + 1, row[end])),
            end,
        ]
        for above, point in zip(chain[:-2], chain[1:-1], strict=True):
            layers[point[2]].append(point)
            parents[point] = [above]
        if len(chain) > 2:
            parents[end] = [
                chain[-2] if parent == start else parent for parent in parents[end]
            ]
        chains.append(chain)
    places = {}
    for number, layer in enumerate(layers):
        if number:
            layer.sort(
                key=lambda n: sum(places[p][0] for p in parents[n]) / len(parents[n])
            )
        for column, node in enumerate(layer):
            places[node] = (column - (len(layer) - 1) / 2, -number)
    return places, chains


def _paint(ax, nodes, places, chains):
    boxes = {
        node: _node(ax, places[node], data["label"], data["colour"], 0.4, 8.5)
        for node, data in nodes.nodes(data=True)
    }
    across, down = zip(*places.values(), strict=True)
    ax.set_xlim(min(across) - 0.5, max(across) + 0.5)
    ax.set_ylim(min(down) - 0.5, 0.5)
    ax.axis("off")
    for chain in chains:
        for start, end in pairwise(chain):
            # After the boxes, whose sizes are known only once they are drawn.
            look = {
                "patchA": boxes.get(start),
                "patchB": boxes.get(end),
                "arrowstyle": "-|>" if end in boxes else "-",
                "mutation_scale": 11,
                "color": "#888888",
                "linewidth": 1.2,
                "shrinkA": 0,
                "shrinkB": 0,
            }
            ax.annotate("", places[end], places[start], zorder=4, arrowprops=look)


def _node(ax, place, label, colour, pad, fontsize=None):
    box = {"boxstyle": f"round,pad={pad}", "facecolor": colour, "edgecolor": "none"}
    middle = {"ha": "center", "va": "center", "fontsize": fontsize}
    text = ax.text(*place, label, color="white", bbox=box, **middle)
    return text.get_bbox_patch()


def ring(*links, title=None):
    """Draw and print objects that keep one another alive in a ring.

    links: pairs of an object's name and what its arrow to the next object is called;
    the last object points at the first. PyTorch's own nodes, such as AddBackward0, are
    blue.
    """
    names = [name for name, _ in links]
    colours = [THEIRS if name.endswith("Backward0") else OURS for name in names]
    print(" → ".join([*names, names[0]]))
    around = [math.pi * (1 / 2 - 2 * place / len(links)) for place in range(len(links))]
    at = [(math.cos(angle), math.sin(angle)) for angle in around]
    _, ax = plt.subplots(figsize=(4.6, 2.9))
    boxes = [
        _node(ax, place, name, colour, 0.5)
        for place, name, colour in zip(at, names, [OUTPUT, *colours[1:]], strict=True)
    ]
    ax.set(xlim=(-2, 2), ylim=(-1.3, 1.4), title=title)
    ax.axis("off")
    for place, (_, label) in enumerate(links):
        following = (place + 1) % len(links)
        look = {
            "connectionstyle": "arc3,rad=-0.2",
            "arrowstyle": "-|>",
            "patchA": boxes[place],
            "patchB": boxes[following],
            "mutation_scale": 14,
            "color": "#888888",
            "linewidth": 1.5,
        }
        ax.annotate("", at[following], at[place], zorder=4, arrowprops=look)
        between = around[place] - math.pi / len(links)
        outside = 1.15 * math.cos(between), 1.15 * math.sin(between)
        ax.text(*outside, label, ha="center", va="center", fontsize=9)


def layers(seen):
    """Draw which operations ran inside which function, and print how many.

    seen: pairs of a function's name and the list of the names of its operations, in
          order
    """
    _, ax = plt.subplots(figsize=(10, 3.2))
    end = 0
    for name, operations in seen:
        start, end = end, end + len(operations)
        does = N_("runs its nodes") if name == "backward" else N_("adds\nnodes")
        for height, label, colour in [(3, name, OURS), (2, does, THEIRS)]:
            _box(ax, start, height, end - start, 0.7, label, colour)
        for place, operation in enumerate(operations, start):
            _box(ax, place, 0.5, 1, 1.2, operation, LEAF, rotation=90)
    names = ["__torch_function__", "autograd", "__torch_dispatch__"]
    ax.set_yticks([3.35, 2.35, 1.1], names)
    ax.set(
        xticks=[],
        xlim=(0, end),
        ylim=(0.4, 3.8),
        title=N_("What each layer sees, in order"),
    )
    _bare(ax)
    print("functions:", len(seen), " operations:", end)


def _bare(ax):
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)


def _box(ax, left, bottom, width, height, label, colour, fontsize=8, rotation=0):
    ax.add_patch(plt.Rectangle((left, bottom), width - 0.1, height, color=colour))
    ax.text(
        left + (width - 0.1) / 2,
        bottom + height / 2,
        label,
        ha="center",
        va="center",
        color="white",
        fontsize=fontsize,
        rotation=rotation,
    )


def nested(boxes):
    """Draw boxes, one inside the next, and print their names.

    boxes: {name: what it does}, the outermost first
    """
    _, ax = plt.subplots(figsize=(7, 0.75 * len(boxes) + 0.4))
    colours = (THEIRS, LEAF, OURS)
    for depth, ((name, does), colour) in enumerate(
        zip(boxes.items(), colours, strict=False)
    ):
        place, size = (depth, 0.3 * depth), (10 - 2 * depth, len(boxes) - 0.6 * depth)
        ax.add_patch(plt.Rectangle(place, *size, color=colour))
        top = place[1] + size[1] - 0.22
        style = {"va": "center", "color": "white"}
        ax.text(place[0] + 0.2, top, name, weight="bold", **style)
        ax.text(place[0] + 1.6, top, does, **style)
    ax.set(xlim=(0, 10), ylim=(0, len(boxes)))
    ax.axis("off")
    print(" ⊃ ".join(boxes))


def decisions(questions, otherwise):
    """Draw a tree of questions, "yes" to the right, and print its answers' number.

    questions: pairs of a question and an answer; otherwise: the answer if every reply
               is no
    """
    _, ax = plt.subplots(figsize=(7, 1.05 * len(questions) + 0.6))
    last = len(questions)
    for row, (question, answer) in enumerate(questions):
        ax.annotate(
            "", (0, -row - 0.72), (0, -row - 0.3), arrowprops={"arrowstyle": "-|>"}
        )
        ax.text(0.05, -row - 0.5, N_("no"), va="center", fontsize=9)
        ax.annotate("", (1.02, -row), (0.62, -row), arrowprops={"arrowstyle": "-|>"})
        ax.text(0.8, -row + 0.12, N_("yes"), ha="center", fontsize=9)
        for left, text, colour in [(-0.62, question, THEIRS), (1.04, answer, LEAF)]:
            _box(ax, left, -row - 0.28, 1.34, 0.56, text, colour, fontsize=10)
    _box(ax, -0.62, -last - 0.28, 1.34, 0.56, otherwise, LEAF, fontsize=10)
    ax.set(xlim=(-0.65, 2.3), ylim=(-last - 0.35, 0.35))
    ax.axis("off")
    print("questions:", last, " answers:", last + 1)


def transparent_and_opaque(graphs, place):
    """Draw the operations of a graph in a row, for each name, one at `place` in orange.

    Prints the names. graphs: lists of names of operations, by what stands in front of
    the row
    """
    _, ax = plt.subplots(figsize=(9, 0.7 * len(graphs) + 0.3))
    for row, operations in enumerate(graphs.values()):
        for column, name in enumerate(operations):
            colour = OURS if column == place else THEIRS
            _box(ax, column, -row, 1, 0.6, name, colour)
    for name, operations in graphs.items():
        print(f"{name}: {', '.join(operations)}")
    ax.set_yticks([0.3 - row for row in range(len(graphs))], [*graphs])
    ax.set(
        xticks=[],
        xlim=(0, max(map(len, graphs.values()))),
        ylim=(-len(graphs) + 0.9, 0.7),
    )
    _bare(ax)


def travels(maps, processes):
    """Draw what processes pass to collectives, and what they get, with arrows between.

    Prints how many elements stay, and how many are sent.
    maps:      matrices by name, elements that arrive x elements that are passed, in the
               order of the processes: an arrow for what is not 0
    processes: how many, up to 4; each has a colour
    """
    _, axes = plt.subplots(1, len(maps), figsize=(2.2 * len(maps), 3), squeeze=False)
    colours = [OURS, THEIRS, LEAF, OUTPUT]
    for ax, (name, matrix) in zip(axes[0], maps.items(), strict=True):
        gets, passes = (_in_bands(size, processes) for size in matrix.shape)
        for left, side in ((0, passes), (2, gets)):
            for process, height in side:
                _box(ax, left, height - 0.06, 0.4, 0.12, "", colours[process])
        sent = 0
        for arriving, passed in matrix.nonzero().tolist():
            (sender, start), (receiver, end) = passes[passed], gets[arriving]
            sent += sender != receiver
            style = {"arrowstyle": "-|>", "color": colours[sender], "linewidth": 0.9}
            ax.annotate("", (2, end), (0.3, start), arrowprops=style)
        print(f"{name}: {matrix.count_nonzero() - sent} stay, {sent} are sent")
        ranks = [f"rank {p}" if ax is axes[0][0] else "" for p in range(processes)]
        ax.set_yticks([-p for p in range(processes)], ranks)
        ax.set_xticks([0.15, 2.15], [N_("passes"), N_("gets")])
        ax.set(title=name, xlim=(0, 2.4), ylim=(-processes + 0.4, 0.5))
        _bare(ax)


def _in_bands(elements, processes):
    """For each element: its process, and its height in the band of that process."""
    of_each = elements // processes
    below = [0.17 * (place - (of_each - 1) / 2) for place in range(of_each)]
    return [
        (process, -process - down) for process in range(processes) for down in below
    ]


def verdicts(rows, columns, notes):
    """Draw a table of verdicts, "right", "raises" or "wrong", with notes.

    Prints the table. rows: the verdicts of each row, by its name; columns: what stands
    above them
    """
    _, ax = plt.subplots(figsize=(9.5, 0.4 * len(rows) + 0.4))
    for row, (words, note) in enumerate(zip(rows.values(), notes, strict=True)):
        for column, word in enumerate(words):
            wrong = word == "wrong"
            look = (
                {"color": "white", "weight": "bold"} if wrong else {"color": "#222222"}
            )
            ax.add_patch(plt.Rectangle((column, row), 0.96, 0.92, color=VERDICTS[word]))
            ax.text(
                column + 0.48,
                row + 0.46,
                word,
                ha="center",
                va="center",
                fontsize=9,
                **look,
            )
        ax.text(len(columns) + 0.06, row + 0.46, note, va="center", fontsize=9)
    ax.set(xlim=(0, len(columns) + 1.6), ylim=(len(rows), 0))
    ax.set_xticks([column + 0.48 for column in range(len(columns))], columns)
    ax.set_yticks(
        [row + 0.46 for row in range(len(rows))], rows, family="monospace", fontsize=8.5
    )
    ax.tick_params(top=False, labeltop=True, labelbottom=False, bottom=False)
    _bare(ax)
    wide = max(map(len, rows))
    for name, words in rows.items():
        print(f"{name:{wide}} ", *(f"{word:6}" for word in words))


def owners(grids):
    """Draw which thread owns which element, and print how many it owns.

    grids: tables of the numbers of threads, channels by pixels, by what stands above
    """
    _, axes = plt.subplots(1, len(grids), figsize=(4.5 * len(grids), 3.2))
    colours = (THEIRS, OURS, LEAF, OUTPUT)
    for ax, (title, rows) in zip(axes, grids.items(), strict=True):
        for y, row in enumerate(rows):
            for x, thread in enumerate(row):
                down, along = divmod(thread, len(set(row)))  # neighbours differ
                colour = colours[(2 * down + along) % len(colours)]
                _box(ax, x, -y, 1, 0.9, thread, colour)
        each = sum(map(len, rows)) // len({thread for row in rows for thread in row})
        print(f"{title}: {each} of {sum(map(len, rows))} elements for each thread")
        ax.set(
            xticks=[], yticks=[], xlim=(0, len(rows[0])), ylim=(0.95 - len(rows), 0.95)
        )
        ax.set(title=title, xlabel=N_("pixels of a row"), ylabel=N_("channels"))
        _bare(ax)


def passes(boxes, arrows, **titles):
    """Draw boxes, and arrows between them, and print the labels of the orange ones.

    boxes: {name: (label, place from the left, height, colour)}; arrows: "one other"
    with the names of two boxes; titles: what stands above, each with its place
    """
    _, ax = plt.subplots(figsize=(8.6, 3.9))
    drawn = {}
    for name, (label, left, height, colour) in boxes.items():
        drawn[name] = _node(ax, (left, height), label, colour, 0.3)
    for arrow in arrows:
        start, end = arrow.split()
        look = {
            "arrowstyle": "->",
            "patchA": drawn[start],
            "patchB": drawn[end],
            "color": "#777777",
            "shrinkA": 2,
            "shrinkB": 2,
        }
        places = boxes[end][1:3], boxes[start][1:3]
        ax.annotate("", *places, zorder=0, arrowprops=look)
    top = max(height for _, _, height, _ in boxes.values())
    for title, left in titles.items():
        ax.text(left, top + 0.7, title, ha="center", weight="bold")
    lefts = [left for _, left, _, _ in boxes.values()]
    ax.set(xlim=(min(lefts) - 0.9, max(lefts) + 1.7), ylim=(-0.4, top + 1))
    ax.axis("off")
    print("saved:", *(label for label, *_, colour in boxes.values() if colour == OURS))
