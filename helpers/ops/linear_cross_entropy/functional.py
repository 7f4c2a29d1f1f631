"""The function to call, and its layer."""

import math

import torch

from .derivatives import LinearCrossEntropy, plain_logits, plain_losses
from .operator import Arguments, operator, wide

INTS = (int, torch.SymInt)


def linear_cross_entropy(
    input,
    linear_weight,
    target,
    *,
    linear_bias=None,
    weight=None,
    row_weight=None,
    reduction="mean",
    ignore_index=-100,
    label_smoothing=0.0,
    z_loss=0.0,
    softcap=0.0,
    chunk_size=None,
    return_predicted=False,
):
    """`F.cross_entropy(F.linear(input, linear_weight, linear_bias), target, weight)`, without the
    logits in memory. The names are those of `F.linear_cross_entropy`.

    input: (..., D); linear_weight: (V, D); linear_bias: (V) or None; of one floating-point dtype.
    target: (...), int64: for each row of D features a class from 0 to V - 1, or `ignore_index`; or
        (..., V), floating-point: the probabilities of the classes. It gets no gradient.
    weight: (V) or None: a factor for each class. It gets no gradient.
    row_weight: (...) or None: a factor for the loss of each row, floating-point.
    reduction: "mean", "sum", or "none": one loss for each row, in the shape (...). The mean counts
        rows by the weight of their class, as PyTorch's own, and by their own weight; nan with a
        gradient of 0 if all are ignored.
    label_smoothing: from 0 to 1, the share of the uniform distribution in what is expected.
    z_loss: this times the square of log Σ exp(z) is added to the loss of each row (of PaLM).
    softcap: if not 0, the logits are softcap · tanh(z / softcap) (of Gemma 2).
    chunk_size: how many rows have logits at a time; by default 512, or D / 4 if that is more.
        Fewer take less memory; with very few, adding to the gradient of the weight takes the time.
    return_predicted: if True, the result is a pair, (loss, predicted): (...), int64, the class of
        each row's largest logit, for the accuracy.
    Returns the loss, in the dtype of `input`. Under autocast, all but float64 is cast to its dtype,
        and the loss is in float32 at least, as PyTorch's own.

    Softmax, losses, and sums over chunks are in float32 at least. Memory beyond the arguments: the
    logits of a chunk, as much again for each of `softcap` and probabilities, some 14 times those
    for a second derivative, and twice the gradients that are required, as backward returns
    multiples of what forward made; for "none", it computes the logits again.

    In bfloat16, the logits of a chunk are widened and their gradients narrowed. Where products in
    bfloat16 are fast, these two passes take more time than chunks save: 1.5 times the plain one's
    time, at 0.3 of its memory, with two threads of an AMD EPYC that has `avx512_bf16`.

    Derivatives of every order, in backward and forward mode, alone and under `torch.func`; vmap
    takes one sample after the other. The backward of a gradient, and forward mode, raise
    RuntimeError while hooks on saved tensors are on, such as `save_on_cpu`, since torch.func
    computes them. Under `torch.compile`, static and dynamic shapes, and `torch.export` it is one
    operator, with one derivative, in backward mode; a transform of `torch.func` that is compiled
    gets all logits at once.

    Raises TypeError or ValueError for arguments that do not fit. Targets are looked up on the CPU
    only; one out of range on a CUDA device fails an assertion in the kernel of `gather`.
    """
    of_rows = {} if row_weight is None else {"row_weight": row_weight}
    of_classes = {"linear_bias": linear_bias, "weight": weight}
    _check_tensors(input, linear_weight, target, of_classes, of_rows)
    _check_options(
        reduction, ignore_index, chunk_size, label_smoothing, z_loss, softcap, return_predicted
    )
    x, w, b, dtype = _cast(input, linear_weight, linear_bias)
    shape, reduce, indices = input.shape[:-1], reduction != "none", not target.is_floating_point()
    rows = math.prod(shape)  # spelled out because reshape(-1, 0) would be ambiguous
    x, target = x.reshape(rows, w.shape[1]), target.reshape(rows, *target.shape[len(shape) :])
    share = row_weight if row_weight is None else row_weight.reshape(rows).to(wide(x))
    grad = reduce and torch.is_grad_enabled()
    args = Arguments(
        input=x,
        linear_weight=w,
        linear_bias=b,
        target=target,
        weight=weight,
        share=share,
        reduce=reduce,
        wanted=[grad and t is not None and t.requires_grad for t in (x, w, b)],
        predict=return_predicted,
        chunk_size=max(512, w.shape[1] // 4) if chunk_size is None else chunk_size,
        ignore_index=ignore_index,
        label_smoothing=float(label_smoothing),
        z_loss=float(z_loss),
        softcap=float(softcap),
    )
    loss, predicted = _loss_and_predicted(args)
    if reduction == "mean":
        count = target != ignore_index if indices else target.new_ones(rows)
        if indices and weight is not None:
            count = weight.to(loss.dtype)[target.masked_fill(~count, 0)] * count
        count = (count if share is None else count * share).sum()
        loss = torch.where(count != 0, loss / torch.where(count != 0, count, 1), math.nan)
    # A view, because a hook on an output of the Function is called with None where others get one.
    loss = loss.reshape(() if reduce else shape).to(dtype)
    return (loss, predicted.reshape(shape)) if return_predicted else loss


def _cast(*layer):
    """input, weight and bias as autocast wants them, and the dtype of the loss."""
    x, w, b = layer
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        # Cast out here, where autograd records it, so that every gradient returns in its own dtype.
        to = torch.get_autocast_dtype(x.device.type)
        x, w, b = (t if t is None or t.dtype == torch.float64 else t.to(to) for t in layer)
        dtype = wide(x)
    else:
        dtype = x.dtype
    for name, t in (("linear_weight", w), ("linear_bias", x if b is None else b)):
        if t.dtype != x.dtype:
            raise TypeError(f"{name} is {t.dtype}, but input is {x.dtype}")
    return x, w, b, dtype


def _loss_and_predicted(args):
    """The losses or their sum, each times its share, and the classes of the largest logits."""
    if not torch.compiler.is_compiling():
        loss, *_, predicted = LinearCrossEntropy.apply(*args)
    elif not torch._C._are_functorch_transforms_active():
        # Of a Function a compiler takes no jvp, and an exporter no backward.
        loss, *_, predicted = operator(*args)
    else:
        layer = args.input, args.linear_weight, args.linear_bias
        loss = plain_losses(*layer, args)
        loss = loss if args.share is None else loss * args.share
        loss = loss.sum() if args.reduce else loss
        predicted = plain_logits(*layer, args.softcap).argmax(-1) if args.predict else None
    return loss, predicted


def _check_tensors(input, linear_weight, target, of_classes, of_rows):
    of_classes = {name: tensor for name, tensor in of_classes.items() if tensor is not None}
    tensors = {"input": input, "linear_weight": linear_weight, "target": target}
    tensors |= of_classes | of_rows
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.layout is not torch.strided:
            raise TypeError(f"{name} must be dense (torch.strided), got {tensor.layout}")
        if tensor.device != input.device:
            raise ValueError(f"{name} is on {tensor.device}, but input is on {input.device}")
        if not tensor.is_floating_point() and (name != "target" or tensor.dtype != torch.int64):
            kind = "torch.int64 or floating-point" if name == "target" else "floating-point"
            raise TypeError(f"{name} must be {kind}, got {tensor.dtype}")
        if tensor.dtype.itemsize == 1:
            raise TypeError(f"{name} must have numbers of 16 bits or more, got {tensor.dtype}")
        if name in ("target", "weight") and tensor.requires_grad:
            raise ValueError(f"{name} must not require a gradient, as it would get none")
    got = tuple(linear_weight.shape)
    if len(got) != 2 or got[0] == 0:
        raise ValueError(f"linear_weight must have shape (V, D), V > 0, got {got}")
    classes, features = got
    if input.dim() == 0 or input.shape[-1] != features:
        raise ValueError(f"input must have shape (..., {features}), got {tuple(input.shape)}")
    shapes = dict.fromkeys(of_classes, (classes,)) | dict.fromkeys(of_rows, tuple(input.shape[:-1]))
    shapes["target"] = (*input.shape[:-1], *[classes] * target.is_floating_point())
    for name, shape in shapes.items():
        if (got := tuple(tensors[name].shape)) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {got}")


def _check_options(
    reduction="mean",
    ignore_index=-100,
    chunk_size=None,
    label_smoothing=0.0,
    z_loss=0.0,
    softcap=0.0,
    return_predicted=False,
):
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    if not isinstance(return_predicted, bool):
        raise TypeError(f"return_predicted must be a bool, got {type(return_predicted).__name__}")
    for name, value, kinds, least, most in (
        ("ignore_index", ignore_index, INTS, -math.inf, math.inf),
        ("chunk_size", 1 if chunk_size is None else chunk_size, INTS, 1, math.inf),
        ("label_smoothing", label_smoothing, (int, float), 0, 1),
        ("z_loss", z_loss, (int, float), 0, math.inf),
        ("softcap", softcap, (int, float), 0, math.inf),
    ):
        if isinstance(value, bool) or not isinstance(value, kinds):
            kind = "an int" if kinds is INTS else "a number"
            raise TypeError(f"{name} must be {kind}, got {type(value).__name__}")
        if value == math.inf:
            raise ValueError(f"{name} must be finite, got {value}")
        if not least <= value <= most:
            bounds = f"{least} or more" if most == math.inf else f"from {least} to {most}"
            raise ValueError(f"{name} must be {bounds}, got {value}")


class LinearCrossEntropyLoss(torch.nn.Module):
    """`linear_cross_entropy` of a linear layer of its own, as `torch.nn.LinearCrossEntropyLoss`.

    Called with input (..., in_features), target, and row_weight or None. Parameters:
    `linear.weight`, of shape (num_classes, in_features), and `linear.bias`, if wanted. options: of
    `linear_cross_entropy`.
    """

    def __init__(self, in_features, num_classes, bias=False, *, weight=None, **options):
        super().__init__()
        like = {key: options.pop(key, None) for key in ("device", "dtype")}
        _check_options(**options)
        self.linear, self.options = torch.nn.Linear(in_features, num_classes, bias, **like), options
        self.register_buffer("weight", weight)

    def forward(self, input, target, row_weight=None):
        layer = {"linear_bias": self.linear.bias, "weight": self.weight, "row_weight": row_weight}
        return linear_cross_entropy(input, self.linear.weight, target, **layer, **self.options)
