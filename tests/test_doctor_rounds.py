"""The doctor on rounds: what it sees of a running program, and that it leaves no trace."""

import gc
import shutil
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import _SingleLevelFunction, once_differentiable
from torch.utils.checkpoint import checkpoint

from helpers import doctor
from helpers.doctor import WrongGradientError, examine, rounds
from helpers.doctor import calls as noticed
from helpers.doctor.__main__ import main
from helpers.doctor.plugin import Doctor, pytest_configure


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * grad_output * x


class Half(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x


class LookUp(Function):
    """Wrong where an index is repeated."""

    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.size = table.shape
        return table[index]

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.size)
        grad[index] = grad_output
        return grad, None


half = Half.apply  # bound before the rounds, as many libraries do


def leaf(*shape):
    return torch.linspace(0.5, 1.5, torch.Size(shape).numel()).reshape(shape).requires_grad_()


def visits(do, **options):
    """{name: the visit} of rounds over do()."""
    with rounds(**options) as found:
        do()
    return {visit.name: visit for visit in found.visits}


def test_real_inputs_reach_what_others_do_not_and_the_line_is_named():
    class Reader(torch.nn.Module):
        def forward(self, table, index):
            return LookUp.apply(table, index)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList([Reader()])

        def forward(self, table, index):
            return self.parts[0](table, index)

    assert examine(LookUp, leaf(4), torch.tensor([2, 0])).ok
    with rounds() as found:
        assert "under way" in str(found)
        Net()(leaf(4), torch.tensor([2, 2, 0])).sum().backward()
        Square.apply(leaf(3))
    assert not found.ok and [v.name for v in found.visits] == ["LookUp", "Square"]
    text = " ".join(str(found).split())
    number = Reader.forward.__code__.co_firstlineno + 1
    for words in (
        "Rounds: 2 Functions, 1 wrong", "error (contribution-lost)", "Square: nothing found",
        f"{Path(__file__).name}:{number} in forward, `return LookUp.apply(table, index)`",
        "in module `parts.0` (Reader) given (4) float32, (3) int64",
    ):  # fmt: skip
        assert words in text, text
    with pytest.raises(WrongGradientError, match="contribution-lost"):
        found.raise_if_wrong()


def test_a_call_is_judged_by_what_it_was_handed_not_by_what_became_of_it():
    def program():
        index = torch.tensor([2, 2])
        LookUp.apply(leaf(4), index)
        index[0] = 1

    assert not visits(program)["LookUp"].ok


def test_the_program_is_not_changed():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    x, start = torch.randn(3, 2), {k: v.clone() for k, v in net.state_dict().items()}

    class Net(torch.nn.Module):
        def forward(self, x):
            return half(net(x) + torch.rand(3, 2))

    def program():
        torch.manual_seed(1)
        net.load_state_dict(start)
        net.zero_grad()
        checkpoint(Net(), x.clone().requires_grad_(), use_reentrant=True).sum().backward()
        checkpoint(lambda v: Recomputes.apply(net, v), x, use_reentrant=False).sum()
        Recomputes.apply(net, leaf(3, 2)).sum().backward()
        numbers = [*net.state_dict().values(), *(p.grad for p in net.parameters())]
        return [n.clone() for n in numbers]

    def after():
        numbers = [*net.state_dict().values(), *(p.grad for p in net.parameters())]
        return [n.clone() for n in numbers], torch.get_rng_state()

    plain, (_, state) = program(), after()
    with rounds() as found:
        inside = program()
        assert "apply" in vars(_SingleLevelFunction)
    outside, state_after = after()
    for kept in (inside, outside):
        torch.testing.assert_close(kept, plain, rtol=0, atol=0)
    assert torch.equal(state, state_after) and "apply" not in vars(_SingleLevelFunction)
    assert {v.name: v.patterns for v in found.visits} == {"Half": 1, "Recomputes": 1}


class Recomputes(Function):
    """Keeps its module, and adds to the gradients of its parameters."""

    @staticmethod
    def forward(ctx, module, x):
        ctx.module = module
        ctx.save_for_backward(x)
        return module(x)

    @staticmethod
    def backward(ctx, grad_output):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.module(x).backward(grad_output)
        return None, x.grad


def test_what_an_examined_function_leaves_on_its_class_is_taken_back():
    class Remembers(Square):
        dtypes = ()

        @staticmethod
        def forward(ctx, x):
            Remembers.dtypes = (*Remembers.dtypes, x.dtype)
            if x.dtype is torch.float64:
                Remembers.doubled = True
            return Square.forward(ctx, x)

    visits(lambda: Remembers.apply(leaf(2)))
    assert Remembers.dtypes == (torch.float32,) and not hasattr(Remembers, "doubled")


def test_nothing_is_kept_afterwards(monkeypatch):
    copies, copied = [], noticed.Call.of

    def of(*args):
        call = copied(*args)
        copies.append(weakref.ref(call.args[0]))
        return call

    monkeypatch.setattr(noticed.Call, "of", of)
    manager = rounds()  # which outlives the block, as at the top of a notebook
    with manager as found:
        Square.apply(leaf(2))
        assert copies[0]() is not None
    gc.collect()
    assert copies[0]() is None and found.ok


def test_a_program_that_raises_is_left_to_raise():
    with pytest.raises(KeyError), rounds() as found:
        half(leaf(2))
        raise KeyError
    assert found.ok and "the program raised before the end" in str(found)
    assert "apply" not in vars(_SingleLevelFunction)


def test_once_for_each_pattern():
    class Power(Function):
        @staticmethod
        def forward(ctx, x, c, n):
            ctx.save_for_backward(x)
            ctx.c, ctx.n = c, n
            return c * x**n

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * ctx.c * ctx.n * x ** (ctx.n - 1), None, None

    x, small = leaf(3), leaf(2)

    def program():
        for c in (1.0, 2.0, 3.0):  # a float is no new pattern
            Power.apply(x, c, 2)
        Power.apply(x, 1.0, 3)
        Power.apply(x.double(), 1.0, 2)
        Power.apply(small, 1.0, 2)
        Power.apply(small.detach(), 1.0, 2)

    visit = visits(program)["Power"]
    assert (visit.calls, visit.patterns) == (7, 4)
    assert visit.left == {"no input required a gradient": 1}
    visit = visits(program, max_patterns=2)["Power"]
    assert visit.patterns == 2 and visit.left["more patterns than max_patterns"] == 2


def test_a_class_made_anew_at_each_call_is_one_and_its_closure_tells_it_apart():
    def scaled(factor):
        class Scaled(Function):
            @staticmethod
            def forward(ctx, x):
                return x * factor

            @staticmethod
            def backward(ctx, grad_output):
                return grad_output * factor

        return Scaled.apply

    def program():
        for factor in (2, 2, 3):
            scaled(factor)(leaf(2))

    with rounds() as found:
        program()
    assert [(v.name, v.calls) for v in found.visits] == [("Scaled", 2), ("Scaled", 1)]


def test_the_largest_give_way_to_the_budget():
    def program():
        for n in (30, 10, 20, 1000):  # the third takes the place of the first
            Square.apply(leaf(n))

    visit = visits(program, max_bytes=4 * 40)["Square"]
    assert visit.patterns == 2 and visit.left == {"too large for max_bytes": 2}
    assert "2 calls left out (too large for max_bytes)" in " ".join(str(visit).split())
    assert "Square: not examined" in str(visits(program, max_bytes=0)["Square"])
    assert visits(program)["Square"].patterns == 4


def test_which_are_examined():
    def program():
        Square.apply(half(leaf(2)))

    assert set(visits(program)) == {"Square", "Half"}
    assert set(visits(program, only=[Square])) == {"Square"}
    assert set(visits(program, only=f"{__name__}.H*")) == {"Half"}
    assert set(visits(program, skip=["Half"])) == {"Square"}
    assert not visits(program, faithful=["Square"])["Half"].ok
    (finding,) = [f for f in visits(program, faithful=[Half])["Half"].findings if f.input]
    assert finding.code == "unfaithful"
    for options, words in [
        ({"max_bytes": "1 GB"}, "max_bytes must be a number"),
        ({"max_patterns": -1}, "max_patterns must be a number"),
        ({"skip": [3]}, "skip must hold Functions or their names, got 3"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            rounds(**options)


def test_a_decorated_function_raises():
    @rounds()
    def program(fn):
        return fn(leaf(2)).sum().item()

    assert program(Square.apply) == pytest.approx(2.5)
    with pytest.raises(WrongGradientError, match="Half: 1 error"):
        program(half)


def test_nested_functions_and_nested_rounds():
    class Outer(Square):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return half(x)

    with rounds() as outer:
        Square.apply(leaf(2))
        with rounds() as inner:
            Outer.apply(leaf(2))
    assert {(v.name, v.ok, v.calls) for v in inner.visits} == {
        ("Outer", True, 1),
        ("Half", False, 1),
    }
    assert {(v.name, v.calls) for v in outer.visits} == {("Square", 1), ("Outer", 1), ("Half", 1)}


def test_a_thread_and_a_backward_are_heard():
    class CallsHalf(Square):
        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            half(x)
            return 2 * grad_output * x

    def program():
        thread = threading.Thread(target=lambda: CallsHalf.apply(leaf(2)).sum().backward())
        thread.start()
        thread.join()

    assert {name: v.ok for name, v in visits(program).items()} == {"CallsHalf": True, "Half": False}


def test_setup_context_with_defaults_and_functorch_wrappers():
    class Scale(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, c=2.0):
            return x * c

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.c = inputs[1]

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output, None

    (finding, *_) = visits(lambda: Scale.apply(leaf(2)))["Scale"].findings
    assert "lacks the factor `c` = 2" in finding.message
    assert set(visits(lambda: torch.vmap(Scale.apply)(leaf(2, 2)))) <= {"Scale"}
    checked = visits(lambda: checkpoint(torch.sin, leaf(2), use_reentrant=True))
    assert checked == {}  # PyTorch's own


def test_an_operator_of_torch_library_has_the_names_of_its_arguments():
    @torch.library.custom_op("rounds_test::cube", mutates_args=())
    def cube(base: torch.Tensor) -> torch.Tensor:
        return base**3

    def backward(ctx, grad_output):
        return 2 * grad_output * ctx.saved_tensors[0] ** 2

    cube.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    )
    visit = visits(lambda: cube(leaf(2)))["rounds_test::cube"]
    assert "The gradient of `base` is right, but multiplied by 0.667" in str(visit)


def test_autocast_is_that_of_the_call():
    class Product(Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w  # of two dtypes, which autocast permits

        @staticmethod
        def backward(ctx, g):
            x, w = (t.to(g.dtype) for t in ctx.saved_tensors)
            dx = g @ w.t() if ctx.needs_input_grad[0] else None
            return dx, (x.t() @ g).to(ctx.saved_tensors[1].dtype)

    def program():
        with torch.autocast("cpu", torch.bfloat16):
            Product.apply(leaf(2, 3).bfloat16(), leaf(3, 2))
            Product.apply(leaf(2, 3), leaf(3, 2))

    visit = visits(program)["Product"]
    assert visit.patterns == 2 and visit.ok, str(visit)


def test_what_autocast_rounds_is_not_held_against_float32():
    class Power(Function):
        @staticmethod
        def forward(ctx, x, w):
            h = x @ w  # to three digits, of which the power loses one
            ctx.save_for_backward(h, w)
            return h**8

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            h, w = ctx.saved_tensors
            return 8 * g.to(w.dtype) * h.to(w.dtype) ** 7 @ w.t(), None

    x, w = leaf(4, 3), leaf(3, 3).detach()

    def program():
        with torch.autocast("cpu", torch.bfloat16):
            Power.apply(x, w)

    visit = visits(program)["Power"]
    assert visit.ok, str(visit)


def test_arguments_with_a_state_are_copied_for_each_call():
    class Counts(Function):
        @staticmethod
        def forward(ctx, x, counter, generator):
            counter["n"] = ctx.n = counter["n"] + 1
            mask = torch.rand(x.shape, generator=generator) > 0.5
            ctx.save_for_backward(mask)
            return x * ctx.n * mask

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * ctx.n * ctx.saved_tensors[0], None, None

    counter, generator = {"n": 0}, torch.Generator().manual_seed(0)

    def program():
        Counts.apply(leaf(8), counter, generator)
        program.state = generator.get_state()

    visit = visits(program)["Counts"]
    assert visit.ok, str(visit)
    assert counter == {"n": 1} and torch.equal(generator.get_state(), program.state)


MODULE = torch.nn.Linear(3, 2)


def through_a_global(x):  # in float32, whatever arrives
    return MODULE(x.float()).to(x.dtype)


def through_a_closure(module):
    return lambda x: module(x.float()).to(x.dtype)


@pytest.mark.parametrize("fn", [through_a_global, through_a_closure(MODULE)])
def test_a_module_that_a_function_holds_is_judged_in_its_own_precision(fn):
    class Through(Function):
        @staticmethod
        def forward(ctx, x, fn):
            ctx.save_for_backward(x)
            ctx.fn = fn
            return fn(x)

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                return torch.autograd.grad(ctx.fn(x), x, g)[0], None

    visit = visits(lambda: Through.apply(leaf(2, 3), fn))["Through"]
    assert visit.ok and not any(f.code == "double-copy" for f in visit.findings), str(visit)


def test_tensors_in_a_list_are_constants_as_autograd_takes_them():
    class Weighted(Function):
        @staticmethod
        def forward(ctx, x, weights):
            ctx.save_for_backward(*weights)
            return x * weights[0]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0], None

    assert visits(lambda: Weighted.apply(leaf(2), [leaf(2)]))["Weighted"].ok


PROGRAM = """
import sys
import torch
class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.saved_tensors[0]
class Third(Half):
    pass
def test_one(): Half.apply(torch.ones(2, requires_grad=True))
def test_two():
    Half.apply(torch.ones(3, requires_grad=True))
    Third.apply(torch.ones(2, requires_grad=True))
"""


def test_command_line(tmp_path, capsys):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM + "test_one()\nprint(sys.argv, __name__)\n")
    before = list(sys.argv), list(sys.path)
    assert main(["--run", str(file), "--epochs", "-h"]) == 1
    out = capsys.readouterr().out
    assert f"{[str(file), '--epochs', '-h']} __main__" in out
    assert "Half: 1 error" in out and f"{file}:14 in test_one" in " ".join(out.split())
    assert (sys.argv, sys.path) == before
    for last, status in [("", 0), ("sys.exit(3)", 3), ("sys.exit('no')", 1), ("1 / 0", 2)]:
        file.write_text(f"{PROGRAM}\n{last}")
        assert main(["--run", str(file)]) == status
        printed = capsys.readouterr()
        assert "Rounds: 0 Functions, none wrong" in printed.out
        assert ("ZeroDivisionError" in printed.err) == (status == 2)
        assert ("no\n" in printed.err) == (status == 1)
    for arguments in (["--run", "nowhere.py"], ["--run"], []):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 2


def pytest_over(tmp_path, *arguments, plugin="helpers.doctor.plugin"):
    program, settings = tmp_path / "test_program.py", tmp_path / "pytest.ini"
    program.write_text(PROGRAM)
    settings.write_text("[pytest]\n")
    sys.modules.pop("test_program", None)
    surroundings = [
        "--disable-plugin-autoload",
        "-p",
        "no:cacheprovider",
        "-c",
        str(settings),
        "--rootdir",
        str(tmp_path),
    ]
    return ["-p", plugin, *surroundings, *arguments, str(program)]


def test_a_test_suite_fails_and_names_the_first_test(tmp_path, capsys):
    pytest_configure(SimpleNamespace(getoption=lambda name: False))  # without the flag, nothing
    assert pytest.main(pytest_over(tmp_path, "--doctor")) == 1
    out = " ".join(capsys.readouterr().out.split())
    for words in (
        "2 passed", "Half: 1 error", "Third: 1 error", "2 calls, 2 patterns examined",
        "first in test_program.py::test_one", "first in test_program.py::test_two",
        "test_program.py:14 in test_one", "Functions: 2, wrong: 2",
    ):  # fmt: skip
        assert words in out, out
    options = ["--doctor", "--doctor-skip", "Half", "--doctor-unfaithful", "test_program.Third"]
    assert pytest.main(pytest_over(tmp_path, *options)) == 0
    assert "Functions: 1, wrong: none" in capsys.readouterr().out


def test_the_plugin_works_in_a_renamed_copy(tmp_path, capsys, monkeypatch):
    shutil.copytree(Path(doctor.__file__).parent, tmp_path / "physician")
    monkeypatch.syspath_prepend(tmp_path)
    assert pytest.main(pytest_over(tmp_path, "--doctor", plugin="physician.plugin")) == 1
    assert "Functions: 2, wrong: 2" in capsys.readouterr().out
    folders = [
        Path(m.__file__).parent for n, m in sys.modules.items() if n.startswith("physician.")
    ]
    assert set(folders) == {tmp_path / "physician"}


def test_what_workers_of_xdist_found_is_gathered():
    config = SimpleNamespace(getoption=lambda name: [], workeroutput={})
    worker = Doctor(config)
    half(leaf(2))
    worker.pytest_sessionfinish(SimpleNamespace(config=config))
    ((name, ok, text),) = config.workeroutput["doctor"]
    assert name.endswith(".Half") and not ok and "Half: 1 error" in text
    boss, session = Doctor(config), SimpleNamespace(config=SimpleNamespace(), exitstatus=0)
    for _ in range(2):
        boss.pytest_testnodedown(SimpleNamespace(workeroutput=config.workeroutput))
    boss.pytest_testnodedown(SimpleNamespace())  # one that crashed
    boss.pytest_sessionfinish(session)
    assert session.exitstatus == 1
    lines = []
    boss.pytest_terminal_summary(
        SimpleNamespace(section=lambda *_, **__: 0, write_line=lines.append)
    )
    assert lines == [text, "Functions: 1, wrong: 1"]


def test_a_pattern_holds_nothing_of_the_program():
    held = [leaf(2), {"a": [leaf(2), 1.0]}, lambda: held]
    assert "tensor(" not in str(noticed.pattern(held))
