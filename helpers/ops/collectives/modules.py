"""Linear layers that are cut across processes."""

from functools import partial

import torch
import torch.distributed as dist
from torch.nn import functional as F

from .agreement import agree, wrong_dim
from .maps import Collective, add, gather, own_part, same, shares


class _ParallelLinear(torch.nn.Module):
    cut = {}  # parameter: the dimension along which it is cut

    def __init__(
        self,
        in_features,
        out_features,
        bias=True,
        *,
        group=None,
        check=True,
        device=None,
        dtype=None,
    ):
        super().__init__()
        for name, size in (
            ("in_features", in_features),
            ("out_features", out_features),
        ):
            if isinstance(size, bool) or not isinstance(size, int):
                raise TypeError(f"{name} must be an int, got {type(size).__name__}")
            if size < 0:
                raise ValueError(f"{name} must not be negative, got {size}")
        self.in_features, self.out_features = in_features, out_features
        self.group, self.check = group, check
        # As the whole layer draws them, so that one seed gives the same numbers on any
        # number of processes. It must be the same seed on all of them.
        whole = torch.nn.Linear(
            in_features, out_features, bias, device=device, dtype=dtype
        )
        size = whole.weight.shape[self.cut["weight"]]
        self.sizes = shares(size, dist.get_world_size(group))
        for name in ("weight", "bias"):
            part = getattr(whole, name)
            if part is not None and name in self.cut:
                part = own_part(part.detach(), self.cut[name], self.sizes, group)
            part = None if part is None else torch.nn.Parameter(part.detach())
            self.register_parameter(name, part)
        self.register_state_dict_post_hook(_join)
        self.register_load_state_dict_pre_hook(_cut)

    def _agree(self, input, features, free=None):
        """Does this layer take the last dimension of `input`, everywhere?"""
        problem = wrong_dim("dim", -1, input)
        if not problem and input.shape[-1] != features:
            problem = ValueError(
                f"input must have shape (..., {features}), got {tuple(input.shape)}"
            )
        agree(self.call, input, self.group, self.check, problem, free=free)

    def extra_repr(self):
        bias = self.bias is not None
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={bias},"
            f" cut into {self.sizes}"
        )


def _join(module, state_dict, prefix, local_metadata):
    for name, dim in module.cut.items():
        if prefix + name in state_dict:
            part = state_dict[prefix + name].detach()
            state_dict[prefix + name] = gather(part, dim, module.sizes, module.group)


def _cut(
    module, state_dict, prefix, local_metadata, strict, missing, unexpected, error_msgs
):
    for name, dim in module.cut.items():
        whole = state_dict.get(prefix + name)
        if whole is None:
            continue
        if whole.shape[dim] == sum(module.sizes):
            state_dict[prefix + name] = own_part(whole, dim, module.sizes, module.group)
        else:
            error_msgs.append(
                f"{prefix}{name} must be that of the whole layer, {sum(module.sizes)} "
                "long in"
                f" dimension {dim}, got {tuple(whole.shape)}"
            )


class ColumnParallelLinear(_ParallelLinear):
    """A part of the output features of an `nn.Linear` on each process.

    (..., in_features), the same on all processes -> (..., this process's features), or
    all of them if `gather_output`. They are shared as `torch.tensor_split` shares them.
    For one seed, the same on all processes, the parameters are parts of those of
    `nn.Linear`; and `state_dict` gives and `load_state_dict` takes those of the whole
    layer. Call `state_dict` on every process: it gathers.

    Raises TypeError or ValueError for sizes that are no integers or negative.
    Not supported: a deep copy of a layer with a `group` of its own.

    The loss is meant to be the same on every process ("replicated").
    """

    cut = {"weight": 0, "bias": 0}
    call = "copy"

    def __init__(
        self, in_features, out_features, bias=True, gather_output=False, **options
    ):
        super().__init__(in_features, out_features, bias, **options)
        self.gather_output = gather_output

    def forward(self, input):
        self._agree(input, self.in_features)
        input = Collective.apply(input, same, partial(add, group=self.group))
        output = F.linear(input, self.weight, self.bias)
        if not self.gather_output:
            return output
        how = {"dim": output.dim() - 1, "sizes": self.sizes, "group": self.group}
        return Collective.apply(
            output, partial(gather, **how), partial(own_part, **how)
        )


class RowParallelLinear(_ParallelLinear):
    """An `nn.Linear` whose input features are divided; the results are added.

    (..., this process's features), as a `ColumnParallelLinear` leaves them -> (...,
    out_features), the same on all processes. Parameters, seed and `state_dict` as
    there; `bias` is on each process as a whole.
    """

    cut = {"weight": 1}
    call = "all_reduce"

    def forward(self, input):
        self._agree(input, self.weight.shape[1], free=-1)
        partial_sum = F.linear(input, self.weight)
        output = Collective.apply(partial_sum, partial(add, group=self.group), same)
        # Of autocast.
        return output if self.bias is None else output + self.bias.to(output.dtype)
