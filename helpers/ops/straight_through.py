r"""Steps with a slope by decision: rounding, sign, and the spike of a neuron.

The derivative of a step is 0 wherever there is one, so nothing in front of it learns.
Each function here has the values of a step and the derivatives, of every order, of a
smoother function s:

    y = step(x)        dL/dx := dL/dy · s'(x)

                              step                        s(x)
    round_straight_through    round(x)                    x
    sign_straight_through     1 if x >= 0 else -1         x clamped to ±clip
    spike                     1 if x > 0 else 0           x / (1 + slope · |x|)

`straight_through(step, smooth)` makes one of a step and an s of your own.

They are plain operations, step(x) - (s(x) - s(x)), the first s(x) without its history,
so every transform and compiler sees the decision, where several of them lose the
backward of a Function. In the brackets stands +0 exactly, so the values are those of
the step to the last bit; the popular x + (step(x) - x).detach() makes 0 of the sign of
a large number. On torch 2.10, one thing silently loses the slope: a program of
`torch.export` after `run_decompositions`. On torch 2.11, a compiled `vmap(grad)`
raises.

Source: Bengio et al., Estimating or Propagating Gradients Through Stochastic Neurons
for Conditional Computation, https://arxiv.org/abs/1308.3432 (straight-through); Hubara
et al., Binarized Neural Networks, https://arxiv.org/abs/1602.02830 (sign, and its
clip); Zenke and Ganguli, SuperSpike, https://arxiv.org/abs/1705.11146 (the slope of the
spike)

Needs torch 2.10 or later.

>>> import torch
>>> x = torch.tensor([-1.6, 0.2, 1.4], requires_grad=True)
>>> sign_straight_through(x)
tensor([-1.,  1.,  1.], grad_fn=<SubBackward0>)
>>> sign_straight_through(x).sum().backward()
>>> x.grad
tensor([0., 1., 0.])
"""

import torch


def _constant(tensor):
    """Its numbers without their history."""
    # Of `detach`, `run_decompositions` makes an alias, with a slope. What is better in
    # an exported program has no rule for vmap on torch 2.10, which takes any compiler
    # for an exporter.
    if not torch.compiler.is_exporting() or torch.__version__.startswith("2.10."):
        return tensor.detach()
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(bits).view(tensor.dtype)


def _check(input, what="input", **numbers):
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"{what} must be a torch.Tensor, got {type(input).__name__}")
    if not input.is_floating_point():
        raise TypeError(f"{what} must be floating-point, got {input.dtype}")
    if input.dtype.itemsize == 1:
        raise TypeError(
            f"{what} must have numbers of 16 bits or more, got {input.dtype}"
        )
    if input.layout is not torch.strided:
        raise TypeError(f"{what} must be dense (torch.strided), got {input.layout}")
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise TypeError(
                f"{name} must be a Python number, got {type(number).__name__}"
            )
        if not number > 0:
            raise ValueError(f"{name} must be larger than 0, got {number}")


def _with_slope_of(smooth, step):
    # Subtracted, because -0 - (+0) is -0, but -0 + (+0) is +0.
    return step - (_constant(smooth) - smooth)


def straight_through(step, smooth):
    """The values of `step`, to the last bit, and all derivatives of `smooth`.

    step, smooth: floating-point tensors of one shape, dtype and device, which the
    result has, too. No gradient flows to `step`. `smooth` must be finite: where it is
    not, the result is nan.

    Works under `torch.compile`, `torch.export` and every transform of `torch.func`, in
    forward mode, too.
    Raises TypeError or ValueError for other arguments.
    """
    _check(step, "step")
    _check(smooth, "smooth")
    for what in ("shape", "dtype", "device"):
        if getattr(step, what) != getattr(smooth, what):
            raise ValueError(
                f"step and smooth must have one {what}, got {getattr(step, what)} and "
                f"{getattr(smooth, what)}"
            )
    return _with_slope_of(smooth, _constant(step))


def _clamped(input, limit):
    # No further than the largest finite number: the difference of two infinities would
    # be nan.
    limit = min(limit, torch.finfo(input.dtype).max)
    # Not `clamp`, whose slope at its bounds is 1 up to torch 2.13 and 0 from 2.14 on.
    return torch.where(
        input.abs() <= limit, input, _constant(input).clamp(-limit, limit)
    )


def round_straight_through(input):
    """`input` rounded to the nearest integer, half to even, with slope 1.

    input: a floating-point tensor of any shape. The result has its shape, dtype and
    device. At ±inf, which no step leaves, the slope is 0.

    To quantise, clamp first: `round_straight_through((w / s).clamp(low, high)) * s`. A
    clamp of what is rounded has the slope 0 in the whole of both outermost bins, from
    torch 2.14 on, and the gradient of `s` is wrong. The values are the same. At its
    bounds, `clamp` itself has the slope 0, and with s = max |w| / high the largest
    weight is there. For v = w / s, `torch.where((low <= v) & (v <= high), v,
    v.detach().clamp(low, high))` has the slope 1.

    The gradient is not the derivative of the forward, so `gradcheck` fails, as it
    should. The second derivative is 0. Works under `torch.compile`, `torch.export` and
    every transform of `torch.func`, in forward mode, too.
    Raises TypeError if `input` is not a floating-point tensor.
    """
    _check(input)
    return _with_slope_of(_clamped(input, float("inf")), torch.round(_constant(input)))


def sign_straight_through(input, clip=1.0):
    """The sign of `input`, with slope 1 where |input| <= clip, else 0.

    input: a floating-point tensor of any shape. The result has its shape, dtype and
    device; there is no 0 in it, unlike in that of `torch.sign`; nan stays nan.
    clip: a Python number larger than 0; `math.inf` for the slope 1 at every finite
    number.

    The gradient is not the derivative of the forward, so `gradcheck` fails, as it
    should. The second derivative is 0. Works under `torch.compile`, `torch.export` and
    every transform of `torch.func`, in forward mode, too.
    Raises TypeError or ValueError for other arguments.
    """
    _check(input, clip=clip)
    one = torch.ones_like(input)
    return _with_slope_of(_clamped(input, clip), torch.where(input < 0, -one, one))


def spike(input, slope=25.0):
    """1 where `input` > 0 and 0 elsewhere, with the slope 1 / (1 + slope · |input|)².

    input: a floating-point tensor of any shape, the potential of neurons less their
    threshold. The result has its shape, dtype and device; nan stays nan.
    slope: a Python number larger than 0: how fast the surrogate falls off. In the dtype
    of `input` it must be neither infinite nor smaller than its smallest normal number.

    The gradient is not the derivative of the forward, so `gradcheck` fails, as it
    should. Higher derivatives are those of the surrogate, with that from the right at
    0. Works under `torch.compile`, `torch.export` and every transform of `torch.func`,
    in forward mode, too.
    Raises TypeError or ValueError for other arguments.
    """
    _check(input, slope=slope)
    info = torch.finfo(input.dtype)
    if not info.tiny <= slope <= info.max:
        raise ValueError(
            f"slope must lie between {info.tiny:.2g} and {info.max:.2g} for "
            f"{input.dtype}, got {slope}"
        )
    side = torch.where(input < 0, -1.0, 1.0).to(input.dtype)
    # x / (1 + slope · |x|) but for a constant on each side, which a derivative does not
    # see. So spelled, its derivative is a product; that of the quotient is a difference
    # of near equals.
    smooth = -side / slope / (1 + side * input * slope)
    return _with_slope_of(smooth, (input > 0).to(input.dtype))
