"""The recipes of notebooks 22 to 24: each runs alone, in an empty folder.

Each is run in a fork of one process that has imported torch, as in `tests/kernels.py`; a
script for two processes in two forks, under what torchrun would set.
"""

import ast
import json
import re
import subprocess
import sys

import pytest

from tests import needs
from tests.notebooks.test_notebooks import NOTEBOOKS, README, RECIPES, read, tags

MOST_RECIPES, MOST_CELLS, LEAST_LINES, MOST_LINES = 30, 65, 10, 40
ALONE = """
import gc, json, os, runpy, socket, sys, tempfile

if not os.path.exists("/dev/nvidiactl"):
    os.environ["TRITON_INTERPRET"] = "1"  # the compiler imports Triton
import numpy, scipy.optimize, torch, torch._dynamo, torch.export, torch._inductor.compile_fx
import torch.distributed.fsdp, torch.distributed.tensor, torch.testing._internal.optests
import torch.utils.flop_counter

gc.freeze()  # a fork that looked at what it has from here would copy it

def start(folder, environment):
    child = os.fork()
    if child:
        return child
    os.chdir(folder)
    os.environ.update(environment)
    with open("said", "ab", buffering=0) as said:
        os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
    code = 1
    try:
        runpy.run_path("recipe.py", run_name="__main__")
        code = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)

def alone(source, processes):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "recipe.py"), "w", encoding="utf-8") as file:
            file.write(source)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                 "WORLD_SIZE": str(processes)} if processes > 1 else {}
        ranks = [{"RANK": str(r), "LOCAL_RANK": str(r)} if where else {} for r in range(processes)]
        children = [start(folder, where | rank) for rank in ranks]
        codes = [os.waitpid(child, 0)[1] for child in children]
        with open(os.path.join(folder, "said"), encoding="utf-8") as file:
            return not any(codes), file.read()

json.dump([alone(*recipe) for recipe in json.load(sys.stdin)], sys.__stdout__)
"""


def recipes():
    """{heading, without its marks: source} of all recipes."""
    found = {}
    for path in NOTEBOOKS:
        heading = None
        for cell in read(path).cells:
            if cell.cell_type == "markdown":
                heading = cell.source.split("\n")[0].lstrip("# ").replace("`", "")
            elif "recipe" in tags(cell):
                found[f"{path.stem[:2]} {heading}"] = cell.source
    return found


ALL = recipes()
SCRIPT = re.compile(r"^%%writefile \w+\.py\n")


BROKEN = {  # each needs another cell
    "a cell": ALL["22 Mask a loss: torch.where before what may be nan"].replace(
        "import torch\n", ""
    ),
    "a script": ALL["24 A contrastive loss under DDP"].replace('"summed"', "other"),
}


@pytest.fixture(scope="module")
def alone():
    """{name: (whether it ended without an error, what it said)}; of the BROKEN, too."""
    here = {name: source for name, source in ALL.items() if not needs.of_recipe(source)}
    here |= BROKEN
    given = [
        (SCRIPT.sub("", source), 1 + bool(SCRIPT.match(source)))
        for source in here.values()
    ]
    process = subprocess.run(
        [sys.executable, "-c", ALONE],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(here, json.loads(process.stdout), strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="a library may not survive a fork")
@pytest.mark.parametrize("name", ALL)
def test_a_recipe_runs_alone(name, alone):
    if why := needs.of_recipe(ALL[name]):
        pytest.skip(why)
    well, said = alone[name]
    assert well, said


@pytest.mark.skipif(sys.platform != "linux", reason="a library may not survive a fork")
@pytest.mark.parametrize("name", BROKEN)
def test_a_recipe_that_needs_another_cell_is_found(name, alone):
    well, said = alone[name]
    assert not well and "NameError" in said


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_is_short_stands_alone_and_checks_itself(name):
    source = SCRIPT.sub("", ALL[name])
    lines = source.splitlines()
    assert len(lines) >= LEAST_LINES and len([*filter(None, lines)]) <= MOST_LINES
    tree = ast.parse(source)
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
               for alias in node.names]  # fmt: skip
    modules += [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    of_ours = {module for module in modules if module.startswith(("helpers", "tests"))}
    assert len(of_ours) <= 1 and all(m.startswith("helpers.ops.") for m in of_ours)
    known = {*sys.stdlib_module_names, "torch", "functorch", "numpy", "scipy", "triton"}
    assert {module.split(".")[0] for module in modules} - known <= {"helpers"}
    end = "\n".join(source.splitlines()[-8:])
    assert re.search(r"\bprint\(|\bassert ", end), "end with a check"


@pytest.mark.parametrize("number", sorted(RECIPES))
def test_a_notebook_of_recipes_says_when_and_what_to_check(number):
    (path,) = (path for path in NOTEBOOKS if path.name.startswith(number))
    cells = read(path).cells
    assert len(cells) <= MOST_CELLS
    count = 0
    for before, cell in zip(cells, cells[1:], strict=False):
        if "recipe" in tags(cell):
            count += 1
            assert before.source.startswith("### "), before.source
            assert "**Check** " in before.source and "**It breaks** " in before.source
            if SCRIPT.match(cell.source):
                name = cell.source.split("\n")[0].split()[1]
                runs = cells[cells.index(cell) + 1].source
                assert runs == f"!torchrun --nproc-per-node 2 {name}"
    assert count <= MOST_RECIPES
    title, question = cells[0].source.split("\n\n")[:2]
    assert f"| [{title[2:]}](notebooks/{path.name}) | " in README
    assert re.match(r"\*\*.+\?\*\*", question)
