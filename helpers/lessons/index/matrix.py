"""The matrix of chapter 19: gradient reversal, written in each way.

Every way computes y = x with the derivative -1. The loss is the sum of y³, so at ones
the gradient is -3 and the second derivative, in which both signs count, is 6.
"""

import copy
import io
import pickle
from contextlib import contextmanager, suppress
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.forward_ad import unpack_dual
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from helpers.lessons.torch_messages import essence
from helpers.ops.involution import involution2d

# Ways


def plainly(x):
    return 2 * x.detach() - x


def hooked(x):
    y = x.clone()
    y.register_hook(torch.neg)
    return y


class Combined(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return -grad_output


class Reverse(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return -grad_output


class WithJvp(Reverse):
    @staticmethod
    def jvp(ctx, tangent):
        return -tangent


def kernel(x: Tensor) -> Tensor:
    return x.clone()


def with_rules(op):
    """`op` with a fake kernel and a rule for vmap."""
    torch.library.register_fake(op, torch.empty_like)
    torch.library.register_vmap(op, lambda info, in_dims, x: (op(x), in_dims[0]))
    return op


reverse = with_rules(
    torch.library.custom_op("chapter_19::reverse", kernel, mutates_args=())
)
reverse.register_autograd(lambda ctx, grad_output: -grad_output)
copied = with_rules(
    torch.library.custom_op("chapter_19::copied", kernel, mutates_args=())
)


class Around(Reverse):
    @staticmethod
    def forward(x):
        return copied(x)


torch.library.define("chapter_19::defined", "(Tensor x) -> Tensor")
torch.library.impl("chapter_19::defined", "default", kernel)
defined = with_rules(torch.ops.chapter_19.defined.default)
torch.library.register_autograd(defined, lambda ctx, grad_output: -grad_output)


@torch.library.triton_op("chapter_19::triton", mutates_args={})
def triton(x: Tensor) -> Tensor:
    # No GPU here; it has its own fake kernel, and compilers look inside.
    return kernel(x)


triton.register_vmap(lambda info, in_dims, x: (triton(x), in_dims[0]))
triton.register_autograd(lambda ctx, grad_output: -grad_output)


class AroundWithJvp(Around):
    @staticmethod
    def jvp(ctx, tangent):
        return -tangent


def both(x):
    """Compilers see the operator with its own rule, others the Function around it."""
    if not torch.compiler.is_compiling():
        return AroundWithJvp.apply(x)
    if unpack_dual(x).tangent is not None:
        raise NotImplementedError(
            "this operator has no forward mode inside torch.compile"
        )
    return reverse(x)


def under_the_name(x):
    """A Function under an operator's name: -1 is the derivative of this involution."""
    return 2 * x.detach() + involution2d(x, -x.new_ones(1, 1, 1, 1, *x.shape[-2:]))


class Reversing(Tensor):
    """A label: the first function that meets it reverses the gradient."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        # In here, results are plain tensors.
        with torch._C.DisableTorchFunctionSubclass():
            args = [plainly(arg) if isinstance(arg, cls) else arg for arg in args]
            return func(*args, **(kwargs or {}))


def labelled(x):
    return x.as_subclass(Reversing)


WAYS = {
    "plain operations": plainly,
    "hook": hooked,
    "Function, forward(ctx, x)": Combined.apply,
    "Function, setup_context": Reverse.apply,
    "Function, and jvp": WithJvp.apply,
    "Function around custom_op": Around.apply,
    "custom_op": reverse,
    "define and impl": defined,
    "triton_op": triton,
    "Function and custom_op": both,
    "Function under the name": under_the_name,
    "tensor subclass": labelled,
}

# Situations: each takes a way, and returns a derivative and what it should be

ones = torch.ones(1, 1, 2, 3)
GRADIENT, SECOND = -3 * ones, 6 * ones


def loss_of(op):
    return lambda x: op(x).pow(3).sum()


def backward_of(loss, times=1, x=ones):
    x = x.clone().requires_grad_()
    derivative = loss(x)
    for _ in range(times):
        (derivative,) = torch.autograd.grad(derivative.sum(), x, create_graph=times > 1)
    return derivative


def forward_of(op):
    return lambda x: torch.func.jvp(loss_of(op), (x,), (ones,))[1]


def second_of(op):
    return lambda x: (
        torch.func.hessian(loss_of(op))(x).reshape(6, 6).diagonal().view_as(ones)
    )


def one_graph(f, **options):
    return torch.compile(f, backend="aot_eager", fullgraph=True, **options)


def by_shape(op):
    """The gradient for the last of three shapes, which one graph must serve."""
    compiled = one_graph(loss_of(op), dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        return [
            backward_of(compiled, x=torch.ones(1, 1, rows, 3)) for rows in (4, 3, 2)
        ][-1]


class Holds(nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op
        self.weight = nn.Parameter(ones.clone())
        # A layer that trains, whatever op does.
        self.after = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.after * loss_of(self.op)(self.weight * x)


def trained(module):
    """The gradient of the weight before op, or None where it has none."""
    module(ones).backward()
    return {
        name.split(".")[-1]: value.grad for name, value in module.named_parameters()
    }["weight"]


def cut(op):
    module = Holds(op)
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    return trained(module).full_tensor()


def under_autocast(op):
    def loss(x):
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(op)(x @ torch.eye(3))

    return loss


def exported(op, strict=False):
    file = io.BytesIO()
    torch.export.save(torch.export.export(Holds(op), (ones,), strict=strict), file)
    file.seek(0)
    return trained(torch.export.load(file).module())


def per_sample(op):
    return torch.vmap(torch.func.grad(loss_of(op)))


PAIR = torch.stack([ones, ones])
SITUATIONS = {
    "eager": lambda op: (backward_of(loss_of(op)), GRADIENT),
    "twice": lambda op: (backward_of(loss_of(op), 2), SECOND),
    "checkpoint": lambda op: (
        backward_of(lambda x: checkpoint(loss_of(op), x, use_reentrant=False)),
        GRADIENT,
    ),
    "autocast": lambda op: (backward_of(under_autocast(op)), GRADIENT),
    "DDP": lambda op: (trained(DistributedDataParallel(Holds(op))), GRADIENT),
    "FSDP2": lambda op: (cut(op), GRADIENT),
    "deepcopy": lambda op: (trained(copy.deepcopy(Holds(op))), GRADIENT),
    "pickle": lambda op: (trained(pickle.loads(pickle.dumps(Holds(op)))), GRADIENT),
    "func.grad": lambda op: (torch.func.grad(loss_of(op))(ones), GRADIENT),
    "vmap": lambda op: (backward_of(loss_of(torch.vmap(op)), x=PAIR), -3 * PAIR),
    "vmap(grad)": lambda op: (per_sample(op)(PAIR), -3 * PAIR),
    "jvp": lambda op: (forward_of(op)(ones), GRADIENT.sum()),
    "hessian": lambda op: (second_of(op)(ones), SECOND),
    "compile": lambda op: (backward_of(one_graph(loss_of(op))), GRADIENT),
    "compile, dynamic": lambda op: (by_shape(op), GRADIENT),
    "compile, then twice": lambda op: (backward_of(one_graph(loss_of(op)), 2), SECOND),
    "compile(func.grad)": lambda op: (
        one_graph(torch.func.grad(loss_of(op)))(ones),
        GRADIENT,
    ),
    "compile(vmap(grad))": lambda op: (one_graph(per_sample(op))(PAIR), -3 * PAIR),
    "compile(jvp)": lambda op: (one_graph(forward_of(op))(ones), GRADIENT.sum()),
    "export": lambda op: (exported(op), GRADIENT),
    "export, strict": lambda op: (exported(op, strict=True), GRADIENT),
}


def verdict(way, situation):
    """(right, raises or wrong; what was said or came out)."""
    torch.compiler.reset()
    try:
        given, right = SITUATIONS[situation](WAYS[way])
    except Exception as error:
        # Torch 2.15 leaves it on where a compiled jvp fails.
        with suppress(RuntimeError):
            torch._C._exit_dual_level(level=0)
        return "raises", f"{type(error).__name__}: {essence(error)}"
    if given is not None and torch.allclose(given, right):
        return "right", ""
    came = (
        ["None"]
        if given is None
        else sorted({f"{n:g}" for n in given.flatten().tolist()})
    )
    return "wrong", f"{', '.join(came)} instead of {right.flatten()[0]:g}"


@contextmanager
def process_group():
    """A group of one process, for DistributedDataParallel and fully_shard."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def matrix():
    """A verdict for each pair (way, situation)."""
    with process_group():
        return {pair: verdict(*pair) for pair in product(WAYS, SITUATIONS)}
